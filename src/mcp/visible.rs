//! Makes invisible characters of a server's words visible: instructions can be hidden from a person, not from a model (FAULTS F9).
//! Pure.

use serde_json::Value;

/// Characters that are not seen but read by a model: Unicode's format characters (Cf), fillers, variation selectors, the tags
/// block, separators of lines and paragraphs.
const INVISIBLE: &[(u32, u32)] = &[
    (0x00ad, 0x00ad),
    (0x034f, 0x034f),
    (0x0600, 0x0605),
    (0x061c, 0x061c),
    (0x06dd, 0x06dd),
    (0x070f, 0x070f),
    (0x0890, 0x0891),
    (0x08e2, 0x08e2),
    (0x115f, 0x1160),
    (0x17b4, 0x17b5),
    (0x180b, 0x180f),
    (0x200b, 0x200f),
    (0x2028, 0x202e),
    (0x2060, 0x206f),
    (0x2800, 0x2800),
    (0x3164, 0x3164),
    (0xfe00, 0xfe0f),
    (0xfeff, 0xfeff),
    (0xffa0, 0xffa0),
    (0xfff0, 0xfffb),
    (0x110bd, 0x110bd),
    (0x110cd, 0x110cd),
    (0x13430, 0x1343f),
    (0x1bca0, 0x1bca3),
    (0x1d173, 0x1d17a),
    (0xe0000, 0xe0fff),
];

/// Whether a character is there without being seen.
pub fn is_invisible(c: char) -> bool {
    let code = u32::from(c);
    (c.is_control() && !matches!(c, '\n' | '\t')) || INVISIBLE.iter().any(|(from, to)| (*from..=*to).contains(&code))
}

/// The text with every invisible character as `\u{..}`. One selector that only chooses the look of the sign before it is dropped:
/// many honest descriptions hold a colored warning sign.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    let mut before = ' ';
    while let Some(c) = characters.next() {
        let chooses_look = matches!(c, '\u{fe0e}' | '\u{fe0f}')
            && !before.is_ascii_whitespace()
            && !is_invisible(before)
            && !characters.peek().is_some_and(|next| is_invisible(*next));
        match c {
            '\r' if characters.peek() == Some(&'\n') => {}
            _ if chooses_look => {}
            c if is_invisible(c) => shown.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
            c => shown.push(c),
        }
        before = c;
    }
    shown
}

/// [`visible`], on one line, cut at `chars_max`.
pub(super) fn visible_line(text: &str, chars_max: usize) -> String {
    let flat = visible(text);
    let mut words = flat.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((at, _)) = words.char_indices().nth(chars_max) {
        words.truncate(at);
        words.push('…');
    }
    words
}

/// [`visible`] for every text and key of a value, which is no deeper than serde_json reads (128).
pub(super) fn visible_value(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(visible(text)),
        Value::Array(items) => Value::Array(items.iter().map(visible_value).collect()),
        Value::Object(fields) => Value::Object(fields.iter().map(|(name, value)| (visible(name), visible_value(value))).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_shown() {
        for (given, expected) in [
            ("plain\ttext\nüñ漢字 🎉", "plain\ttext\nüñ漢字 🎉"),
            ("a\u{200b}b", "a\\u{200b}b"),
            ("\u{202e}evil\u{202c}", "\\u{202e}evil\\u{202c}"),
            ("x\u{e0049}\u{e0067}", "x\\u{e0049}\\u{e0067}"),
            ("soft\u{ad}hyphen\u{feff}", "soft\\u{ad}hyphen\\u{feff}"),
            ("bell\u{7}\u{1b}[31m", "bell\\u{7}\\u{1b}[31m"),
            ("⚠\u{fe0f} careful", "⚠ careful"),
            ("a\u{fe0f}\u{fe00}\u{e0101}", "a\\u{fe0f}\\u{fe00}\\u{e0101}"),
            ("\u{fe0f}", "\\u{fe0f}"),
            ("line\r\nend\r", "line\nend\\u{d}"),
        ] {
            assert_eq!(visible(given), expected);
            assert!(!visible(given).chars().any(is_invisible), "{given:?}");
        }
    }

    #[test]
    fn no_format_character_passes() {
        for code in (0..0x11_0000).filter_map(char::from_u32).filter(|c| is_invisible(*c)) {
            assert!(!visible(&format!("a{code}{code}b")).chars().any(is_invisible), "{:x}", u32::from(code));
        }
    }

    #[test]
    fn keys_and_texts_of_a_schema_are_shown() {
        let schema = serde_json::json!({"properties": {"a\u{200b}": {"description": "x\u{2066}", "enum": ["\u{e0041}"]}}});

        let expected = serde_json::json!({"properties": {"a\\u{200b}": {"description": "x\\u{2066}", "enum": ["\\u{e0041}"]}}});
        assert_eq!(visible_value(&schema), expected);
    }

    #[test]
    fn a_line_is_one_line_and_bounded() {
        assert_eq!(visible_line("a\n  b\u{200b}", 80), "a b\\u{200b}");
        assert_eq!(visible_line(&"x".repeat(90), 10), format!("{}…", "x".repeat(10)));
    }
}
