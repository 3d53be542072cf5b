//! Masks secrets in everything that leaves the process: configured keys exactly, other keys by the
//! known shapes in `crate::mask`.
//!
//! **Invariant:** a host has one [`Redactor`]. Every configured key is registered before it is
//! used.

use std::{
    io::{self, Write},
    sync::Arc,
};

use parking_lot::RwLock;

use crate::mask::{self, Masker};

/// Shortest secret that is masked; masking shorter ones would hide ordinary words.
const SECRET_BYTES_MIN: usize = 6;

/// The secrets of this process. Clones share them, so a secret registered later is masked by all.
/// Cheap to clone.
#[derive(Clone, Default)]
pub struct Redactor(Arc<RwLock<Arc<Known>>>);

#[derive(Default)]
struct Known {
    masker: Masker,
    secrets: Vec<String>,
    /// The distinct first bytes of the secrets.
    first: Vec<u8>,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Redactor({} secrets)", self.known().secrets.len())
    }
}

impl Redactor {
    /// A redactor for these secrets.
    pub fn new(secrets: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let redactor = Self::default();
        redactor.learn(secrets);
        redactor
    }

    /// Registers more secrets, for example a key that was generated just now.
    pub fn learn(&self, secrets: impl IntoIterator<Item = impl Into<String>>) {
        let mut known = self.0.write();
        let mut all = known.secrets.clone();
        for secret in secrets {
            all.extend(
                forms(secret.into().trim())
                    .into_iter()
                    .filter(|secret| secret.len() >= SECRET_BYTES_MIN),
            );
        }
        all.sort();
        all.dedup();
        let mut first: Vec<u8> = all
            .iter()
            .filter_map(|secret| secret.bytes().next())
            .collect();
        first.dedup();
        *known = Arc::new(Known {
            masker: Masker::new(all.clone()),
            secrets: all,
            first,
        });
    }

    /// Masks registered secrets and keys of known shapes.
    pub fn mask(&self, text: &str) -> String {
        self.known().masker.mask(text)
    }

    /// Masks only registered secrets; a text that merely looks like a key may be an example.
    pub fn mask_exact(&self, text: &str) -> String {
        self.known().masker.mask_exact(text)
    }

    /// Masks a text that its author may have truncated. If it ends in `…`, the beginning of a
    /// secret at its end is removed as well.
    pub fn mask_cut(&self, text: &str) -> String {
        let Some(whole) = text.strip_suffix('…') else {
            return self.mask(text);
        };
        let known = self.known();
        let (whole, half) = whole
            .split_at_checked(whole.len() - known.beginning(whole.as_bytes()))
            .unwrap_or((whole, ""));
        // A few letters are more likely the end of a word than the beginning of a secret.
        let whole = known.masker.mask(&if half.len() < SECRET_BYTES_MIN {
            [whole, half].concat()
        } else {
            whole.to_owned()
        });
        format!("{whole}…")
    }

    /// Masks registered secrets in a text that arrives in pieces.
    pub fn stream(&self) -> RedactingStream {
        RedactingStream {
            redactor: self.clone(),
            before: String::new(),
            held: String::new(),
        }
    }

    /// A writer that masks secrets before `inner`, including those split over several writes.
    pub fn writer<W: Write>(&self, inner: W) -> RedactingWriter<W> {
        RedactingWriter {
            redactor: self.clone(),
            inner,
            held: Vec::new(),
        }
    }

    fn known(&self) -> Arc<Known> {
        self.0.read().clone()
    }
}

/// The forms in which a secret may be written. It may contain quotes or backslashes and appear in
/// JSON, in JSON inside of a JSON string, or in `Debug` output.
fn forms(secret: &str) -> [String; 4] {
    let json = |text: &str| {
        let written = serde_json::Value::from(text).to_string();
        written
            .strip_prefix('"')
            .and_then(|rest| rest.strip_suffix('"'))
            .unwrap_or(text)
            .to_owned()
    };
    let once = json(secret);
    let debug = secret.escape_debug().to_string();
    [secret.to_owned(), json(&once), once, debug]
}

impl Known {
    fn longest(&self) -> usize {
        self.secrets.iter().map(String::len).max().unwrap_or(0)
    }

    /// Where `text` ends with the greater part of a secret, which the next part of an answer may complete.
    fn cut_span(&self, text: &str) -> Option<(usize, usize)> {
        let begins = text.len() - self.beginning(text.as_bytes());
        let cut = text
            .get(begins..)
            .filter(|cut| cut.len() >= SECRET_BYTES_MIN)?;
        let is_most = |secret: &String| secret.starts_with(cut) && secret.len() <= 2 * cut.len();
        let is_most = self.secrets.iter().any(is_most);
        is_most.then_some((begins, text.len()))
    }

    /// Number of bytes at the end of `text` that may be the beginning of a secret: at most the
    /// longest secret's length less one.
    ///
    /// Runs for every piece of a streamed answer, so it compares secrets only where `text` has a
    /// first byte of one.
    fn beginning(&self, text: &[u8]) -> usize {
        let from = text.len().saturating_sub(self.longest().saturating_sub(1));
        let begins = |at: usize| {
            let rest = text.get(at..).unwrap_or_default();
            let is_first = rest.first().is_some_and(|byte| self.first.contains(byte));
            is_first
                && self
                    .secrets
                    .iter()
                    .any(|secret| secret.len() > rest.len() && secret.as_bytes().starts_with(rest))
        };
        (from..text.len())
            .find(|at| begins(*at))
            .map_or(0, |at| text.len() - at)
    }
}

/// Masks a text that arrives in pieces; holds back only what may be the beginning of a secret. The text may
/// have several parts, which readers join: a secret that begins in one and goes on in the next is no
/// more shown whole than another.
#[derive(Debug)]
pub struct RedactingStream {
    redactor: Redactor,
    /// The end of what was shown, before it was masked.
    before: String,
    held: String,
}

impl RedactingStream {
    /// Adds a piece; returns what can be shown.
    pub fn push(&mut self, text: &str) -> String {
        let known = self.redactor.known();
        if known.secrets.is_empty() && self.held.is_empty() {
            return text.to_owned();
        }
        self.held.push_str(text);
        let whole = [self.before.as_str(), &self.held].concat();
        let keep = known.beginning(whole.as_bytes()).min(self.held.len());
        let rest = self.held.split_off(self.held.len().saturating_sub(keep));
        let piece = std::mem::replace(&mut self.held, rest);
        self.show(&known, &piece, false)
    }

    /// Ends a part of the text; returns what was held back. Of a secret that the next part may complete the
    /// greater part is masked.
    pub fn finish(&mut self) -> String {
        let piece = std::mem::take(&mut self.held);
        let known = self.redactor.known();
        self.show(&known, &piece, true)
    }

    /// Masks a whole part of the text.
    pub fn part(&mut self, text: &str) -> String {
        self.held.push_str(text);
        self.finish()
    }

    /// Masks a piece by what comes before it.
    fn show(&mut self, known: &Known, piece: &str, is_end: bool) -> String {
        let begins = self.before.len();
        self.before.push_str(piece);
        let mut spans = known.masker.exact_spans(&self.before);
        spans.extend(is_end.then(|| known.cut_span(&self.before)).flatten());
        let spans = spans.into_iter().filter(|(_, end)| *end > begins);
        let spans = spans.map(|(start, end)| (start.saturating_sub(begins), end - begins));
        let shown = mask::replace(piece, spans.collect());
        let cut = self.before.len().saturating_sub(known.longest());
        self.before.drain(..self.before.ceil_char_boundary(cut));
        shown
    }
}

/// Masks secrets in lines. Of an unfinished line it holds back only what may be the beginning of a
/// secret, until more arrives, the line ends or the writer is dropped; `flush` does not release it.
pub struct RedactingWriter<W: Write> {
    redactor: Redactor,
    inner: W,
    held: Vec<u8>,
}

impl<W: Write> RedactingWriter<W> {
    /// Writes all but the last `keep` bytes.
    fn release(&mut self, keep: usize) -> io::Result<()> {
        let cut = self.held.len().saturating_sub(keep);
        let rest = self.held.split_off(cut);
        let text = std::mem::replace(&mut self.held, rest);
        if text.is_empty() {
            return Ok(());
        }
        self.inner.write_all(
            self.redactor
                .mask(&String::from_utf8_lossy(&text))
                .as_bytes(),
        )
    }

    /// Bytes of an unfinished line to hold back: the beginning of a secret, or of a UTF-8
    /// character.
    fn unfinished(&self) -> usize {
        if self.held.ends_with(b"\n") {
            return 0;
        }
        let character = match std::str::from_utf8(&self.held) {
            Ok(_) => 0,
            Err(error) if error.error_len().is_none() => self.held.len() - error.valid_up_to(),
            Err(_) => 0,
        };
        self.redactor.known().beginning(&self.held).max(character)
    }
}

impl<W: Write> Write for RedactingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.held.extend_from_slice(bytes);
        self.release(self.unfinished())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<W: Write> Drop for RedactingWriter<W> {
    fn drop(&mut self) {
        let _ = self.release(0);
        let _ = self.inner.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "plain-word-key-not-real";

    fn written(redactor: &Redactor, pieces: &[&[u8]]) -> String {
        let mut out = Vec::new();
        let mut writer = redactor.writer(&mut out);
        for piece in pieces {
            writer.write_all(piece).unwrap();
            writer.flush().unwrap();
        }
        drop(writer);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_key_split_over_two_writes_is_masked_at_every_byte() {
        let redactor = Redactor::new([KEY]);
        let line = format!("ü before {KEY} after ü\n").into_bytes();

        for cut in 0..=line.len() {
            let (a, b) = line.split_at(cut);
            assert_eq!(
                written(&redactor, &[a, b]),
                "ü before [masked:1] after ü\n",
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn a_key_that_comes_byte_by_byte_is_masked() {
        let redactor = Redactor::new([KEY, "plain-word-key-not-real-longer"]);
        let text = format!("{KEY} plain-word-key-not-real-longer x{KEY}");

        let pieces: Vec<&[u8]> = text.as_bytes().chunks(1).collect();

        assert!(
            !written(&redactor, &pieces).contains("plain-word"),
            "{}",
            written(&redactor, &pieces)
        );
    }

    #[test]
    fn only_the_possible_beginning_of_a_key_is_held_back() {
        let redactor = Redactor::new([KEY]);
        let mut out = Vec::new();
        let mut writer = redactor.writer(&mut out);

        writer.write_all(b"text at once, and plain-word").unwrap();

        assert_eq!(writer.held, b"plain-word");
        drop(writer);
        assert_eq!(out, b"text at once, and plain-word");
    }

    #[test]
    fn a_key_learnt_later_is_masked_in_every_sink_and_in_its_escaped_form() {
        let redactor = Redactor::default();
        let sink = redactor.clone();

        redactor.learn(["quote\"back\\slash-not-real", "tiny"]);

        assert_eq!(
            sink.mask("a quote\"back\\slash-not-real b tiny"),
            "a [masked:1] b tiny"
        );
        assert_eq!(
            sink.mask(&serde_json::json!({ "a": "quote\"back\\slash-not-real" }).to_string()),
            "{\"a\":\"[masked:1]\"}"
        );
        assert_eq!(format!("{redactor:?}"), "Redactor(3 secrets)");
    }

    #[test]
    fn a_key_in_json_that_stands_in_json_is_masked_at_every_byte_where_a_write_may_end() {
        let key = "quo\"te-and-back\\slash-not-real";
        let inner = serde_json::json!({ "key": key }).to_string();
        let twice = format!("{}\n", serde_json::json!({ "body": inner }));
        let redactor = Redactor::new([key]);

        for cut in 0..=twice.len() {
            let (a, b) = twice.as_bytes().split_at(cut);
            let text = written(&redactor, &[a, b]);
            assert!(
                text.contains("[masked:1]") && !text.contains("not-real"),
                "cut at {cut}: {text}"
            );
        }
    }

    #[test]
    fn a_key_in_a_stream_is_masked_wherever_the_stream_is_cut() {
        let redactor = Redactor::new([KEY]);
        let text = format!("ü before {KEY} after plain");

        for cut in (0..=text.len()).filter(|cut| text.is_char_boundary(*cut)) {
            let mut stream = redactor.stream();
            let shown = stream.push(&text[..cut]) + &stream.push(&text[cut..]) + &stream.finish();
            assert_eq!(shown, "ü before [masked:1] after plain", "cut at {cut}");
        }
        assert_eq!(Redactor::default().stream().push("as it is"), "as it is");
    }

    #[test]
    fn a_key_over_several_parts_of_a_text_is_never_shown_whole_nor_its_greater_part() {
        let redactor = Redactor::new([KEY]);
        let text = format!("before {KEY} after");
        for length in 1..text.len() {
            let (mut whole, mut pieces) = (redactor.stream(), redactor.stream());
            let (mut by_parts, mut by_pieces) = (String::new(), String::new());
            for part in text.as_bytes().chunks(length) {
                let part = std::str::from_utf8(part).unwrap();
                by_parts += &whole.part(part);
                let (one, two) = part.split_at(part.len() / 2);
                by_pieces += &(pieces.push(one) + &pieces.push(two) + &pieces.finish());
            }

            assert_eq!(by_parts, by_pieces, "parts of {length}");
            assert!(by_parts.starts_with("before ") && by_parts.ends_with(" after"));
            let shown = by_parts.replace("[masked:1]", "");
            let longest = (0..=KEY.len())
                .rev()
                .find(|end| shown.contains(&KEY[..*end]));
            assert!(
                longest.unwrap() * 2 <= KEY.len(),
                "parts of {length}: {by_parts}"
            );
        }
        let mut stream = redactor.stream();
        let half = KEY.len() / 2 - 1;
        assert_eq!(
            stream.part(&KEY[..half]) + &stream.part(" of it"),
            format!("{} of it", &KEY[..half])
        );
    }

    #[test]
    fn a_text_truncated_within_a_key_loses_the_keys_beginning() {
        let redactor = Redactor::new([KEY]);

        assert_eq!(redactor.mask_cut("bad plain-word-key-n…"), "bad …");
        assert_eq!(redactor.mask_cut("the end of a pl…"), "the end of a pl…");
        assert_eq!(
            redactor.mask_cut(&format!("{KEY} and more…")),
            "[masked:1] and more…"
        );
        assert_eq!(
            redactor.mask_cut("bad plain-word-key-n"),
            "bad plain-word-key-n",
            "it was not cut"
        );
    }

    #[test]
    fn known_shapes_are_masked_in_a_line() {
        let line = ["key sk-", "test-not-a-real-key end\n"].concat();

        assert_eq!(
            written(&Redactor::default(), &[line.as_bytes()]),
            "key [masked:1] end\n"
        );
    }
}
