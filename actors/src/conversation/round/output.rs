//! Decides whether an answer is the JSON that its prompt asked for. A model whose answer does not
//! fit is asked again.
//!
//! Pure.

use serde::de::IgnoredAny;
use serde_json::Value;

use crate::{
    chat::{ContentBlock, RawJson, reminder, values_in},
    conversation::round::DecisionBuilder,
    journal::{EntryBody, OpenRound},
    limits::{JSON_VALUES_MAX, OUTPUT_REFUSALS_MAX},
    stream::{Failure, StopReason},
};

/// The failure code of a round whose answers never fitted the schema.
pub(crate) const OUTPUT_CODE: &str = "output_refused";

/// How many places of a text are searched for JSON.
const PLACES_MAX: usize = 32;

/// How many values of a text are compared with the schema, which may take long for each.
const VALUES_TRIED_MAX: usize = 4;

/// The fault of a further value.
const TRIED: &str = "the answer has too many JSON values that do not fit";

/// How many times the bytes of a text are read for places that turn out to be no JSON.
const READ_TIMES_MAX: usize = 3;

/// How many characters of a fault the model sees.
const FAULT_CHARS_MAX: usize = 2000;

/// The instruction for a model whose API takes no schema.
pub(crate) fn instruction(schema: &RawJson) -> ContentBlock {
    let schema = schema.as_str();
    reminder(&format!(
        "Answer with one JSON value that fits this JSON Schema, and nothing else: no prose, no code fence.\n{schema}"
    ))
}

/// Checks the answer that ended a round against its schema. Returns false if the round may end;
/// otherwise asks the model again, or ends the round with a failure after too many refusals.
pub(in crate::conversation) fn refused(
    decision: &mut DecisionBuilder<'_>,
    round: &OpenRound,
    stop: StopReason,
) -> bool {
    let Some(output) = round
        .output
        .as_ref()
        .filter(|_| matches!(stop, StopReason::EndTurn | StopReason::StopSequence))
    else {
        return false;
    };
    let Err(fault) = decision
        .volatile
        .rules
        .call_policy
        .check_output(&output.schema, &round.text())
    else {
        return false;
    };
    let fault: String = fault.chars().take(FAULT_CHARS_MAX).collect();
    if output.refused < OUTPUT_REFUSALS_MAX {
        decision.entry(EntryBody::OutputRefused { fault });
    } else {
        decision.finish(
            round,
            StopReason::Error,
            Some(Failure {
                code: OUTPUT_CODE.to_owned(),
                message: fault,
                retry_after_ms: None,
            }),
        );
    }
    true
}

/// Returns the first JSON value in `text` that `accept` takes: the whole text, a code fence, or a
/// value between words.
///
/// # Errors
/// Why `accept` refused the first value, or that the text holds no JSON or too many values.
pub(crate) fn json_in<T>(
    text: &str,
    mut accept: impl FnMut(Value) -> Result<T, String>,
) -> Result<T, String> {
    if values_in(text.as_bytes()) > JSON_VALUES_MAX {
        return Err(format!(
            "the answer has more than {JSON_VALUES_MAX} JSON values"
        ));
    }
    let mut fault = None;
    let mut tries = VALUES_TRIED_MAX;
    let mut accept = |value| {
        tries = usize::checked_sub(tries, 1).ok_or_else(|| TRIED.to_owned())?;
        accept(value)
    };
    let whole = match parsed(text.trim()) {
        Ok(value) => accept(value).map_err(|why| fault = Some(why)),
        Err(error) => {
            let mut fences = text.split("```").skip(1).step_by(2).take(PLACES_MAX);
            let fenced = fences.find_map(|fence| {
                let body = fence.trim_start_matches(|c: char| c.is_ascii_alphanumeric());
                let value = [body, fence]
                    .into_iter()
                    .find_map(|body| parsed(body.trim()).ok())?;
                accept(value)
                    .map_err(|why| fault.get_or_insert(why).clone())
                    .ok()
            });
            let found = fenced.or_else(|| between(text, &mut accept, &mut fault));
            fault = fault.or_else(|| Some(format!("the answer is not JSON: {error}")));
            found.ok_or(())
        }
    };
    whole.map_err(|()| fault.unwrap_or_default())
}

/// Parses a text. One that is no JSON builds no values.
fn parsed(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str::<IgnoredAny>(text)?;
    serde_json::from_str(text)
}

/// The first accepted object or array between words. Values that nothing closes are read to the end
/// of the text, so the bytes that are read for all places together are bounded.
fn between<T>(
    text: &str,
    accept: &mut impl FnMut(Value) -> Result<T, String>,
    fault: &mut Option<String>,
) -> Option<T> {
    let mut rest = text;
    let mut left = READ_TIMES_MAX * text.len();
    for _ in 0..PLACES_MAX {
        rest = rest.get(rest.find(['{', '['])?..)?;
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<IgnoredAny>();
        let skip = match values.next() {
            Some(Ok(_)) => {
                let end = values.byte_offset().max(1);
                if let Ok(value) = serde_json::from_str(rest.get(..end)?) {
                    match accept(value) {
                        Ok(accepted) => return Some(accepted),
                        Err(why) => drop(fault.get_or_insert(why)),
                    }
                }
                end
            }
            Some(Err(error)) => {
                left = left.checked_sub(read_until(rest, &error))?;
                1
            }
            None => 1,
        };
        rest = rest.get(skip..)?;
    }
    None
}

/// How many bytes of `text` were read before this error.
fn read_until(text: &str, error: &serde_json::Error) -> usize {
    let lines = text
        .split_inclusive('\n')
        .take(error.line().saturating_sub(1));
    lines.map(str::len).sum::<usize>() + error.column()
}

#[cfg(test)]
mod tests {
    use crate::conversation::round::output::*;

    #[test]
    fn a_text_of_very_many_values_is_refused_before_it_is_read() {
        let text = format!("[{}0]", "0,".repeat(JSON_VALUES_MAX - 1));
        assert_eq!(json_in(&text, |_| Ok(())), Ok(()));

        let text = format!("[{}0]", "0,".repeat(JSON_VALUES_MAX));
        let refused = json_in(&text, |_| -> Result<(), String> { panic!("it is read") });
        assert_eq!(
            refused.unwrap_err(),
            "the answer has more than 100000 JSON values"
        );
    }

    #[test]
    fn json_is_found_whole_fenced_or_between_words_and_alone_must_fit() {
        let object = |value: Value| {
            if value.get("a").is_some() {
                Ok(value["a"].clone())
            } else {
                Err("no `a`".to_owned())
            }
        };
        let found = |text: &str| json_in(text, object).map(|value| value.to_string());

        for text in [
            r#"{"a":1}"#,
            " {\"a\":1}\n",
            "```json\n{\"a\":1}\n```",
            "Here:\n```\n{\"a\":1}\n```\nDone.",
            r#"It is {"a":1}."#,
            r#"Of [x] and {"b":2} I choose {"a":1}"#,
        ] {
            assert_eq!(found(text), Ok("1".into()), "{text}");
        }
        assert_eq!(found(r#"{"b":1}"#), Err("no `a`".into()));
        assert_eq!(found(r#"I think {"b":1} fits"#), Err("no `a`".into()));
        assert!(
            found("no idea")
                .unwrap_err()
                .starts_with("the answer is not JSON: ")
        );
        assert!(found(&"[".repeat(100_000)).is_err(), "deep nonsense ends");
    }

    #[test]
    fn few_values_are_tried_and_a_text_is_read_few_times() {
        let text = |others: usize| format!(r#"{}{{"a":1}}"#, r#"{"b":1} "#.repeat(others));
        let mut tried = 0;
        let mut found = |text: &str| {
            tried = 0;
            let fits = |value: Value| {
                tried += 1;
                value.get("a").map(|_| ()).ok_or_else(String::new)
            };
            (json_in(text, fits).is_ok(), tried)
        };
        assert_eq!(found(&text(VALUES_TRIED_MAX - 1)), (true, VALUES_TRIED_MAX));
        assert_eq!(found(&text(VALUES_TRIED_MAX)), (false, VALUES_TRIED_MAX));

        // Each of these brackets opens what nothing closes.
        let open = |count: usize| format!(r#"{} {{"a":1}}"#, "[".repeat(count));
        assert_eq!(found(&open(2)), (true, 1));
        assert_eq!(found(&open(READ_TIMES_MAX + 1)), (false, 0));
    }

    #[test]
    fn an_error_says_how_far_a_text_was_read() {
        for (text, read) in [("[1,\n 2", 6), ("[1, x]", 5), ("[\n\n\nx", 5)] {
            let error = serde_json::from_str::<IgnoredAny>(text).unwrap_err();
            assert_eq!(read_until(text, &error), read, "{text} {error}");
        }
    }
}
