//! The helper: this same program, started again to confine itself and then become a command.
//!
//! # Layout
//! - [`jail_main_if_asked`](crate::sandbox::jail_main_if_asked) is the entry point.
//! - `plan` is the host's request to the helper.
//! - `supervisor` is the first stage. It outlives the host briefly, ends every process below it and
//!   removes the private folder.
//! - `inner` is the second stage. It drops every right, then becomes bash.
//! - `mounts` covers names and makes folders read-only where a mount namespace can be created.
//! - `folders` builds the Landlock rules.
//! - `forward` is a separate stage inside a bubblewrap jail: it connects a command to the proxy.
//! - `confine` starts a command beside the forwarder and refuses it the sockets that the forwarder
//!   needs.
//! - `pdf` is a separate stage that reads the text of a PDF after dropping every other right.
//! - `exec::watchdog` is the stage that sweeps after a killed host.
//!
//! **Invariant:** the first stage never runs the command, and the second becomes the command only
//! after every restriction is in place. A failure before that ends the helper.

#[cfg(feature = "web")]
mod confine;
mod folders;
#[cfg(feature = "web")]
mod forward;
mod inner;
mod mounts;
#[cfg(feature = "pdf")]
pub(super) mod pdf;
mod plan;
mod supervisor;

pub(super) use mounts::{Mounted, is_mount_point};
use plan::PIPE;
pub(super) use plan::Plan;

use crate::sandbox::exec::{ASK, watchdog, words::word};

/// Runs a stage of the helper and exits, if this process was started for one.
pub(in crate::sandbox) fn exit_if_asked() {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == ASK) {
        std::process::exit(stage(arguments.collect()));
    }
}

fn stage(arguments: Vec<std::ffi::OsString>) -> i32 {
    // Started through a descriptor, the process would have an unreadable name in a process list.
    let _ = rustix::thread::set_name(c"callboard-jail");
    #[cfg(feature = "web")]
    if let [stage, nonce] = arguments.as_slice()
        && stage == forward::STAGE
    {
        return forward::run(&nonce.to_string_lossy()).map_or(FAILED, |()| 0);
    }
    #[cfg(feature = "web")]
    if let [stage, argv @ ..] = arguments.as_slice()
        && stage == confine::STAGE
    {
        return confine::run(argv);
    }
    #[cfg(feature = "pdf")]
    if let [stage, nonce] = arguments.as_slice()
        && stage == pdf::STAGE
    {
        return pdf::run(&nonce.to_string_lossy()).unwrap_or(FAILED);
    }
    if let [stage, lock] = arguments.as_slice()
        && stage == watchdog::STAGE
    {
        return watchdog::run(&lock.to_string_lossy());
    }
    let [stage, plan, command, found @ ..] = arguments.as_slice() else {
        return FAILED;
    };
    let Some(plan) = plan
        .to_str()
        .and_then(|plan| serde_json::from_str::<Plan>(plan).ok())
    else {
        return FAILED;
    };
    let ended = match stage.to_str() {
        Some(supervisor::STAGE) => supervisor::run(&plan, command, found),
        Some(inner::STAGE) => inner::run(&plan, command, found),
        _ => return FAILED,
    };
    ended.unwrap_or_else(|why| {
        use std::io::Write;
        let _ = std::io::stderr().write_all(word(&plan.nonce, "failed", &why).as_bytes());
        FAILED
    })
}

/// Exit code of a helper that failed before it could run the command.
const FAILED: i32 = 125;
