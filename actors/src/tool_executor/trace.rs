//! The span of one attempt of a tool call (REQUIREMENTS X-18, BUG-41), and the figures that it leaves.

use tokio::time::Instant;
use tracing::Span;

use super::{Run, RunResult};
use crate::{
    metrics_collector::{FIGURES, SPANS},
    ports::ToolErrorType,
};

/// Begins the span `tool.{name}` below the turn's; none where the turn is not sampled. A call without a turn begins a trace.
pub(super) fn begin(run: &Run) -> Span {
    if run.turn.as_ref().is_some_and(Span::is_none) {
        return Span::none();
    }
    let name = run.tool.spec().name();
    tracing::info_span!(
        target: SPANS,
        parent: run.turn.as_ref().and_then(Span::id),
        "tool",
        otel.name = %format_args!("tool.{name}"),
        tool.name = name,
        tool.call_id = %run.request.tool_call_id,
        conversation = %run.key.scope.conversation,
        tenant = %run.key.scope.tenant,
        attempt = run.attempt,
        tool.success = tracing::field::Empty,
        tool.duration_ms = tracing::field::Empty,
        tool.error = tracing::field::Empty,
        error = tracing::field::Empty,
    )
}

/// Writes the end: success from the result itself, never from the mere fact that it returned.
pub(super) fn ended(span: &Span, name: &str, began: Instant, result: &RunResult) {
    let took = began.elapsed();
    let kind = result.error_type();
    if !span.is_none() {
        span.record("tool.success", kind.is_none());
        span.record("tool.duration_ms", took.as_secs_f64() * 1000.0);
        if let Some(kind) = kind {
            span.record("tool.error", words(result).as_str());
            span.record("error", kind.as_str());
        }
    }
    tracing::debug!(
        target: FIGURES,
        figure = "tool_call",
        tool = name,
        seconds = took.as_secs_f64(),
        error = kind.map_or("", ToolErrorType::as_str),
    );
}

/// The failure in words.
fn words(result: &RunResult) -> String {
    match result {
        RunResult::Output(_) | RunResult::Activation(_) => String::new(),
        RunResult::Error(error) => error.message.chars().take(200).collect(),
        RunResult::TimedOut { after } => format!("no end after {} ms", after.as_millis()),
        RunResult::Panicked { message } => format!("panicked: {message}"),
        RunResult::Cancelled => "cancelled".into(),
        RunResult::NotBegun => "cancelled before it began".into(),
    }
}
