//! Skips JSON parsing for most lines of a stream. Consecutive deltas differ only in their text, so
//! a line with the same bytes around its text as the last parsed one needs no parser. An event that
//! is written exactly like the last one is not even split into lines. Pure.
//!
//! Promise: the result equals the parser's. Text without a quote, backslash or control byte is the
//! whole inside of a JSON string, so the structure around it is the one that was parsed before.

use callboard_actors::limits::SSE_EVENT_BYTES_MAX;
use memchr::{memchr, memchr2};

use super::sse::SseEvent;

/// The end of an event with the usual line ends.
const END: &[u8] = b"\n\n";

/// The bytes around the text of the last parsed delta, and the kind of that delta.
#[derive(Debug)]
pub(super) struct DeltaTemplate<K> {
    known: Option<K>,
    /// The event up to its text in the usual form: the line of its name, if any, and the start of
    /// its data.
    head: Vec<u8>,
    /// Offset in `head` where the data begins.
    data_at: usize,
    /// From the closing quote to the end of the event.
    tail: Vec<u8>,
    /// Whether the data was one line, so that a whole event may be recognized by its bytes.
    one_line: bool,
    /// Whether the suffix consists of closing marks and blanks only; other blanks between them then
    /// mean the same. Anthropic pads its events with a random number of blanks.
    padded: bool,
}

impl<K: Copy> DeltaTemplate<K> {
    pub(super) fn new() -> Self {
        Self {
            known: None,
            head: Vec::new(),
            data_at: 0,
            tail: Vec::new(),
            one_line: false,
            padded: false,
        }
    }

    /// The kind of the remembered delta, if there is one.
    pub(super) fn known(&self) -> Option<K> {
        self.known
    }

    /// Remembers a delta that did nothing but add `text`, which must be a slice of the event's
    /// data. Otherwise the template is cleared.
    pub(super) fn learn(&mut self, event: SseEvent<'_>, text: &str, kind: K) {
        let SseEvent { name, data } = event;
        self.known = None;
        let Some(at) = text.as_ptr().addr().checked_sub(data.as_ptr().addr()) else {
            return;
        };
        let (Some(prefix), Some(middle), Some(suffix)) = (
            data.get(..at),
            data.get(at..at.saturating_add(text.len())),
            data.get(at.saturating_add(text.len())..),
        ) else {
            return;
        };
        if text.is_empty()
            || middle != text.as_bytes()
            || !prefix.ends_with(b"\"")
            || !suffix.starts_with(b"\"")
        {
            return;
        }
        self.head.clear();
        if !name.is_empty() {
            self.head
                .extend([b"event: ", name, b"\n"].into_iter().flatten());
        }
        self.head.extend_from_slice(b"data: ");
        self.data_at = self.head.len();
        self.head.extend_from_slice(prefix);
        self.tail.clear();
        self.tail.extend([suffix, END].into_iter().flatten());
        self.one_line = memchr(b'\n', prefix)
            .or_else(|| memchr(b'\n', suffix))
            .is_none();
        self.padded = suffix
            .iter()
            .skip(1)
            .all(|byte| matches!(byte, b'}' | b']' | b' '));
        self.known = Some(kind);
    }

    /// Appends the texts of leading events to `texts`, as long as each is complete, matches the
    /// template and uses the usual line ends. Each text is valid UTF-8. Returns the remaining
    /// bytes. `bytes` must start where an event may begin.
    pub(super) fn texts<'a>(&self, bytes: &'a [u8], texts: &mut Vec<u8>) -> &'a [u8] {
        let mut rest = bytes;
        if self.known.is_some() && self.one_line {
            while let Some((text, after)) = self.event(rest) {
                texts.extend_from_slice(text);
                rest = after;
            }
        }
        rest
    }

    fn event<'a>(&self, bytes: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        let rest = bytes.strip_prefix(self.head.as_slice())?;
        let (end, is_ascii) = end_of_text(rest)?;
        let (middle, tail) = rest.split_at(end);
        let after = match tail.strip_prefix(self.tail.as_slice()) {
            Some(after) => after,
            None if self.padded => {
                let (suffix, end) = tail.split_at(memchr(b'\n', tail)?);
                end.strip_prefix(END)
                    .filter(|_| same_but_blanks(suffix, self.suffix()))?
            }
            None => return None,
        };
        // Longer events are left to the decoder, which refuses them.
        let fits = bytes.len() - after.len() <= SSE_EVENT_BYTES_MAX;
        (fits && (is_ascii || std::str::from_utf8(middle).is_ok())).then_some((middle, after))
    }

    fn suffix(&self) -> &[u8] {
        self.tail.strip_suffix(END).unwrap_or_default()
    }

    /// The text of `data` if it matches the template.
    pub(super) fn text<'a>(&self, data: &'a [u8]) -> Option<(K, &'a str)> {
        let kind = self.known?;
        let rest = data.strip_prefix(self.head.get(self.data_at..)?)?;
        let end = memchr2(b'"', b'\\', rest)?;
        let (middle, suffix) = rest.split_at(end);
        if suffix != self.suffix() && !(self.padded && same_but_blanks(suffix, self.suffix())) {
            return None;
        }
        // No early exit, so that the compiler can vectorize the loop.
        if middle
            .iter()
            .fold(false, |found, byte| found | (*byte < 0x20))
        {
            return None;
        }
        Some((kind, std::str::from_utf8(middle).ok()?))
    }
}

/// Finds the first quote, backslash or control byte, eight bytes at a time, and whether all bytes
/// before it are ASCII.
fn end_of_text(bytes: &[u8]) -> Option<(usize, bool)> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    // The lowest mark is exact: a borrow only reaches bytes above it.
    let below = |word: u64, bound: u64| word.wrapping_sub(ONES * bound) & !word & HIGH;
    let mut at = 0;
    let mut high = 0;
    while let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        let word = u64::from_le_bytes(*word);
        let stops = below(word ^ (ONES * u64::from(b'"')), 1)
            | below(word ^ (ONES * u64::from(b'\\')), 1)
            | below(word, 0x20);
        if stops != 0 {
            let end = stops.trailing_zeros() / 8;
            let before = (1 << (8 * end)) - 1;
            return Some((at + end as usize, (high | word & before) & HIGH == 0));
        }
        high |= word;
        at += 8;
    }
    let rest = bytes.get(at..)?;
    let end = rest
        .iter()
        .position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20))?;
    Some((at + end, high & HIGH == 0 && rest.get(..end)?.is_ascii()))
}

fn same_but_blanks(a: &[u8], b: &[u8]) -> bool {
    a.iter()
        .filter(|byte| **byte != b' ')
        .eq(b.iter().filter(|byte| **byte != b' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learnt(data: &str, text: &str) -> DeltaTemplate<u8> {
        let mut template = DeltaTemplate::new();
        let at = data.find(text).unwrap();
        template.learn(
            SseEvent {
                name: b"",
                data: data.as_bytes(),
            },
            &data[at..at + text.len()],
            7,
        );
        template
    }

    fn texts<'a>(template: &DeltaTemplate<u8>, bytes: &'a [u8]) -> (Vec<u8>, &'a [u8]) {
        let mut texts = Vec::new();
        let after = template.texts(bytes, &mut texts);
        (texts, after)
    }

    #[test]
    fn only_a_line_of_the_same_shape_is_taken() {
        let template = learnt(r#"{"i":0,"d":{"text":"Hello"} }"#, "Hello");

        for (line, text) in [
            (r#"{"i":0,"d":{"text":" wörld"} }"#, Some(" wörld")),
            (
                r#"{"i":0,"d":{"text":" more blanks"}       }"#,
                Some(" more blanks"),
            ),
            (r#"{"i":0,"d":{"text":""}}"#, Some("")),
            (r#"{"i":0,"d":{"text":"a\nb"} }"#, None),
            (r#"{"i":0,"d":{"text":"a"b"} }"#, None),
            (r#"{"i":1,"d":{"text":"a"} }"#, None),
            (r#"{"i":0,"d":{"text":"a"} ]"#, None),
            (r#"{"i":0,"d":{"text":"a"},"x":1}"#, None),
            (r#"{"i":0,"d":{"text":"a"#, None),
            ("{\"i\":0,\"d\":{\"text\":\"tab\t\"} }", None),
        ] {
            assert_eq!(
                template.text(line.as_bytes()),
                text.map(|text| (7, text)),
                "{line}"
            );
        }
        assert_eq!(template.text(b"{\"i\":0,\"d\":{\"text\":\"\xff\"} }"), None);
    }

    #[test]
    fn blanks_matter_where_the_suffix_holds_more_than_closing_marks() {
        let template = learnt(r#"{"text":"Hello","n":12}"#, "Hello");

        assert_eq!(template.text(br#"{"text":"x","n":12}"#), Some((7, "x")));
        assert_eq!(template.text(br#"{"text":"x","n":1 2}"#), None);
    }

    #[test]
    fn a_text_that_is_no_part_of_the_line_teaches_nothing() {
        let mut template = DeltaTemplate::new();

        template.learn(
            SseEvent {
                name: b"",
                data: br#"{"text":"a\"b"}"#,
            },
            "a\"b",
            7,
        );

        assert_eq!(template.text(br#"{"text":"x"}"#), None);
    }

    #[test]
    fn the_end_of_a_text_is_found_at_every_place_and_behind_every_byte() {
        for before in 0..20 {
            for byte in 0..=u8::MAX {
                for end in [b'"', b'\\', b'\n', 0] {
                    let mut bytes = vec![b'a'; before];
                    bytes.extend([byte, end, b'"', 0xff, b' ', 0xff]);
                    let place = bytes
                        .iter()
                        .position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20))
                        .unwrap();

                    assert_eq!(
                        end_of_text(&bytes),
                        Some((place, bytes[..place].is_ascii())),
                        "{before} {byte} {end}"
                    );
                }
            }
            assert_eq!(end_of_text(&vec![b'a'; before]), None);
        }
    }

    #[test]
    fn a_whole_event_is_known_by_its_bytes_and_any_other_is_not() {
        let mut template = DeltaTemplate::new();
        let data = r#"{"i":0,"d":{"text":"Hello"} }"#;
        template.learn(
            SseEvent {
                name: b"delta",
                data: data.as_bytes(),
            },
            &data[20..25],
            7,
        );

        for (bytes, known) in [
            (
                "event: delta\ndata: {\"i\":0,\"d\":{\"text\":\" wörld\"} }\n\nevent: x",
                Some((" wörld", "event: x")),
            ),
            (
                "event: delta\ndata: {\"i\":0,\"d\":{\"text\":\"\"}}   \n\n",
                Some(("", "")),
            ),
            (
                "event: delta\ndata: {\"i\":0,\"d\":{\"text\":\"a\\nb\"} }\n\n",
                None,
            ),
            (
                "event: delta\ndata: {\"i\":0,\"d\":{\"text\":\"a\tb\"} }\n\n",
                None,
            ),
            (
                "event: delta\ndata: {\"i\":0,\"d\":{\"text\":\"a\"} }\ndata: 1\n\n",
                None,
            ),
            (
                "event: delta\ndata: {\"i\":0,\"d\":{\"text\":\"a\"}\n\n}\n\n",
                None,
            ),
            (
                "event: delta\ndata: {\"i\":0,\"d\":{\"text\":\"a\"} }\n",
                None,
            ),
            (
                "event: delta\ndata: {\"i\":0,\"d\":{\"text\":\"a\"} }\r\n\r\n",
                None,
            ),
            (
                "event: other\ndata: {\"i\":0,\"d\":{\"text\":\"a\"} }\n\n",
                None,
            ),
            ("data: {\"i\":0,\"d\":{\"text\":\"a\"} }\n\n", None),
        ] {
            let (text, after) = known.unwrap_or(("", bytes));
            assert_eq!(
                texts(&template, bytes.as_bytes()),
                (text.as_bytes().to_vec(), after.as_bytes()),
                "{bytes}"
            );
        }
    }

    #[test]
    fn a_letter_that_two_events_share_is_none() {
        let mut template = DeltaTemplate::new();
        let data = b"\"Hello\"";
        template.learn(
            SseEvent { name: b"", data },
            std::str::from_utf8(&data[1..6]).unwrap(),
            7,
        );

        let whole = "data: \"é\"\n\ndata: \"a\"\n\n".as_bytes();
        let torn = b"data: \"a\"\n\ndata: \"\xc3\"\n\ndata: \"\xa9\"\n\n";

        assert_eq!(texts(&template, whole), ("éa".as_bytes().to_vec(), &[][..]));
        assert_eq!(texts(&template, torn), (b"a".to_vec(), &torn[11..]));
    }

    #[test]
    fn data_of_two_lines_is_not_known_by_its_bytes() {
        let template = learnt("{\"i\":0,\n\"text\":\"Hello\"}", "Hello");

        let bytes = b"data: {\"i\":0,\n\"text\":\"a\"}\n\n";
        assert_eq!(texts(&template, bytes), (Vec::new(), &bytes[..]));
        assert_eq!(template.text(b"{\"i\":0,\n\"text\":\"a\"}"), Some((7, "a")));
    }
}
