//! Where commands run and paths end. One policy decides for every tool (FAULTS, "Only bash is sandboxed").
//!
//! # Layout
//! [`policy`] names what is refused and every number; [`Root`] is the jail of paths; [`Linux`] (bubblewrap) and [`Local`] (no
//! boundary, by name only) run commands; [`Spawner`] is the only place that starts a process.
//!
//! Inside [`Linux`] the workspace lies at `/workspace`; file tools take paths relative to it, that form, or the real absolute one.

pub mod policy;
mod jail;
mod spelling;
mod atomic;
mod walk;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod capture;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod processes;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod job;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod spawner;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod guard;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod linux;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod local;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod exec;

use std::sync::Arc;

use callboard_actors::ports::{Sandbox, SandboxError};

pub use atomic::Slot;
pub(crate) use atomic::is_temporary;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
use exec::{Then, blocking, clamp, denied, limited_command, working_dir};
pub use jail::{Opened, PathError, Root};
pub(crate) use jail::{settled, shown};
pub use policy::PathRules;
pub(crate) use walk::Walk;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub use {linux::Linux, local::Local, spawner::Spawner};

/// Which sandbox commands get (`--sandbox`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// The kernel's boundary, or no commands at all.
    #[default]
    Auto,
    /// The kernel's boundary, or an error.
    Linux,
    /// No boundary. Only ever by name.
    Local,
    /// No commands.
    None,
}

/// What [`detect`] found.
#[derive(Clone)]
pub struct Detected {
    /// Where commands run; `None`: there are no exec tools.
    pub sandbox: Option<Arc<dyn Sandbox>>,
    /// What to tell the user at start, if anything.
    pub note: Option<String>,
}

impl std::fmt::Debug for Detected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Detected").field("policy", &self.sandbox.as_ref().map(|s| s.policy())).field("note", &self.note).finish()
    }
}

/// Chooses a sandbox over `root`, trying it once. Starts a thread of its own; see [`detect_with`] to share one.
///
/// # Errors
/// [`SandboxError::Failed`] when `mode` names one that does not work here.
pub fn detect(root: &Arc<Root>, mode: Mode) -> Result<Detected, SandboxError> {
    #[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
    {
        if mode == Mode::None {
            return Ok(none());
        }
        let spawner = Spawner::start().map_err(|e| SandboxError::Failed(e.kind().to_string()))?;
        detect_with(root, mode, &spawner, Vec::new())
    }
    #[cfg(not(all(feature = "sandbox-linux", target_os = "linux")))]
    {
        let _ = root;
        let missing = "this build has no sandbox for commands (feature sandbox-linux, Linux only)";
        match mode {
            Mode::None => Ok(none()),
            Mode::Auto => Ok(Detected { sandbox: None, note: Some(format!("no bash tool: {missing}")) }),
            Mode::Linux | Mode::Local => Err(SandboxError::Failed(missing.to_owned())),
        }
    }
}

fn none() -> Detected {
    Detected { sandbox: None, note: Some("no bash tool: the sandbox mode is none".to_owned()) }
}

/// As [`detect`], with the host's spawner and more folders that commands can read (toolchains), at their own path.
///
/// # Errors
/// [`SandboxError::Failed`] when `mode` names one that does not work here.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub fn detect_with(root: &Arc<Root>, mode: Mode, spawner: &Spawner, read_only: Vec<std::path::PathBuf>) -> Result<Detected, SandboxError> {
    match mode {
        Mode::None => Ok(none()),
        Mode::Local => Ok(Detected {
            sandbox: Some(Arc::new(Local::new(root.clone(), spawner))),
            note: Some("bash runs WITHOUT a boundary (sandbox mode local): commands can do whatever you can".to_owned()),
        }),
        Mode::Linux => Ok(Detected { sandbox: Some(Arc::new(Linux::probe(root.clone(), spawner, read_only)?)), note: None }),
        Mode::Auto => Ok(match Linux::probe(root.clone(), spawner, read_only) {
            Ok(linux) => Detected { sandbox: Some(Arc::new(linux)), note: None },
            Err(error) => Detected { sandbox: None, note: Some(format!("no bash tool: {error}")) },
        }),
    }
}
