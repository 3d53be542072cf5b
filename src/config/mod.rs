//! Reads `callboard.toml`, the environment and flags into one [`Config`]. Later sources win, and
//! each value keeps its origin.
//!
//! The order is: defaults, `~/.config/callboard/callboard.toml`, `./callboard.toml` (a file that is
//! named replaces both), `CALLBOARD_…` variables, flags. A stranger may have written the current
//! folder's file: until a person trusts it, only its keys that narrow the configuration are applied
//! (`project`, `narrow`). A wrong key or value is a [`ConfigError`] of one line with the file, the
//! line and the nearest correct word. Provider keys come from environment variables or from
//! separate files; nothing here prints them.
//!
//! Promises, tested in `tests/integration/config.rs`:
//! - every mistake names its file and line, and the nearest correct key
//! - what `show` prints can be read again and means the same
//! - no secret appears in an error, in `show` or in a Debug text
//! - an untrusted file of the current folder starts no program, sends nothing, widens no permission
//!   and names no file or address (`tests/integration/trust.rs`)

mod allows;
mod checks;
mod env;
mod error;
mod file;
mod http;
mod key;
mod keys;
mod observability;
mod parameters;
#[cfg(feature = "mcp")]
mod mcp;
mod compaction;
mod modes;
#[cfg(feature = "cli")]
mod named_files;
mod narrow;
mod parsers;
mod paths;
mod prices;
mod project;
mod provider;
mod receivers;
mod restart_only;
#[cfg(test)]
pub(crate) use restart_only::tests::each_key;
mod section;
mod secret;
mod show;
mod tenant;
mod tokens;
mod toml_text;
mod tool_names;
mod tool_rules;
mod value;
mod web;
mod webhook;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::{Path, PathBuf},
};

use callboard_actors::{
    ports::{ExecLimits, HostPattern},
    tokens::EncoderConfig,
};
#[cfg(all(test, feature = "cli"))]
pub(crate) use checks::NEED_WORKSPACE;
#[cfg(feature = "cli")]
pub(crate) use checks::{Overlap, overlap, stored};
pub use env::NOT_SETTINGS;
pub use error::{ConfigError, Origin};
use error::{hint, quoted};
pub use http::HttpLimits;
use keys::Key;
pub use keys::reference;
pub use modes::{Approve, CommitMode, SandboxMode};
pub use observability::Observability;
use paths::{Base, same_file};
pub use paths::{DatabaseAddress, Store};
pub use project::{ProjectFile, ProjectKind, examine};
pub use provider::{ConnectionConfig, FallbackConfig, ProviderConfig, ProviderKind};
pub use receivers::WebhookReceiver;
pub use secret::Secret;
pub use tenant::{MemoryScope, OwnTenant, TenantSection};
pub use tokens::TokensConfig;
pub use tool_names::TOOL_NAMES;
pub use tool_rules::{Retention, ToolRules};
use value::Value;
pub use web::WebConfig;
pub use webhook::{WebhookConfig, WebhookSection};

use crate::{limits::Limits, trust::TrustStore};

/// Default listen address of `serve`: this machine only.
const LISTEN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8787);

/// The configuration of a host. Every field has a value; unset keys have their default.
#[derive(Debug, Clone)]
pub struct Config {
    /// Data folder: sessions, artifacts, memory and logs.
    pub data_dir: PathBuf,
    /// When an acknowledged write is durable.
    pub commit: CommitMode,
    /// SHA-256 of the operator's key, in lower case; without it, the operator's routes do not
    /// exist.
    pub admin_key_sha256: Option<String>,
    /// The URL under which other hosts on the same database reach this one.
    pub peer_address: Option<String>,
    /// Bounds of the HTTP host.
    pub http: HttpLimits,
    /// Where conversations are stored.
    pub store: Store,
    /// Configured tenants, in the order of the files.
    pub tenants: Vec<TenantSection>,
    /// Configured providers; see [`Config::choose`].
    pub providers: Vec<ProviderConfig>,
    /// Limits of the host (`[limits]`).
    pub limits: Limits,
    /// Names of the tools that models are offered; `None` offers all.
    pub tools: Option<Vec<String>>,
    /// What happens when a tool wants to change something. `None` asks at a terminal and denies
    /// elsewhere.
    pub approve: Option<Approve>,
    /// How commands are isolated.
    pub sandbox: SandboxMode,
    /// Hosts that commands can reach; if empty, commands have no network.
    pub network: Vec<HostPattern>,
    /// Whether commands of `run` and `chat` can use toolchains in the home folder that `PATH` leads
    /// to.
    pub toolchains: bool,
    /// Additional folders that commands can read and execute from.
    pub read_only: Vec<PathBuf>,
    /// Resource limits of one command.
    pub exec_limits: ExecLimits,
    /// What the web tools may reach, and the search engine.
    pub web: WebConfig,
    /// Who is informed when rounds end (`[webhook]`).
    pub webhook: WebhookConfig,
    /// How the tokens of a model are counted.
    pub tokens: TokensConfig,
    /// Folder of skills; `None` disables skills.
    pub skills: Option<PathBuf>,
    /// Models that skills may choose besides the conversation's own; `*` in a name matches any
    /// text.
    pub skill_models: Vec<String>,
    /// Workspace, provider and model of the tenant of a host without configured tenants.
    pub own_tenant: OwnTenant,
    /// Output level, permissions, nesting of skills, and how long large results are kept.
    pub tool_rules: ToolRules,
    /// When and how contexts are compacted (`[compaction]`). The section of a later file replaces
    /// the whole section of an earlier one.
    pub compaction: callboard_actors::compactor::CompactionSettings,
    /// What is logged, traced and measured (`[observability]`). The section of a later file
    /// replaces the whole section of an earlier one.
    pub observability: Observability,
    /// Prices of models (`[prices]`). A later file's price replaces an earlier one for the same
    /// model.
    pub prices: callboard_actors::policy::Prices,
    /// MCP servers (`[[mcp]]`), sorted by name. A later file's server replaces an earlier one of
    /// the same name.
    #[cfg(feature = "mcp")]
    pub mcp: Vec<crate::mcp::McpServerConfig>,
    /// One provider for each kind, with the vendor's address and key variable. The last is offline
    /// and needs no key.
    default_providers: Vec<ProviderConfig>,
    listen: Option<SocketAddr>,
    /// Values of MCP headers and variables that must be masked in all output.
    servers_keys: Vec<String>,
    files: Vec<PathBuf>,
    /// The user's configuration file, whether or not it exists or was read.
    #[cfg_attr(not(feature = "cli"), allow(dead_code))]
    user_file: Option<PathBuf>,
    project: Vec<ProjectFile>,
    trust: TrustStore,
    settings: Settings,
}

/// One value with its origin.
#[derive(Debug, Clone)]
struct Setting {
    key: &'static Key,
    value: Value,
    from: Origin,
}

type Settings = BTreeMap<(&'static str, &'static str), Setting>;

/// The content of one file, or of the environment.
#[derive(Debug, Default)]
struct Layer {
    settings: Vec<Setting>,
    providers: Vec<ProviderLayer>,
    tenants: Vec<TenantLayer>,
    encoders: BTreeMap<String, EncoderConfig>,
    compaction: Option<callboard_actors::compactor::CompactionSettings>,
    observability: Option<Observability>,
    prices: Vec<(String, callboard_actors::policy::Price)>,
    #[cfg(feature = "mcp")]
    mcp: Vec<crate::mcp::McpServerConfig>,
}

/// The keys that one source sets for one provider.
#[derive(Debug)]
struct ProviderLayer {
    at: Origin,
    settings: Vec<Setting>,
}

/// The keys that one file sets for one tenant.
#[derive(Debug)]
struct TenantLayer {
    at: Origin,
    settings: Vec<Setting>,
}

/// Any file is read or refused with one line.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    let path = Path::new("callboard.toml");
    if let Err(error) = file::parse_bytes(path, data.to_vec(), None) {
        let line = error.to_string();
        assert!(
            !line.contains(['\n', '\r']) && line.len() < 8 * 1024,
            "{line:?}"
        );
    }
}

impl Config {
    /// Reads the configuration: only the file at `path` (or the one that `CALLBOARD_CONFIG` names),
    /// or else the files that exist at the default locations; then the variables of `environment`.
    ///
    /// `callboard.toml` of the current folder takes effect as a whole only if it is trusted
    /// ([`crate::trust`]); see [`Config::project_files`].
    ///
    /// # Errors
    /// The first mistake, see [`ConfigError`]. A missing file is an error only if it was named. A
    /// mistake in an untrusted file is not an error, because the file has no effect.
    pub fn load(
        path: Option<&Path>,
        environment: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        Self::load_in(Path::new(""), path, environment)
    }

    /// Reads the configuration as [`Config::load`] does, with `folder` in place of the current
    /// folder: its project files take effect as a whole only if they are trusted.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_in(
        folder: &Path,
        path: Option<&Path>,
        environment: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let environment: BTreeMap<String, String> = environment.collect();
        let set = |name: &str| environment.get(name).filter(|text| !text.is_empty());
        let home = absolute(set("HOME"));
        let data_home = absolute(set("XDG_DATA_HOME"))
            .or_else(|| home.as_ref().map(|home| home.join(".local/share")));
        let data_home = data_home.map(|folder| folder.join("callboard"));
        // Not the configured data folder: an untrusted file could set it, and so choose who is
        // trusted.
        let trust = TrustStore::new(data_home.clone());

        let named = path
            .map(Path::to_owned)
            .or_else(|| set("CALLBOARD_CONFIG").map(PathBuf::from));
        let own = user_file(absolute(set("XDG_CONFIG_HOME")), home.as_deref());
        let mut files = Vec::new();
        let mut layers = Vec::new();
        let mut found = None;
        if let Some(path) = named.as_ref().or(own.as_ref()) {
            match file::read(path, home.as_deref())? {
                Some(layer) => {
                    layers.push(layer);
                    files.push(path.clone());
                }
                None if named.is_some() => {
                    return Err(ConfigError::Unreadable {
                        file: path.clone(),
                        reason: "there is no such file; `callboard config init` writes a first one"
                            .into(),
                    });
                }
                None => {}
            }
        }
        let here = folder.join(project::FILE);
        if named.is_none() && !own.as_ref().is_some_and(|own| same_file(own, &here)) {
            found = project::configuration(&here, &trust, home.as_deref())?;
        }
        let mut project: Vec<ProjectFile> = found.iter().map(|found| found.file.clone()).collect();
        let mut narrowing = None;
        match found {
            Some(project::Found {
                file,
                layer: Some(layer),
            }) if file.is_trusted() => {
                layers.push(layer);
                files.push(here);
            }
            Some(project::Found { layer, .. }) => narrowing = layer,
            None => {}
        }
        let variables = env::read(&environment, home.as_deref())?;

        let mut settings = Settings::new();
        let mut providers = Vec::new();
        let mut tenants = Vec::new();
        #[cfg(feature = "mcp")]
        let mut servers = BTreeMap::new();
        let mut encoders = BTreeMap::new();
        let mut prices = callboard_actors::policy::Prices::default();
        let mut compaction = None;
        let mut observability = None;
        for layer in layers {
            compaction = layer.compaction.or(compaction);
            observability = layer.observability.or(observability);
            encoders.extend(layer.encoders);
            prices = layer
                .prices
                .into_iter()
                .fold(prices, |prices, (model, price)| prices.with(model, price));
            #[cfg(feature = "mcp")]
            servers.extend(
                layer
                    .mcp
                    .into_iter()
                    .map(|server| (server.name.clone(), server)),
            );
            settings.extend(layer.settings.into_iter().map(by_name));
            providers = provider::merged(providers, layer.providers)?;
            tenants = tenant::merged(tenants, layer.tenants)?;
        }
        settings.extend(variables.settings.into_iter().map(by_name));
        provider::override_from_environment(&mut providers, variables.providers);

        let places = tokens::default_places(absolute(set("XDG_CONFIG_HOME")), home.as_deref());
        let places = project::encoders(places, folder, &trust, &mut project);
        let mut config = Self {
            data_dir: data_home.unwrap_or_default(),
            commit: CommitMode::default(),
            admin_key_sha256: None,
            peer_address: None,
            http: HttpLimits::default(),
            listen: None,
            tenants,
            store: Store::Memory,
            providers: providers
                .into_iter()
                .map(|layer| ProviderConfig::of(layer, &environment))
                .collect::<Result<_, _>>()?,
            default_providers: ProviderKind::ALL
                .into_iter()
                .map(|kind| ProviderConfig::default_of(kind, &environment))
                .collect::<Result<_, _>>()?,
            limits: Limits::default(),
            compaction: compaction.unwrap_or_default(),
            observability: observability.unwrap_or_default(),
            prices,
            tools: None,
            approve: None,
            sandbox: SandboxMode::default(),
            network: Vec::new(),
            toolchains: true,
            read_only: Vec::new(),
            exec_limits: ExecLimits::default(),
            web: WebConfig::default(),
            webhook: WebhookConfig::default(),
            tokens: TokensConfig {
                file: None,
                encoders,
                places,
            },
            skills: None,
            #[cfg(not(feature = "mcp"))]
            servers_keys: Vec::new(),
            #[cfg(feature = "mcp")]
            servers_keys: servers
                .values()
                .flat_map(|server| server.keys(|name| environment.get(name).cloned()))
                .collect(),
            skill_models: Vec::new(),
            own_tenant: OwnTenant::default(),
            tool_rules: ToolRules::default(),
            #[cfg(feature = "mcp")]
            mcp: servers.into_values().collect(),
            files,
            user_file: own,
            project,
            trust,
            settings,
        };
        config.apply_settings();
        config.drop_untrusted_skills();
        if let Some(layer) = narrowing {
            config.narrow(layer);
        }
        config.observability.set_log_file(&config.data_dir);
        config.web.find_key(&config.settings, &environment)?;
        if config.data_dir.as_os_str().is_empty() {
            let problem = "there is no data folder: neither HOME nor XDG_DATA_HOME is set; set CALLBOARD_HOST__DATA_DIR".into();
            return Err(ConfigError::Inconsistent {
                at: Origin::Environment("environment".into()),
                problem,
            });
        }
        checks::references(&config)?;
        checks::read_only_folders(&config, home.as_deref())?;
        Ok(config)
    }

    /// Sets a key outside `[[provider]]`, such as `sandbox.mode`, from the command-line flag
    /// `flag`. Flags win over all other sources.
    ///
    /// # Errors
    /// [`ConfigError::Unknown`] and [`ConfigError::BadValue`], with the flag's name as place.
    pub fn set(&mut self, key: &str, value: &str, flag: &str) -> Result<(), ConfigError> {
        let from = Origin::Flag(flag.to_owned());
        let Some(found) = keys::plain().find(|known| known.path() == key) else {
            let paths: Vec<String> = keys::plain().map(Key::path).collect();
            let hint = hint(key, paths.iter().map(String::as_str));
            return Err(ConfigError::Unknown {
                at: from,
                what: "key".into(),
                given: quoted(key),
                hint,
            });
        };
        match found.kind.read_text(value, &Base::default()) {
            Ok(value) => {
                self.settings.extend([by_name(Setting {
                    key: found,
                    value,
                    from,
                })]);
                self.apply_settings();
                Ok(())
            }
            Err(problem) => Err(ConfigError::BadValue {
                at: from,
                key: key.to_owned(),
                problem,
            }),
        }
    }

    /// Chooses the provider: the provider or kind that `--provider` names; else the first
    /// configured one; else Anthropic or OpenAI if the environment holds their key; else the
    /// offline model.
    ///
    /// # Errors
    /// [`ConfigError::Unknown`] with the nearest name, if `named` does not exist.
    pub fn choose(&self, named: Option<&str>) -> Result<&ProviderConfig, ConfigError> {
        let all = || self.providers.iter().chain(&self.default_providers);
        let Some(name) = named else {
            let with_key = || {
                self.default_providers
                    .iter()
                    .find(|provider| provider.key().is_ok())
            };
            return self.providers.first().or_else(with_key).ok_or_else(|| {
                ConfigError::Inconsistent {
                    at: Origin::Default,
                    problem: "there is no provider".into(),
                }
            });
        };
        all()
            .find(|provider| provider.name == name)
            .ok_or_else(|| ConfigError::Unknown {
                at: Origin::Flag("--provider".into()),
                what: "provider".into(),
                given: quoted(name),
                hint: hint(
                    name,
                    all()
                        .map(|provider| provider.name.as_str())
                        .collect::<BTreeSet<_>>()
                        .into_iter(),
                ),
            })
    }

    /// The configured providers, then the usual ones for which there is a key.
    #[cfg(feature = "cli")]
    pub(crate) fn usable(&self) -> impl Iterator<Item = &ProviderConfig> {
        let is_usable = |usual: &&ProviderConfig| {
            let is_named = self.providers.iter().any(|own| own.name == usual.name);
            !is_named && usual.key().is_ok()
        };
        let usual = self.default_providers.iter().filter(is_usable);
        self.providers.iter().chain(usual)
    }

    /// The files that were read, in order.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Files of the current folder that take effect or would do so if they were trusted.
    pub fn project_files(&self) -> &[ProjectFile] {
        &self.project
    }

    /// The store of agreements that decides which project files are trusted.
    pub fn trust(&self) -> &TrustStore {
        &self.trust
    }

    /// Refuses to go on if any project file other than an encoder file is left out for lack of
    /// trust.
    ///
    /// # Errors
    /// [`ConfigError::Untrusted`] with the first such file.
    pub fn require_trust(&self) -> Result<(), ConfigError> {
        match self
            .project
            .iter()
            .find(|file| !file.is_trusted() && file.kind != ProjectKind::Encoders)
        {
            Some(file) => Err(ConfigError::Untrusted {
                file: file.path.clone(),
                standing: file.describe(),
            }),
            None => Ok(()),
        }
    }

    /// Every key of a provider or search engine that was found, without duplicates.
    pub fn secrets(&self) -> Vec<&Secret> {
        let found = self
            .providers
            .iter()
            .chain(&self.default_providers)
            .filter_map(|provider| provider.key().ok().flatten());
        found
            .chain(&self.web.key)
            .fold(Vec::new(), |mut all, secret| {
                if !all.contains(&secret) {
                    all.push(secret);
                }
                all
            })
    }

    /// Every text that must be masked in all output of the host: [`Config::secrets`], the values of
    /// OTLP headers, and values of MCP headers and variables whose names suggest a key, the secrets
    /// of webhooks, and the password of the session store.
    pub fn masked_texts(&self) -> Vec<String> {
        let keys = self
            .secrets()
            .into_iter()
            .map(|secret| secret.expose().to_owned());
        keys.chain(self.observability.secrets().map(str::to_owned))
            .chain(self.servers_keys.iter().cloned())
            .chain(self.webhook_secrets())
            .chain(match &self.store {
                Store::Postgres(address) => address.passwords(),
                Store::Sqlite(_) | Store::Memory => Vec::new(),
            })
            .collect()
    }

    /// The address and port at which `serve` listens.
    pub fn listen(&self) -> SocketAddr {
        self.listen.unwrap_or(LISTEN)
    }

    /// The file of results of `callboard eval` in the data folder, which `serve` shows the operator.
    #[cfg(feature = "evals")]
    pub(crate) fn eval_results(&self) -> PathBuf {
        self.data_dir.join("evals.db")
    }

    /// Checks what loading does not: each provider's key is where the configuration says, the
    /// folders of tenants and of stored data do not overlap, and every model under a money budget
    /// has a price.
    ///
    /// # Errors
    /// The first [`ConfigError::NoKey`] or [`ConfigError::Inconsistent`].
    pub fn check(&self) -> Result<(), ConfigError> {
        self.providers
            .iter()
            .try_for_each(|provider| provider.key().map(drop))?;
        checks::host(self)
    }

    /// Runs the same checks for one tenant that is in no file.
    ///
    /// # Errors
    /// The first [`ConfigError`], without a place.
    pub fn check_tenant(&self, tenant: &TenantSection) -> Result<(), ConfigError> {
        checks::tenant(self, tenant).map_err(|error| error.in_request(|at| tenant.pointer(at)))
    }

    /// Settings that are valid but rarely intended, one line each.
    pub fn warnings(&self) -> Vec<String> {
        checks::warnings(self)
    }

    /// The effective configuration as TOML, each value followed by its origin. Provider keys are
    /// masked.
    pub fn show(&self) -> String {
        show::show(self)
    }

    /// Copies the settings into the fields. Each section has an arm here, so no key is read without
    /// effect.
    fn apply_settings(&mut self) {
        for ((section, name), setting) in &self.settings {
            if self.tool_rules.set(section, name, &setting.value) {
                continue;
            }
            match (*section, *name, &setting.value) {
                ("host", "data_dir", Value::Path(path)) => self.data_dir = path.clone(),
                ("host", "admin_key_sha256", Value::Text(hash)) => {
                    self.admin_key_sha256 = Some(hash.clone())
                }
                ("host", "peer_address", Value::Text(url)) => self.peer_address = Some(url.clone()),
                (
                    "host",
                    name,
                    value
                    @ (Value::Count(_) | Value::Seconds(_) | Value::Flag(_) | Value::Names(_)),
                ) => self.http.set(name, value),
                ("host", _, Value::Address(address)) => self.listen = Some(*address),
                ("host", _, Value::Text(word)) => {
                    self.commit = if word == "batched" {
                        CommitMode::Batched
                    } else {
                        CommitMode::Sync
                    }
                }
                ("tools", _, Value::Names(names)) => self.tools = Some(names.clone()),
                ("tools", _, Value::Text(word)) => self.approve = Approve::of(word),
                ("skills", _, Value::Path(path)) => self.skills = Some(path.clone()),
                ("skills", _, Value::Names(models)) => self.skill_models = models.clone(),
                ("sandbox", _, Value::Patterns(hosts)) => self.network = hosts.clone(),
                ("sandbox", _, Value::Flag(yes)) => self.toolchains = *yes,
                ("sandbox", _, Value::Paths(folders)) => self.read_only = folders.clone(),
                ("sandbox", name, Value::Count(count)) => {
                    keys::set_exec_limit(&mut self.exec_limits, name, *count)
                }
                ("sandbox", _, Value::Text(word)) => self.sandbox = SandboxMode::of(word),
                (section @ (web::FETCH | web::SEARCH), name, value) => {
                    self.web.apply(section, name, value)
                }
                (webhook::SECTION, name, value) => self.webhook.apply(name, value),
                (tokens::SECTION, _, Value::Path(path)) => self.tokens.file = Some(path.clone()),
                ("limits", name, value) => keys::set_limit(&mut self.limits, name, value),
                _ => {}
            }
        }
        self.store = match self
            .settings
            .get(&("store", "url"))
            .map(|setting| &setting.value)
        {
            Some(Value::Store(store)) => store.clone(),
            _ => Store::Sqlite(self.data_dir.join("callboard.db")),
        };
    }
}

/// The variables of this process, without those that are not Unicode; no variable of Callboard is.
pub fn process_environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// The user's configuration file.
fn user_file(config_home: Option<PathBuf>, home: Option<&Path>) -> Option<PathBuf> {
    let folder = config_home.or_else(|| home.map(|home| home.join(".config")));
    folder.map(|folder| folder.join("callboard/callboard.toml"))
}

/// Keeps absolute paths only: the XDG specification requires that relative ones are ignored.
fn absolute(text: Option<&String>) -> Option<PathBuf> {
    text.map(PathBuf::from).filter(|path| path.is_absolute())
}

fn by_name(setting: Setting) -> ((&'static str, &'static str), Setting) {
    ((setting.key.section, setting.key.name), setting)
}
