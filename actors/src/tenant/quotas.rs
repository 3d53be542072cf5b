//! The configurable limits of a tenant.

use serde::{Deserialize, Serialize};

/// The limits of a tenant and its weight. `None` applies the host's limit (`[limits]`), where there
/// is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quotas {
    /// Share when several tenants wait for a model: a tenant of weight 2 gets twice the tokens of a
    /// tenant of weight 1.
    pub weight: u32,
    /// Most stored conversations.
    pub conversations_max: Option<u64>,
    /// Most rounds that run at once; further ones wait.
    pub turns_max: Option<usize>,
    /// Most prompts between admission and the end of their rounds; further ones are refused.
    pub prompts_max: Option<usize>,
    /// Prompts admitted per minute; further ones are refused.
    pub requests_per_minute: Option<u32>,
    /// Input and output tokens of model calls per minute. While they are used up, prompts are
    /// refused.
    pub tokens_per_minute: Option<u64>,
    /// Bytes of artifacts; the least recently used artifacts are removed first.
    pub artifact_bytes_max: Option<u64>,
    /// Bytes of entries and snapshots. Beyond it, prompts and all other writes are refused, and
    /// running rounds end before their next model call.
    pub stored_bytes_max: Option<u64>,
    /// Files and folders in the workspace, whatever created them. The tools that work in the
    /// workspace enforce it, not the kernel: `callboard serve` passes it to them, and a program
    /// with custom tools must do the same.
    pub workspace_files_max: Option<u64>,
    /// Bytes on disk of the files in the workspace; enforced like `workspace_files_max`.
    pub workspace_bytes_max: Option<u64>,
    /// Bytes of memory for prompts under way, for the histories of conversations that work, and for
    /// the events of the tenant's conversations; beyond it prompts are refused.
    pub memory_bytes_max: Option<u64>,
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            weight: 1,
            conversations_max: None,
            turns_max: None,
            prompts_max: None,
            requests_per_minute: None,
            tokens_per_minute: None,
            artifact_bytes_max: None,
            stored_bytes_max: None,
            workspace_files_max: None,
            workspace_bytes_max: None,
            memory_bytes_max: None,
        }
    }
}
