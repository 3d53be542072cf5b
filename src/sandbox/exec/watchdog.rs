//! The watchdog: a second process of the helper that outlives the host. If the host is killed while
//! commands run, the watchdog moves aside the protected files that they created, as the host would
//! have done.
//!
//! One watchdog serves a whole [`Spawner`](super::spawner::Spawner) and starts with the first
//! command. It reads notes, one per line, from a pipe that only the host can write to. When the pipe
//! closes, it sweeps for every command that has begun and not ended, repeatedly, until the commands'
//! processes must be gone. If no command is open, it exits at once.
//!
//! From its start until it has swept, it keeps a file locked that the notices of its host's commands name,
//! so that another process which begins a command meanwhile takes these for running.
//!
//! It ignores the signals that ask a program to end, which a terminal, a service manager or `pkill` may send to
//! it beside the host: it ends when the host has.
//!
//! While the host itself is stopped (Ctrl-Z, SIGSTOP), it bounds nothing. So the watchdog looks at it
//! five times a second and stops the commands for as long.
//!
//! Limits: a watchdog that is killed together with the host, as `systemd` does with a control group
//! or a container runtime with a container, cannot sweep. If the helper does not answer, commands
//! run without a watchdog.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io::{Read, Write},
    process::{Child, ChildStdin},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::OFlags,
    io::Errno,
    process::Pid,
};
use serde::{Deserialize, Serialize};

use super::{
    processes::{Paused, Processes, is_stopped},
    program::{ASK, ASKED, Program},
    start::start_watchdog,
};
use crate::sandbox::{
    fs::{Guarded, Note, Orphaned, WatchdogLock},
    policy::PATH,
};

/// Name of the helper's stage.
pub(in crate::sandbox) const STAGE: &str = "watchdog";

/// Output of a watchdog that is ready.
const GREETING: &[u8] = b"callboard watches\n";

/// Longest wait for the greeting.
const GREETING_TIME_MAX: Duration = Duration::from_secs(5);

/// Longest wait for room in the pipe, which the watchdog reads continuously. A note of a command may take
/// many times what fits into it.
const WRITE_TIME_MAX: Duration = Duration::from_secs(1);

/// Bytes of ends queued for the pipe before the watchdog counts as gone.
const WAITING_MAX: usize = 1 << 20;

/// Pauses before each sweep. By the last one the processes of a command must be gone.
const SWEEPS: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(500),
    Duration::from_millis(600),
];

/// Time between two looks at the host while commands run.
const LOOKS: Duration = Duration::from_millis(200);

/// A line of the pipe.
#[derive(Debug, Serialize, Deserialize)]
enum Line {
    Begins { id: u64, note: Box<Note> },
    Ended { id: u64 },
}

/// The host's end of the pipe.
#[derive(Debug, Clone, Default)]
pub(in crate::sandbox) struct Watchdog(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    running: Option<ChildStdin>,
    /// Whether the watchdog failed to answer once; it is then not started again.
    is_absent: bool,
    /// Lines of commands that have begun and not ended, for a restarted watchdog.
    open: BTreeMap<u64, Vec<u8>>,
    /// Bytes that did not fit into the pipe yet.
    waiting: Vec<u8>,
    next: u64,
    /// Name of the file that the watchdog keeps locked until it has swept, the same after a restart.
    lock: Option<String>,
}

/// A command that the watchdog knows of. After a drop without [`Registration::end`] the watchdog
/// sweeps for the command when the host's end of the pipe closes.
#[derive(Debug)]
pub(in crate::sandbox) struct Registration {
    watchdog: Watchdog,
    id: u64,
}

impl Watchdog {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Registers a command just before its start: from here on, the watchdog sweeps if the host is
    /// killed. `None` if there is no watchdog. Blocks, longest when it has to start one.
    pub(in crate::sandbox) fn register(
        &self,
        helper: &Program,
        guarded: &mut Guarded,
    ) -> Option<Registration> {
        let note = guarded.note()?;
        let mut state = self.state();
        let id = state.next;
        state.next += 1;
        let mut line = serde_json::to_vec(&Line::Begins {
            id,
            note: Box::new(note),
        })
        .ok()?;
        line.push(b'\n');
        state.open.insert(id, line.clone());
        let is_registered = state.running.is_some() && state.write(&line) || state.restart(helper);
        if !is_registered {
            state.open.remove(&id);
            tracing::warn!(
                "no watchdog: what a command plants stays if this process is killed meanwhile"
            );
            return None;
        }
        if let Some(lock) = &state.lock {
            guarded.name_watchdog(lock);
        }
        Some(Registration {
            watchdog: self.clone(),
            id,
        })
    }
}

impl State {
    /// Starts a new watchdog, unless one failed to answer, and registers all open commands.
    fn restart(&mut self, helper: &Program) -> bool {
        (self.running, self.waiting) = (None, Vec::new());
        if self.is_absent {
            return false;
        }
        let lock = self.lock.take().or_else(WatchdogLock::name);
        let lock = self.lock.insert(lock.unwrap_or_default());
        match start(helper, lock) {
            Ok(stdin) => self.running = Some(stdin),
            Err(error) => {
                self.is_absent = true;
                tracing::warn!(error = %error.kind(), "no watchdog: what a command plants stays if this process is killed meanwhile");
                return false;
            }
        }
        let lines: Vec<u8> = self.open.values().flatten().copied().collect();
        self.write(&lines)
    }

    /// Writes a complete line; `false` if the watchdog is gone.
    fn write(&mut self, line: &[u8]) -> bool {
        self.waiting.extend_from_slice(line);
        let mut until = Instant::now() + WRITE_TIME_MAX;
        let mut left_before = self.waiting.len();
        while self.flush() {
            if self.waiting.is_empty() {
                return true;
            }
            if self.waiting.len() < left_before {
                left_before = self.waiting.len();
                until = Instant::now() + WRITE_TIME_MAX;
            }
            let (Some(stdin), Ok(left)) = (
                &self.running,
                Timespec::try_from(until.saturating_duration_since(Instant::now())),
            ) else {
                break;
            };
            if Instant::now() >= until
                || poll(&mut [PollFd::new(stdin, PollFlags::OUT)], Some(&left)).is_err()
            {
                break;
            }
        }
        self.running = None;
        false
    }

    /// Writes as much as the pipe accepts; `false` if the watchdog is gone.
    fn flush(&mut self) -> bool {
        let Some(stdin) = &self.running else {
            return false;
        };
        while !self.waiting.is_empty() {
            match rustix::io::write(stdin, &self.waiting) {
                Ok(written) => drop(self.waiting.drain(..written)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
        true
    }
}

impl Registration {
    /// Ends the registration: the command has ended and its sweep is done, or it never began. Does
    /// not block.
    pub(in crate::sandbox) fn end(self) {
        let mut state = self.watchdog.state();
        state.open.remove(&self.id);
        if let Ok(mut line) = serde_json::to_vec(&Line::Ended { id: self.id }) {
            line.push(b'\n');
            state.waiting.extend_from_slice(&line);
            if !state.flush() || state.waiting.len() > WAITING_MAX {
                state.running = None;
            }
        }
    }
}

/// Starts a watchdog and waits for its greeting.
fn start(helper: &Program, lock: &str) -> std::io::Result<ChildStdin> {
    let environment = [("PATH", PATH), (ASKED, "1")]
        .map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let mut child = start_watchdog(helper, [ASK, STAGE, lock].map(OsString::from), environment)?;
    if let (true, Some(stdin)) = (greets(&mut child), child.stdin.take()) {
        rustix::fs::fcntl_setfl(&stdin, OFlags::NONBLOCK)?;
        // It exits when its pipe closes. This thread reaps it, so that no zombie is left.
        std::thread::Builder::new()
            .name("callboard-watchdog".to_owned())
            .spawn(move || drop(child.wait()))?;
        return Ok(stdin);
    }
    let _ = child.kill();
    let _ = child.wait();
    Err(std::io::ErrorKind::Unsupported.into())
}

fn greets(child: &mut Child) -> bool {
    let Some(mut stdout) = child.stdout.take() else {
        return false;
    };
    let until = Instant::now() + GREETING_TIME_MAX;
    let mut said = Vec::new();
    while said.len() < GREETING.len() {
        let Ok(left) = Timespec::try_from(until.saturating_duration_since(Instant::now())) else {
            return false;
        };
        let mut buffer = [0; 32];
        match poll(&mut [PollFd::new(&stdout, PollFlags::IN)], Some(&left)) {
            Ok(0) => return false,
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return false,
        }
        match stdout.read(&mut buffer) {
            Ok(read) if read > 0 => said.extend_from_slice(buffer.get(..read).unwrap_or_default()),
            _ => return false,
        }
    }
    said == GREETING
}

/// Main function of the watchdog process. It keeps the file `lock` locked until it has swept.
pub(in crate::sandbox) fn run(lock: &str) -> i32 {
    // No signal to the host's terminal or process group reaches it. In a group without a parent in its
    // session, the kernel would end a process that is stopped when the host ends.
    let _ = rustix::process::setsid();
    let _lock = WatchdogLock::new(lock);
    if std::io::stdout()
        .write_all(GREETING)
        .and_then(|()| std::io::stdout().flush())
        .is_err()
    {
        return 1;
    }
    let open = watch(rustix::process::getppid());
    let orphaned: Vec<Orphaned> = open.into_values().filter_map(Orphaned::of).collect();
    for pause in SWEEPS {
        if orphaned.is_empty() {
            break;
        }
        std::thread::sleep(pause);
        orphaned.iter().for_each(Orphaned::sweep);
    }
    0
}

/// Reads lines until the pipe closes, and keeps commands from running while the host is stopped.
/// Returns what is open then.
fn watch(host: Option<Pid>) -> BTreeMap<u64, Note> {
    let stdin = std::io::stdin();
    let mut open = BTreeMap::new();
    let mut paused = Vec::new();
    let mut unread: Vec<u8> = Vec::new();
    let mut looked = Instant::now();
    loop {
        let looks = !open.is_empty() || !paused.is_empty();
        if looks && looked.elapsed() >= LOOKS {
            look(host, &mut paused);
            looked = Instant::now();
        }
        let wait = looks.then(|| Timespec::try_from(LOOKS).ok()).flatten();
        match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], wait.as_ref()) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(_) => return open,
        }
        let mut chunk = [0; 65_536];
        let read = match rustix::io::read(&stdin, &mut chunk) {
            Ok(read) if read > 0 => chunk.get(..read).unwrap_or_default(),
            Err(Errno::INTR) => continue,
            _ => return open,
        };
        for part in read.split_inclusive(|byte| *byte == b'\n') {
            unread.extend_from_slice(part);
            if !part.ends_with(b"\n") {
                continue;
            }
            match serde_json::from_slice(&std::mem::take(&mut unread)) {
                Ok(Line::Begins { id, note }) => drop(open.insert(id, *note)),
                Ok(Line::Ended { id }) => drop(open.remove(&id)),
                Err(_) => {}
            }
        }
    }
}

/// Stops what runs below the host's children while the host is stopped, and what starts there
/// meanwhile; lets it go on once the host does.
fn look(host: Option<Pid>, paused: &mut Vec<Paused>) {
    let host = host.filter(|host| rustix::process::getppid() == Some(*host));
    match host.map(|host| host.as_raw_nonzero().get()) {
        Some(host) if is_stopped(host) => {
            let own = std::process::id().cast_signed();
            let children: Vec<i32> = Processes::read_below([host])
                .children_of(host)
                .iter()
                .copied()
                .filter(|child| *child != own)
                .collect();
            let new = Paused::below(children.into_iter());
            if !new.is_empty() {
                paused.push(new);
            }
        }
        _ => paused.clear(),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_note_of_many_files_reaches_a_watchdog_that_reads_slowly() {
        let mut reader = Command::new("/bin/sh")
            .args(["-c", "sleep 0.2; wc -c"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = reader.stdin.take().unwrap();
        rustix::fs::fcntl_setfl(&stdin, OFlags::NONBLOCK).unwrap();
        let mut state = State {
            running: Some(stdin),
            ..State::default()
        };

        assert!(state.write(&vec![b'x'; 8 * WAITING_MAX]));

        drop(state);
        let read = reader.wait_with_output().unwrap().stdout;
        let read = String::from_utf8(read).unwrap();
        assert_eq!(read.trim(), (8 * WAITING_MAX).to_string());
    }
}
