//! The compactor's mail.

use tokio::sync::oneshot;

use super::SummaryJob;

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
    /// From a summary's task.
    Done {
        /// Which.
        key: String,
        /// What it came to.
        text: Option<String>,
    },
}
