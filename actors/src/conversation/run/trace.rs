//! Spans of rounds and model calls, and the figures of each call. Exporters map our short names to
//! their convention. Sampling is decided once for each round: without the round's span there are no
//! spans below it. Figures are events and are never sampled. Without a subscriber both cost one
//! check of a static.

use std::{sync::OnceLock, time::Duration};

use tokio::time::Instant;
use tracing::Span;

use crate::{
    chat::{ModelRequest, Usage},
    conversation::round::ModelOutcome,
    ids::{RoundId, Scope},
    metrics_collector::{CallTimes, FIGURES, SPANS},
    policy::TraceSampling,
    ports::Entropy,
    tool_executor::is_word,
};

/// Starts the span of a round if it is sampled. `epoch` distinguishes the activations of a
/// conversation and rises with each.
pub(in crate::conversation) fn round(
    scope: &Scope,
    round_id: RoundId,
    epoch: u64,
    inbox: usize,
    sampling: TraceSampling,
    entropy: &dyn Entropy,
) -> Span {
    if !tracing::enabled!(target: SPANS, tracing::Level::INFO)
        || !sampling.samples(|| entropy.fraction())
    {
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

/// Records the end of a round in its span and its figures.
pub(in crate::conversation) fn turn_ended(
    span: Option<&Span>,
    latency_ms: u64,
    stop_reason: &'static str,
    error: Option<&str>,
) {
    let latency = Duration::from_millis(latency_ms);
    if let Some(span) = span {
        span.record("latency_ms", latency_ms);
        span.record("stop_reason", stop_reason);
        if let Some(error) = error {
            span.record("error", error);
        }
    }
    tracing::debug!(target: FIGURES, figure = "turn", seconds = latency.as_secs_f64(), stop_reason, error = error.unwrap_or(""));
}

/// The measurements of one model call.
pub(in crate::conversation) struct CallTrace {
    pub(in crate::conversation) span: Span,
    /// The round's span if this is its first call: its wait for a permit is also recorded there.
    turn: Option<Span>,
    began: Instant,
    queue_wait: OnceLock<Duration>,
    first_chunk: OnceLock<Duration>,
}

impl CallTrace {
    /// Starts the span of a model call below its round's span. `first` marks the round's first
    /// call.
    pub(in crate::conversation) fn begin(
        turn: &Span,
        first: bool,
        scope: &Scope,
        provider: &str,
        request: &ModelRequest,
    ) -> Self {
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
        Self {
            span,
            turn: first.then(|| turn.clone()),
            began: Instant::now(),
            queue_wait: OnceLock::new(),
            first_chunk: OnceLock::new(),
        }
    }

    /// Records that the round has its permit.
    pub(in crate::conversation) fn permitted(&self) {
        let waited = self.began.elapsed();
        if self.queue_wait.set(waited).is_ok() {
            self.span.record("queue_wait_ms", ms(waited));
            if let Some(turn) = &self.turn {
                turn.record("queue_wait_ms", ms(waited));
            }
        }
    }

    /// Records the first content.
    pub(in crate::conversation) fn first_chunk(&self) {
        let waited = self.began.elapsed();
        if self.first_chunk.set(waited).is_ok() {
            self.span.record("first_chunk_ms", ms(waited));
        }
    }

    /// Records the end of the call in its span and its figure event. `failed` is the usage of
    /// attempts that failed. Returns how long its parts took.
    pub(in crate::conversation) fn ended(
        &self,
        provider: &str,
        model: &str,
        outcome: &ModelOutcome,
        failed: &Usage,
    ) -> CallTimes {
        let took = self.began.elapsed();
        let (finish, usage, error) = match outcome {
            ModelOutcome::Completed { completion, .. } => {
                (completion.raw_stop.as_deref(), completion.usage, None)
            }
            ModelOutcome::Cancelled { .. } => (None, None, Some("cancelled")),
            ModelOutcome::Failed { error, .. } | ModelOutcome::FellBack { error, .. } => {
                (None, None, Some(error.code()))
            }
        };
        let usage = usage.unwrap_or_default().plus(failed);
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
        CallTimes {
            took,
            queue_wait: self.queue_wait.get().copied(),
            first_chunk: self.first_chunk.get().copied(),
        }
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
            // The provider's own word, which may be any text.
            self.span.record(
                "finish_reason",
                if is_word(finish) { finish } else { "other" },
            );
        }
        if let Some(error) = error {
            self.span.record("error", error);
        }
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
