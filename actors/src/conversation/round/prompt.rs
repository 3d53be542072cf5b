//! Decides about a new prompt and about a message that is injected into the open round.
//!
//! Pure.

use crate::{
    chat::{Message, Role},
    conversation::round::{
        DecisionBuilder, Effect, NewPrompt, OnBusy, Receipt, Refusal,
        decision::{fits, is_plain_user, may_enter},
        interrupt,
    },
    ids::WaiterId,
    journal::{Durable, EntryBody},
};

pub(super) fn take_prompt(decision: &mut DecisionBuilder<'_>, prompt: &NewPrompt) {
    let durable = decision.durable;
    let waiter = prompt.waiter;
    let message = prompt.message.as_ref();
    if message.is_some_and(|message| !is_plain_user(message)) {
        return decision.refuse(waiter, Refusal::InvalidMessage);
    }
    let key = prompt.client_key.as_ref();
    let known = key.and_then(|key| Some((key, durable.known_key(&key.key)?)));
    #[cfg(test)]
    let known = known.filter(|_| !crate::planted::is(crate::planted::Bug::ForgetsClientKeys));
    if let Some((key, (digest, round_id))) = known {
        return if digest == key.digest {
            decision.effect(Effect::Acknowledge {
                waiter,
                receipt: Receipt {
                    round_id,
                    replayed: true,
                },
            });
        } else {
            decision.refuse(waiter, Refusal::KeyReused);
        };
    }
    if decision.volatile.draining {
        return decision.refuse(waiter, Refusal::Draining);
    }
    if let Some(Err(refusal)) = message.map(|message| fits(durable, message)) {
        return decision.refuse(waiter, refusal);
    }
    let busy = durable.round.is_some() || !durable.inbox.is_empty();
    let full = durable.inbox.len() >= decision.volatile.rules.inbox_prompts_max;
    if message.is_none() && (busy || !awaits_an_answer(durable)) {
        return decision.refuse(waiter, Refusal::NothingToAnswer);
    }
    match (prompt.on_busy, &durable.round) {
        (OnBusy::Steer, Some(round))
            if decision.volatile.cancelling.is_none()
                && prompt.output_schema.is_none()
                && prompt.parameters.is_none()
                && prompt.client_tools.is_none()
                && let Some(message) = message =>
        {
            if let Err(refusal) = may_enter(durable, message) {
                return decision.refuse(waiter, refusal);
            }
            decision.entry(EntryBody::Injected {
                id: None,
                client_key: prompt.client_key.clone(),
                message: message.clone(),
            });
            return decision.effect(Effect::Acknowledge {
                waiter,
                receipt: Receipt {
                    round_id: round.id,
                    replayed: false,
                },
            });
        }
        _ if full => return decision.refuse(waiter, Refusal::InboxFull),
        (OnBusy::Reject, _) if busy => return decision.refuse(waiter, Refusal::Busy),
        (OnBusy::Interrupt, Some(_)) => interrupt(decision, None),
        (OnBusy::Queue | OnBusy::Reject | OnBusy::Interrupt | OnBusy::Steer, _) => {}
    }
    decision.entry(EntryBody::PromptAccepted {
        prompt_id: prompt.id,
        round_id: prompt.round_id,
        client_key: prompt.client_key.clone(),
        message: prompt.message.clone(),
        output_schema: prompt.output_schema.clone(),
        deadline_at: prompt.deadline_at,
        wait_until: prompt.wait_until,
        parameters: prompt.parameters.clone(),
        client_tools: prompt.client_tools.clone(),
    });
    decision.effect(Effect::Acknowledge {
        waiter,
        receipt: Receipt {
            round_id: prompt.round_id,
            replayed: false,
        },
    });
    if busy {
        decision.effect(Effect::Queued {
            round_id: prompt.round_id,
            position: durable.inbox.len() + 1,
        });
    }
}

/// Whether the history ends with what a model answers: a message of a user, or results of tools.
fn awaits_an_answer(durable: &Durable) -> bool {
    let last = durable.history.messages().last();
    last.is_some_and(|last| last.role() == Role::User)
}

pub(super) fn inject(
    decision: &mut DecisionBuilder<'_>,
    id: Option<&String>,
    message: &Message,
    waiter: WaiterId,
) {
    if !is_plain_user(message) {
        return decision.refuse(waiter, Refusal::InvalidMessage);
    }
    let known = id.is_some_and(|id| decision.durable.knows_injected(id));
    if !known {
        if let Err(refusal) = may_enter(decision.durable, message) {
            return decision.refuse(waiter, refusal);
        }
        decision.entry(EntryBody::Injected {
            id: id.cloned(),
            client_key: None,
            message: message.clone(),
        });
    }
    decision.effect(Effect::Answer { waiter });
}
