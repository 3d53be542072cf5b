//! One key of the configuration: its type, its variable and its line in the documentation.

use super::value::Kind;

/// One key of the configuration.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key {
    pub(super) section: &'static str,
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) what: &'static str,
}

impl Key {
    /// The key as errors name it: `section.name`.
    pub(super) fn path(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }

    /// The environment variable that sets the key.
    pub(super) fn variable(&self) -> String {
        format!(
            "CALLBOARD_{}__{}",
            self.section.to_ascii_uppercase().replace('.', "__"),
            self.name.to_ascii_uppercase()
        )
    }

    /// The environment variable that sets the key for one provider.
    pub(super) fn variable_of_provider(&self, provider: &str) -> String {
        format!(
            "CALLBOARD_PROVIDER__{}__{}",
            variable_part(provider),
            self.name.to_ascii_uppercase()
        )
    }
}

/// A provider's name as it appears in a variable: upper case, with `_` for other characters.
pub(super) fn variable_part(name: &str) -> String {
    name.chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_uppercase()
            } else {
                '_'
            }
        })
        .collect()
}

pub(super) const fn key(
    section: &'static str,
    name: &'static str,
    kind: Kind,
    what: &'static str,
) -> Key {
    Key {
        section,
        name,
        kind,
        what,
    }
}
