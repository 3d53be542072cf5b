//! Configuration of token counting for a model: encoding, safety margin, and whether the provider's
//! API is asked.
//!
//! Pure.

use serde::{Deserialize, Serialize};

use super::ModelFamily;
use crate::policy::{ConfigValue, InvalidSettings};

/// The encoding of models without a configuration.
pub(crate) const DEFAULT_ENCODING: &str = "cl100k_base";

/// Largest allowed margin; a larger one is most likely a typing error.
const MARGIN_MAX: f64 = 100.0;

/// How the tokens of a model are counted. Missing keys take the defaults; unknown keys are an
/// error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EncoderConfig {
    /// The family of the model; decides which provider's API counts exactly.
    pub model_family: ModelFamily,
    /// Name of the encoding, such as `o200k_base`. An unknown name is logged as a warning and
    /// replaced by `cl100k_base`.
    pub encoding_name: String,
    /// Factor applied to a count, at least 1. It makes up for encodings that are not the model's
    /// own.
    pub safety_margin: f64,
    /// Whether the family's API is asked for exact counts, if a client is configured.
    pub use_exact_counting: bool,
    /// The only provider that is asked, such as `anthropic`, the word for its kind. `None` for every
    /// provider that counts.
    pub exact_counting_api: Option<String>,
}

impl Default for EncoderConfig {
    fn default() -> Self {
        Self {
            model_family: ModelFamily::Custom,
            encoding_name: DEFAULT_ENCODING.to_owned(),
            safety_margin: 1.0,
            use_exact_counting: false,
            exact_counting_api: None,
        }
    }
}

impl EncoderConfig {
    /// A configuration with the given family, encoding and margin, and defaults otherwise.
    pub fn new(
        model_family: ModelFamily,
        encoding_name: impl Into<String>,
        safety_margin: f64,
    ) -> Self {
        Self {
            model_family,
            encoding_name: encoding_name.into(),
            safety_margin,
            ..Self::default()
        }
    }
}

impl ConfigValue for EncoderConfig {
    /// Refuses a margin outside 1 to 100, and an empty name of the encoding.
    fn validate(&self) -> Result<(), InvalidSettings> {
        let fault = |text: &str| Err(InvalidSettings(text.to_owned()));
        if self.safety_margin.is_nan() || self.safety_margin < 1.0 {
            // It would report fewer tokens than were counted.
            return fault("safety_margin must be >= 1.0");
        }
        if self.safety_margin > MARGIN_MAX {
            return fault(&format!("safety_margin must be <= {MARGIN_MAX:?}"));
        }
        if self.encoding_name.trim().is_empty() {
            return fault("encoding_name must not be empty");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::policy::Dict;

    fn dict(fields: serde_json::Value) -> Dict {
        serde_json::from_value(fields).unwrap()
    }

    /// A seeded generator, so that a failure can be replayed.
    struct Random(u64);

    impl Random {
        fn below(&mut self, max: u64) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % max
        }
    }

    #[test]
    fn what_was_written_reads_as_the_same() {
        let mut random = Random(7);
        for case in 0..2_000 {
            let config = EncoderConfig {
                model_family: ModelFamily::ALL[random.below(9) as usize],
                encoding_name: ["cl100k_base", "o200k_base", "中文", "\"", ""]
                    [random.below(5) as usize]
                    .to_owned(),
                safety_margin: (1_000 + random.below(99_000)) as f64 / 1_000.0,
                use_exact_counting: random.below(2) == 0,
                exact_counting_api: (random.below(2) == 0).then(|| "anthropic".to_owned()),
            };

            let dict = config.to_dict();
            let text = serde_json::to_string(&dict).unwrap();

            assert_eq!(
                EncoderConfig::from_dict(&dict).unwrap(),
                config,
                "case {case}"
            );
            assert_eq!(
                dict,
                config.to_dict(),
                "case {case}: reading altered its argument"
            );
            assert_eq!(
                serde_json::from_str::<EncoderConfig>(&text).unwrap(),
                config,
                "case {case}"
            );
        }
    }

    #[test]
    fn absent_keys_take_the_defaults() {
        let config =
            EncoderConfig::from_dict(&dict(json!({ "encoding_name": "o200k_base" }))).unwrap();

        assert_eq!(
            config,
            EncoderConfig {
                encoding_name: "o200k_base".into(),
                ..EncoderConfig::default()
            }
        );
        assert_eq!(
            EncoderConfig::default().to_dict(),
            dict(json!({
                "model_family": "custom", "encoding_name": "cl100k_base", "safety_margin": 1.0,
                "use_exact_counting": false, "exact_counting_api": null,
            }))
        );
    }

    #[test]
    fn an_unknown_family_and_an_unknown_key_are_errors_that_name_them() {
        for (fields, word) in [
            (json!({ "model_family": "mistal" }), "mistal"),
            (json!({ "margin": 1.0 }), "margin"),
            (json!({ "safety_margin": "1.2" }), "1.2"),
        ] {
            let read = EncoderConfig::from_dict(&dict(fields));
            let error = read.unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_margin_below_one_is_refused_in_the_specified_words() {
        for margin in [0.99, 0.0, -1.0, f64::NAN, f64::NEG_INFINITY] {
            let error = EncoderConfig::new(ModelFamily::Gpt, "cl100k_base", margin)
                .validate()
                .unwrap_err();
            assert_eq!(error.to_string(), "safety_margin must be >= 1.0");
        }
        assert!(
            EncoderConfig::new(ModelFamily::Gpt, "cl100k_base", 1.0)
                .validate()
                .is_ok()
        );
        assert!(
            EncoderConfig::new(ModelFamily::Gpt, "cl100k_base", f64::INFINITY)
                .validate()
                .is_err()
        );
        assert!(
            EncoderConfig::new(ModelFamily::Gpt, " ", 1.0)
                .validate()
                .is_err()
        );
    }
}
