//! Attaches a named fan-out to what an earlier process left of it: reads from a child's journal
//! whether its task was accepted and how its round ended. Client keys cannot serve for this, since
//! they are forgotten after a day and the name of a fan-out is not.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::results::{failure, refused};
use crate::{
    chat::Message,
    conversation::{ConversationError, ConversationMsg, LoadFailure, Ports, round::Refusal},
    host::{OutcomeError, directory::Directory, round_watch::RoundWatch},
    ids::{RoundId, Scope, Seq},
    journal::{CHILD_KEY, Entry, EntryBody, digest},
    ports::SessionBackend,
    stream::{Failure, RoundEnd, StopReason},
};

/// Entries per read.
const PAGE: usize = 1000;

/// Entries per read where the first prompt is looked for, which is among the first entries.
const FIRST_PAGE: usize = 8;

/// The result of attaching to a task.
pub(super) enum Found {
    /// The round has ended, or the task cannot be attached.
    Over(Result<Arc<RoundEnd>, Failure>),
    /// The task must be sent: for the first time, or again after the interrupted round `cut` is
    /// rewound.
    Missing { cut: Option<RoundId> },
}

/// Whether a conversation exists for another task than this one. An unreadable journal is the
/// failure of its task, not another task.
///
/// # Errors
/// [`LoadFailure::Store`] for a failing store.
pub(super) async fn is_another(
    sessions: &dyn SessionBackend,
    child: Scope,
    task: Message,
) -> Result<bool, LoadFailure> {
    let mut after = Seq(0);
    loop {
        let page = match sessions.entries(&child, after, FIRST_PAGE).await {
            Ok(page) => page,
            Err(error) => match LoadFailure::from(error) {
                LoadFailure::Unreadable(_) => return Ok(false),
                failure => return Err(failure),
            },
        };
        let Some(last) = page.last().map(|entry| entry.seq) else {
            return Ok(false);
        };
        for stored in &page {
            let Ok(entry) = Entry::decode(stored) else {
                return Ok(false);
            };
            // The prompts of later attempts have the same digest.
            if let EntryBody::PromptAccepted {
                client_key: Some(key),
                ..
            } = &entry.body
                && key.key.starts_with(CHILD_KEY)
            {
                return Ok(key.digest != digest(task.wire()));
            }
        }
        after = last;
    }
}

/// Finds the status of a task whose conversation exists, and waits for its round if the task was
/// accepted. With `retry_failed`, a round that failed counts as interrupted.
pub(super) async fn find(
    directory: Arc<Directory>,
    child: Scope,
    task: Message,
    retry_failed: bool,
) -> Found {
    let ports = directory.ports().clone();
    let stopped = directory.stopped().clone();
    let reads = directory.tenants().get(&child.tenant).reads().clone();
    match task_state(&*ports.sessions, &child, &task, retry_failed).await {
        Err(error) => Found::Over(Err(refused(&error.into()))),
        Ok(TaskState::New) => Found::Missing { cut: None },
        Ok(TaskState::Cut(round)) => Found::Missing { cut: Some(round) },
        Ok(TaskState::Another) => Found::Over(Err(refused(
            &ConversationError::from(Refusal::KeyReused).into(),
        ))),
        Ok(TaskState::Over(round)) => {
            Found::Over(outcome(ports, stopped, reads, child, round).await)
        }
        Ok(TaskState::Open(round)) => {
            directory.send(&child, ConversationMsg::Resume);
            drop(directory); // Waiting must not keep the host running.
            Found::Over(outcome(ports, stopped, reads, child, round).await)
        }
    }
}

/// Waits for the end of a round, from its event stream or its journal.
pub(super) async fn outcome(
    ports: Ports,
    stopped: CancellationToken,
    reads: Arc<Semaphore>,
    child: Scope,
    round: RoundId,
) -> Result<Arc<RoundEnd>, Failure> {
    match RoundWatch::new(ports, &stopped, reads, child, round)
        .outcome()
        .await
    {
        Ok(end) => Ok(Arc::new(end)),
        Err(OutcomeError::Failed { end }) => Ok(Arc::from(end)),
        Err(error) => Err(failure(error.code(), error.to_string())),
    }
}

/// The status of a task in its child's journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TaskState {
    /// The task was not accepted, or its prompt was withdrawn or rewound.
    New,
    /// The conversation accepted a different task.
    Another,
    /// The round is open, and continues when the conversation is activated.
    Open(RoundId),
    /// The round has ended.
    Over(RoundId),
    /// The round was interrupted, or failed and is tried again: it must be rewound and the task sent
    /// again.
    Cut(RoundId),
}

/// Reads the status of a task from its child's journal, which may not exist.
///
/// # Errors
/// [`LoadFailure::Store`] for a failing store, [`LoadFailure::Unreadable`] for a damaged journal.
async fn task_state(
    sessions: &dyn SessionBackend,
    child: &Scope,
    task: &Message,
    retry_failed: bool,
) -> Result<TaskState, LoadFailure> {
    let mut standing = TaskState::New;
    let mut after = Seq(0);
    loop {
        let page = sessions
            .entries(child, after, PAGE)
            .await
            .map_err(LoadFailure::from)?;
        let Some(last) = page.last().map(|entry| entry.seq) else {
            return Ok(standing);
        };
        for stored in &page {
            let entry = Entry::decode(stored)?;
            standing = after_entry(standing, &entry.body, task, retry_failed);
        }
        after = last;
    }
}

fn after_entry(
    before: TaskState,
    entry: &EntryBody,
    task: &Message,
    retry_failed: bool,
) -> TaskState {
    match (entry, before) {
        (
            EntryBody::PromptAccepted {
                client_key: Some(key),
                round_id,
                ..
            },
            _,
        ) if key.key.starts_with(CHILD_KEY) => {
            if key.digest == digest(task.wire()) {
                TaskState::Open(*round_id)
            } else {
                TaskState::Another
            }
        }
        (EntryBody::PromptWithdrawn { .. }, TaskState::Open(_)) => TaskState::New,
        (
            EntryBody::RoundFinished {
                stop_reason: StopReason::Interrupted,
                ..
            },
            TaskState::Open(round),
        ) => TaskState::Cut(round),
        (
            EntryBody::RoundFinished {
                stop_reason, error, ..
            },
            TaskState::Open(round),
        ) if retry_failed && (error.is_some() || !stop_reason.is_done()) => TaskState::Cut(round),
        (EntryBody::RoundFinished { .. }, TaskState::Open(round)) => TaskState::Over(round),
        (EntryBody::Rewound { round_id, .. }, TaskState::Cut(round)) if *round_id == round => {
            TaskState::New
        }
        (_, before) => before,
    }
}
