//! Effects that wait until their entries are durable. The store calls [`AfterCommit::perform`] on
//! one of its own threads, so performing an effect only sends a message.

use tokio::sync::oneshot;

use crate::{
    conversation::{
        message::{Answer, ConversationError, ConversationMsg},
        round::Receipt,
        wait_status::ReadPlace,
    },
    journal::Durable,
    reads::ReadPermit,
    tenant::LongAnswerPlace,
    tool_executor::{Run, ToolExecutorRef},
};

/// A caller that awaits an answer.
#[derive(Debug)]
pub(in crate::conversation) enum Waiter {
    /// The caller of a prompt.
    Receipt(Answer<Receipt>),
    /// Any other caller. The place of a large history among the reads of its tenant is freed with the
    /// answer, whether the caller still waits or not.
    Done(Answer<()>, ReadPermit),
}

impl Waiter {
    /// Answers with `error`.
    pub(in crate::conversation) fn refuse(self, error: ConversationError) {
        match self {
            Self::Receipt(reply) => drop(reply.send(Err(error))),
            Self::Done(reply, _place) => drop(reply.send(Err(error))),
        }
    }
}

/// An effect that waits until its entries are durable.
pub(in crate::conversation) enum AfterCommit {
    /// Answer that a prompt is stored.
    Receipt(Answer<Receipt>, Receipt),
    /// Answer that a request is done, and free its place.
    Done(Answer<()>, ReadPermit),
    /// Answer a read with the state.
    State {
        /// The reader.
        reply: Answer<Box<Durable>>,
        /// The state when the read was handled.
        state: Box<Durable>,
        /// Freed with the answer.
        place: ReadPlace,
    },
    /// Free the place of a long answer, which is stored.
    LongAnswer(LongAnswerPlace),
    /// Start a tool call.
    Tool(ToolExecutorRef, Box<Run>),
    /// No effect: the caller was answered already, or the tool or its round no longer exists.
    Nothing,
}

impl AfterCommit {
    /// Performs the effect; its entries are durable.
    pub(in crate::conversation) fn perform(self) {
        match self {
            Self::Receipt(reply, receipt) => drop(reply.send(Ok(receipt))),
            Self::Done(reply, _place) => drop(reply.send(Ok(()))),
            Self::State {
                reply,
                state,
                place,
            } => {
                drop(reply.send(Ok(state)));
                drop(place);
            }
            Self::Tool(executor, run) => executor.execute(*run),
            Self::LongAnswer(place) => drop(place),
            Self::Nothing => {}
        }
    }

    /// Answers the caller, if it is one; starts no tool.
    pub(in crate::conversation) fn answer(self) {
        match self {
            Self::Tool(..) => {}
            answer => answer.perform(),
        }
    }

    /// Answers the caller with `error`: the entries will not become durable.
    pub(in crate::conversation) fn refuse(self, error: ConversationError) {
        match self {
            Self::Receipt(reply, _) => drop(reply.send(Err(error))),
            Self::Done(reply, _place) => drop(reply.send(Err(error))),
            Self::State { reply, .. } => drop(reply.send(Err(error))),
            Self::Tool(..) | Self::LongAnswer(_) | Self::Nothing => {}
        }
    }
}

/// Answers mail that will not be handled with `error`. Mail without a caller is dropped.
pub(crate) fn refuse(message: ConversationMsg, error: &ConversationError) {
    fn answer<T>(reply: oneshot::Sender<Result<T, ConversationError>>, error: &ConversationError) {
        let _ = reply.send(Err(error.clone()));
    }
    match message {
        ConversationMsg::Prompt(prompt) => answer(prompt.reply, error),
        ConversationMsg::Ask { reply, .. } => answer(reply, error),
        ConversationMsg::Peek { reply } | ConversationMsg::Read { reply, .. } => {
            answer(reply, error);
        }
        ConversationMsg::Cancel { .. }
        | ConversationMsg::Resume
        | ConversationMsg::Loaded(_)
        | ConversationMsg::ModelEnded { .. }
        | ConversationMsg::ContextMeasured { .. }
        | ConversationMsg::SummaryBilled(_)
        | ConversationMsg::ToolEnded { .. }
        | ConversationMsg::RetryDue { .. }
        | ConversationMsg::GraceOver { .. }
        | ConversationMsg::DeadlineOver { .. }
        | ConversationMsg::WaitOver { .. }
        | ConversationMsg::BudgetTimeOver { .. }
        | ConversationMsg::Tick
        | ConversationMsg::AppendLost { .. }
        | ConversationMsg::Claimed
        | ConversationMsg::StoreWritten { .. }
        | ConversationMsg::StorePauseOver
        | ConversationMsg::HeadRead { .. }
        | ConversationMsg::Sweep
        | ConversationMsg::Drain { .. }
        | ConversationMsg::DrainDeadline
        | ConversationMsg::Delete => {}
    }
}
