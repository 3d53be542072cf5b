//! The host's request to its helper, encoded as one argument.

use std::path::PathBuf;

use callboard_actors::ports::ExecLimits;
use serde::{Deserialize, Serialize};

use crate::sandbox::{PathRules, exec::Namespace};

/// The pipe in the private folder through which a command that waits is let begin.
pub(super) const PIPE: &str = "begin";

/// A command's jail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::sandbox) struct Plan {
    /// Marks the control words of this job.
    pub(in crate::sandbox) nonce: String,
    /// Process id of the host. When that process ends, everything below the helper ends.
    pub(in crate::sandbox) host: i32,
    /// Folder of the workspace, with links resolved.
    pub(in crate::sandbox) root: PathBuf,
    /// Where the command starts, relative to the root.
    pub(in crate::sandbox) folder: PathBuf,
    /// The private folder, created and removed by the supervisor.
    pub(in crate::sandbox) private: PathBuf,
    /// How the helper gets a mount namespace; `None` where none can be created.
    pub(in crate::sandbox) namespace: Option<Namespace>,
    /// Whether the command waits, once its mounts are made, until the host lets it begin.
    pub(in crate::sandbox) gated: bool,
    /// Additional folders that the command can read.
    pub(in crate::sandbox) read_only: Vec<PathBuf>,
    /// Variables that toolchains need.
    pub(in crate::sandbox) environment: Vec<(String, String)>,
    /// Names that the command may not read or write.
    pub(in crate::sandbox) rules: PathRules,
    /// Limits of the command.
    pub(in crate::sandbox) limits: ExecLimits,
}
