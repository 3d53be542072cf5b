//! The settings of a load run. Plain data.

use std::time::Duration;

use serde::Serialize;

/// The kind of a load run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Shape {
    /// Many short conversations, turn after turn
    Turns,
    /// One task for many subagents: its cost beside the time of the model
    Fanout,
    /// Few conversations with very many turns each: does a turn get more expensive?
    Long,
    /// Very many idle conversations: how much memory does each keep?
    Idle,
    /// One tenant at a multiple of the others: does it slow the others down?
    Noisy,
}

impl Shape {
    /// The name on the command line.
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

/// A load run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub(crate) shape: Shape,
    pub(crate) tenants: usize,
    /// Concurrent conversations, of all tenants together.
    pub(crate) conversations: usize,
    /// Turns of a conversation. After them another conversation replaces it while time is left.
    pub(crate) turns: usize,
    /// Tasks of a fan-out.
    pub(crate) subagents: usize,
    /// Whether the subagents of a fan-out keep no journal.
    pub(crate) ephemeral: bool,
    pub(crate) tools_per_turn: u32,
    /// Whether the model is the scripted one, whose answer time is known.
    pub(crate) scripted: bool,
    pub(crate) model_latency: Duration,
    pub(crate) chunk_delay: Duration,
    pub(crate) chunks: usize,
    /// Concurrent calls that the model's gateway allows.
    pub(crate) model_concurrency: usize,
    /// Share of the model calls and of the tool calls that fail, 0 to 1.
    pub(crate) fault_rate: f64,
    /// Share of the turns that are interrupted at their first text, 0 to 1.
    pub(crate) cancel_rate: f64,
    /// How long turns are offered after the warm-up; `None`: until each conversation had its turns.
    pub(crate) duration: Option<Duration>,
    /// Turns per second, offered whether or not earlier ones have ended; `None`: each conversation
    /// waits for its answer.
    pub(crate) rate: Option<f64>,
    /// The flooder's rate in `noisy`, as a multiple of another tenant's.
    pub(crate) flood: f64,
    pub(crate) warm_up: Duration,
    /// How long answers to offered turns are awaited at the end.
    pub(crate) drain: Duration,
    pub(crate) seed: u64,
    /// Another process whose CPU time is reported, and its memory if it holds the conversations.
    pub(crate) server_pid: Option<u32>,
    /// Part of the conversation ids that separates this run from others.
    pub(crate) run: String,
}

impl Plan {
    /// Model calls in one turn.
    pub(crate) fn calls_per_turn(&self) -> u32 {
        self.tools_per_turn + 1
    }

    /// The time that the scripted model takes for one turn.
    pub(crate) fn model_time(&self) -> Duration {
        let call = self.model_latency
            + self.chunk_delay * u32::try_from(self.chunks.saturating_sub(1)).unwrap_or(u32::MAX);
        call * self.calls_per_turn()
    }

    /// The most turns per second that the model can serve, where its latency limits it.
    pub(crate) fn capacity(&self) -> Option<f64> {
        let turn = self.model_time().as_secs_f64();
        (turn > 0.0).then(|| self.model_concurrency as f64 / turn)
    }
}
