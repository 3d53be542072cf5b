//! Flags that commands share: of a host (`run`, `chat`, `fanout`, `sessions request`) and of a store.

use std::path::PathBuf;

use callboard_actors::{
    chat::{Effort, ModelParameters, NotATemperature, Temperature, Thinking},
    conversation::round::rules::Recovery,
    policy::Budget,
};
use clap::{Args, ValueEnum};

use super::{failure::Failure, mcp_servers::servers, terminal::Terminals};
use crate::{
    app::{Opening, Overrides, Sessions},
    config::{Approve, Config, SandboxMode, Store},
    sandbox::NamedFiles,
};

/// Flags that select the model, the folder, the tools and the store.
#[derive(Debug, Clone, Args)]
pub(super) struct HostFlags {
    /// Provider: anthropic, openai, openai-responses, gemini, offline, or a name from the configuration
    #[arg(long, value_name = "NAME", help_heading = "Model")]
    pub(super) provider: Option<String>,
    /// Model, as the provider calls it
    #[arg(long, value_name = "NAME", help_heading = "Model")]
    pub(super) model: Option<String>,
    /// Base URL of the provider, as in the official SDKs: Anthropic without /v1, OpenAI with it
    #[arg(long, value_name = "URL", help_heading = "Model")]
    pub(super) base_url: Option<String>,
    /// Tokens of the longest answer [default: the model's own maximum, up to 8192]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Model")]
    pub(super) max_tokens: Option<u32>,
    /// How much the model reasons before it answers
    #[arg(long, value_enum, help_heading = "Model")]
    pub(super) effort: Option<EffortFlag>,
    /// Extended thinking of Anthropic's models: off, adaptive, or the most tokens of thoughts
    #[arg(long, value_name = "T", help_heading = "Model")]
    pub(super) thinking: Option<Thinking>,
    /// Temperature, 0 to 2; newer models refuse it
    #[arg(long, value_name = "X", value_parser = temperature, help_heading = "Model")]
    pub(super) temperature: Option<Temperature>,
    /// System prompt in place of the built-in one
    #[arg(long, value_name = "TEXT", help_heading = "Model")]
    pub(super) system: Option<String>,
    /// Folder that the tools work in; its AGENTS.md is read if it is trusted
    #[arg(long, value_name = "DIR", default_value = ".", help_heading = "Tools")]
    pub(super) workspace: PathBuf,
    /// Session file [default: in the data folder of the configuration]
    #[arg(long, value_name = "FILE", help_heading = "Session")]
    pub(super) db: Option<PathBuf>,
    /// Batches of tool calls in a round, at most [default: 25]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub(super) max_tool_iterations: Option<u32>,
    /// Whether tools that change something may run; commands that only read need no approval [default: ask at a terminal, else deny]
    #[arg(long, value_enum, help_heading = "Tools")]
    pub(super) approve: Option<ApproveFlag>,
    /// How commands are isolated; auto is linux if the machine supports it, else no commands
    /// [default: auto]
    #[arg(long, value_enum, help_heading = "Tools")]
    pub(super) sandbox: Option<SandboxFlag>,
    /// Only these tools, separated by commas
    #[arg(
        long,
        value_name = "A,B",
        value_delimiter = ',',
        help_heading = "Tools"
    )]
    pub(super) tools: Option<Vec<String>>,
    /// No tools
    #[arg(long, conflicts_with = "tools", help_heading = "Tools")]
    pub(super) no_tools: bool,
    /// Folder of skills, each a folder with a SKILL.md
    #[arg(long, value_name = "DIR", help_heading = "Tools")]
    pub(super) skills: Option<PathBuf>,
    /// Tokens that the session may use in total, in and out
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub(super) budget_tokens: Option<u64>,
    /// US dollars that the session may cost in total; the model needs a price in [prices]
    #[arg(long, value_name = "X", value_parser = dollars, help_heading = "Limits")]
    pub(super) budget_usd: Option<f64>,
    /// Also use the MCP servers of this file: {"mcpServers": {"name": {"command": …}}}
    #[arg(long, value_name = "FILE", help_heading = "Tools")]
    pub(super) mcp: Option<PathBuf>,
}

/// Values of `--effort`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum EffortFlag {
    /// Little
    Low,
    /// Some
    Medium,
    /// Much
    High,
}

/// Values of `--approve`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ApproveFlag {
    /// Ask a person each time
    Ask,
    /// Refuse them
    Deny,
    /// Run them
    Auto,
}

/// Values of `--sandbox`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum SandboxFlag {
    /// In a kernel sandbox if this machine supports one, else no commands
    Auto,
    /// In a kernel sandbox, or fail
    Linux,
    /// On this machine WITHOUT a sandbox
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

/// Bytes of a file of certificates. A larger one is another kind of file.
#[cfg(feature = "mock-model")]
const PEM_BYTES_MAX: u64 = 1024 * 1024;

/// Reads the PEM file that a flag names.
#[cfg(feature = "mock-model")]
pub(super) fn read_pem(flag: &str, file: &std::path::Path) -> Result<Vec<u8>, Failure> {
    use std::io::Read as _;

    let mut pem = Vec::new();
    crate::named_file::open(file)
        .and_then(|file| file.take(PEM_BYTES_MAX + 1).read_to_end(&mut pem))
        .map_err(|error| {
            let said = crate::os_error::of_file(file.display(), &error);
            Failure::usage(format!("{flag}: {said}"))
        })?;
    if pem.len() as u64 > PEM_BYTES_MAX {
        return Err(Failure::usage(format!(
            "the file of {flag} is larger than {PEM_BYTES_MAX} bytes"
        )));
    }
    Ok(pem)
}

/// The effort that a flag names.
pub(super) fn effort(flag: EffortFlag) -> Effort {
    match flag {
        EffortFlag::Low => Effort::Low,
        EffortFlag::Medium => Effort::Medium,
        EffortFlag::High => Effort::High,
    }
}

pub(super) fn temperature(text: &str) -> Result<Temperature, String> {
    let number = text
        .parse::<f64>()
        .map_err(|_| NotATemperature.to_string())?;
    Temperature::try_from(number).map_err(|error| error.to_string())
}

pub(super) fn dollars(text: &str) -> Result<f64, String> {
    let usd = text
        .parse::<f64>()
        .ok()
        .filter(|usd| (0.0..1e9).contains(usd));
    usd.ok_or_else(|| "it must be an amount of US dollars, 0 or more".into())
}

impl HostFlags {
    /// How the model is asked to answer.
    pub(super) fn parameters(&self) -> ModelParameters {
        ModelParameters {
            max_tokens: self.max_tokens,
            effort: self.effort.map(effort),
            thinking: self.thinking,
            temperature: self.temperature,
            stop: None,
        }
    }

    /// The session's budget.
    pub(super) fn budget(&self) -> Budget {
        let budget = Budget {
            tokens: self.budget_tokens,
            ..Budget::default()
        };
        self.budget_usd.into_iter().fold(budget, Budget::with_usd)
    }

    /// The flags as overrides of the configuration.
    ///
    /// # Errors
    /// The file of MCP servers cannot be read or is invalid.
    pub(super) fn overrides(
        &self,
        config: &Config,
        recovery: Recovery,
    ) -> Result<Overrides, Failure> {
        Ok(Overrides {
            provider: self.provider.clone(),
            model: self.model.clone(),
            base_url: self.base_url.clone(),
            system: self.system.clone(),
            workspace: self.workspace.clone(),
            db: self.db.clone(),
            parameters: self.parameters(),
            tool_iterations_max: self.max_tool_iterations,
            approve: self.approve.map(Into::into),
            sandbox: self.sandbox.map(Into::into),
            tools: if self.no_tools {
                Some(Vec::new())
            } else {
                self.tools.clone()
            },
            skills: self.skills.clone(),
            mcp: servers(config, self.mcp.as_ref())?,
            mcp_file: self.mcp.clone(),
            named: NamedFiles::default(),
            recovery,
            budget: self.budget(),
            at_terminal: Terminals::detect().has_person(),
        })
    }
}

/// The flag `--db`.
#[derive(Debug, Clone, Args)]
pub(super) struct StoreFlag {
    /// Session file [default: in the data folder of the configuration]
    #[arg(long, value_name = "FILE")]
    pub(super) db: Option<PathBuf>,
}

impl StoreFlag {
    /// The file; `None` if sessions are kept in memory.
    pub(super) fn path(&self, config: &Config) -> Option<PathBuf> {
        match (&self.db, &config.store) {
            (Some(path), _) | (None, Store::Sqlite(path)) => Some(path.clone()),
            (None, Store::Postgres(_) | Store::Memory) => None,
        }
    }

    pub(super) async fn open(
        &self,
        config: &Config,
        opening: Opening,
    ) -> Result<Sessions, Failure> {
        Ok(Sessions::open(config, self.db.as_deref(), opening).await?)
    }
}
