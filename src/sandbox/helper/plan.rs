//! What the host tells its helper, as one argument.

use std::path::PathBuf;

use callboard_actors::ports::ExecLimits;
use serde::{Deserialize, Serialize};

use crate::sandbox::PathRules;

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
    /// More folders that can be read.
    pub(in crate::sandbox) read_only: Vec<PathBuf>,
    /// Which names are refused.
    pub(in crate::sandbox) rules: PathRules,
    /// What the command may use.
    pub(in crate::sandbox) limits: ExecLimits,
}
