//! Builds the tools of a host from configuration and flags: tools over the workspace, web tools,
//! MCP tools, and the store of their results.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
};

use callboard_actors::{
    ids::{Scope, TenantId},
    ports::{ArtifactError, ArtifactStore, Clock, Resource, SteadyClock, erased},
    subagent::CREATE_SUBAGENT,
};

use super::{
    AppError, Overrides, Sessions, TENANT, home_links::and_linked_from, is_apart, nearest,
};
use crate::{
    clock::SystemClock,
    config::{Config, Retention, SandboxMode, Store, TOOL_NAMES},
    mask::Masker,
    mcp::{self, FilePins, HttpClients, McpPool, McpResources, McpServerConfig, Pins},
    sandbox::{Mode, Options, PathRules, Spawner, Toolchains},
    storage::{ArtifactSettings, FileArtifacts, MemoryArtifacts},
    tools::{self, Toolbox, memory::Memory, web},
    web::{SystemResolver, UrlPolicy, guarded},
};

/// The names of the tools to offer: all for `None`, else those of the list.
pub(super) struct ToolSelection<'a>(pub(super) Option<&'a Vec<String>>);

impl ToolSelection<'_> {
    pub(super) fn has(&self, name: &str) -> bool {
        self.0
            .is_none_or(|wanted| wanted.iter().any(|tool| tool == name))
    }

    /// Whether a tool of this MCP server may be among them.
    pub(super) fn has_of(&self, server: &str) -> bool {
        self.0.is_none_or(|wanted| {
            wanted
                .iter()
                .any(|tool| tool.split_once("__").is_some_and(|(of, _)| of == server))
        })
    }
}

/// Tools and their resources.
pub(super) struct ToolSetup {
    pub(super) toolbox: Toolbox,
    pub(super) artifacts: Arc<dyn ArtifactStore>,
    /// Whether a model may start subagents.
    pub(super) subagents: bool,
    /// Resources to close together with the host.
    pub(super) resources: Vec<Arc<dyn Resource>>,
}

/// Builds the tools that flags and configuration select.
pub(super) async fn tool_setup(
    config: &Config,
    overrides: &Overrides,
    sessions: &Sessions,
) -> Result<ToolSetup, AppError> {
    let wanted = ToolSelection(overrides.tools.as_ref().or(config.tools.as_ref()));
    let masker = masker(config);
    let mut toolbox = over_workspace(config, overrides, &wanted, &masker)?;
    let offers_something = wanted.0.is_none_or(|wanted| !wanted.is_empty());
    let mut resources: Vec<Arc<dyn Resource>> = Vec::new();
    let apart = offers_something && is_apart(&config.data_dir, &overrides.workspace);
    let memory = match sessions.notes() {
        Some(notes) => offers_something.then(|| Memory::per_tenant_in(notes)),
        None => apart.then(|| Memory::per_tenant(&config.data_dir)),
    };
    toolbox.tools.extend(memory.map(erased));
    toolbox.tools.extend(web_tools(config, &masker)?);
    toolbox = toolbox.only(|name| wanted.has(name));
    let servers: Vec<&McpServerConfig> = overrides
        .mcp
        .iter()
        .filter(|server| wanted.has_of(&server.name))
        .collect();
    if !servers.is_empty() {
        let servers: Vec<McpServerConfig> = servers
            .into_iter()
            .map(|server| server.clone().in_workspace(&overrides.workspace))
            .collect();
        let pool = mcp_pool(masker, &config.data_dir)?;
        let pins: Arc<dyn Pins> = Arc::new(FilePins::new(&config.data_dir));
        let tenant = TenantId::new(TENANT).map_err(|error| AppError::Tools(error.to_string()))?;
        let (tools, notes) = mcp::tools(&servers, &pool, &tenant, &pins).await;
        toolbox.tools.extend(
            tools
                .into_iter()
                .filter(|tool| wanted.has(tool.spec().name())),
        );
        toolbox.notes.extend(notes);
        resources.push(Arc::new(pool));
    }
    let known = || {
        TOOL_NAMES
            .iter()
            .copied()
            .chain(toolbox.tools.iter().map(|tool| tool.spec().name()))
    };
    if let Some(unknown) = wanted
        .0
        .into_iter()
        .flatten()
        .find(|name| !known().any(|known| known == name.as_str()))
    {
        return Err(AppError::NoSuchTool {
            name: unknown.clone(),
            nearest: nearest(unknown, known()),
        });
    }
    let wall = Arc::new(SystemClock);
    let artifacts = match sessions {
        Sessions::Memory(_) | Sessions::Sqlite(..) if !apart => in_memory(wall),
        _ => artifacts(config, sessions, wall, &mut toolbox.notes).await,
    };
    Ok(ToolSetup {
        toolbox,
        artifacts,
        subagents: wanted.has(CREATE_SUBAGENT),
        resources,
    })
}

/// Converts the configured mode.
pub(crate) fn mode(mode: SandboxMode) -> Mode {
    match mode {
        SandboxMode::Auto => Mode::Auto,
        SandboxMode::Linux => Mode::Linux,
        SandboxMode::Local => Mode::Local,
        SandboxMode::None => Mode::None,
    }
}

/// The paths in a workspace that no tool may write: the default list, and of what lies in it
/// - the skills, because skills are the user's instructions;
/// - the folders that hold agreements, sessions and what MCP servers were accepted for, which no tool
///   may read either;
/// - every file that the next start of this host reads, and files that hold keys, which no tool may
///   read either;
/// - what the home folder's settings are links to.
pub(super) fn rules(config: &Config, workspace: &Path, skills: Option<&Path>) -> PathRules {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let rules = named(config, skills).protect(PathRules::default(), workspace);
    let rules = programs_of_variables(workspace, |name| std::env::var_os(name))
        .into_iter()
        .fold(rules, |rules, path| rules.and_program(workspace, &path));
    let rules = match &home {
        Some(home) => and_linked_from(rules, home, workspace),
        None => rules,
    };
    rules
        .with_home(home)
        .with_git_variables(|name| std::env::var_os(name))
}

/// Variables of the account whose words name programs that the user's shell, git or this program runs.
const PROGRAM_VARIABLES: [&str; 17] = [
    "BASH_ENV",
    "BROWSER",
    "EDITOR",
    "ENV",
    "GIT_ASKPASS",
    "GIT_EDITOR",
    "GIT_EXTERNAL_DIFF",
    "GIT_PAGER",
    "GIT_PROXY_COMMAND",
    "GIT_SEQUENCE_EDITOR",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "GIT_TEMPLATE_DIR",
    "PAGER",
    "PYTHONSTARTUP",
    "SSH_ASKPASS",
    "VISUAL",
];

/// The paths in these variables. A relative one counts from the workspace.
fn programs_of_variables(
    workspace: &Path,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Vec<PathBuf> {
    let values = PROGRAM_VARIABLES.iter().filter_map(|name| variable(name));
    let values = values.filter_map(|value| value.into_string().ok());
    values
        .flat_map(|value| {
            let words = value.split(|c: char| c.is_whitespace() || "\"'=".contains(c));
            let paths = words.filter(|word| word.contains('/'));
            let paths: Vec<PathBuf> = paths.map(|path| workspace.join(path)).collect();
            paths
        })
        .collect()
}

/// Files that a session names.
#[derive(Default)]
struct SessionFiles {
    /// Only the user may write them.
    protected: Vec<PathBuf>,
    /// Programs, which only the user may write either.
    programs: Vec<PathBuf>,
    /// No tool may read them either.
    sensitive: Vec<PathBuf>,
}

impl SessionFiles {
    /// Protects those that lie in a workspace.
    fn protect(&self, rules: PathRules, workspace: &Path) -> PathRules {
        let sensitive = self.sensitive.iter();
        let rules = sensitive.fold(rules, |rules, path| rules.and_sensitive(workspace, path));
        let protected = self.protected.iter();
        let rules = protected.fold(rules, |rules, path| rules.and_protected(workspace, path));
        let programs = self.programs.iter();
        programs.fold(rules, |rules, path| rules.and_program(workspace, path))
    }
}

/// The files that a configuration names.
fn named(config: &Config, skills: Option<&Path>) -> SessionFiles {
    let store = match &config.store {
        Store::Sqlite(path) => Some(path.as_path()),
        _ => None,
    };
    let trust = config.trust().folder();
    let trusted = trust.map(|folder| folder.join("trust.json"));
    let data = (!config.data_dir.as_os_str().is_empty()).then_some(config.data_dir.as_path());
    let secret = [data, trust, trusted.as_deref()]
        .into_iter()
        .flatten()
        .chain(config.key_files())
        .map(Path::to_owned);
    SessionFiles {
        sensitive: secret
            .chain(store.into_iter().flat_map(with_its_logs))
            .collect(),
        protected: skills
            .into_iter()
            .chain(config.read_files())
            .map(Path::to_owned)
            .collect(),
        programs: config
            .mcp
            .iter()
            .flat_map(McpServerConfig::programs)
            .collect(),
    }
}

/// The files that flags, or the client of a session, name.
fn named_by_flags(overrides: &Overrides) -> SessionFiles {
    let servers = overrides
        .mcp
        .iter()
        .cloned()
        .map(|server| server.in_workspace(&overrides.workspace));
    SessionFiles {
        protected: overrides.mcp_file.clone().into_iter().collect(),
        programs: servers.flat_map(|server| server.programs()).collect(),
        sensitive: overrides
            .db
            .iter()
            .flat_map(|path| with_its_logs(path))
            .collect(),
    }
}

/// The files of an SQLite database.
fn with_its_logs(path: &Path) -> [PathBuf; 4] {
    ["", "-wal", "-shm", "-journal"].map(|ending| {
        let mut name = path.as_os_str().to_owned();
        name.push(ending);
        name.into()
    })
}

/// What commands of a person's host can read, use and reach.
pub(super) fn command_options(config: &Config) -> Options {
    let mut toolchains = Toolchains::of(&config.read_only);
    if config.toolchains
        && let Some(home) = std::env::var_os("HOME")
    {
        toolchains = toolchains.and(Toolchains::detect(Path::new(&home), |name| {
            std::env::var_os(name)
        }));
    }
    Options {
        limits: config.exec_limits,
        network: config.network.clone().into(),
        toolchains,
        main_asks: true,
        ..Options::default()
    }
}

fn over_workspace(
    config: &Config,
    overrides: &Overrides,
    wanted: &ToolSelection<'_>,
    masker: &Masker,
) -> Result<Toolbox, AppError> {
    let mode = mode(overrides.sandbox.unwrap_or(config.sandbox));
    // A sandbox that no tool uses is not tried and produces no notes.
    let mode = if wanted.has("bash") || mode != Mode::Auto {
        mode
    } else {
        Mode::None
    };
    let options = command_options(config);
    let skills = overrides.skills.as_deref().or(config.skills.as_deref());
    let by_flags = named_by_flags(overrides);
    for files in [&named(config, skills), &by_flags] {
        if !overrides
            .named
            .add(&files.protected, &files.programs, &files.sensitive)
        {
            return Err(AppError::Tools(
                "the sessions of this process name more than 10,000 files; start another one"
                    .to_owned(),
            ));
        }
    }
    // Programs that the user runs, and commands see: of those in the workspace, commands see the same.
    let programs = options.toolchains.read_only.iter();
    let rules = programs.chain(&options.toolchains.path).fold(
        rules(config, &overrides.workspace, skills),
        |rules, folder| rules.and_protected(&overrides.workspace, folder),
    );
    let rules = by_flags.protect(rules, &overrides.workspace);
    let home = std::env::var_os("HOME").filter(|_| config.toolchains);
    let absent = home.as_deref().map(|home| {
        Toolchains::absent(Path::new(home), |name| std::env::var_os(name)).collect::<Vec<_>>()
    });
    let rules = absent.into_iter().flatten().fold(rules, |rules, place| {
        rules.and_protected(&overrides.workspace, &place)
    });
    let mut toolbox = tools::with_options_sharing(
        &overrides.workspace,
        mode,
        options,
        rules,
        masker.clone(),
        overrides.named.clone(),
    );
    if let Some(error) = toolbox.error() {
        return Err(AppError::Tools(error.to_owned()));
    }
    if !wanted.has("bash") {
        toolbox.notes.clear();
    }
    Ok(toolbox)
}

pub(super) fn web_tools(
    config: &Config,
    masker: &Masker,
) -> Result<Vec<Arc<dyn callboard_actors::ports::Tool>>, AppError> {
    let settings = &config.web;
    let key = settings.key.as_ref().map(|key| key.expose().to_owned());
    let search = match (settings.engine.as_deref(), &settings.base_url, key) {
        (Some("searxng"), Some(base_url), _) => web::Search::SearxNg {
            base_url: base_url.clone(),
        },
        (_, base_url, Some(key)) => web::Search::Tavily {
            key,
            base_url: base_url.clone(),
        },
        _ => web::Search::None,
    };
    let allow_hosts = settings.allow_hosts.clone();
    let fetch_without_asking = settings.fetch_without_asking;
    let tools = web::tools(web::WebTools {
        allow_hosts,
        fetch_without_asking,
        search,
        masker: masker.clone(),
    });
    tools.map_err(|error| AppError::Tools(error.to_string()))
}

/// Pool of MCP servers, reached over pipes, or over HTTP at public addresses and at private ones
/// that the configuration allows.
pub(crate) fn mcp_pool(masker: Masker, data_dir: &Path) -> Result<McpPool, AppError> {
    let spawner = Spawner::start().map_err(|error| {
        AppError::Tools(format!("no MCP server can be started: {}", error.kind()))
    })?;
    let vouched = HttpClients::vouched_only();
    let clients = HttpClients::new(move |target| {
        if target.allow_private {
            return vouched.client(target);
        }
        let policy = UrlPolicy::public();
        policy
            .check(&target.url)
            .map_err(|denied| denied.to_string())?;
        unvouched(guarded(Arc::new(policy), Arc::new(SystemResolver)))
    });
    let resources = McpResources::new(spawner, clients, Arc::new(masker));
    Ok(McpPool::new(resources.folder(data_dir.join("empty"))))
}

/// The HTTP client for servers without `allow_private`. It follows no redirects, because reqwest
/// would forward `headers` to the new address; the protocol needs none.
fn unvouched(guarded: reqwest::ClientBuilder) -> Result<reqwest::Client, String> {
    guarded
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .map_err(|_| "the HTTP client cannot be built".to_owned())
}

/// The folder of artifacts in the data folder.
fn artifacts_folder(data_dir: &Path) -> PathBuf {
    data_dir.join("artifacts")
}

/// Deletes the artifacts of a conversation that ends. Does not create a missing folder. Call it
/// before closing the sessions.
///
/// # Errors
/// [`ArtifactError::Unavailable`].
pub(crate) async fn release_artifacts(
    config: &Config,
    sessions: &Sessions,
    scope: &Scope,
) -> Result<(), ArtifactError> {
    let clock = Arc::new(SystemClock);
    let settings = ArtifactSettings {
        auto_start: false,
        ..ArtifactSettings::default()
    };
    let folder = artifacts_folder(&config.data_dir);
    let store: Arc<dyn ArtifactStore> = match sessions {
        Sessions::Postgres(store, _) => Arc::new(store.artifacts(clock, settings)),
        Sessions::Sqlite(..) | Sessions::Memory(_) if !folder.exists() => return Ok(()),
        Sessions::Sqlite(..) | Sessions::Memory(_) => {
            Arc::new(FileArtifacts::open(folder, clock, settings).await?)
        }
    };
    store
        .release(scope.tenant.clone(), Some(scope.conversation.clone()))
        .await
}

/// Stores artifacts in the database of the sessions if it is PostgreSQL, else as files in the data
/// folder, or in memory if that fails. Their age is measured without jumps of `wall`: a clock that is
/// wrong for a moment must not expire all of them.
pub(super) async fn artifacts(
    config: &Config,
    sessions: &Sessions,
    wall: Arc<dyn Clock>,
    notes: &mut Vec<String>,
) -> Arc<dyn ArtifactStore> {
    let clock = Arc::new(SteadyClock::new(wall));
    let settings = kept(&config.tool_rules.retention);
    if let Sessions::Postgres(store, _) = sessions {
        return Arc::new(store.artifacts(clock, settings));
    }
    in_folder(&config.data_dir, settings, clock, notes).await
}

async fn in_folder(
    data_dir: &Path,
    settings: ArtifactSettings,
    clock: Arc<dyn Clock>,
    notes: &mut Vec<String>,
) -> Arc<dyn ArtifactStore> {
    match FileArtifacts::open(artifacts_folder(data_dir), clock.clone(), settings).await {
        Ok(store) => Arc::new(store),
        Err(error) => {
            notes.push(format!(
                "large results are kept in memory until this program ends: {error}"
            ));
            Arc::new(MemoryArtifacts::new(clock))
        }
    }
}

/// How long artifacts are kept, and how many.
fn kept(retention: &Retention) -> ArtifactSettings {
    let usual = ArtifactSettings::default();
    ArtifactSettings {
        max_age: retention.max_age.unwrap_or(usual.max_age),
        max_size_bytes: retention.bytes_max.unwrap_or(usual.max_size_bytes),
        tenant_bytes_max: retention.tenant_bytes_max.unwrap_or(usual.tenant_bytes_max),
        cleanup_interval: retention.clean.unwrap_or(usual.cleanup_interval),
        ..usual
    }
}

fn in_memory(wall: Arc<dyn Clock>) -> Arc<dyn ArtifactStore> {
    Arc::new(MemoryArtifacts::new(Arc::new(SteadyClock::new(wall))))
}

/// Masks the keys of the environment and of the configuration.
pub(crate) fn masker(config: &Config) -> Masker {
    let configured = config.masked_texts();
    if configured.is_empty() {
        Masker::from_env()
    } else {
        Masker::from_env().and(configured)
    }
}

#[cfg(test)]
mod tests {
    use callboard_actors::{ids::ConversationId, testing::ManualClock, time::Timestamp};

    use super::*;

    /// Answers every connection with `answer` and records the requests.
    async fn answering(head: String) -> (u16, Arc<parking_lot::Mutex<Vec<String>>>) {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let keep = asked.clone();
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let mut request = Vec::new();
                let mut buffer = [0; 4096];
                // A redirect may turn the request into a GET without a body.
                let is_whole = |request: &[u8]| {
                    request.ends_with(if request.starts_with(b"GET") {
                        &b"\r\n\r\n"[..]
                    } else {
                        &b"the body"[..]
                    })
                };
                while !is_whole(&request) {
                    match socket.read(&mut buffer).await {
                        Ok(read) if read > 0 => request.extend_from_slice(&buffer[..read]),
                        _ => break,
                    }
                }
                keep.lock()
                    .push(String::from_utf8_lossy(&request).into_owned());
                let _ = socket
                    .write_all(
                        format!(
                            "HTTP/1.1 {head}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                        )
                        .as_bytes(),
                    )
                    .await;
            }
        });
        (port, asked)
    }

    #[tokio::test]
    async fn no_redirect_carries_a_header_of_an_mcp_server_on() {
        let (second, came) = answering("200 OK".to_owned()).await;
        let policy = Arc::new(UrlPolicy::public().allow("127.0.0.1").unwrap());
        let client = unvouched(guarded(policy, Arc::new(SystemResolver))).unwrap();

        for status in [301, 302, 303, 307, 308] {
            let (first, asked) = answering(format!(
                "{status} Moved\r\nLocation: http://127.0.0.1:{second}/"
            ))
            .await;
            let request = client
                .post(format!("http://127.0.0.1:{first}/mcp"))
                .header("x-secret", "not-a-real-key")
                .body("the body");

            let answer = request.send().await.unwrap();

            assert_eq!(
                answer.status().as_u16(),
                status,
                "the redirect is the answer"
            );
            assert!(asked.lock()[0].contains("x-secret: not-a-real-key"));
        }
        assert_eq!(came.lock().len(), 0, "{came:?}");
    }

    #[tokio::test]
    async fn a_clock_that_jumps_a_year_ahead_makes_no_artifact_old() {
        const YEAR_MS: u64 = 366 * 24 * 3600 * 1000;
        let home = tempfile::tempdir().unwrap();
        let wall = Arc::new(ManualClock::at(Timestamp(1_795_300_000_000)));
        let scope = Scope::new(
            TenantId::new("acme").unwrap(),
            ConversationId::new("c").unwrap(),
        );
        for store in [
            in_folder(
                home.path(),
                kept(&Retention::default()),
                Arc::new(SteadyClock::new(wall.clone())),
                &mut Vec::new(),
            )
            .await,
            in_memory(wall.clone()),
        ] {
            let kept = store
                .store(scope.clone(), "call".into(), "large".into())
                .await
                .unwrap();

            wall.advance_ms(YEAR_MS);

            assert!(store.retrieve(scope.clone(), kept.clone()).await.is_ok());
        }
    }
}
