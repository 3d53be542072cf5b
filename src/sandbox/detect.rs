//! Chooses a sandbox: tries what works on this machine, in the order that the mode allows.

use std::{fmt, sync::Arc};

use callboard_actors::ports::{ExecLimits, Sandbox, SandboxError};

use super::{allow_list::AllowList, fs::Root, toolchains::Toolchains};
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
use super::{
    exec::{Spawner, call::reason},
    fs::why_no_notices,
    linux::{Landlock, Linux},
    local::Local,
};

/// Which sandbox commands get (`--sandbox`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// A boundary of the kernel; without one there are no commands.
    #[default]
    Auto,
    /// A boundary of the kernel; without one detection fails.
    Linux,
    /// No boundary. Never chosen automatically.
    Local,
    /// No boundary works here, so there are no commands.
    None,
}

/// The result of [`detect`].
#[derive(Clone)]
pub struct Detected {
    /// Where commands run; `None` means that there are no exec tools.
    pub sandbox: Option<Arc<dyn Sandbox>>,
    /// A message for the user at start; `None` if there is nothing to report.
    pub note: Option<String>,
}

impl fmt::Debug for Detected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detected")
            .field("policy", &self.sandbox.as_ref().map(|s| s.policy()))
            .field("note", &self.note)
            .finish()
    }
}

/// Chooses a sandbox over `root` and tries it once. Starts a thread for processes; see
/// [`detect_with`] to share one.
///
/// # Errors
/// [`SandboxError::Failed`] when `mode` requires a sandbox that does not work here.
pub fn detect(root: &Arc<Root>, mode: Mode) -> Result<Detected, SandboxError> {
    detect_opted(root, mode, Options::default())
}

/// Like [`detect`], with options.
///
/// # Errors
/// [`SandboxError::Failed`] when `mode` requires a sandbox that does not work here.
pub fn detect_opted(
    root: &Arc<Root>,
    mode: Mode,
    options: Options,
) -> Result<Detected, SandboxError> {
    #[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
    {
        if mode == Mode::None {
            return Ok(none());
        }
        let spawner = Spawner::start().map_err(|e| {
            SandboxError::Failed(format!("no thread: {}", crate::os_error::words(&e)))
        })?;
        detect_with(root, mode, &spawner, options)
    }
    #[cfg(not(all(feature = "sandbox-linux", target_os = "linux")))]
    {
        let _ = (root, options);
        let missing = "this build has no sandbox for commands (feature sandbox-linux, Linux only)";
        match mode {
            Mode::None => Ok(none()),
            Mode::Auto => Ok(Detected {
                sandbox: None,
                note: Some(format!("no bash tool: {missing}")),
            }),
            Mode::Linux | Mode::Local => Err(SandboxError::Failed(missing.to_owned())),
        }
    }
}

fn none() -> Detected {
    Detected {
        sandbox: None,
        note: Some("no bash tool: the sandbox mode is none".to_owned()),
    }
}

/// Options of [`detect_opted`] and [`detect_with`].
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// What commands can read and run besides the system's programs.
    pub toolchains: Toolchains,
    /// Limits of each command.
    pub limits: ExecLimits,
    /// The only boundary to try; `None` tries bubblewrap, then Landlock.
    pub only: Option<Boundary>,
    /// A program that calls [`jail_main_if_asked`](super::jail_main_if_asked) first in its `main`;
    /// `None` means this program.
    pub helper: Option<std::path::PathBuf>,
    /// Whether this program's `main` calls [`jail_main_if_asked`](super::jail_main_if_asked) first.
    /// Behind bubblewrap the claim is not tested. If it is set, if there is a `helper`, or behind
    /// Landlock, a watchdog process outlives a host that is killed during a command, and moves
    /// aside protected files that the command created.
    pub main_asks: bool,
    /// Hosts that commands can reach from behind bubblewrap. Behind another boundary, or without a
    /// helper, the network stays off and [`Detected::note`] says so.
    pub network: AllowList,
}

/// A boundary of the kernel. Each includes a seccomp filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boundary {
    /// Namespaces, created by bubblewrap.
    Bubblewrap,
    /// Landlock, with a mount namespace where one can be created.
    Landlock,
    /// Landlock without a mount namespace, as in most containers.
    LandlockAlone,
}

/// Like [`detect_opted`], with the host's spawner.
///
/// # Errors
/// [`SandboxError::Failed`] when `mode` requires a sandbox that does not work here.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub fn detect_with(
    root: &Arc<Root>,
    mode: Mode,
    spawner: &Spawner,
    options: Options,
) -> Result<Detected, SandboxError> {
    match mode {
        Mode::None => Ok(none()),
        Mode::Local => Ok(Detected {
            sandbox: Some(Arc::new(
                Local::new(root.clone(), spawner, options.limits)
                    .with_toolchains(&options.toolchains),
            )),
            note: Some(format!(
                "bash runs WITHOUT a boundary (sandbox mode local): commands can do whatever you can{}",
                if options.network.hosts.is_empty() {
                    ""
                } else {
                    ", and the list of hosts in [sandbox] network does not restrict them"
                }
            )),
        }),
        Mode::Linux => with_notices(root, boundary(root, spawner, options)),
        Mode::Auto => Ok(
            with_notices(root, boundary(root, spawner, options)).unwrap_or_else(|error| {
                let note = format!("no bash tool: {error}");
                Detected {
                    sandbox: None,
                    note: Some(note),
                }
            }),
        ),
    }
}

/// Adds to the note that commands do not know of those of other processes, if so.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
fn with_notices(
    root: &Root,
    detected: Result<Detected, SandboxError>,
) -> Result<Detected, SandboxError> {
    detected.map(|detected| match (detected.note, why_no_notices(root)) {
        (Some(note), Some(why)) => Detected {
            note: Some(format!("{note}; {why}")),
            ..detected
        },
        (note, why) => Detected {
            note: note.or(why),
            ..detected
        },
    })
}

#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
fn not_served(why: &str) -> String {
    format!(
        "the network of commands stays off, the hosts in [sandbox] network are out of reach: {why}"
    )
}

/// Tries bubblewrap, then Landlock.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
fn boundary(
    root: &Arc<Root>,
    spawner: &Spawner,
    options: Options,
) -> Result<Detected, SandboxError> {
    let Options {
        toolchains,
        limits,
        only,
        helper,
        main_asks,
        network,
    } = options;
    let bubblewrap = match only {
        Some(Boundary::Landlock | Boundary::LandlockAlone) => Err(SandboxError::Failed(
            "bubblewrap was not asked for".to_owned(),
        )),
        _ => Linux::probe(root.clone(), spawner, toolchains.clone(), limits).map(|linux| {
            if main_asks || helper.is_some() {
                linux.watched_by(helper.clone())
            } else {
                linux
            }
        }),
    };
    let why = match bubblewrap {
        Ok(linux) if network.hosts.is_empty() => {
            return Ok(Detected {
                sandbox: Some(Arc::new(linux)),
                note: None,
            });
        }
        Ok(linux) => {
            return Ok(match linux.reaching(&network, helper) {
                Ok(linux) => Detected {
                    sandbox: Some(Arc::new(linux)),
                    note: None,
                },
                Err(error) => Detected {
                    sandbox: Some(Arc::new(linux)),
                    note: Some(not_served(&reason(&error))),
                },
            });
        }
        Err(error) if only == Some(Boundary::Bubblewrap) => return Err(error),
        Err(error) => error,
    };
    let probe = if only == Some(Boundary::LandlockAlone) {
        Landlock::probe_alone
    } else {
        Landlock::probe
    };
    match probe(root.clone(), spawner, toolchains, limits, helper) {
        Ok(landlock) => {
            // Where only bubblewrap is missing, `doctor` says so: at each run it would be noise.
            let mut notes = Vec::new();
            if let Some(closed) = landlock.why_closed() {
                notes.push(format!(
                    "bash runs behind Landlock, not bubblewrap, and without a mount namespace ({closed}; {}): commands cannot chmod by path, nor create, rename or remove \
                     entries of folders that hold protected files, such as a folder with .git; bubblewrap or user namespaces would allow it",
                    reason(&why)
                ));
            }
            if !network.hosts.is_empty() {
                notes.push(not_served("behind Landlock there are no sockets at all"));
            }
            Ok(Detected {
                sandbox: Some(Arc::new(landlock)),
                note: Some(notes.join("; ")).filter(|note| !note.is_empty()),
            })
        }
        Err(error) => Err(SandboxError::Failed(format!(
            "{}; {}",
            reason(&why),
            reason(&error)
        ))),
    }
}
