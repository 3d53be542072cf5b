//! The inputs of a decision, as plain data. [`crate::conversation::round`] decides on them.
//!
//! Pure.

use crate::{
    chat::{ClientTools, ContentBlock, Message, MessageList, ModelParameters, RawJson, Usage},
    compactor::{Plan, SummaryBill},
    conversation::{command::Command, round::rules::Recovery},
    ids::{PromptId, RoundId, Seq, WaiterId, WorkId},
    journal::{ClientKey, WithdrawReason},
    policy::Exhausted,
    ports::{Completion, ProviderError},
    stream::Failure,
    time::Timestamp,
    tool_executor::{Again, RunResult},
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
    /// The user's message; `None` to answer the history as it is.
    pub message: Option<Message>,
    /// The JSON Schema that the answer must fit; `None` for free text.
    pub output_schema: Option<RawJson>,
    /// When the round is canceled, or the prompt is withdrawn; `None` without a deadline.
    pub deadline_at: Option<Timestamp>,
    /// When the prompt is withdrawn if its round has not started; `None` waits without a bound.
    pub wait_until: Option<Timestamp>,
    /// How the model is asked to answer; `None` for the configuration's way.
    pub parameters: Option<Arc<ModelParameters>>,
    /// Tools that the caller brings and runs itself.
    pub client_tools: Option<Arc<ClientTools>>,
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
        /// Whether there was memory, and a place, to write the answer into the history.
        has_memory: bool,
    },
    /// The call failed after the gateway's retries. The partial answer is kept in the history.
    Failed {
        /// The last error.
        error: ProviderError,
        /// The complete blocks, and the text so far of an open one.
        partial: Vec<ContentBlock>,
    },
    /// The call failed after the gateway's retries, without any content, and goes to a fallback for
    /// whose window the context has to be measured first.
    FellBack {
        /// The gateway of the fallback.
        gateway: String,
        /// The model that is asked there.
        model: Arc<str>,
        /// The error of the call.
        error: ProviderError,
    },
    /// We canceled the call.
    Cancelled {
        /// The complete blocks, and the text so far of an open one.
        partial: Vec<ContentBlock>,
    },
}

/// An attempt of a model call that failed after the provider had reported usage. The provider bills
/// it like an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct FailedAttempt {
    /// The model that was called.
    pub model: Arc<str>,
    /// The last report.
    pub usage: Usage,
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
    /// A caller sent a command.
    Command { command: Command, waiter: WaiterId },
    /// The answer to [`crate::conversation::round::Effect::Reserve`].
    Budget {
        /// The id of the question.
        work: WorkId,
        /// Whether the amount was reserved.
        answer: Result<(), Exhausted>,
    },
    /// A model wrote a summary in the background.
    Summary(SummaryBill),
    /// A model call ended.
    Model {
        /// The call that ended; ignored if no longer open.
        work: WorkId,
        outcome: ModelOutcome,
        /// The model of the last attempt: the fallback's if the call fell back. Its price applies.
        model: Arc<str>,
        /// The attempts that failed, as far as the provider reported their usage.
        failed: Vec<FailedAttempt>,
    },
    /// An attempt of a tool call ended.
    Tool {
        /// The attempt that ended; ignored if no longer open.
        work: WorkId,
        result: RunResult,
        /// Milliseconds since the call first started, over all attempts.
        duration_ms: u64,
        /// Whether the executor tries the call again; `None` if the result is final.
        again: Option<Again>,
    },
    /// From the executor: the delay before another attempt is over.
    RetryDue {
        /// The seq of the assistant entry that holds the calls.
        batch: Seq,
        /// The index of the call in its batch.
        call: u32,
    },
    /// A timer fired: check for expired approvals, and for calls whose caller is too late.
    Tick,
    /// Cancel the open round; no caller awaits an answer.
    Cancel {
        /// The failure that the round ends with; `None` for a plain interrupt.
        failure: Option<Failure>,
    },
    /// The grace period of a cancellation is over.
    GraceOver {
        /// The canceled round.
        round_id: RoundId,
    },
    /// Withdraw a prompt whose round has not started; no caller awaits an answer.
    Withdraw {
        prompt_id: PromptId,
        reason: WithdrawReason,
    },
    /// A measurement of the context ended.
    Context {
        /// The measurement that ended; ignored if no longer open.
        work: WorkId,
        outcome: ContextOutcome,
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
    /// No compaction brings the messages below the bytes that the provider accepts.
    TooManyBytes {
        /// The smallest possible messages, in bytes.
        bytes: u64,
        /// The most that a request may have.
        limit: u64,
    },
}
