//! Extracts the text of documents, for models that do not read them. Documents are untrusted: an
//! adapter parses them in isolation, with limits on time and memory.

use bytes::Bytes;

use super::BoxFuture;
use crate::ids::TenantId;

/// The text of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtractedText {
    /// The text, page by page, without control characters other than line ends and tabs. At most
    /// [`DOCUMENT_TEXT_BYTES_MAX`](crate::limits::DOCUMENT_TEXT_BYTES_MAX) bytes; a note at the end
    /// says what was cut.
    pub text: String,
    /// Number of pages.
    pub pages: usize,
}

/// Why no text was extracted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentTextError {
    /// The host has no extractor.
    #[error("this model takes no PDF, and nothing here reads one for it")]
    Absent,
    /// The document is damaged or of another type.
    #[error("the PDF cannot be read: it is broken")]
    Broken,
    /// The document is encrypted.
    #[error("the PDF is encrypted")]
    Encrypted,
    /// The document has too many pages.
    #[error("the PDF has more than {} pages", crate::limits::PDF_PAGES_MAX)]
    TooManyPages,
    /// The pages contain no text, as in a scan.
    #[error("the PDF holds no text that could be read for a model that takes no PDF")]
    NoText,
    /// The extraction exceeded its time or memory.
    #[error("the PDF cannot be read within the bounds of time and memory")]
    Bounds,
    /// The extractor could not run.
    #[error("PDFs cannot be read now: {0}")]
    Unavailable(String),
}

impl DocumentTextError {
    /// Returns the stable code of the error.
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
            Self::Absent
            | Self::Broken
            | Self::Encrypted
            | Self::TooManyPages
            | Self::NoText
            | Self::Bounds => false,
        }
    }
}

/// Extracts text from PDFs.
pub trait DocumentText: Send + Sync + 'static {
    /// Returns the text of a PDF. Must be deterministic, because a prompt that is sent again must
    /// be the same prompt.
    ///
    /// # Errors
    /// [`DocumentTextError`].
    ///
    /// # Cancel safety
    /// Dropping the future stops the extraction.
    fn extract<'a>(
        &'a self,
        tenant: &'a TenantId,
        pdf: Bytes,
    ) -> BoxFuture<'a, Result<ExtractedText, DocumentTextError>>;
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_port_is_dyn_compatible() {
        fn takes(_: &dyn super::DocumentText) {}
        let _ = takes;
    }
}
