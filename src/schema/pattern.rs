//! The `pattern` keyword. A pattern comes from whoever wrote the schema, the text from a model: together they must not take long.
//!
//! What can run on the engine of linear time runs there, on a text of any length. What cannot (look-around and back-references, which
//! common generators write for mail addresses) runs on the backtracking engine, with a limit of steps and on short texts alone; a
//! text beyond that is not checked here, and the tool's own check remains.

use jsonschema::{FancyRegex, Keyword, PatternOptions, Regex, ValidationError, Validator, paths::Location};
use serde_json::{Map, Value, json};

/// Bytes of one compiled pattern.
const PATTERN_BYTES_MAX: usize = 256 * 1024;

/// Steps that the backtracking engine takes.
const BACKTRACKS_MAX: usize = 10_000;

/// Bytes of a text that the backtracking engine looks at: a step may look at all of it.
const BACKTRACKED_BYTES_MAX: usize = 4096;

/// The engine of linear time.
pub(super) fn linear() -> PatternOptions<Regex> {
    PatternOptions::regex().size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX)
}

fn backtracking() -> PatternOptions<FancyRegex> {
    let limited = PatternOptions::fancy_regex().backtrack_limit(BACKTRACKS_MAX);
    limited.size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX)
}

/// A compiled pattern.
struct Pattern {
    shown: String,
    validator: Validator,
    linear: bool,
}

/// Compiles the keyword.
#[allow(clippy::result_large_err, reason = "the signature that the validator asks for")]
pub(super) fn keyword<'a>(
    _parent: &'a Map<String, Value>,
    value: &'a Value,
    _path: Location,
) -> Result<Box<dyn for<'i> Keyword<'i>>, ValidationError<'a>> {
    let schema = json!({ "pattern": value });
    let shown = super::faults::short(value);
    if let Ok(validator) = jsonschema::options().offline().with_pattern_options(linear()).build(&schema) {
        return Ok(Box::new(Pattern { shown, validator, linear: true }));
    }
    match jsonschema::options().offline().with_pattern_options(backtracking()).build(&schema) {
        Ok(validator) => Ok(Box::new(Pattern { shown, validator, linear: false })),
        Err(_) => Err(ValidationError::custom(format!("the pattern {shown} is no regular expression, or too large a one"))),
    }
}

impl<'i> Keyword<'i> for Pattern {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        match self.is_valid(instance) {
            true => Ok(()),
            false => Err(ValidationError::custom(format!("text that matches {}", self.shown))),
        }
    }

    fn is_valid(&self, instance: &'i Value) -> bool {
        use jsonschema::error::ValidationErrorKind::{BacktrackLimitExceeded, RegexEngineFailure};

        let Value::String(text) = instance else { return true };
        if self.linear {
            return self.validator.is_valid(instance);
        }
        if text.len() > BACKTRACKED_BYTES_MAX {
            return true;
        }
        match self.validator.validate(instance) {
            Ok(()) => true,
            Err(error) => matches!(error.kind(), BacktrackLimitExceeded { .. } | RegexEngineFailure { .. }),
        }
    }
}
