//! The messages of the compactor.

use tokio::sync::oneshot;

use super::SummaryJob;
use crate::ids::{ConversationId, TenantId};

/// A message to the compactor.
#[derive(Debug)]
pub(crate) enum CompactorMsg {
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
    /// From the task of a summary: it has ended.
    Done {
        /// The key of the summary.
        key: String,
        /// The summary; `None` if none could be made.
        text: Option<String>,
    },
}
