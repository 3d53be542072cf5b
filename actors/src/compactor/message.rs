//! The messages of the compactor.

use tokio::sync::oneshot;

use super::{SummaryJob, SummaryView};
use crate::ids::{ConversationId, Scope, TenantId};

/// A message to the compactor.
#[derive(Debug)]
pub(crate) enum CompactorMsg {
    /// From a conversation that plans a compaction: return its finished summaries.
    Look {
        /// The conversation.
        scope: Scope,
        /// Receives them, and what the tenant may still spend.
        reply: oneshot::Sender<SummaryView>,
    },
    /// From a conversation: make a summary.
    Summarise {
        /// The messages to summarize, and the budget that pays for it.
        job: Box<SummaryJob>,
        /// Receives the summary, or `None` if there will be none. `None` here means that no caller
        /// waits.
        reply: Option<oneshot::Sender<Option<String>>>,
    },
    /// From the host: the conversation is being deleted, or the whole tenant. Removes its
    /// summaries.
    Forget {
        /// The tenant whose data is deleted.
        tenant: TenantId,
        /// The conversation; `None` for all of the tenant.
        conversation: Option<ConversationId>,
    },
    /// From the task of a summary, before its first model call: record what it will cost.
    Spend {
        /// The tenant that pays.
        tenant: TenantId,
        /// What it is estimated to cost, in millionths of a US dollar.
        micro_usd: u64,
        /// Receives whether the tenant can afford it; if not, nothing was recorded.
        reply: oneshot::Sender<bool>,
    },
    /// From the task of a summary: it has ended.
    Done {
        /// The key of the summary.
        key: String,
        /// The summary; `None` if none could be made.
        text: Option<String>,
    },
}
