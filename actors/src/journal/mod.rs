//! What is remembered: entries, their envelope, and the fold that turns them into a conversation's state (DESIGN §4.3).
//!
//! Pure. [`apply`](Durable::apply) is the only writer of [`Durable`], live and in a fold alike.

mod context;
mod durable;
mod entry;
mod marks;
mod metrics;
mod project;
mod repeats;
mod result;
mod rounds;
mod skills;

pub use context::{CompactionCause, CompactionNote, Context};
pub use durable::{
    AcceptedPrompt, ApplyError, Batch, Call, CallState, Durable, KnownKey, OpenRound, Phase, SNAPSHOT_VERSION, fold, restore,
};
pub use entry::{ApprovalVerdict, ClientKey, DecodeError, ENTRY_VERSION, Entry, EntryBody, WithdrawReason, call_digest, digest};
pub use marks::{RoundMark, RoundMarks, plain_user_starts};
pub use metrics::{ConversationMetrics, ToolAggregate, ToolMetrics};
pub use project::{project, summary};
pub use repeats::{LOOP_GUARD, Repeats};
pub use result::{RetryRecord, ToolErrorResponse, ToolExecutionResult};
pub use rounds::{ConversationRound, RoundToolCall, rounds};
pub use skills::{ActivatedBy, ActiveSkill, SkillState, refresh_at_compaction, skill_activations};
