//! A provider's API key. It appears in no log, no error and no debug output.

use std::{fmt, sync::Arc};

use callboard_actors::ports::ProviderError;

/// An API key. Its debug output is masked; only [`Secret::expose`] returns the text.
#[derive(Clone)]
pub(super) struct Secret(Arc<str>);

impl Secret {
    pub(super) fn new(key: impl Into<String>) -> Self {
        Self(key.into().trim().into())
    }

    pub(super) fn expose(&self) -> &str {
        &self.0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Masks this key, and words that look like another provider's key.
    pub(super) fn mask(&self, text: &str) -> String {
        let text = if self.is_empty() {
            text.to_owned()
        } else {
            text.replace(&*self.0, "***")
        };
        mask_shapes(&text)
    }

    /// Masks the texts inside an error.
    pub(super) fn mask_error(&self, error: ProviderError) -> ProviderError {
        error.map_message(|message| self.mask(message))
    }
}

/// Masks words that begin like keys. OpenAI's 401 repeats the key, half masked.
fn mask_shapes(text: &str) -> String {
    const KEY_BYTES_MIN: usize = 12;
    let is_key = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'*');
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("sk-") {
        let (before, word) = rest.split_at(at);
        let end = word
            .bytes()
            .position(|byte| !is_key(byte))
            .unwrap_or(word.len());
        let starts_a_word = !before
            .bytes()
            .last()
            .is_some_and(|byte| byte.is_ascii_alphanumeric());
        let (word, after) = word.split_at(end);
        masked.push_str(before);
        masked.push_str(if starts_a_word && word.len() >= KEY_BYTES_MIN {
            "sk-***"
        } else {
            word
        });
        rest = after;
    }
    masked.push_str(rest);
    masked
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() {
            "Secret(none)"
        } else {
            "Secret(***)"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_never_printed() {
        let secret = Secret::new(" test-not-a-real-key\n");

        assert_eq!(format!("{secret:?}"), "Secret(***)");
        assert_eq!(
            secret.mask("bad key test-not-a-real-key, test-not-a-real-key!"),
            "bad key ***, ***!"
        );
        assert_eq!(
            secret.mask("Incorrect API key provided: sk-test-****************real. task-oriented"),
            "Incorrect API key provided: sk-***. task-oriented"
        );
    }
}
