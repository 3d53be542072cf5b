//! Says in JSON's words what serde says in Rust's: which value a field needs, and what it has. Pure.

/// Translates a message of serde about a value of the wrong type, such as ``invalid type: string
/// "a", expected u64``. Other messages stay as they are.
pub(super) fn wrong_type(message: &str) -> String {
    let given_and_wanted = ["invalid type: ", "invalid value: "]
        .iter()
        .find_map(|start| message.strip_prefix(start))
        .and_then(|rest| rest.rsplit_once(", expected "));
    match given_and_wanted {
        Some((given, expected)) => format!("send {}, not {}", wanted(expected), found(given)),
        None => message.to_owned(),
    }
}

/// Translates a message of serde about the text of a parameter in a query.
pub(super) fn wrong_text(message: &str) -> &str {
    match message {
        "invalid digit found in string" | "cannot parse integer from empty string" => {
            "must be a whole number of 0 or more"
        }
        "number too large to fit in target type" => "is too large",
        "provided string was not `true` or `false`" => "must be `true` or `false`",
        other => other,
    }
}

fn wanted(expected: &str) -> &str {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => "a whole number of 0 or more",
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "`true` or `false`",
        "a sequence" => "an array",
        "a map" => "an object",
        name if name.starts_with("struct ") || name.starts_with("internally tagged enum ") => {
            "an object"
        }
        other => other,
    }
}

fn found(given: &str) -> String {
    let number = |text: &str| format!("the number {}", text.trim_matches('`'));
    match given.split_once(' ') {
        Some(("string", text)) => format!("the string {text}"),
        Some(("integer", text)) => number(text),
        Some(("floating", text)) => number(text.trim_start_matches("point ")),
        Some(("boolean", text)) => text.to_owned(),
        _ => match given {
            "map" => "an object".to_owned(),
            "sequence" => "an array".to_owned(),
            other => other.to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_the_wrong_type_is_said_in_the_words_of_json() {
        for (serde, ours) in [
            (
                r#"invalid type: string "a, expected b", expected u64"#,
                r#"send a whole number of 0 or more, not the string "a, expected b""#,
            ),
            (
                "invalid value: integer `-1`, expected u32",
                "send a whole number of 0 or more, not the number -1",
            ),
            (
                "invalid type: floating point `1.5`, expected usize",
                "send a whole number of 0 or more, not the number 1.5",
            ),
            (
                "invalid type: map, expected a sequence",
                "send an array, not an object",
            ),
            (
                "invalid type: boolean `true`, expected struct Ask",
                "send an object, not `true`",
            ),
            ("missing field `content`", "missing field `content`"),
        ] {
            assert_eq!(wrong_type(serde), ours);
        }
        assert_eq!(
            wrong_text("invalid digit found in string"),
            "must be a whole number of 0 or more"
        );
    }
}
