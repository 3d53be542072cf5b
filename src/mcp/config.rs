//! Configuration of MCP servers, read from `[[mcp]]` in `callboard.toml` and from `{"mcpServers":
//! …}` files of other clients.
//!
//! A stdio server is the user's own program: it runs with the user's rights and network access, as
//! under every other MCP client, but its environment is an allow-list without keys. Servers are not
//! sandboxed; `sandbox = true` is refused rather than ignored.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;

use super::name::is_server_name;
use crate::visible::visible_line;

/// Longest timeout that can be configured: one hour.
const WAIT_MS_MAX: u64 = 3_600_000;

/// Default timeout of a tool call.
const TIMEOUT: Duration = Duration::from_millis(120_000);

/// Default start timeout. It is generous because the first start of a packaged server may download
/// it.
const START_TIMEOUT: Duration = Duration::from_millis(60_000);

/// Default wait for the answer to `server/discover` before the server is treated as one of the
/// older protocol.
const PROBE: Duration = Duration::from_millis(5_000);

/// Upper limit of `probe_ms`: the SDK's own timeout is ten seconds.
const PROBE_MS_MAX: u64 = 9_000;

/// Default idle time after which an unused server is stopped.
const IDLE: Duration = Duration::from_millis(600_000);

/// Default and largest `tools_max`. Each tool's definition is part of every request to a model.
const TOOLS: usize = 128;
pub(super) const TOOLS_MAX: usize = 1024;

/// Most arguments, variables or headers of one server.
const ITEMS_MAX: usize = 128;

/// Configuration of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpServerConfig {
    /// 1-64 of `[A-Za-z0-9_-]` without `__`: the prefix of its tools' names.
    pub name: String,
    /// A process to start, or a URL.
    pub transport: McpTransport,
    /// Timeout of a tool call.
    pub timeout: Duration,
    /// Timeout of start and handshake together.
    pub start_timeout: Duration,
    /// How long to wait for the answer to `server/discover` (the newer protocol) before falling
    /// back to `initialize`; at most nine seconds.
    pub probe: Duration,
    /// Idle time after which an unused server is stopped.
    pub idle: Duration,
    /// Whether the server's annotations of its tools are trusted.
    pub trust: Trust,
    /// The tools to offer, by the server's own names; all if `None`.
    pub tools: Option<BTreeSet<String>>,
    /// Largest number of offered tools, 1 to 1024, in the server's order; further ones are omitted
    /// with a note.
    pub tools_max: usize,
}

/// How a server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum McpTransport {
    /// A child process, with messages over its standard input and output.
    Stdio {
        /// The program: a path, or a name that is looked up in `PATH`.
        command: String,
        /// Arguments of the program.
        args: Vec<String>,
        /// Environment variables of the process, in addition to [`PLAIN_ENVIRONMENT`].
        env: BTreeMap<String, Template>,
        /// Names of variables that are copied from the host's environment.
        env_from: BTreeSet<String>,
        /// Working directory; an empty folder ([`McpResources::folder`](super::McpResources::folder))
        /// if `None`. [`WORKSPACE_FOLDER`] must be replaced by [`McpServerConfig::in_workspace`].
        cwd: Option<PathBuf>,
    },
    /// A server reached at a URL over streamable HTTP.
    Http {
        /// URL of the MCP endpoint.
        url: String,
        /// Headers of every request.
        headers: BTreeMap<String, Template>,
        /// Whether the address may be private or loopback. Without it, such addresses are refused.
        allow_private: bool,
    },
}

/// The value of `cwd` that stands for the workspace. Programs such as `npx` and `python3 -m` look for
/// code and settings in the folder in which they start, so a server starts in the workspace only
/// where its configuration says so.
pub const WORKSPACE_FOLDER: &str = "${workspace}";

/// Variables of the host's environment that every server process gets: those needed to find
/// programs and caches. None holds a key.
pub const PLAIN_ENVIRONMENT: &[&str] = &[
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ",
];

/// Whether a server's annotations (`readOnlyHint`, `idempotentHint`) are trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Trust {
    /// Not trusted: every call needs approval and is never repeated.
    #[default]
    None,
    /// Trusted: read-only tools run without approval; read-only and idempotent calls may be
    /// repeated.
    Annotations,
}

/// A text in which `${NAME}` stands for a variable of the host's environment. `Debug` shows only
/// the names.
#[derive(Clone, PartialEq, Eq)]
pub struct Template(String);

impl Template {
    /// Creates a template; the text is not checked.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Substitutes the variables.
    ///
    /// # Errors
    /// The name of a variable that is not set.
    pub fn expand(&self, variable: impl Fn(&str) -> Option<String>) -> Result<String, String> {
        let mut text = String::new();
        for part in self.parts() {
            match part {
                Part::Plain(plain) => text.push_str(plain),
                Part::Name(name) => text.push_str(&variable(name).ok_or_else(|| name.to_owned())?),
            }
        }
        Ok(text)
    }

    /// The text with its placeholders.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Whether the text contains a placeholder.
    pub fn has_variable(&self) -> bool {
        self.parts()
            .iter()
            .any(|part| matches!(part, Part::Name(_)))
    }

    fn parts(&self) -> Vec<Part<'_>> {
        let mut parts = Vec::new();
        let mut rest = self.0.as_str();
        while let Some((before, after)) = rest.split_once("${") {
            match after.split_once('}') {
                Some((name, behind)) if is_variable(name) => {
                    parts.extend([Part::Plain(before), Part::Name(name)]);
                    rest = behind;
                }
                _ => {
                    parts.extend([Part::Plain(before), Part::Plain("${")]);
                    rest = after;
                }
            }
        }
        parts.push(Part::Plain(rest));
        parts
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: String = self
            .parts()
            .iter()
            .map(|part| match part {
                Part::Plain("") => String::new(),
                Part::Plain(_) => "[hidden]".to_owned(),
                Part::Name(name) => format!("${{{name}}}"),
            })
            .collect();
        f.write_str(&shown)
    }
}

enum Part<'t> {
    Plain(&'t str),
    Name(&'t str),
}

fn is_variable(name: &str) -> bool {
    let letters = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    (1..=128).contains(&name.len()) && letters && !name.starts_with(|c: char| c.is_ascii_digit())
}

impl McpServerConfig {
    /// A stdio server with default limits and no trust.
    pub fn stdio(
        name: impl Into<String>,
        command: impl Into<String>,
        args: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        let args = args.into_iter().map(Into::into).collect();
        let transport = McpTransport::Stdio {
            command: command.into(),
            args,
            env: BTreeMap::new(),
            env_from: BTreeSet::new(),
            cwd: None,
        };
        Self::over(name.into(), transport)
    }

    /// An HTTP server with default limits and no trust.
    pub fn http(name: impl Into<String>, url: impl Into<String>) -> Self {
        Self::over(
            name.into(),
            McpTransport::Http {
                url: url.into(),
                headers: BTreeMap::new(),
                allow_private: false,
            },
        )
    }

    fn over(name: String, transport: McpTransport) -> Self {
        Self {
            name,
            transport,
            timeout: TIMEOUT,
            start_timeout: START_TIMEOUT,
            probe: PROBE,
            idle: IDLE,
            trust: Trust::None,
            tools: None,
            tools_max: TOOLS,
        }
    }
}

impl McpServerConfig {
    /// Replaces [`WORKSPACE_FOLDER`] as working directory.
    #[must_use]
    pub fn in_workspace(mut self, workspace: &Path) -> Self {
        if let McpTransport::Stdio { cwd: Some(cwd), .. } = &mut self.transport
            && cwd == Path::new(WORKSPACE_FOLDER)
        {
            workspace.clone_into(cwd);
        }
        self
    }

    /// The files that run as the server: its program, if that is a path, and the files among its
    /// arguments, such as a script.
    #[cfg_attr(not(feature = "cli"), allow(dead_code))]
    pub(crate) fn programs(&self) -> Vec<PathBuf> {
        let McpTransport::Stdio {
            command, args, cwd, ..
        } = &self.transport
        else {
            return Vec::new();
        };
        let folder = cwd.clone().unwrap_or_default();
        let named = args.iter().map(|arg| {
            let value = arg.split_once('=').map_or("", |(_, value)| value);
            [arg.as_str(), value]
        });
        let program = command.contains('/').then_some(command.as_str());
        let files = named
            .flatten()
            .filter(|name| !name.is_empty())
            .flat_map(|name| [PathBuf::from(name), folder.join(name)])
            .filter(|path| path.is_file());
        program
            .into_iter()
            .flat_map(|name| [PathBuf::from(name), folder.join(name)])
            .chain(files)
            .collect()
    }

    /// The secrets that the configuration passes to the server: values whose own name, or whose
    /// variable's name, ends in a word such as `key` or `token`. For `Bearer abc`, `abc` is listed
    /// as well.
    pub fn keys(&self, variable: impl Fn(&str) -> Option<String>) -> Vec<String> {
        let nothing = BTreeSet::new();
        let (values, from) = match &self.transport {
            McpTransport::Stdio { env, env_from, .. } => (env, env_from),
            McpTransport::Http { headers, .. } => (headers, &nothing),
        };
        let is_key = |(name, value): &(&String, &Template)| {
            speaks_of_keys(name)
                || value
                    .parts()
                    .iter()
                    .any(|part| matches!(part, Part::Name(name) if speaks_of_keys(name)))
        };
        let given = values
            .iter()
            .filter(is_key)
            .filter_map(|(_, value)| value.expand(&variable).ok());
        let passed = from
            .iter()
            .filter(|name| speaks_of_keys(name))
            .filter_map(|name| variable(name));
        given
            .chain(passed)
            .flat_map(|value| {
                [
                    value
                        .split_whitespace()
                        .last()
                        .unwrap_or_default()
                        .to_owned(),
                    value,
                ]
            })
            .collect()
    }
}

/// A key of a configuration file.
#[derive(Debug, Clone)]
pub struct McpEntry {
    /// Name of the key.
    pub key: String,
    /// Line of the key, from 1.
    pub line: usize,
    /// Value of the key, as JSON.
    pub value: Value,
}

/// An invalid entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpProblem {
    /// Line of the entry, from 1.
    pub line: usize,
    /// Name of the key; empty if a key is missing.
    pub key: String,
    /// What is wrong and what would be valid, in one line. Contains no value that may be a secret.
    pub problem: String,
}

/// The kind of file that an entry comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum McpDialect {
    /// `callboard.toml`: unknown keys and literal secrets are errors.
    Toml,
    /// An `mcpServers` file, shared with other programs: unknown keys are ignored.
    Json,
}

/// Every key of a server in `callboard.toml`.
pub const MCP_KEYS: &[&str] = &[
    "name",
    "command",
    "args",
    "env",
    "env_from",
    "cwd",
    "url",
    "headers",
    "allow_private",
    "timeout_ms",
    "start_timeout_ms",
    "probe_ms",
    "idle_ms",
    "trust",
    "tools",
    "tools_max",
    "sandbox",
];

/// Reads one server. `line` is the line of its section; relative paths are resolved against
/// `folder`. Returns `None` for a disabled server (`"disabled": true`, JSON only).
///
/// # Errors
/// The first invalid entry.
pub fn read_server(
    entries: &[McpEntry],
    line: usize,
    folder: &Path,
    dialect: McpDialect,
) -> Result<Option<McpServerConfig>, McpProblem> {
    let mut seen = Seen {
        command: None,
        url: None,
        only_stdio: None,
        only_http: None,
    };
    let mut server = McpServerConfig::stdio("", "", [""; 0]);
    let mut args = Vec::new();
    let mut env = BTreeMap::new();
    let mut env_from = BTreeSet::new();
    let mut cwd = None;
    let mut headers = BTreeMap::new();
    let mut allow_private = false;
    for entry in entries {
        let wrong = |problem: String| McpProblem {
            line: entry.line,
            key: entry.key.clone(),
            problem,
        };
        let value = &entry.value;
        match entry.key.as_str() {
            "name" => {
                server.name = text(value).map_err(wrong)?;
                if !is_server_name(&server.name) {
                    return Err(wrong("must be 1-64 of `A-Z a-z 0-9 _ -`, without `__` and without `_` at its end".to_owned()));
                }
            }
            "command" => seen.command = Some(text(value).map_err(wrong)?),
            "args" => (args, seen.only_stdio) = (texts(value).map_err(wrong)?, Some(entry)),
            "env" => {
                (env, seen.only_stdio) = (
                    templates(value, is_variable, "a variable").map_err(wrong)?,
                    Some(entry),
                );
                no_keys(&env, dialect).map_err(wrong)?;
            }
            "env_from" => {
                (env_from, seen.only_stdio) = (
                    texts(value).map_err(wrong)?.into_iter().collect(),
                    Some(entry),
                );
                if env_from.iter().any(|name: &String| !is_variable(name)) {
                    // The value is not quoted: a common mistake is to write the secret itself here.
                    return Err(wrong(
                        "must be a list of names of environment variables, not of their values"
                            .to_owned(),
                    ));
                }
            }
            "cwd" => {
                let given = text(value).map_err(wrong)?;
                let place = if given == WORKSPACE_FOLDER {
                    PathBuf::from(given)
                } else {
                    folder.join(given)
                };
                (cwd, seen.only_stdio) = (Some(place), Some(entry));
            }
            "url" | "serverUrl" => seen.url = Some(address(value).map_err(wrong)?),
            "headers" => {
                (headers, seen.only_http) = (
                    templates(value, is_header, "a header").map_err(wrong)?,
                    Some(entry),
                );
                no_keys(&headers, dialect).map_err(wrong)?;
            }
            "allow_private" => {
                (allow_private, seen.only_http) = (flag(value).map_err(wrong)?, Some(entry))
            }
            "timeout_ms" | "timeout" => server.timeout = wait(value, WAIT_MS_MAX).map_err(wrong)?,
            "start_timeout_ms" => server.start_timeout = wait(value, WAIT_MS_MAX).map_err(wrong)?,
            "probe_ms" => server.probe = wait(value, PROBE_MS_MAX).map_err(wrong)?,
            "idle_ms" => server.idle = wait(value, WAIT_MS_MAX * 24).map_err(wrong)?,
            "trust" => {
                server.trust = match value.as_str() {
                    Some("none") => Trust::None,
                    Some("annotations") => Trust::Annotations,
                    _ => return Err(wrong("must be `none` or `annotations`".to_owned())),
                }
            }
            "tools" => server.tools = Some(texts(value).map_err(wrong)?.into_iter().collect()),
            "tools_max" => {
                let count = value
                    .as_u64()
                    .and_then(|count| usize::try_from(count).ok())
                    .filter(|count| (1..=TOOLS_MAX).contains(count));
                server.tools_max =
                    count.ok_or_else(|| wrong(format!("must be 1 to {TOOLS_MAX} tools")))?;
            }
            "sandbox" => {
                if flag(value).map_err(wrong)? {
                    return Err(wrong("cannot be true: a server runs with your rights, outside of the sandbox of the tools".to_owned()));
                }
            }
            "disabled" if dialect == McpDialect::Json => {
                if flag(value).map_err(wrong)? {
                    return Ok(None);
                }
            }
            "type" | "transport" if dialect == McpDialect::Json => {
                let kind = text(value).map_err(wrong)?;
                if ![
                    "stdio",
                    "http",
                    "streamable-http",
                    "streamableHttp",
                    "streamable_http",
                ]
                .contains(&kind.as_str())
                {
                    return Err(wrong(
                        "must be `stdio` or `http` (streamable HTTP); the older `sse` transport is not supported".to_owned(),
                    ));
                }
            }
            _ if dialect == McpDialect::Json => {}
            other => return Err(wrong(format!("is not a known key{}", near(other)))),
        }
    }
    let missing = |problem: &str| McpProblem {
        line,
        key: String::new(),
        problem: problem.to_owned(),
    };
    if server.name.is_empty() {
        return Err(missing("a server needs a `name`"));
    }
    server.transport = match (seen.command, seen.url) {
        (Some(_), Some(_)) => return Err(missing("a server has a `command` or a `url`, not both")),
        (None, None) => {
            return Err(missing(
                "a server needs a `command` to start or a `url` to reach",
            ));
        }
        (Some(command), None) => {
            misplaced(seen.only_http, "url")?;
            McpTransport::Stdio {
                command,
                args,
                env,
                env_from,
                cwd,
            }
        }
        (None, Some(url)) => {
            misplaced(seen.only_stdio, "command")?;
            McpTransport::Http {
                url,
                headers,
                allow_private,
            }
        }
    };
    Ok(Some(server))
}

struct Seen<'e> {
    command: Option<String>,
    url: Option<String>,
    only_stdio: Option<&'e McpEntry>,
    only_http: Option<&'e McpEntry>,
}

fn misplaced(entry: Option<&McpEntry>, wants: &str) -> Result<(), McpProblem> {
    entry.map_or(Ok(()), |entry| {
        Err(McpProblem {
            line: entry.line,
            key: entry.key.clone(),
            problem: format!("needs `{wants}`, which is missing"),
        })
    })
}

/// Suggests the closest key.
fn near(given: &str) -> String {
    let given = given.to_ascii_lowercase().replace('-', "_");
    let close = MCP_KEYS.iter().find(|key| {
        key.replace('_', "") == given.replace('_', "")
            || key.starts_with(&given)
            || given.starts_with(**key)
    });
    match close {
        Some(key) => format!("; did you mean `{key}`?"),
        None => format!("; known: {}", MCP_KEYS.join(", ")),
    }
}

fn text(value: &Value) -> Result<String, String> {
    match value.as_str() {
        Some("") => Err("must not be empty".to_owned()),
        Some(text) if text.contains('\0') => Err("must not contain a NUL byte".to_owned()),
        Some(text) if text.len() > 32 * 1024 => Err("is longer than 32 KiB".to_owned()),
        Some(text) => Ok(text.to_owned()),
        None => Err("must be a string".to_owned()),
    }
}

fn texts(value: &Value) -> Result<Vec<String>, String> {
    let items = value.as_array().ok_or("must be a list of strings")?;
    if items.len() > ITEMS_MAX {
        return Err(format!("contains more than {ITEMS_MAX} strings"));
    }
    // An empty string is a valid argument.
    items
        .iter()
        .map(|item| {
            if item.as_str() == Some("") {
                Ok(String::new())
            } else {
                text(item)
            }
        })
        .collect()
}

fn flag(value: &Value) -> Result<bool, String> {
    value
        .as_bool()
        .ok_or_else(|| "must be true or false".to_owned())
}

fn wait(value: &Value, max: u64) -> Result<Duration, String> {
    match value.as_u64() {
        Some(ms) if (1..=max).contains(&ms) => Ok(Duration::from_millis(ms)),
        _ => Err(format!("must be 1 to {max} milliseconds")),
    }
}

fn templates(
    value: &Value,
    is_name: fn(&str) -> bool,
    what: &str,
) -> Result<BTreeMap<String, Template>, String> {
    let fields = value
        .as_object()
        .ok_or_else(|| format!("must be a table that maps the name of {what} to a string"))?;
    if fields.len() > ITEMS_MAX {
        return Err(format!("contains more than {ITEMS_MAX} entries"));
    }
    let one = |(name, value): (&String, &Value)| match value.as_str() {
        _ if !is_name(name) => Err(format!(
            "contains `{}`, which is not a valid name of {what}",
            visible_line(name, 60)
        )),
        Some(text) if text.contains(['\0', '\r', '\n']) => {
            Err(format!("contains a line break or a NUL byte in `{name}`"))
        }
        Some(text) => Ok((name.clone(), Template::new(text))),
        None => Err(format!("must have a string in `{name}`")),
    };
    fields.iter().map(one).collect()
}

fn is_header(name: &str) -> bool {
    let token = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte));
    (1..=128).contains(&name.len()) && token
}

/// Whether the name of a header or variable suggests that its value is a secret.
fn speaks_of_keys(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [
        "authorization",
        "cookie",
        "key",
        "token",
        "secret",
        "password",
        "passwd",
        "credentials",
    ]
    .iter()
    .any(|word| name.ends_with(word))
}

/// Refuses literal secrets in `callboard.toml`.
fn no_keys(values: &BTreeMap<String, Template>, dialect: McpDialect) -> Result<(), String> {
    let key = values.iter().find(|(name, value)| {
        dialect == McpDialect::Toml && speaks_of_keys(name) && !value.has_variable()
    });
    key.map_or(Ok(()), |(name, _)| {
        Err(format!(
            "contains a secret in `{name}`: secrets are not allowed in this file; write `${{NAME}}` to use an environment variable"
        ))
    })
}

fn address(value: &Value) -> Result<String, String> {
    let given = text(value)?;
    let Ok(url) = url::Url::parse(&given) else {
        return Err("must be a URL".to_owned());
    };
    if !["http", "https"].contains(&url.scheme()) || url.host_str().is_none_or(str::is_empty) {
        Err("must start with `http://` or `https://` and name a host".to_owned())
    } else if !url.username().is_empty() || url.password().is_some() {
        // URLs appear in errors and logs; passwords must not.
        Err("must not contain a user name or a password; use `headers`".to_owned())
    } else if url.fragment().is_some() {
        Err("must not contain a `#`".to_owned())
    } else {
        Ok(given)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value, dialect: McpDialect) -> Result<Option<McpServerConfig>, String> {
        let entries: Vec<McpEntry> = value
            .as_object()
            .unwrap()
            .iter()
            .map(|(key, value)| McpEntry {
                key: key.clone(),
                line: 7,
                value: value.clone(),
            })
            .collect();
        read_server(&entries, 3, Path::new("conf"), dialect)
            .map_err(|problem| format!("{}: {}: {}", problem.line, problem.key, problem.problem))
    }

    #[test]
    fn a_server_to_start_is_read_whole() {
        let server = read(
            json!({
                "name": "files", "command": "npx", "args": ["-y", "server", ""], "env": {"A": "1", "B": "x${TOKEN}"},
                "env_from": ["HTTPS_PROXY"], "cwd": "work", "timeout_ms": 5000, "start_timeout_ms": 6000, "probe_ms": 700,
                "idle_ms": 8000, "trust": "annotations", "tools": ["read", "list"], "tools_max": 9, "sandbox": false,
            }),
            McpDialect::Toml,
        );

        let server = server.unwrap().unwrap();
        let McpTransport::Stdio {
            command,
            args,
            env,
            env_from,
            cwd,
        } = server.transport
        else {
            panic!("not a stdio server")
        };
        assert_eq!(
            (command.as_str(), args),
            (
                "npx",
                vec!["-y".to_owned(), "server".to_owned(), String::new()]
            )
        );
        assert_eq!(cwd, Some("conf/work".into()));
        assert_eq!(env_from, BTreeSet::from(["HTTPS_PROXY".to_owned()]));
        assert_eq!(
            env.get("B")
                .unwrap()
                .expand(|name| Some(format!("<{name}>"))),
            Ok("x<TOKEN>".to_owned())
        );
        assert_eq!(
            [
                server.timeout,
                server.start_timeout,
                server.probe,
                server.idle
            ]
            .map(|wait| wait.as_millis()),
            [5000, 6000, 700, 8000]
        );
        assert_eq!(
            (
                server.trust,
                server.tools.map(|tools| tools.len()),
                server.tools_max
            ),
            (Trust::Annotations, Some(2), 9)
        );
    }

    #[test]
    fn the_secrets_that_a_server_gets_are_known() {
        let variable = |name: &str| Some(format!("<{name}>"));
        let http = json!({"name": "a", "url": "https://x/", "headers": {"Authorization": "Bearer ${WIKI}", "X-Team": "${TEAM}", "X-A": "${B_TOKEN}"}});
        let stdio = json!({"name": "a", "command": "x", "env": {"TZ": "${TZ}", "API_KEY": "abc"}, "env_from": ["LANG", "C_SECRET"]});

        let http = read(http, McpDialect::Json)
            .unwrap()
            .unwrap()
            .keys(variable);
        let stdio = read(stdio, McpDialect::Json)
            .unwrap()
            .unwrap()
            .keys(variable);

        assert_eq!(http, ["<WIKI>", "Bearer <WIKI>", "<B_TOKEN>", "<B_TOKEN>"]);
        assert_eq!(stdio, ["abc", "abc", "<C_SECRET>", "<C_SECRET>"]);
    }

    #[test]
    fn mistakes_name_line_and_key_and_no_secret() {
        let toml = |value| read(value, McpDialect::Toml).unwrap_err();
        let with = |key: &str, value: Value| {
            let mut server = json!({"name": "a", "command": "x"});
            server
                .as_object_mut()
                .unwrap()
                .insert(key.to_owned(), value);
            toml(server)
        };
        assert_eq!(
            toml(json!({"command": "x"})),
            "3: : a server needs a `name`"
        );
        assert_eq!(
            toml(json!({"name": "a"})),
            "3: : a server needs a `command` to start or a `url` to reach"
        );
        assert_eq!(
            toml(json!({"name": "a__b", "command": "x"}))
                .split(" must")
                .next(),
            Some("7: name:")
        );
        assert_eq!(
            with("timeout_ms", json!(0)),
            "7: timeout_ms: must be 1 to 3600000 milliseconds"
        );
        assert_eq!(
            with("probe_ms", json!("1")),
            "7: probe_ms: must be 1 to 9000 milliseconds"
        );
        assert_eq!(
            with("tools_max", json!(0)),
            "7: tools_max: must be 1 to 1024 tools"
        );
        assert_eq!(
            with("arg", json!([])),
            "7: arg: is not a known key; did you mean `args`?"
        );
        assert_eq!(
            with("timeoutms", json!(1)),
            "7: timeoutms: is not a known key; did you mean `timeout_ms`?"
        );
        assert_eq!(
            with("headers", json!({})),
            "7: headers: needs `url`, which is missing"
        );
        assert_eq!(
            with("url", json!("http://x/")),
            "3: : a server has a `command` or a `url`, not both"
        );
        assert!(with("sandbox", json!(true)).contains("cannot be true"));
        assert!(with("trust", json!("all")).contains("`none` or `annotations`"));
        assert!(!with("env_from", json!(["sk-not-a-real-key"])).contains("sk-"));
        let http = |headers: Value| {
            read(
                json!({"name": "a", "url": "https://x/mcp", "headers": headers}),
                McpDialect::Toml,
            )
        };
        assert!(
            http(json!({"Authorization": "Bearer not-real"}))
                .is_err_and(|error| error.contains("${NAME}") && !error.contains("not-real"))
        );
        assert!(http(json!({"Authorization": "Bearer ${TOKEN}", "X-Team": "red"})).is_ok());
        for url in [
            "ftp://x",
            "http://",
            "http://u:not-real@x/",
            "nonsense",
            "http://x/#a",
        ] {
            let error = toml(json!({"name": "a", "url": url}));
            assert!(
                error.starts_with("7: url: must") && !error.contains("not-real"),
                "{error}"
            );
        }
    }

    #[test]
    fn files_of_other_programs_are_read_as_they_are() {
        let json = |value| read(value, McpDialect::Json);

        assert!(
            json(json!({"name": "a", "type": "stdio", "command": "x", "autoApprove": ["y"]}))
                .unwrap()
                .is_some()
        );
        assert_eq!(
            json(json!({"name": "a", "command": "x", "disabled": true})),
            Ok(None)
        );
        assert!(
            json(json!({"name": "a", "type": "sse", "url": "https://x/sse"}))
                .is_err_and(|error| error.contains("`sse` transport is not supported"))
        );
    }

    #[test]
    fn a_template_takes_variables_and_hides_the_rest() {
        let of =
            |text: &str| Template::new(text).expand(|name| (name == "A").then(|| "1".to_owned()));

        assert_eq!(of("x${A}y${A}"), Ok("x1y1".to_owned()));
        assert_eq!(of("${B}"), Err("B".to_owned()));
        assert_eq!(of("$A ${} ${a b} ${"), Ok("$A ${} ${a b} ${".to_owned()));
        assert_eq!(
            format!("{:?}", Template::new("Bearer ${A} not-real")),
            "[hidden]${A}[hidden]"
        );
    }
}
