//! What is worth keeping: the priority by which extraction drops (REQUIREMENTS C-11, C-12) and the importance that is told of a
//! stored message (C-15). They differ on purpose (CON-25).
//!
//! Pure.

use serde::{Deserialize, Serialize};

use crate::chat::{ContentBlock, Message, Role};

/// The marker that stands for a result that was cleared (C-40).
pub const CLEARED: &str = "[已壓縮的工具結果]";

/// Characters and lines from which a successful result is a verbose log, to be dropped first (C-12).
const VERBOSE_CHARS: usize = 2000;
const VERBOSE_LINES: usize = 40;

/// Priority of a message for `compress`. The order is that of the variants, never that of the words (BUG-33).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MessagePriority {
    /// May be dropped: verbose logs.
    Low,
    /// May be kept: answers without calls, successful results.
    Medium,
    /// Should be kept: what a person said, errors, calls.
    High,
    /// Must be kept: system messages.
    Critical,
}

/// Importance of a stored message, 1 the highest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub enum MessageImportance {
    /// What a person said; errors.
    Critical = 1,
    /// Observations of tools.
    High = 2,
    /// The agent's thoughts.
    Medium = 3,
    /// System messages.
    Low = 4,
}

impl From<MessageImportance> for u8 {
    fn from(importance: MessageImportance) -> Self {
        importance as Self
    }
}

impl TryFrom<u8> for MessageImportance {
    type Error = String;

    fn try_from(number: u8) -> Result<Self, String> {
        match number {
            1 => Ok(Self::Critical),
            2 => Ok(Self::High),
            3 => Ok(Self::Medium),
            4 => Ok(Self::Low),
            _ => Err(format!("importance {number} is not 1 to 4")),
        }
    }
}

impl MessageImportance {
    /// The importance of a message (C-15).
    pub fn of(message: &Message) -> Self {
        match message.role() {
            Role::System => Self::Low,
            Role::Assistant => Self::Medium,
            Role::User if message.tool_result_ids().is_empty() || has_error(&message.blocks()) => Self::Critical,
            Role::User => Self::High,
        }
    }

    /// Whether rules may shorten a message of this importance that is `age` rounds old (C-17). Both bounds are strict.
    pub const fn compressible_at(self, age: u64) -> bool {
        match self {
            Self::Critical | Self::High => false,
            Self::Medium => age > 5,
            Self::Low => age > 3,
        }
    }
}

/// Whether one of the results failed: by its typed flag, never by its words (BUG-18).
pub(super) fn has_error(results: &[ContentBlock]) -> bool {
    results.iter().any(|block| matches!(block, ContentBlock::ToolResult(result) if result.is_error))
}

/// The priority of calls together with their results (C-12, C-13): a pair that holds an error is worth as much as what a person
/// said, any other as much as its calls, unless its results are nothing but verbose logs or were cleared before.
pub(super) fn exchange_priority(results: &[ContentBlock]) -> MessagePriority {
    let mut verbose = true;
    for block in results {
        match block {
            ContentBlock::ToolResult(result) if result.is_error => return MessagePriority::High,
            ContentBlock::ToolResult(result) => {
                let text = result.content.text();
                verbose &=
                    text == CLEARED || text.chars().nth(VERBOSE_CHARS - 1).is_some() || text.lines().nth(VERBOSE_LINES - 1).is_some();
            }
            ContentBlock::Text(_) | ContentBlock::Thinking(_) | ContentBlock::ToolUse(_) | ContentBlock::Other { .. } => {}
        }
    }
    if verbose { MessagePriority::Low } else { MessagePriority::High }
}
