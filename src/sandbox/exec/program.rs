//! Starts a helper from the file that this process runs, even after the file was moved or replaced.
//!
//! The file is held open and passed to the child, which executes it through the descriptor. By then
//! its name may belong to a new version, or lie where commands can write. `/proc/PID/exe` is no
//! alternative: the children of a process that is closed to debuggers cannot open it.

use std::{ffi::OsString, os::fd::OwnedFd, path::PathBuf, sync::Arc};

use callboard_actors::ports::SandboxError;
use rustix::fs::{Mode, OFlags};

use super::launch::{CARRIED, Carried};

/// First argument of a helper process.
pub(in crate::sandbox) const ASK: &str = "__jail";

/// Environment variable of a helper process. A program that finds it set, and whose `main` did not
/// call [`jail_main_if_asked`](crate::sandbox::jail_main_if_asked), must not start another helper.
pub(in crate::sandbox) const ASKED: &str = "CALLBOARD_JAIL";

/// The file that this process was started from.
pub(super) fn own_file() -> std::io::Result<OwnedFd> {
    Ok(rustix::fs::open(
        "/proc/self/exe",
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// The program that becomes a helper.
#[derive(Debug, Clone)]
pub(in crate::sandbox) enum Program {
    /// A program named by the embedding program.
    Named(PathBuf),
    /// The file that this process was started from.
    Own(Arc<OwnedFd>),
}

impl Program {
    pub(in crate::sandbox) fn new(named: Option<PathBuf>) -> Result<Self, SandboxError> {
        if let Some(path) = named {
            return Ok(Self::Named(path));
        }
        own_file()
            .map(|fd| Self::Own(Arc::new(fd)))
            .map_err(|error| SandboxError::Failed(format!("this program's file: {error}")))
    }

    /// Path to execute.
    pub(in crate::sandbox) fn path(&self) -> OsString {
        match self {
            Self::Named(path) => path.into(),
            Self::Own(_) => format!("/proc/self/fd/{CARRIED}").into(),
        }
    }

    /// Descriptor that the child needs for [`Program::path`].
    pub(in crate::sandbox) fn carried(&self) -> Option<Carried> {
        match self {
            Self::Named(_) => None,
            Self::Own(fd) => Some(Carried::OwnProgram(fd.clone())),
        }
    }
}
