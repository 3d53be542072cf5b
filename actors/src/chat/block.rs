//! Content blocks: a union selected by `type`. Images and documents, and blocks of an unknown type,
//! are kept byte for byte.
//!
//! Pure.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::RawJson;

/// Text from either role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct TextBlock {
    pub text: String,
    /// A cache mark that came with the block. Adapters set their own marks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_control: Option<RawJson>,
    /// Citations, kept as received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub citations: Option<RawJson>,
}

/// A model's reasoning. It must be sent back unchanged, including the signature, even when the text
/// is empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThinkingBlock {
    /// The reasoning; may be empty.
    pub thinking: String,
    /// The provider's signature over the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolUseBlock {
    /// Id assigned by the model's provider.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// The arguments as the model wrote them.
    pub input: RawJson,
}

/// The result of a tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolResultBlock {
    /// Id of the call.
    pub tool_use_id: String,
    /// What the model reads.
    #[serde(default)]
    pub content: ToolResultContent,
    /// Whether the call failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
}

/// The content of a tool result: text, or blocks that another system wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolResultContent {
    /// Text, the only form that Callboard creates.
    Text(String),
    /// A JSON array of blocks, kept as received.
    Blocks(RawJson),
}

impl Default for ToolResultContent {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

impl ToolResultContent {
    /// Returns the text; of blocks, the text blocks joined by newlines.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Blocks(raw) => {
                let blocks: Vec<ContentBlock> = raw.parse().unwrap_or_default();
                let texts: Vec<&str> = blocks.iter().filter_map(ContentBlock::as_text).collect();
                Cow::Owned(texts.join("\n"))
            }
        }
    }
}

impl Serialize for ToolResultContent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Blocks(raw) => raw.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for ToolResultContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = RawJson::deserialize(deserializer)?;
        match raw.as_str().as_bytes().first() {
            Some(b'"') => raw
                .parse()
                .map(Self::Text)
                .map_err(serde::de::Error::custom),
            Some(b'[') => Ok(Self::Blocks(raw)),
            Some(b'n') => Ok(Self::default()),
            _ => Err(serde::de::Error::custom(
                "tool_result content must be a string or a list of blocks",
            )),
        }
    }
}

/// An image or a document. The bytes of a file stand in the block once, in base64; the block is kept
/// byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaBlock {
    source: MediaSource,
    raw: RawJson,
}

/// Where the content of an image or document is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MediaSource {
    /// In the block, in base64; [`super::attachment::media_of`] returns the bytes.
    Base64 {
        /// The media type that the block declares.
        media_type: String,
    },
    /// At a URL, from which the provider fetches it.
    Url {
        /// The URL.
        url: String,
    },
    /// In a file that lies at the provider.
    File,
    /// In the block, as text. Only of documents.
    Text,
    /// In the block, as a text or a list of blocks. Only of documents.
    Content,
}

impl MediaBlock {
    /// Returns where the content is.
    pub fn source(&self) -> &MediaSource {
        &self.source
    }

    /// Returns the whole block as JSON.
    pub(crate) fn raw(&self) -> &RawJson {
        &self.raw
    }
}

/// The source of an image or document in the wire form.
#[derive(Deserialize)]
struct SourceWire<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    media_type: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
    #[serde(borrow, default)]
    url: Option<Cow<'a, str>>,
}

/// Reads the source of an image or document; `None` if it is none that is known.
fn source_of(raw: &str, is_document: bool) -> Option<MediaSource> {
    #[derive(Deserialize)]
    struct Wire<'a> {
        #[serde(borrow)]
        source: SourceWire<'a>,
    }
    let SourceWire {
        kind,
        media_type,
        data,
        url,
    } = serde_json::from_str::<Wire<'_>>(raw).ok()?.source;
    let has_text = data.is_some_and(|data| data.get().starts_with('"'));
    match (&*kind, media_type, url) {
        ("base64", Some(media_type), _) if has_text => Some(MediaSource::Base64 {
            media_type: media_type.into_owned(),
        }),
        ("url", _, Some(url)) => Some(MediaSource::Url {
            url: url.into_owned(),
        }),
        ("file", _, _) => Some(MediaSource::File),
        ("text", _, _) if is_document && has_text => Some(MediaSource::Text),
        ("content", _, _) if is_document => Some(MediaSource::Content),
        _ => None,
    }
}

/// One block of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContentBlock {
    /// `text`
    Text(TextBlock),
    /// `thinking`
    Thinking(ThinkingBlock),
    /// `tool_use`
    ToolUse(ToolUseBlock),
    /// `tool_result`
    ToolResult(ToolResultBlock),
    /// `image`
    Image(MediaBlock),
    /// `document`
    Document(MediaBlock),
    /// Any other type (`redacted_thinking`, a provider's own tools), and an image or document
    /// without a source that is known, kept byte for byte.
    Other {
        /// The value of `type`.
        kind: String,
        /// The whole block as JSON.
        raw: RawJson,
    },
}

impl ContentBlock {
    /// Creates a text block.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(TextBlock {
            text: text.into(),
            cache_control: None,
            citations: None,
        })
    }

    /// Creates the block of a `type` that stands in `raw`, which is the whole block and no text,
    /// thought, call or result.
    pub fn from_raw(kind: String, raw: RawJson) -> Self {
        let media = |is_document| source_of(raw.as_str(), is_document);
        match kind.as_str() {
            "image" => match media(false) {
                Some(source) => Self::Image(MediaBlock { source, raw }),
                None => Self::Other { kind, raw },
            },
            "document" => match media(true) {
                Some(source) => Self::Document(MediaBlock { source, raw }),
                None => Self::Other { kind, raw },
            },
            _ => Self::Other { kind, raw },
        }
    }

    /// Returns the whole block as JSON, of the types that are kept as they were received.
    pub fn raw(&self) -> Option<&RawJson> {
        match self {
            Self::Image(MediaBlock { raw, .. })
            | Self::Document(MediaBlock { raw, .. })
            | Self::Other { raw, .. } => Some(raw),
            Self::Text(_) | Self::Thinking(_) | Self::ToolUse(_) | Self::ToolResult(_) => None,
        }
    }

    /// Returns the text of a text block; `None` for other blocks.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(block) => Some(&block.text),
            Self::Thinking(_)
            | Self::ToolUse(_)
            | Self::ToolResult(_)
            | Self::Image(_)
            | Self::Document(_)
            | Self::Other { .. } => None,
        }
    }

    /// Returns the bytes that a model wrote in this block.
    pub(crate) fn content_bytes(&self) -> usize {
        match self {
            Self::Text(block) => block.text.len(),
            Self::Thinking(block) => block.thinking.len(),
            Self::ToolUse(call) => call.name.len() + call.input.as_str().len(),
            Self::ToolResult(_) => 0,
            Self::Image(MediaBlock { raw, .. })
            | Self::Document(MediaBlock { raw, .. })
            | Self::Other { raw, .. } => raw.as_str().len(),
        }
    }

    /// Returns the bytes that a history keeps of this block: those of [`ContentBlock::size`], with
    /// control characters as JSON writes most of them, with six bytes.
    pub(crate) fn kept_bytes(&self) -> usize {
        let (first, second) = match self {
            Self::Text(block) => (block.text.as_str(), ""),
            Self::Thinking(block) => {
                let signature = block.signature.as_deref();
                (block.thinking.as_str(), signature.unwrap_or_default())
            }
            Self::ToolUse(call) => (call.id.as_str(), call.name.as_str()),
            Self::ToolResult(_) | Self::Image(_) | Self::Document(_) | Self::Other { .. } => {
                ("", "")
            }
        };
        let controls = |text: &str| {
            let is_one =
                |byte: &u8| *byte < b' ' && !matches!(byte, 8 | b'\t' | b'\n' | 12 | b'\r');
            text.bytes().filter(is_one).count()
        };
        self.size() + 5 * (controls(first) + controls(second))
    }

    /// Returns the value of `type`.
    pub fn kind(&self) -> &str {
        match self {
            Self::Text(_) => "text",
            Self::Thinking(_) => "thinking",
            Self::ToolUse(_) => "tool_use",
            Self::ToolResult(_) => "tool_result",
            Self::Image(_) => "image",
            Self::Document(_) => "document",
            Self::Other { kind, .. } => kind,
        }
    }

    /// Estimates the bytes of the wire form. Only escapes make it longer.
    pub(super) fn size(&self) -> usize {
        let content = match self {
            Self::Text(block) => {
                let rest = [&block.cache_control, &block.citations];
                block.text.len()
                    + rest
                        .into_iter()
                        .flatten()
                        .map(|raw| raw.as_str().len() + 20)
                        .sum::<usize>()
            }
            Self::Thinking(block) => {
                block.thinking.len()
                    + block
                        .signature
                        .as_ref()
                        .map_or(0, |signature| signature.len() + 16)
            }
            Self::ToolUse(block) => {
                block.id.len() + block.name.len() + block.input.as_str().len() + 16
            }
            Self::ToolResult(ToolResultBlock {
                tool_use_id,
                content,
                ..
            }) => {
                let content = match content {
                    ToolResultContent::Text(text) => text.len(),
                    ToolResultContent::Blocks(raw) => raw.as_str().len(),
                };
                tool_use_id.len() + content + 32
            }
            Self::Image(MediaBlock { raw, .. })
            | Self::Document(MediaBlock { raw, .. })
            | Self::Other { raw, .. } => raw.as_str().len(),
        };
        content + 32
    }

    /// Whether a block has this type. In our own wire form `type` comes first, so the rest is not
    /// parsed.
    pub(super) fn is_kind(raw: &str, kind: &str) -> bool {
        kind_of(raw).is_ok_and(|found| found == kind)
    }

    /// Decodes a block of our own wire form.
    pub(super) fn of_wire(raw: &str) -> Option<Self> {
        Self::decode(raw, &kind_of(raw).ok()?).ok()
    }

    /// Returns the text of a text block in our own wire form. Borrows the text unless it contains
    /// escapes.
    pub(super) fn text_of_wire(raw: &str) -> Option<Cow<'_, str>> {
        #[derive(Deserialize)]
        struct TextField<'a> {
            #[serde(borrow)]
            text: Cow<'a, str>,
        }
        let plain = raw
            .strip_prefix(r#"{"type":"text","text":""#)
            .and_then(|rest| rest.strip_suffix(r#""}"#));
        match plain.filter(|text| !text.contains('\\') && !text.contains('"')) {
            Some(text) => Some(Cow::Borrowed(text)),
            None => serde_json::from_str::<TextField<'_>>(raw)
                .ok()
                .map(|field| field.text),
        }
    }

    fn decode(text: &str, kind: &str) -> Result<Self, serde_json::Error> {
        Ok(match kind {
            "text" => Self::Text(serde_json::from_str(text)?),
            "thinking" => Self::Thinking(serde_json::from_str(text)?),
            "tool_use" => {
                let block: ToolUseBlock = serde_json::from_str(text)?;
                if !block.input.is_object() {
                    return Err(serde::de::Error::custom("tool_use input must be an object"));
                }
                Self::ToolUse(block)
            }
            "tool_result" => Self::ToolResult(serde_json::from_str(text)?),
            kind => Self::from_raw(kind.to_owned(), RawJson::from_text(text)?),
        })
    }
}

#[derive(Deserialize)]
struct Tag<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
}

/// Returns the `type` of a block, quickly where it comes first.
fn kind_of(block: &str) -> Result<Cow<'_, str>, serde_json::Error> {
    if let Some((kind, _)) = block
        .strip_prefix(r#"{"type":""#)
        .and_then(|rest| rest.split_once('"'))
        && !kind.contains('\\')
    {
        return Ok(Cow::Borrowed(kind));
    }
    serde_json::from_str::<Tag<'_>>(block).map(|tag| tag.kind)
}

impl Serialize for ContentBlock {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(tag = "type", rename_all = "snake_case")]
        enum Tagged<'a> {
            Text(&'a TextBlock),
            Thinking(&'a ThinkingBlock),
            ToolUse(&'a ToolUseBlock),
            ToolResult(&'a ToolResultBlock),
        }
        match self {
            Self::Text(block) => Tagged::Text(block).serialize(serializer),
            Self::Thinking(block) => Tagged::Thinking(block).serialize(serializer),
            Self::ToolUse(block) => Tagged::ToolUse(block).serialize(serializer),
            Self::ToolResult(block) => Tagged::ToolResult(block).serialize(serializer),
            Self::Image(MediaBlock { raw, .. })
            | Self::Document(MediaBlock { raw, .. })
            | Self::Other { raw, .. } => raw.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for ContentBlock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        // The whole block is parsed for its type, so that a block with two `type` keys is refused.
        let tag: Tag<'_> = serde_json::from_str(raw.get()).map_err(serde::de::Error::custom)?;
        Self::decode(raw.get(), &tag.kind).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_count_as_a_history_keeps_them_wherever_they_are() {
        let controls = || (0..=31).map(char::from).collect::<String>();
        let text = ContentBlock::text(controls());
        let thinking = ContentBlock::Thinking(ThinkingBlock {
            thinking: controls(),
            signature: Some(controls()),
        });
        let call = ContentBlock::ToolUse(ToolUseBlock {
            id: controls(),
            name: controls(),
            input: RawJson::empty_object(),
        });
        for block in [text, thinking, call] {
            let wire = serde_json::to_string(&block).unwrap().len();
            let kept = block.kept_bytes();
            // Five of them are written with two bytes.
            assert!((wire - 20..wire + 32).contains(&kept), "{kept} of {wire}");
        }
    }
}
