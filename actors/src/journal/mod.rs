//! The journal of a conversation: its entries, their stored form, and the fold that turns entries
//! into the conversation's state.
//!
//! [`Durable::apply`] is the only function that changes [`Durable`], both in a running conversation
//! and when a stored journal is read. A journal therefore always folds into the state that its
//! conversation had.
//!
//! Pure.

mod context;
mod budget;
mod client_keys;
mod durable;
mod entry;
mod fork;
mod marks;
mod metrics;
mod multi;
mod project;
mod repeats;
mod report;
mod result;
mod round;
mod rounds;
mod skills;
mod stored;
mod summary;
mod transcript;
mod usage;
mod version;

pub use budget::{BUDGET_REMINDER, Spent};
pub(crate) use budget::{amount, of};
pub use client_keys::{KnownKey, OlderKeys};
pub use context::{CompactionCause, CompactionNote, Context};
pub use durable::{
    AcceptedPrompt, ApplyError, Batch, CHILD_KEY, CREATE_SUBAGENT, Call, CallState, Durable,
    FoldError, OpenRound, OutputRequest, Phase, SNAPSHOT_VERSION, fold, restore,
};
pub use entry::{
    ActivatedBy, ApprovalVerdict, ClientKey, DecodeError, ENTRY_VERSION, Entry, EntryBody,
    WithdrawReason, call_digest, digest,
};
pub use fork::{Fork, ForkReader};
pub use marks::{RoundMark, RoundMarks, plain_user_starts, records_fit};
pub use metrics::{ConversationMetrics, ToolAggregate, ToolMetrics};
pub use multi::MultiRoundConversation;
pub use project::{project, summary};
pub use repeats::{LOOP_GUARD, Repeats};
pub use report::{GlobalStats, ToolStats, thousands};
pub use result::{RetryRecord, ToolErrorResponse, ToolExecutionResult};
pub use round::{ConversationRound, RoundToolCall};
pub use rounds::{RoundsReader, rounds, settled};
pub use skills::{ActiveSkill, SkillState, refresh_at_compaction, skill_activations};
pub use stored::{Head, Loaded, StoredEntry};
pub use summary::round_summary;
pub use transcript::TranscriptReader;
pub use usage::UsageTotals;
pub use version::{CannotMigrate, LegacyError, SchemaVersion, VersionedToolResult};
