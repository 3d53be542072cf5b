//! A conversation as `sessions show` and `sessions export` know it, from the store or from a running
//! host.

use callboard_actors::{
    chat::Message,
    ids::{ConversationId, Epoch, Seq},
    journal::{CallState, ConversationMetrics, ConversationRound, UsageTotals, thousands},
    stream::Open,
};

use super::journal::Readable;
use crate::cli::{
    rounds::describe,
    terminal::{Paint, err_line, out, sanitize},
    view::seconds,
};

/// A conversation as it is shown.
pub(super) struct Shown {
    pub(super) id: ConversationId,
    pub(super) open: Open,
    pub(super) entries: Seq,
    pub(super) epoch: Epoch,
    pub(super) messages: Vec<Message>,
    pub(super) rounds: Vec<ConversationRound>,
    pub(super) usage: UsageTotals,
    pub(super) waiting_prompts: usize,
    /// Calls that wait for approval.
    pub(super) asked: Vec<Asked>,
    pub(super) metrics: ConversationMetrics,
    pub(super) tools: serde_json::Value,
    /// Whether a running host was asked: an open round is then not interrupted.
    pub(super) is_served: bool,
}

/// A tool call that waits for approval.
pub(super) struct Asked {
    pub(super) name: String,
    pub(super) input: String,
}

impl Shown {
    pub(super) fn stored(readable: Readable) -> Self {
        let open = readable.open();
        let rounds = readable.rounds();
        let Readable { id, state, .. } = readable;
        let calls = state.batch().map(|batch| batch.calls.as_slice());
        let asked = calls
            .unwrap_or_default()
            .iter()
            .filter(|call| matches!(call.state, CallState::Asked { .. }))
            .map(|call| Asked {
                name: call.tool_use.name.to_string(),
                input: call.tool_use.input.as_str().to_owned(),
            })
            .collect();
        Self {
            id,
            open,
            entries: state.head,
            epoch: state.epoch,
            messages: state.history.messages().iter().cloned().collect(),
            rounds,
            usage: UsageTotals::from_conversation(&state.metrics),
            waiting_prompts: state.inbox.len(),
            asked,
            metrics: state.metrics,
            tools: serde_json::to_value(&state.tools).unwrap_or_default(),
            is_served: false,
        }
    }

    pub(super) fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "conversation_id": self.id,
            "open": self.open,
            "entries": self.entries,
            "epoch": self.epoch,
            "messages": self.messages,
            "rounds": self.rounds,
            "usage": self.usage,
            "waiting_prompts": self.waiting_prompts,
            "metrics": self.metrics,
            "tools": self.tools,
        })
    }

    /// Prints it for people.
    pub(super) fn print(&self) {
        out(&describe(&self.rounds, &self.messages));
        let paint = Paint::stderr();
        for call in &self.asked {
            err_line(&format!(
                "waiting for approval: {} {}",
                sanitize(&call.name),
                sanitize(&call.input)
            ));
        }
        match (self.open, self.is_served) {
            (Open::Running, true) => err_line("a round of this session is running"),
            (Open::Running, false) => err_line(&format!(
                "a round of this session was interrupted (hint: `callboard run --session {} --resume`)",
                self.id
            )),
            (Open::None | Open::Parked, _) => {}
        }
        let figures = &self.metrics;
        err_line(&paint.dim(&format!(
            "messages {}, rounds {}, API calls {}, tool calls {}, tokens {} in, {} out, over {}",
            thousands(figures.messages_count),
            thousands(figures.rounds),
            thousands(figures.api_calls),
            thousands(figures.tool_calls),
            thousands(figures.total_input_tokens),
            thousands(figures.total_output_tokens),
            seconds(figures.total_duration_ms()),
        )));
    }
}
