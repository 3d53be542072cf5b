//! Runs one attempt: cache, shared run, circuit breaker, file lock, time limit, cancellation,
//! panic, observation. Every path returns exactly one [`RunResult`].

use crate::{
    ids::Scope,
    limits::CANCEL_GRACE,
    metrics_collector::{Figure, MetricsCollectorRef},
    ports::{
        ArtifactStore, Artifacts, Concurrency, Extensions, LockProvider, Progress, ToolContext,
        ToolOutput,
    },
    tool::{EffectClass, OutputLevel, ToolError, ToolErrorType},
    tool_executor::outcome::{Ended, PARTIAL_BYTES_MAX},
};
use std::{
    any::Any,
    panic::AssertUnwindSafe,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use serde_json::Value;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    Permissions, RunResult, TenantTools, caller_id, message::Run, observation::observe,
    plan::one_spelling,
};

/// Masks secrets in a text; returns the text that may be read and stored.
pub type Mask = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// What the host provides to its tools.
#[derive(Clone)]
pub struct ToolResources {
    /// The folder in which the conversation's tools work; `None` without one.
    pub workspace: Option<Arc<PathBuf>>,
    /// Values that the embedding application passes to its tools.
    pub extensions: Extensions,
    /// Store for results that are too large to show; `None` without one.
    pub artifacts: Option<Arc<dyn ArtifactStore>>,
    /// What the calls are allowed. Results are shared between equal permissions only.
    pub permissions: Permissions,
    /// The output level where neither the call nor the tool sets one.
    pub output_level: OutputLevel,
    /// Locks of files that other hosts share; `None` keeps them in this process.
    pub locks: Option<Arc<dyn LockProvider>>,
    /// Masks secrets in results, errors, panic messages and progress; `None` masks nothing.
    pub mask: Option<Mask>,
}

/// The environment of a conversation's tool calls.
#[derive(Clone)]
pub struct ToolEnvironment {
    /// What the host provides.
    pub resources: ToolResources,
    /// What the tenant's calls share.
    pub tools: Arc<TenantTools>,
    /// The root conversation of the family. It owns artifacts, and results are shared within it.
    pub owner: Scope,
    pub(crate) collector: MetricsCollectorRef,
    pub(super) caller: Arc<str>,
    /// Whether calls outside of a round have spans.
    pub(super) traces_alone: bool,
}

impl ToolEnvironment {
    /// An environment for the calls of one family of conversations.
    pub(crate) fn new(
        resources: ToolResources,
        tools: Arc<TenantTools>,
        owner: Scope,
        collector: MetricsCollectorRef,
    ) -> Self {
        let caller = caller_id(
            &owner,
            resources.workspace.as_ref().map(|path| path.as_path()),
            &resources.permissions.names(),
        )
        .into();
        Self {
            resources,
            tools,
            owner,
            collector,
            caller,
            traces_alone: true,
        }
    }

    /// Reports what happened to a call.
    fn count(&self, figure: Figure) {
        self.collector.count(Some(&self.owner.tenant), figure);
    }

    /// Sets whether calls outside of a round have spans. Default: true. Inside a round, the round
    /// decides.
    pub(crate) fn traces_alone(mut self, traces: bool) -> Self {
        self.traces_alone = traces;
        self
    }

    /// An environment that shares nothing and provides nothing.
    pub fn alone(owner: Scope) -> Self {
        let resources = ToolResources {
            workspace: None,
            extensions: Extensions::default(),
            artifacts: None,
            permissions: Permissions::default(),
            output_level: OutputLevel::default(),
            locks: None,
            mask: None,
        };
        Self::new(
            resources,
            Arc::default(),
            owner,
            MetricsCollectorRef::default(),
        )
    }
}

/// Depth to which data is masked; deeper values become null.
const JSON_DEPTH_MAX: usize = 64;

/// Runs an attempt to its end. `cancel` is the token of the round.
pub(super) async fn run(
    run: Arc<Run>,
    environment: ToolEnvironment,
    cancel: CancellationToken,
    progress: Progress,
) -> RunResult {
    if cancel.is_cancelled() {
        return RunResult::NotBegun; // The round was cancelled while the call waited for its journal entry.
    }
    let artifacts = environment
        .resources
        .artifacts
        .clone()
        .map(|store| Artifacts {
            store,
            owner: environment.owner.clone(),
        });
    let mask = environment.resources.mask.clone();
    let progress = match &mask {
        None => progress,
        Some(mask) => {
            let mask = mask.clone();
            progress.map(move |line| mask(line))
        }
    };
    let ended = answer(&run, environment, &cancel, progress).await;
    let ended = match &mask {
        None => ended,
        Some(mask) => masked(ended, &**mask),
    };
    match ended {
        Ok(output) => match Arc::unwrap_or_clone(output) {
            ToolOutput::Activation(result) => RunResult::Activation(result),
            output => RunResult::Output(
                observe(
                    output,
                    run.level,
                    artifacts.as_ref(),
                    &run.request.tool_call_id,
                )
                .await,
            ),
        },
        Err(result) => result,
    }
}

/// Masks secrets in the end of a run.
fn masked(ended: Ended, mask: &dyn Fn(&str) -> String) -> Ended {
    match ended {
        Ok(output) => Ok(match &*output {
            ToolOutput::Text(text) => Arc::new(ToolOutput::Text(mask(text))),
            ToolOutput::Data(data) => Arc::new(ToolOutput::Data(masked_data(data, mask, 0))),
            ToolOutput::Shown { text, attachments } => Arc::new(ToolOutput::Shown {
                text: mask(text),
                attachments: attachments.clone(),
            }),
            ToolOutput::Activation(_) => output,
        }),
        Err(RunResult::Error(error)) => Err(RunResult::Error(ToolError {
            message: mask(&error.message),
            ..error
        })),
        Err(RunResult::Panicked { message }) => Err(RunResult::Panicked {
            message: mask(&message),
        }),
        Err(RunResult::TimedOut { after, partial }) => Err(RunResult::TimedOut {
            after,
            partial: partial.map(|text| mask(&text)),
        }),
        Err(other) => Err(other),
    }
}

/// Masks secrets in data, including field names. Values below 64 levels are replaced by null.
fn masked_data(data: &Value, mask: &dyn Fn(&str) -> String, depth: usize) -> Value {
    match data {
        Value::String(text) => Value::String(mask(text)),
        Value::Array(_) | Value::Object(_) if depth >= JSON_DEPTH_MAX => Value::Null,
        Value::Array(items) => items
            .iter()
            .map(|item| masked_data(item, mask, depth + 1))
            .collect(),
        Value::Object(fields) => Value::Object(
            fields
                .iter()
                .map(|(name, value)| (mask(name), masked_data(value, mask, depth + 1)))
                .collect(),
        ),
        Value::Null | Value::Bool(_) | Value::Number(_) => data.clone(),
    }
}

/// Answers from the cache, from the run of an identical call, or by a separate run.
async fn answer(
    run: &Arc<Run>,
    environment: ToolEnvironment,
    cancel: &CancellationToken,
    progress: Progress,
) -> Ended {
    let spec = run.tool.spec();
    // A request may forbid caching, and shorten its time; it cannot allow what the tool does not.
    let keeps = spec.cache.ttl().is_some() && run.request.cache_policy.ttl().is_some();
    let shares = spec.shared;
    if spec.effect != EffectClass::Pure || !(keeps || shares) {
        return attempt(run.clone(), environment, cancel.clone(), progress).await;
    }
    let request = run.request.clone().caller(
        environment.caller.as_ref(),
        environment.resources.permissions.level,
    );
    let key = request.result_key();
    if let Some(output) = environment.tools.results.answer(&request, &key) {
        environment.count(Figure::ToolCacheHit);
        return Ok(output);
    }
    let tools = environment.tools.clone();
    let (collector, tenant) = (
        environment.collector.clone(),
        environment.owner.tenant.clone(),
    );
    if !shares {
        let ended = attempt(run.clone(), environment, cancel.clone(), progress).await;
        if let Ok(output) = &ended {
            tools.results.note(&request, &key, output);
        }
        return ended;
    }
    let (mut lease, leads) = tools.runs.join(key.clone(), progress, |cancel, progress| {
        let run = run.clone();
        let tools = tools.clone();
        async move {
            let ended = attempt(run, environment, cancel, progress).await;
            if let Ok(output) = &ended {
                tools.results.note(&request, &key, output);
            }
            ended
        }
    });
    if !leads {
        collector.count(Some(&tenant), Figure::ToolRunShared);
    }
    tokio::select! {
        biased;
        ended = lease.ended() => ended,
        () = cancel.cancelled() => Err(RunResult::Cancelled),
    }
}

/// One start of the tool.
async fn attempt(
    run: Arc<Run>,
    environment: ToolEnvironment,
    cancel: CancellationToken,
    progress: Progress,
) -> Ended {
    // The file lock comes before the breaker, so that the only probe of a half-open breaker is not
    // spent on waiting for a file. The wait for the lock has the attempt's time limit, too; it does
    // not shorten the run. Both guards are released on every exit, also when this future is dropped.
    let spec = run.tool.spec();
    let first = Duration::from_millis(run.request.timeout_ms);
    let time = if run.attempt == 0 {
        first
    } else {
        spec.retry.timeout(first, run.attempt)
    };
    let asked = Instant::now();
    let _file = match file_of(&run) {
        None => None,
        Some(path) => tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(RunResult::NotBegun),
            taken = timeout(time, lock(&environment, &path)) => match taken {
                Ok(Ok(guard)) => Some(guard),
                Ok(Err(error)) => return Err(RunResult::Error(error.not_started())),
                Err(_) => {
                    run.waited_ms.store(millis(time), Ordering::Relaxed);
                    return Err(RunResult::Error(file_is_busy(time)));
                }
            },
        },
    };
    run.waited_ms
        .store(millis(asked.elapsed()), Ordering::Relaxed);
    let breaker = environment
        .tools
        .breakers
        .request(spec)
        .inspect_err(|_| environment.count(Figure::ToolBreakerRefusal))?;
    let ended = start(&run, &environment, time, &cancel, progress).await;
    breaker.ended(ended.as_ref().err());
    ended
}

/// The file that a call works on, relative to its workspace.
fn file_of(run: &Run) -> Option<String> {
    let Concurrency::PerFile(parameter) = &run.tool.spec().concurrency else {
        return None;
    };
    let arguments: serde_json::Map<String, serde_json::Value> =
        run.request.parameters.parse().ok()?;
    Some(one_spelling(arguments.get(parameter)?.as_str()?))
}

/// Takes the lock of a file, from the provider if there is one. Dropping the guard releases it.
async fn lock(environment: &ToolEnvironment, path: &str) -> Result<Box<dyn Any + Send>, ToolError> {
    let workspace = environment.resources.workspace.as_ref();
    match &environment.resources.locks {
        Some(locks) => {
            let workspace = workspace.map(|path| path.as_path());
            locks.take(&environment.owner.tenant, workspace, path).await
        }
        None => {
            let workspace = workspace.map(|path| path.display().to_string());
            let file = format!("{}\n{path}", workspace.unwrap_or_default());
            Ok(Box::new(environment.tools.files.take(file).await))
        }
    }
}

fn file_is_busy(time: Duration) -> ToolError {
    let message = format!(
        "another call worked on this file for {} ms; try again",
        time.as_millis()
    );
    ToolError::new(ToolErrorType::ResourceError, message).not_started()
}

async fn start(
    run: &Run,
    environment: &ToolEnvironment,
    time: Duration,
    cancel: &CancellationToken,
    progress: Progress,
) -> Ended {
    let token = cancel.child_token();
    let context = ToolContext {
        key: run.key.clone(),
        tool_call_id: run.request.tool_call_id.clone(),
        cancel: token.clone(),
        deadline: Instant::now() + time,
        attempt: run.attempt,
        progress,
        workspace: environment.resources.workspace.clone(),
        extensions: match run.siblings {
            None => environment.resources.extensions.clone(),
            Some(siblings) => environment.resources.extensions.clone().with(siblings),
        },
        artifacts: environment
            .resources
            .artifacts
            .clone()
            .map(|store| Artifacts {
                store,
                owner: environment.owner.clone(),
            }),
    };
    let call =
        AssertUnwindSafe(async { run.tool.call(run.request.parameters.clone(), context).await })
            .catch_unwind();
    tokio::pin!(call);
    let ended = match timeout(time, &mut call).await {
        Ok(ended) => ended,
        Err(_) => {
            // Cancel the attempt before anything else may start. The tool ends its processes on the
            // token; a tool that ignores the token is dropped with its future after the grace
            // period.
            token.cancel();
            let late = timeout(CANCEL_GRACE, &mut call).await;
            tracing::info!(tool = run.tool.spec().name(), call = %run.key, "Tool execution timed out after {}ms", time.as_millis());
            return Err(RunResult::TimedOut {
                after: time,
                partial: late
                    .ok()
                    .and_then(Result::ok)
                    .and_then(Result::ok)
                    .and_then(partial),
            });
        }
    };
    match ended {
        Ok(Ok(output)) => Ok(Arc::new(output)),
        Ok(Err(_)) if cancel.is_cancelled() => Err(RunResult::Cancelled),
        Ok(Err(error)) => Err(RunResult::Error(error)),
        Err(panic) => Err(RunResult::Panicked {
            message: panic_message(&*panic),
        }),
    }
}

/// What the model may see of an output that came after the time limit.
fn partial(output: ToolOutput) -> Option<String> {
    let mut text = match output {
        ToolOutput::Text(text) | ToolOutput::Shown { text, .. } => text,
        ToolOutput::Data(data) => data.to_string(),
        ToolOutput::Activation(_) => return None, // A skill is active or it is not.
    };
    text.truncate(text.floor_char_boundary(PARTIAL_BYTES_MAX));
    (!text.trim().is_empty()).then_some(text)
}

/// The message of a panic.
fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").chars().take(200).collect()
}

/// How long all attempts ran, in milliseconds: those before, and one that began at `began`, waited
/// for its file and has ended.
pub(super) fn ran_ms(before: u64, began: Instant, waited: &AtomicU64) -> u64 {
    let ran = millis(began.elapsed()).saturating_sub(waited.load(Ordering::Relaxed));
    before.saturating_add(ran)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
