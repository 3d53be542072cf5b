//! Decides what becomes of whole rounds: rewound, taken over from another conversation, brought by an import. Pure, but for reading a
//! fork out of the store.
//!
//! Pure.

use crate::{
    chat::{History, Message},
    conversation::round::{
        DecisionBuilder,
        decision::{Effect, Refusal},
        when_idle,
    },
    ids::{ConversationId, RoundId, WaiterId},
    journal::{ConversationRound, Durable, EntryBody, Fork},
};

/// A fork and where it is from.
#[derive(Debug, Clone, PartialEq)]
pub struct Copied {
    /// The conversation that was copied.
    pub from: ConversationId,
    /// What of it.
    pub fork: Fork,
}

/// That round and all later ones go; what a person said there stays in the journal.
pub(in crate::conversation) fn rewind(decision: &mut DecisionBuilder<'_>, round_id: RoundId, waiter: WaiterId) {
    match decision.durable.rounds.start(round_id) {
        Some(keep) => when_idle(decision, waiter, EntryBody::Rewound { round_id, keep }),
        // The open round has its mark already, so this one is not there at all.
        None => decision.refuse(waiter, Refusal::NoSuch("round in this conversation's history")),
    }
}

/// Takes a history from outside in place of what is there.
pub(in crate::conversation) fn import(
    decision: &mut DecisionBuilder<'_>,
    messages: &[Message],
    rounds: &[ConversationRound],
    waiter: WaiterId,
) {
    if !can_enter(messages, rounds) {
        return decision.refuse(waiter, Refusal::InvalidMessage);
    }
    when_idle(decision, waiter, EntryBody::Imported { messages: messages.to_vec(), rounds: rounds.to_vec() });
}

/// Begins as a copy, where nothing began yet.
pub(in crate::conversation) fn fork(decision: &mut DecisionBuilder<'_>, copied: &Copied, waiter: WaiterId) {
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
