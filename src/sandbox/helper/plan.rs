//! What the host tells its helper, as one argument.

use std::path::PathBuf;

use callboard_actors::ports::ExecLimits;
use serde::{Deserialize, Serialize};

use crate::sandbox::PathRules;

/// How a mount namespace is made. The program is started in it, since a safe Rust program cannot enter one without a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::sandbox) enum Namespace {
    /// By a superuser.
    Mount,
    /// By an unprivileged user, who first needs a user namespace in which mounting is allowed.
    UserAndMount,
}

impl Namespace {
    /// The one that this process may hope for.
    pub(in crate::sandbox) fn of_this_user() -> Self {
        if rustix::process::geteuid().is_root() { Self::Mount } else { Self::UserAndMount }
    }

    /// Arguments of util-linux's `unshare`. Private: no mount of either side reaches the other.
    pub(in crate::sandbox) fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Mount => &["--mount", "--propagation", "private", "--"],
            Self::UserAndMount => &["--user", "--map-current-user", "--keep-caps", "--mount", "--propagation", "private", "--"],
        }
    }
}

/// A command's jail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::sandbox) struct Plan {
    /// Marks the words of this job.
    pub(in crate::sandbox) nonce: String,
    /// Who started it: when that process goes, all below the helper go.
    pub(in crate::sandbox) host: i32,
    /// The workspace.
    pub(in crate::sandbox) root: PathBuf,
    /// Where the command starts, relative to the root.
    pub(in crate::sandbox) folder: PathBuf,
    /// The private folder, made by the supervisor and removed by it.
    pub(in crate::sandbox) private: PathBuf,
    /// How the helper gets a mount namespace; `None` where none can be made.
    pub(in crate::sandbox) namespace: Option<Namespace>,
    /// More folders that can be read.
    pub(in crate::sandbox) read_only: Vec<PathBuf>,
    /// Variables that toolchains need.
    pub(in crate::sandbox) environment: Vec<(String, String)>,
    /// Which names are refused.
    pub(in crate::sandbox) rules: PathRules,
    /// What the command may use.
    pub(in crate::sandbox) limits: ExecLimits,
}
