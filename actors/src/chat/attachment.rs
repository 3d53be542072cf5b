//! Images and PDFs of a prompt. They are checked before a journal entry is appended and become
//! content blocks in the wire form.
//!
//! The type comes from the bytes, never from a file name. The size limits are those of the
//! providers (`limits.rs`).
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

pub(crate) use image::{ImageFormat, dimensions};

use super::{ContentBlock, MediaSource, RawJson, ToolResultBlock, ToolResultContent};
use crate::limits::{IMAGE_BYTES_MAX, IMAGE_SIDE_MAX, PDF_BYTES_MAX, PDF_PAGES_MAX};

/// Media type of PDFs.
pub const PDF: &str = "application/pdf";

/// Why bytes or a block cannot be attached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachmentError {
    /// The attachment has no bytes.
    #[error("an attachment is empty")]
    Empty,
    /// The bytes are neither an image nor a PDF.
    #[error("an attachment must be a PNG, JPEG, GIF or WebP image or a PDF")]
    Unsupported,
    /// The bytes have another type than declared.
    #[error("an attachment is called {declared} but is {found}")]
    WrongType {
        /// The declared type.
        declared: String,
        /// The type of the bytes.
        found: &'static str,
    },
    /// The file is truncated, or its header is invalid.
    #[error("an attachment of type {media_type} is cut short or broken")]
    Cut {
        /// The type that the first bytes show.
        media_type: &'static str,
    },
    /// The attachment has too many bytes.
    #[error("an attachment of type {media_type} has at most {max} bytes, this one has {size}")]
    TooLarge {
        /// The type of the bytes.
        media_type: &'static str,
        /// Bytes of the attachment.
        size: usize,
        /// The bytes that an attachment of this type may have.
        max: usize,
    },
    /// The image has too many pixels.
    #[error("an image has at most {IMAGE_SIDE_MAX} pixels a side, this one has {width}x{height}")]
    TooManyPixels {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
    },
    /// The PDF has too many pages.
    #[error("a PDF has at most {PDF_PAGES_MAX} pages, this one has more")]
    TooManyPages,
    /// The PDF is encrypted.
    #[error("a PDF is encrypted: no model could read it")]
    Encrypted,
    /// An image or document block that does not have the wire form.
    #[error("a block of type {kind} is broken: {reason}")]
    Block {
        /// The block's `type`.
        kind: String,
        /// What is wrong.
        reason: &'static str,
    },
}

impl AttachmentError {
    /// Returns the stable code of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Empty => "attachment_empty",
            Self::Unsupported | Self::WrongType { .. } => "attachment_unsupported",
            Self::Cut { .. } | Self::Block { .. } => "attachment_broken",
            Self::TooLarge { .. } | Self::TooManyPixels { .. } | Self::TooManyPages => {
                "attachment_too_large"
            }
            Self::Encrypted => "attachment_encrypted",
        }
    }
}

/// How a model treats an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaKind {
    /// An image.
    Image,
    /// A document of pages.
    Document,
}

/// A checked image or PDF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    kind: MediaKind,
    media_type: &'static str,
    data: String,
    title: Option<String>,
}

impl Attachment {
    /// Creates an image of a declared type.
    ///
    /// # Errors
    /// [`AttachmentError`] when the bytes are not a complete image of that type, or exceed a
    /// provider limit.
    pub fn image(media_type: &str, bytes: &[u8]) -> Result<Self, AttachmentError> {
        let found = check(bytes)?;
        if found != media_type || !found.starts_with("image/") {
            return Err(AttachmentError::WrongType {
                declared: media_type.to_owned(),
                found,
            });
        }
        Ok(Self::of(found, bytes))
    }

    /// Creates a PDF.
    ///
    /// # Errors
    /// [`AttachmentError`] when the bytes are not a complete PDF, are encrypted, or exceed a
    /// provider limit.
    pub fn pdf(bytes: &[u8]) -> Result<Self, AttachmentError> {
        let found = check(bytes)?;
        if found != PDF {
            return Err(AttachmentError::WrongType {
                declared: PDF.to_owned(),
                found,
            });
        }
        Ok(Self::of(found, bytes))
    }

    /// Creates an attachment of the type that the bytes have.
    ///
    /// # Errors
    /// [`AttachmentError`], for unknown types [`AttachmentError::Unsupported`].
    pub fn sniffed(bytes: &[u8]) -> Result<Self, AttachmentError> {
        Ok(Self::of(check(bytes)?, bytes))
    }

    fn of(media_type: &'static str, bytes: &[u8]) -> Self {
        let kind = if media_type == PDF {
            MediaKind::Document
        } else {
            MediaKind::Image
        };
        Self {
            kind,
            media_type,
            data: STANDARD.encode(bytes),
            title: None,
        }
    }

    /// Sets the title that the model sees, such as a file name without its folder. The wire form
    /// has titles for documents only.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into()).filter(|title: &String| !title.trim().is_empty());
        self
    }

    /// Whether it is an image or a document.
    pub fn kind(&self) -> MediaKind {
        self.kind
    }

    /// Returns the media type of the bytes.
    pub fn media_type(&self) -> &'static str {
        self.media_type
    }

    /// Converts to a block of a user message.
    pub fn block(&self) -> ContentBlock {
        let source = json!({"type": "base64", "media_type": self.media_type, "data": self.data});
        let (kind, raw) = match (self.kind, &self.title) {
            (MediaKind::Image, _) => ("image", json!({"type": "image", "source": source})),
            (MediaKind::Document, None) => {
                ("document", json!({"type": "document", "source": source}))
            }
            (MediaKind::Document, Some(title)) => (
                "document",
                json!({"type": "document", "source": source, "title": title}),
            ),
        };
        // Serializing an object of strings cannot fail.
        let raw = RawJson::of(&raw).unwrap_or_else(|_| RawJson::empty_object());
        ContentBlock::from_raw(kind.to_owned(), raw)
    }
}

/// Checks bytes and returns their media type.
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
    if size > max {
        Err(AttachmentError::TooLarge {
            media_type,
            size,
            max,
        })
    } else {
        Ok(())
    }
}

/// An image or document block that contains its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Media<'a> {
    /// Whether it is an image or a document.
    pub kind: MediaKind,
    /// The media type that the block declares.
    pub media_type: Cow<'a, str>,
    /// The bytes in base64.
    pub data: Cow<'a, str>,
    /// Title of a document.
    pub title: Option<Cow<'a, str>>,
}

impl Media<'_> {
    /// Decodes the bytes.
    ///
    /// # Errors
    /// [`AttachmentError::Block`] when the data is not base64.
    pub fn bytes(&self) -> Result<Vec<u8>, AttachmentError> {
        STANDARD
            .decode(self.data.as_bytes())
            .map_err(|_| self.broken("its data is not base64"))
    }

    /// Returns the width and height of an image in pixels, read from its header.
    pub(crate) fn dimensions(&self) -> Option<(u32, u32)> {
        // Most images have their size in the first bytes; only a JPEG may have it behind a large
        // preview.
        let head = self
            .data
            .get(..HEAD_CHARS)
            .and_then(|head| STANDARD.decode(head).ok());
        head.and_then(|head| dimensions(&head))
            .or_else(|| dimensions(&self.bytes().ok()?))
    }

    fn broken(&self, reason: &'static str) -> AttachmentError {
        let kind = match self.kind {
            MediaKind::Image => "image",
            MediaKind::Document => "document",
        };
        AttachmentError::Block {
            kind: kind.to_owned(),
            reason,
        }
    }
}

/// Base64 characters in which the size is looked for first; a multiple of 4.
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

/// Returns the image or PDF in a block. `None` for other blocks, and for blocks that refer to their
/// content (a URL, a file at the provider) or hold text.
pub fn media_of(block: &ContentBlock) -> Option<Media<'_>> {
    let (kind, media) = match block {
        ContentBlock::Image(media) => (MediaKind::Image, media),
        ContentBlock::Document(media) => (MediaKind::Document, media),
        _ => return None,
    };
    if !matches!(media.source(), MediaSource::Base64 { .. }) {
        return None;
    }
    let wire: Wire<'_> = serde_json::from_str(media.raw().as_str()).ok()?;
    match wire.source {
        Source {
            kind: source,
            media_type: Some(media_type),
            data: Some(data),
            ..
        } if source == "base64" => Some(Media {
            kind,
            media_type,
            data,
            title: wire.title,
        }),
        _ => None,
    }
}

/// Whether the provider would fetch a part of the block, on the account of whoever calls it: from a
/// URL, or by the id of a file that lies there. Parts of parts, such as an image in the result of a
/// tool, count as well.
pub fn is_remote(block: &ContentBlock) -> bool {
    let raw = match block {
        ContentBlock::ToolResult(ToolResultBlock {
            content: ToolResultContent::Blocks(raw),
            ..
        }) => raw,
        block => match block.raw() {
            Some(raw) => raw,
            None => return false,
        },
    };
    // Most blocks hold megabytes of base64 and none of these words; an escape could hide them.
    let text = raw.as_str();
    let may_be = ["url", "file", "\\u"]
        .iter()
        .any(|word| text.contains(word));
    may_be && serde_json::from_str(text).is_ok_and(|json: serde_json::Value| has_remote(&json))
}

fn has_remote(json: &serde_json::Value) -> bool {
    match json {
        serde_json::Value::Array(items) => items.iter().any(has_remote),
        serde_json::Value::Object(fields) => {
            let source = fields.get("source").and_then(|source| source.get("type"));
            let is_elsewhere = source.is_some_and(|kind| kind == "url" || kind == "file");
            is_elsewhere || fields.contains_key("file_id") || fields.values().any(has_remote)
        }
        _ => false,
    }
}

/// Checks an image or document block that a caller sent in wire form; other blocks pass.
///
/// # Errors
/// [`AttachmentError`], for base64 the same as [`Attachment::sniffed`]. A URL must be `https`,
/// because the provider fetches it.
pub(crate) fn check_block(block: &ContentBlock) -> Result<(), AttachmentError> {
    let (kind, Some(raw)) = (block.kind(), block.raw()) else {
        return Ok(());
    };
    if kind != "image" && kind != "document" {
        return Ok(());
    }
    let broken = |reason| AttachmentError::Block {
        kind: kind.to_owned(),
        reason,
    };
    if let Some(media) = media_of(block) {
        let found = check(&media.bytes()?)?;
        let fits = (media.kind == MediaKind::Document) == (found == PDF);
        if !fits || found != media.media_type {
            return Err(AttachmentError::WrongType {
                declared: media.media_type.into_owned(),
                found,
            });
        }
        return Ok(());
    }
    let wire: Wire<'_> =
        serde_json::from_str(raw.as_str()).map_err(|_| broken("it has no source"))?;
    match (kind, &*wire.source.kind) {
        (_, "base64") => Err(broken("its source needs media_type and data")),
        (_, "url")
            if wire
                .source
                .url
                .is_some_and(|url| url.starts_with("https://")) =>
        {
            Ok(())
        }
        (_, "url") => Err(broken("the URL of its source must begin with https://")),
        ("document", "text") if wire.source.data.is_some_and(|text| !text.trim().is_empty()) => {
            Ok(())
        }
        ("document", "text") => Err(AttachmentError::Empty),
        (_, "file") | ("document", "content") => Ok(()),
        _ => Err(broken("the type of its source is not known")),
    }
}

/// Checks a block of a prompt: as [`check_block`], and its type must be one that providers know. An
/// unknown one would be part of every later request of the conversation, and be refused each time.
///
/// # Errors
/// [`AttachmentError`].
pub(crate) fn check_prompt_block(block: &ContentBlock) -> Result<(), AttachmentError> {
    match block {
        ContentBlock::ToolUse(_) | ContentBlock::Thinking(_) => Err(unknown(block)),
        block if is_unknown(block) => Err(unknown(block)),
        block => check_block(block),
    }
}

/// Whether no provider knows the type of a block in a message of the role user.
pub(super) fn is_unknown(block: &ContentBlock) -> bool {
    // An image or document here has no source that is known: `check_block` says what is wrong.
    const KNOWN: [&str; 4] = ["image", "document", "search_result", "container_upload"];
    matches!(block, ContentBlock::Other { kind, .. } if !KNOWN.contains(&kind.as_str()))
}

fn unknown(block: &ContentBlock) -> AttachmentError {
    AttachmentError::Block {
        kind: block.kind().to_owned(),
        reason: "a prompt has blocks of type `text`, `image` and `document`",
    }
}

/// A block of a message that holds the bytes of an image or document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attached {
    /// Index of the block in its message.
    pub block: u32,
    /// Bytes of the block in the wire form.
    pub bytes: u32,
    /// Whether it is an image or a document.
    pub kind: MediaKind,
}

/// Blocks with fewer bytes are not listed: a note in their place saves nothing.
pub(crate) const ATTACHED_BYTES_MIN: usize = 1024;

/// Bytes of text with as many tokens as the largest image: 1600, at three bytes per token.
const IMAGE_TEXT_BYTES: usize = 4800;

/// Bytes of text with as many tokens as a page: 3000, at three bytes per token.
const PAGE_TEXT_BYTES: usize = 9000;

/// Base64 characters of a document that count as one page: 50 KiB of the file.
const PAGE_CHARS: usize = 50 * 1024 / 3 * 4;

impl Attached {
    /// Returns the bytes of text that have about as many tokens.
    pub(crate) fn estimate_bytes(&self) -> usize {
        let bytes = self.bytes as usize;
        let text = match self.kind {
            MediaKind::Image => IMAGE_TEXT_BYTES,
            MediaKind::Document => bytes.div_ceil(PAGE_CHARS).max(1) * PAGE_TEXT_BYTES,
        };
        text.min(bytes)
    }
}

/// Lists the blocks that hold the bytes of an image or document.
pub(super) fn attached(blocks: &[ContentBlock]) -> Box<[Attached]> {
    let attached = |(index, block): (usize, &ContentBlock)| {
        let bytes = block.raw()?.as_str().len();
        // Only data in base64 makes an image block long; a document may also be long text.
        let kind = match block {
            _ if bytes < ATTACHED_BYTES_MIN => return None,
            ContentBlock::Document(media) => match media.source() {
                MediaSource::Base64 { .. } => MediaKind::Document,
                _ => return None,
            },
            block if block.kind() == "image" => MediaKind::Image,
            _ => return None,
        };
        Some(Attached {
            block: u32::try_from(index).ok()?,
            bytes: u32::try_from(bytes).ok()?,
            kind,
        })
    };
    blocks.iter().enumerate().filter_map(attached).collect()
}

/// Returns the note that replaces an image or document which is left out of a request to save room.
/// `span` names the message for the tool `recall`. `None` for other blocks.
pub(crate) fn omitted_note(block: &ContentBlock, span: &str) -> Option<String> {
    Some(format!(
        "[{}, left out of the request because all attachments together are too large; `recall` with the span {span} brings it back]",
        label(block)?
    ))
}

/// Returns the note that replaces an image or document for a model that cannot read it:
/// `[image: 640x480 image/png, not shown to this model]`. `None` for other blocks.
pub fn note(block: &ContentBlock) -> Option<String> {
    Some(format!("[{}, not shown to this model]", label(block)?))
}

/// Describes an image or document for people: `image: 640x480 image/png`. `None` for other blocks.
pub fn label(block: &ContentBlock) -> Option<String> {
    let kind = block.kind();
    if kind != "image" && kind != "document" {
        return None;
    }
    let Some(media) = media_of(block) else {
        return Some(kind.to_owned());
    };
    let size = match media.kind {
        MediaKind::Image => media
            .dimensions()
            .map(|(width, height)| format!("{width}x{height} "))
            .unwrap_or_default(),
        MediaKind::Document => media
            .title
            .as_ref()
            .map(|title| format!("\"{}\" ", plain(title)))
            .unwrap_or_default(),
    };
    Some(format!("{kind}: {size}{}", plain(&media.media_type)))
}

/// Creates the text block of a PDF, for a model that does not read PDFs
/// ([`crate::ports::DocumentText`]). The block follows the PDF.
pub fn document_text(title: Option<&str>, pages: usize, text: &str) -> ContentBlock {
    let source = json!({"type": "text", "media_type": "text/plain", "data": text});
    let context = format!(
        "{TEXT_CONTEXT}, {pages} page{}",
        if pages == 1 { "" } else { "s" }
    );
    let raw = match title {
        Some(title) => {
            json!({"type": "document", "source": source, "title": title, "context": context})
        }
        None => json!({"type": "document", "source": source, "context": context}),
    };
    let raw = RawJson::of(&raw).unwrap_or_else(|_| RawJson::empty_object());
    ContentBlock::from_raw("document".to_owned(), raw)
}

/// Start of the `context` field of such a block.
pub const TEXT_CONTEXT: &str = "The text of the PDF before it";

/// Whether a block is the text of the PDF before it, and so not the work of a person.
pub fn is_document_text(block: &ContentBlock) -> bool {
    text_wire(block).is_some_and(|wire| {
        wire.context
            .is_some_and(|context| context.starts_with(TEXT_CONTEXT))
    })
}

fn text_wire(block: &ContentBlock) -> Option<Wire<'_>> {
    match block {
        ContentBlock::Document(media) if *media.source() == MediaSource::Text => {
            serde_json::from_str(media.raw().as_str()).ok()
        }
        _ => None,
    }
}

/// Converts a document block of text to plain text, for APIs without documents; `None` for other
/// blocks. The title stands in a tag around the text, and no content can close the tag.
pub fn as_text(block: &ContentBlock) -> Option<String> {
    let Wire {
        source,
        title,
        context,
    } = text_wire(block)?;
    let text = source.data.unwrap_or_default();
    if title.is_none() && context.is_none() {
        return Some(text.into_owned());
    }
    let named = |name: &str, value: Option<Cow<'_, str>>| {
        value
            .map(|value| format!(" {name}=\"{}\"", plain(&value).replace('"', "'")))
            .unwrap_or_default()
    };
    let text = text
        .replace("<document", "<document ")
        .replace("</document", "</document ");
    Some(format!(
        "<document{}{}>\n{text}\n</document>",
        named("title", title),
        named("context", context)
    ))
}

/// Selects the blocks for a model: of a PDF and its text, the PDF if the model reads documents,
/// else the text. The history keeps both, because a conversation can change its model.
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

/// Reduces a title to one line without markup characters.
fn plain(name: &str) -> String {
    name.chars()
        .map(|c| {
            if c.is_control() || matches!(c, '<' | '>' | '[' | ']') {
                ' '
            } else {
                c
            }
        })
        .take(200)
        .collect()
}
