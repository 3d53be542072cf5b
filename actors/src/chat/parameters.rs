//! How a model is asked to answer: longest answer, effort, thinking, temperature, stop texts.
//!
//! Pure.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Most texts that may end an answer. OpenAI's API takes four.
pub(crate) const STOP_TEXTS_MAX: usize = 4;

/// Most bytes of a text that ends an answer.
pub(crate) const STOP_TEXT_BYTES_MAX: usize = 256;

/// The smallest budget of thinking, in tokens, that Anthropic's API accepts.
pub(crate) const THINKING_TOKENS_MIN: u32 = 1024;

/// What a host, a tenant or one prompt asks of the model. An absent field leaves the choice to the
/// next wider scope: prompt, tenant, host, provider.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ModelParameters {
    /// Longest answer, in tokens. The model's own maximum bounds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// How much the model reasons before it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
    /// Extended thinking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<Thinking>,
    /// How freely the model chooses its words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<Temperature>,
    /// Texts that end the answer. An empty list means none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Arc<[String]>>,
}

impl ModelParameters {
    /// These parameters, with what they leave open taken from `wider`.
    #[must_use]
    pub(crate) fn or(&self, wider: &Self) -> Self {
        Self {
            max_tokens: self.max_tokens.or(wider.max_tokens),
            effort: self.effort.or(wider.effort),
            thinking: self.thinking.or(wider.thinking),
            temperature: self.temperature.or(wider.temperature),
            stop: self.stop.clone().or_else(|| wider.stop.clone()),
        }
    }

    /// Whether everything is left open.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks what no model accepts.
    ///
    /// # Errors
    /// The first fault: its field and what is wrong.
    pub fn check(&self) -> Result<(), ParameterFault> {
        let fault = |field, problem: String| Err(ParameterFault { field, problem });
        if self.max_tokens == Some(0) {
            return fault("max_tokens", "must be at least 1".into());
        }
        if let Some(Thinking::Budget(tokens)) = self.thinking {
            if tokens < THINKING_TOKENS_MIN {
                return fault(
                    "thinking",
                    format!("a budget must be at least {THINKING_TOKENS_MIN} tokens"),
                );
            }
            if let Some(max) = self.max_tokens.filter(|max| *max <= tokens) {
                return fault(
                    "thinking",
                    format!(
                        "the budget of {tokens} tokens must be below `max_tokens`, which is {max}"
                    ),
                );
            }
        }
        let stop = self.stop.as_deref().unwrap_or_default();
        if stop.len() > STOP_TEXTS_MAX {
            return fault("stop", format!("must be at most {STOP_TEXTS_MAX} texts"));
        }
        if stop
            .iter()
            .any(|text| text.is_empty() || text.len() > STOP_TEXT_BYTES_MAX)
        {
            return fault(
                "stop",
                format!("each text must have 1 to {STOP_TEXT_BYTES_MAX} bytes"),
            );
        }
        let is_odd = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
        if stop.iter().any(|text| text.contains(is_odd)) {
            return fault(
                "stop",
                "each text must have no control characters but line ends and tabs".to_owned(),
            );
        }
        Ok(())
    }
}

/// A value of [`ModelParameters`] that no model accepts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{field}`: {problem}")]
pub struct ParameterFault {
    /// The name of the field.
    pub field: &'static str,
    /// What is wrong with its value.
    pub problem: String,
}

/// How much the model reasons before it answers, for providers that have such a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the words of the APIs")]
pub enum Effort {
    Low,
    Medium,
    High,
}

impl Effort {
    /// The word of the APIs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// Extended thinking: the model writes its thoughts before the answer. Written as `"off"`,
/// `"adaptive"` or a number of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thinking {
    /// The model writes no thoughts.
    Off,
    /// The model decides how long it thinks.
    Adaptive,
    /// The most tokens of thoughts in one answer, at least 1024.
    Budget(u32),
}

impl std::str::FromStr for Thinking {
    type Err = NotThinking;

    fn from_str(text: &str) -> Result<Self, NotThinking> {
        match text {
            "off" => Ok(Self::Off),
            "adaptive" => Ok(Self::Adaptive),
            number => number.parse().map(Self::Budget).map_err(|_| NotThinking),
        }
    }
}

/// The text is no value of [`Thinking`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be `off`, `adaptive` or a number of tokens")]
pub struct NotThinking;

impl Serialize for Thinking {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_str("off"),
            Self::Adaptive => serializer.serialize_str("adaptive"),
            Self::Budget(tokens) => serializer.serialize_u32(*tokens),
        }
    }
}

impl<'de> Deserialize<'de> for Thinking {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "`off`, `adaptive` or a number of tokens")]
        enum Form {
            Tokens(u32),
            Word(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Tokens(tokens) => Ok(Self::Budget(tokens)),
            Form::Word(word) => match word.as_str() {
                "off" => Ok(Self::Off),
                "adaptive" => Ok(Self::Adaptive),
                _ => Err(serde::de::Error::custom(NotThinking)),
            },
        }
    }
}

/// A temperature from 0 to 2, kept in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Temperature(u16);

impl TryFrom<f64> for Temperature {
    type Error = NotATemperature;

    fn try_from(value: f64) -> Result<Self, NotATemperature> {
        if (0.0..=2.0).contains(&value) {
            Ok(Self((value * 1000.0).round() as u16))
        } else {
            Err(NotATemperature)
        }
    }
}

impl From<Temperature> for f64 {
    fn from(temperature: Temperature) -> Self {
        Self::from(temperature.0) / 1000.0
    }
}

/// The number is no temperature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be a number from 0 to 2")]
pub struct NotATemperature;

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(json: &str) -> Result<ModelParameters, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn parameters_read_as_they_are_written() {
        let all = r#"{"max_tokens":2048,"effort":"high","thinking":1024,"temperature":0.25,"stop":["END"]}"#;
        for text in [
            "{}",
            all,
            r#"{"thinking":"off"}"#,
            r#"{"thinking":"adaptive"}"#,
            r#"{"temperature":2.0,"stop":[]}"#,
        ] {
            let parameters = parsed(text).unwrap();
            assert_eq!(serde_json::to_string(&parameters).unwrap(), text);
            assert_eq!(parameters.check(), Ok(()));
        }
        for bad in [
            r#"{"thinking":"on"}"#,
            r#"{"thinking":-1}"#,
            r#"{"temperature":2.1}"#,
            r#"{"temperature":-0.1}"#,
            r#"{"effort":"most"}"#,
        ] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_narrower_scope_wins_field_by_field() {
        let prompt = parsed(r#"{"effort":"low","stop":[]}"#).unwrap();
        let host = parsed(r#"{"effort":"high","max_tokens":10,"stop":["X"]}"#).unwrap();
        let both = parsed(r#"{"max_tokens":10,"effort":"low","stop":[]}"#).unwrap();
        assert_eq!(prompt.or(&host), both);
    }

    #[test]
    fn what_no_model_accepts_is_refused_with_its_field() {
        let lines = parsed(r#"{"stop":["\n\n","\r\n\t"]}"#).unwrap();
        assert_eq!(lines.check(), Ok(()));
        for (text, field) in [
            (r#"{"max_tokens":0}"#, "max_tokens"),
            (r#"{"thinking":1023}"#, "thinking"),
            (r#"{"thinking":2000,"max_tokens":2000}"#, "thinking"),
            (r#"{"stop":["a","b","c","d","e"]}"#, "stop"),
            (r#"{"stop":[""]}"#, "stop"),
            (r#"{"stop":["a\u001b[2J"]}"#, "stop"),
            (r#"{"stop":["\u0000"]}"#, "stop"),
        ] {
            assert_eq!(parsed(text).unwrap().check().unwrap_err().field, field);
        }
    }
}
