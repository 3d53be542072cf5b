//! What waits for durability and how it is let go, on whatever thread the store tells.

use tokio::sync::oneshot;

use crate::{
    conversation::{
        message::{Answer, ConversationError, ConversationMsg},
        round::Receipt,
    },
    tool_executor::{Run, ToolExecutorRef},
};

/// A caller that waits for an answer.
#[derive(Debug)]
pub(in crate::conversation) enum Waiter {
    /// For a prompt.
    Receipt(Answer<Receipt>),
    /// For anything else.
    Done(Answer<()>),
}

impl Waiter {
    /// Tells the caller no.
    pub(in crate::conversation) fn refuse(self, error: ConversationError) {
        match self {
            Self::Receipt(reply) => drop(reply.send(Err(error))),
            Self::Done(reply) => drop(reply.send(Err(error))),
        }
    }
}

/// An act that waits until its entries are durable.
pub(in crate::conversation) enum AfterCommit {
    /// Tell a caller that its prompt is safe.
    Receipt(Answer<Receipt>, Receipt),
    /// Tell a caller that it is done.
    Done(Answer<()>),
    /// Start a tool.
    Tool(ToolExecutorRef, Box<Run>),
    /// Nobody to tell: the caller is gone.
    Nothing,
}

impl AfterCommit {
    /// Lets it go.
    pub(in crate::conversation) fn perform(self) {
        match self {
            Self::Receipt(reply, receipt) => drop(reply.send(Ok(receipt))),
            Self::Done(reply) => drop(reply.send(Ok(()))),
            Self::Tool(executor, run) => executor.execute(*run),
            Self::Nothing => {}
        }
    }

    /// Tells whoever waits that it will not come.
    pub(in crate::conversation) fn refuse(self, error: ConversationError) {
        match self {
            Self::Receipt(reply, _) => drop(reply.send(Err(error))),
            Self::Done(reply) => drop(reply.send(Err(error))),
            Self::Tool(..) | Self::Nothing => {}
        }
    }
}

/// Answers a mail that is not handled.
pub(crate) fn refuse(message: ConversationMsg, error: &ConversationError) {
    fn tell<T>(reply: oneshot::Sender<Result<T, ConversationError>>, error: &ConversationError) {
        let _ = reply.send(Err(error.clone()));
    }
    match message {
        ConversationMsg::Prompt(prompt) => tell(prompt.reply, error),
        ConversationMsg::Interrupt { reply: Some(reply), .. }
        | ConversationMsg::Withdraw { reply: Some(reply), .. }
        | ConversationMsg::Approve { reply, .. }
        | ConversationMsg::Inject { reply, .. }
        | ConversationMsg::Compact { reply }
        | ConversationMsg::Pin { reply, .. }
        | ConversationMsg::Import { reply, .. }
        | ConversationMsg::ActivateSkill { reply, .. }
        | ConversationMsg::DeactivateSkill { reply, .. }
        | ConversationMsg::Rewind { reply, .. }
        | ConversationMsg::Fork { reply, .. }
        | ConversationMsg::Reset { reply } => tell(reply, error),
        ConversationMsg::Peek { reply } => tell(reply, error),
        ConversationMsg::Interrupt { reply: None, .. }
        | ConversationMsg::Withdraw { reply: None, .. }
        | ConversationMsg::Resume
        | ConversationMsg::Loaded(_)
        | ConversationMsg::ModelEnded { .. }
        | ConversationMsg::ContextMeasured { .. }
        | ConversationMsg::ToolEnded { .. }
        | ConversationMsg::RetryDue { .. }
        | ConversationMsg::GraceOver { .. }
        | ConversationMsg::DeadlineOver { .. }
        | ConversationMsg::BudgetTimeOver { .. }
        | ConversationMsg::Tick
        | ConversationMsg::AppendLost { .. }
        | ConversationMsg::Claimed
        | ConversationMsg::HeadRead(_)
        | ConversationMsg::Sweep
        | ConversationMsg::Drain { .. }
        | ConversationMsg::DrainDeadline
        | ConversationMsg::Delete => {}
    }
}
