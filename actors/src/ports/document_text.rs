//! Reads the text of a document for models that take none (REQUIREMENTS W-01). Documents are anybody's: an adapter parses them where
//! they can do no harm, within bounds.

use bytes::Bytes;

use super::BoxFuture;

/// The text of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtractedText {
    /// Its text, page by page, without control characters but line ends and tabs; at most
    /// [`DOCUMENT_TEXT_BYTES_MAX`](crate::limits::DOCUMENT_TEXT_BYTES_MAX) bytes, the cut told at the end.
    pub text: String,
    /// Its pages.
    pub pages: usize,
}

/// Why there is no text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentTextError {
    /// Nothing here reads documents.
    #[error("this model takes no PDF, and nothing here reads one for it")]
    Absent,
    /// It is not what it says, or broken.
    #[error("the PDF cannot be read: it is broken")]
    Broken,
    /// It has a password.
    #[error("the PDF is encrypted")]
    Encrypted,
    /// Too many pages.
    #[error("the PDF has more than {} pages", crate::limits::PDF_PAGES_MAX)]
    TooManyPages,
    /// Its pages hold no text, as those of a scanner.
    #[error("the PDF holds no text that could be read for a model that takes no PDF")]
    NoText,
    /// Reading it took too long or too much memory.
    #[error("the PDF cannot be read within the bounds of time and memory")]
    Bounds,
    /// It could not be tried.
    #[error("PDFs cannot be read now: {0}")]
    Unavailable(String),
}

impl DocumentTextError {
    /// Stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Absent => "document_text_absent",
            Self::Broken => "document_broken",
            Self::Encrypted => "document_encrypted",
            Self::TooManyPages => "document_too_large",
            Self::NoText => "document_no_text",
            Self::Bounds => "document_bounds",
            Self::Unavailable(_) => "document_text_unavailable",
        }
    }

    /// Whether the same call may succeed a little later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable(_) => true,
            Self::Absent | Self::Broken | Self::Encrypted | Self::TooManyPages | Self::NoText | Self::Bounds => false,
        }
    }
}

/// Reads text out of PDFs.
pub trait DocumentText: Send + Sync + 'static {
    /// The text of a PDF. The same bytes give the same text: a prompt that is sent again must be the same prompt.
    ///
    /// # Errors
    /// [`DocumentTextError`].
    ///
    /// # Cancel safety
    /// Dropping the future ends the work.
    fn extract(&self, pdf: Bytes) -> BoxFuture<'_, Result<ExtractedText, DocumentTextError>>;
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_port_is_dyn_compatible() {
        fn takes(_: &dyn super::DocumentText) {}
        let _ = takes;
    }
}
