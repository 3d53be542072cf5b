//! Decides about the answer to a call that awaits approval, and about an approval whose time is
//! over.
//!
//! Pure.

use crate::{
    conversation::round::{DecisionBuilder, Effect, Refusal, tools, verdict},
    ids::WaiterId,
    journal::{ApprovalVerdict, Call, CallState, EntryBody},
    tool_executor::approval_denied,
};

/// Applies a person's decision about a call that awaits approval.
pub(in crate::conversation) fn approval(
    decision: &mut DecisionBuilder<'_>,
    tool_call_id: &str,
    allow: bool,
    always: bool,
    waiter: WaiterId,
) {
    let found = decision
        .durable
        .open_call(tool_call_id)
        .filter(|(_, call)| matches!(call.state, CallState::Asked { .. }));
    let Some((index, call)) = found else {
        return decision.effect(Effect::Refuse {
            waiter,
            refusal: Refusal::NoSuch("open approval"),
        });
    };
    answer(decision, index, call, verdict(allow), always && allow);
    decision.effect(Effect::Answer { waiter });
}

/// Denies the approvals whose time is over.
pub(in crate::conversation) fn expire_approvals(decision: &mut DecisionBuilder<'_>) {
    let Some((_, batch)) = tools::open(decision) else {
        return;
    };
    for (index, call) in batch.calls.iter().enumerate() {
        if matches!(call.state, CallState::Asked { expires_at, .. } if expires_at <= decision.now) {
            answer(
                decision,
                tools::index_u32(index),
                call,
                ApprovalVerdict::Expired,
                false,
            );
        }
    }
}

fn answer(
    decision: &mut DecisionBuilder<'_>,
    index: u32,
    call: &Call,
    verdict: ApprovalVerdict,
    always: bool,
) {
    decision.entry(EntryBody::ApprovalAnswered {
        call: index,
        verdict,
        always,
    });
    let why = match verdict {
        ApprovalVerdict::Allowed => return,
        ApprovalVerdict::Denied => "the user did not approve this call",
        ApprovalVerdict::Expired => "nobody approved this call in time",
    };
    tools::finish_call(
        decision,
        index as usize,
        call,
        approval_denied(&call.tool_use.id, why),
    );
}
