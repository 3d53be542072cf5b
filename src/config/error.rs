//! What can be wrong with a configuration: one line each, naming the place and the nearest right word.

use std::{fmt, path::PathBuf, sync::Arc};

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// A line of a file.
    File {
        /// As it was named or found.
        path: Arc<PathBuf>,
        /// From 1.
        line: usize,
    },
    /// An environment variable.
    Environment(String),
    /// A flag of the command line.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", quoted(&path.to_string_lossy())),
            Self::Environment(name) | Self::Flag(name) => f.write_str(name),
        }
    }
}

/// Why a configuration is not accepted. Its Display is one line and never holds a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("{}: cannot be read: {reason}", file.display())]
    Unreadable {
        /// Which.
        file: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// A file is not TOML.
    #[error("{}not valid TOML: {reason}", place(at))]
    Syntax {
        /// Where.
        at: Origin,
        /// What the parser says.
        reason: String,
    },
    /// A name that is not there.
    #[error("{}unknown {what} `{given}`; {hint}", place(at))]
    Unknown {
        /// Where.
        at: Origin,
        /// Key (of which section), section or variable.
        what: String,
        /// As it was written.
        given: String,
        /// The nearest right name, or all of them.
        hint: String,
    },
    /// A value that cannot be.
    #[error("{}`{key}` {problem}", place(at))]
    BadValue {
        /// Where.
        at: Origin,
        /// Whose value, as `section.key`.
        key: String,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// Two values that do not go together, or one that is missing.
    #[error("{}{problem}", place(at))]
    Inconsistent {
        /// Where.
        at: Origin,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A file of the current folder is needed and not trusted.
    #[error("{}: {standing}; agree to it with `callboard trust`, or name it with `--config {}`", file.display(), file.display())]
    Untrusted {
        /// Which.
        file: PathBuf,
        /// Not trusted, changed since, or not readable.
        standing: String,
    },
    /// A provider's key is not where the configuration says.
    #[error("{}provider `{provider}` has no key: {problem}", place(at))]
    NoKey {
        /// Where the place of the key is configured.
        at: Origin,
        /// Whose key.
        provider: String,
        /// What is missing.
        problem: String,
    },
}

impl ConfigError {
    /// A stable name of the kind of mistake.
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
    /// The JSON pointer of the value that is wrong, for a tenant that came as JSON.
    pub fn pointer(&self) -> Option<String> {
        let within = |path: &str| format!("/{}", path.split('.').skip(1).collect::<Vec<_>>().join("/"));
        match self {
            Self::BadValue { key, .. } => Some(within(key)),
            Self::Unknown { what, given, .. } => {
                let section = what.trim_start_matches("key in ").trim_matches(['[', ']']);
                Some(within(&format!("{section}.{}", given.replace('~', "~0").replace('/', "~1"))))
            }
            Self::Unreadable { .. } | Self::Syntax { .. } | Self::Inconsistent { .. } | Self::NoKey { .. } | Self::Untrusted { .. } => None,
        }
    }

    /// The same without its place: what was read was no file.
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

/// The start of an error; nothing where nobody wrote anything.
fn place(at: &Origin) -> String {
    if *at == Origin::Default { String::new() } else { format!("{at}: ") }
}

/// Text as it may stand in one line of an error: control characters escaped, cut at 60 characters.
pub(super) fn quoted(text: &str) -> String {
    let mut shown: String =
        text.chars().take(60).flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect();
    if text.chars().nth(60).is_some() {
        shown.push('…');
    }
    shown
}

/// `did you mean …?` for the nearest of `known`, or the whole list where none is near.
pub(super) fn hint<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.collect();
    let given = given.to_ascii_lowercase();
    let nearest = known
        .iter()
        .map(|name| (strsim::damerau_levenshtein(&given.chars().take(80).collect::<String>(), &name.to_ascii_lowercase()), *name))
        .min_by_key(|(distance, _)| *distance);
    match nearest {
        // A third of the letters wrong is a slip; more is another word.
        Some((distance, name)) if distance * 3 <= name.chars().count().max(3) => format!("did you mean `{name}`?"),
        _ => format!("known: {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_the_nearest_name_or_all_names() {
        let known = ["data_dir", "durability"];

        assert_eq!(hint("datadir", known.into_iter()), "did you mean `data_dir`?");
        assert_eq!(hint("DURABILTIY", known.into_iter()), "did you mean `durability`?");
        assert_eq!(hint("colour", known.into_iter()), "known: data_dir, durability");
    }

    #[test]
    fn quoted_text_stays_on_one_line() {
        assert_eq!(quoted("a\nb\u{7}"), "a\\nb\\u{7}");
        assert_eq!(quoted(&"x".repeat(70)), format!("{}…", "x".repeat(60)));
    }
}
