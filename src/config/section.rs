//! The tables of a configuration file, with the line of every key. A table whose keys are the
//! fields of a type is read through serde.

use std::{path::PathBuf, sync::Arc};

use serde::{Deserialize as _, de::DeserializeOwned};
use serde_json::{Map, Value as Json};
use toml::{
    Spanned,
    de::{DeString, DeTable, DeValue, ValueDeserializer},
};

use super::error::{ConfigError, Origin, escaped, hint, quoted};

/// The path and the text of a file.
pub(super) struct File<'t> {
    pub(super) path: Arc<PathBuf>,
    pub(super) text: &'t str,
}

impl File<'_> {
    /// The place of a byte offset.
    pub(super) fn at(&self, byte: usize) -> Origin {
        self.at_line(self.line(byte))
    }

    /// The place of a line.
    pub(super) fn at_line(&self, line: usize) -> Origin {
        Origin::File {
            path: self.path.clone(),
            line,
        }
    }

    fn line(&self, byte: usize) -> usize {
        1 + self
            .text
            .bytes()
            .take(byte)
            .filter(|byte| *byte == b'\n')
            .count()
    }

    /// The entries of a table in file order, so that the first mistake is the one reported.
    pub(super) fn entries<'f, 'i>(&self, table: &'f DeTable<'i>) -> Vec<Entry<'f, 'i>> {
        let mut entries: Vec<_> = table
            .iter()
            .map(|(key, value)| {
                let line = self.line(key.span().start);
                Entry {
                    name: key.get_ref().as_ref(),
                    #[cfg(feature = "mcp")]
                    line,
                    at: self.at_line(line),
                    key,
                    value,
                }
            })
            .collect();
        entries.sort_by_key(|entry| entry.key.span().start);
        entries
    }
}

/// A key of a table, with its value.
pub(super) struct Entry<'f, 'i> {
    pub(super) name: &'f str,
    /// For problems that the file of servers reports by line.
    #[cfg(feature = "mcp")]
    pub(super) line: usize,
    pub(super) at: Origin,
    key: &'f Spanned<DeString<'i>>,
    value: &'f Spanned<DeValue<'i>>,
}

impl<'f, 'i> Entry<'f, 'i> {
    pub(super) fn value(&self) -> &'f DeValue<'i> {
        self.value.get_ref()
    }

    /// The value as JSON; null if it has no JSON counterpart. No key accepts null.
    pub(super) fn json(&self) -> Json {
        Json::deserialize(ValueDeserializer::from(self.value.clone())).unwrap_or_default()
    }
}

/// A table with its name in errors.
pub(super) struct Section<'f, 'i> {
    pub(super) file: &'f File<'f>,
    pub(super) name: &'static str,
    /// Place of the section's header, or of its key.
    pub(super) at: Origin,
    pub(super) table: &'f DeTable<'i>,
}

impl<'f, 'i> Section<'f, 'i> {
    /// The value of `entry` as a section.
    ///
    /// # Errors
    /// `problem`, if the value is no table.
    pub(super) fn of(
        file: &'f File<'f>,
        name: &'static str,
        entry: &Entry<'f, 'i>,
        problem: &str,
    ) -> Result<Self, ConfigError> {
        match entry.value() {
            DeValue::Table(table) => Ok(Self {
                file,
                name,
                at: entry.at.clone(),
                table,
            }),
            _ => Err(ConfigError::Inconsistent {
                at: entry.at.clone(),
                problem: problem.to_owned(),
            }),
        }
    }

    /// The tables of a list such as `[[provider]]`.
    ///
    /// # Errors
    /// `no_list`, if the value is no list; `no_table`, if an item is no table.
    pub(super) fn list(
        file: &'f File<'f>,
        name: &'static str,
        entry: &Entry<'f, 'i>,
        [no_list, no_table]: [&str; 2],
    ) -> Result<Vec<Self>, ConfigError> {
        let wrong = |at: Origin, problem: &str| ConfigError::Inconsistent {
            at,
            problem: problem.to_owned(),
        };
        let DeValue::Array(items) = entry.value() else {
            return Err(wrong(entry.at.clone(), no_list));
        };
        let section = |item: &'f Spanned<DeValue<'i>>| {
            let at = file.at(item.span().start);
            match item.get_ref() {
                DeValue::Table(table) => Ok(Self {
                    file,
                    name,
                    at,
                    table,
                }),
                _ => Err(wrong(at, no_table)),
            }
        };
        items.iter().map(section).collect()
    }

    /// The keys in file order.
    pub(super) fn entries(&self) -> Vec<Entry<'f, 'i>> {
        self.file.entries(self.table)
    }

    /// All keys with their values, as JSON.
    pub(super) fn json(&self) -> Map<String, Json> {
        self.entries()
            .iter()
            .map(|entry| (entry.name.to_owned(), entry.json()))
            .collect()
    }

    /// Refuses a key that is not one of `keys`.
    pub(super) fn refuse_unknown(
        &self,
        entry: &Entry<'_, '_>,
        keys: &[&str],
    ) -> Result<(), ConfigError> {
        if keys.contains(&entry.name) {
            return Ok(());
        }
        Err(ConfigError::Unknown {
            at: entry.at.clone(),
            what: format!("key in [{}]", self.name),
            given: quoted(entry.name),
            hint: hint(entry.name, keys.iter().copied()),
        })
    }

    /// Reads the section into `T`, whose fields are `keys` and are all optional. `check` gets each
    /// key read alone, so that an error names the key's line.
    ///
    /// # Errors
    /// The first key in the file that is unknown, of another type, or refused by `check`.
    pub(super) fn read<T: DeserializeOwned>(
        &self,
        keys: &[&str],
        check: impl Fn(&T, &str) -> Result<(), String>,
    ) -> Result<T, ConfigError> {
        for entry in self.entries() {
            self.refuse_unknown(&entry, keys)?;
            let alone = DeTable::from_iter([(entry.key.clone(), entry.value.clone())]);
            typed(alone)
                .and_then(|read| check(&read, entry.name))
                .map_err(|problem| ConfigError::BadValue {
                    at: entry.at.clone(),
                    key: format!("{}.{}", self.name, entry.name),
                    problem,
                })?;
        }
        typed(self.table.clone()).map_err(|problem| self.inconsistent(problem))
    }

    /// An error of the section as a whole.
    pub(super) fn inconsistent(&self, problem: String) -> ConfigError {
        ConfigError::Inconsistent {
            at: self.at.clone(),
            problem,
        }
    }
}

fn typed<T: DeserializeOwned>(table: DeTable<'_>) -> Result<T, String> {
    let deserializer = ValueDeserializer::from(Spanned::new(0..0, DeValue::Table(table)));
    T::deserialize(deserializer).map_err(|error| escaped(error.message()))
}
