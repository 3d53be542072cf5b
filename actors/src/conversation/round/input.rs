//! What can reach a conversation, as values. Plain data; [`crate::conversation::round`] decides about it.
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

/// What a new prompt does when a round is open (INTERFACES §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnBusy {
    /// Waits its turn (V-05).
    #[default]
    Queue,
    /// Is refused.
    Reject,
    /// Ends the open round and takes its place.
    Interrupt,
    /// Is told to the model in the open round.
    Steer,
}

/// A prompt with the ids it will have.
#[derive(Debug, Clone, PartialEq)]
pub struct NewPrompt {
    /// Its id.
    pub id: PromptId,
    /// The id of the round it will open.
    pub round_id: RoundId,
    /// The client's own name for it.
    pub client_key: Option<ClientKey>,
    /// What is said.
    pub message: Message,
    /// The JSON Schema that the answer must fit.
    pub output_schema: Option<RawJson>,
    /// What to do when a round is open.
    pub on_busy: OnBusy,
    /// Who waits.
    pub waiter: WaiterId,
}

/// How a model call ended.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelOutcome {
    /// With an answer.
    Completed {
        /// All blocks, complete.
        blocks: Vec<ContentBlock>,
        /// Why it stopped and what it cost.
        completion: Completion,
    },
    /// With an error, after the gateway's retries. What came before it is kept.
    Failed {
        /// What went wrong.
        error: ProviderError,
        /// Complete blocks and the text of an open one.
        partial: Vec<ContentBlock>,
    },
    /// By our cancel.
    Cancelled {
        /// Complete blocks and the text of an open one.
        partial: Vec<ContentBlock>,
    },
}

/// All that can reach a conversation.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// The fold is complete; a new life begins.
    Recovered {
        /// What becomes of an open round.
        recovery: Recovery,
    },
    /// Somebody says something.
    Prompt(NewPrompt),
    /// The tenant's budget was asked.
    Budget {
        /// In what name.
        work: WorkId,
        /// Whether it has room.
        answer: Result<(), Exhausted>,
    },
    /// A model call ended.
    Model {
        /// Which.
        work: WorkId,
        /// How.
        outcome: ModelOutcome,
        /// The model that was asked last: what it costs is the call's price.
        model: Arc<str>,
    },
    /// An attempt of a tool call ended.
    Tool {
        /// Which.
        work: WorkId,
        /// How.
        result: RunResult,
        /// When the call was first started.
        duration_ms: u64,
    },
    /// The pause before another attempt is over.
    RetryDue {
        /// The batch.
        batch: Seq,
        /// Its call.
        call: u32,
    },
    /// A person answered.
    Approval {
        /// The call.
        tool_call_id: String,
        /// The answer.
        allow: bool,
        /// Whether it holds for calls of the same pattern too.
        always: bool,
        /// Who waits.
        waiter: WaiterId,
    },
    /// Time passed: approvals may have expired.
    Tick,
    /// The open round is to end now.
    Interrupt {
        /// Why, if somebody should read it.
        failure: Option<Failure>,
        /// Who waits.
        waiter: Option<WaiterId>,
    },
    /// The time for answers to a cancel is over.
    GraceOver {
        /// The round that was cancelled.
        round_id: RoundId,
    },
    /// A message from outside, for the model to read when it can.
    Inject {
        /// Its id; a second one with the same id is dropped.
        id: Option<String>,
        /// The message.
        message: Message,
        /// Who waits.
        waiter: WaiterId,
    },
    /// A prompt is taken back if its round has not begun.
    Withdraw {
        /// Which.
        prompt_id: PromptId,
        /// Why.
        reason: WithdrawReason,
        /// Who waits.
        waiter: Option<WaiterId>,
    },
    /// A measurement of the context ended.
    Context {
        /// Which.
        work: WorkId,
        /// How.
        outcome: ContextOutcome,
    },
    /// The context is to be made smaller now.
    Compact {
        /// Who waits.
        waiter: WaiterId,
    },
    /// A line is to stay through every compaction.
    Pin {
        /// The line.
        line: String,
        /// Who waits.
        waiter: WaiterId,
    },
    /// History from outside takes the place of what is there.
    Import {
        /// The messages.
        messages: Vec<Message>,
        /// Records of its rounds, if it came with any.
        rounds: Vec<ConversationRound>,
        /// Who waits.
        waiter: WaiterId,
    },
    /// That round and all later ones are to go.
    Rewind {
        /// Which.
        round_id: RoundId,
        /// Who waits.
        waiter: WaiterId,
    },
    /// The conversation is to begin as a copy.
    Fork {
        /// Of what.
        copied: Box<Copied>,
        /// Who waits.
        waiter: WaiterId,
    },
    /// Everything is to be forgotten.
    Reset {
        /// Who waits.
        waiter: WaiterId,
    },
    /// A skill that was loaded for a person or the application is to become active.
    ActivateSkill {
        /// What was loaded.
        loaded: Box<SkillActivationResult>,
        /// Who waits.
        waiter: WaiterId,
    },
    /// A skill is to be active no longer.
    DeactivateSkill {
        /// Which.
        name: SkillName,
        /// Who waits.
        waiter: WaiterId,
    },
    /// No new round is to begin.
    Drain,
}

/// A history in place of the one that was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    /// What was measured. Only a history that still begins so is replaced.
    pub before: MessageList,
    /// What to do with it, one after the other, each with the hash of what it works on, for the record.
    pub plans: Vec<(Plan, String)>,
}

/// What a measurement found.
#[derive(Debug, Clone, PartialEq)]
pub enum ContextOutcome {
    /// The next request fits.
    Fits,
    /// It will, after this.
    Compacted(Box<Draft>),
    /// It cannot be made to fit.
    TooLarge {
        /// What is too large.
        part: &'static str,
        /// Its tokens.
        part_tokens: u64,
        /// Fewest tokens that the request could come to.
        tokens: u64,
        /// What there is room for.
        limit: u64,
    },
}
