//! The settings of compaction: the `[compaction]` table of the configuration.
//!
//! Pure.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use super::CompressionMode;
use crate::policy::{ConfigValue, InvalidSettings};

/// Name of the tool that keeps notes beyond a conversation.
pub(crate) const MEMORY: &str = "memory";

/// Settings of compaction. Missing keys take the default; unknown keys are an error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompactionSettings {
    /// How old messages are made smaller. `extract` also requests summaries of long histories; the
    /// other modes are used as they are.
    pub strategy: CompressionMode,
    /// Whether a model may write summaries.
    pub enable_llm_summarization: bool,
    /// Number of messages from which a summary is worth its cost.
    #[serde(
        alias = "llm_summarization_threshold",
        deserialize_with = "llm_threshold"
    )]
    pub llm_threshold: u64,
    /// How long a summary is cached, in hours.
    #[serde(deserialize_with = "summary_cache_ttl")]
    pub summary_cache_ttl: u64,
    /// Upper bound of the cost of summaries per hour, in US dollars; spending stays below it.
    #[serde(alias = "max_compression_cost_per_hour")]
    pub max_cost_per_hour: f64,
    /// Share of the context window at which compaction begins, above 0 and at most 1.
    pub trigger: f64,
    /// Share of the limit (the window less the longest answer) that compaction aims at; below
    /// `trigger`.
    pub target: f64,
    /// Number of recent rounds that are kept in full, clamped to 3..=15. `None` computes it from
    /// recent activity, from 5 up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_rounds: Option<u32>,
    /// The model that writes summaries; `None` uses the conversation's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary_model: Option<String>,
    /// Longest summary, in tokens.
    pub max_summary_tokens: u32,
    /// Longest wait for a summary, in milliseconds.
    pub timeout_ms: u64,
    /// Whether the model gets a turn with the whole context before a round compacts it, so that it can
    /// save what it needs with the tool `memory`. Without that tool the setting has no effect.
    pub memory_flush: bool,
}

impl Default for CompactionSettings {
    fn default() -> Self {
        Self {
            strategy: CompressionMode::Extract,
            enable_llm_summarization: true,
            llm_threshold: 50,
            summary_cache_ttl: 24,
            max_cost_per_hour: 0.1,
            trigger: 0.8,
            target: 0.5,
            keep_rounds: None,
            summary_model: None,
            max_summary_tokens: 500,
            timeout_ms: 10_000,
            memory_flush: false,
        }
    }
}

impl ConfigValue for CompactionSettings {
    /// Checks the ranges that types cannot express.
    fn validate(&self) -> Result<(), InvalidSettings> {
        let fault = |text: &str| Err(InvalidSettings(text.to_owned()));
        // Written so that NaN fails each check.
        if !(self.max_cost_per_hour >= 0.0 && self.max_cost_per_hour.is_finite()) {
            return fault("max_cost_per_hour must be non-negative");
        }
        if !(self.trigger > 0.0 && self.trigger <= 1.0) {
            return fault("trigger must be above 0 and at most 1");
        }
        if !(self.target > 0.0 && self.target < self.trigger) {
            return fault("target must be above 0 and below trigger");
        }
        if self.max_summary_tokens == 0 {
            return fault("max_summary_tokens must be positive");
        }
        Ok(())
    }
}

impl CompactionSettings {
    /// How long a summary is cached.
    pub(crate) fn summary_ttl(&self) -> Duration {
        Duration::from_secs(self.summary_cache_ttl.saturating_mul(3600))
    }

    /// How long a caller waits for a summary.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    /// The hourly cap, in millionths of a US dollar.
    pub(crate) fn cap_micro_usd(&self) -> u64 {
        // `as` saturates: too large a float becomes the largest integer, and NaN becomes 0.
        (self.max_cost_per_hour * 1e6).round() as u64
    }
}

fn llm_threshold<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    non_negative(deserializer, "llm_threshold must be non-negative")
}

fn summary_cache_ttl<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    non_negative(deserializer, "summary_cache_ttl must be non-negative")
}

fn non_negative<'de, D: Deserializer<'de>>(
    deserializer: D,
    fault: &'static str,
) -> Result<u64, D::Error> {
    u64::try_from(i64::deserialize(deserializer)?).map_err(|_| serde::de::Error::custom(fault))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::policy::Dict;

    /// Reads settings and validates them.
    fn read(dict: &serde_json::Value) -> Result<CompactionSettings, InvalidSettings> {
        let dict: Dict = serde_json::from_value(dict.clone())
            .map_err(|error| InvalidSettings(error.to_string()))?;
        let settings = CompactionSettings::from_dict(&dict)?;
        settings.validate()?;
        Ok(settings)
    }

    #[test]
    fn defaults_are_those_of_the_contract_and_absent_keys_take_them() {
        let settings = read(&json!({})).unwrap();

        assert_eq!(settings, CompactionSettings::default());
        assert_eq!(
            serde_json::Value::Object(settings.to_dict()),
            json!({
                "strategy": "extract", "enable_llm_summarization": true, "llm_threshold": 50, "summary_cache_ttl": 24,
                "max_cost_per_hour": 0.1, "trigger": 0.8, "target": 0.5, "max_summary_tokens": 500, "timeout_ms": 10_000, "memory_flush": false,
            })
        );
        assert_eq!(settings.summary_ttl(), Duration::from_secs(24 * 3600));
        assert_eq!(settings.timeout(), Duration::from_secs(10));
        assert_eq!(settings.cap_micro_usd(), 100_000);
    }

    #[test]
    fn settings_survive_the_round_trip_and_their_dictionary_stays() {
        let settings = CompactionSettings {
            strategy: CompressionMode::Summarize,
            enable_llm_summarization: false,
            llm_threshold: 0,
            summary_cache_ttl: 1,
            max_cost_per_hour: 2.5,
            trigger: 0.9,
            target: 0.25,
            keep_rounds: Some(7),
            summary_model: Some("small".into()),
            max_summary_tokens: 9,
            timeout_ms: 1,
            memory_flush: true,
        };
        let dict = settings.to_dict();
        let before = dict.clone();

        assert_eq!(CompactionSettings::from_dict(&dict), Ok(settings));
        assert_eq!(dict, before);
    }

    #[test]
    fn the_names_of_the_constructor_are_aliases() {
        let dict = json!({"llm_summarization_threshold": 7, "max_compression_cost_per_hour": 0.5});

        let settings = read(&dict).unwrap();

        assert_eq!(
            (settings.llm_threshold, settings.max_cost_per_hour),
            (7, 0.5)
        );
    }

    #[test]
    fn wrong_settings_are_refused_by_name() {
        for (dict, fault) in [
            (
                json!({"llm_threshold": -1}),
                "llm_threshold must be non-negative",
            ),
            (
                json!({"summary_cache_ttl": -1}),
                "summary_cache_ttl must be non-negative",
            ),
            (
                json!({"max_cost_per_hour": -0.1}),
                "max_cost_per_hour must be non-negative",
            ),
            (
                json!({"trigger": 0.0}),
                "trigger must be above 0 and at most 1",
            ),
            (
                json!({"trigger": 1.5}),
                "trigger must be above 0 and at most 1",
            ),
            (
                json!({"target": 0.8}),
                "target must be above 0 and below trigger",
            ),
            (
                json!({"max_summary_tokens": 0}),
                "max_summary_tokens must be positive",
            ),
        ] {
            assert_eq!(read(&dict).unwrap_err().to_string(), fault, "{dict}");
        }
        for dict in [
            json!({"strategy": "EXTRACT"}),
            json!({"strategy": "zip"}),
            json!({"llm_treshold": 5}),
            json!([1]),
        ] {
            assert!(read(&dict).is_err(), "{dict}");
        }
        for nan in [
            CompactionSettings {
                max_cost_per_hour: f64::NAN,
                ..CompactionSettings::default()
            },
            CompactionSettings {
                max_cost_per_hour: f64::INFINITY,
                ..CompactionSettings::default()
            },
            CompactionSettings {
                trigger: f64::NAN,
                ..CompactionSettings::default()
            },
            CompactionSettings {
                target: f64::NAN,
                ..CompactionSettings::default()
            },
        ] {
            assert!(nan.validate().is_err(), "{nan:?}");
        }
    }
}
