//! Projects journal entries to stream events. The live stream and a watcher that reads the journal
//! later get the same events.
//!
//! Pure.

use std::{collections::BTreeMap, sync::Arc};

use super::{CREATE_SUBAGENT, Call, Durable, Entry, EntryBody, WithdrawReason, durable::status_of};
use crate::{
    chat::RawJson,
    ids::{ConversationId, RoundId},
    stream::{EventKind, Failure, RoundEnd, SubagentState},
};

/// Longest summary of a call, in characters.
const SUMMARY_CHARS_MAX: usize = 80;

/// Returns the events of `entry` and the round that they belong to. `before` is the state before
/// the entry.
pub fn project(
    conversation: &ConversationId,
    before: &Durable,
    entry: &Entry,
) -> (Option<RoundId>, Vec<EventKind>) {
    let round = before.round.as_deref();
    let id = round.map(|round| round.id);
    match &entry.body {
        EntryBody::PromptAccepted { round_id, .. } => (Some(*round_id), Vec::new()),
        // A prompt that is withdrawn from the inbox never becomes a round. Its stream must end all
        // the same, or the caller would wait forever.
        EntryBody::PromptWithdrawn { prompt_id, reason } => {
            match before.inbox.iter().find(|prompt| prompt.id == *prompt_id) {
                Some(prompt) => (
                    Some(prompt.round_id),
                    vec![EventKind::Error {
                        failure: withdrawn(*reason),
                    }],
                ),
                None => (id, Vec::new()),
            }
        }
        EntryBody::LifeStarted { .. } if round.is_some() => {
            (id, vec![EventKind::TurnRestarted { epoch: entry.epoch }])
        }
        EntryBody::RoundStarted { round_id, .. } => {
            (Some(*round_id), vec![EventKind::RoundStarted {}])
        }
        EntryBody::Assistant {
            message,
            usage,
            failed_usage,
            partial,
            cost_micro_usd,
            ..
        } => {
            let cost_usd = cost_micro_usd.map(|micro| micro as f64 / 1_000_000.0);
            let mut events = vec![EventKind::Usage {
                usage: usage.plus(failed_usage),
                cost_usd,
            }];
            if let Some(message) = message {
                events.push(EventKind::Message {
                    message: message.clone(),
                    partial: *partial,
                });
                events.extend(
                    message
                        .tool_uses()
                        .into_iter()
                        .map(|call| EventKind::ToolCall {
                            summary: summary(&call.name, &call.input),
                            tool_call_id: call.id,
                            name: call.name,
                            input: call.input,
                        }),
                );
            }
            (id, events)
        }
        EntryBody::ToolFinished {
            call,
            tool_call_id,
            name,
            outcome,
        } => {
            let event = EventKind::ToolResult {
                tool_call_id: tool_call_id.clone(),
                name: name.clone(),
                is_error: outcome.is_error,
                summary: first_line(&outcome.observation),
                preview: next_lines(&outcome.observation),
                duration_ms: outcome.duration_ms,
                retry_count: outcome.retry_count,
                artifact_id: outcome.artifact_id.clone(),
            };
            let began = before
                .batch()
                .and_then(|batch| batch.calls.get(*call as usize))
                .is_some_and(Call::is_started);
            let state = if outcome.is_error {
                SubagentState::Failed
            } else {
                SubagentState::Finished
            };
            let child = subagent(conversation, before, *call, name, state).filter(|_| began);
            (id, std::iter::once(event).chain(child).collect())
        }
        // A retry attaches to the subagent that the first start created.
        EntryBody::ToolStarted {
            call,
            name,
            attempt: 0,
            ..
        } => (
            id,
            subagent(conversation, before, *call, name, SubagentState::Started)
                .into_iter()
                .collect(),
        ),
        EntryBody::ClientToolCalled {
            call,
            tool_call_id,
            name,
            input,
            expires_at,
        } => {
            let asked = before
                .batch()
                .and_then(|batch| batch.calls.get(*call as usize))
                .map(|call| call.tool_use.input.clone());
            let event = EventKind::ClientToolCall {
                tool_call_id: tool_call_id.clone(),
                name: name.clone(),
                input: input
                    .clone()
                    .or(asked)
                    .unwrap_or_else(RawJson::empty_object),
                expires_at: *expires_at,
            };
            (id, vec![event])
        }
        EntryBody::ApprovalAsked {
            tool_call_id,
            name,
            resolved_input,
            reason,
            expires_at,
            ..
        } => {
            let event = EventKind::ApprovalRequired {
                tool_call_id: tool_call_id.clone(),
                name: name.clone(),
                input: resolved_input.clone(),
                reason: reason.clone(),
                expires_at: *expires_at,
            };
            (id, vec![event])
        }
        // Between rounds there is no stream to publish to.
        EntryBody::SkillActivated { name, level, .. } if round.is_some() => (
            id,
            vec![EventKind::SkillActivated {
                name: name.to_string(),
                level: (*level).into(),
            }],
        ),
        EntryBody::OutputRefused { fault } => {
            let attempt = round
                .and_then(|round| round.output.as_ref())
                .map_or(1, |output| output.refused + 1);
            (
                id,
                vec![EventKind::Retry {
                    layer: "output",
                    attempt,
                    delay_ms: 0,
                    reason: fault.clone(),
                }],
            )
        }
        EntryBody::RequestRefused { bytes } => {
            let event = EventKind::Retry {
                layer: "request",
                attempt: 1,
                delay_ms: 0,
                reason: format!("the provider refused {bytes} bytes of messages as too large"),
            };
            // A second refusal ends the round.
            let is_first = round.is_some_and(|round| round.refused_requests == 0);
            (id, is_first.then_some(event).into_iter().collect())
        }
        EntryBody::FellBack {
            reason,
            failed_usage,
            cost_micro_usd,
            ..
        } => {
            let usage = (!failed_usage.is_zero()).then(|| EventKind::Usage {
                usage: *failed_usage,
                cost_usd: cost_micro_usd.map(|micro| micro as f64 / 1_000_000.0),
            });
            let event = EventKind::Retry {
                layer: "fallback",
                attempt: 1,
                delay_ms: 0,
                reason: reason.clone(),
            };
            (id, usage.into_iter().chain([event]).collect())
        }
        EntryBody::RoundFinished {
            stop_reason,
            latency_ms,
            error,
        } => {
            let (text, full_text) = round.map(super::OpenRound::texts).unwrap_or_default();
            let end = RoundEnd {
                status: status_of(*stop_reason, error.as_ref()),
                stop_reason: *stop_reason,
                text,
                full_text,
                usage: round.map(|round| round.usage).unwrap_or_default(),
                latency_ms: *latency_ms,
                error: error.clone(),
            };
            (id, vec![EventKind::RoundFinished { end: Arc::new(end) }])
        }
        EntryBody::Compacted {
            mode,
            before_tokens,
            after_tokens,
            ..
        } => {
            let event = EventKind::Compaction {
                mode: mode.clone(),
                before_tokens: *before_tokens,
                after_tokens: *after_tokens,
            };
            (id, id.map(|_| event).into_iter().collect())
        }
        EntryBody::LifeStarted { .. }
        | EntryBody::Pinned { .. }
        | EntryBody::ModelCallStarted { .. }
        | EntryBody::BudgetSettled { .. }
        | EntryBody::SummaryBilled { .. }
        | EntryBody::ToolStarted { .. }
        | EntryBody::ApprovalAnswered { .. }
        | EntryBody::Injected { .. }
        | EntryBody::SkillsOffered { .. }
        | EntryBody::SkillActivated { .. }
        | EntryBody::SkillDeactivated { .. }
        | EntryBody::Imported { .. }
        | EntryBody::Rewound { .. }
        | EntryBody::Reset {}
        | EntryBody::Emptied {}
        | EntryBody::Forked { .. } => (id, Vec::new()),
    }
}

/// Returns the event that shows the state of a call's subagent. `None` for a tool that starts none.
fn subagent(
    conversation: &ConversationId,
    before: &Durable,
    call: u32,
    name: &str,
    state: SubagentState,
) -> Option<EventKind> {
    let batch = before.batch().filter(|_| name == CREATE_SUBAGENT)?;
    Some(EventKind::Subagent {
        id: conversation.child(batch.seq, call),
        state,
        steps: None,
        tokens: None,
    })
}

fn withdrawn(reason: WithdrawReason) -> Failure {
    let (code, message) = match reason {
        WithdrawReason::ProviderAuth => ("provider_auth", "the provider refused the credentials"),
        WithdrawReason::Deadline => (
            "deadline",
            "the prompt's time was over before its turn came",
        ),
        WithdrawReason::Caller => ("withdrawn", "the prompt was taken back"),
    };
    Failure {
        code: code.to_owned(),
        message: message.to_owned(),
        retry_after_ms: None,
    }
}

/// Parameters that describe a call best, in this order. They come first in the summary.
const TELLING: [&str; 6] = ["command", "pattern", "query", "path", "url", "task"];

/// Summarizes a call in one line for people: the tool's name and the values of its arguments, most
/// descriptive first, shortened.
pub fn summary(name: &str, input: &RawJson) -> String {
    let place = |key: &str| {
        TELLING
            .iter()
            .position(|telling| *telling == key)
            .unwrap_or(TELLING.len())
    };
    let mut pairs: Vec<_> = input
        .parse::<BTreeMap<String, serde_json::Value>>()
        .unwrap_or_default()
        .into_iter()
        .collect();
    pairs.sort_by_key(|(key, _)| place(key));
    let values = pairs.into_iter().map(|(key, value)| match value {
        serde_json::Value::String(text) => text,
        other => format!("{key}={other}"),
    });
    let values: Vec<String> = values.collect();
    shorten(&format!(
        "{name} {}",
        values.join(" ").replace(['\n', '\r'], " ")
    ))
}

fn first_line(text: &str) -> String {
    let line = match text.strip_prefix("Operation failed.") {
        // The text of a failed call has a fixed layout, in which the fifth line holds the reason.
        Some(rest) => rest
            .lines()
            .find_map(|line| line.strip_prefix("Error Message: "))
            .unwrap_or("Operation failed."),
        None => text
            .lines()
            .find(|line| !line.trim().is_empty())
            .unwrap_or_default(),
    };
    shorten(line)
}

/// Lines of a result that an event has beside the first one.
const PREVIEW_LINES: usize = 4;

fn next_lines(text: &str) -> String {
    if text.starts_with("Operation failed.") {
        return String::new();
    }
    let lines = text.lines().filter(|line| !line.trim().is_empty()).skip(1);
    let lines: Vec<String> = lines
        .take(PREVIEW_LINES)
        .map(|line| shorten_end(line.trim_end()))
        .collect();
    lines.join("\n")
}

fn shorten(text: &str) -> String {
    shorten_end(text.trim())
}

fn shorten_end(text: &str) -> String {
    let mut ends = text
        .char_indices()
        .map(|(at, _)| at)
        .skip(SUMMARY_CHARS_MAX - 1);
    match (ends.next(), ends.next()) {
        (Some(end), Some(_)) => text.get(..end).unwrap_or_default().to_owned() + "…",
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_a_line_with_its_most_telling_argument_first() {
        let line = |input: &str| summary("grep_search", &RawJson::from_text(input).unwrap());

        assert_eq!(
            line(r#"{"context":2,"glob":"*.rs","path":"src","pattern":"fn main"}"#),
            "grep_search fn main src context=2 *.rs"
        );
        assert_eq!(line(r#"{"pattern":"a\nb"}"#), "grep_search a b");
        assert_eq!(line("{}"), "grep_search");
        let long = |chars: usize| shorten(&"汉".repeat(chars));
        assert_eq!(
            (long(79), long(80), long(81)),
            ("汉".repeat(79), "汉".repeat(80), "汉".repeat(79) + "…")
        );
    }
}
