//! Masks keys in whatever leaves the process (FAULTS F8): configured keys always, known shapes as `tools::mask` knows them.
//!
//! **Invariant:** one [`Redactor`] a process. Who learns a key tells it before the key is used.

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
        *known = Arc::new(Known { masker: Masker::new(all.clone()), secrets: all });
    }

    /// The text without keys.
    pub fn mask(&self, text: &str) -> String {
        self.known().masker.mask(text)
    }

    /// The text without the keys that are known exactly; what merely looks like one stays, for it may be an example.
    pub fn mask_exact(&self, text: &str) -> String {
        self.known().masker.mask_exact(text)
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
    fn beginning(&self, text: &[u8]) -> usize {
        let longest = |secret: &String| {
            let most = secret.len().saturating_sub(1).min(text.len());
            (1..=most).rev().find(|n| text.ends_with(secret.as_bytes().get(..*n).unwrap_or_default()))
        };
        self.secrets.iter().filter_map(longest).max().unwrap_or(0)
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
    fn known_shapes_are_masked_in_a_line() {
        let line = ["key sk-", "test-not-a-real-key end\n"].concat();

        assert_eq!(written(&Redactor::default(), &[line.as_bytes()]), "key [masked:1] end\n");
    }
}
