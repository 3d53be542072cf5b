//! The command line, one file per subcommand. Results go to standard output; progress and logs go
//! to standard error.
//!
//! # Layout
//! Shared: `failure` (one-line errors and exit codes) · `usage` (the same for clap's errors) · `help` (the page of commands, in groups) ·
//! `mcp_servers` (those of the configuration and a file) · `flags` (flags of `run` and `chat`) · `remote` (a running host in place of the store) · `trust` (files of the current folder, and the question
//! about them) · `attach` (files for a prompt) · `markdown` (text as rows) · `terminal` · `wrap` (words at the terminal's width) · `live` (the rows that change) · `progress`
//! (bars) · `signals` · `typing` (lines typed ahead) · `change` (an edit as a diff) · `ask` (approvals) ·
//! `view` (events for people and programs) · `follow` (a round until its end) · `session` (a
//! conversation opened for a person) · `by_hand` (`!command`, `@file`) · `editor` · `complete` (Tab) · `lines` (where lines of a chat come
//! from), `continued` (those that end in a backslash), `chat_words` (those that mean the same in every chat). Then the commands.

mod failure;
mod pasted;
mod output;
mod help;
mod unfold;
mod usage;
mod mcp_servers;
mod flags;
mod trust;
mod attach;
mod markdown;
mod terminal;
mod wrap;
mod live;
mod pick;
mod progress;
mod signals;
mod typed;
mod typing;
mod change;
mod ask;
mod view;
mod remote;
mod rounds;
mod rows;
mod follow;
mod held;
mod session;
mod branch;
mod by_hand;
mod editor;
mod clipboard;
mod complete;
mod links;
mod line_keys;
mod continued;
mod chat_words;
mod lines;
mod models;
mod run;
mod attached;
mod chat;
mod acp;
mod fanout;
mod eval;
mod sessions;
mod tools;
mod mcp;
mod tokens;
mod metrics;
mod skills;
mod serve;
mod keys;
mod doctor;
mod config;
mod explain;
mod bug_report;
#[cfg(feature = "load")]
mod load;
#[cfg(feature = "mock-model")]
mod mock_model;
mod completions;
mod manual;

use std::{num::NonZeroUsize, path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

use crate::{
    config::{Config, ConfigError, Observability, process_environment},
    observe::Redactor,
    telemetry::Telemetry,
};
use failure::{Done, Failure};
use trust::{Notes, ProjectUse};

/// Runs LLM agents: one task, a conversation, or work on stored conversations.
#[derive(Debug, Parser)]
#[command(
    name = "callboard",
    version,
    about = "Runs LLM agents over a folder: one task, a conversation, stored sessions.",
    after_help = "Example:\n  callboard run --provider offline \"Where is the retry delay computed?\"\n\nExit codes: 0 done, 1 the work failed or a named thing does not exist, 2 wrong usage or configuration, 130 interrupted.",
    arg_required_else_help = true,
    max_term_width = 110
)]
struct Cli {
    /// Read only this configuration file
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Log level or filters, such as `debug` or `callboard=trace` (standard error)
    #[arg(long, global = true, value_name = "LEVEL")]
    log: Option<String>,
    /// Log more: `-v` is `--log info`, `-vv` is `--log debug`, `-vvv` is `--log trace`
    #[arg(long, short = 'v', global = true, action = clap::ArgAction::Count, conflicts_with = "log")]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::RunArgs),
    Chat(chat::ChatArgs),
    Acp(Box<acp::AcpArgs>),
    Fanout(Box<fanout::FanoutArgs>),
    /// Evaluations: run tasks, report, compare runs, list them, check tasks
    #[command(subcommand, disable_help_subcommand = true, after_help = eval::EXAMPLE)]
    Eval(eval::EvalCommand),
    /// Stored conversations: list, show, fork, rewind, export, import, request, reset, delete,
    /// repair
    #[command(subcommand, disable_help_subcommand = true, after_help = sessions::EXAMPLE)]
    Sessions(sessions::SessionsCommand),
    /// The tools that a model is offered: list, show, call
    #[command(subcommand, disable_help_subcommand = true, after_help = tools::EXAMPLE)]
    Tools(tools::ToolsCommand),
    /// MCP servers: list their tools, check for problems
    #[command(subcommand, disable_help_subcommand = true, after_help = mcp::EXAMPLE)]
    Mcp(mcp::McpCommand),
    Tokens(tokens::TokensArgs),
    Metrics(metrics::MetricsArgs),
    /// Skills: list the skills in a folder, show one, check for mistakes
    #[command(subcommand, disable_help_subcommand = true, after_help = skills::EXAMPLE)]
    Skills(skills::SkillsCommand),
    Trust(trust::TrustArgs),
    Serve(serve::ServeArgs),
    /// Keys of tenants: new
    #[command(subcommand, disable_help_subcommand = true, after_help = keys::EXAMPLE)]
    Keys(keys::KeysCommand),
    Doctor(doctor::DoctorArgs),
    /// The configuration: check, show, init
    #[command(subcommand, disable_help_subcommand = true, after_help = config::EXAMPLE)]
    Config(config::ConfigCommand),
    Explain(explain::ExplainArgs),
    BugReport(bug_report::BugReportArgs),
    #[cfg(feature = "load")]
    Load(Box<load::LoadArgs>),
    #[cfg(feature = "mock-model")]
    MockModel(mock_model::MockModelArgs),
    Completions(completions::CompletionsArgs),
    Manual(manual::ManualArgs),
}

impl Command {
    /// How the command uses files of the current folder.
    fn project_use(&self) -> ProjectUse<'_> {
        match self {
            Self::Run(args) => args.project_use(),
            Self::Chat(args) => args.project_use(),
            Self::Acp(args) => args.project_use(),
            Self::Fanout(args) => args.project_use(),
            Self::Tools(command) => command.project_use(),
            Self::Mcp(command) => command.project_use(),
            Self::Eval(_)
            | Self::Sessions(_)
            | Self::Tokens(_)
            | Self::Metrics(_)
            | Self::Skills(_) => ProjectUse::quiet(Notes::First),
            // These report project files themselves, or do not use the configuration.
            Self::Trust(_) | Self::Serve(_) | Self::Doctor(_) | Self::Config(_) => {
                ProjectUse::quiet(Notes::Own)
            }
            Self::Keys(_)
            | Self::Explain(_)
            | Self::BugReport(_)
            | Self::Completions(_)
            | Self::Manual(_) => ProjectUse::quiet(Notes::Own),
            #[cfg(feature = "load")]
            Self::Load(_) => ProjectUse::quiet(Notes::Own),
            #[cfg(feature = "mock-model")]
            Self::MockModel(_) => ProjectUse::quiet(Notes::Own),
        }
    }
}

/// Parses the command line and runs the command. Returns its exit code.
pub fn main() -> ExitCode {
    let cli = match usage::parse::<Cli>() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    match run(cli) {
        Ok(done) => done.code(),
        Err(failure) => failure.report(),
    }
}

fn run(cli: Cli) -> Result<Done, Failure> {
    let config = trust::settle(&cli.command.project_use(), || {
        Config::load(cli.config.as_deref(), process_environment())
    });
    let runtime = runtime().map_err(|error| {
        Failure::work(format!(
            "the runtime cannot be started: {}",
            crate::os_error::words(&error)
        ))
    })?;
    let telemetry = {
        let _entered = runtime.enter(); // The exporters need the runtime's context to start.
        let usual = Observability::default();
        let observability = config
            .as_ref()
            .map_or(&usual, |config| &config.observability);
        let secrets = config.iter().flat_map(Config::masked_texts);
        let level = match cli.verbose {
            0 => cli.log.as_deref(),
            1 => Some("info"),
            2 => Some("debug"),
            _ => Some("trace"),
        };
        crate::telemetry::init(level, observability, &Redactor::new(secrets))
            .map_err(|error| Failure::usage(error.to_string()))?
    };
    let outcome = runtime.block_on(async {
        let outcome = dispatch(cli.command, cli.config, config, &telemetry).await;
        telemetry.shutdown().await;
        outcome
    });
    // A thread that is blocked reading the keyboard must not delay the exit.
    runtime.shutdown_background();
    outcome
}

/// Builds the runtime. Tokio panics where a thread cannot be started, and may then wait for ever, so
/// as many threads as it needs are started first.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    let workers = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let tried: Vec<_> = (0..=workers)
        .map(|_| std::thread::Builder::new().spawn(std::thread::park))
        .collect();
    for thread in tried.iter().flatten() {
        thread.thread().unpark();
    }
    let started: std::io::Result<Vec<_>> = tried.into_iter().collect();
    for thread in started? {
        let _ = thread.join();
    }
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
}

/// Runs the command. A mistake in the configuration fails only commands that need the
/// configuration.
async fn dispatch(
    command: Command,
    file: Option<PathBuf>,
    config: Result<Config, ConfigError>,
    telemetry: &Telemetry,
) -> Result<Done, Failure> {
    match command {
        Command::Run(args) => Box::pin(run::run(&config?, args)).await,
        Command::Chat(args) => Box::pin(chat::run(&config?, args)).await,
        Command::Acp(args) => Box::pin(acp::run(file, *args)).await,
        Command::Fanout(args) => Box::pin(fanout::run(&config?, *args)).await,
        Command::Eval(command) => Box::pin(eval::run(&config?, command)).await,
        Command::Sessions(command) => Box::pin(sessions::run(&config?, command)).await,
        Command::Tools(command) => Box::pin(tools::run(&config?, command)).await,
        Command::Mcp(command) => Box::pin(mcp::run(&config?, command, telemetry)).await,
        Command::Tokens(args) => tokens::run(&config?, &args),
        Command::Metrics(args) => Box::pin(metrics::run(&config?, args)).await,
        Command::Skills(command) => Box::pin(skills::run(&config?, command)).await,
        Command::Config(command) => config::run(&config?, &command),
        Command::Trust(args) => trust::run(&config?, &args),
        Command::Serve(args) => Box::pin(serve::run(file, args, telemetry)).await,
        Command::Doctor(args) => Box::pin(doctor::run(file, args)).await,
        Command::Keys(command) => keys::run(&command),
        #[cfg(feature = "load")]
        Command::Load(args) => Box::pin(load::run(*args)).await,
        #[cfg(feature = "mock-model")]
        Command::MockModel(args) => Box::pin(mock_model::run(args)).await,
        Command::BugReport(_) => Box::pin(bug_report::run(file, config)).await,
        Command::Explain(args) => explain::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Manual(args) => manual::run(&args),
    }
}
