//! Where commands run and paths end. One policy decides for every tool: the file tools are bound to
//! the workspace in this process, and commands run behind a boundary of the kernel.
//!
//! # Layout
//! Each room imports only rooms that stand before it in this list:
//! - [`policy`] lists what is refused, `toolchains` and `allow_list` what commands may read and
//!   reach, `user_path` what the user's own programs are. Plain data.
//! - `fs` keeps paths inside the workspace ([`Root`]), bounds its size and guards its protected
//!   files.
//! - `exec` starts, watches and ends processes. [`Spawner`] is the only place that starts one.
//! - `proxy` connects commands without a network to the hosts that an operator listed.
//! - `linux` has the boundaries of the kernel: [`Linux`] (bubblewrap) and [`Landlock`] (where
//!   bubblewrap does not work). [`Local`] has no boundary and is chosen by name only.
//! - `detect` chooses one of them.
//!
//! An embedding program calls [`jail_main_if_asked`] first in its `main`. Without that call there
//! are no commands where there is no bubblewrap.
//!
//! Inside [`Linux`] the workspace is at `/workspace`. File tools accept paths relative to the
//! workspace, paths below `/workspace`, and real absolute paths. Another implementation of the port
//! [`Sandbox`](callboard_actors::ports::Sandbox), such as a container or a small virtual machine, is
//! passed to `tools::over`.

mod allow_list;
mod detect;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod exec;
mod fs;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod linux;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod local;
pub mod policy;
#[cfg(all(feature = "sandbox-linux", feature = "web", target_os = "linux"))]
mod proxy;
#[cfg(all(feature = "sandbox-linux", not(feature = "web"), target_os = "linux"))]
#[path = "proxy/absent.rs"]
mod proxy;
mod toolchains;
mod user_path;

pub use allow_list::AllowList;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub use detect::detect_with;
pub use detect::{Boundary, Detected, Mode, Options, detect, detect_opted};
#[cfg(feature = "cli")]
pub(crate) use fs::NamedFiles;
#[cfg(all(feature = "cli", feature = "sandbox-linux", target_os = "linux"))]
pub(crate) use fs::why_no_notices;
pub use fs::{Opened, PathError, Root, Slot, WorkspaceQuota, WorkspaceUsage};
pub(crate) use fs::{Walk, folder_below, is_temporary, settled, shown};
#[cfg(all(feature = "pdf", target_os = "linux"))]
pub use linux::PdfText;
pub use policy::PathRules;
#[cfg(feature = "cli")]
pub(crate) use policy::protected_places;
pub(crate) use policy::refused_workspace;
pub use toolchains::Toolchains;
#[cfg(feature = "cli")]
pub(crate) use user_path::is_everyday;
pub(crate) use user_path::programs_of_user;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub use {
    exec::{ControlGroups, Piped, PipedLaunch, PipedProcess, Spawner},
    linux::{Landlock, Linux},
    local::Local,
};

/// Becomes the jail of a command if this process was started as one; otherwise returns at once.
/// Call it first in `main`, before threads, a runtime or argument parsing: where bubblewrap does
/// not work, commands run in a second process of your own program.
///
/// Another process of your program, the watchdog, moves aside protected files that a command
/// created if the host is killed during the command.
///
/// Without this call everything else works, but there are no commands where there is no bubblewrap,
/// and [`detect`] reports so. To find out, it starts your program once with the argument
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
    linux::exit_if_asked();
}

/// Version of the control groups that commands get, 1 or 2. Creates one as a test.
///
/// # Errors
/// The reason why commands get no control group.
pub fn control_groups() -> Result<u8, String> {
    #[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
    {
        exec::groups::Groups::find().map(|groups| match groups.version() {
            exec::groups::Version::One => 1,
            exec::groups::Version::Two => 2,
        })
    }
    #[cfg(not(all(feature = "sandbox-linux", target_os = "linux")))]
    {
        Err("this build has no sandbox for commands".to_owned())
    }
}

/// Checks whether each command gets a separate session keyring, without the keys of this process's
/// session. Creates one as a test.
///
/// # Errors
/// The reason why not. The seccomp filter still refuses commands all access to keyrings.
pub fn session_keyrings() -> Result<(), String> {
    #[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
    {
        exec::keys::can_join().map_err(|error| error.to_string())
    }
    #[cfg(not(all(feature = "sandbox-linux", target_os = "linux")))]
    {
        Err("this build has no sandbox for commands".to_owned())
    }
}
