//! Decides whether an answer is the JSON that its prompt asked for. A model whose answer does not
//! fit is asked again.
//!
//! Pure.

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
    let whole = match serde_json::from_str::<Value>(text.trim()) {
        Ok(value) => accept(value).map_err(|why| fault = Some(why)),
        Err(error) => {
            let mut fences = text.split("```").skip(1).step_by(2).take(PLACES_MAX);
            let fenced = fences.find_map(|fence| {
                let body = fence.trim_start_matches(|c: char| c.is_ascii_alphanumeric());
                let value = [body, fence]
                    .into_iter()
                    .find_map(|body| serde_json::from_str(body.trim()).ok())?;
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

/// The first accepted object or array between words.
fn between<T>(
    text: &str,
    accept: &mut impl FnMut(Value) -> Result<T, String>,
    fault: &mut Option<String>,
) -> Option<T> {
    let mut rest = text;
    for _ in 0..PLACES_MAX {
        rest = rest.get(rest.find(['{', '['])?..)?;
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        let skip = match values.next() {
            Some(Ok(value)) => {
                match accept(value) {
                    Ok(accepted) => return Some(accepted),
                    Err(why) => drop(fault.get_or_insert(why)),
                }
                values.byte_offset().max(1)
            }
            _ => 1,
        };
        rest = rest.get(skip..)?;
    }
    None
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
}
