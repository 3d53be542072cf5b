//! Runs one call outside of a conversation, with the same attempts, retries and result as inside
//! one. Nothing is written to a journal.

use std::sync::Arc;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use super::{
    RunResult, ToolEnvironment, ToolInvocationRequest,
    message::Run,
    outcome::outcome,
    run::{ran_ms, run},
    trace,
};
use crate::{
    ids::{CallKey, Epoch, WorkId},
    journal::ToolExecutionResult,
    ports::{Progress, Tool},
};

/// A call that belongs to no batch. The caller must check it first
/// (the conversation's call guard); nothing is checked here.
pub struct LoneCall {
    /// The stable key of the call.
    pub key: CallKey,
    /// The tool to run.
    pub tool: Arc<dyn Tool>,
    /// The arguments and options of the call.
    pub request: ToolInvocationRequest,
}

/// Runs a call to its single result. Applies the time limit, catches panics, and retries as the
/// effect class and the retry policy allow.
///
/// # Cancel safety
/// Dropping the future drops the tool's future. Cancel the token instead, so that the tool can end
/// its processes.
pub async fn call_once(
    call: LoneCall,
    environment: ToolEnvironment,
    cancel: CancellationToken,
    progress: Progress,
) -> ToolExecutionResult {
    let spec = call.tool.spec().clone();
    let work = WorkId {
        epoch: Epoch::default(),
        seq: call.key.seq,
        index: call.key.index,
    };
    let LoneCall { key, tool, request } = call;
    let level = request.effective_level(spec.level, environment.resources.output_level, 0.0);
    let mut attempt = Arc::new(Run {
        work,
        key,
        tool,
        request,
        level,
        attempt: 0,
        ran_ms: 0,
        waited_ms: Arc::default(),
        turn: (!environment.traces_alone).then(Span::none),
        siblings: None,
    });
    let mut last_error = None;
    loop {
        let span = trace::begin(&attempt);
        let began = Instant::now();
        let result = run(
            attempt.clone(),
            environment.clone(),
            cancel.clone(),
            progress.clone(),
        )
        .instrument(span.clone())
        .await;
        trace::ended(&span, spec.name(), began, &result);
        let duration_ms = ran_ms(attempt.ran_ms, began, &attempt.waited_ms);
        if let Some(again) = attempt.again(&result) {
            tokio::select! {
                biased;
                () = cancel.cancelled() => {}
                () = sleep(again.delay) => {
                    last_error = Some(outcome(result, spec.effect, &attempt.request.tool_call_id).words());
                    attempt = Arc::new(attempt.next(duration_ms));
                    continue;
                }
            }
        }
        let result = if cancel.is_cancelled() && result.error_type().is_some() {
            RunResult::Cancelled
        } else {
            result
        };
        let outcome = outcome(result, spec.effect, &attempt.request.tool_call_id);
        return ToolExecutionResult {
            duration_ms,
            retry_count: attempt.attempt,
            last_error,
            ..outcome
        };
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU32, Ordering},
        time::Duration,
    };

    use super::*;
    use crate::{
        chat::RawJson,
        ids::{ConversationId, Scope, Seq, TenantId},
        ports::{BoxFuture, ToolContext, ToolOutput, ToolSpec},
        tool::{EffectClass, ToolError, ToolErrorType},
    };

    struct Flaky {
        spec: ToolSpec,
        starts: AtomicU32,
        fails: u32,
    }

    impl Tool for Flaky {
        fn spec(&self) -> &ToolSpec {
            &self.spec
        }

        fn call(
            &self,
            _: RawJson,
            context: ToolContext,
        ) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
            Box::pin(async move {
                assert_eq!(context.attempt, self.starts.fetch_add(1, Ordering::Relaxed));
                sleep(Duration::from_millis(10)).await;
                match context.attempt {
                    n if n < self.fails => Err(ToolError::new(
                        ToolErrorType::ResourceError,
                        "busy ".repeat(1000),
                    )),
                    _ => Ok("done".into()),
                }
            })
        }
    }

    async fn outcome_of(effect: EffectClass, fails: u32) -> (ToolExecutionResult, u32) {
        let spec = ToolSpec::new("flaky", "fails at first", RawJson::empty_object()).effect(effect);
        let tool = Arc::new(Flaky {
            spec,
            starts: AtomicU32::new(0),
            fails,
        });
        let scope = Scope::new(
            TenantId::new("t").unwrap(),
            ConversationId::new("c").unwrap(),
        );
        let call = LoneCall {
            key: CallKey {
                scope,
                seq: Seq(0),
                index: 0,
            },
            tool: tool.clone(),
            request: ToolInvocationRequest::from_spec(
                tool.spec(),
                "call_0",
                RawJson::empty_object(),
            ),
        };
        let environment = ToolEnvironment::alone(call.key.scope.clone());
        let outcome = call_once(
            call,
            environment,
            CancellationToken::new(),
            Progress::silent(),
        )
        .await;
        (outcome, tool.starts.load(Ordering::Relaxed))
    }

    #[tokio::test(start_paused = true)]
    async fn a_pure_call_is_tried_again_after_its_delays() {
        let began = Instant::now();

        let (outcome, starts) = outcome_of(EffectClass::Pure, 2).await;

        assert_eq!(
            (outcome.observation.as_str(), outcome.retry_count, starts),
            ("done", 2, 3)
        );
        assert_eq!(
            (began.elapsed(), outcome.duration_ms),
            (Duration::from_millis(2530), 30),
            "the pauses between the attempts are no execution"
        );
        assert_eq!(outcome.last_error, Some("busy ".repeat(100)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_once_call_is_never_started_again() {
        let (outcome, starts) = outcome_of(EffectClass::Once, 1).await;

        assert_eq!(
            (outcome.error_code.as_deref(), outcome.retry_count, starts),
            (Some("RESOURCE_LIMIT"), 0, 1)
        );
    }
}
