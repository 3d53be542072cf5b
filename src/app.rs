//! The composition root of the binary: builds adapters from configuration and flags, and a [`Host`]
//! from the adapters. Only this module knows every adapter. It prints nothing; messages for users
//! are returned as text.

mod evals;
mod gateways;
mod home_links;
mod instructions;
mod masked;
mod operator;
mod peers;
mod resume;
mod serving;
mod sessions;
mod skills;
mod stored_tenants;
mod tenant_store;
mod tenants;
mod tools;
mod window;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use callboard_actors::{
    chat::ModelParameters,
    conversation::{
        Setup,
        round::rules::{ApprovalMode, Recovery},
    },
    host::{BuildError, HostBuilder},
    ids::TenantId,
    limits::Limits,
    policy::Budget,
    ports::{LlmProvider, SandboxPolicy, StoreError},
    tokens::TokenCounter,
    tool_executor::Permissions,
};

use crate::{
    Host,
    config::{
        Approve, Config, ConfigError, ConnectionConfig, Overlap, ProviderConfig, ProviderKind,
        SandboxMode, Store, overlap, stored,
    },
    mcp::McpServerConfig,
    providers::{
        Anthropic, Gemini, Network, OpenAi, ProviderConfigError, Timeouts, offline::Offline,
    },
    sandbox::NamedFiles,
    storage::LockError,
    tls::Trust,
    trust::TrustStore,
};

pub(crate) use evals::{check_trial_tools, eval_host, judge, trial_sandbox};
use gateways::OwnGateway;
use instructions::Agreed;
pub(crate) use instructions::{AGENTS_BYTES_MAX, instructions_of};
use masked::masked;
pub(crate) use operator::TenantOperator;
pub(crate) use serving::{Serving, Single, serving};
pub(crate) use sessions::{Opening, Sessions};
use skills::Skills;
pub(crate) use stored_tenants::{StoredTenantsError, stored_tenants_file};
use tools::ToolSetup;
pub(crate) use tools::{masker, mcp_pool, mode as sandbox_mode, release_artifacts};

/// The tenant of a person at a terminal, and of `serve` without configured tenants.
pub(crate) const TENANT: &str = "default";

/// The model name of the offline provider, which has only one.
const OFFLINE_MODEL: &str = "rules";

/// The values of command-line flags. `None` leaves the choice to the configuration.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overrides {
    pub(crate) provider: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) base_url: Option<String>,
    /// Replaces the built-in system prompt.
    pub(crate) system: Option<String>,
    pub(crate) workspace: PathBuf,
    pub(crate) db: Option<PathBuf>,
    pub(crate) tool_iterations_max: Option<u32>,
    /// How the model is asked to answer.
    pub(crate) parameters: ModelParameters,
    pub(crate) approve: Option<Approve>,
    pub(crate) sandbox: Option<SandboxMode>,
    /// Names of the tools to offer; an empty list offers none.
    pub(crate) tools: Option<Vec<String>>,
    /// Folder of skills.
    pub(crate) skills: Option<PathBuf>,
    /// All MCP servers, including those of the configuration.
    pub(crate) mcp: Vec<McpServerConfig>,
    /// The file that names further MCP servers.
    pub(crate) mcp_file: Option<PathBuf>,
    /// The files that all sessions of this process have named.
    pub(crate) named: NamedFiles,
    pub(crate) recovery: Recovery,
    /// Budget of the conversation.
    pub(crate) budget: Budget,
    /// Whether a person is present who can approve tool calls.
    pub(crate) at_terminal: bool,
}

/// Why the host could not be built.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("provider `{name}`: {error}")]
    Provider {
        name: String,
        error: ProviderConfigError,
    },
    #[error("--base-url needs a provider that speaks over the network")]
    BaseUrlWithoutProvider,
    #[error("{0}")]
    Tools(String),
    #[error("there is no tool `{name}`{}", nearest.as_ref().map(|name| format!("; did you mean `{name}`?")).unwrap_or_default())]
    NoSuchTool {
        name: String,
        nearest: Option<String>,
    },
    #[error("skills: {}", crate::os_error::of_folder(path, *reason))]
    Skills {
        path: PathBuf,
        reason: std::io::ErrorKind,
    },
    #[error("the sessions in {} cannot be used: {}", path.display(), unusable(error))]
    Store { path: PathBuf, error: StoreError },
    #[error("the sessions in {address} cannot be used: {error}")]
    Database { address: String, error: StoreError },
    #[error("another host serves {0}")]
    Served(String),
    #[error("there is no session file {}", .0.display())]
    NoStore(PathBuf),
    #[error("{}: there is no such folder", .0.display())]
    NoFolder(PathBuf),
    #[error("the sessions would lie inside the workspace, where the model's tools could read them ({})", .0.display())]
    DataInWorkspace(PathBuf),
    #[error("the workspace lies inside the folder of the sessions ({})", .0.display())]
    WorkspaceInData(PathBuf),
    #[error("tenant `{id}`: {error}")]
    Tenant { id: TenantId, error: Box<AppError> },
    #[error(transparent)]
    StoredTenants(#[from] StoredTenantsError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Build(#[from] callboard_actors::host::BuildError),
}

impl AppError {
    /// What the user can do about the error, if there is advice.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Config(ConfigError::NoKey { .. }) => Some("set it, or use --provider offline, which needs none".into()),
            Self::Build(BuildError::NoPrice { .. }) => Some("add it to [prices] in callboard.toml".into()),
            Self::Config(_) | Self::NoSuchTool { .. } | Self::Build(_) => None,
            Self::Provider { .. } => Some("see --base-url and the provider's section in callboard.toml".into()),
            Self::BaseUrlWithoutProvider => Some("add --provider anthropic or --provider openai".into()),
            Self::Skills { .. } => Some("see --skills and `[skills] dir`".into()),
            Self::Tools(_) => Some("see --workspace and --sandbox".into()),
            Self::Store { error: StoreError::NewerSchema { .. } | StoreError::Corrupt { .. }, .. } => None,
            Self::Store { error, .. } if is_of_another(error) => Some("name another file with --db FILE, or move this one away".into()),
            Self::Store { .. } => Some("choose another place with --db FILE, or make this one writable".into()),
            Self::Database { error: StoreError::NewerSchema { .. }, .. } => None,
            Self::Database { .. } => Some("check `[store] url`, and that the server runs; `callboard doctor` checks it".into()),
            Self::Served(_) => Some("end that one, wait for its end with --standby (12 s after a crash), or set `[host] peer_address` on both to serve together".into()),
            Self::NoStore(_) => Some("check --db".into()),
            Self::NoFolder(_) => Some("make it, or choose another place with --db FILE".into()),
            Self::DataInWorkspace(_) | Self::WorkspaceInData(_) => {
                Some("name a project's folder with --workspace DIR, or run without tools: --no-tools".into())
            }
            Self::Tenant { error, .. } => error.hint(),
            Self::StoredTenants(StoredTenantsError::InUse(_)) => Some("end that one, or give this one another `[host] data_dir`".into()),
            Self::StoredTenants(_) | Self::Lock(_) => None,
        }
    }

    /// Whether the request itself was invalid: the process then exits with code 2.
    pub(crate) fn is_usage(&self) -> bool {
        !matches!(
            self,
            Self::Lock(_)
                | Self::NoStore(_)
                | Self::StoredTenants(_)
                | Self::Database { .. }
                | Self::Served(_)
        )
    }
}

/// What is wrong with a store whose path an error names before.
fn unusable(error: &StoreError) -> String {
    match error {
        StoreError::Unavailable { message } => match message.split_once(": ") {
            Some((start, why)) if start.starts_with("cannot open ") => why.to_owned(),
            _ => message.clone(),
        },
        error => error.to_string(),
    }
}

fn is_of_another(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable { message } if crate::storage::is_of_another(message))
}

/// A provider and its name for users.
pub(crate) struct Chosen {
    pub(crate) provider: Arc<dyn LlmProvider>,
    pub(crate) name: String,
    pub(crate) model: String,
    /// Its configuration; `None` for [`Chosen::offline`].
    pub(crate) config: Option<ProviderConfig>,
}

impl Chosen {
    /// The offline provider, for commands that call no model.
    pub(crate) fn offline() -> Self {
        Self {
            provider: Arc::new(Offline),
            name: ProviderKind::Offline.as_str().to_owned(),
            model: OFFLINE_MODEL.to_owned(),
            config: None,
        }
    }
}

/// A running host, and what to report about it.
pub(crate) struct App {
    pub(crate) host: Host,
    pub(crate) provider: String,
    pub(crate) model: String,
    pub(crate) workspace: PathBuf,
    /// Lines for the user, such as why bash is missing.
    pub(crate) notes: Vec<String>,
    /// What commands may do; `None` if there are no commands.
    pub(crate) sandbox: Option<SandboxPolicy>,
}

impl App {
    /// The setup of the person's conversations.
    pub(crate) fn setup(&self) -> Arc<Setup> {
        match TenantId::new(TENANT) {
            Ok(tenant) => self.host.setup_of(&tenant),
            Err(_) => self.host.setup().clone(),
        }
    }
}

/// Builds the host over sessions that are already open.
pub(crate) async fn start(
    config: &Config,
    overrides: &Overrides,
    sessions: &Sessions,
) -> Result<App, AppError> {
    let mut chosen = choose_provider(config, overrides, Purpose::Calls)?;
    if let Some(provider) = &mut chosen.config {
        let asked = window::of_server(
            provider,
            overrides.base_url.as_deref(),
            overrides.model.as_deref(),
        );
        if let Some(window) = asked.await {
            provider.context_window = Some(window);
            chosen.provider = provider_of(provider, config, overrides, Purpose::Calls)?;
        }
    }
    start_with(config, overrides, sessions, chosen).await
}

/// As [`start`], but with the given provider.
pub(crate) async fn start_with(
    config: &Config,
    overrides: &Overrides,
    sessions: &Sessions,
    chosen: Chosen,
) -> Result<App, AppError> {
    let ToolSetup {
        toolbox,
        artifacts,
        subagents,
        resources,
    } = tools::tool_setup(config, overrides, sessions).await?;
    let workspace = toolbox
        .workspace
        .as_ref()
        .map_or_else(|| overrides.workspace.clone(), |path| path.as_ref().clone());
    let mut limits = config.limits.clone();
    limits.tool_iterations_max = overrides
        .tool_iterations_max
        .unwrap_or(limits.tool_iterations_max);
    let approve = overrides
        .approve
        .or(config.approve)
        .unwrap_or(if overrides.at_terminal {
            Approve::Ask
        } else {
            Approve::Deny
        });
    let mut notes = toolbox.notes.clone();
    let remembers = toolbox.tools.iter().any(|tool| {
        tool.spec().name()
            == <crate::tools::memory::Memory as callboard_actors::ports::TypedTool>::NAME
    });
    let system = system_prompt(overrides, &workspace, config.trust(), remembers, &mut notes);
    let sandbox = toolbox.sandbox.clone();
    let skills = wanted_skills(config, overrides)?;
    let redactor = crate::observe::Redactor::new(config.masked_texts());
    redactor.learn(
        overrides
            .mcp
            .iter()
            .flat_map(|server| server.keys(|name| std::env::var(name).ok())),
    );
    let builder = resources
        .into_iter()
        .fold(Host::builder(), HostBuilder::closes);
    #[cfg(all(feature = "pdf", target_os = "linux"))]
    let builder = builder.document_text(crate::sandbox::PdfText::new());
    let builder = if subagents {
        builder.subagents()
    } else {
        builder
    };
    let provider = masked(chosen.provider.clone(), &redactor);
    let own = OwnGateway::new(config, &chosen, provider.clone(), &redactor)?;
    let host = skills
        .into_iter()
        .fold(builder, HostBuilder::skills)
        .shared_provider(provider.clone())
        .model(&chosen.model)
        .parameters(overrides.parameters.clone())
        .system(system)
        .shared_sessions(sessions.backend())
        .tools(toolbox)
        .artifacts(artifacts)
        .approval(match approve {
            Approve::Ask => ApprovalMode::Ask,
            Approve::Deny => ApprovalMode::Deny,
            Approve::Auto => ApprovalMode::Auto,
        })
        .has_approver(overrides.at_terminal)
        .recovery(overrides.recovery)
        .prices(config.prices.clone())
        .skill_models(config.skill_models.iter().cloned())
        .skill_policy(config.tool_rules.skill_policy())
        .output_level(config.tool_rules.output_level.unwrap_or_default())
        .permissions(permissions(config))
        .trace_sampling(config.observability.sampling())
        .mask_results(move |text| redactor.mask_exact(text))
        .compaction(config.compaction.clone())
        .tokens(Arc::new(TokenCounter::new(config.tokens.registry())))
        .budget(overrides.budget)
        .limits(limits)
        .build()
        .await?;
    own.configure(&host).await?;
    Ok(App {
        host,
        provider: chosen.name,
        model: chosen.model,
        workspace,
        notes,
        sandbox,
    })
}

/// What tools may do, as the configuration says.
fn permissions(config: &Config) -> Permissions {
    Permissions {
        level: config.tool_rules.permission.unwrap_or_default(),
        ..Permissions::default()
    }
}

/// Opens the folder of skills: the flag's, or the configuration's unless only some tools are
/// offered.
fn wanted_skills(config: &Config, overrides: &Overrides) -> Result<Option<Skills>, AppError> {
    let all_tools = overrides.tools.is_none() && config.tools.is_none();
    let path = overrides
        .skills
        .as_ref()
        .or(config.skills.as_ref().filter(|_| all_tools));
    path.map(|path| Skills::open(config, path)).transpose()
}

/// What the caller does with a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Calls it: the provider needs its key.
    Calls,
    /// Prints request bodies: nothing is sent, so no key is needed.
    Bodies,
}

/// Chooses a provider: by flag, else by configuration, else by a key in the environment, else
/// offline.
pub(crate) fn choose_provider(
    config: &Config,
    overrides: &Overrides,
    purpose: Purpose,
) -> Result<Chosen, AppError> {
    let chosen = config.choose(overrides.provider.as_deref())?;
    let kind = chosen.kind;
    let provider = provider_of(chosen, config, overrides, purpose)?;
    let model = overrides.model.clone().or_else(|| chosen.model.clone());
    let model = model.unwrap_or_else(|| match kind {
        ProviderKind::Offline => OFFLINE_MODEL.to_owned(),
        ProviderKind::Anthropic
        | ProviderKind::OpenAi
        | ProviderKind::OpenAiResponses
        | ProviderKind::Gemini => provider.default_model().to_owned(),
    });
    Ok(Chosen {
        provider,
        name: chosen.name.clone(),
        model,
        config: Some(chosen.clone()),
    })
}

/// Builds a provider, at the address that the flags give it.
fn provider_of(
    chosen: &ProviderConfig,
    config: &Config,
    overrides: &Overrides,
    purpose: Purpose,
) -> Result<Arc<dyn LlmProvider>, AppError> {
    let base_url = overrides
        .base_url
        .clone()
        .or_else(|| chosen.base_url.clone())
        .or_else(|| usual_base_url(chosen.kind));
    let key = match chosen.key() {
        Ok(key) => key.map(|secret| secret.expose().to_owned()),
        // A server given by `--base-url` may need no key; the vendors' servers do.
        Err(_) if purpose == Purpose::Bodies || overrides.base_url.is_some() => None,
        Err(error) => return Err(error.into()),
    };
    build(chosen, config, key, base_url).map_err(|error| match error {
        Some(error) => AppError::Provider {
            name: chosen.name.clone(),
            error,
        },
        None => AppError::BaseUrlWithoutProvider,
    })
}

fn build(
    chosen: &ProviderConfig,
    config: &Config,
    key: Option<String>,
    base_url: Option<String>,
) -> Result<Arc<dyn LlmProvider>, Option<ProviderConfigError>> {
    let timeouts = timeouts(&chosen.connection, &config.limits);
    Ok(match chosen.kind {
        ProviderKind::Offline if base_url.is_some() => return Err(None),
        ProviderKind::Offline => Arc::new(Offline),
        ProviderKind::Anthropic => {
            let builder = Anthropic::builder(key.unwrap_or_else(|| "none".to_owned()))
                .timeouts(timeouts)
                .network(network(&chosen.connection)?);
            let builder = chosen
                .request_bytes_max
                .into_iter()
                .fold(builder, |builder, bytes| builder.request_bytes_max(bytes));
            let builder = chosen
                .context_window
                .into_iter()
                .fold(builder, |builder, tokens| builder.context_window(tokens));
            Arc::new(
                base_url
                    .into_iter()
                    .fold(builder, |builder, url| builder.base_url(url))
                    .build()?,
            )
        }
        ProviderKind::Gemini => {
            let builder = Gemini::builder(key.unwrap_or_else(|| "none".to_owned()))
                .timeouts(timeouts)
                .network(network(&chosen.connection)?);
            let builder = chosen
                .request_bytes_max
                .into_iter()
                .fold(builder, |builder, bytes| builder.request_bytes_max(bytes));
            let builder = chosen
                .context_window
                .into_iter()
                .fold(builder, |builder, tokens| builder.context_window(tokens));
            Arc::new(
                base_url
                    .into_iter()
                    .fold(builder, |builder, url| builder.base_url(url))
                    .build()?,
            )
        }
        ProviderKind::OpenAi | ProviderKind::OpenAiResponses => {
            let builder = match chosen.kind {
                ProviderKind::OpenAiResponses => OpenAi::builder().responses(),
                _ => OpenAi::builder(),
            };
            let builder = builder
                .timeouts(timeouts)
                .network(network(&chosen.connection)?);
            let builder = key
                .into_iter()
                .fold(builder, |builder, key| builder.api_key(key));
            let has = |shows: &[String], name: &str| shows.iter().any(|shown| shown == name);
            let builder = chosen.shows.iter().fold(builder, |builder, shows| {
                builder
                    .images(has(shows, "images"))
                    .documents(has(shows, "documents"))
            });
            let builder = chosen
                .request_bytes_max
                .into_iter()
                .fold(builder, |builder, bytes| builder.request_bytes_max(bytes));
            let builder = chosen
                .context_window
                .into_iter()
                .fold(builder, |builder, tokens| builder.context_window(tokens));
            Arc::new(
                base_url
                    .into_iter()
                    .fold(builder, |builder, url| builder.base_url(url))
                    .build()?,
            )
        }
    })
}

fn timeouts(connection: &ConnectionConfig, limits: &Limits) -> Timeouts {
    Timeouts {
        connect: connection.connect.unwrap_or(Timeouts::default().connect),
        first_byte: limits.model_first_byte,
        idle: limits.model_idle,
        total: limits.model_total,
    }
}

/// Reads the files of certificates that a provider names.
fn network(connection: &ConnectionConfig) -> Result<Network, ProviderConfigError> {
    let read = |name: &str, path: &Path| {
        std::fs::read(path).map_err(|error| ProviderConfigError::Client {
            reason: match error.kind() {
                io::ErrorKind::NotFound => format!("`{name}`: no such file: {}", path.display()),
                kind => format!("`{name}` cannot be read: {kind}: {}", path.display()),
            },
        })
    };
    let authorities = match &connection.ca_file {
        Some(path) => Some(read("ca_file", path)?),
        None => None,
    };
    let client = match &connection.client_files {
        Some((chain, key)) => Some((
            read("client_cert_file", chain)?,
            read("client_key_file", key)?,
        )),
        None => None,
    };
    let usual = Network::default();
    Ok(Network {
        trust: Trust {
            authorities,
            client,
        },
        http2: connection.http2.unwrap_or(usual.http2),
        connections_max: connection.connections_max.unwrap_or(usual.connections_max),
    })
}

/// The base URL from the variables that the official SDKs read.
pub(crate) fn usual_base_url(kind: ProviderKind) -> Option<String> {
    match kind {
        ProviderKind::Anthropic => set_variable("ANTHROPIC_BASE_URL"),
        ProviderKind::OpenAi | ProviderKind::OpenAiResponses => set_variable("OPENAI_BASE_URL"),
        ProviderKind::Gemini => set_variable("GOOGLE_GEMINI_BASE_URL"),
        ProviderKind::Offline => None,
    }
}

fn set_variable(name: &str) -> Option<String> {
    std::env::var(name)
        .ok()
        .map(|text| text.trim().to_owned())
        .filter(|text| !text.is_empty())
}

/// The word nearest to `given`, if any is near.
pub(crate) fn nearest<'a>(given: &str, words: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let scored = words.into_iter().map(|word| {
        (
            strsim::jaro_winkler(&given.to_lowercase(), &word.to_lowercase()),
            word,
        )
    });
    scored
        .filter(|(score, _)| *score > 0.6)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, word)| word.to_owned())
}

/// What a prompt says of the memory.
fn memory_prompt() -> &'static str {
    include_str!("cli/prompts/memory.md").trim_end()
}

/// The system prompt, followed by the project's own instructions if they are trusted.
fn system_prompt(
    overrides: &Overrides,
    workspace: &Path,
    trust: &TrustStore,
    remembers: bool,
    notes: &mut Vec<String>,
) -> String {
    let base = overrides
        .system
        .as_deref()
        .unwrap_or(include_str!("cli/prompts/system.md"))
        .trim_end();
    // With the memory tool, the prompt asks the model to write notes before compaction removes the
    // context.
    let memory = if remembers { memory_prompt() } else { "" };
    let base = [base, memory].join("\n");
    instructions::added(
        base.trim_end().to_owned(),
        workspace,
        Agreed::Person(trust),
        notes,
    )
}

/// Refuses to store sessions where the model's tools can reach them. A file that `--db` names is
/// the user's choice.
pub(crate) fn check_places(config: &Config, overrides: &Overrides) -> Result<(), AppError> {
    if overrides.db.is_some()
        || !matches!(config.store, Store::Sqlite(_))
        || overrides.tools.as_ref().is_some_and(Vec::is_empty)
    {
        return Ok(());
    }
    if !overrides.workspace.is_dir() {
        return Ok(());
    }
    for (_, path) in stored(config) {
        match overlap(path, &overrides.workspace) {
            Some(Overlap::InWorkspace) => return Err(AppError::DataInWorkspace(path.to_owned())),
            Some(Overlap::AroundWorkspace) => {
                return Err(AppError::WorkspaceInData(path.to_owned()));
            }
            None => {}
        }
    }
    Ok(())
}

/// Whether the data folder lies neither inside the workspace, where tools could read it, nor around
/// it.
fn is_apart(data: &Path, workspace: &Path) -> bool {
    !workspace.is_dir() || overlap(data, workspace).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_with_a_memory_has_a_note_on_compaction() {
        let overrides = Overrides::default();
        let nowhere = Path::new("/nowhere");

        let with = system_prompt(
            &overrides,
            nowhere,
            &TrustStore::default(),
            true,
            &mut Vec::new(),
        );
        let without = system_prompt(
            &overrides,
            nowhere,
            &TrustStore::default(),
            false,
            &mut Vec::new(),
        );

        assert!(
            with.starts_with(&without)
                && with.contains("can be compacted at any time")
                && with.contains("`memory`"),
            "{with}"
        );
        assert!(!without.contains("compacted"));
    }
}
