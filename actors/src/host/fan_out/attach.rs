//! Looks what an earlier process left of a task, in its journal: client keys are forgotten after a day, a name is not.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::told::{failure, refused};
use crate::{
    chat::Message,
    conversation::{ConversationError, ConversationMsg, LoadFailure, Ports, round::Refusal},
    host::{OutcomeError, directory::Directory, round_watch::RoundWatch},
    ids::{RoundId, Scope, Seq},
    journal::{CHILD_KEY, Entry, EntryBody, digest},
    ports::SessionBackend,
    stream::{Failure, RoundEnd, StopReason},
};

/// Entries read at once.
const PAGE: usize = 1000;

/// What came of attaching to a task.
pub(super) enum Found {
    /// Its round is over.
    Over(Result<Arc<RoundEnd>, Failure>),
    /// It is to be given: anew, or again after the round that is taken back.
    Missing { cut: Option<RoundId> },
}

/// Finds out how a task stands whose conversation is there, and sees it to its end if it was given.
pub(super) async fn find(directory: Arc<Directory>, child: Scope, task: Message) -> Found {
    let (ports, stopped) = (directory.ports().clone(), directory.stopped().clone());
    match standing(&*ports.sessions, &child, &task).await {
        Err(error) => Found::Over(Err(refused(&error.into()))),
        Ok(Standing::New) => Found::Missing { cut: None },
        Ok(Standing::Cut(round)) => Found::Missing { cut: Some(round) },
        Ok(Standing::Another) => Found::Over(Err(refused(&ConversationError::from(Refusal::KeyReused).into()))),
        Ok(Standing::Over(round)) => Found::Over(outcome(ports, stopped, child, round).await),
        Ok(Standing::Open(round)) => {
            directory.send(&child, ConversationMsg::Resume);
            drop(directory); // Whoever waits keeps no host alive.
            Found::Over(outcome(ports, stopped, child, round).await)
        }
    }
}

/// The end of a round, as its stream or its journal tells it.
pub(super) async fn outcome(ports: Ports, stopped: CancellationToken, child: Scope, round: RoundId) -> Result<Arc<RoundEnd>, Failure> {
    match RoundWatch::new(ports, &stopped, child, round).outcome().await {
        Ok(end) => Ok(Arc::new(end)),
        Err(OutcomeError::Failed { end }) => Ok(Arc::from(end)),
        Err(error) => Err(failure(error.code(), error.to_string())),
    }
}

/// How a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It was not given yet.
    New,
    /// Its conversation was given another one.
    Another,
    /// Its round goes on as soon as its conversation wakes.
    Open(RoundId),
    /// Its round is over.
    Over(RoundId),
    /// Its round was interrupted: it is to be taken back, and the task given again.
    Cut(RoundId),
}

/// Reads how a task stands whose conversation may be there.
///
/// # Errors
/// The store's, or a journal that cannot be read.
async fn standing(sessions: &dyn SessionBackend, child: &Scope, task: &Message) -> Result<Standing, LoadFailure> {
    let (mut standing, mut after) = (Standing::New, Seq(0));
    loop {
        let page = sessions.entries(child, after, PAGE).await.map_err(LoadFailure::Store)?;
        let Some(last) = page.last().map(|entry| entry.seq) else { return Ok(standing) };
        for stored in &page {
            let entry = Entry::decode(stored).map_err(|error| LoadFailure::Unreadable(error.to_string()))?;
            standing = after_entry(standing, &entry.body, task);
        }
        after = last;
    }
}

fn after_entry(before: Standing, entry: &EntryBody, task: &Message) -> Standing {
    match (entry, before) {
        (EntryBody::PromptAccepted { client_key: Some(key), round_id, .. }, _) if key.key.starts_with(CHILD_KEY) => {
            if key.digest == digest(task.wire()) { Standing::Open(*round_id) } else { Standing::Another }
        }
        (EntryBody::PromptWithdrawn { .. }, Standing::Open(_)) => Standing::New,
        (EntryBody::RoundFinished { stop_reason: StopReason::Interrupted, .. }, Standing::Open(round)) => Standing::Cut(round),
        (EntryBody::RoundFinished { .. }, Standing::Open(round)) => Standing::Over(round),
        (EntryBody::Rewound { round_id, .. }, Standing::Cut(round)) if *round_id == round => Standing::New,
        (_, before) => before,
    }
}
