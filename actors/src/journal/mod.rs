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
mod child_key;
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
mod title;
mod transcript;
mod usage;
mod version;

pub use budget::Spent;
pub(crate) use budget::{BUDGET_REMINDER, amount, of};
pub(crate) use child_key::{CHILD_KEY, ChildKey, FanOutKeys};
pub use client_keys::{KnownKey, OlderKeys};
pub use context::{CompactionCause, CompactionNote, Context};
pub use durable::{
    AcceptedPrompt, ApplyError, Batch, CREATE_SUBAGENT, Call, CallState, Durable, FallbackCall,
    FoldError, OpenRound, OutputRequest, Phase, fold, restore,
};
pub(crate) use durable::{result_digest, status_of};
pub(crate) use entry::call_digest;
pub use entry::{
    ActivatedBy, ApprovalVerdict, ClientKey, DecodeError, Entry, EntryBody, WithdrawReason, digest,
};
pub use fork::Fork;
pub(crate) use fork::ForkReader;
pub(crate) use marks::plain_user_starts;
pub use marks::{RoundMarks, records_fit};
pub use metrics::{ConversationMetrics, ToolAggregate, ToolMetrics};
pub use multi::{ActiveSkillContext, MultiRoundConversation};
pub(crate) use summary::round_summary;
pub use version::{CannotMigrate, SchemaVersion, migrate_round};

pub use self::{
    title::{TITLE_ENTRIES, title},
    transcript::debug_form,
    usage::UsageTotals,
};
pub use project::{project, summary};
pub use repeats::{LOOP_GUARD, Repeats};
pub use report::{GlobalStats, ToolStats, thousands};
pub use result::ToolExecutionResult;
pub use round::{ConversationRound, RoundToolCall};
pub(crate) use rounds::RoundsReader;
pub use rounds::{rounds, settled};
pub use skills::{ActiveSkill, SkillState, skill_activations};
pub use stored::{Growth, Head, Loaded, StoredEntry};
pub(crate) use transcript::TranscriptReader;
