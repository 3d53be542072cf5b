use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::tokens::{DecodeError, TokenCounter};

/// An encoder with one token per word.
struct Words;

impl Encoder for Words {
    fn encode(&self, text: &str) -> Vec<u32> {
        text.split_whitespace()
            .map(|word| word.len() as u32)
            .collect()
    }

    fn decode(&self, _: &[u32]) -> Result<String, DecodeError> {
        Err(DecodeError::NotText)
    }
}

fn config(margin: f64) -> EncoderConfig {
    EncoderConfig::new(ModelFamily::Custom, "o200k_base", margin)
}

fn known(registry: &EncoderRegistry, model: &str) -> (&'static str, String, f64) {
    let config = registry.encoder_config(model);
    (
        config.model_family.as_str(),
        config.encoding_name.clone(),
        config.safety_margin,
    )
}

#[test]
fn the_defaults_are_those_of_the_specification() {
    let registry = EncoderRegistry::default();
    for (model, family, encoding, margin) in [
        ("claude-3-sonnet", "claude", "cl100k_base", 1.15),
        ("claude-opus-4", "claude", "cl100k_base", 1.15),
        ("gpt-4", "gpt", "cl100k_base", 1.0),
        ("gpt-3.5-turbo", "gpt", "cl100k_base", 1.0),
        ("gemini-2-flash", "gemini", "cl100k_base", 1.2),
        ("glm-4-plus", "glm", "cl100k_base", 1.25),
        ("qwen-2.5-72b", "qwen", "cl100k_base", 1.2),
        ("gpt-4o", "gpt", "o200k_base", 1.0),
        ("gpt-4o-mini", "gpt", "o200k_base", 1.0),
        ("GPT-4.1-nano", "gpt", "o200k_base", 1.0),
        ("gpt-5", "gpt", "o200k_base", 1.0),
        ("o1", "gpt", "o200k_base", 1.0),
        ("o3-mini", "gpt", "o200k_base", 1.0),
        ("o4-mini", "gpt", "o200k_base", 1.0),
        ("openai/gpt-4o", "gpt", "o200k_base", 1.0),
        ("gpt-oss-20b", "gpt", "o200k_harmony", 1.0),
        ("house-model", "custom", "cl100k_base", 1.2),
        ("llama-3.1-8b", "llama", "cl100k_base", 1.2),
        ("mistral-small", "mistral", "cl100k_base", 1.2),
        ("deepseek-chat", "deepseek", "cl100k_base", 1.2),
    ] {
        assert_eq!(
            known(&registry, model),
            (family, encoding.to_owned(), margin),
            "{model}"
        );
    }
}

#[test]
fn a_model_is_looked_up_by_name_then_pattern_then_family_then_fallback() {
    let registry = EncoderRegistry::default();
    // No pattern matches; the family's default applies.
    assert_eq!(registry.encoder_config("qwen2.5-coder").safety_margin, 1.2);
    assert_eq!(
        known(&registry, "us.anthropic.claude-x"),
        ("claude", "cl100k_base".into(), 1.15)
    );

    registry.register_encoder_config("us.*", config(3.0));
    registry.register_encoder_config("US.anthropic.claude-x", config(2.0));

    assert_eq!(
        registry
            .encoder_config("us.anthropic.Claude-X")
            .safety_margin,
        2.0
    );
    assert_eq!(
        registry
            .encoder_config("us.anthropic.claude-y")
            .safety_margin,
        3.0
    );
    assert_eq!(
        registry
            .encoder_config("eu.anthropic.claude-y")
            .safety_margin,
        1.15
    );
}

#[test]
fn the_more_specific_pattern_wins_whatever_the_order() {
    let patterns = [
        "*",
        "gpt-*",
        "gpt-4*",
        "gpt-4*-mini",
        "gpt-4o-mini",
        "*-mini",
    ];
    for rotation in 0..patterns.len() {
        let registry = EncoderRegistry::default();
        for at in 0..patterns.len() {
            let number = (at + rotation) % patterns.len();
            registry.register_encoder_config(patterns[number], config(10.0 + number as f64));
        }

        let winners: Vec<&str> = [
            "mine",
            "gpt-3",
            "gpt-4-x",
            "GPT-4x-MINI",
            "gpt-4o-mini",
            "x-mini",
        ]
        .iter()
        .map(|model| patterns[registry.encoder_config(model).safety_margin as usize - 10])
        .collect();
        assert_eq!(
            winners,
            [
                "*",
                "gpt-*",
                "gpt-4*",
                "gpt-4*-mini",
                "gpt-4o-mini",
                "*-mini"
            ],
            "rotation {rotation}"
        );
    }
}

#[test]
fn a_pattern_fits_as_a_plain_search_says() {
    /// The definition, in exponential time.
    fn plain(pattern: &[u8], name: &[u8]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some((b'*', rest)) => (0..=name.len()).any(|skipped| plain(rest, &name[skipped..])),
            Some((byte, rest)) => name.first() == Some(byte) && plain(rest, &name[1..]),
        }
    }
    let mut seed = 5_u64;
    let mut text = |letters: &[u8], max: u64| -> String {
        let mut below = |max: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % max
        };
        (0..below(max))
            .map(|_| letters[below(letters.len() as u64) as usize] as char)
            .collect()
    };
    for case in 0..20_000 {
        let pattern = text(b"ab**", 7);
        let name = text(b"ab", 8);

        assert_eq!(
            fits(&pattern, &name),
            plain(pattern.as_bytes(), name.as_bytes()),
            "case {case}: {pattern:?} {name:?}"
        );
    }
}

#[test]
fn what_is_registered_holds_for_models_already_counted() {
    let counter = TokenCounter::default();
    assert_eq!(counter.count_text("house-7b", "hello world"), 2);
    assert_eq!(counter.count_text("gpt-4", "hello world"), 2);

    counter
        .registry()
        .register_encoder_config("house-*", config(5.0));
    counter
        .registry()
        .register_encoder_config("gpt-*", config(2.0));

    assert_eq!(counter.count_text("house-7b", "hello world"), 10);
    assert_eq!(counter.count_text("gpt-4", "hello world"), 4);
    counter
        .registry()
        .register_encoder_config("House-*", config(1.0));
    assert_eq!(counter.count_text("house-7b", "hello world"), 2);
}

#[test]
fn a_custom_encoder_is_found_by_pattern_and_can_be_replaced() {
    /// Counts its calls.
    struct Asked(AtomicUsize);

    impl Encoder for Asked {
        fn encode(&self, _: &str) -> Vec<u32> {
            self.0.fetch_add(1, Ordering::Relaxed);
            vec![1; 100]
        }

        fn decode(&self, _: &[u32]) -> Result<String, DecodeError> {
            Ok(String::new())
        }
    }
    let counter = TokenCounter::default();
    counter
        .registry()
        .register_custom_encoder("house-*", Arc::new(Words), None);

    assert_eq!(
        counter.count_text("House-7B", "one two three four five"),
        6,
        "5 words with the fallback's margin"
    );
    assert_eq!(counter.model_info("house-7b").encoding_name, "custom");

    let asked = Arc::new(Asked(AtomicUsize::new(0)));
    counter
        .registry()
        .register_custom_encoder("house-*", asked.clone(), Some(config(1.5)));
    assert_eq!(counter.count_text("house-7b", "one"), 150);
    assert_eq!(asked.0.load(Ordering::Relaxed), 1);
    assert_eq!(counter.count_text("gpt-4", "hello world"), 2);
}

#[test]
fn an_unknown_encoding_is_warned_of_once_and_counts_as_the_default() {
    let registry = EncoderRegistry::default();
    registry.register_encoder_config(
        "house-*",
        EncoderConfig::new(ModelFamily::Custom, "o900k", 1.0),
    );
    registry.register_encoder_config(
        "home-*",
        EncoderConfig::new(ModelFamily::Custom, "o900k", 1.0),
    );
    let counter = TokenCounter::new(registry);

    assert_eq!(counter.count_text("house-7b", "hello world"), 2);
    assert_eq!(counter.count_text("home-7b", "hello world"), 2);
    assert_eq!(counter.model_info("house-7b").encoding_name, "cl100k_base");
    assert_eq!(
        counter.registry().warned.lock().iter().collect::<Vec<_>>(),
        ["o900k"]
    );
}

#[test]
fn ways_to_count_are_distinct_and_there_are_no_more_than_a_byte_holds() {
    let registry = EncoderRegistry::default();
    let profile = |model: &str| registry.profile(&registry.resolve(model));
    assert_eq!(
        (
            profile("claude-3"),
            profile("gpt-4"),
            profile("claude-4"),
            profile("gpt-4o")
        ),
        (Some(1), Some(2), Some(1), Some(3))
    );

    registry.register_custom_encoder("own", Arc::new(Words), None);
    let first = profile("own");
    registry.register_custom_encoder("own", Arc::new(Words), None);
    assert_ne!(profile("own"), first);

    for margin in 0..300 {
        registry.register_encoder_config("m", config(2.0 + f64::from(margin)));
        profile("m");
    }
    assert_eq!((profile("m"), profile("gpt-4")), (None, Some(2)));
}
