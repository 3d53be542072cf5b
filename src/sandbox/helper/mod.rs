//! The helper: this same program, started again to confine itself and then become a command.
//!
//! # Layout
//! - [`jail_main_if_asked`] is the entry point.
//! - `plan` is the host's request to the helper.
//! - `supervisor` is the first stage. It outlives the host briefly, ends every process below it and
//!   removes the private folder.
//! - `inner` is the second stage. It drops every right, then becomes bash.
//! - `mounts` covers names and makes folders read-only where a mount namespace can be created.
//! - `folders` builds the Landlock rules.
//! - `program` starts the helper, even if its file was moved or replaced.
//! - `forward` is a separate stage inside a bubblewrap jail: it connects a command to the proxy.
//! - `confine` starts a command beside the forwarder and refuses it the sockets that the forwarder
//!   needs.
//! - `pdf` is a separate stage that reads the text of a PDF after dropping every other right.
//! - [`watchdog`](super::watchdog) is the stage that sweeps after a killed host.
//!
//! **Invariant:** the first stage never runs the command, and the second becomes the command only
//! after every restriction is in place. A failure before that ends the helper.

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

/// First argument of a helper process.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(super) const ASK: &str = "__jail";

/// Environment variable of a helper process. A program that finds it set, and whose `main` did not
/// call [`jail_main_if_asked`], must not start another helper.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(super) const ASKED: &str = "CALLBOARD_JAIL";

/// Becomes the jail of a command if this process was started as one; otherwise returns at once.
/// Call it first in `main`, before threads, a runtime or argument parsing: where bubblewrap does
/// not work, commands run in a second process of your own program.
///
/// Another process of your program, the watchdog, moves aside protected files that a command
/// created if the host is killed during the command.
///
/// Without this call everything else works, but there are no commands where there is no bubblewrap,
/// and [`super::detect`] reports so. To find out, it starts your program once with the argument
/// `__jail`, for ten seconds at most.
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

/// Exit code of a helper that failed before it could run the command.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
const FAILED: i32 = 125;
