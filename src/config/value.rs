//! Types of values, and their parsers for files, environment variables and flags.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use callboard_actors::{
    chat::{Temperature, Thinking},
    ports::HostPattern,
};
use toml::de::DeValue;

use super::{
    error::quoted,
    parsers,
    paths::{self, Base, Store},
};

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
    /// A whole number that may be 0.
    CountFromZero {
        max: u64,
    },
    /// `off`, `adaptive` or a number of tokens.
    Thinking,
    /// A number from 0 to 2.
    Temperature,
    /// A list of texts.
    Texts,
    /// Milliseconds, from 0.
    Millis {
        max: u64,
    },
    Names(&'static [&'static str]),
    /// Host names and address ranges; the web tools parse them further.
    Hosts,
    /// Origins of web pages, or `*` alone.
    Origins,
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
    Thinking(Thinking),
    Temperature(Temperature),
}

impl Value {
    /// The text, if it is one.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl Kind {
    /// Parses a TOML value.
    pub(super) fn read_toml(self, value: &DeValue<'_>, base: &Base) -> Result<Value, String> {
        if let (Some(items), DeValue::Array(list)) = (self.items(), value) {
            let not_text = |other| {
                format!(
                    "must be a list of {items} in quotes, not of {}",
                    describe(other)
                )
            };
            return self.read_list(
                list.iter().map(|item| {
                    item.get_ref()
                        .as_str()
                        .ok_or_else(|| not_text(item.get_ref()))
                }),
                base,
            );
        }
        match (self, value) {
            (Self::Count { max }, DeValue::Integer(number)) => {
                match u64::from_str_radix(number.as_str(), number.radix()) {
                    Ok(count) => in_range(count, max),
                    Err(_) => Err(format!(
                        "must be 1 to {max}, not {}",
                        quoted(&number.to_string())
                    )),
                }
            }
            (
                Self::Millis { .. }
                | Self::CountFromZero { .. }
                | Self::Thinking
                | Self::Seconds
                | Self::Usd
                | Self::Temperature,
                DeValue::Integer(number),
            ) if number.radix() == 10 => self.read_text(number.as_str(), base),
            (Self::Seconds | Self::Usd | Self::Temperature, DeValue::Float(number)) => {
                self.read_text(number.as_str(), base)
            }
            (Self::Flag, DeValue::Boolean(yes)) => Ok(Value::Flag(*yes)),
            (_, DeValue::String(text)) if self.is_text() => self.read_text(text, base),
            (_, other) => Err(format!(
                "must be {}, not {}",
                self.wanted(),
                describe(other)
            )),
        }
    }

    /// Parses the text of an environment variable or a flag; commas separate list items.
    pub(super) fn read_text(self, text: &str, base: &Base) -> Result<Value, String> {
        match self {
            Self::Text => parsers::one_line(text).map(Value::Text),
            Self::Path => base.path(text).map(Value::Path),
            Self::Choice(known) if known.contains(&text) => Ok(Value::Text(text.to_owned())),
            Self::Choice(known) => Err(format!(
                "must be one of {}, not `{}`",
                listed(known),
                quoted(text)
            )),
            Self::StoreUrl => paths::store(text, base).map(Value::Store),
            Self::BaseUrl => parsers::base_url(text).map(Value::Text),
            Self::EnvName => parsers::env_name(text).map(Value::Text),
            Self::Count { max } => match text.trim().parse() {
                Ok(count) => in_range(count, max),
                Err(_) => Err(format!("must be {}, not `{}`", self.wanted(), quoted(text))),
            },
            Self::Millis { max } => match text.trim().parse() {
                Ok(millis) if millis <= max => Ok(Value::Count(millis)),
                _ => Err(format!(
                    "must be 0 to {max} milliseconds, not `{}`",
                    quoted(text)
                )),
            },
            Self::CountFromZero { max } => match text.trim().parse() {
                Ok(count) if count <= max => Ok(Value::Count(count)),
                _ => Err(format!("must be 0 to {max}, not `{}`", quoted(text))),
            },
            Self::Thinking => text
                .trim()
                .parse()
                .map(Value::Thinking)
                .map_err(|error| format!("{error}, not `{}`", quoted(text))),
            Self::Temperature => text
                .trim()
                .parse::<f64>()
                .ok()
                .and_then(|number| number.try_into().ok())
                .map(Value::Temperature)
                .ok_or_else(|| format!("must be a number from 0 to 2, not `{}`", quoted(text))),
            Self::Seconds => parsers::seconds(text.trim()).map(Value::Seconds),
            Self::Address => parsers::address(text.trim()).map(Value::Address),
            Self::Hash => parsers::hash(text.trim()).map(Value::Text),
            Self::TenantId => parsers::tenant_id(text).map(Value::Text),
            Self::Prose => parsers::prose(text).map(Value::Text),
            Self::Usd => parsers::micro_usd(text.trim()).map(Value::MicroUsd),
            Self::Flag => match text.trim() {
                "true" => Ok(Value::Flag(true)),
                "false" => Ok(Value::Flag(false)),
                other => Err(format!(
                    "must be `true` or `false`, not `{}`",
                    quoted(other)
                )),
            },
            Self::Names(_)
            | Self::Hosts
            | Self::Origins
            | Self::Models
            | Self::Texts
            | Self::Patterns
            | Self::Paths
            | Self::Hashes => self.read_list(
                text.split(',')
                    .map(str::trim)
                    .filter(|item| !item.is_empty())
                    .map(Ok),
                base,
            ),
        }
    }

    /// Parses the items of a list; the first wrong item is the error.
    fn read_list<'t>(
        self,
        items: impl Iterator<Item = Result<&'t str, String>>,
        base: &Base,
    ) -> Result<Value, String> {
        match self {
            Self::Patterns => items
                .map(|item| parsers::pattern(item?))
                .collect::<Result<_, _>>()
                .map(Value::Patterns),
            Self::Paths => items
                .map(|item| base.path(item?))
                .collect::<Result<_, _>>()
                .map(Value::Paths),
            Self::Names(known) => names(items, |name| parsers::name(name, known)),
            Self::Hosts => names(items, parsers::host),
            Self::Origins => match names(items, parsers::origin)? {
                Value::Names(all) if all.len() > 1 && all.iter().any(|one| one == "*") => {
                    Err("must be `*` alone, or a list of origins without it".into())
                }
                origins => Ok(origins),
            },
            Self::Hashes => names(items, parsers::hash),
            Self::Texts => names(items, parsers::prose),
            _ => names(items, parsers::one_line),
        }
    }

    /// What the items of its list are; `None` if it is no list.
    fn items(self) -> Option<&'static str> {
        match self {
            Self::Names(_) | Self::Hosts | Self::Models => Some("names"),
            Self::Patterns => Some("hosts"),
            Self::Paths => Some("folders"),
            Self::Hashes => Some("hashes"),
            Self::Texts => Some("texts"),
            Self::Origins => Some("origins"),
            _ => None,
        }
    }

    /// Whether a TOML string can be its value.
    fn is_text(self) -> bool {
        self == Self::Hashes
            || !(self.items().is_some()
                || matches!(
                    self,
                    Self::Count { .. }
                        | Self::Seconds
                        | Self::Millis { .. }
                        | Self::CountFromZero { .. }
                        | Self::Temperature
                        | Self::Usd
                        | Self::Flag
                ))
    }

    fn wanted(self) -> &'static str {
        match self {
            Self::Count { .. } | Self::CountFromZero { .. } => "a whole number",
            Self::Thinking => "`off`, `adaptive` or a number of tokens",
            Self::Temperature => "a number from 0 to 2",
            Self::Texts => "a list of texts",
            Self::Origins => "a list of origins",
            Self::Seconds => "a number of seconds",
            Self::Millis { .. } => "a whole number of milliseconds",
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

fn names<'t>(
    items: impl Iterator<Item = Result<&'t str, String>>,
    parse: impl Fn(&str) -> Result<String, String>,
) -> Result<Value, String> {
    items
        .map(|item| parse(item?))
        .collect::<Result<_, _>>()
        .map(Value::Names)
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
    known
        .iter()
        .map(|name| format!("`{name}`"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn in_range(count: u64, max: u64) -> Result<Value, String> {
    // A limit of zero would wait forever.
    if (1..=max).contains(&count) {
        Ok(Value::Count(count))
    } else {
        Err(format!("must be 1 to {max}, not {count}"))
    }
}
