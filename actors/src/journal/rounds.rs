//! Rounds as records, read out of a journal (REQUIREMENTS V-01..V-03). For exports and people; the runtime keeps none.

use serde::{Deserialize, Serialize};

use super::{CallState, Durable, Entry, EntryBody, ToolExecutionResult, ToolMetrics, durable::status_of};
use crate::{
    chat::{ContentBlock, Message, RawJson},
    ids::RoundId,
    ports::{Timestamp, Usage},
    stream::{RoundStatus, StopReason},
};

/// One round (V-01).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConversationRound {
    /// Its id.
    pub round_id: RoundId,
    /// The prompt's text.
    pub user_message: String,
    /// Reasoning, in order.
    pub thoughts: Vec<String>,
    /// Calls, in order.
    pub tool_calls: Vec<RoundToolCall>,
    /// Their observations, in order of arrival.
    pub tool_observations: Vec<String>,
    /// Figures of each finished call.
    pub tool_metrics: Vec<ToolMetrics>,
    /// Skills activated.
    pub skill_activations: Vec<String>,
    /// The answer.
    pub final_answer: Option<String>,
    /// Tokens in and out.
    pub tokens_used: u64,
    /// The same, by class.
    pub usage: Usage,
    /// From start to end.
    pub latency_ms: u64,
    /// How far it is.
    pub status: RoundStatus,
    /// Why it ended.
    pub stop_reason: Option<StopReason>,
}

/// A call within a round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoundToolCall {
    /// The id of the model's server.
    pub tool_call_id: String,
    /// The tool.
    pub tool_name: String,
    /// Its arguments.
    pub parameters: RawJson,
}

/// Reads the rounds of a journal.
pub fn rounds<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Vec<ConversationRound> {
    let mut rounds: Vec<ConversationRound> = Vec::new();
    let mut state = Durable::default();
    for entry in entries {
        let round = rounds.last_mut().filter(|round| round.stop_reason.is_none());
        match (&entry.body, round) {
            (EntryBody::RoundStarted { round_id, prompt_ids }, _) => {
                let said: Vec<String> = state.inbox.iter().filter(|p| prompt_ids.contains(&p.id)).map(|p| p.message.text()).collect();
                rounds.push(begun(*round_id, said.join("\n")));
            }
            (EntryBody::Assistant { message, usage, .. }, Some(round)) => {
                round.usage = round.usage.plus(usage);
                round.tokens_used = round.usage.input().saturating_add(round.usage.output);
                if let Some(message) = message {
                    note_message(round, message);
                }
            }
            (EntryBody::ToolFinished { call, name, outcome, .. }, Some(round)) => {
                round.tool_metrics.push(tool_metrics(&state, entry.at, *call, name, outcome));
                round.tool_observations.push(outcome.observation.clone());
            }
            (EntryBody::SkillActivated { name, .. }, Some(round)) => round.skill_activations.push(name.to_string()),
            (EntryBody::RoundFinished { stop_reason, latency_ms, .. }, Some(round)) => {
                round.stop_reason = Some(*stop_reason);
                round.status = status_of(*stop_reason);
                round.latency_ms = *latency_ms;
            }
            (EntryBody::Reset {} | EntryBody::Imported { .. }, _) => rounds.clear(),
            _ => {}
        }
        if state.apply(entry).is_err() {
            break;
        }
    }
    rounds
}

fn begun(round_id: RoundId, user_message: String) -> ConversationRound {
    ConversationRound {
        round_id,
        user_message,
        thoughts: Vec::new(),
        tool_calls: Vec::new(),
        tool_observations: Vec::new(),
        tool_metrics: Vec::new(),
        skill_activations: Vec::new(),
        final_answer: None,
        tokens_used: 0,
        usage: Usage::default(),
        latency_ms: 0,
        status: RoundStatus::InProgress,
        stop_reason: None,
    }
}

fn tool_metrics(state: &Durable, end_time: Timestamp, call: u32, name: &str, outcome: &ToolExecutionResult) -> ToolMetrics {
    let call = state.batch().and_then(|batch| batch.calls.get(call as usize));
    let start_time = match call.map(|call| &call.state) {
        Some(CallState::Started { at, .. }) => *at,
        _ => end_time, // It never began: refused, or cancelled before its start.
    };
    let input_tokens = call.map_or(0, |call| estimate(call.tool_use.input.as_str()));
    let output_tokens = estimate(&outcome.observation);
    ToolMetrics {
        tool_name: name.to_owned(),
        start_time,
        end_time,
        duration_ms: outcome.duration_ms,
        input_tokens,
        output_tokens,
        total_tokens: input_tokens + output_tokens,
        success: !outcome.is_error,
        error_code: outcome.error_code.clone(),
        retry_count: outcome.retry_count,
        output_level: outcome.output_level.as_str().to_owned(),
    }
}

/// Tokens of a text, roughly: four bytes each.
fn estimate(text: &str) -> u64 {
    text.len().div_ceil(4) as u64
}

fn note_message(round: &mut ConversationRound, message: &Message) {
    let blocks = message.blocks();
    for block in &blocks {
        match block {
            ContentBlock::Thinking(thought) => round.thoughts.push(thought.thinking.clone()),
            ContentBlock::ToolUse(call) => round.tool_calls.push(RoundToolCall {
                tool_call_id: call.id.clone(),
                tool_name: call.name.clone(),
                parameters: call.input.clone(),
            }),
            ContentBlock::Text(_) | ContentBlock::ToolResult(_) | ContentBlock::Other { .. } => {}
        }
    }
    round.final_answer = message.tool_use_ids().is_empty().then(|| message.text());
}
