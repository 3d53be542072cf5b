//! The interface that all settings types share, and the settings of traces, metrics and logs.
//!
//! Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The fields of a settings value as JSON.
pub type Dict = serde_json::Map<String, serde_json::Value>;

/// Why settings are invalid: one sentence that names the fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSettings(pub String);

/// The interface that all settings types share. `from_dict(to_dict(x))` equals `x`, and the
/// argument is never modified. Keys are the field names; an unknown key is an error, a missing one
/// takes its default.
pub trait ConfigValue: Serialize + DeserializeOwned {
    /// Checks the values.
    ///
    /// # Errors
    /// [`InvalidSettings`] with a message that names the field.
    fn validate(&self) -> Result<(), InvalidSettings>;

    /// The fields by name.
    fn to_dict(&self) -> Dict {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::Object(dict)) => dict,
            Ok(_) | Err(_) => Dict::new(), // Settings are structs of plain fields.
        }
    }

    /// Reads fields by name. Does not validate.
    ///
    /// # Errors
    /// [`InvalidSettings`] for an unknown key or a value of the wrong type.
    fn from_dict(dict: &Dict) -> Result<Self, InvalidSettings> {
        serde_json::from_value(serde_json::Value::Object(dict.clone()))
            .map_err(|error| InvalidSettings(error.to_string()))
    }
}

/// What share of traces is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are the rates")]
pub enum TraceSampling {
    Always,
    High,
    #[default]
    Medium,
    Low,
    Never,
}

impl TraceSampling {
    /// The share of traces that is kept, from 0.0 to 1.0.
    pub(crate) fn rate(self) -> f64 {
        match self {
            Self::Always => 1.0,
            Self::High => 0.5,
            Self::Medium => 0.1,
            Self::Low => 0.01,
            Self::Never => 0.0,
        }
    }

    /// Whether a trace is kept: whether a draw from `0.0..1.0` is below the rate. At `Always` and
    /// `Never` no draw is made, so a draw of 0.0 keeps nothing at rate 0.
    pub(crate) fn samples(self, draw: impl FnOnce() -> f64) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::High | Self::Medium | Self::Low => draw() < self.rate(),
        }
    }
}

/// What is observed, and where it is exported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct ObservabilityConfig {
    pub enable_tracing: bool,
    pub enable_metrics: bool,
    pub enable_logging: bool,
    pub trace_sampling: TraceSampling,
    pub trace_export_timeout_ms: u64,
    pub trace_batch_size: u64,
    /// Signed, so that a negative value gets a message that names it, not a parse error.
    pub metrics_export_interval_s: i64,
    pub metrics_export_timeout_ms: u64,
    pub log_level: String,
    pub log_format: String,
    pub log_output: Vec<String>,
    pub otlp_endpoint: Option<String>,
    pub otlp_headers: Option<BTreeMap<String, String>>,
    pub otlp_compression: String,
    /// The default is `callboard`.
    pub service_name: String,
    pub environment: String,
    pub extra_tags: BTreeMap<String, String>,
}

impl Default for ObservabilityConfig {
    fn default() -> Self {
        Self {
            enable_tracing: true,
            enable_metrics: true,
            enable_logging: true,
            trace_sampling: TraceSampling::Medium,
            trace_export_timeout_ms: 5000,
            trace_batch_size: 100,
            metrics_export_interval_s: 60,
            metrics_export_timeout_ms: 3000,
            log_level: "INFO".into(),
            log_format: "json".into(),
            log_output: vec!["stdout".into(), "file".into()],
            otlp_endpoint: None,
            otlp_headers: None,
            otlp_compression: "gzip".into(),
            service_name: "callboard".into(),
            environment: "production".into(),
            extra_tags: BTreeMap::new(),
        }
    }
}

impl ConfigValue for ObservabilityConfig {
    fn validate(&self) -> Result<(), InvalidSettings> {
        if !["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
            .contains(&self.log_level.to_uppercase().as_str())
        {
            return Err(InvalidSettings(format!(
                "Invalid log_level: {}",
                self.log_level
            )));
        }
        if !["json", "text"].contains(&self.log_format.as_str()) {
            return Err(InvalidSettings(format!(
                "Invalid log_format: {}",
                self.log_format
            )));
        }
        if self.metrics_export_interval_s <= 0 {
            return Err(InvalidSettings(
                "metrics_export_interval_s must be positive".into(),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(change: impl FnOnce(&mut ObservabilityConfig)) -> String {
        let mut settings = ObservabilityConfig::default();
        change(&mut settings);
        settings
            .validate()
            .map_or_else(|error| error.to_string(), |()| "well".into())
    }

    #[test]
    fn each_fault_has_its_own_message() {
        assert_eq!(fault(|_| {}), "well");
        assert_eq!(
            fault(|settings| settings.log_level = "warning".into()),
            "well",
            "any case"
        );
        for word in ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] {
            assert_eq!(fault(|settings| settings.log_level = word.into()), "well");
        }
        assert_eq!(
            fault(|settings| settings.log_level = "Loud".into()),
            "Invalid log_level: Loud"
        );
        assert_eq!(
            fault(|settings| settings.log_format = "JSON".into()),
            "Invalid log_format: JSON"
        );
        assert_eq!(
            fault(|settings| settings.metrics_export_interval_s = 0),
            "metrics_export_interval_s must be positive"
        );
        assert_eq!(
            fault(|settings| settings.metrics_export_interval_s = -1),
            "metrics_export_interval_s must be positive"
        );
    }

    #[test]
    fn defaults_are_those_of_the_contract() {
        let settings = ObservabilityConfig::default();

        assert_eq!(
            (
                settings.enable_tracing,
                settings.enable_metrics,
                settings.enable_logging,
                settings.trace_sampling,
            ),
            (true, true, true, TraceSampling::Medium)
        );
        assert_eq!(
            (
                settings.trace_export_timeout_ms,
                settings.trace_batch_size,
                settings.metrics_export_interval_s,
                settings.metrics_export_timeout_ms,
            ),
            (5000, 100, 60, 3000)
        );
        assert_eq!(
            (settings.log_level.as_str(), settings.log_format.as_str()),
            ("INFO", "json")
        );
        assert_eq!(settings.log_output, ["stdout", "file"]);
    }

    #[test]
    fn settings_survive_their_dict_and_the_dict_survives_too() {
        let settings = ObservabilityConfig {
            trace_sampling: TraceSampling::Low,
            otlp_headers: Some([("a".to_owned(), "b".to_owned())].into()),
            ..ObservabilityConfig::default()
        };
        let dict = settings.to_dict();
        let before = dict.clone();

        let read = ObservabilityConfig::from_dict(&dict);

        assert_eq!(
            (read, dict),
            (Ok(settings), before),
            "reading changes neither"
        );
        assert_eq!(
            ObservabilityConfig::from_dict(&Dict::new()),
            Ok(ObservabilityConfig::default())
        );
        let wrong = Dict::from_iter([("log_levle".to_owned(), "INFO".into())]);
        assert!(
            ObservabilityConfig::from_dict(&wrong)
                .unwrap_err()
                .to_string()
                .contains("log_levle")
        );
    }

    #[test]
    fn never_keeps_nothing_and_always_everything_at_the_ends_of_a_draw() {
        let highest = 1.0 - f64::EPSILON;

        assert!(!TraceSampling::Never.samples(|| 0.0) && TraceSampling::Always.samples(|| highest));
        assert!(TraceSampling::Medium.samples(|| 0.0) && TraceSampling::Medium.samples(|| 0.099));
        assert!(!TraceSampling::Medium.samples(|| 0.1) && !TraceSampling::High.samples(|| 0.5));
    }

    #[test]
    fn sampling_has_the_rates_of_the_table() {
        use TraceSampling::{Always, High, Low, Medium, Never};

        assert_eq!(
            [Always, High, Medium, Low, Never].map(TraceSampling::rate),
            [1.0, 0.5, 0.1, 0.01, 0.0]
        );
    }
}
