//! Decides about whole rounds: taking them back, importing them, and starting as a copy of another
//! conversation.
//!
//! Pure.

use crate::{
    chat::{History, Message},
    conversation::{
        command::Copied,
        round::{
            DecisionBuilder,
            decision::{Effect, Refusal, all_fit},
            when_idle,
        },
    },
    ids::{RoundId, WaiterId},
    journal::{ConversationRound, Durable, EntryBody, Fork},
};

/// Takes back a round and all later ones. The journal keeps the messages.
pub(in crate::conversation) fn rewind(
    decision: &mut DecisionBuilder<'_>,
    round_id: RoundId,
    waiter: WaiterId,
) {
    match decision.durable.rounds.start(round_id) {
        Some(keep) => when_idle(decision, waiter, EntryBody::Rewound { round_id, keep }),
        // A round gets its mark when it starts, so a round without a mark is not in the history.
        None => decision.refuse(
            waiter,
            Refusal::NoSuch("round in this conversation's history"),
        ),
    }
}

/// Replaces the history by one from outside. Refused if it is invalid or the conversation is not
/// idle.
pub(in crate::conversation) fn import(
    decision: &mut DecisionBuilder<'_>,
    messages: &[Message],
    rounds: &[ConversationRound],
    waiter: WaiterId,
) {
    if !can_enter(messages, rounds) {
        return decision.refuse(waiter, Refusal::InvalidMessage);
    }
    if let Err(refusal) = all_fit(messages) {
        return decision.refuse(waiter, refusal);
    }
    when_idle(
        decision,
        waiter,
        EntryBody::Imported {
            messages: messages.to_vec(),
            rounds: rounds.to_vec(),
        },
    );
}

/// Starts the conversation as a copy. Refused unless it is empty.
pub(in crate::conversation) fn fork(
    decision: &mut DecisionBuilder<'_>,
    copied: &Copied,
    waiter: WaiterId,
) {
    let Copied {
        from,
        fork:
            Fork {
                upto,
                messages,
                rounds,
                in_doubt,
            },
    } = copied;
    let Durable {
        history,
        round,
        inbox,
        ..
    } = decision.durable;
    if !history.messages().is_empty() || round.is_some() || !inbox.is_empty() {
        return decision.refuse(waiter, Refusal::NotEmpty);
    }
    if !can_enter(messages, rounds) {
        return decision.refuse(waiter, Refusal::InvalidMessage);
    }
    decision.entry(EntryBody::Forked {
        from: from.clone(),
        upto: *upto,
        in_doubt: in_doubt.clone(),
    });
    decision.entry(EntryBody::Imported {
        messages: messages.clone(),
        rounds: rounds.clone(),
    });
    decision.effect(Effect::Answer { waiter });
}

/// Whether a history and the records of its rounds can be applied. The fold would refuse any other
/// history only after it is in the journal, and again at every activation.
fn can_enter(messages: &[Message], rounds: &[ConversationRound]) -> bool {
    let (history, repairs) = History::repair(messages.iter().cloned());
    repairs.is_empty() && crate::journal::records_fit(rounds, history.messages()).is_ok()
}
