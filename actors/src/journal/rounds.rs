//! Rounds as records, read out of a journal (REQUIREMENTS V-01..V-03). For exports and people; the runtime keeps none.

use serde::{Deserialize, Serialize};

use super::{Durable, Entry, EntryBody, durable::status_of};
use crate::{
    chat::{ContentBlock, Message, RawJson},
    ids::RoundId,
    ports::Usage,
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
            (EntryBody::ToolFinished { outcome, .. }, Some(round)) => round.tool_observations.push(outcome.observation.clone()),
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
        skill_activations: Vec::new(),
        final_answer: None,
        tokens_used: 0,
        usage: Usage::default(),
        latency_ms: 0,
        status: RoundStatus::InProgress,
        stop_reason: None,
    }
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
