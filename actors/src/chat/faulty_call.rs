//! Calls that a model wrote wrongly: without a name, or with arguments that are not a JSON object, or
//! one of very many values. Providers accept the first two in no history, and whoever reads the
//! last takes hundreds of bytes for each value. So such a call enters the history in a valid form that
//! still shows what the model wrote, and its result is an error that the model can correct.
//!
//! Pure.

use serde::{Deserialize, Serialize};

use super::{RawJson, ToolUseBlock, values_in};
use crate::limits::JSON_VALUES_MAX;

/// The name that a call without a name gets in the history.
const UNNAMED: &str = "unnamed_tool";

/// How many characters of wrong arguments the history keeps. A model that sees where its text
/// breaks off needs no more.
const KEPT_CHARS_MAX: usize = 2000;

/// The start of [`Wrong`] as JSON text; spares other calls the parser.
const WRONG_START: &str = r#"{"invalid_arguments":"#;

/// The arguments of a faulty call in the history.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wrong {
    invalid_arguments: String,
    error: String,
}

/// Returns the call in a form that may enter a history.
pub(crate) fn storable(mut call: ToolUseBlock) -> ToolUseBlock {
    if call.name.trim().is_empty() {
        call.name = UNNAMED.to_owned();
    }
    let values = values_in(call.input.as_str().as_bytes());
    if values > JSON_VALUES_MAX {
        let error = format!("{values} JSON values, of at most {JSON_VALUES_MAX}");
        call.input = wrong(call.input.as_str(), &error);
        return call;
    }
    if call.input.is_object() {
        return call;
    }
    // An adapter passes on what is not JSON at all as a JSON string.
    let text = call.input.parse::<String>();
    let error = match &text {
        Ok(text) => RawJson::arguments(text).err(),
        Err(_) => RawJson::arguments(call.input.as_str()).err(),
    };
    let error = error.map_or_else(
        || "not sent as a whole JSON object".to_owned(),
        |error| error.to_string(),
    );
    let text = text.as_deref().unwrap_or(call.input.as_str());
    call.input = wrong(text, &error);
    call
}

/// What stands in the history in place of wrong arguments.
fn wrong(text: &str, error: &str) -> RawJson {
    let wrong = Wrong {
        invalid_arguments: text.chars().take(KEPT_CHARS_MAX).collect(),
        error: format!("{error} ({} bytes)", text.len()),
    };
    RawJson::of(&wrong).unwrap_or_else(|_| RawJson::empty_object())
}

/// Returns why a call of a history cannot run, in words for the model; `None` for a call without
/// such a fault.
pub(crate) fn fault(call: &ToolUseBlock) -> Option<String> {
    if call.name == UNNAMED {
        return Some("the call names no tool; call one of the tools by its name".to_owned());
    }
    if !call.input.as_str().starts_with(WRONG_START) {
        return None;
    }
    let wrong: Wrong = call.input.parse().ok()?;
    Some(format!(
        "the arguments are {}; call the tool again with one JSON object",
        wrong.error
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, input: &str) -> ToolUseBlock {
        ToolUseBlock {
            id: "t".into(),
            name: name.into(),
            input: RawJson::from_text(input).unwrap(),
        }
    }

    #[test]
    fn a_faulty_call_becomes_valid_and_shows_what_was_written() {
        let check = |input: &str, kept: &str, why: &str| {
            let stored = storable(call("f", input));
            let fault = fault(&stored).unwrap();

            assert_eq!(stored.name, "f");
            assert!(stored.input.is_object());
            let value: serde_json::Value = stored.input.parse().unwrap();
            assert_eq!(value["invalid_arguments"], kept);
            assert!(fault.contains(why), "{fault}");
            assert_eq!(storable(stored.clone()), stored, "stored once");
        };

        check(
            r#""{\"a\": ""#,
            "{\"a\": ",
            "not a JSON object: EOF while parsing",
        );
        check(
            "[1]",
            "[1]",
            "not a JSON object: another kind of value (3 bytes)",
        );
        check(r#""[1]""#, "[1]", "another kind of value");
        check(
            r#""{\"a\":1}""#,
            "{\"a\":1}",
            "not sent as a whole JSON object",
        );
        let many = format!("{{\"a\":[{}0]}}", "0,".repeat(JSON_VALUES_MAX));
        check(
            &many,
            &many[..2000],
            "the arguments are 100002 JSON values, of at most 100000 (200009 bytes)",
        );
        let deep = RawJson::of(&"{\"a\":".repeat(50_000)).unwrap();
        check(
            deep.as_str(),
            &"{\"a\":".repeat(400),
            "nested deeper than 64 levels (250000 bytes)",
        );
    }

    #[test]
    fn a_call_without_a_name_gets_one_and_other_calls_stay_as_they_are() {
        let stored = storable(call(" ", r#"{"a":1}"#));
        assert_eq!(
            (stored.name.as_str(), stored.input.as_str()),
            (UNNAMED, r#"{"a":1}"#)
        );
        assert!(fault(&stored).is_some());

        for input in [
            "{}",
            r#"{"invalid_arguments":"x"}"#,
            r#"{"invalid_arguments":"x","error":"y","z":1}"#,
        ] {
            let sound = call("f", input);
            assert_eq!(storable(sound.clone()), sound);
            assert_eq!(fault(&sound), None, "{input}");
        }
    }
}
