//! The helper: this same program, started again to put itself behind the kernel's walls and become a command.
//!
//! # Layout
//! [`jail_main_if_asked`] is the door · `plan` what it is told · `supervisor` the first stage: outlives the host by a moment, ends
//! every process below it, removes the private folder · `inner` the second stage: gives up every right, then becomes bash ·
//! `mounts` what is covered and made read-only where a mount namespace can be made · `folders` the rules of Landlock · `program` how
//! the helper is started, whatever became of its file · `forward` a stage of its own: what a command behind bubblewrap reaches listed
//! hosts through. It is started inside the jail and decides nothing. · `confine` what such a command is started by, so that it may not
//! make the sockets that the forwarder makes · `pdf` another: reads the text of a PDF, having given up everything else ·
//! [`watchdog`](super::watchdog) the last: it sweeps for a host that was killed.
//!
//! **Invariant:** the first stage never runs the command, and the second becomes it only after every wall stands: anything that
//! fails before ends the helper, never opens it.

#[cfg(all(feature = "sandbox-linux", feature = "web", target_os = "linux"))]
mod confine;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod folders;
#[cfg(all(feature = "sandbox-linux", feature = "web", target_os = "linux"))]
mod forward;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod inner;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod mounts;
#[cfg(all(feature = "pdf", target_os = "linux"))]
pub(super) mod pdf;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod plan;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod program;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod supervisor;

#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(super) use mounts::with_second_names;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(super) use plan::{Namespace, Plan};
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(super) use program::{Program, own_file};

/// The first argument of a helper.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(super) const ASK: &str = "__jail";

/// Stands in the environment of a helper: a program that finds it and was not asked by its `main` must not start another.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(super) const ASKED: &str = "CALLBOARD_JAIL";

/// Becomes the jail of a command if this process was started to be one; returns at once if not. Call it first in `main`, before
/// threads, a runtime or the arguments: where bubblewrap does not work, commands run in a second process of your own program.
///
/// A second process of your program, the watchdog, also moves aside what a command planted when the host is killed meanwhile.
///
/// Without this call everything else works; there are then no commands where there is no bubblewrap, and [`super::detect`] says so.
/// It finds that out by starting your program once with the argument `__jail`, for ten seconds at most.
///
/// ```
/// fn main() -> std::process::ExitCode {
///     callboard::sandbox::jail_main_if_asked();
///
///     // Whatever your program does.
///     std::process::ExitCode::SUCCESS
/// }
/// ```
pub fn jail_main_if_asked() {
    #[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
    {
        let mut arguments = std::env::args_os().skip(1);
        if arguments.next().is_some_and(|first| first == ASK) {
            std::process::exit(stage(arguments.collect()));
        }
    }
}

#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
fn stage(arguments: Vec<std::ffi::OsString>) -> i32 {
    // It was started by a descriptor, which is no name to read in a list of processes.
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
    if matches!(arguments.as_slice(), [stage] if stage == super::watchdog::STAGE) {
        return super::watchdog::run();
    }
    let [stage, plan, command, found @ ..] = arguments.as_slice() else { return FAILED };
    let Some(plan) = plan.to_str().and_then(|plan| serde_json::from_str::<Plan>(plan).ok()) else { return FAILED };
    let ended = match stage.to_str() {
        Some(supervisor::STAGE) => supervisor::run(&plan, command, found),
        Some(inner::STAGE) => inner::run(&plan, command, found),
        _ => return FAILED,
    };
    ended.unwrap_or_else(|why| {
        use std::io::Write;
        let _ = std::io::stderr().write_all(super::shell::word(&plan.nonce, "failed", &why).as_bytes());
        FAILED
    })
}

/// What a helper that could not do its work ends with.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
const FAILED: i32 = 125;
