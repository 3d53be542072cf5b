//! `[tokens]`, and the YAML file of encoders: how the tokens of each model are counted.
//!
//! A mistake in `callboard.toml` is an error with its line. The YAML file is shared with other
//! programs: a mistake in it is only logged as a warning, and its other entries apply.

use std::{
    collections::BTreeMap,
    io::Read as _,
    path::{Path, PathBuf},
};

use callboard_actors::{
    policy::ConfigValue as _,
    tokens::{EncoderConfig, EncoderRegistry, ModelFamily},
};
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use toml::de::DeValue;

use super::{
    error::{ConfigError, quoted},
    section::Section,
    toml_text,
    value::describe,
};

/// The section's name.
pub(super) const SECTION: &str = "tokens";

/// Name of the table of encoders in the section.
pub(super) const ENCODERS: &str = "encoders";

/// Maximum size of the YAML file in bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Maximum nesting of the YAML file. Parameters of an entry may nest a little.
const YAML_DEPTH_MAX: usize = 32;

/// Maximum number of YAML parser events (entries, words). A file of 1,000 models needs about
/// 10,000.
const YAML_EVENTS_MAX: usize = 100_000;

/// The keys of an encoder, in the order in which `show` prints them.
const KEYS: &[&str] = &[
    "model_family",
    "encoding_name",
    "safety_margin",
    "use_exact_counting",
    "exact_counting_api",
];

/// A key of other programs' encoders, which the YAML file may have. The encodings here take no
/// parameters.
const FOREIGN: &str = "encoder_params";

/// How tokens are counted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TokensConfig {
    /// The YAML file of encoders; `None` means the first existing one of the default locations.
    pub file: Option<PathBuf>,
    /// Encoders of `[tokens.encoders]`, by model name or pattern.
    pub encoders: BTreeMap<String, EncoderConfig>,
    /// Default locations of the YAML file.
    pub(super) places: Vec<PathBuf>,
}

impl TokensConfig {
    /// Builds the registry for [`callboard_actors::tokens::TokenCounter`]: built-in models,
    /// overridden by the YAML file, overridden by `callboard.toml`. Reads the file now. Mistakes in
    /// the file are logged as warnings.
    pub fn registry(&self) -> EncoderRegistry {
        let registry = EncoderRegistry::default();
        let (entries, problems) = match self.find() {
            Some(path) => read(&path),
            None => Default::default(),
        };
        problems
            .iter()
            .for_each(|problem| tracing::warn!("{problem}"));
        for (pattern, config) in entries.into_iter().chain(self.encoders.clone()) {
            registry.register_encoder_config(&pattern, config);
        }
        registry
    }

    fn find(&self) -> Option<PathBuf> {
        self.file
            .clone()
            .or_else(|| self.places.iter().find(|place| place.is_file()).cloned())
    }
}

/// Default locations of the YAML file.
pub(super) fn default_places(config_home: Option<PathBuf>, home: Option<&Path>) -> Vec<PathBuf> {
    let folder = config_home.or_else(|| home.map(|home| home.join(".config")));
    let own = folder.map(|folder| folder.join("callboard/token_encoders.yaml"));
    ["config/token_encoders.yaml", "config/token_encoders.yml"]
        .iter()
        .map(PathBuf::from)
        .chain(own)
        .collect()
}

#[derive(Default, Deserialize)]
struct File {
    #[serde(default)]
    encoders: Option<BTreeMap<String, Json>>,
}

/// Reads a YAML file. Returns the valid entries, and one line for each problem.
fn read(path: &Path) -> (Vec<(String, EncoderConfig)>, Vec<String>) {
    let problem = |what: String| {
        format!(
            "Failed to load encoder config from {}: {}",
            path.display(),
            quoted_line(&what)
        )
    };
    let mut text = String::new();
    match crate::named_file::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text))
    {
        Ok(_) if text.len() as u64 > FILE_BYTES_MAX => {
            return (Vec::new(), vec![problem("it is longer than 1 MiB".into())]);
        }
        Ok(_) => {}
        Err(error) => return (Vec::new(), vec![problem(error.to_string())]),
    }
    let file = match parse(&text) {
        Ok(file) => file,
        Err(what) => return (Vec::new(), vec![problem(what)]),
    };
    let mut entries = Vec::new();
    let mut problems = Vec::new();
    for (pattern, mut fields) in file.encoders.unwrap_or_default() {
        if let Json::Object(fields) = &mut fields {
            fields.remove(FOREIGN);
        }
        match entry(&pattern, fields) {
            Ok(config) => entries.push((pattern, config)),
            Err(what) => problems.push(problem(format!("`{pattern}`: {what}"))),
        }
    }
    (entries, problems)
}

/// Parses YAML (JSON is a subset). Depth, events and aliases are bounded, because aliases can
/// expand a small file enormously.
fn parse(text: &str) -> Result<File, String> {
    let budget = serde_saphyr::budget! {
        max_depth: YAML_DEPTH_MAX,
        max_events: YAML_EVENTS_MAX,
        max_nodes: YAML_EVENTS_MAX,
        max_aliases: 1_000,
        max_anchors: 1_000,
    };
    let options = serde_saphyr::options! { budget: budget, with_snippet: false };
    let file: Result<Option<File>, _> = serde_saphyr::from_str_with_options(text, options);
    file.map(Option::unwrap_or_default)
        .map_err(|error| error.to_string())
}

/// Parses one encoder. Without `model_family`, the family is derived from the name.
fn entry(pattern: &str, fields: Json) -> Result<EncoderConfig, String> {
    let mut fields = match fields {
        Json::Null => Map::new(),
        Json::Object(fields) => fields,
        _ => return Err("must be a map of keys and values".into()),
    };
    fields
        .entry("model_family")
        .or_insert_with(|| ModelFamily::from_model(pattern).as_str().into());
    let config = EncoderConfig::from_dict(&fields).map_err(|error| error.to_string())?;
    config.validate().map_err(|error| error.to_string())?;
    Ok(config)
}

/// Joins the text of a foreign error into one line.
fn quoted_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Reads `[tokens.encoders]` of the section `[tokens]`.
pub(super) fn encoders(
    section: &Section<'_, '_>,
) -> Result<BTreeMap<String, EncoderConfig>, ConfigError> {
    let mut encoders = BTreeMap::new();
    let Some(tables) = section
        .entries()
        .into_iter()
        .find(|entry| entry.name == ENCODERS)
    else {
        return Ok(encoders);
    };
    let DeValue::Table(table) = tables.value() else {
        let wanted = "`tokens.encoders` must be sections such as `[tokens.encoders.\"house-*\"]`";
        return Err(section.inconsistent(format!("{wanted}, not {}", describe(tables.value()))));
    };
    for given in section.file.entries(table) {
        let wrong = |problem| ConfigError::BadValue {
            at: given.at.clone(),
            key: format!("tokens.encoders.{}", quoted(given.name)),
            problem,
        };
        let DeValue::Table(table) = given.value() else {
            return Err(wrong(format!(
                "must be a section, not {}",
                describe(given.value())
            )));
        };
        let fields = Section {
            file: section.file,
            name: "tokens.encoders",
            at: given.at.clone(),
            table,
        };
        fields
            .entries()
            .iter()
            .try_for_each(|field| fields.refuse_unknown(field, KEYS))?;
        let config = entry(given.name, Json::Object(fields.json()))
            .map_err(|what| wrong(format!("is wrong: {}", quoted_line(&what))))?;
        encoders.insert(given.name.to_owned(), config);
    }
    Ok(encoders)
}

/// Writes the encoders as TOML that can be read again.
pub(super) fn show(text: &mut String, encoders: &BTreeMap<String, EncoderConfig>) {
    for (pattern, config) in encoders {
        let header = format!("[tokens.encoders.{}]", toml_text::in_quotes(pattern));
        let fields = config.to_dict();
        toml_text::section(text, &header, KEYS, &fields);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Config, *};

    fn load(file: &Path) -> Result<Config, String> {
        Config::load(
            Some(file),
            [("HOME".to_owned(), "/h".to_owned())].into_iter(),
        )
        .map_err(|error| error.to_string())
    }

    fn yaml(text: &str) -> (Vec<(String, EncoderConfig)>, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token_encoders.yaml");
        std::fs::write(&file, text).unwrap();
        let (entries, problems) = read(&file);
        (
            entries,
            problems
                .iter()
                .map(|problem| problem.replace(&file.display().to_string(), "FILE"))
                .collect(),
        )
    }

    #[test]
    fn a_bad_entry_is_warned_of_and_does_not_hinder_the_others() {
        let (entries, problems) = yaml(
            "encoders:\n  house-*:\n    encoding_name: o200k_base\n    safety_margin: 1.1\n  mistral-*: {model_family: mistal}\n  \
             small: {safety_margin: 0.5}\n  typo: {margin: 1.0}\n  list: [1]\n  gpt-9:\n",
        );

        let good: Vec<_> = entries
            .iter()
            .map(|(name, it)| (name.as_str(), it.model_family.as_str(), it.safety_margin))
            .collect();
        assert_eq!(good, [("gpt-9", "gpt", 1.0), ("house-*", "custom", 1.1)]);
        assert_eq!(
            problems,
            [
                "Failed to load encoder config from FILE: `list`: must be a map of keys and values",
                "Failed to load encoder config from FILE: `mistral-*`: unknown variant `mistal`, expected one of `claude`, `gpt`, `gemini`, `glm`, `qwen`, `llama`, `mistral`, `deepseek`, `custom`",
                "Failed to load encoder config from FILE: `small`: safety_margin must be >= 1.0",
                "Failed to load encoder config from FILE: `typo`: unknown field `margin`, expected one of `model_family`, `encoding_name`, `safety_margin`, `use_exact_counting`, `exact_counting_api`",
            ]
        );
    }

    #[test]
    fn a_file_in_json_is_read_and_an_empty_one_says_nothing() {
        let (entries, problems) = yaml(
            r#"{"encoders": {"a": {"safety_margin": 2, "encoder_params": {"x": [1, null]}}}}"#,
        );

        assert_eq!((entries.len(), problems), (1, Vec::new()));
        assert_eq!(entries[0].1.safety_margin, 2.0);
        for text in ["", "# nothing\n", "encoders:\n", "{}"] {
            assert_eq!(yaml(text), (Vec::new(), Vec::new()), "{text:?}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_one_warning_of_one_line() {
        let bomb = (0..12).fold("x: &x0 [a,a,a,a,a,a,a,a]\n".to_owned(), |text, n| {
            format!(
                "{text}y{n}: &x{} [{}]\n",
                n + 1,
                vec![format!("*x{n}"); 8].join(",")
            )
        });
        for text in [
            "encoders: [",
            "encoders: 7\n",
            "- a\n",
            &bomb,
            &"[".repeat(10_000),
            &"a".repeat(2_000_000),
        ] {
            let (entries, problems) = yaml(text);

            assert_eq!((entries.len(), problems.len()), (0, 1), "{:.40}", text);
            assert!(
                problems[0].starts_with("Failed to load encoder config from FILE: ")
                    && !problems[0].contains('\n'),
                "{problems:?}"
            );
        }
        let gone = TokensConfig {
            file: Some("/nowhere/token_encoders.yaml".into()),
            ..TokensConfig::default()
        };
        assert_eq!(
            gone.registry().encoder_config("claude-x").safety_margin,
            1.15
        );
    }

    #[test]
    fn the_first_file_that_is_there_is_read_and_the_toml_wins() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        std::fs::write(
            place("b.yml"),
            "encoders: {one: {safety_margin: 2.0}, two: {safety_margin: 2.0}}",
        )
        .unwrap();
        std::fs::write(place("c.yaml"), "encoders: {one: {safety_margin: 3.0}}").unwrap();
        let two = EncoderConfig::new(ModelFamily::Custom, "cl100k_base", 4.0);
        let places = vec![place("a.yaml"), place("b.yml"), place("c.yaml")];
        let config = TokensConfig {
            file: None,
            encoders: BTreeMap::from([("two".to_owned(), two)]),
            places,
        };

        let registry = config.registry();

        assert_eq!(
            (
                registry.encoder_config("one").safety_margin,
                registry.encoder_config("two").safety_margin
            ),
            (2.0, 4.0)
        );
        let named = TokensConfig {
            file: Some(place("c.yaml")),
            ..config
        };
        assert_eq!(named.registry().encoder_config("one").safety_margin, 3.0);
        let usual = default_places(None, Some(Path::new("/h")));
        assert_eq!(
            usual,
            [
                "config/token_encoders.yaml",
                "config/token_encoders.yml",
                "/h/.config/callboard/token_encoders.yaml"
            ]
            .map(PathBuf::from)
        );
    }

    #[test]
    fn encoders_of_the_toml_are_read_shown_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("callboard.toml");
        std::fs::write(
            &file,
            "[tokens]\nfile = \"my.yaml\"\n[tokens.encoders.\"house-*\"]\nencoding_name = \"o200k_base\"\nsafety_margin = 1.1\nuse_exact_counting = true\n\
             exact_counting_api = \"anthropic\"\n[tokens.encoders.gpt-9]\n",
        )
        .unwrap();

        let first = load(&file).unwrap();
        std::fs::write(&file, first.show()).unwrap();
        let again = load(&file).unwrap();

        assert_eq!(first.tokens.file, Some(folder.path().join("my.yaml")));
        assert_eq!(
            first.tokens.encoders["gpt-9"].model_family,
            ModelFamily::Gpt
        );
        assert_eq!(
            (first.tokens.encoders.len(), &again.tokens),
            (2, &first.tokens)
        );
    }

    #[test]
    fn a_mistake_in_the_toml_names_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("callboard.toml");
        for (text, expected) in [
            (
                "[tokens]\nfiel = \"x\"\n",
                "2: unknown key in [tokens] `fiel`; did you mean `file`?",
            ),
            (
                "[tokens]\nencoders = 7\n",
                "1: `tokens.encoders` must be sections such as `[tokens.encoders.\"house-*\"]`, not a whole number",
            ),
            (
                "[tokens.encoders.x]\n\nsafety_magin = 1.5\n",
                "3: unknown key in [tokens.encoders] `safety_magin`; did you mean `safety_margin`?",
            ),
            (
                "[tokens.encoders.x]\nsafety_margin = 0.5\n",
                "1: `tokens.encoders.x` is wrong: safety_margin must be >= 1.0",
            ),
            (
                "[tokens.encoders]\nx = 1\n",
                "2: `tokens.encoders.x` must be a section, not a whole number",
            ),
        ] {
            std::fs::write(&file, text).unwrap();

            assert_eq!(
                load(&file).unwrap_err(),
                format!("{}:{expected}", file.display()),
                "{text}"
            );
        }
    }
}
