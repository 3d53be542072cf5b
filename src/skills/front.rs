//! The front matter of a `SKILL.md`: split off, parsed as YAML within a budget, and interpreted
//! leniently where it deviates from the format.

use std::collections::{BTreeMap, BTreeSet};

use callboard_actors::skill::{ContextModifier, SkillMetadata, SkillName};
use serde_json::Value;

use super::tool_names::{Meaning, meaning, split as split_names};
use crate::visible::{is_invisible, visible_material};

/// Largest front matter, in bytes.
pub const FRONT_BYTES_MAX: usize = 16 * 1024;

/// Longest description that the format allows, in characters. A longer one is noted, and shortened
/// in listings.
const DESCRIPTION_CHARS_MAX: usize = 1024;

/// Longest `compatibility` that the format allows, in characters.
const COMPATIBILITY_CHARS_MAX: usize = 500;

/// Model names of other programs that no provider accepts as a model id.
const FOREIGN_MODELS: [&str; 5] = ["sonnet", "opus", "haiku", "default", "best"];

/// The interpreted front matter.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Head {
    pub(super) metadata: SkillMetadata,
    pub(super) modifier: ContextModifier,
    pub(super) notes: Vec<String>,
}

/// Splits a file into front matter and body.
pub(super) fn split(text: &str) -> Result<(&str, &str), String> {
    let text = text
        .strip_prefix('\u{feff}')
        .unwrap_or(text)
        .trim_start_matches(['\n', '\r']);
    let none = || "it has no front matter: the file must start with a line `---`".to_owned();
    let rest = text.strip_prefix("---").ok_or_else(none)?;
    let rest = rest.trim_start_matches([' ', '\t']);
    let rest = rest
        .strip_prefix("\r\n")
        .or_else(|| rest.strip_prefix('\n'))
        .ok_or_else(none)?;
    let mut at = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            let front = rest.get(..at).unwrap_or_default();
            let body = rest.get(at + line.len()..).unwrap_or_default();
            return if front.len() > FRONT_BYTES_MAX {
                Err(format!(
                    "its front matter has {} bytes; at most {FRONT_BYTES_MAX} are allowed",
                    front.len()
                ))
            } else {
                Ok((front, body))
            };
        }
        at += line.len();
    }
    Err("its front matter is not closed: a line `---` is missing".to_owned())
}

/// Interprets front matter; `folder` is the name of the skill's folder.
pub(super) fn read(front: &str, folder: &str) -> Result<Head, String> {
    let mut notes = Vec::new();
    twice(front, &mut notes);
    let mut fields = Fields::parse(front, &mut notes)?;
    let description = fields
        .text("description", &mut notes)
        .ok_or("it has no description")?;
    if description.chars().count() > DESCRIPTION_CHARS_MAX {
        notes.push(format!(
            "its description has more than {DESCRIPTION_CHARS_MAX} characters"
        ));
    }
    let written = fields.text("name", &mut notes);
    let mut long = Vec::new();
    let metadata = SkillMetadata {
        name: name(written.as_deref(), folder, &mut notes)?,
        description,
        capabilities: fields.list("capabilities"),
        disable_model_invocation: fields.flag("disable-model-invocation", &mut notes),
        license: fields.text("license", &mut notes),
        compatibility: fields.text("compatibility", &mut notes).inspect(|text| {
            if text.chars().count() > COMPATIBILITY_CHARS_MAX {
                long.push(format!(
                    "its compatibility has more than {COMPATIBILITY_CHARS_MAX} characters"
                ));
            }
        }),
        metadata: fields.map("metadata", &mut notes),
    };
    notes.append(&mut long);
    let modifier = ContextModifier {
        allowed_tools: fields.tools(&mut notes),
        model: fields
            .text("model", &mut notes)
            .and_then(|model| known_model(model, &mut notes)),
        disable_model_invocation: false,
    };
    fields.leftover(&mut notes);
    Ok(Head {
        metadata,
        modifier,
        notes,
    })
}

/// The skill's name: the written one, else the nearest valid name, else the folder's name.
fn name(written: Option<&str>, folder: &str, notes: &mut Vec<String>) -> Result<SkillName, String> {
    let of_folder = SkillName::nearest(folder);
    let Some(written) = written else {
        notes.push("it has no name; the name of its folder is used".to_owned());
        return of_folder.ok_or_else(|| {
            "it has no name, and the name of its folder is not a valid one".to_owned()
        });
    };
    match SkillName::new(written) {
        Ok(name) => {
            if name.as_str() != folder {
                notes.push(format!(
                    "its name {name} differs from the name of its folder"
                ));
            }
            Ok(name)
        }
        Err(error) => {
            if written.chars().any(|c| matches!(c, '\u{300}'..='\u{36f}')) {
                notes.push("its name has combining marks (decomposed Unicode); write each accented letter as one character".to_owned());
            }
            let nearest = SkillName::nearest(written)
                .or(of_folder)
                .ok_or_else(|| error.to_string())?;
            notes.push(format!("{error}; the name {nearest} is used"));
            Ok(nearest)
        }
    }
}

/// Notes duplicate keys; the last one is used.
fn twice(front: &str, notes: &mut Vec<String>) {
    let key = |line: &'_ str| {
        let key = line.split_once(':')?.0.trim_end();
        let plain = !key.is_empty()
            && key
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
        plain.then(|| key.replace('_', "-"))
    };
    let mut seen = BTreeSet::new();
    // Only top-level keys start at the beginning of a line; nested ones are indented.
    for again in front
        .lines()
        .filter_map(key)
        .filter(|key| !seen.insert(key.clone()))
        .collect::<BTreeSet<_>>()
    {
        notes.push(format!("{again} is duplicated; the last one is used"));
    }
}

/// The skill's model, if its id may be one of a provider.
fn known_model(model: String, notes: &mut Vec<String>) -> Option<String> {
    let plain = model.len() <= 128
        && model
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._:/-@".contains(&b));
    match model.as_str() {
        "inherit" => None,
        word if FOREIGN_MODELS.contains(&word) || !plain => {
            notes.push(format!(
                "its model {:?} is not a model id; the conversation's model is used",
                short(&model)
            ));
            None
        }
        _ => Some(model),
    }
}

fn short(text: &str) -> String {
    text.chars().take(60).collect()
}

/// Fields that are not interpreted yet.
struct Fields(BTreeMap<String, Value>);

impl Fields {
    fn parse(front: &str, notes: &mut Vec<String>) -> Result<Self, String> {
        let value = match yaml(front) {
            Ok(value) => value,
            // The most common error: a colon inside of an unquoted text. Quote such texts and try
            // again.
            Err(error) => {
                let (quoted, keys) = quoted(front);
                let value = if keys.is_empty() {
                    Err(error.clone())
                } else {
                    yaml(&quoted)
                };
                let value =
                    value.map_err(|_| format!("its front matter is not valid YAML: {error}"))?;
                notes.push(format!(
                    "quote the text of {}: it contains a colon",
                    keys.join(", ")
                ));
                value
            }
        };
        match value {
            Value::Object(fields) => Ok(Self(
                fields
                    .into_iter()
                    .map(|(key, value)| (key.trim().replace('_', "-"), value))
                    .collect(),
            )),
            Value::Null => Ok(Self(BTreeMap::new())),
            _ => Err("its front matter is not a mapping of keys to values".to_owned()),
        }
    }

    /// Takes a field as text; numbers and booleans as they are written.
    fn text(&mut self, key: &str, notes: &mut Vec<String>) -> Option<String> {
        let text = match self.0.remove(key)? {
            Value::Null => return None,
            Value::Array(_) | Value::Object(_) => {
                notes.push(format!("its {key} is not a text"));
                return None;
            }
            value => plain(&value),
        };
        if key == "name" {
            // Checked as it is written.
            return Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        }
        if text.contains(is_invisible) {
            notes.push(format!(
                "its {key} contains invisible characters; they are shown as \\u{{..}}"
            ));
        }
        Some(visible_material(text.trim())).filter(|text| !text.is_empty())
    }

    fn flag(&mut self, key: &str, notes: &mut Vec<String>) -> bool {
        match self.0.remove(key) {
            None | Some(Value::Null) => false,
            Some(Value::Bool(flag)) => flag,
            // Whoever sets this key most likely means to hide the skill, so an unknown value counts
            // as true.
            Some(other) => match plain(&other).to_ascii_lowercase().as_str() {
                "false" | "no" | "off" | "0" => false,
                "true" | "yes" | "on" | "1" => true,
                _ => {
                    notes.push(format!("its {key} is neither true nor false; true is used"));
                    true
                }
            },
        }
    }

    /// Takes a field as a list of texts: a YAML list, or one text separated by commas.
    fn list(&mut self, key: &str) -> Vec<String> {
        let texts: Vec<String> = match self.0.remove(key) {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(items)) => items.iter().map(plain).collect(),
            Some(other) => plain(&other).split(',').map(str::to_owned).collect(),
        };
        texts
            .into_iter()
            .map(|text| visible_material(text.trim()))
            .filter(|text| !text.is_empty())
            .collect()
    }

    fn map(&mut self, key: &str, notes: &mut Vec<String>) -> BTreeMap<String, String> {
        match self.0.remove(key) {
            None | Some(Value::Null) => BTreeMap::new(),
            Some(Value::Object(fields)) => fields
                .iter()
                .map(|(key, value)| (visible_material(key), visible_material(&plain(value))))
                .collect(),
            Some(_) => {
                notes.push(format!("its {key} is not a mapping of keys to values"));
                BTreeMap::new()
            }
        }
    }

    /// The tools that the skill allows, by Callboard's names; `None` if it restricts nothing.
    fn tools(&mut self, notes: &mut Vec<String>) -> Option<BTreeSet<String>> {
        let (written, has_commas) = match self.0.remove("allowed-tools")? {
            Value::Null => return None,
            Value::String(text) if text.trim().is_empty() => return None,
            Value::Array(items) => (items.iter().map(plain).collect(), false),
            other => {
                let text = plain(&other);
                (split_names(&text), text.contains(','))
            }
        };
        if has_commas {
            notes.push("its allowed-tools are separated by commas, not by spaces".to_owned());
        }
        let mut names = BTreeSet::new();
        let mut patterns = Vec::new();
        let mut odd = Vec::new();
        for word in &written {
            match meaning(word) {
                Meaning::All => return None,
                Meaning::Nothing => odd.push(short(word)),
                Meaning::Tool { name, pattern } => {
                    patterns.extend(pattern.then(|| short(word)));
                    names.insert(name);
                }
            }
        }
        if !patterns.is_empty() {
            notes.push(format!(
                "{}: only the tool is restricted, the pattern is ignored",
                patterns.join(", ")
            ));
        }
        if !odd.is_empty() {
            notes.push(format!("{} is not a tool name", odd.join(", ")));
        }
        Some(names)
    }

    fn leftover(self, notes: &mut Vec<String>) {
        let keys: Vec<String> = self.0.keys().take(8).map(|key| short(key)).collect();
        if !keys.is_empty() {
            notes.push(format!("ignored: {}", keys.join(", ")));
        }
    }
}

/// A value as text: scalars as written, others as JSON.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Parses YAML within a budget that bounds aliases, depth and size.
fn yaml(text: &str) -> Result<Value, String> {
    if text.trim().is_empty() {
        return Ok(Value::Null);
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 4000,
            max_aliases: 16,
            max_anchors: 16,
            max_depth: 16,
            max_documents: 1,
            max_nodes: 2000,
            max_total_scalar_bytes: 2 * FRONT_BYTES_MAX,
        },
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| one_line(&error))
}

/// The first line of a YAML error.
fn one_line(error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().to_string();
    let line = text
        .lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("unreadable");
    line.chars().take(160).collect()
}

/// Quotes texts that contain a colon; returns the result and the keys of those texts.
fn quoted(front: &str) -> (String, Vec<String>) {
    let mut keys = Vec::new();
    let lines = front.lines().map(|line| {
        let top = line.split_once(':').filter(|(key, _)| {
            !key.is_empty()
                && key
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        });
        let Some((key, value)) = top else {
            return line.to_owned();
        };
        let value = value.trim();
        let is_bare = !value.starts_with(['"', '\'', '|', '>', '[', '{', '&', '*', '!', '#']);
        if is_bare && (value.contains(": ") || value.ends_with(':')) {
            keys.push(key.to_owned());
            return format!("{key}: {}", Value::String(value.to_owned()));
        }
        line.to_owned()
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    (text, keys)
}

#[cfg(test)]
mod tests;
