//! Runs one attempt: cache, shared run, breaker, file lock, time limit, cancel, panic, observation. Whatever happens, one
//! [`RunResult`] comes back.

use crate::{
    ids::Scope,
    limits::CANCEL_GRACE,
    metrics_collector::Counters,
    ports::{ArtifactStore, Artifacts, Concurrency, Extensions, Progress, ToolContext, ToolOutput},
    tool::{EffectClass, OutputLevel, ToolError, ToolErrorType},
    tool_executor::outcome::Ended,
};
use std::{panic::AssertUnwindSafe, path::PathBuf, sync::Arc, time::Duration};

use futures_util::FutureExt;
use serde_json::Value;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::{Permissions, RunResult, TenantTools, caller_id, message::Run, observation::observe, plan::one_spelling};

/// Takes keys out of a text; gives back what may be read and stored.
pub type Mask = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// What the host lends to its tools.
#[derive(Clone)]
pub struct ToolResources {
    /// The folder that the conversation works in.
    pub workspace: Option<Arc<PathBuf>>,
    /// Values of the embedding application.
    pub extensions: Extensions,
    /// Where results go that are too large to show.
    pub artifacts: Option<Arc<dyn ArtifactStore>>,
    /// What calls are allowed; results are shared between equal permissions only.
    pub permissions: Permissions,
    /// How much of data is shown where neither call nor tool says so.
    pub output_level: OutputLevel,
    /// What takes keys out of results, errors, panics and progress (FAULTS F8).
    pub mask: Option<Mask>,
}

/// Where the calls of a conversation run.
#[derive(Clone)]
pub struct ToolEnvironment {
    /// What the host lends.
    pub resources: ToolResources,
    /// What the tenant's calls share.
    pub tools: Arc<TenantTools>,
    /// The root conversation of the tree: who owns artifacts, and with whom runs are shared (REQUIREMENTS T-13).
    pub owner: Scope,
    /// The host's counters.
    pub counters: Arc<Counters>,
    caller: Arc<str>,
}

impl ToolEnvironment {
    /// A bench for the calls of a tree of conversations.
    pub fn new(resources: ToolResources, tools: Arc<TenantTools>, owner: Scope, counters: Arc<Counters>) -> Self {
        let caller = caller_id(&owner, resources.workspace.as_ref().map(|path| path.as_path()), &resources.permissions.names()).into();
        Self { resources, tools, owner, counters, caller }
    }

    /// A bench of its own, that shares nothing and lends nothing.
    pub fn alone(owner: Scope) -> Self {
        let resources = ToolResources {
            workspace: None,
            extensions: Extensions::default(),
            artifacts: None,
            permissions: Permissions::default(),
            output_level: OutputLevel::default(),
            mask: None,
        };
        Self::new(resources, Arc::default(), owner, Arc::default())
    }
}

/// Levels of data that are looked into (DESIGN §10).
const JSON_DEPTH_MAX: usize = 64;

/// Runs an attempt to its end. `cancel` is the round's.
pub(super) async fn run(run: Arc<Run>, environment: ToolEnvironment, cancel: CancellationToken, progress: Progress) -> RunResult {
    if cancel.is_cancelled() {
        return RunResult::NotBegun; // It waited for its entry, and the round was cancelled meanwhile: it never begins.
    }
    let artifacts = environment.resources.artifacts.clone().map(|store| Artifacts { store, owner: environment.owner.clone() });
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
            output => RunResult::Output(observe(output, run.level, artifacts.as_ref(), &run.request.tool_call_id).await),
        },
        Err(result) => result,
    }
}

/// How a run ended, without keys.
fn masked(ended: Ended, mask: &dyn Fn(&str) -> String) -> Ended {
    match ended {
        Ok(output) => Ok(match &*output {
            ToolOutput::Text(text) => Arc::new(ToolOutput::Text(mask(text))),
            ToolOutput::Data(data) => Arc::new(ToolOutput::Data(masked_data(data, mask, 0))),
            ToolOutput::Activation(_) => output,
        }),
        Err(RunResult::Error(error)) => Err(RunResult::Error(ToolError { message: mask(&error.message), ..error })),
        Err(RunResult::Panicked { message }) => Err(RunResult::Panicked { message: mask(&message) }),
        Err(other) => Err(other),
    }
}

/// Data without keys, names of fields included; below 64 levels there is nothing that a model is shown.
fn masked_data(data: &Value, mask: &dyn Fn(&str) -> String, depth: usize) -> Value {
    match data {
        Value::String(text) => Value::String(mask(text)),
        Value::Array(_) | Value::Object(_) if depth >= JSON_DEPTH_MAX => Value::Null,
        Value::Array(items) => items.iter().map(|item| masked_data(item, mask, depth + 1)).collect(),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(name, value)| (mask(name), masked_data(value, mask, depth + 1))).collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => data.clone(),
    }
}

/// From the cache, from the run of an identical call, or by a run of its own.
async fn answer(run: &Arc<Run>, environment: ToolEnvironment, cancel: &CancellationToken, progress: Progress) -> Ended {
    let spec = run.tool.spec();
    let (keeps, shares) = (run.request.cache_policy.ttl().is_some(), spec.shared);
    if spec.effect != EffectClass::Pure || !(keeps || shares) {
        return attempt(run.clone(), environment, cancel.clone(), progress).await;
    }
    let request = run.request.clone().caller(environment.caller.as_ref(), environment.resources.permissions.level);
    let key = request.idempotency_key();
    if let Some(output) = environment.tools.results.answer(&request, &key) {
        environment.counters.tool_cache_hits.add(1);
        return Ok(output);
    }
    let (tools, counters) = (environment.tools.clone(), environment.counters.clone());
    if !shares {
        let ended = attempt(run.clone(), environment, cancel.clone(), progress).await;
        if let Ok(output) = &ended {
            tools.results.note(&request, &key, output);
        }
        return ended;
    }
    let (mut lease, leads) = tools.runs.join(key.clone(), progress, |cancel, progress| {
        let (run, tools) = (run.clone(), tools.clone());
        async move {
            let ended = attempt(run, environment, cancel, progress).await;
            if let Ok(output) = &ended {
                tools.results.note(&request, &key, output);
            }
            ended
        }
    });
    if !leads {
        counters.tool_runs_shared.add(1);
    }
    tokio::select! {
        biased;
        ended = lease.ended() => ended,
        () = cancel.cancelled() => Err(RunResult::Cancelled),
    }
}

/// One start of the tool.
async fn attempt(run: Arc<Run>, environment: ToolEnvironment, cancel: CancellationToken, progress: Progress) -> Ended {
    let spec = run.tool.spec();
    let first = Duration::from_millis(run.request.timeout_ms);
    let time = if run.attempt == 0 { first } else { spec.retry.timeout(first, run.attempt) };
    let _file = match file_key(&run, &environment) {
        None => None,
        Some(file) => tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(RunResult::NotBegun),
            taken = timeout(time, environment.tools.files.take(file)) => match taken {
                Ok(guard) => Some(guard),
                Err(_) => return Err(RunResult::Error(file_is_busy(time))),
            },
        },
    };
    let breaker = environment.tools.breakers.ask(spec).inspect_err(|_| environment.counters.tool_breaker_refusals.add(1))?;
    let ended = start(&run, &environment, time, &cancel, progress).await;
    breaker.ended(ended.as_ref().err());
    ended
}

/// The file that a call works on, as all calls of the tenant name it.
fn file_key(run: &Run, environment: &ToolEnvironment) -> Option<String> {
    let Concurrency::PerFile(parameter) = &run.tool.spec().concurrency else { return None };
    let arguments: serde_json::Map<String, serde_json::Value> = run.request.parameters.parse().ok()?;
    let path = one_spelling(arguments.get(parameter)?.as_str()?);
    let workspace = environment.resources.workspace.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    Some(format!("{workspace}\n{path}"))
}

fn file_is_busy(time: Duration) -> ToolError {
    let message = format!("another call worked on this file for {} ms; try again", time.as_millis());
    ToolError::new(ToolErrorType::ResourceError, message).not_started()
}

async fn start(run: &Run, environment: &ToolEnvironment, time: Duration, cancel: &CancellationToken, progress: Progress) -> Ended {
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
        artifacts: environment.resources.artifacts.clone().map(|store| Artifacts { store, owner: environment.owner.clone() }),
    };
    let call = AssertUnwindSafe(async { run.tool.call(run.request.parameters.clone(), context).await }).catch_unwind();
    tokio::pin!(call);
    let ended = match timeout(time, &mut call).await {
        Ok(ended) => ended,
        Err(_) => {
            // T-46: really cancelled before anything else may start. The tool ends its processes on the token; what does not
            // listen is dropped with the future.
            token.cancel();
            let _ = timeout(CANCEL_GRACE, &mut call).await;
            tracing::info!(tool = run.tool.spec().name(), call = %run.key, "Tool execution timed out after {}ms", time.as_millis());
            return Err(RunResult::TimedOut { after: time });
        }
    };
    match ended {
        Ok(Ok(output)) => Ok(Arc::new(output)),
        Ok(Err(_)) if cancel.is_cancelled() => Err(RunResult::Cancelled),
        Ok(Err(error)) => Err(RunResult::Error(error)),
        Err(panic) => Err(RunResult::Panicked { message: panic_message(&*panic) }),
    }
}

/// The words of a panic.
fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").chars().take(200).collect()
}

/// Milliseconds since `began`.
pub(super) fn duration_ms(began: Instant) -> u64 {
    u64::try_from(began.elapsed().min(Duration::from_secs(u64::from(u32::MAX))).as_millis()).unwrap_or(u64::MAX)
}
