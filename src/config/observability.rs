//! `[observability]`: what is logged, traced and measured, and where it goes.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use callboard_actors::policy::{ConfigValue as _, ObservabilityConfig, TraceSampling};
use serde_json::Value;

use super::{
    error::{ConfigError, quoted},
    section::Section,
    toml_text,
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
        let settings = ObservabilityConfig {
            log_level: "WARNING".into(),
            log_output: vec!["stderr".into()],
            ..ObservabilityConfig::default()
        };
        Self {
            settings,
            log_file: None,
            given: Vec::new(),
        }
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
        headers
            .flat_map(|(_, value)| [Some(value.as_str()), value.split_whitespace().last()])
            .flatten()
    }

    /// Derives the path of the log file from the data folder.
    pub(super) fn set_log_file(&mut self, data_dir: &Path) {
        let wanted = self
            .settings
            .log_output
            .iter()
            .any(|output| output == "file");
        self.log_file = wanted.then(|| data_dir.join("callboard.log"));
    }
}

/// Reads the section.
pub(super) fn settings(section: &Section<'_, '_>) -> Result<Observability, ConfigError> {
    let mut dict = Observability::default().settings.to_dict();
    let known: Vec<String> = dict.keys().cloned().collect();
    section.read(
        &known.iter().map(String::as_str).collect::<Vec<_>>(),
        check_key,
    )?;
    let set = section.json();
    let given = set.keys().cloned().collect();
    dict.extend(set); // Over the defaults of the configuration, which are not those of the type.
    let settings = ObservabilityConfig::from_dict(&dict)
        .map_err(|error| section.inconsistent(error.to_string()))?;
    Ok(Observability {
        settings,
        log_file: None,
        given,
    })
}

/// Checks one key. The texts of `ObservabilityConfig` are used where it has one, because callers of
/// the library get the same.
fn check_key(settings: &ObservabilityConfig, key: &str) -> Result<(), String> {
    settings
        .validate()
        .map_err(|error| format!("is wrong: {error}"))?;
    let listed = |words: &[&str]| {
        words
            .iter()
            .map(|word| format!("`{word}`"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    match key {
        "log_output" => match settings
            .log_output
            .iter()
            .find(|output| !OUTPUTS.contains(&output.as_str()))
        {
            Some(other) => Err(format!(
                "must hold {}, not `{}`",
                listed(&OUTPUTS),
                quoted(other)
            )),
            None => Ok(()),
        },
        "otlp_compression" if !["gzip", "none"].contains(&settings.otlp_compression.as_str()) => {
            Err(format!(
                "must be one of `gzip`, `none`, not `{}`",
                quoted(&settings.otlp_compression)
            ))
        }
        "otlp_endpoint" => match &settings.otlp_endpoint {
            Some(url) if !(url.starts_with("http://") || url.starts_with("https://")) => {
                Err(format!(
                    "must begin with `http://` or `https://`, not `{}`",
                    quoted(url)
                ))
            }
            // Addresses appear in errors and logs; passwords must not.
            Some(url) if authority(url).contains('@') => {
                Err("must not contain a user name or a password; use `otlp_headers`".to_owned())
            }
            Some(_) | None => Ok(()),
        },
        "trace_batch_size" if settings.trace_batch_size == 0 => Err("must be positive".into()),
        "trace_export_timeout_ms" if settings.trace_export_timeout_ms == 0 => {
            Err("must be positive".into())
        }
        "metrics_export_timeout_ms" if settings.metrics_export_timeout_ms == 0 => {
            Err("must be positive".into())
        }
        _ => Ok(()),
    }
}

/// Writes the settings as TOML that can be read again; header values are masked.
pub(super) fn show(text: &mut String, observability: &Observability) {
    let mut settings = observability.settings.clone();
    for (_, value) in settings.otlp_headers.iter_mut().flatten() {
        *value = HIDDEN.to_owned();
    }
    let _ = writeln!(text, "\n[{SECTION}]");
    for (key, value) in settings.to_dict() {
        let _ = match value {
            Value::Null => writeln!(text, "# {key} is not set"),
            value => writeln!(text, "{key} = {}", toml_text::value(&value)),
        };
    }
}

/// The part of an address between the scheme and the path.
fn authority(url: &str) -> &str {
    let rest = url.split_once("//").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{super::file::parse, *};

    fn read(text: &str) -> Result<Observability, ConfigError> {
        parse("c.toml".as_ref(), text, None).map(|layer| layer.observability.unwrap())
    }

    fn fault(line: &str) -> String {
        read(&format!("[observability]\n{line}\n"))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_wrong_value_has_the_text_of_the_requirements_and_its_line() {
        assert_eq!(
            fault("log_level = \"Loud\""),
            "c.toml:2: `observability.log_level` is wrong: Invalid log_level: Loud"
        );
        assert_eq!(
            fault("log_format = \"xml\""),
            "c.toml:2: `observability.log_format` is wrong: Invalid log_format: xml"
        );
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
        assert_eq!(
            again,
            ObservabilityConfig {
                otlp_headers: again.otlp_headers.clone(),
                ..given.settings.clone()
            },
            "{shown}"
        );
        assert!(!shown.contains("not-a-real-key"), "{shown}");
        assert_eq!(
            given.secrets().collect::<Vec<_>>(),
            ["Bearer not-a-real-key", "not-a-real-key"]
        );
        assert!(given.is_given("log_level") && !given.is_given("log_format"));
    }

    #[test]
    fn a_file_is_written_only_where_it_is_asked_for() {
        let mut silent = Observability::default();
        let mut filed = read("[observability]\nlog_output = [\"stdout\", \"file\"]\n").unwrap();

        silent.set_log_file(Path::new("/data"));
        filed.set_log_file(Path::new("/data"));

        assert_eq!(
            (silent.log_file, filed.log_file),
            (None, Some("/data/callboard.log".into()))
        );
    }
}
