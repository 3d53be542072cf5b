//! Images and PDFs of a prompt: checked before anything is appended, then content blocks in the wire form (REQUIREMENTS W-01..W-03).
//!
//! What they really are is read from their bytes, never from a name. Bounds are those of the providers (`limits.rs`).
//!
//! Pure.

mod image;
mod pdf;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::json;

pub use image::{ImageFormat, dimensions};

use super::{ContentBlock, RawJson};
use crate::limits::{IMAGE_BYTES_MAX, IMAGE_SIDE_MAX, PDF_BYTES_MAX, PDF_PAGES_MAX};

/// The media type of PDFs.
pub const PDF: &str = "application/pdf";

/// Why something cannot be attached (REQUIREMENTS W-03).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachmentError {
    /// No bytes.
    #[error("an attachment is empty")]
    Empty,
    /// Bytes of another kind.
    #[error("an attachment must be a PNG, JPEG, GIF or WebP image or a PDF")]
    Unsupported,
    /// The bytes are of another type than was said.
    #[error("an attachment is called {said} but is {found}")]
    WrongType {
        /// The type that was said.
        said: String,
        /// What the bytes are.
        found: &'static str,
    },
    /// The file does not go to its end, or its header makes no sense.
    #[error("an attachment of type {media_type} is cut short or broken")]
    Cut {
        /// What it begins like.
        media_type: &'static str,
    },
    /// Too many bytes.
    #[error("an attachment of type {media_type} has at most {max} bytes, this one has {size}")]
    TooLarge {
        /// What it is.
        media_type: &'static str,
        /// Bytes given.
        size: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// Too many pixels.
    #[error("an image has at most {IMAGE_SIDE_MAX} pixels a side, this one has {width}x{height}")]
    TooManyPixels {
        /// Pixels given.
        width: u32,
        /// Pixels given.
        height: u32,
    },
    /// Too many pages.
    #[error("a PDF has at most {PDF_PAGES_MAX} pages, this one has more")]
    TooManyPages,
    /// A PDF with a password.
    #[error("a PDF is encrypted: no model could read it")]
    Encrypted,
    /// A block that is not of the wire form.
    #[error("a block of type {kind} is broken: {reason}")]
    Block {
        /// The type.
        kind: String,
        /// What is wrong.
        reason: &'static str,
    },
}

impl AttachmentError {
    /// Stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Empty => "attachment_empty",
            Self::Unsupported | Self::WrongType { .. } => "attachment_unsupported",
            Self::Cut { .. } | Self::Block { .. } => "attachment_broken",
            Self::TooLarge { .. } | Self::TooManyPixels { .. } | Self::TooManyPages => "attachment_too_large",
            Self::Encrypted => "attachment_encrypted",
        }
    }
}

/// What an attachment is to a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaKind {
    /// A picture.
    Image,
    /// Pages.
    Document,
}

/// An image or a PDF, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    kind: MediaKind,
    media_type: &'static str,
    data: String,
    title: Option<String>,
}

impl Attachment {
    /// An image of this type.
    ///
    /// # Errors
    /// [`AttachmentError`] when the bytes are no whole image of that type, or larger than providers take.
    pub fn image(media_type: &str, bytes: &[u8]) -> Result<Self, AttachmentError> {
        let found = check(bytes)?;
        if found != media_type || !found.starts_with("image/") {
            return Err(AttachmentError::WrongType { said: media_type.to_owned(), found });
        }
        Ok(Self::of(found, bytes))
    }

    /// A PDF.
    ///
    /// # Errors
    /// [`AttachmentError`] when the bytes are no whole PDF, encrypted, or more than providers take.
    pub fn pdf(bytes: &[u8]) -> Result<Self, AttachmentError> {
        let found = check(bytes)?;
        if found != PDF {
            return Err(AttachmentError::WrongType { said: PDF.to_owned(), found });
        }
        Ok(Self::of(found, bytes))
    }

    /// Whatever the bytes are.
    ///
    /// # Errors
    /// [`AttachmentError`], [`AttachmentError::Unsupported`] among them.
    pub fn sniffed(bytes: &[u8]) -> Result<Self, AttachmentError> {
        Ok(Self::of(check(bytes)?, bytes))
    }

    fn of(media_type: &'static str, bytes: &[u8]) -> Self {
        let kind = if media_type == PDF { MediaKind::Document } else { MediaKind::Image };
        Self { kind, media_type, data: STANDARD.encode(bytes), title: None }
    }

    /// What the model may call it, such as a file's name without its folder. Only documents have one in the wire form.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into()).filter(|title: &String| !title.trim().is_empty());
        self
    }

    /// Whether it is an image or a document.
    pub fn kind(&self) -> MediaKind {
        self.kind
    }

    /// The media type that the bytes have.
    pub fn media_type(&self) -> &'static str {
        self.media_type
    }

    /// As a block of a user message (REQUIREMENTS W-02).
    pub fn block(&self) -> ContentBlock {
        let source = json!({"type": "base64", "media_type": self.media_type, "data": self.data});
        let (kind, raw) = match (self.kind, &self.title) {
            (MediaKind::Image, _) => ("image", json!({"type": "image", "source": source})),
            (MediaKind::Document, None) => ("document", json!({"type": "document", "source": source})),
            (MediaKind::Document, Some(title)) => ("document", json!({"type": "document", "source": source, "title": title})),
        };
        // Strings in an object cannot fail to be JSON.
        let raw = RawJson::of(&raw).unwrap_or_else(|_| RawJson::empty_object());
        ContentBlock::Other { kind: kind.to_owned(), raw }
    }
}

/// The media type that bytes have, if they may be sent.
fn check(bytes: &[u8]) -> Result<&'static str, AttachmentError> {
    if bytes.is_empty() {
        return Err(AttachmentError::Empty);
    }
    let Some(format) = ImageFormat::sniff(bytes) else {
        if !pdf::sniff(bytes) {
            return Err(AttachmentError::Unsupported);
        }
        fits(PDF, bytes.len(), PDF_BYTES_MAX)?;
        pdf::check(bytes)?;
        return Ok(PDF);
    };
    let media_type = format.media_type();
    fits(media_type, bytes.len(), IMAGE_BYTES_MAX)?;
    let Some((width, height)) = format.dimensions(bytes).filter(|_| format.is_whole(bytes)) else {
        return Err(AttachmentError::Cut { media_type });
    };
    if width.max(height) > IMAGE_SIDE_MAX {
        return Err(AttachmentError::TooManyPixels { width, height });
    }
    Ok(media_type)
}

fn fits(media_type: &'static str, size: usize, max: usize) -> Result<(), AttachmentError> {
    if size > max { Err(AttachmentError::TooLarge { media_type, size, max }) } else { Ok(()) }
}

/// An image or document block whose bytes are in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Media<'a> {
    /// Whether it is an image or a document.
    pub kind: MediaKind,
    /// As the block says.
    pub media_type: Cow<'a, str>,
    /// The bytes in base64.
    pub data: Cow<'a, str>,
    /// What a document is called.
    pub title: Option<Cow<'a, str>>,
}

impl Media<'_> {
    /// The bytes.
    ///
    /// # Errors
    /// [`AttachmentError::Block`] when they are no base64.
    pub fn bytes(&self) -> Result<Vec<u8>, AttachmentError> {
        STANDARD.decode(self.data.as_bytes()).map_err(|_| self.broken("its data is not base64"))
    }

    /// Pixels of an image, by its header.
    pub fn dimensions(&self) -> Option<(u32, u32)> {
        // The size of most images stands in their first bytes; only a JPEG may hide it behind a large preview.
        let head = self.data.get(..HEAD_CHARS).and_then(|head| STANDARD.decode(head).ok());
        head.and_then(|head| dimensions(&head)).or_else(|| dimensions(&self.bytes().ok()?))
    }

    fn broken(&self, reason: &'static str) -> AttachmentError {
        let kind = match self.kind {
            MediaKind::Image => "image",
            MediaKind::Document => "document",
        };
        AttachmentError::Block { kind: kind.to_owned(), reason }
    }
}

/// Characters of base64 in which a size is looked for first; a whole number of groups.
const HEAD_CHARS: usize = 4096;

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow)]
    source: Source<'a>,
    #[serde(borrow, default)]
    title: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    context: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Source<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    media_type: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    data: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    url: Option<Cow<'a, str>>,
}

/// The image or PDF that a block holds; `None` for every other block, and where the bytes are elsewhere (a URL, a file of the
/// provider, text).
pub fn media_of(block: &ContentBlock) -> Option<Media<'_>> {
    let ContentBlock::Other { kind, raw } = block else { return None };
    let kind = match kind.as_str() {
        "image" => MediaKind::Image,
        "document" => MediaKind::Document,
        _ => return None,
    };
    let wire: Wire<'_> = serde_json::from_str(raw.as_str()).ok()?;
    match wire.source {
        Source { kind: source, media_type: Some(media_type), data: Some(data), .. } if source == "base64" => {
            Some(Media { kind, media_type, data, title: wire.title })
        }
        _ => None,
    }
}

/// Checks an image or document block that came as it is; every other block passes.
///
/// # Errors
/// [`AttachmentError`], for base64 the same as [`Attachment::sniffed`]. A URL must be `https`: it is the provider that fetches it.
pub fn check_block(block: &ContentBlock) -> Result<(), AttachmentError> {
    let ContentBlock::Other { kind, raw } = block else { return Ok(()) };
    if kind != "image" && kind != "document" {
        return Ok(());
    }
    let broken = |reason| AttachmentError::Block { kind: kind.clone(), reason };
    if let Some(media) = media_of(block) {
        let found = check(&media.bytes()?)?;
        let fits = (media.kind == MediaKind::Document) == (found == PDF);
        if !fits || found != media.media_type {
            return Err(AttachmentError::WrongType { said: media.media_type.into_owned(), found });
        }
        return Ok(());
    }
    let wire: Wire<'_> = serde_json::from_str(raw.as_str()).map_err(|_| broken("it has no source"))?;
    match (kind.as_str(), &*wire.source.kind) {
        (_, "base64") => Err(broken("its source needs media_type and data")),
        (_, "url") if wire.source.url.is_some_and(|url| url.starts_with("https://")) => Ok(()),
        (_, "url") => Err(broken("the URL of its source must begin with https://")),
        ("document", "text") if wire.source.data.is_some_and(|text| !text.trim().is_empty()) => Ok(()),
        ("document", "text") => Err(AttachmentError::Empty),
        (_, "file") | ("document", "content") => Ok(()),
        _ => Err(broken("the type of its source is not known")),
    }
}

/// What a model that is not shown an image or document reads in its place: `[image: 640x480 image/png, not shown to this model]`.
/// `None` for other blocks.
pub fn note(block: &ContentBlock) -> Option<String> {
    Some(format!("[{}, not shown to this model]", label(block)?))
}

/// An image or document in few words, for people: `image: 640x480 image/png`. `None` for other blocks.
pub fn label(block: &ContentBlock) -> Option<String> {
    let ContentBlock::Other { kind, .. } = block else { return None };
    if kind != "image" && kind != "document" {
        return None;
    }
    let Some(media) = media_of(block) else { return Some(kind.clone()) };
    let size = match media.kind {
        MediaKind::Image => media.dimensions().map(|(width, height)| format!("{width}x{height} ")).unwrap_or_default(),
        MediaKind::Document => media.title.as_ref().map(|title| format!("\"{}\" ", plain(title))).unwrap_or_default(),
    };
    Some(format!("{kind}: {size}{}", plain(&media.media_type)))
}

/// The text of a PDF, read for a model that is shown none, as a document block of text ([`crate::ports::DocumentText`]). It stands
/// behind the PDF itself.
pub fn document_text(title: Option<&str>, pages: usize, text: &str) -> ContentBlock {
    let source = json!({"type": "text", "media_type": "text/plain", "data": text});
    let context = format!("{TEXT_CONTEXT}, {pages} page{}", if pages == 1 { "" } else { "s" });
    let raw = match title {
        Some(title) => json!({"type": "document", "source": source, "title": title, "context": context}),
        None => json!({"type": "document", "source": source, "context": context}),
    };
    ContentBlock::Other { kind: "document".to_owned(), raw: RawJson::of(&raw).unwrap_or_else(|_| RawJson::empty_object()) }
}

/// How the context of such a block begins.
pub const TEXT_CONTEXT: &str = "The text of the PDF before it";

/// Whether a block is the text of the PDF before it, and so nothing that a person gave.
pub fn is_document_text(block: &ContentBlock) -> bool {
    text_wire(block).is_some_and(|wire| wire.context.is_some_and(|context| context.starts_with(TEXT_CONTEXT)))
}

fn text_wire(block: &ContentBlock) -> Option<Wire<'_>> {
    let ContentBlock::Other { kind, raw } = block else { return None };
    if kind != "document" {
        return None;
    }
    serde_json::from_str::<Wire<'_>>(raw.as_str()).ok().filter(|wire| wire.source.kind == "text")
}

/// A document block of text as plain text, for APIs that know no documents; `None` for other blocks. Its name stands in a tag around
/// it, which nothing inside can end.
pub fn as_text(block: &ContentBlock) -> Option<String> {
    let Wire { source, title, context } = text_wire(block)?;
    let text = source.data.unwrap_or_default();
    if title.is_none() && context.is_none() {
        return Some(text.into_owned());
    }
    let named = |name: &str, value: Option<Cow<'_, str>>| {
        value.map(|value| format!(" {name}=\"{}\"", plain(&value).replace('"', "'"))).unwrap_or_default()
    };
    let text = text.replace("<document", "<document ").replace("</document", "</document ");
    Some(format!("<document{}{}>\n{text}\n</document>", named("title", title), named("context", context)))
}

/// The blocks as a model takes them that is shown documents, or none: of a PDF and its text behind it, one. Both are kept in a
/// conversation, whose model may change (REQUIREMENTS W-04).
pub fn as_shown(blocks: Vec<ContentBlock>, documents: bool) -> Vec<ContentBlock> {
    let mut shown: Vec<ContentBlock> = Vec::with_capacity(blocks.len());
    for block in blocks {
        let before = shown.last().and_then(media_of).map(|media| media.kind);
        if before == Some(MediaKind::Document) && is_document_text(&block) {
            if documents {
                continue;
            }
            shown.pop();
        }
        shown.push(block);
    }
    shown
}

/// A name on one line, without what could be taken for markup.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_control() || matches!(c, '<' | '>' | '[' | ']') { ' ' } else { c }).take(200).collect()
}
