//! `[observability]`: what is logged, traced and measured, and where it goes.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use callboard_actors::policy::{ConfigValue as _, Dict, ObservabilityConfig, TraceSampling};
use serde_json::{Value, json};
use toml::de::{DeTable, DeValue};

use super::{
    error::{ConfigError, Origin, hint, quoted},
    toml_text::in_quotes,
};

/// The section's name.
pub(super) const SECTION: &str = "observability";

/// Accepted log outputs. `stdout` means standard error here, because standard output carries
/// results.
const OUTPUTS: [&str; 3] = ["stderr", "stdout", "file"];

/// Replaces the value of a header in `show`.
const HIDDEN: &str = "[masked]";

/// The section, and which of its keys are set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observability {
    /// The settings; unset keys have their default.
    pub settings: ObservabilityConfig,
    /// The log file, if `log_output` contains `file`: `callboard.log` in the data folder.
    pub log_file: Option<PathBuf>,
    given: Vec<String>,
}

/// Defaults without a section: warnings and errors to standard error, and no log file. These differ
/// from the library's defaults, because commands are used by people.
impl Default for Observability {
    fn default() -> Self {
        let settings =
            ObservabilityConfig { log_level: "WARNING".into(), log_output: vec!["stderr".into()], ..ObservabilityConfig::default() };
        Self { settings, log_file: None, given: Vec::new() }
    }
}

impl Observability {
    /// Whether a source sets this key.
    pub fn is_given(&self, key: &str) -> bool {
        self.given.iter().any(|given| given == key)
    }

    /// Which rounds are traced: none if tracing is switched off or no `otlp_endpoint` is set.
    pub fn sampling(&self) -> TraceSampling {
        if self.settings.enable_tracing && self.settings.otlp_endpoint.is_some() {
            self.settings.trace_sampling
        } else {
            TraceSampling::Never
        }
    }

    /// Values that must be masked in all output: OTLP headers carry credentials.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        let headers = self.settings.otlp_headers.iter().flatten();
        // In `Bearer abc`, the last word alone is a secret too.
        headers.flat_map(|(_, value)| [Some(value.as_str()), value.split_whitespace().last()]).flatten()
    }

    /// Derives the path of the log file from the data folder.
    pub(super) fn settle(&mut self, data_dir: &Path) {
        let wanted = self.settings.log_output.iter().any(|output| output == "file");
        self.log_file = wanted.then(|| data_dir.join("callboard.log"));
    }
}

/// Reads the section. `at` maps a byte offset to its place in the file.
pub(super) fn settings(value: &DeValue<'_>, section: &Origin, at: impl Fn(usize) -> Origin) -> Result<Observability, ConfigError> {
    let DeValue::Table(table) = value else {
        return Err(ConfigError::Inconsistent { at: section.clone(), problem: "[observability] is a section of keys".into() });
    };
    let usual = Observability::default();
    let known = usual.settings.to_dict();
    let (mut dict, mut given) = (known.clone(), Vec::new());
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start); // In file order, so that the first mistake is reported.
    for (name, value) in entries {
        let (key, place) = (name.get_ref().as_ref(), at(name.span().start));
        if !known.contains_key(key) {
            let (what, hint) = ("key in [observability]".into(), hint(key, known.keys().map(String::as_str)));
            return Err(ConfigError::Unknown { at: place, what, given: quoted(key), hint });
        }
        let value = plain(value.get_ref());
        // Each key is checked separately, so that an error names its line.
        let mut alone = known.clone();
        alone.insert(key.to_owned(), value.clone());
        judge(&alone, key).map_err(|problem| ConfigError::BadValue { at: place, key: format!("{SECTION}.{key}"), problem })?;
        dict.insert(key.to_owned(), value);
        given.push(key.to_owned());
    }
    let settings = ObservabilityConfig::from_dict(&dict)
        .map_err(|error| ConfigError::Inconsistent { at: section.clone(), problem: error.to_string() })?;
    Ok(Observability { settings, log_file: None, given })
}

/// Checks one key. The texts of `ObservabilityConfig` are used where it has one, because callers of
/// the library get the same.
fn judge(dict: &Dict, key: &str) -> Result<(), String> {
    let settings = ObservabilityConfig::from_dict(dict).map_err(|error| error.to_string())?;
    settings.validate().map_err(|error| format!("is wrong: {error}"))?;
    let listed = |words: &[&str]| words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    match key {
        "log_output" => match settings.log_output.iter().find(|output| !OUTPUTS.contains(&output.as_str())) {
            Some(other) => Err(format!("must hold {}, not `{}`", listed(&OUTPUTS), quoted(other))),
            None => Ok(()),
        },
        "otlp_compression" if !["gzip", "none"].contains(&settings.otlp_compression.as_str()) => {
            Err(format!("must be one of `gzip`, `none`, not `{}`", quoted(&settings.otlp_compression)))
        }
        "otlp_endpoint" => match &settings.otlp_endpoint {
            Some(url) if !(url.starts_with("http://") || url.starts_with("https://")) => {
                Err(format!("must begin with `http://` or `https://`, not `{}`", quoted(url)))
            }
            Some(_) | None => Ok(()),
        },
        "trace_batch_size" if settings.trace_batch_size == 0 => Err("must be positive".into()),
        "trace_export_timeout_ms" if settings.trace_export_timeout_ms == 0 => Err("must be positive".into()),
        "metrics_export_timeout_ms" if settings.metrics_export_timeout_ms == 0 => Err("must be positive".into()),
        _ => Ok(()),
    }
}

fn plain(value: &DeValue<'_>) -> Value {
    let table = |table: &DeTable<'_>| {
        Value::Object(table.iter().map(|(name, value)| (name.get_ref().to_string(), plain(value.get_ref()))).collect())
    };
    match value {
        DeValue::String(text) => json!(text),
        DeValue::Integer(number) => number.as_str().replace('_', "").parse::<i64>().map_or(Value::Null, |number| json!(number)),
        DeValue::Float(number) => number.as_str().replace('_', "").parse::<f64>().map_or(Value::Null, |number| json!(number)),
        DeValue::Boolean(yes) => json!(yes),
        DeValue::Array(items) => Value::Array(items.iter().map(|item| plain(item.get_ref())).collect()),
        DeValue::Table(inner) => table(inner),
        DeValue::Datetime(_) => Value::Null,
    }
}

/// Writes the settings as TOML that can be read again; header values are masked.
pub(super) fn show(text: &mut String, observability: &Observability) {
    let _ = writeln!(text, "\n[{SECTION}]");
    for (key, value) in observability.settings.to_dict() {
        let secret = key == "otlp_headers";
        let line = match value {
            Value::Null => format!("# {key} is not set"),
            Value::Object(map) => {
                let row = |(name, value): (&String, &Value)| {
                    let value = if secret { HIDDEN } else { value.as_str().unwrap_or_default() };
                    format!("{} = {}", in_quotes(name), in_quotes(value))
                };
                format!("{key} = {{ {} }}", map.iter().map(row).collect::<Vec<_>>().join(", "))
            }
            Value::String(word) => format!("{key} = {}", in_quotes(&word)),
            Value::Array(items) => {
                let items: Vec<_> = items.iter().map(|item| in_quotes(item.as_str().unwrap_or_default())).collect();
                format!("{key} = [{}]", items.join(", "))
            }
            other => format!("{key} = {other}"),
        };
        let _ = writeln!(text, "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Observability, ConfigError> {
        let table = DeTable::parse(text).unwrap();
        let (_, value) = table.get_ref().iter().find(|(name, _)| name.get_ref() == SECTION).unwrap();
        let line = |byte: usize| Origin::File {
            path: std::sync::Arc::new("c.toml".into()),
            line: 1 + text.bytes().take(byte).filter(|byte| *byte == b'\n').count(),
        };
        settings(value.get_ref(), &Origin::Default, line)
    }

    fn fault(line: &str) -> String {
        read(&format!("[observability]\n{line}\n")).unwrap_err().to_string()
    }

    #[test]
    fn a_wrong_value_is_told_in_the_words_of_the_requirements_with_its_line() {
        assert_eq!(fault("log_level = \"Loud\""), "c.toml:2: `observability.log_level` is wrong: Invalid log_level: Loud");
        assert_eq!(fault("log_format = \"xml\""), "c.toml:2: `observability.log_format` is wrong: Invalid log_format: xml");
        let interval = "c.toml:2: `observability.metrics_export_interval_s` is wrong: metrics_export_interval_s must be positive";
        assert_eq!(fault("metrics_export_interval_s = 0"), interval);
        assert!(fault("log_outputs = []").contains("did you mean `log_output`?"));
        assert!(fault("otlp_endpoint = \"collector:4318\"").contains("must begin with `http://`"));
        assert!(fault("trace_sampling = \"often\"").contains("always"));
        assert!(fault("log_output = [\"syslog\"]").contains("`stderr`, `stdout`, `file`"));
    }

    #[test]
    fn what_is_shown_reads_as_the_same_but_for_headers() {
        let text = "[observability]\nlog_level = \"debug\"\ntrace_sampling = \"always\"\notlp_headers = { authorization = \"Bearer not-a-real-key\" }\nextra_tags = { team = \"blue\" }\n";
        let given = read(text).unwrap();
        let mut shown = String::new();

        show(&mut shown, &given);

        let again = read(&shown).unwrap().settings;
        assert_eq!(again, ObservabilityConfig { otlp_headers: again.otlp_headers.clone(), ..given.settings.clone() }, "{shown}");
        assert!(!shown.contains("not-a-real-key"), "{shown}");
        assert_eq!(given.secrets().collect::<Vec<_>>(), ["Bearer not-a-real-key", "not-a-real-key"]);
        assert!(given.is_given("log_level") && !given.is_given("log_format"));
    }

    #[test]
    fn a_file_is_written_only_where_it_is_asked_for() {
        let (mut silent, mut filed) = (Observability::default(), read("[observability]\nlog_output = [\"stdout\", \"file\"]\n").unwrap());

        silent.settle(Path::new("/data"));
        filed.settle(Path::new("/data"));

        assert_eq!((silent.log_file, filed.log_file), (None, Some("/data/callboard.log".into())));
    }
}
