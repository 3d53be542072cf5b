//! The compactor's mail.

use tokio::sync::oneshot;

use super::SummaryJob;
use crate::ids::{ConversationId, TenantId};

/// What the compactor can be told.
#[derive(Debug)]
pub enum CompactorMsg {
    /// From a conversation: have a summary made.
    Summarise {
        /// Of what.
        job: Box<SummaryJob>,
        /// Told when it is there, or that there will be none; nobody otherwise.
        reply: Option<oneshot::Sender<Option<String>>>,
    },
    /// From a host: what belongs to this conversation, or to all of this tenant without one, is being deleted.
    Forget {
        /// The tenant.
        tenant: TenantId,
        /// The conversation.
        conversation: Option<ConversationId>,
    },
    /// From a summary's task.
    Done {
        /// Which.
        key: String,
        /// What it came to.
        text: Option<String>,
    },
}
