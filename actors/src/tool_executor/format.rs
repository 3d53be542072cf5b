//! Formats tool data for the model at each output level, and as a one-line summary when it is
//! stored.
//!
//! Texts are cut by characters, never within one. Data that is shown in part is serialized only as
//! far as needed.
//!
//! Pure.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;

use crate::{ids::ArtifactId, tool::OutputLevel};

/// Characters shown at BRIEF of a value that is neither a list nor an object.
const BRIEF_CHARS_MAX: usize = 100;

/// Characters shown at STANDARD of a value that is not a list.
const STANDARD_CHARS_MAX: usize = 500;

/// Items of a list shown at STANDARD.
const ITEMS_SHOWN: usize = 3;

/// Characters in the summary of a value that is neither a list nor an object.
const SUMMARY_CHARS_MAX: usize = 200;

/// Maximum size of a summary in bytes. Objects can have many long keys, and a page must fit beside
/// the summary.
const SUMMARY_BYTES_MAX: usize = 1024;

/// Keys of an object listed in its summary.
const KEYS_SHOWN: usize = 10;

/// The text of a value at an output level.
pub fn format(value: &Value, level: OutputLevel) -> String {
    match (level, value) {
        (OutputLevel::Brief, Value::Array(items)) => format!("Found {} items", items.len()),
        (OutputLevel::Brief, Value::Object(fields)) => match fields.get("success") {
            Some(success) => {
                let message = fields.get("message").filter(|message| !message.is_null());
                let message = message.map_or_else(|| "Operation completed".to_owned(), text_form);
                format!(
                    "{}: {message}",
                    if is_truthy(success) {
                        "Success"
                    } else {
                        "Failed"
                    }
                )
            }
            None => format!("Result has {} fields", fields.len()),
        },
        (OutputLevel::Brief, other) => first_chars(other, BRIEF_CHARS_MAX),
        (OutputLevel::Standard, Value::Array(items)) => {
            let shown: Vec<String> = items
                .iter()
                .take(ITEMS_SHOWN)
                .map(|item| format!("  - {item}"))
                .collect();
            let more = items.len().saturating_sub(ITEMS_SHOWN);
            let more = if more > 0 {
                format!("\n  ... and {more} more")
            } else {
                String::new()
            };
            format!("Found {} items:\n{}{more}", items.len(), shown.join("\n"))
        }
        (OutputLevel::Standard, Value::Object(_)) => {
            let (text, _) = json_within(value, true, STANDARD_CHARS_MAX * 4);
            text.chars().take(STANDARD_CHARS_MAX).collect()
        }
        (OutputLevel::Standard, other) => first_chars(other, STANDARD_CHARS_MAX),
        (OutputLevel::Full, _) => json_within(value, true, usize::MAX).0,
    }
}

/// The one-line summary of a stored value.
pub fn summary(value: &Value) -> String {
    let text = match value {
        Value::Array(items) => {
            let keys = match items.first() {
                Some(Value::Object(first)) => {
                    bounded_join(first.keys().map(|key| quoted(key)), ", ", |keys| {
                        format!("[{keys}]")
                    })
                }
                Some(_) | None => "N/A".to_owned(),
            };
            format!("List with {} items. First item keys: {keys}", items.len())
        }
        Value::Object(fields) => {
            let keys = bounded_join(fields.keys().take(KEYS_SHOWN).cloned(), ", ", |keys| keys);
            format!("Dictionary with {} keys. Top keys: {keys}", fields.len())
        }
        other => return text_summary(&first_chars(other, SUMMARY_CHARS_MAX)),
    };
    shorten(text, SUMMARY_BYTES_MAX)
}

/// The summary of a text: its first 200 characters.
pub(crate) fn text_summary(text: &str) -> String {
    text.chars().take(SUMMARY_CHARS_MAX).collect()
}

/// What the model reads about a stored value: the artifact's id and the summary.
pub(crate) fn stored_text(id: &ArtifactId, summary: &str) -> String {
    format!(
        "Data stored as artifact: {id}\n\nLarge dataset available for subsequent tool access.\n\n\
         To access this data, reference the artifact_id in your next tool call.\n\
         The system will securely retrieve the data for you.\n\nData summary: {summary}"
    )
}

/// The JSON text of a value, compact or indented by two spaces, with non-ASCII characters
/// unescaped. Returns at most the first `bytes_max` bytes, cut at a character boundary, and the
/// total number of bytes.
pub(super) fn json_within(value: &Value, pretty: bool, bytes_max: usize) -> (String, u64) {
    let mut kept = Kept {
        bytes: Vec::new(),
        bytes_max,
        total: 0,
    };
    // Neither the writer nor the serialization of a `Value` can fail.
    let _ = if pretty {
        value.serialize(&mut serde_json::Serializer::pretty(&mut kept))
    } else {
        value.serialize(&mut serde_json::Serializer::new(&mut kept))
    };
    (into_text(kept.bytes), kept.total)
}

/// A writer that keeps the first bytes and counts the rest.
struct Kept {
    bytes: Vec<u8>,
    bytes_max: usize,
    total: u64,
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self
            .bytes_max
            .saturating_sub(self.bytes.len())
            .min(bytes.len());
        self.bytes
            .extend_from_slice(bytes.get(..room).unwrap_or_default());
        self.total = self.total.saturating_add(bytes.len() as u64);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Converts bytes that may end within a character, which is dropped.
fn into_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| {
        let whole = error.utf8_error().valid_up_to();
        let mut bytes = error.into_bytes();
        bytes.truncate(whole);
        String::from_utf8(bytes).unwrap_or_default()
    })
}

/// A string itself; any other value as JSON.
fn text_form(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn first_chars(value: &Value, chars: usize) -> String {
    match value {
        Value::String(text) => text.chars().take(chars).collect(),
        other => json_within(other, false, chars * 4)
            .0
            .chars()
            .take(chars)
            .collect(),
    }
}

/// Truthiness as in Python: null, false, zero and empty values are false.
fn is_truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(yes) => *yes,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}

/// A key in quotes, as Python shows it: `'id'`.
fn quoted(key: &str) -> String {
    let escaped = key
        .replace('\\', "\\\\")
        .replace('\n', "\\n")
        .replace('\r', "\\r");
    if key.contains('\'') && !key.contains('"') {
        format!("\"{escaped}\"")
    } else {
        format!("'{}'", escaped.replace('\'', "\\'"))
    }
}

/// Joins parts until the summary is full.
fn bounded_join(
    parts: impl Iterator<Item = String>,
    separator: &str,
    wrap: impl Fn(String) -> String,
) -> String {
    let mut joined = String::new();
    for part in parts {
        if joined.len() > SUMMARY_BYTES_MAX {
            break;
        }
        if !joined.is_empty() {
            joined.push_str(separator);
        }
        joined.push_str(&part);
    }
    wrap(joined)
}

/// Cuts a text at a character boundary and appends `…`.
fn shorten(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max - '…'.len_utf8()));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use OutputLevel::{Brief, Full, Standard};

    #[test]
    fn brief_is_one_line() {
        let check =
            |value: Value, expected: &str| assert_eq!(format(&value, Brief), expected, "{value}");

        check(json!([]), "Found 0 items");
        check(json!([1, 2, 3]), "Found 3 items");
        check(
            json!({ "success": true, "message": "saved" }),
            "Success: saved",
        );
        check(
            json!({ "success": false, "message": "no room" }),
            "Failed: no room",
        );
        check(json!({ "success": true }), "Success: Operation completed");
        check(
            json!({ "success": false, "message": null }),
            "Failed: Operation completed",
        );
        check(json!({ "success": 1, "message": 7 }), "Success: 7");
        for nothing in [
            json!(null),
            json!(0),
            json!(0.0),
            json!(""),
            json!([]),
            json!({}),
        ] {
            check(json!({ "success": nothing }), "Failed: Operation completed");
        }
        check(json!({ "message": "x", "n": 1 }), "Result has 2 fields");
        check(json!({}), "Result has 0 fields");
        check(json!(null), "null");
        check(json!(true), "true");
        check(json!("汉字"), "汉字");
        check(json!(-1.5), "-1.5");
    }

    #[test]
    fn cuts_are_in_characters() {
        for (chars, level) in [(100, Brief), (500, Standard)] {
            let exact = "😀".repeat(chars);
            assert_eq!(format(&json!(exact), level), exact);
            assert_eq!(format(&json!(format!("{exact}x")), level), exact);
        }
        let object = json!({ "k": "汉".repeat(1000) });
        let shown = format(&object, Standard);
        assert_eq!(
            (shown.chars().count(), shown),
            (500, format!("{{\n  \"k\": \"{}", "汉".repeat(500 - 10)))
        );
    }

    #[test]
    fn standard_shows_three_items_and_says_how_many_more() {
        let list =
            |n: usize| Value::Array((0..n).map(|i| json!({ "id": i, "name": "汉" })).collect());
        let line = |i: usize| format!("  - {{\"id\":{i},\"name\":\"汉\"}}");

        assert_eq!(format(&json!([]), Standard), "Found 0 items:\n");
        assert_eq!(
            format(&list(1), Standard),
            format!("Found 1 items:\n{}", line(0))
        );
        assert_eq!(
            format(&list(3), Standard),
            format!("Found 3 items:\n{}\n{}\n{}", line(0), line(1), line(2))
        );
        let four = format!(
            "Found 4 items:\n{}\n{}\n{}\n  ... and 1 more",
            line(0),
            line(1),
            line(2)
        );
        assert_eq!(format(&list(4), Standard), four);
        assert!(format(&list(10), Standard).ends_with("\n  ... and 7 more"));
        assert_eq!(
            format(&json!(["a\nb"]), Standard),
            "Found 1 items:\n  - \"a\\nb\""
        );
    }

    #[test]
    fn standard_objects_and_full_data_are_json_indented_by_two_with_characters_unescaped() {
        let value = json!({ "a": [1, { "b": "é汉" }] });
        let text = "{\n  \"a\": [\n    1,\n    {\n      \"b\": \"é汉\"\n    }\n  ]\n}";

        assert_eq!(format(&value, Standard), text);
        assert_eq!(format(&value, Full), text);
        assert_eq!(format(&json!([]), Full), "[]");
        assert_eq!(format(&json!("x"), Full), "\"x\"");
        assert_eq!(format(&json!("x"), Standard), "x");
        let long = json!({ "k": "v".repeat(600) });
        assert_eq!(format(&long, Standard).len(), 500);
        assert_eq!(format(&long, Full).len(), 600 + "{\n  \"k\": \"\"\n}".len());
    }

    #[test]
    fn summaries_read_as_specified() {
        let check = |value: Value, expected: &str| assert_eq!(summary(&value), expected);

        check(
            json!([{ "id": 1, "name": "x" }, 2]),
            "List with 2 items. First item keys: ['id', 'name']",
        );
        check(json!([]), "List with 0 items. First item keys: N/A");
        check(json!([1]), "List with 1 items. First item keys: N/A");
        check(json!([{}]), "List with 1 items. First item keys: []");
        check(
            json!([{ "it's": 1 }]),
            "List with 1 items. First item keys: [\"it's\"]",
        );
        check(
            json!({ "b": 1, "a": 2 }),
            "Dictionary with 2 keys. Top keys: a, b",
        );
        let eleven: serde_json::Map<_, _> = (10..21).map(|i| (format!("k{i}"), json!(i))).collect();
        check(
            Value::Object(eleven),
            "Dictionary with 11 keys. Top keys: k10, k11, k12, k13, k14, k15, k16, k17, k18, k19",
        );
        check(json!("汉".repeat(201)), &"汉".repeat(200));
        let huge: serde_json::Map<_, _> =
            (0..1000).map(|i| (format!("汉{i:04}"), json!(i))).collect();
        let huge = summary(&json!([huge]));
        assert!(
            huge.len() <= SUMMARY_BYTES_MAX && huge.ends_with('…'),
            "{huge}"
        );
    }

    #[test]
    fn stored_data_reads_as_specified() {
        let text = stored_text(
            &ArtifactId::from_content(b"abc"),
            "List with 1000 items. First item keys: ['id', 'name']",
        );

        assert_eq!(
            text,
            "Data stored as artifact: artifact_ba7816bf8f01cfea\n\nLarge dataset available for subsequent tool access.\n\nTo access this \
             data, reference the artifact_id in your next tool call.\nThe system will securely retrieve the data for you.\n\nData \
             summary: List with 1000 items. First item keys: ['id', 'name']"
        );
    }
}
