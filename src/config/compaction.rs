//! `[compaction]`: when and how a conversation's context is made smaller.

use std::fmt::Write as _;

use callboard_actors::compactor::CompactionSettings;
use serde_json::{Map, Value, json};
use toml::de::DeValue;

use super::{
    error::{ConfigError, Origin, hint, quoted},
    toml_text::in_quotes,
};

/// The section's name.
pub(super) const SECTION: &str = "compaction";

/// All keys, in the order in which `show` prints them.
const KEYS: [&str; 13] = [
    "strategy",
    "trigger",
    "target",
    "keep_rounds",
    "enable_llm_summarization",
    "llm_threshold",
    "llm_summarization_threshold",
    "summary_model",
    "max_summary_tokens",
    "timeout_ms",
    "summary_cache_ttl",
    "max_cost_per_hour",
    "max_compression_cost_per_hour",
];

/// Reads the section. `at` maps a byte offset to its place in the file.
pub(super) fn settings(value: &DeValue<'_>, section: &Origin, at: impl Fn(usize) -> Origin) -> Result<CompactionSettings, ConfigError> {
    let DeValue::Table(table) = value else {
        return Err(ConfigError::Inconsistent { at: section.clone(), problem: "[compaction] is a section of keys".into() });
    };
    let mut dict = Map::new();
    for (name, value) in table {
        let (key, place) = (name.get_ref().as_ref(), at(name.span().start));
        if !KEYS.contains(&key) {
            let what = "key in [compaction]".into();
            return Err(ConfigError::Unknown { at: place, what, given: quoted(key), hint: hint(key, KEYS.into_iter()) });
        }
        dict.insert(key.to_owned(), plain(value.get_ref()));
        // Each key is checked separately, so that an error names its line.
        CompactionSettings::from_dict(&json!({ key: plain(value.get_ref()) })).map_err(|error| ConfigError::BadValue {
            at: place,
            key: format!("{SECTION}.{key}"),
            problem: error.to_string(),
        })?;
    }
    CompactionSettings::from_dict(&Value::Object(dict))
        .map_err(|error| ConfigError::Inconsistent { at: section.clone(), problem: error.to_string() })
}

fn plain(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => json!(text),
        DeValue::Integer(number) => number.as_str().replace('_', "").parse::<i64>().map_or(Value::Null, |number| json!(number)),
        DeValue::Float(number) => number.as_str().replace('_', "").parse::<f64>().map_or(Value::Null, |number| json!(number)),
        DeValue::Boolean(yes) => json!(yes),
        DeValue::Array(_) | DeValue::Table(_) | DeValue::Datetime(_) => Value::Null,
    }
}

/// Writes the settings as TOML that can be read again.
pub(super) fn show(text: &mut String, settings: &CompactionSettings) {
    let dict = settings.to_dict();
    let _ = writeln!(text, "\n[{SECTION}]");
    for key in KEYS {
        match dict.get(key) {
            Some(Value::String(word)) => drop(writeln!(text, "{key} = {}", in_quotes(word))),
            Some(value) if !value.is_null() => drop(writeln!(text, "{key} = {value}")),
            Some(_) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<CompactionSettings, ConfigError> {
        let table = toml::de::DeTable::parse(text).unwrap();
        let value = table.get_ref().get(SECTION).unwrap();
        settings(value.get_ref(), &Origin::Default, |_| Origin::Default)
    }

    #[test]
    fn what_is_shown_reads_as_the_same() {
        let given = read("[compaction]\nstrategy = \"summarize\"\nkeep_rounds = 7\nmax_compression_cost_per_hour = 0.5\n").unwrap();
        let mut text = String::new();

        show(&mut text, &given);

        assert_eq!(read(&text).unwrap(), given, "{text}");
        assert_eq!((given.keep_rounds, given.max_cost_per_hour), (Some(7), 0.5));
    }

    #[test]
    fn a_wrong_key_or_value_is_named() {
        let unknown = read("[compaction]\nstrategie = \"extract\"\n").unwrap_err().to_string();
        let wrong = read("[compaction]\nmax_cost_per_hour = -1.0\n").unwrap_err().to_string();

        assert!(unknown.contains("strategie") && unknown.contains("strategy"), "{unknown}");
        assert!(wrong.contains("max_cost_per_hour must be non-negative"), "{wrong}");
    }
}
