//! Types of values, and their parsers for files, environment variables and flags.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use callboard_actors::ports::HostPattern;
use toml::de::DeValue;

use super::{
    error::{hint, quoted},
    hosted,
    tool_names::{TOOL_NAMES, is_of_server},
};

/// Ten years, in seconds: a longer time is probably a mistake, and clock arithmetic cannot
/// overflow.
const SECONDS_MAX: f64 = 315_360_000.0;

/// Where conversations are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Store {
    /// In this SQLite file.
    Sqlite(PathBuf),
    /// In memory only: everything is lost when the process ends.
    Memory,
}

/// The type of value that a key accepts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Text,
    Path,
    Choice(&'static [&'static str]),
    StoreUrl,
    BaseUrl,
    EnvName,
    Count {
        max: u64,
    },
    Seconds,
    Names(&'static [&'static str]),
    /// Host names and address ranges; the web tools parse them further.
    Hosts,
    /// Model names, each with `*` for any text.
    Models,
    /// Host patterns of an allow-list.
    Patterns,
    /// Paths of folders.
    Paths,
    /// A socket address to listen on.
    Address,
    /// The SHA-256 of a key.
    Hash,
    /// One hash, or a list of hashes.
    Hashes,
    /// The id of a tenant.
    TenantId,
    /// A text that may have several lines.
    Prose,
    /// An amount in US dollars.
    Usd,
    /// `true` or `false`.
    Flag,
}

/// A parsed value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Text(String),
    Path(PathBuf),
    Store(Store),
    Count(u64),
    Seconds(Duration),
    Names(Vec<String>),
    Patterns(Vec<HostPattern>),
    Paths(Vec<PathBuf>),
    Address(SocketAddr),
    /// Millionths of a US dollar.
    MicroUsd(u64),
    Flag(bool),
}

/// How to resolve relative paths and `~/`: against the folder of the file that sets the value.
#[derive(Debug, Clone, Default)]
pub(super) struct Base {
    pub(super) folder: PathBuf,
    pub(super) home: Option<PathBuf>,
}

impl Base {
    fn path(&self, text: &str) -> Result<PathBuf, String> {
        match (text.strip_prefix("~/"), &self.home) {
            _ if text.is_empty() => Err("must not be empty".into()),
            _ if text.contains('\0') => Err("must not hold a zero byte".into()),
            (Some(rest), Some(home)) => Ok(home.join(rest)),
            (Some(_), None) => Err("starts with `~/`, but HOME is not set".into()),
            (None, _) => Ok(self.folder.join(text)),
        }
    }
}

impl Kind {
    /// Parses a TOML value.
    pub(super) fn read_toml(self, value: &DeValue<'_>, base: &Base) -> Result<Value, String> {
        match (self, value) {
            (Self::Count { max }, DeValue::Integer(number)) => match u64::from_str_radix(number.as_str(), number.radix()) {
                Ok(count) => in_range(count, max),
                Err(_) => Err(format!("must be 1 to {max}, not {}", quoted(&number.to_string()))),
            },
            (Self::Seconds, DeValue::Integer(number)) if number.radix() == 10 => seconds(number.as_str()),
            (Self::Seconds, DeValue::Float(number)) => seconds(number.as_str()),
            (Self::Names(known), DeValue::Array(items)) => {
                let names = items.iter().map(|item| match item.get_ref() {
                    DeValue::String(name) => a_name(name, known),
                    other => Err(format!("must be a list of names in quotes, not of {}", describe(other))),
                });
                Ok(Value::Names(names.collect::<Result<_, _>>()?))
            }
            (Self::Hosts, DeValue::Array(items)) => {
                let hosts = items.iter().map(|item| match item.get_ref() {
                    DeValue::String(host) => a_host(host),
                    other => Err(format!("must be a list of names in quotes, not of {}", describe(other))),
                });
                Ok(Value::Names(hosts.collect::<Result<_, _>>()?))
            }
            (Self::Models, DeValue::Array(items)) => {
                let models = items.iter().map(|item| match item.get_ref() {
                    DeValue::String(model) => one_line(model),
                    other => Err(format!("must be a list of names in quotes, not of {}", describe(other))),
                });
                Ok(Value::Names(models.collect::<Result<_, _>>()?))
            }
            (Self::Patterns, DeValue::Array(items)) => {
                let patterns = items.iter().map(|item| match item.get_ref() {
                    DeValue::String(pattern) => a_pattern(pattern),
                    other => Err(format!("must be a list of hosts in quotes, not of {}", describe(other))),
                });
                Ok(Value::Patterns(patterns.collect::<Result<_, _>>()?))
            }
            (Self::Paths, DeValue::Array(items)) => {
                let paths = items.iter().map(|item| match item.get_ref() {
                    DeValue::String(path) => base.path(path),
                    other => Err(format!("must be a list of folders in quotes, not of {}", describe(other))),
                });
                Ok(Value::Paths(paths.collect::<Result<_, _>>()?))
            }
            (Self::Hashes, DeValue::Array(items)) => {
                let hashes = items.iter().map(|item| match item.get_ref() {
                    DeValue::String(text) => hosted::hash(text),
                    other => Err(format!("must be a list of hashes in quotes, not of {}", describe(other))),
                });
                Ok(Value::Names(hashes.collect::<Result<_, _>>()?))
            }
            (Self::Flag, DeValue::Boolean(yes)) => Ok(Value::Flag(*yes)),
            (Self::Usd, DeValue::Integer(number)) if number.radix() == 10 => hosted::micro_usd(number.as_str()).map(Value::MicroUsd),
            (Self::Usd, DeValue::Float(number)) => hosted::micro_usd(number.as_str()).map(Value::MicroUsd),
            (
                Self::Count { .. }
                | Self::Seconds
                | Self::Names(_)
                | Self::Hosts
                | Self::Models
                | Self::Patterns
                | Self::Paths
                | Self::Usd
                | Self::Flag,
                other,
            ) => Err(format!("must be {}, not {}", self.wanted(), describe(other))),
            (_, DeValue::String(text)) => self.read_text(text, base),
            (_, other) => Err(format!("must be {}, not {}", self.wanted(), describe(other))),
        }
    }

    /// Parses the text of an environment variable or a flag; commas separate list items.
    pub(super) fn read_text(self, text: &str, base: &Base) -> Result<Value, String> {
        match self {
            Self::Text => one_line(text).map(Value::Text),
            Self::Path => base.path(text).map(Value::Path),
            Self::Choice(known) if known.contains(&text) => Ok(Value::Text(text.to_owned())),
            Self::Choice(known) => Err(format!("must be one of {}, not `{}`", listed(known), quoted(text))),
            Self::StoreUrl => store(text, base).map(Value::Store),
            Self::BaseUrl => base_url(text).map(Value::Text),
            Self::EnvName => env_name(text).map(Value::Text),
            Self::Count { max } => match text.trim().parse() {
                Ok(count) => in_range(count, max),
                Err(_) => Err(format!("must be {}, not `{}`", self.wanted(), quoted(text))),
            },
            Self::Seconds => seconds(text.trim()),
            Self::Names(known) => {
                let names = text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(|name| a_name(name, known));
                Ok(Value::Names(names.collect::<Result<_, _>>()?))
            }
            Self::Hosts => {
                let hosts = text.split(',').map(str::trim).filter(|host| !host.is_empty()).map(a_host);
                Ok(Value::Names(hosts.collect::<Result<_, _>>()?))
            }
            Self::Models => {
                let models = text.split(',').map(str::trim).filter(|model| !model.is_empty()).map(one_line);
                Ok(Value::Names(models.collect::<Result<_, _>>()?))
            }
            Self::Patterns => {
                let patterns = text.split(',').map(str::trim).filter(|pattern| !pattern.is_empty()).map(a_pattern);
                Ok(Value::Patterns(patterns.collect::<Result<_, _>>()?))
            }
            Self::Paths => {
                let paths = text.split(',').map(str::trim).filter(|path| !path.is_empty()).map(|path| base.path(path));
                Ok(Value::Paths(paths.collect::<Result<_, _>>()?))
            }
            Self::Address => hosted::address(text.trim()).map(Value::Address),
            Self::Hash => hosted::hash(text.trim()).map(Value::Text),
            Self::Hashes => {
                let hashes = text.split(',').map(str::trim).filter(|hash| !hash.is_empty()).map(hosted::hash);
                Ok(Value::Names(hashes.collect::<Result<_, _>>()?))
            }
            Self::TenantId => hosted::tenant_id(text).map(Value::Text),
            Self::Prose => hosted::prose(text).map(Value::Text),
            Self::Usd => hosted::micro_usd(text.trim()).map(Value::MicroUsd),
            Self::Flag => match text.trim() {
                "true" => Ok(Value::Flag(true)),
                "false" => Ok(Value::Flag(false)),
                other => Err(format!("must be `true` or `false`, not `{}`", quoted(other))),
            },
        }
    }

    fn wanted(self) -> &'static str {
        match self {
            Self::Count { .. } => "a whole number",
            Self::Seconds => "a number of seconds",
            Self::Names(_) | Self::Hosts | Self::Models => "a list of names",
            Self::Patterns => "a list of hosts",
            Self::Paths => "a list of folders",
            Self::Hashes => "a hash in quotes, or a list of them",
            Self::Usd => "US dollars",
            Self::Flag => "true or false",
            Self::Text
            | Self::Path
            | Self::Choice(_)
            | Self::StoreUrl
            | Self::BaseUrl
            | Self::EnvName
            | Self::Address
            | Self::Hash
            | Self::TenantId
            | Self::Prose => "a text in quotes",
        }
    }
}

/// Describes the type of a TOML value in an error.
pub(super) fn describe(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a section",
    }
}

pub(super) fn listed(known: &[&str]) -> String {
    known.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn in_range(count: u64, max: u64) -> Result<Value, String> {
    // A limit of zero would wait forever.
    if (1..=max).contains(&count) { Ok(Value::Count(count)) } else { Err(format!("must be 1 to {max}, not {count}")) }
}

fn seconds(text: &str) -> Result<Value, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.001..=SECONDS_MAX).contains(&number) => Ok(Value::Seconds(Duration::from_secs_f64(number))),
        Ok(_) => Err(format!("must be 0.001 to {SECONDS_MAX} seconds, not {}", quoted(text))),
        Err(_) => Err(format!("must be a number of seconds, not `{}`", quoted(text))),
    }
}

fn one_line(text: &str) -> Result<String, String> {
    match text {
        "" => Err("must not be empty".into()),
        _ if text.chars().any(char::is_control) => Err("must be one line without control characters".into()),
        _ => Ok(text.to_owned()),
    }
}

fn a_name(name: &str, known: &[&str]) -> Result<String, String> {
    if known.contains(&name) || (known == TOOL_NAMES && is_of_server(name)) {
        return Ok(name.to_owned());
    }
    Err(format!("lists the unknown name `{}`; {}", quoted(name), hint(name, known.iter().copied())))
}

fn a_host(text: &str) -> Result<String, String> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b".-_*:/[]".contains(&byte);
    if !text.is_empty() && text.len() <= 255 && text.bytes().all(known) && !text.contains("//") {
        return Ok(text.to_owned());
    }
    Err(format!("must list host names, `*.domains`, IP addresses or ranges such as 10.0.0.0/8, not `{}`", quoted(text)))
}

fn a_pattern(text: &str) -> Result<HostPattern, String> {
    text.parse().map_err(|_| {
        format!("must list hosts such as `example.org`, `*.example.org`, `example.org:8443` or an IP address, not `{}`", quoted(text))
    })
}

fn store(text: &str, base: &Base) -> Result<Store, String> {
    if text == "memory:" {
        return Ok(Store::Memory);
    }
    match text.strip_prefix("sqlite:") {
        Some(":memory:") => Err("must be `memory:` for a store without a file, not `sqlite::memory:`".into()),
        Some(path) => {
            base.path(path.strip_prefix("//").unwrap_or(path)).map(Store::Sqlite).map_err(|problem| format!("names a file that {problem}"))
        }
        // The error does not quote the text, because the URL of another store may contain a
        // password.
        None if ["postgres:", "postgresql:"].iter().any(|scheme| text.starts_with(scheme)) => {
            Err("names PostgreSQL, which is not built in; `sqlite:` with a path, or `memory:`".into())
        }
        None => Err("must be `sqlite:` with a path, or `memory:`".into()),
    }
}

fn base_url(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let Some(rest) = rest else {
        return Err("must start with `http://` or `https://`".into());
    };
    let host = rest.split('/').next().unwrap_or_default();
    if host.is_empty() || host.starts_with(':') {
        Err("names no host".into())
    } else if host.contains('@') {
        // A URL ends up in logs and errors; a password must not.
        Err("must not hold a user name or a password; use `api_key_env` or `api_key_file`".into())
    } else if rest.contains(['?', '#']) {
        Err("must end with the path: the request's path is added to it, so no `?` or `#`".into())
    } else if rest.chars().any(|c| c.is_whitespace() || c.is_control()) {
        Err("must not hold white space".into())
    } else {
        Ok(text.trim_end_matches('/').to_owned())
    }
}

fn env_name(text: &str) -> Result<String, String> {
    let fits = !text.is_empty()
        && text.len() <= 128
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    // The error does not quote the text, because people put the key itself here.
    if fits { Ok(text.to_owned()) } else { Err("must be the name of an environment variable that holds the key, not the key".into()) }
}

/// Whether two paths refer to the same file.
pub(super) fn same_file(left: &Path, right: &Path) -> bool {
    match (left.canonicalize(), right.canonicalize()) {
        (Ok(left), Ok(right)) => left == right,
        _ => left == right,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_url_keeps_no_password_and_no_query() {
        assert_eq!(base_url("http://127.0.0.1:11434/v1/"), Ok("http://127.0.0.1:11434/v1".to_owned()));
        for (given, expected) in [
            ("localhost:11434", "must start with `http://` or `https://`"),
            ("http://:80/v1", "names no host"),
            ("https://me:secret@example.com", "must not hold a user name or a password; use `api_key_env` or `api_key_file`"),
            ("https://example.com/v1?key=secret", "must end with the path: the request's path is added to it, so no `?` or `#`"),
            ("https://example.com/a b", "must not hold white space"),
        ] {
            assert_eq!(base_url(given), Err(expected.to_owned()), "{given}");
        }
    }

    #[test]
    fn paths_are_relative_to_the_place_that_names_them() {
        let base = Base { folder: "conf".into(), home: Some("/home/ann".into()) };

        assert_eq!(base.path("data"), Ok("conf/data".into()));
        assert_eq!(base.path("/data"), Ok("/data".into()));
        assert_eq!(base.path("~/data"), Ok("/home/ann/data".into()));
        assert_eq!(store("sqlite:x.db", &base), Ok(Store::Sqlite("conf/x.db".into())));
        assert_eq!(store("sqlite:///x.db", &base), Ok(Store::Sqlite("/x.db".into())));
        assert_eq!(store("memory:", &base), Ok(Store::Memory));
        assert!(store("postgres://ann:secret@db/x", &base).is_err_and(|problem| !problem.contains("secret")));
    }

    #[test]
    fn seconds_are_bounded() {
        assert_eq!(seconds("0.5"), Ok(Value::Seconds(Duration::from_millis(500))));
        for text in ["0", "-1", "nan", "inf", "1e300", "soon"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
