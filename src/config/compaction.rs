//! `[compaction]`: when and how a conversation's context is made smaller.

use super::{error::ConfigError, section::Section, toml_text};
use callboard_actors::{compactor::CompactionSettings, policy::ConfigValue as _};

/// The section's name.
pub(super) const SECTION: &str = "compaction";

/// All keys, in the order in which `show` prints them.
const KEYS: [&str; 14] = [
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
    "memory_flush",
    "summary_cache_ttl",
    "max_cost_per_hour",
    "max_compression_cost_per_hour",
];

/// Reads the section.
pub(super) fn settings(section: &Section<'_, '_>) -> Result<CompactionSettings, ConfigError> {
    let check =
        |settings: &CompactionSettings| settings.validate().map_err(|error| error.to_string());
    let settings: CompactionSettings = section.read(&KEYS, |settings, _| check(settings))?;
    check(&settings).map_err(|problem| section.inconsistent(problem))?;
    Ok(settings)
}

/// Writes the settings as TOML that can be read again.
pub(super) fn show(text: &mut String, settings: &CompactionSettings) {
    toml_text::section(text, &format!("[{SECTION}]"), &KEYS, &settings.to_dict());
}

#[cfg(test)]
mod tests {
    use callboard_actors::compactor::CompressionMode;

    use super::{super::file::parse, *};

    fn read(text: &str) -> Result<CompactionSettings, ConfigError> {
        parse("callboard.toml".as_ref(), text, None).map(|layer| layer.compaction.unwrap())
    }

    #[test]
    fn what_is_shown_reads_as_the_same() {
        let given = read("[compaction]\nstrategy = \"summarize\"\nkeep_rounds = 7\nmemory_flush = true\nllm_summarization_threshold = 60\nsummary_cache_ttl = 2\nmax_compression_cost_per_hour = 0.5\n").unwrap();
        let mut text = String::new();

        show(&mut text, &given);

        assert_eq!(read(&text).unwrap(), given, "{text}");
        assert_eq!((given.keep_rounds, given.max_cost_per_hour), (Some(7), 0.5));
        assert!(given.memory_flush);
        assert_eq!((given.llm_threshold, given.summary_cache_ttl), (60, 2));
        assert_eq!(given.strategy, CompressionMode::Summarize);
    }

    #[test]
    fn a_wrong_key_or_value_is_named() {
        let unknown = read("[compaction]\nstrategie = \"extract\"\n")
            .unwrap_err()
            .to_string();
        let wrong = read("[compaction]\nmax_cost_per_hour = -1.0\n")
            .unwrap_err()
            .to_string();

        assert!(
            unknown.contains("strategie") && unknown.contains("strategy"),
            "{unknown}"
        );
        assert!(
            wrong.contains("max_cost_per_hour must be non-negative"),
            "{wrong}"
        );
    }
}
