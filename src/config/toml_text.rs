//! Writes values as TOML.

use std::{fmt::Write as _, path::Path};

use serde_json::{Map, Value as Json};

/// Writes a section: its header, and those of `keys` that have a value in `fields`.
pub(super) fn section(text: &mut String, header: &str, keys: &[&str], fields: &Map<String, Json>) {
    let _ = writeln!(text, "\n{header}");
    for key in keys {
        match fields.get(*key) {
            None | Some(Json::Null) => {}
            Some(set) => drop(writeln!(text, "{key} = {}", value(set))),
        }
    }
}

/// Formats a value on one line. TOML has no null, so nulls in lists and tables are omitted.
pub(super) fn value(json: &Json) -> String {
    match json {
        Json::Object(fields) => {
            let fields = fields.iter().filter(|(_, field)| !field.is_null());
            let fields: Vec<String> = fields
                .map(|(name, field)| format!("{} = {}", in_quotes(name), value(field)))
                .collect();
            format!("{{ {} }}", fields.join(", "))
        }
        Json::Array(items) => format!(
            "[{}]",
            items
                .iter()
                .filter(|item| !item.is_null())
                .map(value)
                .collect::<Vec<_>>()
                .join(", ")
        ),
        Json::String(text) => in_quotes(text),
        Json::Null | Json::Bool(_) | Json::Number(_) => json.to_string(),
    }
}

/// Formats a basic TOML string.
pub(super) fn in_quotes(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// Makes a path absolute, so that the output means the same in another folder.
pub(super) fn whole(path: &Path) -> String {
    std::path::absolute(path)
        .as_deref()
        .unwrap_or(path)
        .to_string_lossy()
        .into_owned()
}
