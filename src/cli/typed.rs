//! Reads a person's typed answer to a question. It reads from the terminal, never from piped input,
//! and discards what was typed before the question could be read.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Read as _},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    termios::{LocalModes, OptionalActions, QueueSelector, Termios, tcflush, tcgetattr, tcsetattr},
};

/// Input that arrives sooner after the question was meant for something else: no person reads
/// faster.
const READING_TIME: Duration = Duration::from_millis(200);

/// Maximum size of an answer in bytes; a longer line was not typed by a person.
const ANSWER_BYTES_MAX: u64 = 1024;

/// Whether there is a terminal to ask on.
pub(super) fn can_ask() -> bool {
    File::open("/dev/tty").is_ok()
}

/// Waits for a line that is typed at least [`READING_TIME`] after this call. Returns `None` if
/// there is no terminal, if earlier input cannot be discarded, or once `is_over`, which is polled
/// every 100 ms, returns true.
pub(super) fn answer(is_over: impl Fn() -> bool) -> Option<String> {
    let terminal = File::open("/dev/tty").ok()?;
    let asked = Instant::now();
    while let Some(left) = READING_TIME.checked_sub(asked.elapsed()) {
        std::thread::sleep(left);
    }
    // If earlier input cannot be discarded, it could be mistaken for the answer.
    tcflush(&terminal, QueueSelector::IFlush).ok()?;
    while !is_readable(&terminal) {
        if is_over() {
            return None;
        }
    }
    let mut line = String::new();
    BufReader::new(terminal.take(ANSWER_BYTES_MAX))
        .read_line(&mut line)
        .ok()?;
    Some(line)
}

/// As [`answer`], but waits for one key to which `meaning` gives a meaning; no Enter is needed.
pub(super) fn key<T>(is_over: impl Fn() -> bool, meaning: impl Fn(u8) -> Option<T>) -> Option<T> {
    let mut terminal = File::open("/dev/tty").ok()?;
    let asked = Instant::now();
    let _keys = Keys::of(&terminal);
    while let Some(left) = READING_TIME.checked_sub(asked.elapsed()) {
        std::thread::sleep(left);
    }
    tcflush(&terminal, QueueSelector::IFlush).ok()?;
    loop {
        while !is_readable(&terminal) {
            if is_over() {
                return None;
            }
        }
        let mut byte = [0];
        if terminal.read(&mut byte).ok()? == 0 {
            return None;
        }
        if let Some(meaning) = byte.first().copied().and_then(&meaning) {
            // What else was typed, such as Enter, belongs to this answer.
            let _ = tcflush(&terminal, QueueSelector::IFlush);
            return Some(meaning);
        }
    }
}

/// Modes of the terminal that last as long as this exists: by [`Keys::of`], keys arrive one by one
/// and are not echoed. Ctrl-C stays a signal.
pub(super) struct Keys {
    terminal: File,
    before: Termios,
}

impl Keys {
    /// `None` if the terminal cannot be set.
    pub(super) fn of(terminal: &File) -> Option<Self> {
        Self::without(terminal, LocalModes::ICANON | LocalModes::ECHO)
    }

    /// What is typed is not echoed, because that would move the rows that change. It stays for the
    /// next program that reads it. `None` without a terminal.
    pub(super) fn unseen() -> Option<Self> {
        Self::without(&File::open("/dev/tty").ok()?, LocalModes::ECHO)
    }

    fn without(terminal: &File, less: LocalModes) -> Option<Self> {
        let before = tcgetattr(terminal).ok()?;
        let mut modes = before.clone();
        modes.local_modes.remove(less);
        tcsetattr(terminal, OptionalActions::Now, &modes).ok()?;
        Some(Self {
            terminal: terminal.try_clone().ok()?,
            before,
        })
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}

/// Waits up to 100 ms for input.
pub(super) fn is_readable(terminal: &File) -> bool {
    let mut fds = [PollFd::new(terminal, PollFlags::IN)];
    let wait = Timespec {
        tv_sec: 0,
        tv_nsec: 100_000_000,
    };
    poll(&mut fds, Some(&wait)).is_ok_and(|ready| ready > 0)
}
