//! `callboard mcp`: lists the tools of the configured MCP servers, checks the servers for problems,
//! and serves MCP clients itself.

mod proxy;
mod serve;

use std::{path::PathBuf, sync::Arc, time::Duration};

use callboard_actors::{ids::TenantId, ports::McpError};
use clap::{Args, Subcommand};
use futures_util::future::join_all;
use serde_json::json;

use super::{
    failure::{Done, Failure},
    mcp_servers::servers,
    signals::Signals,
    terminal::{counted, err_line, out_json, out_line},
    trust::{Notes, ProjectUse},
};
use crate::{
    app::{self, TENANT, nearest},
    config::Config,
    mcp::{self, FilePins, McpPool, McpServerConfig, PinStatus, Survey},
    telemetry::Telemetry,
};

pub(super) const EXAMPLE: &str = "Example:\n  callboard mcp check --mcp servers.json";

/// Subcommands of `mcp`.
#[derive(Debug, Subcommand)]
pub(super) enum McpCommand {
    /// List the tools that the servers offer
    #[command(after_help = "Example:\n  callboard mcp list --mcp servers.json --json")]
    List(McpArgs),
    /// Print problems, one per line; accept changed tools with --accept
    #[command(after_help = "\
Examples:
  callboard mcp check
  callboard mcp check --mcp servers.json --accept time
  callboard mcp check --accept files__read_file

Exit 1 if a server cannot be reached or a tool changed since it was accepted.")]
    Check(CheckArgs),
    Serve(Box<serve::ServeArgs>),
}

/// Flags that select the servers.
#[derive(Debug, Args)]
pub(super) struct McpArgs {
    /// Also use the servers of this file: {"mcpServers": {"name": {"command": …}}}
    #[arg(long, value_name = "FILE")]
    mcp: Option<PathBuf>,
    /// Show them as this tenant of `serve` sees them
    #[arg(long, value_name = "ID", default_value = TENANT)]
    tenant: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `mcp check`.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    servers: McpArgs,
    /// Accept a tool as it is now, or all tools of a server
    #[arg(long, value_name = "NAME")]
    accept: Option<String>,
}

impl McpCommand {
    pub(super) fn project_use(&self) -> ProjectUse<'_> {
        let args = match self {
            Self::List(args) => args,
            Self::Check(args) => &args.servers,
            Self::Serve(args) => {
                return ProjectUse {
                    workspace: Some(&args.host.workspace),
                    ..ProjectUse::quiet(Notes::Own)
                };
            }
        };
        ProjectUse {
            asks: !args.json,
            notes: Notes::First,
            workspace: None,
        }
    }
}

/// The result of surveyor one server. An error comes with the last output of the server's process.
struct SurveyOf {
    server: String,
    survey: Result<Survey, (McpError, String)>,
}

struct Surveyor {
    pool: McpPool,
    tenant: TenantId,
    pins: Arc<FilePins>,
    workspace: PathBuf,
}

impl Surveyor {
    fn new(config: &Config, tenant: &str) -> Result<Self, Failure> {
        let pool = app::mcp_pool(app::masker(config), &config.data_dir)?;
        let of_tenant = config
            .tenants
            .iter()
            .find(|known| known.id.as_str() == tenant);
        Ok(Self {
            pool,
            tenant: TenantId::new(tenant)?,
            pins: Arc::new(FilePins::new(&config.data_dir)),
            workspace: of_tenant
                .and_then(|tenant| tenant.workspace.clone())
                .unwrap_or_else(|| PathBuf::from(".")),
        })
    }

    async fn survey(&self, server: &McpServerConfig) -> SurveyOf {
        let server = &server.clone().in_workspace(&self.workspace);
        let survey = mcp::survey(server, &self.pool, &self.tenant, &*self.pins).await;
        let words = || {
            self.pool
                .server(&self.tenant, server)
                .map(|server| server.last_stderr_line())
                .unwrap_or_default()
        };
        SurveyOf {
            server: server.name.clone(),
            survey: survey.map_err(|error| (error, words())),
        }
    }

    async fn survey_all(&self, servers: &[McpServerConfig]) -> Vec<SurveyOf> {
        join_all(servers.iter().map(|server| self.survey(server))).await
    }
}

pub(super) async fn run(
    config: &Config,
    command: McpCommand,
    telemetry: &Telemetry,
) -> Result<Done, Failure> {
    match command {
        McpCommand::List(args) => {
            let surveyor = Surveyor::new(config, &args.tenant)?;
            let servers = servers(config, args.mcp.as_ref())?;
            until_a_signal(&surveyor, list(&surveyor, &servers, args.json)).await
        }
        McpCommand::Check(args) => {
            let surveyor = Surveyor::new(config, &args.servers.tenant)?;
            let servers = servers(config, args.servers.mcp.as_ref())?;
            until_a_signal(&surveyor, check(&surveyor, &servers, &args)).await
        }
        McpCommand::Serve(args) => Box::pin(serve::run(config, *args, telemetry.redactor())).await,
    }
}

/// Runs until it is done, or until a signal; then closes the servers.
async fn until_a_signal(
    surveyor: &Surveyor,
    working: impl Future<Output = Result<Done, Failure>>,
) -> Result<Done, Failure> {
    let mut signals = Signals::listen();
    let done = tokio::select! {
        biased;
        () = signals.next() => Ok(Done::Interrupted),
        done = working => done,
    };
    // A hanging server must not delay the exit.
    let _ = tokio::time::timeout(Duration::from_secs(6), surveyor.pool.close_all()).await;
    done
}

async fn list(
    surveyor: &Surveyor,
    servers: &[McpServerConfig],
    as_json: bool,
) -> Result<Done, Failure> {
    let surveyed = surveyor.survey_all(servers).await;
    if as_json {
        out_json(
            &serde_json::to_string_pretty(&surveyed.iter().map(described).collect::<Vec<_>>())
                .unwrap_or_default(),
        );
    } else {
        for offer in surveyed
            .iter()
            .filter_map(|surveyed| surveyed.survey.as_ref().ok())
            .flat_map(|survey| &survey.offers)
        {
            let description = offer
                .definition
                .description
                .lines()
                .next()
                .unwrap_or_default();
            out_line(&format!(
                "{:<40} {}",
                offer.name,
                description.chars().take(100).collect::<String>()
            ));
        }
        if servers.is_empty() {
            err_line(
                "note: no MCP server is configured: see `[[mcp]]` in callboard.toml, or --mcp FILE",
            );
        }
        lines(&surveyed)
            .iter()
            .for_each(|line| err_line(&format!("note: {line}")));
    }
    Ok(
        if surveyed.iter().any(|surveyed| surveyed.survey.is_err()) {
            Done::Badly
        } else {
            Done::Well
        },
    )
}

async fn check(
    surveyor: &Surveyor,
    servers: &[McpServerConfig],
    args: &CheckArgs,
) -> Result<Done, Failure> {
    if let Some(named) = &args.accept {
        return accept(surveyor, servers, named).await;
    }
    let surveyed = surveyor.survey_all(servers).await;
    let wrong = |surveyed: &SurveyOf| match &surveyed.survey {
        Ok(survey) => survey
            .offers
            .iter()
            .any(|offer| offer.status == PinStatus::Changed),
        Err(_) => true,
    };
    if args.servers.json {
        out_json(
            &serde_json::to_string_pretty(&surveyed.iter().map(described).collect::<Vec<_>>())
                .unwrap_or_default(),
        );
    } else {
        for surveyed in &surveyed {
            if let Ok(survey) = &surveyed.survey {
                let new = survey
                    .offers
                    .iter()
                    .filter(|offer| offer.status == PinStatus::New)
                    .count();
                let new = if new > 0 {
                    format!(", {new} of them new and pinned")
                } else {
                    String::new()
                };
                out_line(&format!(
                    "{}: {}{new} (protocol {})",
                    surveyed.server,
                    counted(survey.offers.len(), "tool"),
                    survey.protocol
                ));
            }
        }
        lines(&surveyed).iter().for_each(|line| out_line(line));
        if servers.is_empty() {
            out_line("no MCP server is configured");
        }
    }
    Ok(if surveyed.iter().any(wrong) {
        Done::Badly
    } else {
        Done::Well
    })
}

async fn accept(
    surveyor: &Surveyor,
    servers: &[McpServerConfig],
    named: &str,
) -> Result<Done, Failure> {
    let whose = |server: &&McpServerConfig| {
        server.name == named || named.starts_with(&format!("{}__", server.name))
    };
    let Some(server) = servers.iter().find(whose) else {
        let failure = Failure::work(format!(
            "there is no MCP server `{named}`, and no server has a tool of this name"
        ));
        return Err(
            match nearest(named, servers.iter().map(|server| server.name.as_str())) {
                Some(near) => failure.hint(format!("did you mean `{near}`?")),
                None => failure.hint("`callboard mcp list` shows all tools"),
            },
        );
    };
    let accepted = mcp::accept(
        server,
        &surveyor.pool,
        &surveyor.tenant,
        &*surveyor.pins,
        named,
    )
    .await;
    match accepted.map_err(|error| Failure::work(error.to_string()))? {
        0 => out_line(&format!("{named}: nothing changed since it was accepted")),
        1 => out_line(&format!("{named}: accepted 1 tool as it is now")),
        count => out_line(&format!("{named}: accepted {count} tools as they are now")),
    }
    Ok(Done::Well)
}

/// The problems of all servers, one per line.
fn lines(surveyed: &[SurveyOf]) -> Vec<String> {
    let of = |surveyed: &SurveyOf| match &surveyed.survey {
        Ok(survey) => survey.notes.clone(),
        Err((error, words)) if words.is_empty() => vec![error.to_string()],
        Err((error, words)) => vec![format!("{error} (its last output: {words})")],
    };
    surveyed.iter().flat_map(of).collect()
}

fn described(surveyed: &SurveyOf) -> serde_json::Value {
    let survey = match &surveyed.survey {
        Ok(survey) => survey,
        Err((error, words)) => {
            return json!({"server": surveyed.server, "error": error.to_string(), "stderr": words});
        }
    };
    let status = |status| match status {
        PinStatus::New => "new",
        PinStatus::Same => "same",
        PinStatus::Changed => "changed",
    };
    let tools: Vec<_> = survey
        .offers
        .iter()
        .map(|offer| {
            json!({
                "name": offer.name,
                "tool": offer.definition.name,
                "description": offer.definition.description,
                "input_schema": offer.definition.input_schema,
                "read_only": offer.definition.read_only,
                "idempotent": offer.definition.idempotent,
                "sha256": offer.definition.digest,
                "standing": status(offer.status),
            })
        })
        .collect();
    json!({"server": surveyed.server, "protocol": survey.protocol, "tools": tools, "notes": survey.notes})
}
