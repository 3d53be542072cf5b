//! Masks keys in whatever leaves the process (FAULTS F8): configured keys always, known shapes as `tools::mask` knows them.
//!
//! **Invariant:** one [`Redactor`] a host. It learns every configured key before anything is done with it.

use std::{
    io::{self, Write},
    sync::{Arc, PoisonError, RwLock},
};

use crate::tools::mask::Masker;

/// Shorter keys would hide ordinary words; `tools::mask` passes over them too.
const SECRET_BYTES_MIN: usize = 6;

/// Knows the keys of this process; all sinks share one, so that a key learnt later is masked everywhere. Cheap to clone.
#[derive(Clone, Default)]
pub struct Redactor(Arc<RwLock<Arc<Known>>>);

#[derive(Default)]
struct Known {
    masker: Masker,
    secrets: Vec<String>,
    /// The bytes with which they begin, each once.
    first: Vec<u8>,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Redactor({} secrets)", self.known().secrets.len())
    }
}

impl Redactor {
    /// Knows these keys.
    pub fn new(secrets: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let redactor = Self::default();
        redactor.learn(secrets);
        redactor
    }

    /// Learns more keys, such as a tenant's that was made just now.
    pub fn learn(&self, secrets: impl IntoIterator<Item = impl Into<String>>) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let mut all = known.secrets.clone();
        for secret in secrets {
            all.extend(forms(secret.into().trim()).into_iter().filter(|secret| secret.len() >= SECRET_BYTES_MIN));
        }
        all.sort();
        all.dedup();
        let mut first: Vec<u8> = all.iter().filter_map(|secret| secret.bytes().next()).collect();
        first.dedup();
        *known = Arc::new(Known { masker: Masker::new(all.clone()), secrets: all, first });
    }

    /// The text without keys.
    pub fn mask(&self, text: &str) -> String {
        self.known().masker.mask(text)
    }

    /// The text without the keys that are known exactly; what merely looks like one stays, for it may be an example.
    pub fn mask_exact(&self, text: &str) -> String {
        self.known().masker.mask_exact(text)
    }

    /// Masks words of others that were cut to a length: a text that ends in `…` may end within a key, whose beginning goes too.
    pub fn mask_cut(&self, text: &str) -> String {
        let Some(whole) = text.strip_suffix('…') else { return self.mask(text) };
        let known = self.known();
        let (whole, half) = whole.split_at_checked(whole.len() - known.beginning(whole.as_bytes())).unwrap_or((whole, ""));
        // Few letters are the end of a word more often than the beginning of a key.
        let whole = known.masker.mask(&if half.len() < SECRET_BYTES_MIN { [whole, half].concat() } else { whole.to_owned() });
        format!("{whole}…")
    }

    /// What masks a text that arrives in pieces; only the keys that are known exactly.
    pub fn stream(&self) -> RedactingStream {
        RedactingStream { redactor: self.clone(), held: String::new() }
    }

    /// What writes to `inner` without keys; a key that comes in pieces is masked too.
    pub fn writer<W: Write>(&self, inner: W) -> RedactingWriter<W> {
        RedactingWriter { redactor: self.clone(), inner, held: Vec::new() }
    }

    fn known(&self) -> Arc<Known> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A key as it may be written: a key may hold a quote or a backslash, and what holds it may be JSON, in a string of JSON again, or a
/// `Debug` form.
fn forms(secret: &str) -> [String; 4] {
    let json = |text: &str| {
        let written = serde_json::Value::from(text).to_string();
        written.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(text).to_owned()
    };
    let once = json(secret);
    let debug = secret.escape_debug().to_string();
    [secret.to_owned(), json(&once), once, debug]
}

impl Known {
    /// How many bytes at the end of `text` may be the beginning of a key: at most the longest key less one.
    ///
    /// Asked for every piece of an answer, so it looks at the few bytes of `text` with which a key begins, and not at every key.
    fn beginning(&self, text: &[u8]) -> usize {
        let longest = self.secrets.iter().map(String::len).max().unwrap_or(0);
        let from = text.len().saturating_sub(longest.saturating_sub(1));
        let begins = |at: usize| {
            let rest = text.get(at..).unwrap_or_default();
            let is_first = rest.first().is_some_and(|byte| self.first.contains(byte));
            is_first && self.secrets.iter().any(|secret| secret.len() > rest.len() && secret.as_bytes().starts_with(rest))
        };
        (from..text.len()).find(|at| begins(*at)).map_or(0, |at| text.len() - at)
    }
}

/// Masks a text that arrives in pieces. Of what has come it holds back only what may be the beginning of a key.
#[derive(Debug)]
pub struct RedactingStream {
    redactor: Redactor,
    held: String,
}

impl RedactingStream {
    /// What can be shown so far.
    pub fn push(&mut self, text: &str) -> String {
        let known = self.redactor.known();
        if known.secrets.is_empty() && self.held.is_empty() {
            return text.to_owned();
        }
        self.held.push_str(text);
        let keep = known.beginning(self.held.as_bytes());
        let rest = self.held.split_off(self.held.len().saturating_sub(keep));
        known.masker.mask_exact(&std::mem::replace(&mut self.held, rest))
    }

    /// What was held back, for no more comes.
    pub fn finish(&mut self) -> String {
        self.redactor.mask_exact(&std::mem::take(&mut self.held))
    }
}

/// Writes lines without keys. Of an unfinished line it holds back only what may be the beginning of a key, until more comes, the line
/// ends or the writer is dropped; a `flush` does not let go of that.
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
        self.inner.write_all(self.redactor.mask(&String::from_utf8_lossy(&text)).as_bytes())
    }

    /// Bytes of an unfinished line that must wait: a key's beginning, or a character's.
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
            assert_eq!(written(&redactor, &[a, b]), "ü before [masked:1] after ü\n", "cut at {cut}");
        }
    }

    #[test]
    fn a_key_that_comes_byte_by_byte_is_masked() {
        let redactor = Redactor::new([KEY, "plain-word-key-not-real-longer"]);
        let text = format!("{KEY} plain-word-key-not-real-longer x{KEY}");

        let pieces: Vec<&[u8]> = text.as_bytes().chunks(1).collect();

        assert!(!written(&redactor, &pieces).contains("plain-word"), "{}", written(&redactor, &pieces));
    }

    #[test]
    fn no_more_is_held_back_than_may_begin_a_key() {
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

        assert_eq!(sink.mask("a quote\"back\\slash-not-real b tiny"), "a [masked:1] b tiny");
        assert_eq!(sink.mask(&serde_json::json!({ "a": "quote\"back\\slash-not-real" }).to_string()), "{\"a\":\"[masked:1]\"}");
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
            assert!(text.contains("[masked:1]") && !text.contains("not-real"), "cut at {cut}: {text}");
        }
    }

    #[test]
    fn a_key_in_a_stream_is_masked_wherever_the_stream_is_cut() {
        let (redactor, text) = (Redactor::new([KEY]), format!("ü before {KEY} after plain"));

        for cut in (0..=text.len()).filter(|cut| text.is_char_boundary(*cut)) {
            let mut stream = redactor.stream();
            let shown = stream.push(&text[..cut]) + &stream.push(&text[cut..]) + &stream.finish();
            assert_eq!(shown, "ü before [masked:1] after plain", "cut at {cut}");
        }
        assert_eq!(Redactor::default().stream().push("as it is"), "as it is");
    }

    #[test]
    fn words_that_were_cut_within_a_key_lose_its_beginning() {
        let redactor = Redactor::new([KEY]);

        assert_eq!(redactor.mask_cut("bad plain-word-key-n…"), "bad …");
        assert_eq!(redactor.mask_cut("the end of a pl…"), "the end of a pl…");
        assert_eq!(redactor.mask_cut(&format!("{KEY} and more…")), "[masked:1] and more…");
        assert_eq!(redactor.mask_cut("bad plain-word-key-n"), "bad plain-word-key-n", "it was not cut");
    }

    #[test]
    fn known_shapes_are_masked_in_a_line() {
        let line = ["key sk-", "test-not-a-real-key end\n"].concat();

        assert_eq!(written(&Redactor::default(), &[line.as_bytes()]), "key [masked:1] end\n");
    }
}
