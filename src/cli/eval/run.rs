//! `callboard eval run`.

use std::{path::PathBuf, sync::Arc, time::Duration};

use callboard_actors::{
    chat::{ModelParameters, Temperature, Thinking},
    conversation::round::rules::Recovery,
    policy::Budget,
};
use clap::{Args, ValueEnum};
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        failure::{Done, Failure},
        flags::{EffortFlag, SandboxFlag, StoreFlag, dollars, effort, temperature},
        output::refuse_links,
        progress::Bar,
        run::{SHUTDOWN, seconds},
        session::fresh_id,
        signals::Signals,
        terminal::{Paint, err_line, out, out_json},
    },
    flags::{OutputFlags, ResultsFlag, figures_of, read},
};
use crate::{
    app::{self, App, Chosen, Opening, Overrides, Purpose, Sessions},
    config::{Approve, Config},
    evals::{
        DataSet, EvalOptions, EvalResult, EvalRunner, EvalStore, Judge, RunEnd, RunFigures, Solver,
        bounds::{JOBS_MAX, TRIALS_MAX},
        report,
        task::Grader,
    },
    visible::visible_line,
};

/// Run every task of a data set, several times if asked, and report how often it is solved
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  callboard eval run examples/evals --solver oracle --jobs 4
  callboard eval run examples/evals --model M --trials 5 --jobs 4 --budget-usd 3 --run base
  callboard eval run questions.jsonl --no-tools --judge-model M --html report.html

Every trial is a conversation: `callboard sessions show ID --tenant T` shows it; the report has both.
A run that was interrupted or killed continues if the same command names it with --run.
Exit 0 if every trial has a result, 1 if some are missing or the rate is below --fail-under.")]
pub(in crate::cli) struct RunArgs {
    /// A folder of tasks, the folder of one task, or a JSONL file
    path: PathBuf,
    /// Name of the run; an existing one is continued [default: date, time and random digits]
    #[arg(long, value_name = "NAME")]
    run: Option<String>,
    /// Who solves the tasks
    #[arg(long, value_enum, default_value_t = SolverFlag::Model)]
    solver: SolverFlag,
    /// Trials of each task
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(TRIALS_MAX)))]
    trials: u32,
    /// Trials at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(JOBS_MAX)))]
    jobs: u32,
    /// Only this task; can be repeated
    #[arg(long, value_name = "ID")]
    task: Vec<String>,
    #[command(flatten)]
    model: ModelFlags,
    /// Seconds of a solver for one trial, in place of those of its task
    #[arg(long, value_name = "S", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Tokens that all trials of the run may use, in and out
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    budget_tokens: Option<u64>,
    /// US dollars that all trials of the run may cost; the model needs a price in [prices]
    #[arg(long, value_name = "X", value_parser = dollars)]
    budget_usd: Option<f64>,
    /// Model that judges tasks whose grader is a model
    #[arg(long, value_name = "NAME")]
    judge_model: Option<String>,
    /// Provider of the judge [default: the solver's]
    #[arg(long, value_name = "NAME")]
    judge_provider: Option<String>,
    /// Base URL of the judge's provider
    #[arg(long, value_name = "URL", requires = "judge_provider")]
    judge_base_url: Option<String>,
    /// Run trials again that ended with an error
    #[arg(long, requires = "run")]
    retry_errors: bool,
    /// Exit with 1 if the pass rate over tasks is below this, in percent
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    fail_under: Option<f64>,
    /// Folder of the workspaces [default: eval-work in the data folder of the configuration]
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
    /// Keep the workspaces, with tests and logs
    #[arg(long)]
    keep_workspaces: bool,
    #[command(flatten)]
    results: ResultsFlag,
    #[command(flatten)]
    store: StoreFlag,
    #[command(flatten)]
    output: OutputFlags,
}

/// Flags that select the model and what it is offered.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct ModelFlags {
    /// Provider: anthropic, openai, openai-responses, gemini, offline, or a name from the configuration
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// Model, as the provider calls it
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Base URL of the provider, as in the official SDKs: Anthropic without /v1, OpenAI with it
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
    /// System prompt in place of the built-in one
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Tokens of the longest answer [default: the model's own maximum, up to 8192]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// How much the model reasons before it answers
    #[arg(long, value_enum)]
    effort: Option<EffortFlag>,
    /// Extended thinking of Anthropic's models: off, adaptive, or the most tokens of thoughts
    #[arg(long, value_name = "T")]
    thinking: Option<Thinking>,
    /// Temperature, 0 to 2; newer models refuse it
    #[arg(long, value_name = "X", value_parser = temperature)]
    temperature: Option<Temperature>,
    /// Batches of tool calls in a round, at most [default: 25]
    #[arg(long, value_name = "N")]
    max_tool_iterations: Option<u32>,
    /// Only these tools, separated by commas
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    tools: Option<Vec<String>>,
    /// No tools
    #[arg(long, conflicts_with = "tools")]
    no_tools: bool,
    /// How commands of solvers and tests are isolated [default: auto]
    #[arg(long, value_enum)]
    pub(super) sandbox: Option<SandboxFlag>,
}

impl ModelFlags {
    pub(super) fn overrides(&self) -> Overrides {
        Overrides {
            provider: self.provider.clone(),
            model: self.model.clone(),
            base_url: self.base_url.clone(),
            system: self.system.clone(),
            workspace: PathBuf::from("."),
            parameters: ModelParameters {
                max_tokens: self.max_tokens,
                effort: self.effort.map(effort),
                thinking: self.thinking,
                temperature: self.temperature,
                stop: None,
            },
            tool_iterations_max: self.max_tool_iterations,
            approve: Some(Approve::Auto),
            sandbox: self.sandbox.map(Into::into),
            recovery: Recovery::Close,
            ..Overrides::default()
        }
    }

    fn tools(&self, config: &Config) -> Option<Vec<String>> {
        if self.no_tools {
            return Some(Vec::new());
        }
        self.tools.clone().or_else(|| config.tools.clone())
    }
}

/// Values of `--solver`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SolverFlag {
    /// The model
    Model,
    /// Applies the solution of each task: all must pass
    Oracle,
    /// Does nothing: none may pass
    Noop,
    /// Edits the tests: none may pass
    Cheater,
}

impl From<SolverFlag> for Solver {
    fn from(flag: SolverFlag) -> Self {
        match flag {
            SolverFlag::Model => Self::Model,
            SolverFlag::Oracle => Self::Oracle,
            SolverFlag::Noop => Self::Noop,
            SolverFlag::Cheater => Self::Cheater,
        }
    }
}

/// The code of a run that the host refused.
const CONFIGURATION: &str = "configuration";

fn percent(text: &str) -> Result<f64, String> {
    text.trim_end_matches('%')
        .parse::<f64>()
        .ok()
        .filter(|percent| (0.0..=100.0).contains(percent))
        .ok_or_else(|| "it must be a percentage from 0 to 100".into())
}

pub(super) async fn run(config: &Config, args: RunArgs) -> Result<Done, Failure> {
    let set = read(&args.path, &args.task).await?;
    let solver = Solver::from(args.solver);
    let overrides = args.model.overrides();
    let chosen = match solver {
        Solver::Model => app::choose_provider(config, &overrides, Purpose::Calls)?,
        _ => Chosen::offline(),
    };
    let options = options(config, &args, &set, solver, &chosen, &overrides)?;
    let sessions = Sessions::open(config, args.store.db.as_deref(), Opening::OrCreate).await?;
    let results = args.results.path(config);
    refuse_links("the file of results", &results)?;
    let store = Arc::new(EvalStore::open(&results)?);
    let app = app::eval_host(config, &overrides, &sessions, chosen).await?;
    announce(&app, &options, &set);

    let ended = follow(&app, &store, &set, &options).await;
    app.host.shutdown(SHUTDOWN).await;
    let end = ended?;

    let figures = figures_of(&store, &options.run)?;
    args.output.write_page(|| report::html::run(&figures))?;
    if args.output.json {
        out_json(&json(&figures)?);
    } else if figures.total.trials > 0 {
        out(&report::table::run(&figures));
    }
    finish(&end, &options, &figures, args.fail_under)
}

fn options(
    config: &Config,
    args: &RunArgs,
    set: &DataSet,
    solver: Solver,
    chosen: &Chosen,
    overrides: &Overrides,
) -> Result<EvalOptions, Failure> {
    let tools = args.model.tools(config);
    app::check_trial_tools(args.model.tools.as_ref())?;
    let run = match &args.run {
        Some(run) => run.clone(),
        None => fresh_id()?.to_string(),
    };
    let work_dir = args
        .work_dir
        .clone()
        .unwrap_or_else(|| config.data_dir.join("eval-work"));
    let sandbox = app::trial_sandbox(config, overrides);
    let budget = Budget {
        tokens: args.budget_tokens,
        ..Budget::default()
    };
    let is_model = solver == Solver::Model;
    let iterations = overrides
        .tool_iterations_max
        .unwrap_or(config.limits.tool_iterations_max);
    Ok(EvalOptions {
        solver,
        provider: if is_model {
            chosen.name.clone()
        } else {
            "built-in".into()
        },
        model: if is_model {
            chosen.model.clone()
        } else {
            solver.as_str().into()
        },
        system: overrides
            .system
            .clone()
            .unwrap_or_else(|| include_str!("../prompts/system.md").trim_end().to_owned()),
        parameters: overrides.parameters.clone(),
        tools,
        trials: args.trials,
        jobs: args.jobs,
        budget: args.budget_usd.into_iter().fold(budget, Budget::with_usd),
        timeout: args.timeout,
        judge: judge(config, args, set, solver, chosen)?,
        keep_workspaces: args.keep_workspaces,
        sandbox: sandbox.mode,
        sandbox_options: sandbox.options,
        masker: sandbox.masker,
        retry_errors: args.retry_errors,
        settings: serde_json::json!({ "tool_iterations_max": iterations }),
        ..EvalOptions::new(run, work_dir)
    })
}

/// The judge, if a task needs one.
fn judge(
    config: &Config,
    args: &RunArgs,
    set: &DataSet,
    solver: Solver,
    chosen: &Chosen,
) -> Result<Option<Judge>, Failure> {
    let needed = set
        .tasks
        .iter()
        .any(|task| matches!(task.grader, Grader::Model { .. }));
    let named = args.judge_model.is_some() || args.judge_provider.is_some();
    if !needed || !named {
        return Ok(None);
    }
    if let (Some(model), None, Solver::Model) = (&args.judge_model, &args.judge_provider, solver) {
        return Ok(Some(Judge {
            provider_name: chosen.name.clone(),
            model: model.clone(),
            provider: None,
        }));
    }
    let overrides = Overrides {
        provider: args
            .judge_provider
            .clone()
            .or_else(|| args.model.provider.clone()),
        model: args.judge_model.clone(),
        base_url: match &args.judge_provider {
            Some(_) => args.judge_base_url.clone(),
            None => args.model.base_url.clone(),
        },
        ..Overrides::default()
    };
    let (provider, provider_name, model) = app::judge(config, &overrides)?;
    Ok(Some(Judge {
        provider_name,
        model,
        provider: Some(provider),
    }))
}

fn announce(app: &App, options: &EvalOptions, set: &DataSet) {
    let paint = Paint::stderr();
    let line = format!(
        "run {}: {} task{}, {} trial{} of each, solver {}, provider {}, model {}",
        options.run,
        set.tasks.len(),
        if set.tasks.len() == 1 { "" } else { "s" },
        options.trials,
        if options.trials == 1 { "" } else { "s" },
        options.solver.as_str(),
        options.provider,
        options.model
    );
    err_line(&format!(
        "{} {}",
        paint.bold("callboard"),
        visible_line(&line, 400)
    ));
    for note in set.notes.iter().chain(&app.notes) {
        err_line(&paint.dim(&format!("note: {}", visible_line(note, 400))));
    }
}

/// Runs the trials with a progress bar. Ctrl-C interrupts; a second one ends the program.
pub(super) async fn follow(
    app: &App,
    store: &Arc<EvalStore>,
    set: &DataSet,
    options: &EvalOptions,
) -> Result<RunEnd, Failure> {
    let runner = EvalRunner::new(app.host.clone(), store.clone())
        .map_err(|error| Failure::work(format!("no commands can be started: {}", error.kind())))?;
    let done = store.results(&options.run)?.len();
    let planned = set.tasks.len() * usize::try_from(options.trials).unwrap_or(usize::MAX);
    let bar = Bar::new(u64::try_from(planned).unwrap_or(0), true);
    bar.set(None, u64::try_from(done).unwrap_or(0), String::new());
    let cancel = CancellationToken::new();
    let (mut passed, mut other) = (0u32, 0u32);
    let running = runner.run(set, options, cancel.clone(), |result: &EvalResult| {
        if result.is_passed() {
            passed += 1;
        } else {
            other += 1;
        }
        bar.step(format!("{passed} passed, {other} not"));
    });
    let mut running = Box::pin(running);
    let mut signals = Signals::listen();
    let ended = loop {
        tokio::select! {
            biased;
            () = signals.next() => {
                if cancel.is_cancelled() {
                    bar.finish();
                    std::process::exit(130);
                }
                cancel.cancel();
                bar.suspend(|| err_line("interrupting; press Ctrl-C again to leave at once"));
            }
            ended = &mut running => break ended,
        }
    };
    drop(running);
    bar.finish();
    Ok(ended?)
}

fn json(figures: &RunFigures) -> Result<String, Failure> {
    serde_json::to_string(figures).map_err(|error| Failure::work(error.to_string()))
}

/// The exit of the command.
fn finish(
    end: &RunEnd,
    options: &EvalOptions,
    figures: &RunFigures,
    fail_under: Option<f64>,
) -> Result<Done, Failure> {
    let again = format!(
        "run the same command with --run {} to continue",
        options.run
    );
    match end {
        RunEnd::Interrupted => {
            err_line(&format!("interrupted; {again}"));
            Ok(Done::Interrupted)
        }
        RunEnd::Budget => Err(Failure::work(format!(
            "the budget of the run is used up; {} of {} trials have a result",
            figures.total.trials, figures.total.planned
        ))
        .hint(format!("{again} with a larger budget"))),
        RunEnd::Stopped { code, message } if code == CONFIGURATION => {
            Err(Failure::usage(message.clone()))
        }
        RunEnd::Stopped { code, message } => {
            let retry = match figures.total.errors {
                0 => "",
                _ => "; add --retry-errors for trials that ended with an error",
            };
            Err(
                Failure::work(format!("the run stopped: {message} ({code})"))
                    .hint(format!("mend the cause, then {again}{retry}")),
            )
        }
        RunEnd::Complete => {
            let rate = 100.0 * figures.total.pass_rate;
            match fail_under {
                Some(least) if rate < least => {
                    err_line(&format!("the pass rate of {rate:.1} % is below {least} %"));
                    Ok(Done::Badly)
                }
                _ => Ok(Done::Well),
            }
        }
    }
}
