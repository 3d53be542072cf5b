//! Decides what becomes of whole rounds: rewound, taken over from another conversation, brought by an import. Pure, but for reading a
//! fork out of the store.

use super::{
    decision::{Effect, Refusal},
    message::ConversationError,
    turn::{DecisionBuilder, when_idle},
};
use crate::{
    chat::{History, Message},
    ids::{ConversationId, RoundId, Scope, Seq, WaiterId},
    journal::{ApplyError, ConversationRound, Durable, Entry, EntryBody, Fork, ForkReader, RoundsReader},
    ports::{SessionBackend, StoreError},
};

/// Entries read at once.
const PAGE: usize = 1000;

/// A fork and where it is from.
#[derive(Debug, Clone, PartialEq)]
pub struct Copied {
    /// The conversation that was copied.
    pub from: ConversationId,
    /// What of it.
    pub fork: Fork,
}

/// That round and all later ones go; what a person said there stays in the journal.
pub(super) fn rewind(decision: &mut DecisionBuilder<'_>, round_id: RoundId, waiter: WaiterId) {
    match decision.durable.rounds.start(round_id) {
        Some(keep) => when_idle(decision, waiter, EntryBody::Rewound { round_id, keep }),
        // The open round has its mark already, so this one is not there at all.
        None => decision.refuse(waiter, Refusal::NoSuch("round in this conversation's history")),
    }
}

/// Takes a history from outside in place of what is there.
pub(super) fn import(decision: &mut DecisionBuilder<'_>, messages: &[Message], rounds: &[ConversationRound], waiter: WaiterId) {
    if !can_enter(messages, rounds) {
        return decision.refuse(waiter, Refusal::InvalidMessage);
    }
    when_idle(decision, waiter, EntryBody::Imported { messages: messages.to_vec(), rounds: rounds.to_vec() });
}

/// Begins as a copy, where nothing began yet.
pub(super) fn fork(decision: &mut DecisionBuilder<'_>, copied: &Copied, waiter: WaiterId) {
    let Copied { from, fork: Fork { upto, messages, rounds, in_doubt } } = copied;
    let Durable { history, round, inbox, .. } = decision.durable;
    if !history.messages().is_empty() || round.is_some() || !inbox.is_empty() {
        return decision.refuse(waiter, Refusal::NotEmpty);
    }
    if !can_enter(messages, rounds) {
        return decision.refuse(waiter, Refusal::InvalidMessage);
    }
    decision.entry(EntryBody::Forked { from: from.clone(), upto: *upto, in_doubt: in_doubt.clone() });
    decision.entry(EntryBody::Imported { messages: messages.clone(), rounds: rounds.clone() });
    decision.effect(Effect::Answer { waiter });
}

/// Whether a history and the records of its rounds could be applied. Another one would be refused by the fold only after it is
/// journaled, and by each life that follows.
fn can_enter(messages: &[Message], rounds: &[ConversationRound]) -> bool {
    let (history, repairs) = History::repair(messages.iter().cloned());
    repairs.is_empty() && crate::journal::records_fit(rounds, history.messages()).is_ok()
}

/// Reads a fork out of the store; wakes nothing.
pub(crate) async fn read_fork(sessions: &dyn SessionBackend, scope: &Scope, at: Option<RoundId>) -> Result<Copied, ConversationError> {
    let head = sessions.head(scope).await?;
    if head.seq.0 == 0 {
        return Err(StoreError::NotFound.into());
    }
    let mut reader = ForkReader::new(scope.conversation.clone(), at);
    let last = each_entry(sessions, scope, |entry| reader.take(entry)).await?;
    if last < head.seq {
        return Err(ConversationError::Failed { reason: format!("the journal ends at {last}, its head says {}", head.seq) });
    }
    let fork = reader.finish().ok_or(Refusal::NoSuch("finished round in this conversation"))?;
    Ok(Copied { from: scope.conversation.clone(), fork })
}

/// Reads the rounds out of the store; wakes nothing.
pub(crate) async fn read_rounds(sessions: &dyn SessionBackend, scope: &Scope) -> Result<RoundsReader, ConversationError> {
    let mut reader = RoundsReader::new(scope.conversation.clone());
    each_entry(sessions, scope, |entry| reader.take(entry)).await?;
    Ok(reader)
}

/// Hands over each entry of a journal in order and tells the last one's seq.
async fn each_entry(
    sessions: &dyn SessionBackend,
    scope: &Scope,
    mut take: impl FnMut(&Entry) -> Result<(), ApplyError>,
) -> Result<Seq, ConversationError> {
    let unreadable = |reason: String| ConversationError::Failed { reason };
    let mut last = Seq(0);
    loop {
        let page = sessions.entries(scope, last, PAGE).await?;
        for stored in &page {
            let entry = Entry::decode(stored).map_err(|error| unreadable(error.to_string()))?;
            take(&entry).map_err(|error| unreadable(error.to_string()))?;
        }
        match page.last() {
            Some(stored) if stored.seq > last => last = stored.seq,
            _ => return Ok(last),
        }
    }
}
