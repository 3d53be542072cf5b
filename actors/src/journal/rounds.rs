//! Builds records of rounds from a journal, for exports and people. A running conversation keeps no
//! records.
//!
//! Pure.

use std::collections::HashMap;

use crate::{
    chat::{ContentBlock, Message, Role, Usage},
    ids::{ConversationId, RoundId},
    stream::{RoundStatus, StopReason},
    time::Timestamp,
};

use super::{
    ApplyError, CallState, ConversationRound, Durable, Entry, EntryBody, RoundToolCall,
    ToolExecutionResult, ToolMetrics, durable::status_of, metrics::estimate,
};

/// Builds records of rounds from a journal, one entry at a time.
#[derive(Debug, Clone)]
pub(crate) struct RoundsReader {
    id: ConversationId,
    state: Durable,
    records: Vec<ConversationRound>,
}

impl RoundsReader {
    /// Creates a reader for a journal, before its first entry.
    pub(crate) fn new(id: ConversationId) -> Self {
        Self {
            id,
            state: Durable::default(),
            records: Vec::new(),
        }
    }

    /// Returns the state after the entries so far.
    pub(crate) fn state(&self) -> &Durable {
        &self.state
    }

    /// Applies the next entry.
    ///
    /// # Errors
    /// [`ApplyError`] when the entry cannot follow. Do not use the reader after an error.
    pub(crate) fn take(&mut self, entry: &Entry) -> Result<(), ApplyError> {
        let open = if self.state.round.is_some() {
            self.records.last_mut()
        } else {
            None
        };
        match (&entry.body, open) {
            (
                EntryBody::RoundStarted {
                    round_id,
                    prompt_ids,
                },
                _,
            ) => {
                let prompts: Vec<String> = self
                    .state
                    .inbox
                    .iter()
                    .filter(|prompt| prompt_ids.contains(&prompt.id))
                    .filter_map(|prompt| Some(prompt.message.as_ref()?.text()))
                    .collect();
                self.records.push(begun(
                    &self.id,
                    *round_id,
                    prompts.join("\n"),
                    RoundStatus::InProgress,
                ));
            }
            (EntryBody::ModelCallStarted { .. }, Some(round)) => {
                round.model_calls = round.model_calls.saturating_add(1)
            }
            (
                EntryBody::Assistant {
                    message,
                    usage,
                    failed_usage,
                    ..
                },
                Some(round),
            ) => {
                round.usage = round.usage.plus(usage).plus(failed_usage);
                round.tokens_used = round.usage.input().saturating_add(round.usage.output);
                if let Some(message) = message {
                    note_message(round, message);
                }
            }
            (EntryBody::FellBack { failed_usage, .. }, Some(round)) => {
                round.usage = round.usage.plus(failed_usage);
                round.tokens_used = round.usage.input().saturating_add(round.usage.output);
            }
            (
                EntryBody::ToolFinished {
                    call,
                    name,
                    outcome,
                    ..
                },
                Some(round),
            ) => {
                round
                    .tool_metrics
                    .push(tool_metrics(&self.state, entry.at, *call, name, outcome));
                round.tool_observations.push(outcome.observation.clone());
            }
            (EntryBody::SkillActivated { name, .. }, Some(round)) => {
                round.skill_activations.push(name.to_string())
            }
            (
                EntryBody::RoundFinished {
                    stop_reason,
                    latency_ms,
                    error,
                },
                Some(round),
            ) => {
                round.stop_reason = Some(*stop_reason);
                round.status = status_of(*stop_reason, error.as_ref());
                round.latency_ms = *latency_ms;
            }
            (EntryBody::Rewound { round_id, .. }, _) => {
                let place = self
                    .records
                    .iter()
                    .rposition(|round| round.round_id == *round_id);
                self.records.truncate(place.unwrap_or(self.records.len()));
            }
            (EntryBody::Imported { rounds, .. }, _) => self.records.clone_from(rounds),
            (EntryBody::Reset {}, _) => self.records.clear(),
            _ => {}
        }
        self.state.apply(entry)?;
        if matches!(&entry.body, EntryBody::Imported { rounds, .. } if rounds.is_empty()) {
            self.records = records_of(&self.id, &self.state);
        }
        Ok(())
    }

    /// Returns the rounds that began, oldest first, each with its current place in the history.
    pub(crate) fn records(&self) -> Vec<ConversationRound> {
        placed(&self.state, self.records.clone())
    }

    /// Returns the rounds that began and, as `pending`, those that prompts in the inbox will open,
    /// and the state after all entries.
    pub(crate) fn into_rounds(self) -> (Vec<ConversationRound>, Durable) {
        let Self { id, state, records } = self;
        let mut rounds = placed(&state, records);
        rounds.extend(state.inbox.iter().map(|prompt| {
            let message = prompt.message.as_ref();
            let text = message.map(Message::text).unwrap_or_default();
            begun(&id, prompt.round_id, text, RoundStatus::Pending)
        }));
        (rounds, state)
    }
}

/// Gives each round its place in the history.
fn placed(state: &Durable, mut records: Vec<ConversationRound>) -> Vec<ConversationRound> {
    let marks = state.rounds.as_slice().iter();
    let starts: HashMap<RoundId, u32> = marks.map(|mark| (mark.id, mark.start)).collect();
    for round in &mut records {
        round.start = starts.get(&round.round_id).copied();
    }
    records
}

/// Reads the rounds of a journal, up to the first entry that cannot follow.
pub fn rounds<'a>(
    id: &ConversationId,
    entries: impl IntoIterator<Item = &'a Entry>,
) -> Vec<ConversationRound> {
    let mut reader = RoundsReader::new(id.clone());
    for entry in entries {
        if reader.take(entry).is_err() {
            break;
        }
    }
    reader.into_rounds().0
}

/// Prepares records for another conversation: drops pending rounds and marks open rounds as
/// interrupted. Also returns the ids of the interrupted rounds.
pub fn settled(rounds: Vec<ConversationRound>) -> (Vec<ConversationRound>, Vec<RoundId>) {
    let mut closed = Vec::new();
    let mut settled = Vec::with_capacity(rounds.len());
    for mut round in rounds {
        match round.status {
            RoundStatus::Pending => continue,
            RoundStatus::InProgress => {
                closed.push(round.round_id);
                round.status = status_of(StopReason::Interrupted, None);
                round.stop_reason = Some(StopReason::Interrupted);
            }
            RoundStatus::Completed | RoundStatus::Error => {}
        }
        settled.push(round);
    }
    (settled, closed)
}

/// Derives records from the messages of a history that came without records.
fn records_of(id: &ConversationId, state: &Durable) -> Vec<ConversationRound> {
    let mut records: Vec<ConversationRound> = Vec::new();
    let mut marks = state.rounds.as_slice().iter().peekable();
    for (index, message) in state.history.messages().iter().enumerate() {
        if let Some(mark) = marks.next_if(|mark| mark.start as usize == index) {
            records.push(begun(id, mark.id, message.text(), RoundStatus::Completed));
        } else if let Some(round) = records.last_mut() {
            match message.role() {
                Role::Assistant => note_message(round, message),
                Role::User | Role::System => {
                    let observations =
                        message
                            .blocks()
                            .into_iter()
                            .filter_map(|block| match block {
                                ContentBlock::ToolResult(result) => {
                                    Some(result.content.text().into_owned())
                                }
                                ContentBlock::Text(_)
                                | ContentBlock::Thinking(_)
                                | ContentBlock::ToolUse(_)
                                | ContentBlock::Image(_)
                                | ContentBlock::Document(_)
                                | ContentBlock::Other { .. } => None,
                            });
                    round.tool_observations.extend(observations);
                }
            }
        }
    }
    records
}

fn begun(
    id: &ConversationId,
    round_id: RoundId,
    user_message: String,
    status: RoundStatus,
) -> ConversationRound {
    ConversationRound {
        round_id,
        conversation_id: id.clone(),
        start: None,
        user_message,
        thoughts: Vec::new(),
        tool_calls: Vec::new(),
        tool_observations: Vec::new(),
        tool_metrics: Vec::new(),
        skill_activations: Vec::new(),
        final_answer: None,
        tokens_used: 0,
        usage: Usage::default(),
        model_calls: 0,
        latency_ms: 0,
        status,
        stop_reason: None,
    }
}

fn tool_metrics(
    state: &Durable,
    end_time: Timestamp,
    call: u32,
    name: &str,
    outcome: &ToolExecutionResult,
) -> ToolMetrics {
    let call = state
        .batch()
        .and_then(|batch| batch.calls.get(call as usize));
    let start_time = match call.map(|call| &call.state) {
        Some(CallState::Started { at, .. }) => *at,
        _ => end_time, // Never started: refused, or cancelled before its start.
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
            ContentBlock::Text(_)
            | ContentBlock::ToolResult(_)
            | ContentBlock::Image(_)
            | ContentBlock::Document(_)
            | ContentBlock::Other { .. } => {}
        }
    }
    round.final_answer = message.tool_use_ids().is_empty().then(|| message.text());
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::chat::RawJson;

    /// A record with every field filled.
    pub(in crate::journal) fn full() -> ConversationRound {
        let at = Timestamp(5);
        let mut round = ConversationRound {
            start: Some(0),
            thoughts: vec!["t".into()],
            tool_calls: vec![RoundToolCall {
                tool_call_id: "c".into(),
                tool_name: "n".into(),
                parameters: RawJson::from_text(r#"{"b": 1.0,"a":[]}"#).unwrap(),
            }],
            tool_observations: vec!["o".into()],
            tool_metrics: vec![ToolMetrics {
                tool_name: "n".into(),
                start_time: at,
                end_time: at,
                duration_ms: 1,
                input_tokens: 2,
                output_tokens: 3,
                total_tokens: 5,
                success: true,
                error_code: None,
                retry_count: 0,
                output_level: "standard".into(),
            }],
            final_answer: Some("a".into()),
            tokens_used: 7,
            usage: Usage {
                input_uncached: 1,
                cache_read: 2,
                cache_write: 0,
                output: 4,
            },
            model_calls: 2,
            latency_ms: 9,
            stop_reason: Some(StopReason::EndTurn),
            ..begun(
                &ConversationId::new("c").unwrap(),
                RoundId::from_random([9; 16]),
                "q".into(),
                RoundStatus::Completed,
            )
        };
        round.skill_activations.push("s".to_owned());
        round
    }
}
