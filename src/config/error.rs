//! Errors of a configuration: one line each, with the place and the nearest correct word.

use std::{fmt, path::PathBuf, sync::Arc};

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// No source sets the value: it is the default.
    Default,
    /// A line of a file.
    File {
        /// The path as it was given or found.
        path: Arc<PathBuf>,
        /// Line number, from 1.
        line: usize,
    },
    /// An environment variable.
    Environment(String),
    /// A flag of the command line.
    Flag(String),
    /// A value of a JSON request, as a JSON pointer. Messages do not name it.
    Request(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", quoted(&path.to_string_lossy())),
            Self::Environment(name) | Self::Flag(name) | Self::Request(name) => f.write_str(name),
        }
    }
}

/// Why a configuration is rejected. The Display text is one line and never contains a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {reason}", file.display())]
    Unreadable {
        /// Path of the file.
        file: PathBuf,
        /// The error of the operating system.
        reason: String,
    },
    /// The file is not valid TOML.
    #[error("{}not valid TOML: {reason}", place(at))]
    Syntax {
        /// Place of the first error.
        at: Origin,
        /// The parser's message.
        reason: String,
    },
    /// The key, section, variable or provider does not exist.
    #[error("{}unknown {what} `{given}`; {hint}", place(at))]
    Unknown {
        /// Place where the name is used.
        at: Origin,
        /// Kind of the name: a key (with its section), a section, a variable or a provider.
        what: String,
        /// The name as it was written, shortened to one line.
        given: String,
        /// The nearest existing name, or a list of all names.
        hint: String,
    },
    /// The value of a key is invalid.
    #[error("{}`{key}` {problem}", place(at))]
    BadValue {
        /// Place of the value.
        at: Origin,
        /// The key, as `section.key`.
        key: String,
        /// What is wrong and what would be valid, as the end of a sentence that starts with the
        /// key.
        problem: String,
    },
    /// Values contradict each other, or one is missing.
    #[error("{}{problem}", place(at))]
    Inconsistent {
        /// Place of the value to change.
        at: Origin,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A project file is required but not trusted.
    #[error("{}: {standing}; trust it with `callboard trust`, or name it with `--config {}`", file.display(), file.display())]
    Untrusted {
        /// Path of the file.
        file: PathBuf,
        /// Why it has no effect: not trusted, changed since, or unreadable.
        standing: String,
    },
    /// A provider's key is not where the configuration says.
    #[error("{}provider `{provider}` has no key: {problem}", place(at))]
    NoKey {
        /// Place of the key that names the variable or file.
        at: Origin,
        /// Name of the provider.
        provider: String,
        /// What is missing.
        problem: String,
    },
}

impl ConfigError {
    /// A stable identifier of the kind of error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "config_unreadable",
            Self::Syntax { .. } => "config_syntax",
            Self::Unknown { .. } => "config_unknown_key",
            Self::BadValue { .. } => "config_bad_value",
            Self::Inconsistent { .. } => "config_inconsistent",
            Self::NoKey { .. } => "config_no_key",
            Self::Untrusted { .. } => "config_untrusted",
        }
    }
}

impl ConfigError {
    /// The JSON pointer of the invalid value, if the tenant was given as JSON.
    pub fn pointer(&self) -> Option<String> {
        let within =
            |path: &str| format!("/{}", path.split('.').skip(1).collect::<Vec<_>>().join("/"));
        match self {
            Self::BadValue { key, .. } => Some(within(key)),
            Self::Unknown { what, .. } if what == "provider" => Some("/provider".to_owned()),
            Self::Inconsistent {
                at: Origin::Request(pointer),
                ..
            } => Some(pointer.clone()),
            Self::Unknown { what, given, .. } => {
                let section = what.trim_start_matches("key in ").trim_matches(['[', ']']);
                Some(within(&format!(
                    "{section}.{}",
                    given.replace('~', "~0").replace('/', "~1")
                )))
            }
            Self::Unreadable { .. }
            | Self::Syntax { .. }
            | Self::Inconsistent { .. }
            | Self::NoKey { .. }
            | Self::Untrusted { .. } => None,
        }
    }

    /// Replaces the place of a contradiction by the JSON pointer of its value, for what was given as
    /// JSON, and removes any other place.
    #[must_use]
    pub(super) fn in_request(self, pointer: impl FnOnce(&Origin) -> Option<String>) -> Self {
        let pointer = match &self {
            Self::Inconsistent { at, .. } => pointer(at),
            _ => None,
        };
        let mut error = self.without_place();
        if let (Self::Inconsistent { at, .. }, Some(pointer)) = (&mut error, pointer) {
            *at = Origin::Request(pointer);
        }
        error
    }

    /// Removes the place, for a configuration that did not come from a file.
    #[must_use]
    pub(super) fn without_place(mut self) -> Self {
        match &mut self {
            Self::Unreadable { .. } | Self::Untrusted { .. } => {}
            Self::Syntax { at, .. }
            | Self::Unknown { at, .. }
            | Self::BadValue { at, .. }
            | Self::Inconsistent { at, .. }
            | Self::NoKey { at, .. } => *at = Origin::Default,
        }
        self
    }
}

/// The place as the start of an error; empty for defaults.
fn place(at: &Origin) -> String {
    if matches!(at, Origin::Default | Origin::Request(_)) {
        String::new()
    } else {
        format!("{at}: ")
    }
}

/// Makes a text safe for one line of an error: escapes control characters and cuts it at 60
/// characters.
pub(super) fn quoted(text: &str) -> String {
    let mut shown = escaped(&text.chars().take(60).collect::<String>());
    if text.chars().nth(60).is_some() {
        shown.push('…');
    }
    shown
}

/// Escapes control characters, so that a text stays on one line.
pub(super) fn escaped(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            if c.is_control() {
                c.escape_default().collect()
            } else {
                vec![c]
            }
        })
        .collect()
}

/// `did you mean …?` with the nearest name of `known`, or a list of all names if none is near.
pub(super) fn hint<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.collect();
    let given = given.to_ascii_lowercase();
    let nearest = known
        .iter()
        .map(|name| {
            (
                strsim::damerau_levenshtein(
                    &given.chars().take(80).collect::<String>(),
                    &name.to_ascii_lowercase(),
                ),
                *name,
            )
        })
        .min_by_key(|(distance, _)| *distance);
    match nearest {
        // Up to a third of the letters wrong counts as a typing mistake.
        Some((distance, name)) if distance * 3 <= name.chars().count().max(3) => {
            format!("did you mean `{name}`?")
        }
        _ => format!("known: {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_the_nearest_name_or_all_names() {
        let known = ["data_dir", "durability"];

        assert_eq!(
            hint("datadir", known.into_iter()),
            "did you mean `data_dir`?"
        );
        assert_eq!(
            hint("DURABILTIY", known.into_iter()),
            "did you mean `durability`?"
        );
        assert_eq!(
            hint("colour", known.into_iter()),
            "known: data_dir, durability"
        );
    }

    #[test]
    fn quoted_text_stays_on_one_line() {
        assert_eq!(quoted("a\nb\u{7}"), "a\\nb\\u{7}");
        assert_eq!(quoted(&"x".repeat(70)), format!("{}…", "x".repeat(60)));
    }
}
