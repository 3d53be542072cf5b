//! Spans of a turn and of its model calls, and the figures that each call leaves (REQUIREMENTS X-18..X-20). Names here are our own and
//! short; whoever exports them gives them the names of a convention. A turn is sampled once: without its span, none begins below it.
//! Figures are events and know no sampling. While no subscriber wants them, both cost a look at a static.

use std::{sync::OnceLock, time::Duration};

use tokio::time::Instant;
use tracing::Span;

use crate::{
    chat::{ModelRequest, Usage},
    conversation::round::ModelOutcome,
    ids::{RoundId, Scope},
    metrics_collector::{FIGURES, Latencies, SPANS},
    policy::TraceSampling,
    ports::Entropy,
    tool_executor::is_word,
};

/// Begins the span of a turn, if it is sampled. `epoch` tells the conversation's lives apart: one higher after each sleep or restart.
pub(in crate::conversation) fn round(
    scope: &Scope,
    round_id: RoundId,
    epoch: u64,
    inbox: usize,
    sampling: TraceSampling,
    entropy: &dyn Entropy,
) -> Span {
    if !tracing::enabled!(target: SPANS, tracing::Level::INFO) || !sampling.samples(|| entropy.fraction()) {
        return Span::none();
    }
    tracing::info_span!(
        target: SPANS,
        parent: None,
        "turn",
        conversation = %scope.conversation,
        tenant = %scope.tenant,
        round = %round_id,
        epoch,
        inbox,
        queue_wait_ms = tracing::field::Empty,
        stop_reason = tracing::field::Empty,
        latency_ms = tracing::field::Empty,
        error = tracing::field::Empty,
    )
}

/// Writes the end of a turn into its span and its figures.
pub(in crate::conversation) fn turn_ended(
    span: Option<&Span>,
    latencies: &Latencies,
    latency_ms: u64,
    stop_reason: &'static str,
    error: Option<&str>,
) {
    let latency = Duration::from_millis(latency_ms);
    latencies.round.record(latency);
    if let Some(span) = span {
        span.record("latency_ms", latency_ms);
        span.record("stop_reason", stop_reason);
        if let Some(error) = error {
            span.record("error", error);
        }
    }
    tracing::debug!(target: FIGURES, figure = "turn", seconds = latency.as_secs_f64(), stop_reason, error = error.unwrap_or(""));
}

/// What is measured of one model call.
pub(in crate::conversation) struct CallTrace {
    pub(in crate::conversation) span: Span,
    /// Of a turn's first call: that wait is the turn's own.
    turn: Option<Span>,
    began: Instant,
    queue_wait: OnceLock<Duration>,
    first_chunk: OnceLock<Duration>,
}

impl CallTrace {
    /// Begins the span of a model call below its turn's; `first` is the turn's first.
    pub(in crate::conversation) fn begin(turn: &Span, first: bool, scope: &Scope, provider: &str, request: &ModelRequest) -> Self {
        let span = if turn.is_none() {
            Span::none()
        } else {
            tracing::info_span!(
                target: SPANS,
                parent: turn,
                "model_call",
                conversation = %scope.conversation,
                tenant = %scope.tenant,
                provider,
                model = %request.model,
                max_tokens = request.max_tokens,
                queue_wait_ms = tracing::field::Empty,
                first_chunk_ms = tracing::field::Empty,
                input_tokens = tracing::field::Empty,
                cache_read_tokens = tracing::field::Empty,
                cache_write_tokens = tracing::field::Empty,
                output_tokens = tracing::field::Empty,
                finish_reason = tracing::field::Empty,
                error = tracing::field::Empty,
            )
        };
        Self { span, turn: first.then(|| turn.clone()), began: Instant::now(), queue_wait: OnceLock::new(), first_chunk: OnceLock::new() }
    }

    /// The turn may run.
    pub(in crate::conversation) fn permitted(&self, latencies: &Latencies) {
        let waited = self.began.elapsed();
        if self.queue_wait.set(waited).is_ok() {
            latencies.queue_wait.record(waited);
            self.span.record("queue_wait_ms", ms(waited));
            if let Some(turn) = &self.turn {
                turn.record("queue_wait_ms", ms(waited));
            }
        }
    }

    /// The first content is there.
    pub(in crate::conversation) fn first_chunk(&self, latencies: &Latencies) {
        let waited = self.began.elapsed();
        if self.first_chunk.set(waited).is_ok() {
            latencies.first_chunk.record(waited);
            self.span.record("first_chunk_ms", ms(waited));
        }
    }

    /// Writes the end of the call into its span and its figures.
    pub(in crate::conversation) fn ended(&self, latencies: &Latencies, provider: &str, model: &str, outcome: &ModelOutcome) {
        let took = self.began.elapsed();
        latencies.model_call.record(took);
        let (finish, usage, error) = match outcome {
            ModelOutcome::Completed { completion, .. } => (completion.raw_stop.as_deref(), completion.usage, None),
            ModelOutcome::Cancelled { .. } => (None, None, Some("cancelled")),
            ModelOutcome::Failed { error, .. } => (None, None, Some(error.code())),
        };
        let usage = usage.unwrap_or_default();
        self.record(finish, &usage, error);
        tracing::debug!(
            target: FIGURES,
            figure = "model_call",
            provider,
            model,
            seconds = took.as_secs_f64(),
            first_chunk_seconds = self.first_chunk.get().map(Duration::as_secs_f64),
            input_tokens = usage.input(),
            cache_read_tokens = usage.cache_read,
            cache_write_tokens = usage.cache_write,
            output_tokens = usage.output,
            error = error.unwrap_or(""),
        );
    }

    fn record(&self, finish: Option<&str>, usage: &Usage, error: Option<&str>) {
        if self.span.is_none() {
            return;
        }
        let fields = [
            ("input_tokens", usage.input()),
            ("cache_read_tokens", usage.cache_read),
            ("cache_write_tokens", usage.cache_write),
            ("output_tokens", usage.output),
        ];
        for (name, tokens) in fields {
            self.span.record(name, tokens);
        }
        if let Some(finish) = finish {
            // In the provider's words, which may be any text.
            self.span.record("finish_reason", if is_word(finish) { finish } else { "other" });
        }
        if let Some(error) = error {
            self.span.record("error", error);
        }
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
