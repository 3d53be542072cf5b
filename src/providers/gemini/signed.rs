//! The signatures of Gemini's thoughts. The API signs a part of its answer and wants the signature
//! back with that part. A thinking block in front of the part keeps it: no message may end in
//! thinking. Pure.

use crate::providers::sealed::Sealer;

/// What a signature was sent with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signed<'a> {
    /// The next block of the message: a call or a text.
    Next(&'a str),
    /// An empty text after the next block of the message, which is a text.
    After(&'a str),
    /// The thought in the block itself.
    Thought(&'a str),
}

impl<'a> Signed<'a> {
    /// Returns the signature of a thinking block.
    pub(super) fn seal(self) -> String {
        let (word, signature) = match self {
            Self::Next(signature) => ("next", signature),
            Self::After(signature) => ("after", signature),
            Self::Thought(signature) => ("thought", signature),
        };
        Sealer::Gemini.seal(&format!("{word}:{signature}"))
    }

    /// Reads it; `None` for one of another API.
    pub(super) fn open(sealed: &'a str) -> Option<Self> {
        let (word, signature) = Sealer::Gemini.open(sealed)?.split_once(':')?;
        match word {
            "next" => Some(Self::Next(signature)),
            "after" => Some(Self::After(signature)),
            "thought" => Some(Self::Thought(signature)),
            _ => None,
        }
    }
}
