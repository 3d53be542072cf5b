//! The delta template: most lines of a stream differ only in their text, so a line with the bytes of the last fully
//! parsed one around its text need not be parsed (PERFORMANCE, point 1). Pure.
//!
//! Promise: what it tells is what the parser would tell. A middle without quote, backslash or control byte is the whole
//! inside of a JSON string, so the structure around it is the one that was parsed before.

use memchr::memchr2;

/// What surrounded the text of the last fully parsed delta, and what that delta was.
#[derive(Debug)]
pub(super) struct DeltaTemplate<K> {
    known: Option<K>,
    prefix: Vec<u8>,
    /// From the closing quote to the end.
    suffix: Vec<u8>,
    /// The suffix consists of closing marks and blanks only, so other blanks between them mean the same. Anthropic pads
    /// its events with blanks of random number.
    padded: bool,
}

impl<K: Copy> DeltaTemplate<K> {
    pub(super) fn new() -> Self {
        Self { known: None, prefix: Vec::new(), suffix: Vec::new(), padded: false }
    }

    /// Remembers a delta that did nothing but add `text`, which must be a part of `data`; else nothing is learnt.
    pub(super) fn learn(&mut self, data: &[u8], text: &str, kind: K) {
        self.known = None;
        let Some(at) = text.as_ptr().addr().checked_sub(data.as_ptr().addr()) else { return };
        let (Some(prefix), Some(middle), Some(suffix)) =
            (data.get(..at), data.get(at..at.saturating_add(text.len())), data.get(at.saturating_add(text.len())..))
        else {
            return;
        };
        if text.is_empty() || middle != text.as_bytes() || !prefix.ends_with(b"\"") || !suffix.starts_with(b"\"") {
            return;
        }
        self.prefix.clear();
        self.prefix.extend_from_slice(prefix);
        self.suffix.clear();
        self.suffix.extend_from_slice(suffix);
        self.padded = suffix.iter().skip(1).all(|byte| matches!(byte, b'}' | b']' | b' '));
        self.known = Some(kind);
    }

    /// The text of `data` if it has the known shape.
    pub(super) fn text<'a>(&self, data: &'a [u8]) -> Option<(K, &'a str)> {
        let kind = self.known?;
        let rest = data.strip_prefix(self.prefix.as_slice())?;
        let end = memchr2(b'"', b'\\', rest)?;
        let (middle, suffix) = rest.split_at(end);
        if suffix != self.suffix && !(self.padded && same_but_blanks(suffix, &self.suffix)) {
            return None;
        }
        // Without a short cut, so that it is done for many bytes at once.
        if middle.iter().fold(false, |found, byte| found | (*byte < 0x20)) {
            return None;
        }
        Some((kind, std::str::from_utf8(middle).ok()?))
    }
}

fn same_but_blanks(a: &[u8], b: &[u8]) -> bool {
    a.iter().filter(|byte| **byte != b' ').eq(b.iter().filter(|byte| **byte != b' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learnt(data: &str, text: &str) -> DeltaTemplate<u8> {
        let mut template = DeltaTemplate::new();
        let at = data.find(text).unwrap();
        template.learn(data.as_bytes(), &data[at..at + text.len()], 7);
        template
    }

    #[test]
    fn only_a_line_of_the_same_shape_is_taken() {
        let template = learnt(r#"{"i":0,"d":{"text":"Hello"} }"#, "Hello");

        for (line, text) in [
            (r#"{"i":0,"d":{"text":" wörld"} }"#, Some(" wörld")),
            (r#"{"i":0,"d":{"text":" more blanks"}       }"#, Some(" more blanks")),
            (r#"{"i":0,"d":{"text":""}}"#, Some("")),
            (r#"{"i":0,"d":{"text":"a\nb"} }"#, None),
            (r#"{"i":0,"d":{"text":"a"b"} }"#, None),
            (r#"{"i":1,"d":{"text":"a"} }"#, None),
            (r#"{"i":0,"d":{"text":"a"} ]"#, None),
            (r#"{"i":0,"d":{"text":"a"},"x":1}"#, None),
            (r#"{"i":0,"d":{"text":"a"#, None),
            ("{\"i\":0,\"d\":{\"text\":\"tab\t\"} }", None),
        ] {
            assert_eq!(template.text(line.as_bytes()), text.map(|text| (7, text)), "{line}");
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

        template.learn(br#"{"text":"a\"b"}"#, "a\"b", 7);

        assert_eq!(template.text(br#"{"text":"x"}"#), None);
    }
}
