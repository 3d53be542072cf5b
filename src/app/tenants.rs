//! Builds the setup of each tenant: tools in a sandbox over its workspace, MCP servers started for
//! it alone, system prompt, and skills. All tenants share one process spawner.

use std::{path::Path, sync::Arc};

use callboard_actors::{
    conversation::round::rules::ApprovalMode,
    host::TenantConfig,
    ids::TenantId,
    limits::Limits,
    ports::{Tool, TypedTool, erased},
    subagent::CREATE_SUBAGENT,
    tenant::Quotas,
};

use super::{
    AppError,
    gateways::ProviderEntries,
    instructions::{self, Agreed},
    skills::Skills,
    tools::{ToolSelection, masker, mcp_pool, mode, rules, web_tools},
};
use crate::{
    config::{Approve, Config, MemoryScope, SandboxMode, TenantSection},
    mask::Masker,
    mcp::{
        self, FilePins, McpPool, McpServerConfig, McpTransport, Pins, WORKSPACE_FOLDER,
        config::Template,
    },
    notes::NoteStore,
    observe::Redactor,
    sandbox::{self, Options, Root, Spawner, Toolchains, WorkspaceQuota},
    tools::{self, Toolbox, memory::Memory},
    webhooks::Webhooks,
};

/// A tenant's configuration for the host, with notes for the operator.
#[derive(Clone)]
pub(super) struct TenantSetup {
    pub(super) config: TenantConfig,
    pub(super) notes: Vec<String>,
    /// The folder that its tools work in, if any: it holds the quota of files.
    pub(super) workspace: Option<Arc<Root>>,
}

/// The environment variable that gives an MCP server the tenant's id.
const TENANT_VARIABLE: &str = "CALLBOARD_TENANT";

/// The MCP tools of one tenant, with notes for the operator.
#[derive(Default)]
pub(super) struct McpTools {
    tools: Vec<Arc<dyn Tool>>,
    notes: Vec<String>,
}

/// Builds the setups of tenants. Clones share the spawner and the MCP servers.
#[derive(Clone)]
pub(super) struct TenantProvisioner {
    spawner: Spawner,
    servers: McpPool,
    redactor: Redactor,
    webhooks: Webhooks,
    /// Notes that hosts share; `None` if they are in the data folder.
    notes: Option<Arc<dyn NoteStore>>,
}

impl TenantProvisioner {
    /// Starts the threads of the process spawner.
    pub(super) fn start(
        config: &Config,
        redactor: Redactor,
        notes: Option<Arc<dyn NoteStore>>,
    ) -> Result<Self, AppError> {
        let spawner = Spawner::start().map_err(|error| {
            AppError::Tools(format!("no commands can be started: {}", error.kind()))
        })?;
        Ok(Self {
            spawner: spawner.among_tenants(),
            servers: mcp_pool(masker(config), &config.data_dir)?,
            redactor,
            webhooks: Webhooks::new(),
            notes,
        })
    }

    /// All memories that tenants may have notes in, of this configuration or of one before it.
    pub(super) fn memories(&self, config: &Config) -> Vec<Memory> {
        let shared = self.notes.clone().map(Memory::per_tenant_in);
        [
            Memory::per_tenant(&config.data_dir),
            Memory::per_conversation(&config.data_dir),
        ]
        .into_iter()
        .chain(shared)
        .collect()
    }

    fn memory(&self, config: &Config, scope: MemoryScope) -> Memory {
        match (scope, self.notes.clone()) {
            (MemoryScope::Conversation, None) => Memory::per_conversation(&config.data_dir),
            (MemoryScope::Tenant, None) => Memory::per_tenant(&config.data_dir),
            (MemoryScope::Conversation, Some(notes)) => Memory::per_conversation_in(notes),
            (MemoryScope::Tenant, Some(notes)) => Memory::per_tenant_in(notes),
        }
    }

    /// Masks keys in the answers of providers.
    pub(super) fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    /// The receivers of webhooks.
    pub(super) fn webhooks(&self) -> &Webhooks {
        &self.webhooks
    }

    /// The MCP servers of all tenants; closed with the host.
    pub(super) fn servers(&self) -> &McpPool {
        &self.servers
    }

    /// Connects to the MCP servers whose tools the tenant names; no server process is shared
    /// between tenants. A server that cannot be used becomes a note.
    pub(super) async fn of_servers(&self, config: &Config, tenant: &TenantSection) -> McpTools {
        let wanted = wanted(config, tenant);
        if wanted.0.is_none() {
            return McpTools::default(); // MCP servers are the operator's own programs: a tenant gets only those that its tools name.
        }
        let mut own = Vec::new();
        let mut of = McpTools::default();
        for server in config
            .mcp
            .iter()
            .filter(|server| wanted.has_of(&server.name))
        {
            match of_tenant(server.clone(), &tenant.id, tenant.workspace.as_deref()) {
                Some(server) => own.push(server),
                None => of.notes.push(format!(
                    "{}: it needs a workspace, and the tenant has none",
                    server.name
                )),
            }
        }
        let pins: Arc<dyn Pins> = Arc::new(FilePins::new(&config.data_dir));
        let (tools, notes) = mcp::tools(&own, &self.servers, &tenant.id, &pins).await;
        of.notes.extend(notes);
        of.tools = tools
            .into_iter()
            .filter(|tool| wanted.has(tool.spec().name()))
            .collect();
        let is_there = |name: &str| of.tools.iter().any(|tool| tool.spec().name() == name);
        let missing = wanted
            .0
            .into_iter()
            .flatten()
            .filter(|name| name.contains("__") && !is_there(name));
        of.notes
            .extend(missing.map(|name| format!("there is no tool `{name}`")));
        of
    }

    /// Builds the setup of a tenant. Blocks: it reads folders and tries the sandbox.
    ///
    /// # Errors
    /// The first resource that is not available, with the tenant's id.
    pub(super) fn setup(
        &self,
        config: &Config,
        tenant: &TenantSection,
        entries: &ProviderEntries,
        of_servers: McpTools,
    ) -> Result<TenantSetup, AppError> {
        let named = |error: AppError| AppError::Tenant {
            id: tenant.id.clone(),
            error: Box::new(error),
        };
        self.make(config, tenant, entries, of_servers)
            .map_err(named)
    }

    fn make(
        &self,
        config: &Config,
        tenant: &TenantSection,
        entries: &ProviderEntries,
        of_servers: McpTools,
    ) -> Result<TenantSetup, AppError> {
        let provider = config.choose(tenant.provider.as_deref())?.name.clone();
        let model = tenant
            .model
            .clone()
            .or_else(|| entries.get(&provider).map(|entry| entry.model.clone()));
        let (mut toolbox, workspace) = self.toolbox(config, tenant)?;
        toolbox.tools.extend(of_servers.tools);
        let mut notes = toolbox.notes.clone();
        notes.extend(of_servers.notes);
        let remembers = toolbox.get(Memory::NAME).is_some();
        let approval = match tenant.approve.or(config.approve).unwrap_or(Approve::Deny) {
            Approve::Ask => ApprovalMode::Ask,
            Approve::Deny => ApprovalMode::Deny,
            Approve::Auto => ApprovalMode::Auto,
        };
        let mut made = TenantConfig::new()
            .quotas(tenant.quotas)
            .budget(tenant.budget)
            .conversation_budget(tenant.conversation_budget)
            .gateway(provider)
            .parameters(tenant.parameters.clone())
            .approval(approval);
        if let Some(model) = model {
            made = made.model(model);
        }
        made = self.webhooks.configure(config, tenant, made)?;
        if let Some(system) = system(tenant, remembers, &mut notes) {
            made = made.system(system);
        }
        let all_tools = tenant.tools.is_none() && config.tools.is_none();
        if let Some(path) = tenant
            .skills
            .as_ref()
            .or(config.skills.as_ref().filter(|_| all_tools))
        {
            made = made.skills(Arc::new(Skills::open(config, path)?));
        }
        made = made.skill_models(
            tenant
                .skill_models
                .as_ref()
                .unwrap_or(&config.skill_models)
                .iter()
                .cloned(),
        );
        notes
            .iter_mut()
            .for_each(|note| *note = format!("tenant {}: {note}", tenant.id));
        // Without a workspace and without a list that names them, there are no subagents, as for
        // the tools that need a workspace.
        let wanted = tenant.tools.as_ref().or(config.tools.as_ref());
        let subagents = wanted.map_or(tenant.workspace.is_some(), |wanted| {
            wanted.iter().any(|tool| tool == CREATE_SUBAGENT)
        });
        Ok(TenantSetup {
            config: made.tools(toolbox).subagents(subagents),
            notes,
            workspace,
        })
    }

    /// The tenant's tools: those it names, else those of the configuration, else all. With neither
    /// a workspace nor a list, only tools that access neither files of the user nor the network.
    fn toolbox(
        &self,
        config: &Config,
        tenant: &TenantSection,
    ) -> Result<(Toolbox, Option<Arc<Root>>), AppError> {
        let wanted = wanted(config, tenant);
        let has = |name: &str| wanted.has(name);
        let masker = masker(config);
        let root = match &tenant.workspace {
            Some(workspace) => {
                if let Some(refused) = sandbox::refused_workspace(workspace) {
                    return Err(AppError::Tools(refused));
                }
                let rules = rules(
                    config,
                    workspace,
                    tenant.skills.as_deref().or(config.skills.as_deref()),
                );
                let root = Root::open(workspace, rules).map_err(|error| {
                    AppError::Tools(crate::os_error::workspace(workspace, &error))
                })?;
                Some(Arc::new(
                    root.bounded(workspace_quota(config, &tenant.quotas)),
                ))
            }
            None => None,
        };
        let mut toolbox = match &root {
            Some(root) => self.over(config, root.clone(), has("bash"), masker.clone())?,
            None => tools::without_workspace(),
        };
        let memory = self.memory(config, tenant.memory);
        toolbox.tools.push(erased(memory));
        if tenant.workspace.is_some() || wanted.0.is_some() {
            toolbox.tools.extend(web_tools(config, &masker)?);
        }
        Ok((toolbox.only(has), root))
    }

    fn over(
        &self,
        config: &Config,
        root: Arc<Root>,
        wants_commands: bool,
        masker: Masker,
    ) -> Result<Toolbox, AppError> {
        // A sandbox that no tool uses is not tried and produces no notes.
        if !wants_commands {
            return Ok(tools::over(root, None, masker));
        }
        // Only the folders that the operator lists: toolchains of the operator's home folder are
        // not for tenants.
        let toolchains = Toolchains::of(&config.read_only);
        let network = config.network.clone().into();
        let options = Options {
            limits: config.exec_limits,
            network,
            toolchains,
            main_asks: true,
            ..Options::default()
        };
        let found = sandbox::detect_with(&root, mode(config.sandbox), &self.spawner, options);
        let found = found.map_err(|error| AppError::Tools(format!("sandbox: {error}")))?;
        let mut toolbox = tools::over(root, found.sandbox, masker);
        toolbox
            .notes
            .extend(found.note.filter(|_| config.sandbox != SandboxMode::None));
        Ok(toolbox)
    }
}

/// What a tenant's workspace may hold: as its quotas say, else as `[limits]` does.
pub(super) fn workspace_quota(config: &Config, quotas: &Quotas) -> WorkspaceQuota {
    let Limits {
        tenant_workspace_files_max: files,
        tenant_workspace_bytes_max: bytes,
        ..
    } = config.limits;
    WorkspaceQuota {
        files_max: Some(quotas.workspace_files_max.unwrap_or(files)),
        bytes_max: quotas
            .workspace_bytes_max
            .or(Some(bytes).filter(|bytes| *bytes < Limits::WORKSPACE_BYTES_UNBOUNDED)),
    }
}

/// The tools that a tenant names, else those of the configuration.
fn wanted<'a>(config: &'a Config, tenant: &'a TenantSection) -> ToolSelection<'a> {
    ToolSelection(tenant.tools.as_ref().or(config.tools.as_ref()))
}

/// Adapts a server to one tenant. A process starts in the tenant's workspace if its `cwd` says so,
/// else in an empty folder, whatever folder is configured, and gets the tenant's id; without a
/// workspace the result is `None`.
fn of_tenant(
    mut server: McpServerConfig,
    tenant: &TenantId,
    workspace: Option<&Path>,
) -> Option<McpServerConfig> {
    match &mut server.transport {
        McpTransport::Stdio { cwd, env, .. } => {
            let workspace = workspace?;
            *cwd = cwd
                .take()
                .filter(|cwd| cwd == Path::new(WORKSPACE_FOLDER))
                .map(|_| workspace.to_owned());
            env.insert(TENANT_VARIABLE.to_owned(), Template::new(tenant.as_str()));
        }
        McpTransport::Http { .. } => {}
    }
    Some(server)
}

/// The system prompt: the tenant's own, else the default one if there is a workspace; followed by
/// the memory instructions, and by the project's instructions if the operator enabled them.
fn system(tenant: &TenantSection, remembers: bool, notes: &mut Vec<String>) -> Option<String> {
    let usual = tenant
        .workspace
        .as_ref()
        .map(|_| include_str!("../cli/prompts/system.md"));
    let mut parts: Vec<String> = tenant
        .system
        .as_deref()
        .or(usual)
        .into_iter()
        .map(|text| text.trim_end().to_owned())
        .collect();
    if remembers {
        parts.push(super::memory_prompt().to_owned());
    }
    let text = parts.join("\n");
    let text = match &tenant.workspace {
        Some(workspace) => instructions::added(
            text,
            workspace,
            Agreed::Operator(tenant.project_instructions == Some(true)),
            notes,
        ),
        None => text,
    };
    Some(text).filter(|text| !text.is_empty())
}

/// Whether shared settings differ that affect every tenant's setup.
pub(super) fn share_differs(one: &Config, other: &Config) -> bool {
    let works = |config: &Config| (config.sandbox, config.exec_limits, config.read_only.clone());
    let parts = |config: &Config| {
        (
            config.tools.clone(),
            config.approve,
            works(config),
            config.skills.clone(),
            config.skill_models.clone(),
        )
    };
    let network = |config: &Config| {
        config
            .network
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    parts(one) != parts(other)
        || network(one) != network(other)
        || one.web != other.web
        || one.webhook != other.webhook
        || one.mcp != other.mcp
        || one.masked_texts() != other.masked_texts()
        || one.choose(None).map(|provider| &provider.name).ok()
            != other.choose(None).map(|provider| &provider.name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{NEED_WORKSPACE, each_key, process_environment};

    fn toolbox(tenant: &TenantSection) -> Toolbox {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("callboard.toml");
        std::fs::write(
            &file,
            "[host]\ndata_dir = \"data\"\n[sandbox]\nmode = \"none\"\n",
        )
        .unwrap();
        let environment = process_environment().filter(|(name, _)| !name.starts_with("CALLBOARD_"));
        let config = Config::load(Some(&file), environment).unwrap();
        TenantProvisioner::start(&config, Redactor::default(), None)
            .unwrap()
            .toolbox(&config, tenant)
            .unwrap()
            .0
    }

    fn names(tenant: &TenantSection) -> Vec<String> {
        let toolbox = toolbox(tenant);
        let mut names: Vec<String> = toolbox
            .tools
            .iter()
            .map(|tool| tool.spec().name().to_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_reload_applies_or_names_every_key() {
        let (running, each) = each_key();
        for (key, needs_start, mut read) in each {
            let named = read.keep_restart_only(&running);

            if needs_start {
                let line = format!("{key} changed; the change takes effect at the next start");
                assert_eq!(named, [line]);
                assert_eq!(
                    read.keep_restart_only(&running),
                    Vec::<String>::new(),
                    "{key}: what runs is kept"
                );
            } else {
                assert_eq!(named, Vec::<String>::new(), "{key}");
                assert!(
                    share_differs(&running, &read)
                        || read.admin_key_sha256 != running.admin_key_sha256,
                    "{key} is neither applied nor named. Fix: add it to `share_differs`, or to `NEXT_START` of the configuration"
                );
            }
        }
    }

    #[test]
    fn a_tenants_memory_is_a_conversations_unless_the_operator_shares_it() {
        let mut tenant = TenantSection::new(callboard_actors::ids::TenantId::new("acme").unwrap());
        let is_shared = |tenant: &TenantSection| {
            let toolbox = toolbox(tenant);
            !toolbox
                .get(Memory::NAME)
                .unwrap()
                .spec()
                .definition
                .description
                .contains("other conversations do not see them")
        };

        let usual = is_shared(&tenant);
        tenant.memory = MemoryScope::Tenant;

        assert_eq!((usual, is_shared(&tenant)), (false, true));
    }

    #[test]
    fn without_a_workspace_there_are_only_tools_that_touch_nothing() {
        let tenant = TenantSection::new(callboard_actors::ids::TenantId::new("acme").unwrap());

        assert_eq!(names(&tenant), ["memory", "read_more", "think"]);
        let asked = {
            let mut asked = tenant.clone();
            asked.tools = Some(vec!["web_fetch".into(), "think".into()]);
            asked
        };
        assert_eq!(names(&asked), ["think", "web_fetch"]);
        let over = {
            let mut over = tenant;
            over.workspace = Some(std::env::temp_dir());
            over
        };
        let over = names(&over);
        assert!(
            NEED_WORKSPACE
                .iter()
                .filter(|name| **name != "bash")
                .all(|name| over.iter().any(|known| known == name)),
            "{over:?}"
        );
    }
}
