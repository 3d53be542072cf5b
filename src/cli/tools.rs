//! `callboard tools`: lists the tools that a model is offered, and calls them without a model.

use std::io::BufRead;

use callboard_actors::{
    chat::RawJson,
    conversation::{
        first_sentence,
        round::rules::{ApprovalMode, CallCheck, Recovery},
    },
    ids::{CallKey, ConversationId, Scope, Seq},
    journal::ToolExecutionResult,
    ports::{Approval, PermissionLevel, Progress, Reach, SandboxPolicy, ToolSpec},
    tool::{EffectClass, ToolError, ToolErrorType},
    tool_executor::{
        LoneCall, ToolInvocationRequest, approval_denied, call_once, cancelled_before_start,
    },
};
use clap::{Args, Subcommand};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{
    ask::{Asker, Question},
    failure::{Done, Failure},
    flags::{ApproveFlag, SandboxFlag},
    mcp_servers::servers,
    run::SHUTDOWN,
    session::scope,
    signals::Signals,
    terminal::{Paint, Terminals, err_line, out_json, out_line},
    trust::{Notes, ProjectUse},
};
use crate::{
    Host,
    app::{self, App, Chosen, Overrides, Sessions, nearest},
    config::Config,
    storage::MemorySessions,
};

pub(super) const EXAMPLE: &str =
    "Example:\n  callboard tools call grep_search '{\"pattern\": \"fn main\"}'";

/// Subcommands of `tools`.
#[derive(Debug, Subcommand)]
pub(super) enum ToolsCommand {
    /// List the tools
    #[command(after_help = "Example:\n  callboard tools list --json")]
    List(ListArgs),
    /// Show a tool: its description for the model, and how it runs
    #[command(after_help = "Example:\n  callboard tools show bash")]
    Show(ShowArgs),
    /// Run a tool without a model, with all checks of a model's call (validation, permission,
    /// sandbox)
    #[command(after_help = "\
Examples:
  callboard tools call file_read '{\"path\": \"Cargo.toml\"}'
  callboard tools call bash '{\"command\": \"ls\"}' --approve auto
  printf '%s\\n' '{\"path\": \"a\"}' '{\"path\": \"b\"}' | callboard tools call file_read

Without arguments, reads one object per line from standard input and prints one result per line. Exit 1 if a call failed.")]
    Call(CallArgs),
}

/// Flags that select where tools work.
#[derive(Debug, Clone, Args)]
pub(super) struct Place {
    /// Folder that the tools work in
    #[arg(long, value_name = "DIR", default_value = ".")]
    workspace: std::path::PathBuf,
    /// How commands are isolated; auto is linux if the machine supports it, else no commands
    /// [default: auto]
    #[arg(long, value_enum)]
    sandbox: Option<SandboxFlag>,
    /// Also use the MCP servers of this file: {"mcpServers": {"name": {"command": …}}}
    #[arg(long, value_name = "FILE")]
    mcp: Option<std::path::PathBuf>,
}

/// Arguments of `tools list`.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    place: Place,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `tools show`.
#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    /// Name of the tool
    name: String,
    #[command(flatten)]
    place: Place,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `tools call`.
#[derive(Debug, Args)]
pub(super) struct CallArgs {
    /// Name of the tool
    name: String,
    /// Its arguments, a JSON object
    #[arg(value_name = "JSON")]
    arguments: Option<String>,
    #[command(flatten)]
    place: Place,
    /// Whether tools that change something may run; commands that only read need no approval [default: ask at a terminal, else deny]
    #[arg(long, value_enum)]
    approve: Option<ApproveFlag>,
    /// Print JSON; calls have no other output format
    #[arg(long)]
    json: bool,
}

impl ToolsCommand {
    pub(super) fn project_use(&self) -> ProjectUse<'_> {
        let asks = match self {
            Self::List(args) => !args.json,
            Self::Show(args) => !args.json,
            Self::Call(args) => !args.json,
        };
        ProjectUse {
            asks,
            notes: Notes::First,
            workspace: None,
        }
    }
}

/// The outcome of a call, as printed.
#[derive(Debug, Serialize)]
struct Called {
    index: usize,
    success: bool,
    is_error: bool,
    observation: String,
    level: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    artifact_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_type: Option<ToolErrorType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_code: Option<String>,
    /// Whether the same call may succeed later; `None` for a success and for an unclassified failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    should_retry: Option<bool>,
    retry_count: u32,
    duration_ms: u64,
}

impl Called {
    fn from_result(index: usize, outcome: ToolExecutionResult) -> Self {
        Self {
            index,
            success: !outcome.is_error,
            is_error: outcome.is_error,
            observation: outcome.observation,
            level: outcome.output_level.as_str(),
            artifact_id: outcome.artifact_id,
            error_type: outcome.error_type,
            error_code: outcome.error_code,
            should_retry: outcome.error_type.map(ToolErrorType::is_retryable),
            retry_count: outcome.retry_count,
            duration_ms: outcome.duration_ms,
        }
    }
}

pub(super) async fn run(config: &Config, command: ToolsCommand) -> Result<Done, Failure> {
    match command {
        ToolsCommand::List(args) => {
            let App {
                host,
                notes,
                sandbox,
                ..
            } = open(config, &args.place, None).await?;
            let specs: Vec<_> = host.setup().tools.specs().cloned().collect();
            if args.json {
                let all: Vec<_> = specs
                    .iter()
                    .map(|spec| described(spec, &host, sandbox.as_ref()))
                    .collect();
                out_json(&serde_json::to_string_pretty(&all).unwrap_or_default());
            } else {
                for spec in &specs {
                    let asks = match (
                        spec.approval == Approval::Never,
                        spec.effect == EffectClass::Pure,
                    ) {
                        (true, true) => "reads",
                        (true, false) => "works",
                        (false, _) => "asks",
                    };
                    out_line(&format!(
                        "{:<15} {asks:<6} {}",
                        spec.name(),
                        first_sentence(&spec.definition.description)
                    ));
                }
            }
            notes
                .iter()
                .for_each(|note| err_line(&Paint::stderr().dim(&format!("note: {note}"))));
            host.shutdown(SHUTDOWN).await;
            Ok(Done::Well)
        }
        ToolsCommand::Show(args) => {
            let App {
                host,
                notes,
                sandbox,
                ..
            } = open(config, &args.place, None).await?;
            let Some(spec) = host
                .setup()
                .tools
                .specs()
                .find(|spec| spec.name() == args.name)
                .cloned()
            else {
                return Err(no_tool(&host, &args.name, &notes));
            };
            if args.json {
                out_json(
                    &serde_json::to_string_pretty(&described(&spec, &host, sandbox.as_ref()))
                        .unwrap_or_default(),
                );
            } else {
                show(&spec);
            }
            host.shutdown(SHUTDOWN).await;
            Ok(Done::Well)
        }
        ToolsCommand::Call(args) => call(config, args).await,
    }
}

/// A host that is only used for its tools: it calls no model and stores no sessions.
async fn open(
    config: &Config,
    place: &Place,
    approve: Option<ApproveFlag>,
) -> Result<App, Failure> {
    let overrides = Overrides {
        workspace: place.workspace.clone(),
        sandbox: place.sandbox.map(Into::into),
        approve: approve.map(Into::into),
        mcp: servers(config, place.mcp.as_ref())?,
        mcp_file: place.mcp.clone(),
        recovery: Recovery::Close,
        at_terminal: Terminals::detect().has_person(),
        ..Overrides::default()
    };
    let sessions = Sessions::Memory(std::sync::Arc::new(MemorySessions::new()));
    let chosen = Chosen::offline();
    Ok(app::start_with(config, &overrides, &sessions, chosen).await?)
}

/// A tool's declaration, and the policy under which it runs.
fn described(spec: &ToolSpec, host: &Host, sandbox: Option<&SandboxPolicy>) -> serde_json::Value {
    let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    serde_json::json!({
        "name": spec.name(),
        "version": spec.version,
        "description": spec.definition.description,
        "input_schema": spec.definition.input_schema,
        "effect": spec.effect,
        "approval": spec.approval,
        "concurrency": spec.concurrency,
        "level": spec.level.unwrap_or(host.setup().resources.output_level),
        "returns_data": spec.returns_data,
        "cache": spec.cache,
        "shared": spec.shared && spec.effect == EffectClass::Pure,
        "timeout_ms": ms(spec.timeout),
        "retry": {
            "max_retries": if spec.effect.may_repeat() { spec.retry.max_retries } else { 0 },
            "retry_on": spec.retry.retry_on,
            "initial_delay_ms": spec.retry.initial_delay_ms,
            "max_delay_ms": spec.retry.max_delay_ms,
            "max_timeout_ms": spec.retry.max_timeout_ms,
        },
        "breaker": { "failures": spec.breaker.failures, "open_ms": ms(spec.breaker.open_for) },
        "source": spec.source,
        "reach": spec.reach,
        "sandbox": sandbox_of(spec, sandbox),
    })
}

/// The policy of a tool; null if the sandbox does not apply to it.
fn sandbox_of(spec: &ToolSpec, sandbox: Option<&SandboxPolicy>) -> serde_json::Value {
    match spec.reach {
        Reach::Commands => serde_json::to_value(sandbox).unwrap_or_default(),
        Reach::Files => serde_json::json!({
            "kind": "workspace",
            "boundary": "opened beneath the workspace; links that lead out, keys, fifos and devices refused",
            "writes": spec.effect != EffectClass::Pure,
            "network": "off",
        }),
        Reach::Web => {
            serde_json::json!({ "kind": "web", "network": "public addresses, checked before each is dialed" })
        }
        Reach::Server => {
            serde_json::json!({ "kind": "mcp", "boundary": "a process or host of its own; definitions pinned" })
        }
        Reach::Store => {
            serde_json::json!({ "kind": "store", "boundary": "what is kept for this tenant", "network": "off" })
        }
        Reach::Nothing => serde_json::json!({ "kind": "none", "network": "off" }),
        Reach::Host => serde_json::Value::Null,
    }
}

fn show(spec: &ToolSpec) {
    let word = |value: serde_json::Value| {
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    };
    let of = |value: Result<serde_json::Value, _>| value.map(word).unwrap_or_default();
    out_line(&format!(
        "{}\n\n{}\n",
        spec.name(),
        spec.definition.description
    ));
    out_line(&format!(
        "effect       {}",
        of(serde_json::to_value(spec.effect))
    ));
    out_line(&format!(
        "approval     {}",
        match (
            spec.approval == Approval::Never,
            spec.effect == EffectClass::Pure
        ) {
            (true, true) => "never: it only reads",
            (true, false) => "never",
            (false, _) => "as --approve says",
        }
    ));
    out_line(&format!(
        "concurrency  {}",
        of(serde_json::to_value(&spec.concurrency))
    ));
    out_line(&format!("timeout      {} s\n", spec.timeout.as_secs()));
    let schema: Result<serde_json::Value, _> = spec.definition.input_schema.parse();
    out_json(
        &schema
            .ok()
            .and_then(|schema| serde_json::to_string_pretty(&schema).ok())
            .unwrap_or_default(),
    );
}

fn no_tool(host: &Host, name: &str, notes: &[String]) -> Failure {
    let failure = Failure::work(format!("there is no tool `{name}`"));
    let names: Vec<String> = host
        .setup()
        .tools
        .specs()
        .map(|spec| spec.name().to_owned())
        .collect();
    let absent = notes
        .iter()
        .find(|note| name == "bash" && note.contains("bash"));
    match (absent, nearest(name, names.iter().map(String::as_str))) {
        (Some(note), _) => failure.hint(note),
        (None, Some(near)) => failure.hint(format!("did you mean `{near}`?")),
        (None, None) => failure.hint(format!("the tools are {}", names.join(", "))),
    }
}

async fn call(config: &Config, args: CallArgs) -> Result<Done, Failure> {
    let App { host, notes, .. } = open(config, &args.place, args.approve).await?;
    if host.setup().tools.get(&args.name).is_none() {
        err_line(&no_tool(&host, &args.name, &notes).text(Paint::stderr())); // The call still prints a result, the same that a model would get.
    }
    let mut caller = Caller {
        host,
        name: args.name,
        scope: scope(&ConversationId::new("tools-call")?)?,
        signals: Signals::listen(),
    };
    let mut all_well = true;
    let mut index = 0;
    let mut lines = args.arguments.map_or(Input::Stdin, Input::One);
    while let Some(line) = lines.next().await {
        if line.trim().is_empty() {
            continue;
        }
        let Some(called) = caller.call(index, &line).await else {
            caller.host.shutdown(SHUTDOWN).await;
            return Ok(Done::Interrupted);
        };
        all_well &= called.success;
        out_json(&serde_json::to_string(&called).unwrap_or_default());
        index += 1;
    }
    caller.host.shutdown(SHUTDOWN).await;
    Ok(if all_well { Done::Well } else { Done::Badly })
}

/// The source of arguments.
enum Input {
    One(String),
    Stdin,
    Over,
}

impl Input {
    async fn next(&mut self) -> Option<String> {
        match std::mem::replace(self, Self::Over) {
            Self::One(text) => Some(text),
            Self::Over => None,
            Self::Stdin => {
                let read = tokio::task::spawn_blocking(|| {
                    let mut line = Vec::new();
                    let read = std::io::stdin().lock().read_until(b'\n', &mut line);
                    read.ok()
                        .filter(|n| *n > 0)
                        .map(|_| String::from_utf8_lossy(&line).into_owned())
                });
                let line = read.await.ok().flatten()?;
                *self = Self::Stdin;
                Some(line)
            }
        }
    }
}

struct Caller {
    host: Host,
    name: String,
    scope: Scope,
    signals: Signals,
}

impl Caller {
    /// Makes one call with all checks; `None` if a person interrupted it.
    async fn call(&mut self, index: usize, arguments: &str) -> Option<Called> {
        let tool_call_id = format!("call_{index}");
        let refused = |error: &ToolError| {
            Some(Called::from_result(
                index,
                ToolExecutionResult::error(error, &tool_call_id),
            ))
        };
        let input = match RawJson::arguments(arguments.trim()) {
            Ok(input) => input,
            Err(error) => {
                return refused(&ToolError::invalid(format!("the arguments are {error}")));
            }
        };
        let setup = self.host.setup().clone();
        let (spec, input, pattern, level) = match setup.check_call(&self.scope, &self.name, &input)
        {
            CallCheck::Ready {
                spec,
                input: replaced,
                pattern,
                level,
            } => (spec, replaced.unwrap_or(input), pattern, level),
            CallCheck::Refused(error) => return refused(&error),
        };
        let why = match setup.approval {
            _ if pattern.is_none() => None, // The call only reads.
            _ if setup.resources.permissions.level == PermissionLevel::Admin => None,
            ApprovalMode::Auto => None,
            ApprovalMode::Deny => {
                Some("tools that change something are not allowed here; --approve auto allows them")
            }
            ApprovalMode::Ask if !setup.has_approver => {
                Some("approval is needed and no person is present to give it; see --approve")
            }
            ApprovalMode::Ask => match self.ask(&tool_call_id, &input).await {
                Some(true) => None,
                Some(false) => Some("the user did not approve this call"),
                None => return None,
            },
        };
        if let Some(why) = why {
            return Some(Called::from_result(
                index,
                approval_denied(&tool_call_id, why),
            ));
        }
        let Some(tool) = setup.tools.get(&self.name).cloned() else {
            return Some(Called::from_result(index, cancelled_before_start()));
        };
        let key = CallKey {
            scope: self.scope.clone(),
            seq: Seq(0),
            index: u32::try_from(index).unwrap_or(u32::MAX),
        };
        let cancel = CancellationToken::new();
        let request =
            ToolInvocationRequest::from_spec(&spec, tool_call_id, input).output_level(level);
        let running = call_once(
            LoneCall { key, tool, request },
            self.host.environment(&self.scope),
            cancel.clone(),
            Progress::silent(),
        );
        tokio::pin!(running);
        tokio::select! {
            biased;
            () = self.signals.next() => {
                // Cancelling makes the tool end its processes; a second signal skips waiting for
                // them.
                cancel.cancel();
                tokio::select! {
                    _ = &mut running => {}
                    () = self.signals.next() => {}
                    () = tokio::time::sleep(callboard_actors::limits::CANCEL_GRACE) => {}
                }
                None
            }
            outcome = &mut running => Some(Called::from_result(index, outcome)),
        }
    }

    async fn ask(&mut self, tool_call_id: &str, input: &RawJson) -> Option<bool> {
        let mut asker = Asker::new(Paint::stderr());
        asker.ask(Question {
            tool_call_id: tool_call_id.to_owned(),
            name: self.name.clone(),
            input: input.as_str().to_owned(),
            reason: "this tool changes something.".into(),
        });
        tokio::select! {
            biased;
            () = self.signals.next() => None,
            (_, answer) = asker.answered() => Some(answer.allows()),
        }
    }
}
