//! Where commands run and paths end. One policy decides for every tool (FAULTS, "Only bash is sandboxed").
//!
//! # Layout
//! [`policy`] names what is refused; [`Root`] is the jail of paths; [`Linux`] (bubblewrap), [`Landlock`] (where that does not work)
//! and [`Local`] (no boundary, by name only) run commands; `filter` has the system calls that both boundaries refuse; [`Spawner`] is the
//! only place that starts a process. An embedding program
//! calls [`jail_main_if_asked`] first in its `main`, or has no commands where there is no bubblewrap.
//!
//! Inside [`Linux`] the workspace lies at `/workspace`; file tools take paths relative to it, that form, or the real absolute one.
//! Anything else that implements the port [`Sandbox`] goes to `tools::over`: a container, a small virtual machine (Z-06).

pub mod policy;
mod jail;
mod spelling;
mod git;
mod atomic;
mod walk;
mod quota;
mod space;
mod toolchains;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod capture;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod disk;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod tell;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod shell;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod processes;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod together;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod machine;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod means;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod groups;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod parked;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod keys;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod job;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod spawner;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod thread;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod piped;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod guard;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod watchdog;
#[cfg(all(feature = "sandbox-linux", feature = "web", target_os = "linux"))]
mod proxy;
#[cfg(all(feature = "sandbox-linux", not(feature = "web"), target_os = "linux"))]
#[path = "proxy/absent.rs"]
mod proxy;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod linux;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod local;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod landlock;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod filter;
#[cfg(all(feature = "pdf", target_os = "linux"))]
mod pdf;
mod helper;

use std::{fmt, sync::Arc};

use callboard_actors::ports::{ExecLimits, HostPattern, Sandbox, SandboxError};

pub use atomic::Slot;
pub(crate) use atomic::is_temporary;
pub use helper::jail_main_if_asked;
pub use jail::{Opened, PathError, Root};
pub(crate) use jail::{settled, shown};
#[cfg(all(feature = "pdf", target_os = "linux"))]
pub use pdf::PdfText;
pub use policy::PathRules;
pub use quota::{WorkspaceQuota, WorkspaceUsage};
pub use toolchains::Toolchains;
pub(crate) use walk::Walk;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub use {
    landlock::Landlock,
    linux::Linux,
    local::Local,
    parked::ControlGroups,
    piped::{Piped, PipedLaunch, PipedProcess},
    spawner::Spawner,
};

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

impl fmt::Debug for Detected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detected").field("policy", &self.sandbox.as_ref().map(|s| s.policy())).field("note", &self.note).finish()
    }
}

/// Chooses a sandbox over `root`, trying it once. Starts a thread of its own; see [`detect_with`] to share one.
///
/// # Errors
/// [`SandboxError::Failed`] when `mode` names one that does not work here.
pub fn detect(root: &Arc<Root>, mode: Mode) -> Result<Detected, SandboxError> {
    detect_opted(root, mode, Options::default())
}

/// As [`detect`], with more to say.
///
/// # Errors
/// [`SandboxError::Failed`] when `mode` names one that does not work here.
pub fn detect_opted(root: &Arc<Root>, mode: Mode, options: Options) -> Result<Detected, SandboxError> {
    #[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
    {
        if mode == Mode::None {
            return Ok(none());
        }
        let spawner = Spawner::start().map_err(|e| SandboxError::Failed(e.kind().to_string()))?;
        detect_with(root, mode, &spawner, options)
    }
    #[cfg(not(all(feature = "sandbox-linux", target_os = "linux")))]
    {
        let _ = (root, options);
        let missing = "this build has no sandbox for commands (feature sandbox-linux, Linux only)";
        match mode {
            Mode::None => Ok(none()),
            Mode::Auto => Ok(Detected { sandbox: None, note: Some(format!("no bash tool: {missing}")) }),
            Mode::Linux | Mode::Local => Err(SandboxError::Failed(missing.to_owned())),
        }
    }
}

/// Whether commands get a control group each: the version, 1 or 2. Tries it once.
///
/// # Errors
/// Why they do not.
pub fn control_groups() -> Result<u8, String> {
    #[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
    {
        groups::Groups::find().map(|groups| match groups.version() {
            groups::Version::One => 1,
            groups::Version::Two => 2,
        })
    }
    #[cfg(not(all(feature = "sandbox-linux", target_os = "linux")))]
    {
        Err("this build has no sandbox for commands".to_owned())
    }
}

/// Whether commands get a session keyring each, without the keys of this process's session. Tries it once.
///
/// # Errors
/// Why they do not. The filter of system calls refuses them the keyrings all the same.
pub fn session_keyrings() -> Result<(), String> {
    #[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
    {
        keys::can_join().map_err(|error| error.to_string())
    }
    #[cfg(not(all(feature = "sandbox-linux", target_os = "linux")))]
    {
        Err("this build has no sandbox for commands".to_owned())
    }
}

fn none() -> Detected {
    Detected { sandbox: None, note: Some("no bash tool: the sandbox mode is none".to_owned()) }
}

/// What [`detect_opted`] and [`detect_with`] may be told.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// What commands can read and run besides the system's programs.
    pub toolchains: Toolchains,
    /// What one command may use.
    pub limits: ExecLimits,
    /// The only boundary to try; by default bubblewrap, then Landlock.
    pub only: Option<Boundary>,
    /// A program that calls [`jail_main_if_asked`] first in its `main`; this one by default.
    pub helper: Option<std::path::PathBuf>,
    /// This program's `main` calls [`jail_main_if_asked`] first. Behind bubblewrap that is not tried, so it is only believed: then (and
    /// with a `helper`, and behind Landlock) a second process outlives a host that is killed during a command, and moves aside what
    /// the command planted.
    pub main_asks: bool,
    /// Hosts that commands can reach, behind bubblewrap; elsewhere, or where the helper is missing, the network stays off and
    /// [`Detected::note`] says so.
    pub network: AllowList,
}

/// Hosts that commands can reach; none by default.
#[derive(Clone, Default)]
pub struct AllowList {
    /// Which.
    pub hosts: Vec<HostPattern>,
    /// Who is asked for their addresses; the operating system by default.
    #[cfg(feature = "web")]
    pub resolver: Option<Arc<dyn crate::web::Resolver>>,
}

impl fmt::Debug for AllowList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllowList").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

impl From<Vec<HostPattern>> for AllowList {
    #[allow(clippy::needless_update, reason = "not in every build")]
    fn from(hosts: Vec<HostPattern>) -> Self {
        Self { hosts, ..Self::default() }
    }
}

/// A boundary of the kernel. Each has a filter of system calls besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boundary {
    /// Namespaces, by bubblewrap.
    Bubblewrap,
    /// Landlock and a filter of system calls, with a mount namespace where one can be made.
    Landlock,
    /// The same without a mount namespace, as in most containers.
    LandlockAlone,
}

/// As [`detect`], with the host's spawner and more to say.
///
/// # Errors
/// [`SandboxError::Failed`] when `mode` names one that does not work here.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub fn detect_with(root: &Arc<Root>, mode: Mode, spawner: &Spawner, options: Options) -> Result<Detected, SandboxError> {
    match mode {
        Mode::None => Ok(none()),
        Mode::Local => Ok(Detected {
            sandbox: Some(Arc::new(Local::new(root.clone(), spawner, options.limits).with_toolchains(&options.toolchains))),
            note: Some(format!(
                "bash runs WITHOUT a boundary (sandbox mode local): commands can do whatever you can{}",
                if options.network.hosts.is_empty() { "" } else { ", and the list of hosts in [sandbox] network holds nobody back" }
            )),
        }),
        Mode::Linux => boundary(root, spawner, options),
        Mode::Auto => Ok(boundary(root, spawner, options).unwrap_or_else(|error| {
            let note = format!("no bash tool: {error}");
            Detected { sandbox: None, note: Some(note) }
        })),
    }
}

#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
fn reason(error: &SandboxError) -> String {
    match error {
        SandboxError::Failed(reason) => reason.clone(),
        other => other.to_string(),
    }
}

#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
fn not_served(why: &str) -> String {
    format!("the network of commands stays off, the hosts in [sandbox] network are out of reach: {why}")
}

/// Bubblewrap, or the next best wall.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
fn boundary(root: &Arc<Root>, spawner: &Spawner, options: Options) -> Result<Detected, SandboxError> {
    let Options { toolchains, limits, only, helper, main_asks, network } = options;
    let bubblewrap = match only {
        Some(Boundary::Landlock | Boundary::LandlockAlone) => Err(SandboxError::Failed("bubblewrap was not asked for".to_owned())),
        _ => Linux::probe(root.clone(), spawner, toolchains.clone(), limits)
            .map(|linux| if main_asks || helper.is_some() { linux.watched_by(helper.clone()) } else { linux }),
    };
    let why = match bubblewrap {
        Ok(linux) if network.hosts.is_empty() => return Ok(Detected { sandbox: Some(Arc::new(linux)), note: None }),
        Ok(linux) => {
            return Ok(match linux.reaching(&network, helper) {
                Ok(linux) => Detected { sandbox: Some(Arc::new(linux)), note: None },
                Err(error) => Detected { sandbox: Some(Arc::new(linux)), note: Some(not_served(&reason(&error))) },
            });
        }
        Err(error) if only == Some(Boundary::Bubblewrap) => return Err(error),
        Err(error) => error,
    };
    let probe = if only == Some(Boundary::LandlockAlone) { Landlock::probe_alone } else { Landlock::probe };
    match probe(root.clone(), spawner, toolchains, limits, helper) {
        Ok(landlock) => {
            let mut note = format!("bash runs behind Landlock, not bubblewrap ({})", reason(&why));
            if let Some(closed) = landlock.why_closed() {
                note = format!(
                    "{note}, and without a mount namespace ({closed}): commands cannot chmod by path, nor create, rename or remove \
                     entries of folders that hold protected files, such as a folder with .git; bubblewrap or user namespaces would allow it"
                );
            }
            if !network.hosts.is_empty() {
                note = format!("{note}; {}", not_served("behind Landlock there are no sockets at all"));
            }
            Ok(Detected { sandbox: Some(Arc::new(landlock)), note: Some(note) })
        }
        Err(error) => Err(SandboxError::Failed(format!("{}; {}", reason(&why), reason(&error)))),
    }
}
