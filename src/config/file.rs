//! Parses one TOML file and keeps the line of every key, so that an error can name it.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use toml::de::{DeTable, DeValue};

#[cfg(feature = "mcp")]
use super::mcp;
use super::{
    Layer, ProviderLayer, Setting, TenantLayer, compaction,
    error::{ConfigError, Origin, hint, quoted},
    keys::{self, NESTED, PROVIDER_SECTION, SECTIONS, TENANT_SECTION},
    observability,
    paths::Base,
    prices,
    section::{Entry, File, Section},
    tokens,
    value::describe,
};

/// Maximum file size in bytes. A configuration has a few KiB.
pub(super) const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Reads the file at `path`; `None` if it does not exist.
pub(super) fn read(path: &Path, home: Option<&Path>) -> Result<Option<Layer>, ConfigError> {
    let unreadable = |reason: String| ConfigError::Unreadable {
        file: path.to_owned(),
        reason,
    };
    let mut bytes = Vec::new();
    match crate::named_file::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
    {
        Ok(_) if bytes.len() as u64 > FILE_BYTES_MAX => {
            return Err(unreadable("it is longer than 1 MiB".into()));
        }
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error.to_string())),
    }
    parse_bytes(path, bytes, home).map(Some)
}

/// Parses the content of the file at `path`; invalid UTF-8 is an error with its line.
pub(super) fn parse_bytes(
    path: &Path,
    bytes: Vec<u8>,
    home: Option<&Path>,
) -> Result<Layer, ConfigError> {
    match String::from_utf8(bytes) {
        Ok(text) => parse(path, &text, home),
        Err(error) => {
            let line = 1 + error
                .as_bytes()
                .iter()
                .take(error.utf8_error().valid_up_to())
                .filter(|byte| **byte == b'\n')
                .count();
            let at = Origin::File {
                path: Arc::new(path.to_owned()),
                line,
            };
            Err(ConfigError::Syntax {
                at,
                reason: "this line is not UTF-8 text".into(),
            })
        }
    }
}

/// Parses the text of the file at `path`.
pub(super) fn parse(path: &Path, text: &str, home: Option<&Path>) -> Result<Layer, ConfigError> {
    let folder = path.parent().map(Path::to_owned).unwrap_or_default();
    let base = Base {
        folder,
        home: home.map(PathBuf::from),
    };
    let file = File {
        path: Arc::new(path.to_owned()),
        text,
    };
    let document = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
        at: file.at(error.span().map_or(text.len(), |span| span.start)),
        reason: quoted(error.message()),
    })?;

    let mut layer = Layer::default();
    for entry in &file.entries(document.get_ref()) {
        match entry.name {
            PROVIDER_SECTION => {
                let problems = [
                    "providers are a list: write `[[provider]]`, with two brackets",
                    "each provider is a section `[[provider]]`",
                ];
                for section in Section::list(&file, PROVIDER_SECTION, entry, problems)? {
                    layer.providers.push(ProviderLayer {
                        settings: settings(&section, &base)?,
                        at: section.at,
                    });
                }
            }
            TENANT_SECTION => {
                let problems = [
                    "tenants are a list: write `[[tenant]]`, with two brackets",
                    "each tenant is a section `[[tenant]]`",
                ];
                for section in Section::list(&file, TENANT_SECTION, entry, problems)? {
                    layer.tenants.push(TenantLayer {
                        settings: settings(&section, &base)?,
                        at: section.at,
                    });
                }
            }
            #[cfg(feature = "mcp")]
            mcp::SECTION => {
                let problem = "servers are a list: write `[[mcp]]`, with two brackets";
                layer.mcp = mcp::servers(
                    &Section::list(&file, mcp::SECTION, entry, [problem, problem])?,
                    &base.folder,
                )?;
            }
            compaction::SECTION => {
                layer.compaction = Some(compaction::settings(&section(
                    &file,
                    compaction::SECTION,
                    entry,
                )?)?)
            }
            observability::SECTION => {
                layer.observability = Some(observability::settings(&section(
                    &file,
                    observability::SECTION,
                    entry,
                )?)?)
            }
            prices::SECTION => {
                layer.prices =
                    prices::prices(&Section::of(&file, prices::SECTION, entry, prices::SHAPE)?)?
            }
            other => {
                let Some(name) = SECTIONS.iter().copied().find(|name| *name == other) else {
                    return Err(unknown_section(entry));
                };
                let problem = format!(
                    "`{name}` must be a section `[{name}]`, not {}",
                    describe(entry.value())
                );
                let section = Section::of(&file, name, entry, &problem)?;
                if name == tokens::SECTION {
                    layer.encoders = tokens::encoders(&section)?;
                }
                layer.settings.extend(settings(&section, &base)?);
            }
        }
    }
    Ok(layer)
}

/// The error for an unknown name at the top level: a section that does not exist, or a key outside
/// its section.
fn unknown_section(entry: &Entry<'_, '_>) -> ConfigError {
    let at = entry.at.clone();
    let given = entry.name;
    let of_section = keys::plain().find(|key| key.name == given && !entry.value().is_table());
    let (what, hint) = match of_section {
        Some(key) => (
            "key at the top of the file",
            format!("it belongs under `[{}]`", key.section),
        ),
        None => (
            "section",
            hint(
                given,
                SECTIONS
                    .iter()
                    .copied()
                    .chain([PROVIDER_SECTION, TENANT_SECTION]),
            ),
        ),
    };
    ConfigError::Unknown {
        at,
        what: what.to_owned(),
        given: quoted(given),
        hint,
    }
}

fn section<'f, 'i>(
    file: &'f File<'f>,
    name: &'static str,
    entry: &Entry<'f, 'i>,
) -> Result<Section<'f, 'i>, ConfigError> {
    Section::of(file, name, entry, &format!("[{name}] is a section of keys"))
}

/// Reads the keys of a section that are in the table of keys, and those of the sections in it.
fn settings(section: &Section<'_, '_>, base: &Base) -> Result<Vec<Setting>, ConfigError> {
    let mut read = Vec::new();
    for entry in section.entries() {
        let below = format!("{}.{}", section.name, entry.name);
        let inner = SECTIONS
            .iter()
            .chain(NESTED)
            .copied()
            .find(|name| *name == below);
        if let (DeValue::Table(table), Some(name)) = (entry.value(), inner) {
            read.extend(settings(
                &Section {
                    file: section.file,
                    name,
                    at: entry.at,
                    table,
                },
                base,
            )?);
            continue;
        }
        if (section.name, entry.name) == (tokens::SECTION, tokens::ENCODERS) {
            continue; // `tokens::encoders` reads this table.
        }
        let Some(key) = keys::of_section(section.name).find(|key| key.name == entry.name) else {
            return Err(unknown_key(entry.at, section.name, entry.name));
        };
        match key.kind.read_toml(entry.value(), base) {
            Ok(value) => read.push(Setting {
                key,
                value,
                from: entry.at,
            }),
            Err(problem) => {
                return Err(ConfigError::BadValue {
                    at: entry.at,
                    key: key.path(),
                    problem,
                });
            }
        }
    }
    Ok(read)
}

fn unknown_key(at: Origin, section: &str, given: &str) -> ConfigError {
    let hint = if section == TENANT_SECTION
        && ["api_key", "apikey", "key", "token", "secret"]
            .contains(&given.to_ascii_lowercase().as_str())
    {
        "keys are not stored in this file: write the hash that `callboard keys new` prints as `key_sha256`".into()
    } else if section == PROVIDER_SECTION
        && ["api_key", "apikey", "key", "token", "secret"]
            .contains(&given.to_ascii_lowercase().as_str())
    {
        "keys are not stored in this file: name their environment variable with `api_key_env`, or their file with `api_key_file`".into()
    } else {
        let inner = NESTED
            .iter()
            .filter_map(|nested| nested.strip_prefix(section)?.strip_prefix('.'));
        hint(
            given,
            keys::of_section(section).map(|key| key.name).chain(inner),
        )
    };
    let is_list = [PROVIDER_SECTION, TENANT_SECTION].contains(&section);
    let what = if is_list {
        format!("key in [[{section}]]")
    } else {
        format!("key in [{section}]")
    };
    ConfigError::Unknown {
        at,
        what,
        given: quoted(given),
        hint,
    }
}
