//! The first stage. It adopts every orphaned process below it, so no process that a command starts
//! escapes. It ends them all when the command has ended, when the host closes its standard input,
//! or when the host is gone for whatever reason.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, DirBuilder},
    io::Write,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::DirBuilderExt,
    },
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FileType, Mode, OFlags},
    process::{Pid, WaitOptions, WaitStatus},
};

use super::{PIPE, Plan, inner};
use crate::sandbox::exec::{
    ASK, BEGIN,
    processes::{below, kill, pidfd},
    start_helper,
    words::word,
};

pub(super) const STAGE: &str = "supervise";

/// Longest time for ending the remaining processes, within the two seconds promised to callers. A
/// process in an uninterruptible sleep cannot be waited for.
const END_MAX: Duration = Duration::from_millis(1700);

/// Delay between two rounds of killing.
const AGAIN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 2_000_000,
};

pub(super) fn run(plan: &Plan, command: &OsStr, found: &[OsString]) -> Result<i32, String> {
    let said =
        |what: &'static str| move |error: std::io::Error| format!("{what}: {}", error.kind());
    let parent = rustix::process::getppid();
    if parent.map(Pid::as_raw_pid) != Some(plan.host) {
        return Ok(super::FAILED); // the host is gone already
    }
    let host = pidfd(plan.host).ok_or("the host cannot be watched")?;
    rustix::process::set_child_subreaper(parent)
        .map_err(|e| said("orphans cannot be adopted")(e.into()))?;
    DirBuilder::new()
        .mode(0o700)
        .create(&plan.private)
        .map_err(said("no private folder"))?;
    let ended = watch(plan, command, found, &host);
    // Whatever the command did to the folder, it is ours and the command is gone.
    let _ = fs::remove_dir_all(&plan.private);
    ended
}

fn watch(plan: &Plan, command: &OsStr, found: &[OsString], host: &OwnedFd) -> Result<i32, String> {
    let mut gate = None;
    if plan.gated {
        let said = |error: rustix::io::Errno| format!("no pipe: {error}");
        let pipe = plan.private.join(PIPE);
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, mode, 0).map_err(said)?;
        // Opened before its reader starts, so that neither waits for the other.
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        gate = Some(rustix::fs::open(&pipe, flags, Mode::empty()).map_err(said)?);
    }
    let plan_text = serde_json::to_string(plan).map_err(|_| "the plan cannot be encoded")?;
    let arguments = [
        OsStr::new(ASK),
        OsStr::new(inner::STAGE),
        OsStr::new(&plan_text),
        command,
    ];
    let child = start_helper(
        plan.namespace,
        arguments
            .into_iter()
            .chain(found.iter().map(OsString::as_os_str)),
    )
    .map_err(|error| format!("the helper cannot be started: {}", error.kind()))?;
    let child = i32::try_from(child)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or("no process")?;
    let child_fd = pidfd(child.as_raw_pid()).ok_or("the command cannot be watched")?;
    let control = std::io::stdin();
    let status = loop {
        let asked = if gate.is_some() {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        let watched = [PollFlags::IN, asked, PollFlags::IN];
        let fds = [child_fd.as_fd(), control.as_fd(), host.as_fd()];
        let mut fds: Vec<PollFd<'_>> = fds
            .into_iter()
            .zip(watched)
            .map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags))
            .collect();
        let _ = poll(&mut fds, None);
        let rose: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let is_asked = fds
            .get(1)
            .is_some_and(|control| control.revents().contains(PollFlags::IN));
        // Reaps orphans as well as the child.
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            if pid == child {
                let left = left_running();
                let _ = std::io::stderr()
                    .write_all(word(&plan.nonce, "left", &left.to_string()).as_bytes());
                end_all();
                return Ok(code(status));
            }
        }
        if is_asked && let Some(pipe) = gate.take() {
            let mut word = [0];
            if matches!(rustix::io::read(&control, &mut word), Ok(1)) && word == [BEGIN] {
                let _ = rustix::io::write(&pipe, &word);
                continue;
            }
            break super::FAILED;
        }
        if let [_, gone, host_gone] = rose.as_slice()
            && (*gone || *host_gone)
        {
            break super::FAILED;
        }
        if rose.first() == Some(&true) && rustix::process::test_kill_process(child).is_err() {
            break super::FAILED;
        }
    };
    end_all();
    Ok(status)
}

/// Counts the descendants that still run; a zombie has ended.
fn left_running() -> usize {
    let runs = |pid: &i32| {
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    };
    below(rustix::process::getpid().as_raw_pid())
        .iter()
        .filter(|pid| runs(pid))
        .count()
}

fn end_all() {
    let start = Instant::now();
    while start.elapsed() < END_MAX {
        below(rustix::process::getpid().as_raw_pid())
            .into_iter()
            .for_each(kill);
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return, // no child is left, and so no descendant: orphans become children
            }
        }
        let _ = poll(&mut [], Some(&AGAIN));
    }
}

fn code(status: WaitStatus) -> i32 {
    status
        .exit_status()
        .or_else(|| status.terminating_signal().map(|signal| 128 + signal))
        .unwrap_or(super::FAILED)
}
