//! Flags that `run`, `chat` and `sessions request` share.

use std::path::PathBuf;

use callboard_actors::{conversation::round::rules::Recovery, policy::Budget};
use clap::{Args, ValueEnum};

use super::{failure::Failure, mcp::servers, terminal::Terminals};
use crate::{
    app::Wishes,
    config::{Approve, Config, SandboxMode},
};

/// The model, the folder, the tools and the store.
#[derive(Debug, Clone, Args)]
pub(super) struct HostFlags {
    /// Provider: anthropic, openai, offline, or a name from the configuration
    #[arg(long, value_name = "NAME")]
    pub(super) provider: Option<String>,
    /// Model, as the provider calls it
    #[arg(long, value_name = "NAME")]
    pub(super) model: Option<String>,
    /// Where the provider listens, as for the official SDKs: Anthropic without /v1, OpenAI with it
    #[arg(long, value_name = "URL")]
    pub(super) base_url: Option<String>,
    /// System prompt in place of the built-in one
    #[arg(long, value_name = "TEXT")]
    pub(super) system: Option<String>,
    /// Folder that the tools work in; its AGENTS.md is read if it is trusted
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(super) workspace: PathBuf,
    /// Session file [default: in the data folder of the configuration]
    #[arg(long, value_name = "FILE")]
    pub(super) db: Option<PathBuf>,
    /// Rounds of tool calls at most [default: 25]
    #[arg(long, value_name = "N")]
    pub(super) max_tool_iterations: Option<u32>,
    /// Whether tools that change something may run; commands that only read need no approval [default: ask at a terminal, else deny]
    #[arg(long, value_enum)]
    pub(super) approve: Option<ApproveFlag>,
    /// Where commands run; auto is linux, or no commands at all [default: auto]
    #[arg(long, value_enum)]
    pub(super) sandbox: Option<SandboxFlag>,
    /// Only these tools, by name, with commas
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(super) tools: Option<Vec<String>>,
    /// No tools
    #[arg(long, conflicts_with = "tools")]
    pub(super) no_tools: bool,
    /// Folder of skills, each a folder with a SKILL.md
    #[arg(long, value_name = "DIR")]
    pub(super) skills: Option<PathBuf>,
    /// Tokens that the session may use in all, in and out
    #[arg(long, value_name = "N")]
    pub(super) budget_tokens: Option<u64>,
    /// US dollars that the session may cost in all; the model needs a price in [prices]
    #[arg(long, value_name = "X", value_parser = dollars)]
    pub(super) budget_usd: Option<f64>,
    /// MCP servers of this file too: {"mcpServers": {"name": {"command": …}}}
    #[arg(long, value_name = "FILE")]
    pub(super) mcp: Option<PathBuf>,
}

/// `--approve`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ApproveFlag {
    /// A person is asked
    Ask,
    /// They are refused
    Deny,
    /// They run
    Auto,
}

/// `--sandbox`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum SandboxFlag {
    /// Behind a boundary of the kernel where one is to be had, else no commands
    Auto,
    /// Behind a boundary of the kernel, or an error
    Linux,
    /// On this machine WITHOUT a boundary
    Local,
    /// No commands
    None,
}

impl From<ApproveFlag> for Approve {
    fn from(flag: ApproveFlag) -> Self {
        match flag {
            ApproveFlag::Ask => Self::Ask,
            ApproveFlag::Deny => Self::Deny,
            ApproveFlag::Auto => Self::Auto,
        }
    }
}

impl From<SandboxFlag> for SandboxMode {
    fn from(flag: SandboxFlag) -> Self {
        match flag {
            SandboxFlag::Auto => Self::Auto,
            SandboxFlag::Linux => Self::Linux,
            SandboxFlag::Local => Self::Local,
            SandboxFlag::None => Self::None,
        }
    }
}

fn dollars(text: &str) -> Result<f64, String> {
    let usd = text.parse::<f64>().ok().filter(|usd| (0.0..1e9).contains(usd));
    usd.ok_or_else(|| "it must be an amount of US dollars, 0 or more".into())
}

impl HostFlags {
    /// What may be spent.
    pub(super) fn budget(&self) -> Budget {
        let budget = Budget { tokens: self.budget_tokens, ..Budget::default() };
        self.budget_usd.into_iter().fold(budget, Budget::with_usd)
    }

    /// As the composition root wants it.
    ///
    /// # Errors
    /// The file of MCP servers cannot be used.
    pub(super) fn wishes(&self, config: &Config, recovery: Recovery) -> Result<Wishes, Failure> {
        Ok(Wishes {
            provider: self.provider.clone(),
            model: self.model.clone(),
            base_url: self.base_url.clone(),
            system: self.system.clone(),
            workspace: self.workspace.clone(),
            db: self.db.clone(),
            tool_iterations_max: self.max_tool_iterations,
            approve: self.approve.map(Into::into),
            sandbox: self.sandbox.map(Into::into),
            tools: if self.no_tools { Some(Vec::new()) } else { self.tools.clone() },
            skills: self.skills.clone(),
            mcp: servers(config, self.mcp.as_ref())?,
            recovery,
            budget: self.budget(),
            at_terminal: Terminals::look().has_person(),
        })
    }
}
