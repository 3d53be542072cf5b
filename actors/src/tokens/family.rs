//! Families of models, by vendor: models of a family share an encoding and a margin.
//!
//! Pure.

use serde::{Deserialize, Serialize};

/// The vendor family of a model. Serialized as its lower-case name; an unknown name is an error.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum ModelFamily {
    /// Anthropic.
    Claude,
    /// OpenAI.
    Gpt,
    /// Google.
    Gemini,
    /// Zhipu.
    Glm,
    /// Alibaba.
    Qwen,
    /// Meta.
    Llama,
    /// Mistral AI.
    Mistral,
    /// DeepSeek.
    DeepSeek,
    /// A model of any other vendor.
    #[default]
    Custom,
}

/// Words that identify a family. They match anywhere in a model name, since vendors and routers add
/// prefixes.
const WORDS: &[(&str, ModelFamily)] = &[
    ("claude", ModelFamily::Claude),
    ("gpt", ModelFamily::Gpt),
    ("gemini", ModelFamily::Gemini),
    ("glm", ModelFamily::Glm),
    ("qwen", ModelFamily::Qwen),
    ("qwq", ModelFamily::Qwen),
    ("llama", ModelFamily::Llama),
    ("mistral", ModelFamily::Mistral),
    ("mixtral", ModelFamily::Mistral),
    ("ministral", ModelFamily::Mistral),
    ("codestral", ModelFamily::Mistral),
    ("devstral", ModelFamily::Mistral),
    ("magistral", ModelFamily::Mistral),
    ("pixtral", ModelFamily::Mistral),
    ("deepseek", ModelFamily::DeepSeek),
];

/// OpenAI model names without such a word: `o1`, `o3-mini`.
const GPT_SERIES: &[&str] = &["o1", "o3", "o4"];

impl ModelFamily {
    /// All families.
    pub const ALL: &'static [Self] = &[
        Self::Claude,
        Self::Gpt,
        Self::Gemini,
        Self::Glm,
        Self::Qwen,
        Self::Llama,
        Self::Mistral,
        Self::DeepSeek,
        Self::Custom,
    ];

    /// The family that a model name indicates, in any case. If the name contains several words, the
    /// first one wins (`deepseek-r1-distill-llama-70b`).
    ///
    /// ```
    /// use callboard_actors::tokens::ModelFamily;
    ///
    /// assert_eq!(ModelFamily::from_model("Claude-Opus-4"), ModelFamily::Claude);
    /// assert_eq!(ModelFamily::from_model("house-model"), ModelFamily::Custom);
    /// ```
    pub fn from_model(model: &str) -> Self {
        let name = model.to_lowercase();
        let found = WORDS
            .iter()
            .filter_map(|(word, family)| Some((name.find(word)?, *family)))
            .min_by_key(|(at, _)| *at);
        let bare = name
            .rsplit_once('/')
            .map_or(name.as_str(), |(_, bare)| bare);
        let is_series = |series: &&str| {
            bare.strip_prefix(*series)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        match found {
            Some((_, family)) => family,
            None if GPT_SERIES.iter().any(is_series) => Self::Gpt,
            None => Self::Custom,
        }
    }

    /// The name of the family in configuration files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Gpt => "gpt",
            Self::Gemini => "gemini",
            Self::Glm => "glm",
            Self::Qwen => "qwen",
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::DeepSeek => "deepseek",
            Self::Custom => "custom",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_found_by_its_word_and_not_by_a_version() {
        for (model, family) in [
            ("claude-3-sonnet", "claude"),
            ("claude-2.1", "claude"),
            ("claude-opus-4", "claude"),
            ("us.anthropic.Claude-sonnet-4-5-v1:0", "claude"),
            ("gpt-4", "gpt"),
            ("gpt-35-turbo", "gpt"),
            ("GPT-3.5-turbo", "gpt"),
            ("chatgpt-4o-latest", "gpt"),
            ("o1", "gpt"),
            ("openai/o3-mini", "gpt"),
            ("gemini-1.5-pro", "gemini"),
            ("glm-4-plus", "glm"),
            ("qwen-2.5-72b", "qwen"),
            ("qwen2.5-coder", "qwen"),
            ("meta-llama/llama-3.1-8b", "llama"),
            ("mistral-small", "mistral"),
            ("mixtral-8x7b", "mistral"),
            ("deepseek-chat", "deepseek"),
            ("deepseek-r1-distill-llama-70b", "deepseek"),
            ("o10", "custom"),
            ("house-model", "custom"),
            ("", "custom"),
        ] {
            assert_eq!(ModelFamily::from_model(model).as_str(), family, "{model}");
        }
    }

    #[test]
    fn a_family_is_written_as_its_word_and_an_unknown_word_is_refused() {
        let words: Vec<&str> = ModelFamily::ALL.iter().map(|one| one.as_str()).collect();
        assert_eq!(
            words.join(" "),
            "claude gpt gemini glm qwen llama mistral deepseek custom"
        );
        for family in ModelFamily::ALL {
            let word = format!("{:?}", family.as_str());

            assert_eq!(serde_json::to_string(family).unwrap(), word);
            assert_eq!(serde_json::from_str::<ModelFamily>(&word).unwrap(), *family);
        }
        assert!(
            serde_json::from_str::<ModelFamily>(r#""mistal""#)
                .unwrap_err()
                .to_string()
                .contains("mistal")
        );
    }
}
