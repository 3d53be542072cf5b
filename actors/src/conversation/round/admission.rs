//! Decides whether a waiting tool call may start: the loop guard, the subagent limits, the skills,
//! the call policy, and the approval that the session asks for.
//!
//! Pure.

use std::sync::Arc;

use crate::{
    chat::{RawJson, fault},
    conversation::round::{
        DecisionBuilder,
        rules::{ApprovalMode, CallCheck, Rules},
        skills,
    },
    journal::{Batch, Call, CallState, OpenRound, ToolExecutionResult, call_digest},
    ports::{Concurrency, ToolSpec},
    subagent::{CREATE_SUBAGENT, SUBAGENT_LIMIT},
    tool::{OutputLevel, ToolError, ToolErrorType},
    tool_executor::{approval_denied, one_spelling, stuck},
};

/// What a waiting call may do now.
pub(super) enum Admission {
    Open(Opened),
    Ask {
        input: RawJson,
        reason: &'static str,
        pattern: Option<String>,
    },
    /// The caller runs it.
    AtClient {
        input: Option<RawJson>,
    },
    Shut(ToolExecutionResult),
}

/// A call that may start.
pub(super) struct Opened {
    pub(super) spec: Arc<ToolSpec>,
    /// The arguments if they are not the model's.
    pub(super) input: Option<RawJson>,
    /// The output level that the call asks for.
    pub(super) level: Option<OutputLevel>,
}

/// The concurrency that a call needs: what its tool declares, and the file that it works on. A hook
/// or an approval can change the arguments, so the file comes from those that the tool gets.
pub(super) fn needs(
    decision: &DecisionBuilder<'_>,
    call: &Call,
    admission: Option<&Admission>,
) -> (Concurrency, Option<String>) {
    let free = (Concurrency::Parallel, None);
    let (spec, input) = match (admission, &call.state) {
        (Some(Admission::Open(opened)), _) => (Some(opened.spec.clone()), opened.input.as_ref()),
        (_, CallState::Started { input, .. }) => (
            decision
                .volatile
                .rules
                .call_policy
                .spec(&call.tool_use.name),
            input.as_ref(),
        ),
        // A call awaiting approval or its caller blocks no other call; refused and finished calls
        // need no lock.
        _ => return free,
    };
    let Some(spec) = spec else { return free };
    let file = match &spec.concurrency {
        Concurrency::PerFile(parameter) => {
            file_of(input.unwrap_or(&call.tool_use.input), parameter)
        }
        Concurrency::Parallel | Concurrency::Exclusive => None,
    };
    (spec.concurrency.clone(), file)
}

/// The file that a call names, normalized, so that two spellings of one path conflict.
fn file_of(input: &RawJson, parameter: &str) -> Option<String> {
    let arguments: serde_json::Map<String, serde_json::Value> = input.parse().ok()?;
    Some(one_spelling(arguments.get(parameter)?.as_str()?))
}

pub(super) fn admission(
    decision: &DecisionBuilder<'_>,
    round: &OpenRound,
    batch: &Batch,
    call: &Call,
    subagent_refusal: Option<ToolError>,
) -> Admission {
    let tool_use = &call.tool_use;
    let rules = &decision.volatile.rules;
    let digest = call_digest(&tool_use.name, &tool_use.input);
    let times = round.repeats.times_before(digest, batch.seq);
    if times >= rules.identical_calls_max {
        return Admission::Shut(stuck(&tool_use.name, times, &tool_use.id));
    }
    if let Some(fault) = fault(tool_use) {
        let error = ToolError::invalid(fault).not_started();
        return Admission::Shut(ToolExecutionResult::error(&error, &tool_use.id));
    }
    if let Some(error) = subagent_refusal {
        return Admission::Shut(ToolExecutionResult::error(&error, &tool_use.id));
    }
    if let Some(error) = skills::refusal(decision.durable, &tool_use.name) {
        return Admission::Shut(ToolExecutionResult::error(&error, &tool_use.id));
    }
    let brought = round.client_tool(&tool_use.name);
    let check = match brought {
        Some(tool) => rules.call_policy.check_client_call(tool, &tool_use.input),
        None => rules
            .call_policy
            .check_call(&tool_use.name, &tool_use.input),
    };
    let (spec, input, pattern, level) = match check {
        CallCheck::Refused(error) => {
            return Admission::Shut(ToolExecutionResult::error(&error, &tool_use.id));
        }
        CallCheck::Ready { input, .. } if brought.is_some() => {
            return Admission::AtClient { input };
        }
        CallCheck::Ready {
            spec,
            input,
            pattern,
            level,
        } => (spec, input, pattern, level),
    };
    let input = match &call.state {
        CallState::Allowed { input, .. } => Some(input.clone()), // Exactly the approved arguments.
        _ => input,
    };
    let allowed = is_allowed(rules, call);
    let doubtful = decision.durable.in_doubt.contains(&digest);
    let unagreed = pattern
        .as_ref()
        .is_some_and(|pattern| !decision.durable.approved.contains(pattern));
    let asks = (unagreed || doubtful) && !allowed;
    match rules.approval {
        _ if !asks => Admission::Open(Opened { spec, input, level }),
        ApprovalMode::Auto => Admission::Open(Opened { spec, input, level }),
        ApprovalMode::Deny => Admission::Shut(approval_denied(
            &tool_use.id,
            "tools that change something are not allowed in this session",
        )),
        ApprovalMode::Ask if !rules.has_approver => Admission::Shut(approval_denied(
            &tool_use.id,
            "approval is needed and nobody is there to give it",
        )),
        ApprovalMode::Ask => {
            let reason = if doubtful {
                "the outcome of the same call before is unknown"
            } else {
                "this tool changes something"
            };
            Admission::Ask {
                input: input.unwrap_or_else(|| tool_use.input.clone()),
                reason,
                pattern: pattern.filter(|_| !doubtful),
            }
        }
    }
}

/// Whether a person approved this call as it would run now. After a restart the session may go on in
/// another folder, where the same arguments do something else: the pattern says in which.
fn is_allowed(rules: &Rules, call: &Call) -> bool {
    let CallState::Allowed { input, pattern } = &call.state else {
        return false;
    };
    pattern.is_none() || *pattern == rules.call_policy.pattern(&call.tool_use.name, input)
}

pub(super) fn is_subagent(call: &Call) -> bool {
    call.tool_use.name == CREATE_SUBAGENT
}

/// The subagents that a round and its conversation began before the open batch.
pub(super) struct Subagents {
    of_round: usize,
    ever: u64,
}

impl Subagents {
    pub(super) fn count(decision: &DecisionBuilder<'_>, round: &OpenRound, batch: &Batch) -> Self {
        let here = || batch.calls.iter().filter(|call| is_subagent(call));
        let calls = round
            .assistant_messages
            .iter()
            .flat_map(|answer| answer.tool_uses());
        let of_round = calls.filter(|call| call.name == CREATE_SUBAGENT).count();
        let over = here()
            .filter(|call| matches!(call.state, CallState::Finished(_)))
            .count() as u64;
        let ever = decision
            .durable
            .tools
            .get(CREATE_SUBAGENT)
            .map_or(0, |tool| tool.calls);
        Self {
            of_round: of_round.saturating_sub(here().count()),
            ever: ever.saturating_sub(over),
        }
    }

    /// The error for a call that would exceed the subagent limit of its round or of the
    /// conversation. `before`: the calls for subagents before it in its batch.
    pub(super) fn refusal(&self, rules: &Rules, before: usize) -> Option<ToolError> {
        let (whose, max) = if self.of_round + before >= rules.subagents_a_round_max {
            ("turn", rules.subagents_a_round_max as u64)
        } else if self.ever.saturating_add(before as u64) >= rules.subagents_max {
            ("conversation", rules.subagents_max)
        } else {
            return None;
        };
        let error = format!(
            "this {whose} has begun {max} subagents, and may begin no more; do the rest yourself"
        );
        Some(
            ToolError::new(ToolErrorType::ResourceError, error)
                .code(SUBAGENT_LIMIT)
                .not_started(),
        )
    }
}
