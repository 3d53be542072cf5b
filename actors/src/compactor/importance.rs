//! Two rankings of messages: the priority by which extraction drops units, and the importance by
//! which the strategy `importance` shortens messages. They differ on purpose.
//!
//! Pure.

use serde::{Deserialize, Serialize};

use crate::chat::{ContentBlock, Message, Role};

/// The text that replaces a cleared result.
pub(crate) const CLEARED: &str = "[已壓縮的工具結果]";

/// Size from which a successful result counts as a verbose log, which is dropped first.
const VERBOSE_CHARS: usize = 2000;
const VERBOSE_LINES: usize = 40;

/// Priority of a message in extraction. The order is that of the variants, not of their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MessagePriority {
    /// May be dropped: verbose logs.
    Low,
    /// May be kept: answers without calls, successful results.
    Medium,
    /// Should be kept: user messages, errors, calls.
    High,
    /// Must be kept: system messages.
    Critical,
}

/// Importance of a message; 1 is the highest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageImportance {
    /// User messages and errors.
    Critical = 1,
    /// Observations of tools.
    High = 2,
    /// Messages of the model.
    Medium = 3,
    /// System messages.
    Low = 4,
}

impl MessageImportance {
    /// The importance of a message, by its role and its results.
    pub(super) fn from_message(message: &Message) -> Self {
        match message.role() {
            Role::System => Self::Low,
            Role::Assistant => Self::Medium,
            Role::User if message.tool_result_ids().is_empty() || has_error(&message.blocks()) => {
                Self::Critical
            }
            Role::User => Self::High,
        }
    }

    /// Whether a message of this importance may be shortened when it is `age` rounds old.
    pub(super) const fn compressible_at(self, age: usize) -> bool {
        match self {
            Self::Critical | Self::High => false,
            Self::Medium => age > 5,
            Self::Low => age > 3,
        }
    }
}

/// Whether one of the results failed, by its `is_error` flag; the text is not examined.
pub(super) fn has_error(results: &[ContentBlock]) -> bool {
    results
        .iter()
        .any(|block| matches!(block, ContentBlock::ToolResult(result) if result.is_error))
}

/// The priority of calls together with their results: high, but low if every result is a verbose
/// log or was cleared before. A failed result always makes it high.
pub(super) fn exchange_priority(results: &[ContentBlock]) -> MessagePriority {
    let mut verbose = true;
    for block in results {
        match block {
            ContentBlock::ToolResult(result) if result.is_error => return MessagePriority::High,
            ContentBlock::ToolResult(result) => {
                let text = result.content.text();
                verbose &= text == CLEARED
                    || text.chars().nth(VERBOSE_CHARS - 1).is_some()
                    || text.lines().nth(VERBOSE_LINES - 1).is_some();
            }
            ContentBlock::Text(_)
            | ContentBlock::Thinking(_)
            | ContentBlock::ToolUse(_)
            | ContentBlock::Image(_)
            | ContentBlock::Document(_)
            | ContentBlock::Other { .. } => {}
        }
    }
    if verbose {
        MessagePriority::Low
    } else {
        MessagePriority::High
    }
}
