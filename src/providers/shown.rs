//! The content of messages and tool results for APIs with another form than Anthropic's: which
//! attachments a model is shown, and what replaces the others. Pure.

use callboard_actors::chat::{
    ContentBlock, RawJson, ToolResultContent,
    attachment::{as_shown, as_text, media_of, note},
};
use serde::Deserialize;
use serde_json::Value;

/// Which attachments are sent to the model. The others become a note or their extracted text,
/// because a server refuses a conversation with an image for a model that has no vision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) images: bool,
    pub(super) documents: bool,
}

/// A part of a message's content in the form of an API.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Part {
    Text(String),
    /// An image or a document.
    Media(Value),
}

/// An image or a document that is sent.
#[derive(Deserialize)]
#[cfg_attr(not(feature = "openai"), allow(dead_code, reason = "another feature"))]
pub(super) struct Attached {
    pub(super) source: Source,
    #[serde(default)]
    pub(super) title: Option<String>,
}

/// Where its content is.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(not(feature = "openai"), allow(dead_code, reason = "another feature"))]
pub(super) enum Source {
    Base64 { media_type: String, data: String },
    Url { url: String },
}

impl Source {
    /// A URL, of the kind `data:` for bytes.
    #[cfg(feature = "openai")]
    pub(super) fn into_url(self) -> String {
        match self {
            Self::Base64 { media_type, data } => format!("data:{media_type};base64,{data}"),
            Self::Url { url } => url,
        }
    }
}

/// Converts an attachment of a kind (`image`, `document`) to an API's form; `None` if the API takes
/// none of it.
pub(super) type Form = fn(&str, Attached) -> Option<Value>;

impl Shown {
    /// A bit for each kind of attachment, for the forms that adapters keep with a message.
    pub(super) fn tag(self) -> u8 {
        u8::from(self.images) | (u8::from(self.documents) << 1)
    }

    /// Returns the note that replaces an image or a document that is not sent.
    pub(super) fn note(self, block: &ContentBlock) -> Option<String> {
        let is_shown = match block.kind() {
            "image" => self.images,
            "document" => self.documents || media_of(block).is_none(),
            _ => true,
        };
        if is_shown { None } else { note(block) }
    }

    /// Converts a block of a user message; `None` for an empty text and for blocks that belong
    /// elsewhere.
    pub(super) fn part(self, block: ContentBlock, form: Form) -> Option<Part> {
        if let Some(note) = self.note(&block) {
            return Some(Part::Text(note));
        }
        let text = as_text(&block);
        Some(match block {
            ContentBlock::Text(block) if block.text.is_empty() => return None,
            ContentBlock::Text(block) => Part::Text(block.text),
            ContentBlock::Image(_) | ContentBlock::Document(_) | ContentBlock::Other { .. } => {
                let kind = block.kind();
                let shown = || block.raw().and_then(|raw| attached(kind, raw, form));
                match text.map(Part::Text).or_else(|| shown().map(Part::Media)) {
                    Some(part) => part,
                    None => Part::Text(format!("[a {kind} that this provider cannot be sent]")),
                }
            }
            ContentBlock::Thinking(_) | ContentBlock::ToolUse(_) | ContentBlock::ToolResult(_) => {
                return None;
            }
        })
    }

    /// Splits the content of a tool result into its text, notes included, and the blocks that no
    /// text replaces.
    pub(super) fn result(self, content: &ToolResultContent) -> (String, Vec<ContentBlock>) {
        let raw = match content {
            ToolResultContent::Text(text) => return (text.clone(), Vec::new()),
            ToolResultContent::Blocks(raw) => raw,
        };
        let blocks: Vec<ContentBlock> = raw.parse().unwrap_or_default();
        let mut texts = Vec::new();
        let mut others = Vec::new();
        for block in as_shown(blocks, self.documents) {
            let text = block.as_text().map(str::to_owned);
            match text
                .or_else(|| as_text(&block))
                .or_else(|| self.note(&block))
            {
                Some(text) => texts.push(text),
                None => others.push(block),
            }
        }
        (texts.join("\n"), others)
    }
}

fn attached(kind: &str, raw: &RawJson, form: Form) -> Option<Value> {
    form(kind, raw.parse().ok()?)
}
