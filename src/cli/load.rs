//! `callboard load`: generates load on a host and reports the results. A *turn* here is a round.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use callboard_actors::ports::{LlmProvider, SessionBackend};
use clap::{Args, ValueEnum};

use super::{
    failure::{Done, Failure},
    flags::read_pem,
    output::write_file,
    progress::Bar,
    terminal::{err_line, out, out_json},
};
use crate::{
    load::{
        LoadError, Plan, Progress, Remote, Shape, TOOL_PANIC, Target, draw, host, run as offer,
    },
    providers::{Anthropic, OpenAi},
    storage::Sqlite,
};

/// Load a host with turns: throughput, latencies, CPU, memory, fairness
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  callboard load --conversations 64 --tools-per-turn 1 --duration 10
  callboard load --rate 500 --model-latency-ms 100 --duration 30 --svg load.svg
  callboard load --shape fanout --subagents 1000 --model-latency-ms 100
  callboard load --shape noisy --tenants 20 --model-latency-ms 100 --duration 10
  callboard load --provider anthropic --base-url http://127.0.0.1:9000 --duration 10
  callboard load --target http://127.0.0.1:8787 --key KEY --rate 100 --duration 30
  callboard load --target https://agents.example --ca ca.pem --key KEY --duration 30

With --rate, turns start on schedule even if earlier ones are late, and latency counts from the scheduled start.
The model is scripted and in this process unless --provider or --target names another. See docs/load.md.")]
pub(super) struct LoadArgs {
    /// What the run measures
    #[arg(long, value_enum, default_value_t = Shape::Turns)]
    shape: Shape,
    /// Number of tenants; with --target, the number of keys
    #[arg(long, value_name = "N")]
    tenants: Option<usize>,
    /// Conversations at once, of all tenants together; 64, for idle 1000, for noisy 2000, for long
    /// 8, for fanout 1
    #[arg(long, value_name = "N")]
    conversations: Option<usize>,
    /// Turns of a conversation, before another replaces it; 10, for long 1000, for idle 1. For
    /// fanout: fan-outs, one after the other
    #[arg(long, value_name = "N")]
    turns: Option<usize>,
    /// Subagents of each fan-out
    #[arg(long, value_name = "N", default_value_t = 1000)]
    subagents: usize,
    /// Subagents keep no journal
    #[arg(long)]
    ephemeral: bool,
    /// Tool calls in each turn
    #[arg(long, value_name = "N", default_value_t = 0)]
    tools_per_turn: u32,
    /// Milliseconds to the first byte of the scripted model; for noisy 100
    #[arg(long, value_name = "MS")]
    model_latency_ms: Option<u64>,
    /// Milliseconds before each chunk of the scripted model but the first
    #[arg(long, value_name = "MS", default_value_t = 0)]
    chunk_delay_ms: u64,
    /// Chunks of an answer of the scripted model
    #[arg(long, value_name = "N", default_value_t = 64)]
    chunks: usize,
    /// Model calls that run at once; for noisy 64
    #[arg(long, value_name = "N")]
    model_concurrency: Option<usize>,
    /// Fraction of the scripted model's calls, and of tool calls, that fail: 429, 529, resets,
    /// stalls, malformed arguments, hanging and panicking tools
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    fault_rate: f64,
    /// Fraction of the turns that are interrupted at their first text
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    cancel_rate: f64,
    /// Seconds of load after the warm-up; without it, until each conversation has had its turns
    #[arg(long, value_name = "S")]
    duration: Option<f64>,
    /// Turns per second, started on schedule even if earlier ones are late (open loop)
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// Load of the flooding tenant of noisy, as a multiple of another tenant's
    #[arg(long, value_name = "N", default_value_t = 50.0)]
    flood: f64,
    /// Seconds at the start that are not measured
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    warm_up: f64,
    /// Seconds to wait for running turns after the end
    #[arg(long, value_name = "S", default_value_t = 30.0)]
    drain: f64,
    /// Seed that decides which calls fail and which turns are interrupted
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// The model: `offline` is scripted and in this process
    #[arg(long, value_enum, default_value_t = Provider::Offline)]
    provider: Provider,
    /// Base URL of the provider's API, such as a mock-model's address; Anthropic's without /v1,
    /// OpenAI's with it
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
    /// The provider's model
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Keep journals in this SQLite file; in memory otherwise
    #[arg(long, value_name = "FILE", conflicts_with = "target")]
    db: Option<PathBuf>,
    /// Load a running `callboard serve` over HTTP
    #[arg(long, value_name = "URL", requires = "key", conflicts_with_all = ["base_url", "tenants"])]
    target: Option<String>,
    /// Certificate authorities in PEM to trust for --target, besides those of the system
    #[arg(long, value_name = "FILE", requires = "target")]
    ca: Option<PathBuf>,
    /// A tenant's key for --target; repeat it for several tenants
    #[arg(long, value_name = "KEY")]
    key: Vec<String>,
    /// The process behind --target or --base-url, on this machine: its CPU is reported too, and a
    /// host's memory
    #[arg(long, value_name = "PID")]
    server_pid: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a plot of latencies and throughput to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Provider {
    Offline,
    Anthropic,
    Openai,
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Self {
        Self::work(error.to_string())
    }
}

fn part(name: &str, value: f64) -> Result<f64, Failure> {
    if (0.0..=1.0).contains(&value) {
        Ok(value)
    } else {
        Err(Failure::usage(format!("{name} must be between 0 and 1")))
    }
}

fn seconds(name: &str, value: f64) -> Result<Duration, Failure> {
    let bad = || Failure::usage(format!("{name} must be a number of seconds, at most a day"));
    let time = Duration::try_from_secs_f64(value).map_err(|_| bad())?;
    if time <= Duration::from_secs(24 * 3600) {
        Ok(time)
    } else {
        Err(bad())
    }
}

/// Converts the arguments to a plan.
fn plan(args: &LoadArgs) -> Result<Plan, Failure> {
    let noisy = args.shape == Shape::Noisy;
    let at_least_one = |name: &str, value: Option<usize>, usual: usize| match value {
        Some(0) => Err(Failure::usage(format!("{name} must be at least 1"))),
        value => Ok(value.unwrap_or(usual)),
    };
    let (conversations, turns) = match args.shape {
        Shape::Turns => (64, 10),
        Shape::Fanout => (1, 10),
        Shape::Long => (8, 1000),
        Shape::Idle => (1000, 1),
        Shape::Noisy => (2000, 10),
    };
    let tenants = match &args.target {
        Some(_) => args.key.len(),
        None => at_least_one("--tenants", args.tenants, if noisy { 20 } else { 1 })?,
    };
    if noisy && tenants < 2 {
        return Err(Failure::usage("noisy needs two tenants or more")
            .hint("give --tenants 20, or a --key for each"));
    }
    let duration = args
        .duration
        .map(|duration| seconds("--duration", duration))
        .transpose()?;
    let duration = duration.or((noisy || args.rate.is_some()).then_some(Duration::from_secs(10)));
    if args.rate.is_some_and(|rate| !(rate > 0.0 && rate <= 1e6))
        || !(args.flood > 0.0 && args.flood <= 1e6)
    {
        return Err(Failure::usage(
            "--rate and --flood must be above 0 and at most a million",
        ));
    }
    let fan_out = args.shape == Shape::Fanout;
    if fan_out && (args.target.is_some() || args.cancel_rate > 0.0) {
        return Err(Failure::usage(
            "--target and --cancel-rate cannot be combined with --shape fanout",
        ));
    }
    if args.subagents == 0 || (args.ephemeral && !fan_out) {
        return Err(Failure::usage(
            "--subagents must be at least 1, and --ephemeral needs --shape fanout",
        ));
    }
    if args.rate.is_some() && matches!(args.shape, Shape::Long | Shape::Idle | Shape::Fanout) {
        return Err(Failure::usage(format!(
            "--rate cannot be combined with --shape {}",
            args.shape.name()
        )));
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Ok(Plan {
        shape: args.shape,
        tenants,
        conversations: at_least_one("--conversations", args.conversations, conversations)?,
        turns: at_least_one("--turns", args.turns, turns)?,
        subagents: args.subagents,
        ephemeral: args.ephemeral,
        tools_per_turn: args.tools_per_turn,
        scripted: args.provider == Provider::Offline,
        model_latency: Duration::from_millis(args.model_latency_ms.unwrap_or(if noisy {
            100
        } else {
            0
        })),
        chunk_delay: Duration::from_millis(args.chunk_delay_ms),
        chunks: args.chunks.clamp(1, 100_000),
        model_concurrency: at_least_one(
            "--model-concurrency",
            args.model_concurrency,
            if noisy { 64 } else { 4096 },
        )?,
        fault_rate: part("--fault-rate", args.fault_rate)?,
        cancel_rate: part("--cancel-rate", args.cancel_rate)?,
        duration,
        rate: args.rate,
        flood: args.flood,
        warm_up: seconds("--warm-up", args.warm_up)?,
        drain: seconds("--drain", args.drain)?,
        seed: args.seed,
        server_pid: args.server_pid,
        run: format!("load{:x}", now.as_millis()),
    })
}

/// The key for endpoints that require none.
const NO_KEY: &str = "no-key";

/// The provider of the arguments; `None` means the scripted one.
fn provider(args: &LoadArgs) -> Result<Option<Arc<dyn LlmProvider>>, Failure> {
    let key = |name: &str| std::env::var(name).ok().filter(|key| !key.is_empty());
    let missing = |name: &str| {
        Failure::usage(format!("{name} is not set"))
            .hint("set it, or name an endpoint with --base-url")
    };
    let failed = |error: crate::providers::ProviderConfigError| Failure::usage(error.to_string());
    Ok(match (args.provider, &args.base_url) {
        (Provider::Offline, None) => None,
        (Provider::Offline, Some(_)) => {
            return Err(Failure::usage(
                "--base-url needs --provider anthropic or openai",
            ));
        }
        (Provider::Anthropic, url) => {
            let key = key("ANTHROPIC_API_KEY")
                .or(url.as_ref().map(|_| NO_KEY.to_owned()))
                .ok_or_else(|| missing("ANTHROPIC_API_KEY"))?;
            let builder = Anthropic::builder(key);
            let builder = if let Some(url) = url {
                builder.base_url(url)
            } else {
                builder
            };
            Some(Arc::new(builder.build().map_err(failed)?))
        }
        (Provider::Openai, url) => {
            let key = key("OPENAI_API_KEY")
                .or(url.as_ref().map(|_| NO_KEY.to_owned()))
                .ok_or_else(|| missing("OPENAI_API_KEY"))?;
            let builder = OpenAi::builder().api_key(key);
            let builder = if let Some(url) = url {
                builder.base_url(url)
            } else {
                builder
            };
            Some(Arc::new(builder.build().map_err(failed)?))
        }
    })
}

/// Describes what is measured, for the report.
fn measured(args: &LoadArgs) -> String {
    match (&args.target, args.provider) {
        (Some(_), _) => "a host over HTTP".to_owned(),
        (None, Provider::Offline) => "in process, scripted model".to_owned(),
        (None, Provider::Anthropic) => "in process, anthropic".to_owned(),
        (None, Provider::Openai) => "in process, openai".to_owned(),
    }
}

pub(super) async fn run(args: LoadArgs) -> Result<Done, Failure> {
    let plan = plan(&args)?;
    let target = match &args.target {
        Some(url) => {
            let ca = args
                .ca
                .as_deref()
                .map(|file| read_pem("--ca", file))
                .transpose()?;
            Target::Remote(Remote::new(url, args.key.clone(), ca.as_deref())?)
        }
        None => {
            let sessions: Option<Arc<dyn SessionBackend>> = match &args.db {
                Some(file) => Some(Arc::new(Sqlite::open(file).await?)),
                None => None,
            };
            Target::Host(host(&plan, provider(&args)?, args.model.as_deref(), sessions).await?)
        }
    };
    if plan.fault_rate > 0.0 {
        hush_tools();
    }
    let progress = Arc::new(Progress::default());
    let shown = tokio::spawn(show(progress.clone()));
    let report = offer(&plan, target, progress).await;
    shown.abort();
    let mut report = report?;
    report.measured = measured(&args);
    if let Some(file) = &args.svg {
        write_file("the plot", file, draw(&report).as_bytes())?;
        err_line(&format!("plot: {}", file.display()));
    }
    if args.json {
        let json = serde_json::to_string(&report);
        out_json(
            &json
                .map_err(|error| Failure::work(format!("the report cannot be written: {error}")))?,
        );
    } else {
        out(&report.table());
    }
    if report.served_none() {
        err_line("no turn was served; the report names the errors");
        return Ok(Done::Badly);
    }
    Ok(if report.is_sound() {
        Done::Well
    } else {
        Done::Badly
    })
}

/// Suppresses the panic messages of tools that panic on purpose.
fn hush_tools() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some(TOOL_PANIC) {
            usual(panic);
        }
    }));
}

/// Shows a progress bar, if standard error is a terminal.
async fn show(progress: Arc<Progress>) {
    // Dropping the bar removes it, also if this task is aborted.
    let bar = Bar::new(1000, true);
    loop {
        let ((permille, phase), (served, others)) = (progress.phase(), progress.turns());
        let turns = format!("{served} turns, {others} refused or failed");
        bar.set(Some(phase), permille, turns);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
