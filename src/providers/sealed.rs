//! Reasoning that only the API that wrote it can read. It is kept as the signature of a thinking
//! block, with the name of that API in front: a conversation may change its provider, and every
//! other API refuses it. Anthropic's own signatures have no name in front. Pure.

/// The APIs that seal their reasoning, beside Anthropic's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sealer {
    #[cfg_attr(not(feature = "openai"), allow(dead_code, reason = "another feature"))]
    Responses,
    #[cfg_attr(not(feature = "gemini"), allow(dead_code, reason = "another feature"))]
    Gemini,
}

impl Sealer {
    fn prefix(self) -> &'static str {
        match self {
            Self::Responses => "openai-responses:",
            Self::Gemini => "gemini:",
        }
    }

    /// Returns the signature that holds `content`.
    #[cfg(any(feature = "openai", feature = "gemini"))]
    pub(super) fn seal(self, content: &str) -> String {
        format!("{}{content}", self.prefix())
    }

    /// Returns the content of a signature of this API; `None` for any other.
    #[cfg(any(feature = "openai", feature = "gemini"))]
    pub(super) fn open(self, signature: &str) -> Option<&str> {
        signature.strip_prefix(self.prefix())
    }
}

/// Whether a signature is one of these APIs', and so none of Anthropic's.
#[cfg(feature = "anthropic")]
pub(super) fn is_sealed(signature: &str) -> bool {
    [Sealer::Responses, Sealer::Gemini]
        .iter()
        .any(|sealer| signature.starts_with(sealer.prefix()))
}
