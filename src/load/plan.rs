//! What is offered. Plain data.

use std::time::Duration;

use serde::Serialize;

/// What a run is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Shape {
    /// Many short conversations, turn after turn
    Turns,
    /// One task for many subagents: what does it cost beside the time of the model?
    Fanout,
    /// Few conversations with very many turns each: does a turn grow dearer?
    Long,
    /// Very many conversations that do nothing: what does each keep resident?
    Idle,
    /// One tenant at a multiple of the others: do they feel it?
    Noisy,
}

impl Shape {
    /// The word of the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Turns => "turns",
            Self::Fanout => "fanout",
            Self::Long => "long",
            Self::Idle => "idle",
            Self::Noisy => "noisy",
        }
    }
}

/// A run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub(crate) shape: Shape,
    pub(crate) tenants: usize,
    /// Conversations at once, of all tenants together.
    pub(crate) conversations: usize,
    /// Turns of a conversation; then another takes its place while time is left.
    pub(crate) turns: usize,
    /// Tasks of a fan-out, and whether they keep no journal.
    pub(crate) subagents: usize,
    pub(crate) ephemeral: bool,
    pub(crate) tools_per_turn: u32,
    /// Whether the model is the scripted one, whose time is known.
    pub(crate) scripted: bool,
    pub(crate) model_latency: Duration,
    pub(crate) chunk_delay: Duration,
    pub(crate) chunks: usize,
    /// Calls that the model's gateway lets run at once.
    pub(crate) model_concurrency: usize,
    /// Part of the model calls, and of the tool calls, that go wrong.
    pub(crate) fault_rate: f64,
    /// Part of the turns that are interrupted at their first text.
    pub(crate) cancel_rate: f64,
    /// How long turns are offered after the warm-up; without it until each conversation had its turns.
    pub(crate) duration: Option<Duration>,
    /// Turns a second that are offered whether or not earlier ones are over; without it each conversation waits for its answer.
    pub(crate) rate: Option<f64>,
    /// What the flooder of `noisy` offers, as a multiple of another tenant.
    pub(crate) flood: f64,
    pub(crate) warm_up: Duration,
    /// How long turns that were offered are waited for.
    pub(crate) drain: Duration,
    pub(crate) seed: u64,
    /// A process beside this one whose CPU is told, and its memory if it holds the conversations.
    pub(crate) server_pid: Option<u32>,
    /// Distinguishes the conversations of this run from those of another.
    pub(crate) run: String,
}

impl Plan {
    /// Model calls of a turn.
    pub(crate) fn calls_per_turn(&self) -> u32 {
        self.tools_per_turn + 1
    }

    /// What the scripted model takes for a turn.
    pub(crate) fn model_time(&self) -> Duration {
        let call = self.model_latency + self.chunk_delay * u32::try_from(self.chunks.saturating_sub(1)).unwrap_or(u32::MAX);
        call * self.calls_per_turn()
    }

    /// Turns a second that the model could serve at most, where its latency bounds it.
    pub(crate) fn capacity(&self) -> Option<f64> {
        let turn = self.model_time().as_secs_f64();
        (turn > 0.0).then(|| self.model_concurrency as f64 / turn)
    }
}
