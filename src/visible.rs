//! Makes characters visible that a person does not see but a model or a terminal obeys: control
//! characters, text directions, zero-width characters, tags. Pure.
//!
//! All untrusted text goes through this table: definitions, results and errors of MCP servers,
//! descriptions of skills, web pages, and everything that the command line prints. Letters of every
//! script and emoji stay as they are.

use std::borrow::Cow;

use serde_json::Value;

/// Characters without a visible shape, in ascending order: Unicode's format characters (Cf),
/// fillers, variation selectors, the tags block, separators of lines and paragraphs. The few format
/// characters with a shape, such as Arabic number signs, are not included.
const INVISIBLE: &[(u32, u32)] = &[
    (0x00ad, 0x00ad),
    (0x034f, 0x034f),
    (0x061c, 0x061c),
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
    (0x13430, 0x1343f),
    (0x16fe4, 0x16fe4),
    (0x1bca0, 0x1bca3),
    (0x1d159, 0x1d159),
    (0x1d173, 0x1d17a),
    (0xe0000, 0xe0fff),
];

/// Whether a character has no shape: a control character other than a line end or a tab, or one of
/// the table.
pub fn is_invisible(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_control() && !matches!(c, '\n' | '\t');
    }
    let code = u32::from(c);
    let at = INVISIBLE.partition_point(|(_, to)| *to < code);
    c.is_control() || INVISIBLE.get(at).is_some_and(|(from, _)| *from <= code)
}

/// Returns the text with every invisible character as `\u{..}`.
///
/// Characters that ordinary text needs stay: a joiner between two emoji or two letters of a script
/// that joins (Arabic to Sinhala). A selector that only changes the look of the character before it
/// is dropped, because many descriptions contain a colored warning sign.
pub fn visible(text: &str) -> String {
    whole(text, VisibleStream::default())
}

/// As [`visible`], but also escapes joiners, selectors and the CR before a LF: with it, a shell ends a
/// command where LF alone would go on with it. For texts on which a person decides.
pub fn visible_strict(text: &str) -> String {
    whole(
        text,
        VisibleStream {
            strict: true,
            ..VisibleStream::default()
        },
    )
}

fn whole(text: &str, mut stream: VisibleStream) -> String {
    let mut shown = stream.push(text);
    shown.push_str(&stream.finish());
    shown
}

/// Tag names that delimit parts of a prompt.
const PROMPT_TAGS: &[&str] = &[
    "system",
    "developer",
    "assistant",
    "user",
    "human",
    "instructions",
    "function_",
    "tool_",
    "im_start",
    "im_end",
];

/// Prepares untrusted text for a prompt: [`visible`], and `&lt;` for `<` where a tag could end the
/// surrounding part or begin another one (`</system>`, `<|im_start|>`).
pub fn visible_material(text: &str) -> String {
    let shown = visible(text);
    let mut parts = shown.split('<');
    let mut material = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let inner = part.trim_start_matches(['/', ' ', '|']);
        let is_tag = part.starts_with('|')
            || PROMPT_TAGS.iter().any(|tag| {
                inner
                    .get(..tag.len())
                    .is_some_and(|start| start.eq_ignore_ascii_case(tag))
            });
        material.push_str(if is_tag { "&lt;" } else { "<" });
        material.push_str(part);
    }
    material
}

/// [`visible`] for a text that arrives in pieces. The result does not depend on where it was split.
#[derive(Debug, Clone)]
pub struct VisibleStream {
    strict: bool,
    /// The last character that was handled, and the one before it if that one was dropped.
    before: char,
    /// A character whose meaning depends on the next one.
    held: Option<char>,
}

impl Default for VisibleStream {
    fn default() -> Self {
        Self {
            strict: false,
            before: ' ',
            held: None,
        }
    }
}

impl VisibleStream {
    /// Returns the text that can be shown so far. At most one character is held back until the next
    /// piece.
    pub fn push(&mut self, text: &str) -> String {
        let mut shown = String::with_capacity(text.len());
        if self.held.is_none() && !text.contains(is_invisible) {
            shown.push_str(text);
            self.before = text.chars().next_back().unwrap_or(self.before);
            return shown;
        }
        for c in text.chars() {
            if let Some(held) = self.held.take() {
                self.decide(held, Some(c), &mut shown);
            }
            match c {
                '\r' | '\u{200c}' | '\u{200d}' | '\u{fe0e}' | '\u{fe0f}' => self.held = Some(c),
                c => self.decide(c, None, &mut shown),
            }
        }
        shown
    }

    /// Returns the character that was held back, and resets the stream.
    pub fn finish(&mut self) -> String {
        let mut shown = String::new();
        if let Some(held) = self.held.take() {
            self.decide(held, None, &mut shown);
        }
        self.before = ' ';
        shown
    }

    fn decide(&mut self, c: char, next: Option<char>, shown: &mut String) {
        let joins = |c: char| is_pictograph(c) || is_of_joining_script(c);
        match (c, next) {
            ('\r', Some('\n')) if !self.strict => {}
            ('\u{fe0e}' | '\u{fe0f}', next)
                if !self.strict
                    && !self.before.is_ascii_whitespace()
                    && !is_invisible(self.before)
                    && next.is_none_or(|next| next == '\u{200d}' || !is_invisible(next)) =>
            {
                return; // the character before it stays the last one
            }
            ('\u{200c}' | '\u{200d}', Some(next))
                if !self.strict
                    && joins(self.before)
                    && !is_invisible(next)
                    && is_pictograph(self.before) == is_pictograph(next)
                    && joins(next) =>
            {
                shown.push(c);
            }
            (c, _) if is_invisible(c) => shown.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
            (c, _) => shown.push(c),
        }
        self.before = c;
    }
}

/// Emoji and the characters that are part of them: close enough to Unicode's list to judge joiners.
fn is_pictograph(c: char) -> bool {
    matches!(c, '\u{2190}'..='\u{27bf}' | '\u{2900}'..='\u{2bff}' | '\u{1f000}'..='\u{1faff}')
}

/// Letters of scripts in which a joiner changes the shape of its neighbors: Arabic, Syriac, and
/// Indic scripts.
fn is_of_joining_script(c: char) -> bool {
    matches!(c, '\u{0620}'..='\u{08ff}' | '\u{0900}'..='\u{0dff}' | '\u{fb50}'..='\u{fdff}' | '\u{fe70}'..='\u{fefc}')
        && !is_invisible(c)
}

/// [`visible`], on one line, cut after `chars_max` characters.
pub fn visible_line(text: &str, chars_max: usize) -> String {
    let flat = visible(text);
    let mut words = flat.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((at, _)) = words.char_indices().nth(chars_max) {
        words.truncate(at);
        words.push('…');
    }
    words
}

/// [`visible`] for every string and key of a value, whose depth serde_json limits to 128.
pub fn visible_value(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(visible(text)),
        Value::Array(items) => Value::Array(items.iter().map(visible_value).collect()),
        Value::Object(fields) => Value::Object(
            fields
                .iter()
                .map(|(name, value)| (visible(name), visible_value(value)))
                .collect(),
        ),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// Returns the same JSON with every invisible character of its strings as `\uXXXX`: a terminal
/// obeys U+009B like ESC.
pub fn escaped_json(json: &str) -> Cow<'_, str> {
    let hides = |c: char| (!c.is_ascii() || c == '\u{7f}') && is_invisible(c);
    if !json.contains(hides) {
        return Cow::Borrowed(json);
    }
    let mut escaped = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        // JSON outside of its strings is ASCII.
        if hides(c) {
            c.encode_utf16(&mut [0; 2])
                .iter()
                .for_each(|unit| escaped.push_str(&format!("\\u{unit:04x}")));
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
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
            ("c1\u{9b}31m", "c1\\u{9b}31m"),
            ("⚠\u{fe0f} careful", "⚠ careful"),
            (
                "a\u{fe0f}\u{fe00}\u{e0101}",
                "a\\u{fe0f}\\u{fe00}\\u{e0101}",
            ),
            ("\u{fe0f}", "\\u{fe0f}"),
            ("line\r\nend\r", "line\nend\\u{d}"),
            ("over\rwritten", "over\\u{d}written"),
        ] {
            assert_eq!(visible(given), expected);
            assert!(!visible(given).chars().any(is_invisible), "{given:?}");
        }
    }

    #[test]
    fn honest_text_of_every_script_stays_readable() {
        for text in [
            "مرحبا بالعالم، كيف الحال؟ \u{6dd}١",
            "שלום עולם, מה שלומך?",
            "می\u{200c}خواهم بدانم",
            "क्\u{200d}ष और श्\u{200d}री",
            "👩\u{200d}💻 👨\u{200d}👩\u{200d}👧 🏳\u{200d}🌈 👍🏽 🇩🇪",
            "日本語 한국어 Ελληνικά ไทย",
        ] {
            assert_eq!(visible(text), text);
        }
        assert_eq!(visible("❤\u{fe0f}\u{200d}🔥"), "❤\u{200d}🔥");
    }

    #[test]
    fn a_joiner_that_joins_nothing_is_shown() {
        for (given, expected) in [
            ("ls\u{200d}x", "ls\\u{200d}x"),
            ("👩\u{200d}rm", "👩\\u{200d}rm"),
            ("👩\u{200d}", "👩\\u{200d}"),
            ("👩\u{200d}\u{200d}👩", "👩\\u{200d}\\u{200d}👩"),
            ("م\u{200c}a", "م\\u{200c}a"),
        ] {
            assert_eq!(visible(given), expected);
        }
        assert_eq!(
            visible_strict("👩\u{200d}💻⚠\u{fe0f}می\u{200c}خ"),
            "👩\\u{200d}💻⚠\\u{fe0f}می\\u{200c}خ"
        );
    }

    #[test]
    fn a_command_that_a_carriage_return_splits_is_not_shown_as_one() {
        assert_eq!(
            visible_strict("echo it is clean \\\r\n  touch x"),
            "echo it is clean \\\\u{d}\n  touch x"
        );
    }

    #[test]
    fn where_a_stream_is_cut_makes_no_difference() {
        let text = "a\u{202e}b 👩\u{200d}💻 ⚠\u{fe0f}\u{200d}x می\u{200c}خ line\r\nend\r \u{1b}[0m\u{e0041}";
        for cut in text.char_indices().map(|(at, _)| at) {
            let (a, b) = text.split_at(cut);
            let mut stream = VisibleStream::default();
            assert_eq!(
                stream.push(a) + &stream.push(b) + &stream.finish(),
                visible(text),
                "cut at {cut}"
            );
        }
        let mut stream = VisibleStream::default();
        let by_character: String = text.chars().map(|c| stream.push(&c.to_string())).collect();
        assert_eq!(by_character + &stream.finish(), visible(text));
    }

    #[test]
    fn no_format_character_passes() {
        for code in (0..0x11_0000)
            .filter_map(char::from_u32)
            .filter(|c| is_invisible(*c))
        {
            for text in [
                format!("a{code}{code}b"),
                format!("{code}"),
                format!("x{code}"),
            ] {
                assert!(
                    !visible_strict(&text).chars().any(is_invisible),
                    "{:x}",
                    u32::from(code)
                );
                assert!(
                    !visible(&text).chars().any(is_invisible),
                    "{:x}",
                    u32::from(code)
                );
            }
        }
        assert!(
            INVISIBLE.windows(2).all(|pair| pair[0].1 < pair[1].0),
            "the table is searched by halves"
        );
    }

    #[test]
    fn keys_and_texts_of_a_schema_are_shown() {
        let schema = serde_json::json!({"properties": {"a\u{200b}": {"description": "x\u{2066}", "enum": ["\u{e0041}"]}}});

        let expected = serde_json::json!({"properties": {"a\\u{200b}": {"description": "x\\u{2066}", "enum": ["\\u{e0041}"]}}});
        assert_eq!(visible_value(&schema), expected);
    }

    #[test]
    fn escaped_json_is_the_same_value_without_a_character_that_a_terminal_obeys() {
        let nasty: String = (0x7f..0x11_0000)
            .filter_map(char::from_u32)
            .filter(|c| is_invisible(*c))
            .collect();
        let value = serde_json::json!({ "k\u{202e}": nasty, "plain": "ü 漢 😀\n\u{1b}" });

        for json in [
            value.to_string(),
            serde_json::to_string_pretty(&value).unwrap(),
        ] {
            let escaped = escaped_json(&json);
            assert!(!escaped.chars().any(is_invisible));
            assert_eq!(serde_json::from_str::<Value>(&escaped).unwrap(), value);
        }
        assert!(matches!(escaped_json("{\"a\": \"ü\"}\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn a_tag_of_a_prompt_is_no_tag_in_material() {
        for (given, expected) in [
            ("a </system> b", "a &lt;/system> b"),
            ("<System-Reminder>x", "&lt;System-Reminder>x"),
            ("< / assistant>\u{200b}", "&lt; / assistant>\\u{200b}"),
            ("<|im_start|>user", "&lt;|im_start|>user"),
            (
                "a < b, <T>, <br> and Vec<u8>",
                "a < b, <T>, <br> and Vec<u8>",
            ),
        ] {
            assert_eq!(visible_material(given), expected);
        }
    }

    #[test]
    fn a_line_is_one_line_and_bounded() {
        assert_eq!(visible_line("a\n  b\u{200b}", 80), "a b\\u{200b}");
        assert_eq!(
            visible_line(&"x".repeat(90), 10),
            format!("{}…", "x".repeat(10))
        );
    }
}
