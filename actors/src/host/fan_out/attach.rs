//! Looks what an earlier process left of a task, in its journal: client keys are forgotten after a day, a name is not.

use crate::{
    chat::Message,
    conversation::LoadFailure,
    ids::{RoundId, Scope, Seq},
    journal::{CHILD_KEY, Entry, EntryBody, digest},
    ports::SessionBackend,
    stream::StopReason,
};

/// Entries read at once.
const PAGE: usize = 1000;

/// How a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
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
pub(super) async fn standing(sessions: &dyn SessionBackend, child: &Scope, task: &Message) -> Result<Standing, LoadFailure> {
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
