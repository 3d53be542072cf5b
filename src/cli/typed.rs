//! Reads what a person types in answer to a question. The answer comes from the terminal itself, not from what is piped in, and
//! counts only if it was typed after the question could be read.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Read as _},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    termios::{QueueSelector, tcflush},
};

/// What is typed sooner after a question appears was typed for something else: no person reads faster.
const READING_TIME: Duration = Duration::from_millis(200);

/// Bytes of an answer; a longer line was not typed by a person.
const ANSWER_BYTES_MAX: u64 = 1024;

/// Whether there is a terminal to ask at.
pub(super) fn can_ask() -> bool {
    File::open("/dev/tty").is_ok()
}

/// Waits for a line that is typed from [`READING_TIME`] after this call on. `None` if there is no terminal, if earlier input cannot
/// be discarded, or once `is_over` returns true, which is asked every 100 ms.
pub(super) fn answer(is_over: impl Fn() -> bool) -> Option<String> {
    let terminal = File::open("/dev/tty").ok()?;
    let asked = Instant::now();
    while let Some(left) = READING_TIME.checked_sub(asked.elapsed()) {
        std::thread::sleep(left);
    }
    // An answer that cannot be distinguished from what was typed before the question is none.
    tcflush(&terminal, QueueSelector::IFlush).ok()?;
    while !is_readable(&terminal) {
        if is_over() {
            return None;
        }
    }
    let mut line = String::new();
    BufReader::new(terminal.take(ANSWER_BYTES_MAX)).read_line(&mut line).ok()?;
    Some(line)
}

/// Waits up to 100 ms for a line.
fn is_readable(terminal: &File) -> bool {
    let mut fds = [PollFd::new(terminal, PollFlags::IN)];
    let wait = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    poll(&mut fds, Some(&wait)).is_ok_and(|ready| ready > 0)
}
