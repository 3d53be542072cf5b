//! One trial: a fresh workspace, a conversation of the host over it, and a grade.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use callboard_actors::{
    chat::Usage,
    conversation::round::rules::ApprovalMode,
    host::{ConversationHandle, HOST_GATEWAY, OutcomeError, SendAsError, SendError, TenantConfig},
    ids::{ConversationId, TenantId},
    policy::{Amount, Budget},
    ports::{Clock as _, Entropy as _},
    stream::{EventKind, RoundEnd},
    subagent::CREATE_SUBAGENT,
};
use tokio_util::sync::CancellationToken;

use super::{
    bounds::{ANSWER_BYTES_MAX, OUTPUT_BYTES_MAX},
    grading::{self, Grade, Verdict},
    options::EvalOptions,
    result::{EvalResult, SeenCall, Status, Tokens, self_verified, shortened},
    solver::{SOLUTION, Solver},
    task::{Grader, Start, Task},
    tree,
    verify::{self, Sandboxes, blocking},
};
use crate::{
    Host,
    clock::{SystemClock, SystemEntropy},
    sandbox::{PathRules, Root},
    tools::{self, Toolbox},
};

/// Name of the gateway of a built-in solver.
pub(super) const SOLVER_GATEWAY: &str = "eval-solver";

/// Tokens that no trial reaches. A tenant without a budget is not counted.
const UNBOUNDED: u64 = u64::MAX / 4;

/// Time of a judge.
const JUDGE_TIMEOUT: Duration = Duration::from_secs(300);

/// What trials of a run share.
pub(super) struct Shared<'r> {
    pub(super) host: &'r Host,
    pub(super) sandboxes: &'r Sandboxes,
    pub(super) options: &'r EvalOptions,
    pub(super) cancel: &'r CancellationToken,
}

/// How an attempt at a trial ended.
pub(super) enum Attempt {
    /// It has a grade.
    Graded(Box<EvalResult>),
    /// Its allowance of the budget is used up, so that its work cannot be graded fairly.
    Cut,
    /// The run was interrupted.
    Interrupted,
    /// The machine, the store or a provider failed.
    Error(Trouble),
}

/// Why an attempt failed that is not the solver's fault.
#[derive(Debug, Clone)]
pub(super) struct Trouble {
    pub(super) code: String,
    pub(super) message: String,
    /// Whether every further trial would fail alike.
    pub(super) is_fatal: bool,
    /// Whether a repetition may succeed.
    pub(super) is_retryable: bool,
    /// A result for the store, should this be the last attempt.
    pub(super) result: Box<EvalResult>,
}

/// The ids of a trial's conversation.
struct Ids {
    tenant: TenantId,
    conversation: ConversationId,
}

/// Runs one attempt. Returns how it ended and what it used.
pub(super) async fn attempt(
    shared: &Shared<'_>,
    task: &Task,
    trial: u32,
    attempt: u32,
    allowance: Budget,
) -> (Attempt, Amount) {
    let mut result = empty(task, trial, attempt);
    let folder = shared
        .options
        .work_dir
        .join(&shared.options.run)
        .join(format!("{}.{trial}", task.id));
    let ids = match ids(&shared.options.run, task, trial) {
        Ok(ids) => ids,
        Err(message) => return (trouble(result, "eval_ids", message), Amount::default()),
    };
    result.tenant = ids.tenant.to_string();
    result.conversation = ids.conversation.to_string();
    let handle = shared.host.tenant(&ids.tenant);
    let before = handle.spent().unwrap_or_default();
    let ended = Box::pin(solve_and_grade(
        shared,
        task,
        &folder,
        &ids,
        allowance,
        &mut result,
    ))
    .await;
    // The host charges an estimate for calls that report no usage. Built-in solvers cost nothing.
    let spent = match shared.options.solver {
        Solver::Model => minus(handle.spent().unwrap_or_default(), before),
        _ => Amount::default(),
    };
    shared.host.remove_tenant(&ids.tenant);
    result.tokens.total = spent.tokens;
    if spent.micro_usd > 0 {
        #[allow(clippy::cast_precision_loss, reason = "millionths of a dollar")]
        let usd = spent.micro_usd as f64 / 1e6;
        result.cost_usd = Some(usd);
    }
    let mut used = spent;
    used.tokens = used.tokens.saturating_add(result.judge_tokens);
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a small positive amount"
    )]
    let judge = (result.judge_cost_usd.unwrap_or(0.0) * 1e6).max(0.0) as u64;
    used.micro_usd = used.micro_usd.saturating_add(judge);
    if !shared.options.keep_workspaces {
        let _ = blocking(move || {
            let _ = tree::remove(&folder); // A leftover is removed when the trial runs again.
            Ok(())
        })
        .await;
    }
    result.finished_ms = SystemClock.now().0;
    let end = match ended {
        Ok(grade) => {
            result.status = if grade.passed {
                Status::Passed
            } else {
                Status::Failed
            };
            result.score = grade.score;
            result.reason = shortened(&grade.reason, OUTPUT_BYTES_MAX);
            Attempt::Graded(Box::new(result))
        }
        Err(Stop::Cut) => Attempt::Cut,
        Err(Stop::Interrupted) => Attempt::Interrupted,
        Err(Stop::Trouble(code, message)) => trouble(result, &code, message),
    };
    (end, used)
}

/// Why there is no grade.
enum Stop {
    Cut,
    Interrupted,
    Trouble(String, String),
}

impl Stop {
    fn machine(message: String) -> Self {
        Self::Trouble("machine".into(), message)
    }

    fn of_send(error: &SendError) -> Self {
        Self::Trouble(error.code().to_owned(), error.to_string())
    }
}

async fn solve_and_grade(
    shared: &Shared<'_>,
    task: &Task,
    folder: &Path,
    ids: &Ids,
    allowance: Budget,
    result: &mut EvalResult,
) -> Result<Grade, Stop> {
    let toolbox = workspace(shared, task, folder).await?;
    configure(shared, &ids.tenant, toolbox, allowance).await?;
    let conversation = shared
        .host
        .tenant(&ids.tenant)
        .conversation(&ids.conversation);
    solve(shared, task, &conversation, result).await?;
    if shared.cancel.is_cancelled() {
        return Err(Stop::Interrupted);
    }
    grade(shared, task, folder, ids, allowance, result).await
}

/// Makes a fresh workspace, and the tools over it.
async fn workspace(shared: &Shared<'_>, task: &Task, folder: &Path) -> Result<Toolbox, Stop> {
    let (task, folder) = (task.clone(), folder.to_owned());
    let sandboxes = shared.sandboxes.clone();
    let options = shared.options;
    let (solver, masker) = (options.solver, options.masker.clone());
    let wants_commands = solver != Solver::Model || options.has_tool("bash");
    let toolbox = blocking(move || {
        let workspace = fresh(&task, &folder, solver)?;
        let root = Root::open(&workspace, PathRules::default())
            .map_err(|error| crate::os_error::words(&error))?;
        let root = Arc::new(root);
        let sandbox = if wants_commands {
            sandboxes.over(&root).ok()
        } else {
            None
        };
        Ok(tools::over(root, sandbox, masker))
    });
    let toolbox = toolbox.await.map_err(Stop::machine)?;
    Ok(match solver {
        Solver::Model => toolbox.only(|name| options.has_tool(name)),
        _ => toolbox,
    })
}

/// Fills the workspace of a trial. What an earlier attempt left there is removed.
fn fresh(task: &Task, folder: &Path, solver: Solver) -> Result<PathBuf, String> {
    let failed = |error: std::io::Error| {
        format!(
            "a workspace cannot be made: {}",
            crate::os_error::words(&error)
        )
    };
    tree::remove(folder).map_err(failed)?;
    let workspace = folder.join("workspace");
    crate::private::make_folder(&workspace).map_err(failed)?;
    match &task.start {
        Start::Folder { task } => {
            let environment = task.join("environment");
            if environment.exists() {
                tree::copy(&environment, &workspace, "Dockerfile")?;
            }
            let solution = task.join("solution");
            if solver == Solver::Oracle && solution.exists() {
                tree::copy(&solution, &workspace.join(SOLUTION), "")?;
            }
        }
        Start::Files(files) => {
            for (path, text) in files {
                let path = workspace.join(path);
                if let Some(parent) = path.parent() {
                    fs::create_dir_all(parent).map_err(failed)?;
                }
                fs::write(path, text).map_err(failed)?;
            }
        }
    }
    Ok(workspace)
}

/// Configures the tenant of a trial.
async fn configure(
    shared: &Shared<'_>,
    tenant: &TenantId,
    toolbox: Toolbox,
    allowance: Budget,
) -> Result<(), Stop> {
    let options = shared.options;
    let is_model = options.solver == Solver::Model;
    let gateway = if is_model {
        HOST_GATEWAY
    } else {
        SOLVER_GATEWAY
    };
    let allowance = if is_model {
        allowance
    } else {
        Budget::default() // A built-in solver uses no tokens, and its model has no price.
    };
    let mut config = TenantConfig::new()
        .gateway(gateway)
        .model(&options.model)
        .system(&options.system)
        .approval(ApprovalMode::Auto)
        .budget(counted(allowance))
        .tools(toolbox)
        .subagents(is_model && options.has_tool(CREATE_SUBAGENT));
    if is_model {
        config = config.parameters(options.parameters.clone());
    }
    shared
        .host
        .configure_tenant(tenant, config)
        .await
        .map_err(|error| Stop::Trouble("configuration".into(), error.to_string()))
}

/// The budget with a bound on tokens, so that they are counted.
fn counted(budget: Budget) -> Budget {
    Budget {
        tokens: budget.tokens.or(Some(UNBOUNDED)),
        ..budget
    }
}

/// Sends the prompt and follows the round to its end.
async fn solve(
    shared: &Shared<'_>,
    task: &Task,
    conversation: &ConversationHandle,
    result: &mut EvalResult,
) -> Result<(), Stop> {
    let timeout = shared.options.timeout.unwrap_or(task.solver_timeout);
    let began = Instant::now();
    let sent = conversation.send(task.prompt.as_str()).deadline(timeout);
    let mut reply = sent.await.map_err(|error| Stop::of_send(&error))?;
    let mut seen = Seen::default();
    let outcome = loop {
        tokio::select! {
            biased;
            () = shared.cancel.cancelled() => {
                let _ = conversation.interrupt().await; // The error means that the round has ended.
                return Err(Stop::Interrupted);
            }
            event = reply.next() => match event {
                Some(event) => seen.note(&event.kind),
                None => break reply.outcome().await,
            }
        }
    };
    result.duration_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    seen.write(result);
    let end = match outcome {
        Ok(end) => end,
        Err(OutcomeError::Failed { end }) => *end,
        Err(error) => {
            return Err(Stop::Trouble(error.code().to_owned(), error.to_string()));
        }
    };
    judge_end(&end)?;
    result.tokens.usage = end.usage;
    end.error
        .as_ref()
        .map_or(end.stop_reason.code(), |failure| failure.code.as_str())
        .clone_into(&mut result.stop_reason);
    result.answer = shortened(&end.text, ANSWER_BYTES_MAX);
    Ok(())
}

/// Separates the end of a solver, which is graded, from the failure of something else.
fn judge_end(end: &RoundEnd) -> Result<(), Stop> {
    let Some(failure) = &end.error else {
        return Ok(());
    };
    match failure.code.as_str() {
        "budget" => Err(Stop::Cut),
        // The solver's own limits: its work so far is graded.
        "deadline" | "context_too_large" | "output_schema" => Ok(()),
        _ => Err(Stop::Trouble(failure.code.clone(), failure.message.clone())),
    }
}

/// What the events of a round showed.
#[derive(Default)]
struct Seen {
    model_calls: u32,
    cost_usd: Option<f64>,
    calls: Vec<SeenCall>,
}

/// Tool calls that are noted; a round has far fewer.
const CALLS_MAX: usize = 10_000;

impl Seen {
    fn note(&mut self, kind: &EventKind) {
        match kind {
            EventKind::Usage { cost_usd, .. } => {
                self.model_calls = self.model_calls.saturating_add(1);
                if let Some(cost) = cost_usd {
                    *self.cost_usd.get_or_insert(0.0) += cost;
                }
            }
            EventKind::ToolResult { name, is_error, .. } if self.calls.len() < CALLS_MAX => {
                self.calls.push(SeenCall {
                    name: name.clone(),
                    is_error: *is_error,
                });
            }
            _ => {}
        }
    }

    fn write(&self, result: &mut EvalResult) {
        let mut tools: BTreeMap<String, u32> = BTreeMap::new();
        for call in &self.calls {
            *tools.entry(call.name.clone()).or_default() += 1;
        }
        let errors = self.calls.iter().filter(|call| call.is_error).count();
        result.model_calls = self.model_calls;
        result.cost_usd = self.cost_usd;
        result.tools = tools;
        result.tool_errors = u32::try_from(errors).unwrap_or(u32::MAX);
        result.self_verified = self_verified(&self.calls);
    }
}

async fn grade(
    shared: &Shared<'_>,
    task: &Task,
    folder: &Path,
    ids: &Ids,
    allowance: Budget,
    result: &mut EvalResult,
) -> Result<Grade, Stop> {
    if let Some(grade) = grading::answer(&task.grader, &result.answer) {
        return Ok(grade);
    }
    match (&task.grader, task.folder()) {
        (Grader::Model { rubric, pass_at }, _) => {
            let verdict = judge(shared, task, rubric, ids, allowance, result).await?;
            Ok(grading::verdict(&verdict, *pass_at))
        }
        (_, Some(of)) => {
            let cancel = shared.cancel.clone();
            let graded =
                verify::script(shared.sandboxes, of, folder, task.tests_timeout, cancel).await;
            if shared.cancel.is_cancelled() {
                return Err(Stop::Interrupted);
            }
            let graded = graded.map_err(Stop::machine)?;
            result.output = graded.output;
            Ok(graded.grade)
        }
        (_, None) => Ok(Grade::failed("the task has no tests")),
    }
}

/// Asks the judge. Its conversation has its own tenant, so that it is billed and journaled apart.
async fn judge(
    shared: &Shared<'_>,
    task: &Task,
    rubric: &str,
    ids: &Ids,
    allowance: Budget,
    result: &mut EvalResult,
) -> Result<Verdict, Stop> {
    let Some(judge) = &shared.options.judge else {
        return Err(Stop::Trouble(
            "configuration".into(),
            "the task needs a judge; name one with --judge-model".into(),
        ));
    };
    result.judge = Some(judge.name());
    let tenant = TenantId::new(format!("{}.judge", ids.tenant))
        .map_err(|error| Stop::machine(error.to_string()))?;
    let handle = shared.host.tenant(&tenant);
    let left = less(
        allowance,
        shared.host.tenant(&ids.tenant).spent().unwrap_or_default(),
    );
    let config = TenantConfig::new()
        .gateway(judge.gateway())
        .model(&judge.model)
        .system("You grade answers by rubrics, strictly and briefly.")
        .budget(counted(left))
        .tools(Vec::new())
        .subagents(false);
    shared
        .host
        .configure_tenant(&tenant, config)
        .await
        .map_err(|error| Stop::Trouble("configuration".into(), error.to_string()))?;
    let before = handle.spent().unwrap_or_default();
    let fence = format!("fence-{}", word());
    let prompt = grading::judge_prompt(rubric, &task.prompt, &result.answer, &fence);
    let conversation = handle.conversation(&ids.conversation);
    let verdict = tokio::select! {
        biased;
        () = shared.cancel.cancelled() => {
            let _ = conversation.interrupt().await; // The error means that the round has ended.
            Err(Stop::Interrupted)
        }
        verdict = tokio::time::timeout(JUDGE_TIMEOUT, conversation.send_as::<Verdict>(prompt)) => match verdict {
            Ok(Ok(verdict)) if (0.0..=1.0).contains(&verdict.score) => Ok(verdict),
            Ok(Ok(_)) => Err(Stop::Trouble("judge_output".into(), "the judge gave no score from 0 to 1".into())),
            Ok(Err(error)) => Err(of_judge(&error)),
            Err(_) => {
                let _ = conversation.interrupt().await;
                Err(Stop::Trouble("judge_timeout".into(), "the judge exceeded its time".into()))
            }
        }
    };
    let spent = minus(handle.spent().unwrap_or_default(), before);
    shared.host.remove_tenant(&tenant);
    result.judge_tokens = spent.tokens;
    #[allow(clippy::cast_precision_loss, reason = "millionths of a dollar")]
    let usd = spent.micro_usd as f64 / 1e6;
    result.judge_cost_usd = (spent.micro_usd > 0).then_some(usd);
    verdict
}

fn of_judge(error: &SendAsError) -> Stop {
    match error {
        SendAsError::Send(error) => Stop::of_send(error),
        SendAsError::Outcome(error) if error.code() == "budget" => Stop::Cut,
        SendAsError::Outcome(error) => Stop::Trouble(error.code().to_owned(), error.to_string()),
        _ => Stop::Trouble("judge_output".into(), format!("the judge: {error}")),
    }
}

/// A result that has no grade yet.
fn empty(task: &Task, trial: u32, attempts: u32) -> EvalResult {
    EvalResult {
        task: task.id.clone(),
        trial,
        status: Status::Error,
        score: 0.0,
        reason: String::new(),
        error_code: None,
        judge: None,
        stop_reason: "error".into(),
        answer: String::new(),
        output: String::new(),
        tokens: Tokens {
            usage: Usage::default(),
            total: 0,
        },
        cost_usd: None,
        judge_tokens: 0,
        judge_cost_usd: None,
        model_calls: 0,
        tools: BTreeMap::new(),
        tool_errors: 0,
        self_verified: None,
        duration_ms: 0,
        attempts,
        tenant: String::new(),
        conversation: String::new(),
        finished_ms: 0,
    }
}

/// Codes after which every further trial would fail alike.
const FATAL: &[&str] = &[
    "provider_auth",
    "provider_untrusted",
    "provider_quota_exhausted",
    "configuration",
    "store_unavailable",
    "eval_ids",
];

fn trouble(mut result: EvalResult, code: &str, message: String) -> Attempt {
    result.status = Status::Error;
    result.error_code = Some(code.to_owned());
    result.reason = shortened(&message, OUTPUT_BYTES_MAX);
    Attempt::Error(Trouble {
        is_fatal: FATAL.contains(&code),
        is_retryable: code != "provider_invalid_request",
        code: code.to_owned(),
        message,
        result: Box::new(result),
    })
}

fn ids(run: &str, task: &Task, trial: u32) -> Result<Ids, String> {
    let tenant = TenantId::new(format!("eval.{run}.{}.{trial}", task.id))
        .map_err(|error| error.to_string())?;
    let conversation =
        ConversationId::new(format!("trial-{}", word())).map_err(|error| error.to_string())?;
    Ok(Ids {
        tenant,
        conversation,
    })
}

/// Eight random hex digits.
fn word() -> String {
    let [a, b, c, d, ..] = SystemEntropy.bytes();
    format!("{a:02x}{b:02x}{c:02x}{d:02x}")
}

fn minus(after: Amount, before: Amount) -> Amount {
    Amount {
        tokens: after.tokens.saturating_sub(before.tokens),
        micro_usd: after.micro_usd.saturating_sub(before.micro_usd),
        wall_ms: after.wall_ms.saturating_sub(before.wall_ms),
    }
}

fn less(budget: Budget, spent: Amount) -> Budget {
    Budget {
        tokens: budget
            .tokens
            .map(|tokens| tokens.saturating_sub(spent.tokens)),
        micro_usd: budget
            .micro_usd
            .map(|money| money.saturating_sub(spent.micro_usd)),
        wall_ms: budget.wall_ms,
    }
}
