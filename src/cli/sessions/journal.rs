//! Reads a journal up to its first damaged entry.

use callboard_actors::{
    ids::{ConversationId, Scope},
    journal::{ConversationRound, Durable, Entry, Head, StoredEntry, rounds},
    ports::{Salvaged, SessionBackend},
    stream::Open,
};

use crate::cli::failure::Failure;

/// Entries read from the store per query.
const PAGE: usize = 1000;

/// The readable part of a conversation.
pub(super) struct Readable {
    /// Id of the conversation.
    pub(super) id: ConversationId,
    /// The state after the last valid entry.
    pub(super) state: Durable,
    /// The valid entries.
    pub(super) entries: Vec<Entry>,
    /// All rows that the store returned, valid or not.
    pub(super) stored: Vec<StoredEntry>,
    /// Why not everything could be read; `None` if the journal is intact.
    pub(super) fault: Option<String>,
    /// Whether the store failed to return some rows.
    pub(super) rows_lost: bool,
}

/// Reads all entries until the first that is damaged.
pub(super) async fn read(
    sessions: &dyn SessionBackend,
    scope: &Scope,
) -> Result<Readable, Failure> {
    let head = sessions.head(scope).await?;
    let id = scope.conversation.clone();
    let state = Durable::default();
    let mut readable = Readable {
        id,
        state,
        entries: Vec::new(),
        stored: Vec::new(),
        fault: None,
        rows_lost: false,
    };
    loop {
        let after = readable
            .stored
            .last()
            .map(|stored| stored.seq)
            .unwrap_or_default();
        match sessions.salvage(scope, after, PAGE).await {
            Ok(page) if page.is_empty() => break,
            Ok(page) => readable.take(page),
            Err(error) => {
                readable.rows_lost = true;
                readable.fault.get_or_insert_with(|| error.to_string());
                break;
            }
        }
    }
    if readable.fault.is_none()
        && (readable.state.head != head.seq || readable.state.epoch != head.epoch)
    {
        readable.fault = Some(format!(
            "the journal ends at entry {}, but its head is {}",
            readable.state.head, head.seq
        ));
    }
    Ok(readable)
}

impl Readable {
    fn take(&mut self, page: Vec<Salvaged>) {
        for Salvaged {
            entry: stored,
            fault,
        } in page
        {
            if self.fault.is_none() {
                self.fault = fault;
            }
            if self.fault.is_none() {
                match Entry::decode(&stored) {
                    Err(error) => self.fault = Some(error.to_string()),
                    Ok(entry) => match self.state.apply(&entry) {
                        Ok(()) => self.entries.push(entry),
                        Err(error) => {
                            self.fault = Some(error.to_string());
                            self.fold_again();
                        }
                    },
                }
            }
            self.stored.push(stored);
        }
    }

    /// Rebuilds the state from the valid entries, because a failed `apply` may leave it half
    /// changed.
    fn fold_again(&mut self) {
        self.state = Durable::default();
        for entry in &self.entries {
            let _ = self.state.apply(entry); // Cannot fail: each entry was applied before.
        }
    }

    /// The end of the valid entries.
    pub(super) fn end(&self) -> Head {
        Head {
            epoch: self.state.epoch,
            seq: self.state.head,
        }
    }

    /// The rounds of the readable entries.
    pub(super) fn rounds(&self) -> Vec<ConversationRound> {
        rounds(&self.id, &self.entries)
    }

    /// What the conversation waits for after the last valid entry.
    pub(super) fn open(&self) -> Open {
        match (&self.state.round, self.state.inbox.is_empty()) {
            (Some(round), _) if round.is_parked() => Open::Parked,
            (None, true) => Open::None,
            _ => Open::Running,
        }
    }
}
