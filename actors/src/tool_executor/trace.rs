//! The span of one attempt of a tool call, and its figures. Spans leave the host, so they contain
//! codes only. The text of a failure, which may quote arguments or a server's answer, is logged
//! here and nowhere else.

use tokio::time::Instant;
use tracing::Span;

use super::{Run, RunResult};
use crate::{
    metrics_collector::{FIGURES, SPANS},
    tool::ToolErrorType,
};

/// Starts the span `tool.{name}` below the round's span; a disabled span if the round is not
/// sampled. A call outside of a round starts a new trace, unless its environment has none.
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

/// Records the end of the attempt. Success is read from the result, not from the fact that the tool
/// returned.
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
        tracing::debug!(
            tool = name,
            error = kind.as_str(),
            "the tool call failed: {}",
            words(result)
        );
    }
    tracing::debug!(
        target: FIGURES,
        figure = "tool_call",
        tool = name,
        seconds = took.as_secs_f64(),
        error = kind.map_or("", ToolErrorType::as_str),
    );
}

/// The failure as a code. Authors of tools choose their own codes, so one that is not a plain word
/// is replaced by the error class.
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

/// Whether a foreign text is a plain word that may leave the host: not a sentence, a path or an
/// address.
pub(crate) fn is_word(text: &str) -> bool {
    (1..=48).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
}

/// The failure as text, for the log.
fn words(result: &RunResult) -> String {
    match result {
        RunResult::Output(_) | RunResult::Activation(_) => String::new(),
        RunResult::Error(error) => error.message.chars().take(200).collect(),
        RunResult::TimedOut { after, .. } => format!("no end after {} ms", after.as_millis()),
        RunResult::Panicked { message } => format!("panicked: {message}"),
        RunResult::Cancelled => "cancelled".into(),
        RunResult::NotBegun => "cancelled before it began".into(),
    }
}
