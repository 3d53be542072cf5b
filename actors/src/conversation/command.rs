//! What a caller can ask of a conversation, besides a prompt. The decision of each command is in
//! [`crate::conversation::round`].
//!
//! Pure.

use crate::{
    chat::{ClientToolResult, Message, RawJson},
    ids::{ConversationId, RoundId},
    journal::{ConversationRound, Fork},
    skill::{SkillActivationResult, SkillName},
};

/// What a caller can ask of a conversation. The caller is answered when the command is refused, or
/// when everything that follows from it is stored.
#[allow(missing_docs, reason = "the field names say it")]
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Cancel the open round. The answer means that the cancellation was accepted, not that the
    /// round has ended.
    Interrupt,
    /// Answer for a tool call that awaits approval.
    Approve {
        /// The round that asked. `None` for any: the model chooses the id of a call, and may use it
        /// again after a rewind.
        round_id: Option<RoundId>,
        tool_call_id: String,
        answer: Consent,
    },
    /// Give calls that are at the caller their results. All of them are accepted, or none.
    ToolResults {
        /// In any order.
        results: Vec<ClientToolResult>,
    },
    /// Add a message that the model reads at its next call.
    Inject {
        /// A second message with the same id is dropped; `None` is never a duplicate.
        id: Option<String>,
        message: Message,
    },
    /// Compact the context now. Refused while a round is open or a prompt waits; answered when the
    /// measurement has ended.
    Compact {
        /// Whether a model summarizes what is dropped, whatever the configured strategy is.
        summary: bool,
    },
    /// Pin a line, which every compaction keeps.
    Pin {
        /// Surrounding white space is removed; the line must not be empty.
        line: String,
    },
    /// Replace the history by this one.
    Import {
        messages: Vec<Message>,
        /// Records of the imported rounds; empty if the import has none.
        rounds: Vec<ConversationRound>,
    },
    /// Take back this round and all later ones.
    Rewind {
        /// A finished round of the history.
        round_id: RoundId,
    },
    /// Start as this copy. Refused unless the conversation is empty.
    Fork {
        /// The rounds to start with, and the conversation they are from.
        copied: Box<Copied>,
    },
    /// Empty the conversation. Refused while a round is open or a prompt waits.
    Reset,
    /// Activate a skill that was loaded for a user or for the application.
    ActivateSkill {
        /// The outcome of loading it; a failed one is refused with its error.
        loaded: Box<SkillActivationResult>,
    },
    /// Deactivate a skill, with the skills that were activated on top of it.
    DeactivateSkill {
        /// Refused if no active skill has this name.
        name: SkillName,
    },
}

impl Command {
    /// The bytes that this command adds to what an open round holds in memory.
    pub(crate) fn waiting_bytes(&self) -> usize {
        match self {
            Self::Inject { message, .. } => message.kept_bytes(),
            // The input is kept, and the model reads it in a message.
            Self::Approve {
                answer: Consent::Changed(input),
                ..
            } => 2 * input.as_str().len(),
            Self::ToolResults { results } => {
                results.iter().map(|result| result.content.len()).sum()
            }
            _ => 0,
        }
    }

    /// The bytes that the history of this command takes in memory; 0 for a command without one.
    pub(crate) fn history_bytes(&self) -> usize {
        match self {
            Self::Import { messages, .. } => kept_bytes(messages),
            Self::Fork { copied } => kept_bytes(&copied.fork.messages),
            Self::Interrupt
            | Self::Approve { .. }
            | Self::ToolResults { .. }
            | Self::Inject { .. }
            | Self::Compact { .. }
            | Self::Pin { .. }
            | Self::Rewind { .. }
            | Self::Reset
            | Self::ActivateSkill { .. }
            | Self::DeactivateSkill { .. } => 0,
        }
    }
}

/// The bytes that messages take in memory.
pub(crate) fn kept_bytes(messages: &[Message]) -> usize {
    messages.iter().map(Message::kept_bytes).sum()
}

/// A person's answer to a tool call that awaits approval.
#[derive(Debug, Clone, PartialEq)]
pub enum Consent {
    /// The call runs.
    Once,
    /// The call runs, and later calls of the same pattern run without asking.
    Always,
    /// The call runs with these arguments in place of the model's, which is shown them. They are
    /// checked as the model's were.
    Changed(RawJson),
    /// The call does not run. The model reads the words, of which the first 4000 characters count.
    Denied(Option<String>),
}

impl From<bool> for Consent {
    fn from(allow: bool) -> Self {
        match allow {
            true => Self::Once,
            false => Self::Denied(None),
        }
    }
}

/// The rounds of a fork, and the conversation they are from.
#[derive(Debug, Clone, PartialEq)]
pub struct Copied {
    /// The conversation that was copied.
    pub from: ConversationId,
    /// The history, the records of its rounds, and the calls whose outcome is unknown.
    pub fork: Fork,
}
