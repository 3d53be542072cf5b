//! Regular expressions of tasks, bounded.
//!
//! Pure.

use grep_regex::{RegexMatcher, RegexMatcherBuilder};

/// Bytes of a compiled pattern, so that a task cannot fill the memory.
const PATTERN_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Compiles a regular expression of a task.
///
/// # Errors
/// Why it is none.
pub(super) fn pattern(pattern: &str) -> Result<RegexMatcher, String> {
    RegexMatcherBuilder::new()
        .multi_line(true)
        .size_limit(PATTERN_BYTES_MAX)
        .dfa_size_limit(PATTERN_BYTES_MAX)
        .build(pattern)
        .map_err(|error| {
            let last = error.to_string();
            let last = last.lines().last().unwrap_or_default().trim().to_owned();
            format!("it is no regular expression: {last}; correct it")
        })
}
