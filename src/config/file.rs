//! Parses one TOML file and keeps the line of every key, so that an error can name it.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use toml::de::{DeTable, DeValue};

use super::{
    Layer, ProviderLayer, Setting, TenantLayer,
    error::{ConfigError, Origin, hint, quoted},
    keys::{self, NESTED, PROVIDER_SECTION, SECTIONS, TENANT_SECTION},
    tokens,
    value::{Base, describe},
};

/// Maximum file size in bytes. A configuration has a few KiB.
pub(super) const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Reads the file at `path`; `None` if it does not exist.
pub(super) fn read(path: &Path, home: Option<&Path>) -> Result<Option<Layer>, ConfigError> {
    let unreadable = |reason: String| ConfigError::Unreadable { file: path.to_owned(), reason };
    let mut bytes = Vec::new();
    match std::fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)) {
        Ok(_) if bytes.len() as u64 > FILE_BYTES_MAX => return Err(unreadable("it is longer than 1 MiB".into())),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error.to_string())),
    }
    parse_bytes(path, bytes, home).map(Some)
}

/// Parses the content of the file at `path`; invalid UTF-8 is an error with its line.
pub(super) fn parse_bytes(path: &Path, bytes: Vec<u8>, home: Option<&Path>) -> Result<Layer, ConfigError> {
    match String::from_utf8(bytes) {
        Ok(text) => parse(path, &text, home),
        Err(error) => {
            let line = 1 + error.as_bytes().iter().take(error.utf8_error().valid_up_to()).filter(|byte| **byte == b'\n').count();
            let at = Origin::File { path: Arc::new(path.to_owned()), line };
            Err(ConfigError::Syntax { at, reason: "this line is not UTF-8 text".into() })
        }
    }
}

/// Parses the text of the file at `path`.
pub(super) fn parse(path: &Path, text: &str, home: Option<&Path>) -> Result<Layer, ConfigError> {
    let folder = path.parent().map(Path::to_owned).unwrap_or_default();
    let file = File { path: Arc::new(path.to_owned()), text, base: Base { folder, home: home.map(PathBuf::from) } };
    let document = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
        at: file.at(error.span().map_or(text.len(), |span| span.start)),
        reason: quoted(error.message()),
    })?;

    let mut layer = Layer::default();
    for (name, at, value) in file.in_order(document.get_ref()) {
        match (name, value) {
            (PROVIDER_SECTION, DeValue::Array(items)) => {
                for item in items.iter() {
                    let at = file.at(item.span().start);
                    let DeValue::Table(table) = item.get_ref() else {
                        return Err(ConfigError::Inconsistent { at, problem: "each provider is a section `[[provider]]`".into() });
                    };
                    layer.providers.push(ProviderLayer { at, settings: file.section(PROVIDER_SECTION, table)? });
                }
            }
            (PROVIDER_SECTION, _) => {
                return Err(ConfigError::Inconsistent {
                    at,
                    problem: "providers are a list: write `[[provider]]`, with two brackets".into(),
                });
            }
            (TENANT_SECTION, DeValue::Array(items)) => {
                for item in items.iter() {
                    let at = file.at(item.span().start);
                    let DeValue::Table(table) = item.get_ref() else {
                        return Err(ConfigError::Inconsistent { at, problem: "each tenant is a section `[[tenant]]`".into() });
                    };
                    layer.tenants.push(TenantLayer { at, settings: file.section(TENANT_SECTION, table)? });
                }
            }
            (TENANT_SECTION, _) => {
                return Err(ConfigError::Inconsistent { at, problem: "tenants are a list: write `[[tenant]]`, with two brackets".into() });
            }
            (super::compaction::SECTION, value) => {
                layer.compaction = Some(super::compaction::settings(value, &at, |byte| file.at(byte))?);
            }
            (super::observability::SECTION, value) => {
                layer.observability = Some(super::observability::settings(value, &at, |byte| file.at(byte))?);
            }
            (super::prices::SECTION, value) => layer.prices = super::prices::prices(value, &at, |byte| file.at(byte))?,
            #[cfg(feature = "mcp")]
            (super::mcp::SECTION, value) => layer.mcp = super::mcp::servers(value, &at, &file.base.folder, |byte| file.at(byte))?,
            (tokens::SECTION, DeValue::Table(table)) => {
                layer.encoders = tokens::encoders(table, &at, |byte| file.at(byte))?;
                layer.settings.extend(file.section(tokens::SECTION, table)?);
            }
            (section, DeValue::Table(table)) if SECTIONS.contains(&section) => layer.settings.extend(file.section(section, table)?),
            (section, other) if SECTIONS.contains(&section) => {
                let problem = format!("`{section}` must be a section `[{section}]`, not {}", describe(other));
                return Err(ConfigError::Inconsistent { at, problem });
            }
            (other, value) => return Err(unknown_section(at, other, value)),
        }
    }
    Ok(layer)
}

/// The error for an unknown name at the top level: a section that does not exist, or a key outside
/// its section.
fn unknown_section(at: Origin, given: &str, value: &DeValue<'_>) -> ConfigError {
    let of_section = keys::plain().find(|key| key.name == given && !value.is_table());
    let (what, hint) = match of_section {
        Some(key) => ("key at the top of the file", format!("it belongs under `[{}]`", key.section)),
        None => ("section", hint(given, SECTIONS.iter().copied().chain([PROVIDER_SECTION, TENANT_SECTION]))),
    };
    ConfigError::Unknown { at, what: what.to_owned(), given: quoted(given), hint }
}

struct File<'t> {
    path: Arc<PathBuf>,
    text: &'t str,
    base: Base,
}

impl File<'_> {
    /// Converts a byte offset to its place.
    fn at(&self, byte: usize) -> Origin {
        let line = 1 + self.text.bytes().take(byte).filter(|byte| *byte == b'\n').count();
        Origin::File { path: self.path.clone(), line }
    }

    /// The entries of a table in file order, so that the first mistake is the one reported.
    fn in_order<'a, 'i>(&self, table: &'a DeTable<'i>) -> Vec<(&'a str, Origin, &'a DeValue<'i>)> {
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(name, _)| name.span().start);
        entries.into_iter().map(|(name, value)| (name.get_ref().as_ref(), self.at(name.span().start), value.get_ref())).collect()
    }

    fn section(&self, section: &str, table: &DeTable<'_>) -> Result<Vec<Setting>, ConfigError> {
        let mut settings = Vec::new();
        for (name, at, value) in self.in_order(table) {
            let below = format!("{section}.{name}");
            let is_section = SECTIONS.contains(&below.as_str()) || NESTED.contains(&below.as_str());
            if let (DeValue::Table(table), true) = (value, is_section) {
                settings.extend(self.section(&below, table)?);
                continue;
            }
            if (section, name) == (tokens::SECTION, tokens::ENCODERS) {
                continue; // `tokens::encoders` reads this table.
            }
            let Some(key) = keys::of_section(section).find(|key| key.name == name) else {
                return Err(unknown_key(at, section, name));
            };
            match key.kind.read_toml(value, &self.base) {
                Ok(value) => settings.push(Setting { key, value, from: at }),
                Err(problem) => return Err(ConfigError::BadValue { at, key: key.path(), problem }),
            }
        }
        Ok(settings)
    }
}

fn unknown_key(at: Origin, section: &str, given: &str) -> ConfigError {
    let hint = if section == TENANT_SECTION
        && ["api_key", "apikey", "key", "token", "secret"].contains(&given.to_ascii_lowercase().as_str())
    {
        "keys are not stored in this file: write the hash that `callboard keys new` prints as `key_sha256`".into()
    } else if section == PROVIDER_SECTION && ["api_key", "apikey", "key", "token", "secret"].contains(&given.to_ascii_lowercase().as_str())
    {
        "keys are not stored in this file: name their environment variable with `api_key_env`, or their file with `api_key_file`".into()
    } else {
        let inner = NESTED.iter().filter_map(|nested| nested.strip_prefix(section)?.strip_prefix('.'));
        hint(given, keys::of_section(section).map(|key| key.name).chain(inner))
    };
    let is_list = [PROVIDER_SECTION, TENANT_SECTION].contains(&section);
    let what = if is_list { format!("key in [[{section}]]") } else { format!("key in [{section}]") };
    ConfigError::Unknown { at, what, given: quoted(given), hint }
}
