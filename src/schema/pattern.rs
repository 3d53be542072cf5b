//! The `pattern` keyword. Pattern and text may both be hostile, so their matching time is bounded.
//!
//! A pattern without look-around and back-references runs on the linear-time engine, on texts of
//! any length. Others, which common generators emit for mail addresses, run on the backtracking
//! engine with a step limit and on short texts only; longer texts are accepted unchecked and left
//! to the tool's own validation.

use std::{
    cell::Cell,
    collections::HashMap,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use jsonschema::{FancyRegex, Keyword, PatternOptions, Regex, ValidationError, Validator};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::cost;
use crate::thread_clock::ThreadTimes;

/// Largest compiled pattern, in bytes: it takes about 5 ms to compile. Those whose states cannot be
/// measured have the second bound.
const PATTERN_BYTES_MAX: usize = 1024 * 1024;
const UNMEASURED_BYTES_MAX: usize = 256 * 1024;

/// Memory of the automaton that a match builds, in bytes. A match that needs more of it is slower.
const AUTOMATON_BYTES_MAX: usize = 256 * 1024;

/// Step limit of the backtracking engine.
const BACKTRACKS_MAX: usize = 10_000;

/// Longest text for the backtracking engine, in bytes; one step may scan all of it.
pub(super) const BACKTRACKED_BYTES_MAX: usize = 1024;

/// Time of the processor that the patterns of one check may take. Their states are counted before, but
/// how many of them are possible at one place of a text is only seen when it is matched.
const TIME_MAX: Duration = Duration::from_millis(25);

thread_local! {
    /// What the check on this thread has left of it.
    static LEFT: Cell<Duration> = const { Cell::new(TIME_MAX) };
    /// How long the thread had run when the first half was used up.
    static AT_HALF: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// Makes a check on this thread; `None` if its patterns took too long.
pub(super) fn in_time<T>(check: impl FnOnce() -> T) -> Option<T> {
    LEFT.set(TIME_MAX / 2);
    AT_HALF.set(None);
    let checked = check();
    (!LEFT.get().is_zero()).then_some(checked)
}

/// Takes the time of a match. A clock that is cheap to read also counts while other threads run. So the
/// second half of the time begins when this clock says that the first is used up, and is over only if
/// the thread itself has run as long.
fn take(passed: Duration) {
    let left = LEFT.get().saturating_sub(passed);
    LEFT.set(match left.is_zero() {
        false => left,
        true => {
            let now = has_run();
            let since = AT_HALF.get().unwrap_or(now);
            AT_HALF.set(Some(since));
            (TIME_MAX / 2).saturating_sub(now.saturating_sub(since))
        }
    });
}

/// How long this thread has run, or the time where the system does not say.
fn has_run() -> Duration {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    ThreadTimes::read().map_or_else(|| BEGAN.elapsed(), |times| times.has_run)
}

/// Options of the linear-time engine.
pub(super) fn linear() -> PatternOptions<Regex> {
    linear_of(PATTERN_BYTES_MAX)
}

fn linear_of(bytes_max: usize) -> PatternOptions<Regex> {
    PatternOptions::regex()
        .size_limit(bytes_max)
        .dfa_size_limit(AUTOMATON_BYTES_MAX)
}

fn backtracking() -> PatternOptions<FancyRegex> {
    let limited = PatternOptions::fancy_regex().backtrack_limit(BACKTRACKS_MAX);
    limited
        .size_limit(PATTERN_BYTES_MAX)
        .dfa_size_limit(AUTOMATON_BYTES_MAX)
}

/// Whether a pattern whose states cannot be measured runs on the linear-time engine.
pub(super) fn is_linear(pattern: &str) -> bool {
    of_linear(&json!({ "pattern": pattern }), UNMEASURED_BYTES_MAX).is_some()
}

/// The validator of a schema with a pattern for the linear-time engine, if it is one.
fn of_linear(schema: &Value, bytes_max: usize) -> Option<Validator> {
    let options = jsonschema::options().offline();
    let options = options.with_pattern_options(linear_of(bytes_max));
    options.build(schema).ok()
}

/// The patterns of one schema. One that is in several places is compiled once.
#[derive(Default)]
pub(super) struct Patterns(Mutex<HashMap<String, Arc<Compiled>>>);

struct Compiled {
    validator: Validator,
    linear: bool,
}

/// A pattern at its place.
struct Pattern {
    shown: String,
    compiled: Arc<Compiled>,
}

/// Compiles the keyword.
#[allow(
    clippy::result_large_err,
    reason = "the signature that the validator asks for"
)]
pub(super) fn keyword<'a>(
    known: &Patterns,
    value: &'a Value,
) -> Result<Box<dyn for<'i> Keyword<'i>>, ValidationError<'a>> {
    let shown = super::faults::short(value);
    let text = value.as_str().unwrap_or_default();
    let found = known.0.lock().get(text).cloned();
    let compiled = match found {
        Some(compiled) => compiled,
        None => {
            let compiled = Compiled::new(text, value).ok_or_else(|| {
                ValidationError::custom(format!(
                    "the pattern {shown} is not a valid regular expression, or too large"
                ))
            })?;
            let compiled = Arc::new(compiled);
            known.0.lock().insert(text.to_owned(), compiled.clone());
            compiled
        }
    };
    Ok(Box::new(Pattern { shown, compiled }))
}

impl Compiled {
    fn new(text: &str, value: &Value) -> Option<Self> {
        let schema = json!({ "pattern": value });
        let bytes_max = match cost::is_measured(text) {
            true => PATTERN_BYTES_MAX,
            false => UNMEASURED_BYTES_MAX,
        };
        if let Some(validator) = of_linear(&schema, bytes_max) {
            return Some(Self {
                validator,
                linear: true,
            });
        }
        let options = jsonschema::options()
            .offline()
            .with_pattern_options(backtracking());
        let validator = options.build(&schema).ok()?;
        Some(Self {
            validator,
            linear: false,
        })
    }
}

impl Pattern {
    fn matches(&self, instance: &Value, text: &str) -> bool {
        use jsonschema::error::ValidationErrorKind::{BacktrackLimitExceeded, RegexEngineFailure};

        if self.compiled.linear {
            return self.compiled.validator.is_valid(instance);
        }
        if text.len() > BACKTRACKED_BYTES_MAX {
            return true;
        }
        match self.compiled.validator.validate(instance) {
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
        if LEFT.get().is_zero() {
            return false;
        }
        let began = Instant::now();
        let matches = self.matches(instance, text);
        take(began.elapsed());
        matches
    }
}
