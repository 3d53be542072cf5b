//! Decides about the answer to a call that awaits approval, and about an approval whose time is
//! over.
//!
//! Pure.

use crate::{
    chat::{Message, RawJson, Role, reminder},
    conversation::{
        Consent,
        round::{DecisionBuilder, Effect, Refusal, decision::fits, rules::CallCheck, tools},
    },
    ids::{RoundId, WaiterId},
    journal::{ApprovalVerdict, Call, CallState, EntryBody},
    tool_executor::approval_denied,
};

/// Characters of the words of a denial.
const WORDS_CHARS: usize = 4000;

/// Applies a person's answer for a call that awaits approval.
pub(in crate::conversation) fn approval(
    decision: &mut DecisionBuilder<'_>,
    round_id: Option<RoundId>,
    tool_call_id: &str,
    given: &Consent,
    waiter: WaiterId,
) {
    let open = decision.durable.round.as_ref().map(|round| round.id);
    let found = decision
        .durable
        .open_call(tool_call_id)
        .filter(|(_, call)| matches!(call.state, CallState::Asked { .. }))
        .filter(|_| round_id.is_none() || round_id == open);
    let Some((index, call)) = found else {
        return decision.effect(Effect::Refuse {
            waiter,
            refusal: Refusal::NoSuch("open approval"),
        });
    };
    match given {
        Consent::Once | Consent::Always => {
            decision.entry(EntryBody::ApprovalAnswered {
                call: index,
                verdict: ApprovalVerdict::Allowed,
                always: *given == Consent::Always,
                changed: None,
                pattern: None,
            });
        }
        Consent::Changed(input) => {
            if let Err(refusal) = change(decision, index, call, input) {
                return decision.effect(Effect::Refuse { waiter, refusal });
            }
        }
        Consent::Denied(words) => {
            let verdict = ApprovalVerdict::Denied;
            deny(decision, index, call, verdict, words.as_deref());
        }
    }
    decision.effect(Effect::Answer { waiter });
}

/// Allows a call with other arguments. The model reads them after the result.
fn change(
    decision: &mut DecisionBuilder<'_>,
    index: u32,
    call: &Call,
    input: &RawJson,
) -> Result<(), Refusal> {
    let name = &call.tool_use.name;
    let (input, pattern) = match decision.volatile.rules.call_policy.check_call(name, input) {
        CallCheck::Refused(error) => return Err(Refusal::Arguments(error.to_string())),
        CallCheck::Ready {
            input: resolved,
            pattern,
            ..
        } => (resolved.unwrap_or_else(|| input.clone()), pattern),
    };
    let note = format!(
        "The user changed the arguments of the call {} of {name} before it ran. It ran with: {}",
        call.tool_use.id,
        input.as_str()
    );
    let message = Message::new(Role::User, &[reminder(&note)])
        .map_err(|fault| Refusal::Arguments(fault.to_string()))?;
    fits(decision.durable, &message)?;
    decision.entry(EntryBody::ApprovalAnswered {
        call: index,
        verdict: ApprovalVerdict::Allowed,
        always: false,
        changed: Some(input),
        pattern,
    });
    decision.entry(EntryBody::Injected {
        id: None,
        client_key: None,
        message,
    });
    Ok(())
}

/// Denies the approvals whose time is over.
pub(in crate::conversation) fn expire_approvals(decision: &mut DecisionBuilder<'_>) {
    let Some((_, batch)) = tools::open(decision) else {
        return;
    };
    for (index, call) in batch.calls.iter().enumerate() {
        if matches!(call.state, CallState::Asked { expires_at, .. } if expires_at <= decision.now) {
            deny(
                decision,
                tools::index_u32(index),
                call,
                ApprovalVerdict::Expired,
                None,
            );
        }
    }
}

fn deny(
    decision: &mut DecisionBuilder<'_>,
    index: u32,
    call: &Call,
    verdict: ApprovalVerdict,
    words: Option<&str>,
) {
    decision.entry(EntryBody::ApprovalAnswered {
        call: index,
        verdict,
        always: false,
        changed: None,
        pattern: None,
    });
    let words = words.map(str::trim).filter(|words| !words.is_empty());
    let why = match (verdict, words) {
        (ApprovalVerdict::Expired, _) => "nobody approved this call in time".to_owned(),
        (_, None) => "the user did not approve this call".to_owned(),
        (_, Some(words)) => {
            let words: String = words.chars().take(WORDS_CHARS).collect();
            format!("the user did not approve this call and says: {words}")
        }
    };
    tools::finish_call(
        decision,
        index as usize,
        call,
        approval_denied(&call.tool_use.id, &why),
    );
}
