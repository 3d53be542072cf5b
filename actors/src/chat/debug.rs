//! The flat debug form of messages (REQUIREMENTS M-08, M-14): for people and research, never a carrier.

use serde::{Deserialize, Serialize};

use super::{ContentBlock, Message, RawJson, Role};

/// A block with every field optional (M-08).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the fields of the blocks they flatten")]
pub struct DebugBlock {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<RawJson>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_use_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_error: Option<bool>,
}

impl From<&ContentBlock> for DebugBlock {
    fn from(block: &ContentBlock) -> Self {
        let flat = Self { kind: block.kind().to_owned(), ..Self::default() };
        match block {
            ContentBlock::Text(b) => Self { text: Some(b.text.clone()), ..flat },
            ContentBlock::Thinking(b) => Self { thinking: Some(b.thinking.clone()), ..flat },
            ContentBlock::ToolUse(b) => Self { id: Some(b.id.clone()), name: Some(b.name.clone()), input: Some(b.input.clone()), ..flat },
            ContentBlock::ToolResult(b) => Self {
                tool_use_id: Some(b.tool_use_id.clone()),
                content: Some(b.content.text().into_owned()),
                is_error: Some(b.is_error),
                ..flat
            },
            ContentBlock::Other { raw, .. } => Self { content: Some(raw.as_str().to_owned()), ..flat },
        }
    }
}

/// A message in the debug form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandardMessage {
    /// Who speaks.
    pub role: Role,
    /// The blocks, flat.
    pub content: Vec<DebugBlock>,
}

impl From<&Message> for StandardMessage {
    fn from(message: &Message) -> Self {
        Self { role: message.role(), content: message.blocks().iter().map(DebugBlock::from).collect() }
    }
}
