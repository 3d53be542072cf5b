//! The span of one attempt of a tool call, and the figures that it leaves. Spans leave the host, so they hold
//! codes; the words of a failure, which may quote arguments or a server, are logged here and nowhere else.

use tokio::time::Instant;
use tracing::Span;

use super::{Run, RunResult};
use crate::{
    metrics_collector::{FIGURES, SPANS},
    tool::ToolErrorType,
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
            span.record("tool.error", code(result));
            span.record("error", kind.as_str());
        }
    }
    if let Some(kind) = kind {
        tracing::debug!(tool = name, error = kind.as_str(), "the tool call failed: {}", words(result));
    }
    tracing::debug!(
        target: FIGURES,
        figure = "tool_call",
        tool = name,
        seconds = took.as_secs_f64(),
        error = kind.map_or("", ToolErrorType::as_str),
    );
}

/// The failure as a code. Authors of tools choose their own, so one that is no plain word becomes its class.
fn code(result: &RunResult) -> &str {
    match result {
        RunResult::Output(_) | RunResult::Activation(_) => "",
        RunResult::Error(error) if is_word(&error.code) => &error.code,
        RunResult::Error(error) => error.kind.as_str(),
        RunResult::TimedOut { .. } => "TIMEOUT",
        RunResult::Panicked { .. } => "PANIC",
        RunResult::Cancelled | RunResult::NotBegun => "INTERRUPTED",
    }
}

/// Whether a text of others is a word that may leave the host: no sentence, no path, no address.
pub(crate) fn is_word(text: &str) -> bool {
    (1..=48).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
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
