//! What is remembered: entries, their envelope, and the fold that turns them into a conversation's state (DESIGN §4.3).
//!
//! Pure. [`apply`](Durable::apply) is the only writer of [`Durable`], live and in a fold alike.

mod budget;
mod durable;
mod entry;
mod metrics;
mod project;
mod repeats;
mod result;
mod rounds;

pub(crate) use budget::of as spent_by;
pub use budget::{BUDGET_REMINDER, Spent};
pub use durable::{
    AcceptedPrompt, ApplyError, Batch, Call, CallState, Durable, KnownKey, OpenRound, OutputWish, Phase, SNAPSHOT_VERSION, fold, restore,
};
pub use entry::{ApprovalVerdict, ClientKey, DecodeError, ENTRY_VERSION, Entry, EntryBody, WithdrawReason, call_digest, digest};
pub use metrics::{ConversationMetrics, ToolAggregate, ToolMetrics};
pub use project::{project, summary};
pub use repeats::{LOOP_GUARD, Repeats};
pub use result::{RetryRecord, ToolErrorResponse, ToolExecutionResult};
pub use rounds::{ConversationRound, RoundToolCall, rounds};
