//! What a tenant may use at once and in a minute.

use serde::{Deserialize, Serialize};

/// A tenant's bounds and its weight. `None` is no bound of its own: the host's hold (`[limits]`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quotas {
    /// Its share beside others when many wait for a model: a tenant of weight 2 gets twice the tokens of one of weight 1.
    pub weight: u32,
    /// Conversations that it may have stored.
    pub conversations_max: Option<u64>,
    /// Turns that run at once; more wait.
    pub turns_max: Option<usize>,
    /// Prompts between admission and answer; more are refused.
    pub prompts_max: Option<usize>,
    /// Prompts that are admitted in a minute; more are refused.
    pub requests_per_minute: Option<u32>,
    /// Tokens of model calls, input and output, in a minute; when they are used up, prompts are refused.
    pub tokens_per_minute: Option<u64>,
    /// Bytes of its artifacts; the least recently used go first.
    pub artifact_bytes_max: Option<u64>,
    /// Bytes of entries and snapshots that its conversations may have stored; beyond it prompts and whatever else is stored are refused,
    /// and running rounds end before their next model call.
    pub stored_bytes_max: Option<u64>,
    /// Files and folders in its workspace, whoever made them. The tools over that workspace hold it, not the kernel: `callboard serve`
    /// gives it to them, and a program that builds its own tools gives it to the folder that they work in.
    pub workspace_files_max: Option<u64>,
    /// Bytes on the disk of the files in its workspace; held like `workspace_files_max`.
    pub workspace_bytes_max: Option<u64>,
    /// Bytes of the memory that its prompts under way and its conversations' events may take; more prompts are refused.
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
