//! The `pattern` keyword. Pattern and text may both be hostile, so their matching time is bounded.
//!
//! A pattern without look-around and back-references runs on the linear-time engine, on texts of
//! any length. Others, which common generators emit for mail addresses, run on the backtracking
//! engine with a step limit and on short texts only; longer texts are accepted unchecked and left
//! to the tool's own validation.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use jsonschema::{
    FancyRegex, Keyword, PatternOptions, Regex, ValidationError, Validator, paths::Location,
};
use serde_json::{Map, Value, json};

/// Largest compiled pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 256 * 1024;

/// Step limit of the backtracking engine.
const BACKTRACKS_MAX: usize = 10_000;

/// Longest text for the backtracking engine, in bytes; one step may scan all of it.
pub(super) const BACKTRACKED_BYTES_MAX: usize = 1024;

/// Time that the patterns of one check may take. Their states are counted before, but how many of them
/// are possible at one place of a text is only seen when it is matched.
const TIME_MAX: Duration = Duration::from_millis(50);

thread_local! {
    /// What the check on this thread has left of it.
    static LEFT: Cell<Duration> = const { Cell::new(TIME_MAX) };
}

/// Makes a check on this thread; `None` if its patterns took too long.
pub(super) fn in_time<T>(check: impl FnOnce() -> T) -> Option<T> {
    LEFT.set(TIME_MAX);
    let checked = check();
    (!LEFT.get().is_zero()).then_some(checked)
}

/// Options of the linear-time engine.
pub(super) fn linear() -> PatternOptions<Regex> {
    PatternOptions::regex()
        .size_limit(PATTERN_BYTES_MAX)
        .dfa_size_limit(PATTERN_BYTES_MAX)
}

fn backtracking() -> PatternOptions<FancyRegex> {
    let limited = PatternOptions::fancy_regex().backtrack_limit(BACKTRACKS_MAX);
    limited
        .size_limit(PATTERN_BYTES_MAX)
        .dfa_size_limit(PATTERN_BYTES_MAX)
}

/// Whether a pattern runs on the linear-time engine.
pub(super) fn is_linear(pattern: &str) -> bool {
    of_linear(&json!({ "pattern": pattern })).is_some()
}

/// The validator of a schema with a pattern for the linear-time engine, if it is one.
fn of_linear(schema: &Value) -> Option<Validator> {
    let options = jsonschema::options().offline();
    options.with_pattern_options(linear()).build(schema).ok()
}

/// A compiled pattern.
struct Pattern {
    shown: String,
    validator: Validator,
    linear: bool,
}

/// Compiles the keyword.
#[allow(
    clippy::result_large_err,
    reason = "the signature that the validator asks for"
)]
pub(super) fn keyword<'a>(
    _parent: &'a Map<String, Value>,
    value: &'a Value,
    _path: Location,
) -> Result<Box<dyn for<'i> Keyword<'i>>, ValidationError<'a>> {
    let schema = json!({ "pattern": value });
    let shown = super::faults::short(value);
    if let Some(validator) = of_linear(&schema) {
        return Ok(Box::new(Pattern {
            shown,
            validator,
            linear: true,
        }));
    }
    match jsonschema::options()
        .offline()
        .with_pattern_options(backtracking())
        .build(&schema)
    {
        Ok(validator) => Ok(Box::new(Pattern {
            shown,
            validator,
            linear: false,
        })),
        Err(_) => Err(ValidationError::custom(format!(
            "the pattern {shown} is not a valid regular expression, or too large"
        ))),
    }
}

impl Pattern {
    fn matches(&self, instance: &Value, text: &str) -> bool {
        use jsonschema::error::ValidationErrorKind::{BacktrackLimitExceeded, RegexEngineFailure};

        if self.linear {
            return self.validator.is_valid(instance);
        }
        if text.len() > BACKTRACKED_BYTES_MAX {
            return true;
        }
        match self.validator.validate(instance) {
            Ok(()) => true,
            Err(error) => matches!(
                error.kind(),
                BacktrackLimitExceeded { .. } | RegexEngineFailure { .. }
            ),
        }
    }
}

impl<'i> Keyword<'i> for Pattern {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        match self.is_valid(instance) {
            true => Ok(()),
            false => Err(ValidationError::custom(format!(
                "text that matches {}",
                self.shown
            ))),
        }
    }

    fn is_valid(&self, instance: &'i Value) -> bool {
        let Value::String(text) = instance else {
            return true;
        };
        let left = LEFT.get();
        if left.is_zero() {
            return false;
        }
        let began = Instant::now();
        let matches = self.matches(instance, text);
        LEFT.set(left.saturating_sub(began.elapsed()));
        matches
    }
}
