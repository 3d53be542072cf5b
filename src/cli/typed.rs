//! Reads a person's typed answer to a question. It reads from the terminal, never from piped input,
//! and discards what was typed before the question could be read.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Read as _},
    sync::{
        Once,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    termios::{LocalModes, OptionalActions, QueueSelector, Termios, tcflush, tcgetattr, tcsetattr},
};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Input that arrives sooner after the question was meant for something else: no person reads
/// faster.
const READING_TIME: Duration = Duration::from_millis(200);

/// Time without input before a key can be an answer.
const SILENCE: Duration = Duration::from_millis(500);

/// Time without input after a key that is an answer. People type faster than this within a word.
const ALONE: Duration = Duration::from_millis(300);

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
    line(is_over)
}

/// Waits for a line, which is echoed and can be corrected. `None` as of [`answer`].
pub(super) fn line(is_over: impl Fn() -> bool) -> Option<String> {
    let terminal = File::open("/dev/tty").ok()?;
    let _modes = Keys::with(&terminal, |modes| {
        modes.insert(LocalModes::ICANON | LocalModes::ECHO);
    });
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
///
/// A person who is typing or pasting something else must not answer by it. So the key counts only
/// after [`SILENCE`], and only alone: nothing but Enter may follow within [`ALONE`]. Input that does
/// not count is discarded, and `unclear` is called once for each piece of it.
pub(super) fn key<T>(
    is_over: impl Fn() -> bool,
    meaning: impl Fn(u8) -> Option<T>,
    unclear: impl Fn(),
) -> Option<T> {
    let mut terminal = File::open("/dev/tty").ok()?;
    let _keys = Keys::of(&terminal);
    // What was typed before the question is no attempt to answer it.
    tcflush(&terminal, QueueSelector::IFlush).ok()?;
    let mut is_unclear = false;
    loop {
        is_unclear |= discard_until_silence(&mut terminal, &is_over)?;
        if std::mem::take(&mut is_unclear) {
            unclear();
        }
        while !is_readable(&terminal) {
            if is_over() {
                return None;
            }
        }
        let mut typed = Vec::new();
        loop {
            let mut bytes = [0; 64];
            let read = terminal.read(&mut bytes).ok()?;
            if read == 0 {
                return None;
            }
            typed.extend_from_slice(bytes.get(..read).unwrap_or_default());
            if typed.len() > 2 || !is_readable_within(&terminal, ALONE) {
                break;
            }
        }
        let answer = match typed.as_slice() {
            [key] | [key, b'\r' | b'\n'] => meaning(*key),
            _ => None,
        };
        if answer.is_some() {
            return answer;
        }
        is_unclear = true;
    }
}

/// Discards input until none has arrived for [`SILENCE`], and returns whether there was any. `None`
/// once `is_over`, or if the terminal is gone.
fn discard_until_silence(terminal: &mut File, is_over: &impl Fn() -> bool) -> Option<bool> {
    let mut was_input = false;
    let mut silent_since = Instant::now();
    while silent_since.elapsed() < SILENCE {
        if is_over() {
            return None;
        }
        if is_readable(terminal) {
            if terminal.read(&mut [0; 1024]).ok()? == 0 {
                return None;
            }
            was_input = true;
            silent_since = Instant::now();
        }
    }
    Some(was_input)
}

/// Modes of the terminal that last as long as this exists: by [`Keys::of`], keys arrive one by one
/// and are not echoed. Ctrl-C stays a signal. A process that Ctrl-\ or the end of its terminal ends
/// sets the modes back first.
pub(super) struct Keys(u64);

/// What the modes were before each [`Keys`] that exists, in order.
static HELD: Mutex<Vec<Held>> = Mutex::new(Vec::new());

struct Held {
    id: u64,
    terminal: File,
    before: Termios,
}

impl Held {
    fn set_back(&self) {
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
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
        Self::with(terminal, |modes| modes.remove(less))
    }

    fn with(terminal: &File, change: impl FnOnce(&mut LocalModes)) -> Option<Self> {
        static SIGNALS: Once = Once::new();
        static NEXT: AtomicU64 = AtomicU64::new(0);
        SIGNALS.call_once(set_back_at_signals);
        let own = terminal.try_clone().ok()?;
        let mut held = HELD.lock();
        let before = tcgetattr(terminal).ok()?;
        let mut modes = before.clone();
        change(&mut modes.local_modes);
        tcsetattr(terminal, OptionalActions::Now, &modes).ok()?;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        held.push(Held {
            id,
            terminal: own,
            before,
        });
        Some(Self(id))
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let mut held = HELD.lock();
        if let Some(place) = held.iter().position(|one| one.id == self.0) {
            held.remove(place).set_back();
        }
    }
}

/// From now on, SIGQUIT and SIGHUP set the modes of the terminal back before they end the process.
/// SIGINT and SIGTERM end what holds them.
fn set_back_at_signals() {
    let (ready, is_ready) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new().name("callboard-modes".to_owned());
    let thread = thread.spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let Ok(runtime) = runtime else {
            return;
        };
        let number = runtime.block_on(async {
            let mut quit = unless_ignored(SignalKind::quit());
            let mut hangup = unless_ignored(SignalKind::hangup());
            let _ = ready.send(());
            tokio::select! {
                () = next(&mut quit) => 3,
                () = next(&mut hangup) => 1,
            }
        });
        for held in HELD.lock().iter().rev() {
            held.set_back();
        }
        std::process::exit(128 + number);
    });
    if thread.is_ok() {
        // An error means that the thread has ended without a signal.
        let _ = is_ready.recv();
    }
}

async fn next(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Listens to a signal; `None` if this process ignores it, as SIGHUP under `nohup`.
fn unless_ignored(kind: SignalKind) -> Option<Signal> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    let bit = 1 << (kind.as_raw_value() - 1);
    if ignored & bit == 0 {
        signal(kind).ok()
    } else {
        None
    }
}

/// Waits up to 100 ms for input.
pub(super) fn is_readable(terminal: &File) -> bool {
    is_readable_within(terminal, Duration::from_millis(100))
}

/// Waits this long for input.
pub(super) fn is_readable_within(terminal: &File, wait: Duration) -> bool {
    let mut fds = [PollFd::new(terminal, PollFlags::IN)];
    let wait = Timespec::try_from(wait).ok();
    poll(&mut fds, wait.as_ref()).is_ok_and(|ready| ready > 0)
}
