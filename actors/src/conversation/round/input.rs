//! The inputs of a decision, as plain data. [`crate::conversation::round`] decides on them.
//!
//! Pure.

use crate::{
    chat::{ContentBlock, Message, MessageList, RawJson},
    compactor::Plan,
    conversation::round::{rounds::Copied, rules::Recovery},
    ids::{PromptId, RoundId, Seq, WaiterId, WorkId},
    journal::{ClientKey, ConversationRound, WithdrawReason},
    policy::Exhausted,
    ports::{Completion, ProviderError},
    skill::{SkillActivationResult, SkillName},
    stream::Failure,
    tool_executor::RunResult,
};
use std::sync::Arc;

/// What a new prompt does while a round is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnBusy {
    /// Waits until the open round and all earlier prompts are done.
    #[default]
    Queue,
    /// Is refused with [`crate::conversation::round::Refusal::Busy`].
    Reject,
    /// Cancels the open round, then waits like `Queue`.
    Interrupt,
    /// Joins the open round: the model reads the message at its next call.
    Steer,
}

/// A prompt with the ids that the shell chose for it.
#[derive(Debug, Clone, PartialEq)]
pub struct NewPrompt {
    /// The id of the prompt.
    pub id: PromptId,
    /// The id of the round it will open.
    pub round_id: RoundId,
    /// The client's idempotency key; `None` if the client sent none.
    pub client_key: Option<ClientKey>,
    /// The user's message.
    pub message: Message,
    /// The JSON Schema that the answer must fit; `None` for free text.
    pub output_schema: Option<RawJson>,
    /// What to do when a round is open.
    pub on_busy: OnBusy,
    /// The caller that awaits the receipt.
    pub waiter: WaiterId,
}

/// How a model call ended.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelOutcome {
    /// The model answered.
    Completed {
        /// All blocks, each complete.
        blocks: Vec<ContentBlock>,
        /// The stop reason and the usage.
        completion: Completion,
    },
    /// The call failed after the gateway's retries. The partial answer is kept in the history.
    Failed {
        /// The last error.
        error: ProviderError,
        /// The complete blocks, and the text so far of an open one.
        partial: Vec<ContentBlock>,
    },
    /// We canceled the call.
    Cancelled {
        /// The complete blocks, and the text so far of an open one.
        partial: Vec<ContentBlock>,
    },
}

/// Everything that a conversation decides on. A `waiter` is the caller that the decision answers.
#[allow(missing_docs, reason = "the field names say it")]
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// The journal is folded; the activation starts.
    Recovered {
        /// What happens to an open round.
        recovery: Recovery,
    },
    /// A caller sent a prompt.
    Prompt(NewPrompt),
    /// The answer to [`crate::conversation::round::Effect::Reserve`].
    Budget {
        /// The id of the question.
        work: WorkId,
        /// Whether the amount was reserved.
        answer: Result<(), Exhausted>,
    },
    /// A model call ended.
    Model {
        /// The call that ended; ignored if no longer open.
        work: WorkId,
        outcome: ModelOutcome,
        /// The model of the last attempt: the fallback's if the call fell back. Its price applies.
        model: Arc<str>,
    },
    /// An attempt of a tool call ended.
    Tool {
        /// The attempt that ended; ignored if no longer open.
        work: WorkId,
        result: RunResult,
        /// Milliseconds since the call first started, over all attempts.
        duration_ms: u64,
    },
    /// The delay before another attempt is over.
    RetryDue {
        /// The seq of the assistant entry that holds the calls.
        batch: Seq,
        /// The index of the call in its batch.
        call: u32,
    },
    /// A person decided about a call that awaits approval.
    Approval {
        tool_call_id: String,
        allow: bool,
        /// Whether the approval also covers later calls of the same pattern.
        always: bool,
        waiter: WaiterId,
    },
    /// A timer fired: check for expired approvals.
    Tick,
    /// Cancel the open round.
    Interrupt {
        /// The failure that the round ends with; `None` for a plain interrupt.
        failure: Option<Failure>,
        /// `None` for a cancellation by a timer or by the host.
        waiter: Option<WaiterId>,
    },
    /// The grace period of a cancellation is over.
    GraceOver {
        /// The canceled round.
        round_id: RoundId,
    },
    /// A message from outside, which the model reads at its next call.
    Inject {
        /// A second message with the same id is dropped; `None` is never a duplicate.
        id: Option<String>,
        message: Message,
        waiter: WaiterId,
    },
    /// Withdraw a prompt whose round has not started.
    Withdraw {
        prompt_id: PromptId,
        reason: WithdrawReason,
        /// `None` for a withdrawal by a deadline.
        waiter: Option<WaiterId>,
    },
    /// A measurement of the context ended.
    Context {
        /// The measurement that ended; ignored if no longer open.
        work: WorkId,
        outcome: ContextOutcome,
    },
    /// Compact the context now.
    Compact {
        /// Answered when the measurement has ended.
        waiter: WaiterId,
    },
    /// Pin a line, which every compaction keeps.
    Pin {
        /// Surrounding white space is removed.
        line: String,
        waiter: WaiterId,
    },
    /// Replace the history by one from outside.
    Import {
        messages: Vec<Message>,
        /// Records of the imported rounds; empty if the import has none.
        rounds: Vec<ConversationRound>,
        waiter: WaiterId,
    },
    /// Take back this round and all later ones.
    Rewind {
        /// A finished round of the history.
        round_id: RoundId,
        waiter: WaiterId,
    },
    /// Start as a copy of another conversation.
    Fork {
        /// The rounds to start with, and the conversation they are from.
        copied: Box<Copied>,
        waiter: WaiterId,
    },
    /// Empty the conversation.
    Reset {
        /// Refused while a round is open or a prompt waits.
        waiter: WaiterId,
    },
    /// Activate a skill that was loaded for a user or for the application.
    ActivateSkill {
        /// The outcome of loading it; a failed one is refused with its error.
        loaded: Box<SkillActivationResult>,
        waiter: WaiterId,
    },
    /// Deactivate a skill, with the skills that were activated on top of it.
    DeactivateSkill {
        /// Refused if no active skill has this name.
        name: SkillName,
        waiter: WaiterId,
    },
    /// Start no new round: the host is shutting down.
    Drain,
}

/// A planned compaction of the history that was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    /// The measured messages. The plans apply only to a history that still starts with them.
    pub before: MessageList,
    /// The plans in order, each with the hash of the messages it works on, for the journal.
    pub plans: Vec<(Plan, String)>,
}

/// The result of a measurement.
#[derive(Debug, Clone, PartialEq)]
pub enum ContextOutcome {
    /// The next request fits.
    Fits,
    /// The next request fits after this compaction.
    Compacted(Box<Draft>),
    /// No compaction makes the request fit.
    TooLarge {
        /// The largest part, in words.
        part: &'static str,
        /// The tokens of that part.
        part_tokens: u64,
        /// The smallest possible request, in tokens.
        tokens: u64,
        /// The largest allowed request, in tokens.
        limit: u64,
    },
}
