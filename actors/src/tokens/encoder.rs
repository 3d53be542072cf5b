//! Encodings that turn text into tokens: the built-in tables of OpenAI, and the trait for custom
//! encoders.
//!
//! Pure.

mod tables;

use tiktoken_rs::CoreBPE;

/// Turns text into tokens and back.
pub trait Encoder: Send + Sync + 'static {
    /// The name of the encoding, for display.
    fn name(&self) -> &str {
        "custom"
    }

    /// The tokens of a text. Text that looks like a special token is encoded as plain text.
    fn encode(&self, text: &str) -> Vec<u32>;

    /// The text of a sequence of tokens.
    ///
    /// # Errors
    /// [`DecodeError`] for an unknown token, and for tokens that end inside a character.
    fn decode(&self, tokens: &[u32]) -> Result<String, DecodeError>;

    /// Number of tokens of a text.
    fn count_tokens(&self, text: &str) -> u64 {
        self.encode(text).len() as u64
    }
}

/// Why tokens cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The encoding has no such token.
    #[error("{0} is no token of this encoding")]
    UnknownToken(u32),
    /// The decoded bytes are not valid UTF-8.
    #[error("the tokens do not make whole characters")]
    NotText,
}

/// A built-in encoding, compiled into the program. The first use of each parses its table (0.1 to
/// 0.3 s of processor time), which the whole process then shares; see [`Encoding::warm`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names of the tables")]
pub enum Encoding {
    Cl100kBase,
    O200kBase,
    O200kHarmony,
    P50kBase,
    P50kEdit,
    R50kBase,
}

impl Encoding {
    /// All built-in encodings.
    pub(crate) const ALL: &'static [Self] = &[
        Self::Cl100kBase,
        Self::O200kBase,
        Self::O200kHarmony,
        Self::P50kBase,
        Self::P50kEdit,
        Self::R50kBase,
    ];

    /// The encoding with this name; `gpt2` is an alias of `r50k_base`.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let name = if name == "gpt2" { "r50k_base" } else { name };
        Self::ALL
            .iter()
            .find(|encoding| encoding.as_str() == name)
            .copied()
    }

    /// The name of the encoding.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Cl100kBase => "cl100k_base",
            Self::O200kBase => "o200k_base",
            Self::O200kHarmony => "o200k_harmony",
            Self::P50kBase => "p50k_base",
            Self::P50kEdit => "p50k_edit",
            Self::R50kBase => "r50k_base",
        }
    }

    /// Parses the table now, so that the first count does not wait for it. Takes processor time: do
    /// not call it in an actor's handler.
    pub fn warm(self) {
        self.table();
    }

    pub(super) fn table(self) -> &'static CoreBPE {
        match self {
            Self::Cl100kBase => &tables::CL100K_BASE,
            Self::O200kBase => &tables::O200K_BASE,
            Self::O200kHarmony => &tables::O200K_HARMONY,
            Self::P50kBase => &tables::P50K_BASE,
            Self::P50kEdit => &tables::P50K_EDIT,
            Self::R50kBase => &tables::R50K_BASE,
        }
    }
}

impl Encoder for Encoding {
    fn name(&self) -> &str {
        self.as_str()
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        super::chunk::chunks(text)
            .flat_map(|chunk| self.table().encode_ordinary(chunk))
            .collect()
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, DecodeError> {
        let bytes = self
            .table()
            .decode_bytes(tokens)
            .map_err(|error| DecodeError::UnknownToken(error.token))?;
        String::from_utf8(bytes).map_err(|_| DecodeError::NotText)
    }

    fn count_tokens(&self, text: &str) -> u64 {
        let mut last = "";
        let mut tokens = 0;
        let of_each = super::chunk::chunks(text).map(|chunk| {
            // A long run of one letter repeats the same chunk and is the slowest kind to count, so
            // the count is reused.
            if chunk != last {
                (last, tokens) = (chunk, self.table().count_ordinary(chunk) as u64);
            }
            tokens
        });
        of_each.sum()
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Vector {
        encoding: String,
        text: String,
        ids: Vec<u32>,
    }

    #[test]
    fn tokens_are_those_of_the_original_implementation() {
        let vectors: Vec<Vector> = include_str!("encoder/vectors.jsonl")
            .lines()
            .filter(|l| !l.starts_with('#'))
            .map(|l| serde_json::from_str(l).unwrap())
            .collect();

        for vector in &vectors {
            let encoding = Encoding::named(&vector.encoding).unwrap();
            assert_eq!(encoding.encode(&vector.text), vector.ids, "{vector:?}");
            assert_eq!(
                encoding.count_tokens(&vector.text),
                vector.ids.len() as u64,
                "{vector:?}"
            );
            assert_eq!(
                encoding.decode(&vector.ids).as_deref(),
                Ok(vector.text.as_str())
            );
        }
        for name in ["cl100k_base", "o200k_base"] {
            assert!(
                vectors
                    .iter()
                    .filter(|vector| vector.encoding == name)
                    .count()
                    >= 10,
                "{name}"
            );
        }
    }

    #[test]
    fn an_encoding_is_found_by_its_name_and_no_other() {
        for encoding in Encoding::ALL {
            assert_eq!(Encoding::named(encoding.as_str()), Some(*encoding));
            assert_eq!(Encoder::name(encoding), encoding.as_str());
        }
        assert_eq!(Encoding::named("gpt2"), Some(Encoding::R50kBase));
        assert_eq!(
            (Encoding::named("CL100K_BASE"), Encoding::named("")),
            (None, None)
        );
    }

    #[test]
    fn what_is_no_token_is_an_error_and_not_a_panic() {
        let encoding = Encoding::Cl100kBase;

        assert_eq!(
            encoding.decode(&[u32::MAX]),
            Err(DecodeError::UnknownToken(u32::MAX))
        );
        assert_eq!(encoding.decode(&[9468]), Err(DecodeError::NotText));
        assert_eq!(
            (encoding.decode(&[]).as_deref(), encoding.encode("")),
            (Ok(""), Vec::new())
        );
    }

    #[test]
    fn the_encoder_port_is_dyn_compatible() {
        fn takes(_: &dyn Encoder) {}
        takes(&Encoding::R50kBase);
    }
}
