//! What a part of a schema costs a validator, in steps of about 50 ns. Pure.

use regex_syntax::{
    Parser, ParserBuilder,
    hir::{Class, Hir, HirKind},
};
use serde_json::Value;

/// Values that are compared in one step.
const COMPARED_PER_STEP: usize = 16;

/// Bytes of a text that count as much as one more value.
const BYTES_PER_VALUE: usize = 64;

/// (Bytes of a text) × (states of a pattern) that take one step. Where very many states are possible at
/// one place of the text it takes more, which the bound on the time of patterns catches; those of most
/// patterns exclude each other.
pub(super) const STATES_PER_STEP: usize = 2048;

/// States of a pattern above which one match is bounded: (bytes of the text) × (states), at most 25 ms
/// for most patterns. An automaton can have more states than its pattern has parts.
pub(super) const LARGE_PATTERN: usize = 8;
pub(super) const MATCH_MAX: usize = 8 * 1024 * 1024;

/// Steps of a `multipleOf` that is no whole number: large numbers are divided as fractions of any
/// length, which takes some five microseconds.
pub(super) const OF_FRACTIONS: usize = 120;

/// States of a pattern that cannot be measured. More than that do not fit the limit of such a pattern
/// when it is compiled.
const UNKNOWN_STATES: usize = 8192;

/// States that each part of a pattern counts as which looks around: it is compiled, and run, by itself.
const LOOK_STATES: usize = 64;

/// States that a byte of a pattern counts as, where the pattern cannot be measured and needs the
/// backtracking engine.
const BYTE_STATES: usize = 1000;

/// The number of values in a value, itself included; long texts count as several.
pub(super) fn weight(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(weight).fold(1, usize::saturating_add),
        Value::Object(members) => members
            .iter()
            .map(|(name, member)| name.len() / BYTES_PER_VALUE + weight(member))
            .fold(1, usize::saturating_add),
        Value::String(text) => 1 + text.len() / BYTES_PER_VALUE,
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
    }
}

/// Steps of comparing a value with the options of an `enum`. Texts are looked up in a table.
pub(super) fn of_options(options: &[Value]) -> usize {
    let is_in_table = |option: &Value| matches!(option, Value::String(_) | Value::Null);
    match options.iter().all(is_in_table) {
        true => 1,
        false => of_comparison(options.iter().map(weight).fold(0, usize::saturating_add)),
    }
}

/// Steps of comparing values of this weight.
pub(super) fn of_comparison(weight: usize) -> usize {
    weight.div_ceil(COMPARED_PER_STEP)
}

/// The size of a pattern.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Size {
    /// States that it has at most at one place of a text.
    pub(super) states: usize,
    /// Whether it runs on the linear-time engine.
    pub(super) is_linear: bool,
}

/// Measures a pattern. `is_linear` is asked about patterns whose syntax is no regular expression of
/// Rust.
pub(super) fn size(pattern: &str, is_linear: impl FnOnce() -> bool) -> Size {
    let (states, is_linear) = match parsed(pattern) {
        Some(parsed) => (states_of(&parsed), true),
        None if is_linear() => (UNKNOWN_STATES, true),
        None => (with_looks(pattern), false),
    };
    Size { states, is_linear }
}

/// States of a pattern with look-around, whose parts the backtracking engine compiles one by one.
fn with_looks(pattern: &str) -> usize {
    let mut plain = pattern.to_owned();
    let mut looks = 0;
    for look in ["(?=", "(?!", "(?<=", "(?<!"] {
        looks += plain.matches(look).count();
        plain = plain.replace(look, "(?:");
    }
    let of_parts = match Parser::new().parse(&plain) {
        Ok(parsed) => states_of(&parsed),
        Err(_) => pattern.len().saturating_mul(BYTE_STATES),
    };
    of_parts.saturating_add(looks * LOOK_STATES)
}

/// Whether the states of a pattern are known.
pub(super) fn is_measured(pattern: &str) -> bool {
    parsed(pattern).is_some()
}

fn parsed(pattern: &str) -> Option<Hir> {
    let of_bytes = ParserBuilder::new().unicode(false).utf8(false).build();
    [of_bytes, Parser::new()]
        .into_iter()
        .find_map(|mut parser| parser.parse(pattern).ok())
}

fn states_of(part: &Hir) -> usize {
    /// Longest form of a character in UTF-8.
    const CHARACTER_BYTES_MAX: usize = 4;
    let sum = |parts: &[Hir]| parts.iter().map(states_of).fold(0, usize::saturating_add);
    match part.kind() {
        HirKind::Empty | HirKind::Look(_) => 1,
        HirKind::Literal(literal) => literal.0.len(),
        HirKind::Class(Class::Bytes(_)) => CHARACTER_BYTES_MAX,
        HirKind::Class(Class::Unicode(class)) => class.ranges().len() * CHARACTER_BYTES_MAX,
        HirKind::Capture(capture) => 2 + states_of(&capture.sub),
        HirKind::Repetition(repetition) => {
            let times = repetition.max.unwrap_or(repetition.min.max(1)).max(1);
            let times = usize::try_from(times).unwrap_or(usize::MAX);
            (1 + states_of(&repetition.sub)).saturating_mul(times)
        }
        HirKind::Concat(parts) | HirKind::Alternation(parts) => 1 + sum(parts),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pattern_counts_with_its_repetitions() {
        let states = |pattern: &str| size(pattern, || unreachable!()).states;
        let small = states("^[a-z]{2}-[0-9]$");
        let large = states("^([a-z]{100}){5}$");

        assert!(small < 64, "{small}");
        assert!((2_000..8_000).contains(&large), "{large}");
        assert!(states(r"^\p{L}+$") > 500);
        let unknown = size("(?=a)", || true);
        assert_eq!((unknown.states, unknown.is_linear), (UNKNOWN_STATES, true));
    }

    #[test]
    fn a_pattern_that_looks_around_counts_with_its_parts() {
        let states = |pattern: &str| {
            let size = size(pattern, || false);
            assert!(!size.is_linear);
            size.states
        };

        assert!(states("^(?!a)[a-z]{2}$") < 2 * LOOK_STATES);
        assert!(states(&"(?=[ab])".repeat(2_000)) > 100_000);
        assert!(states(r"^(?!b)\w{20}$") > 20_000);
        assert!(states(r"(?<=a)\w{20}(?<!b)\w{20}") > 40_000);
        assert_eq!(states(r"(a)\1"), 5 * BYTE_STATES);
    }

    #[test]
    fn options_that_are_texts_are_looked_up_and_others_compared() {
        let texts = vec![json!("text"); 1000];
        let numbers = vec![json!(1); 1000];

        assert_eq!(of_options(&texts), 1);
        assert_eq!(of_options(&numbers), 63);
        assert_eq!(of_options(&[json!(["a".repeat(6400), { "b": [1, 2] }])]), 7);
    }
}
