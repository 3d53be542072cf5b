//! The flat debug form of messages, for people and analysis: what `sessions show --debug` and
//! `GET …/messages?form=debug` answer with. Callboard never reads this form back.
//!
//! Pure.

use serde::{Deserialize, Serialize};

use super::{ContentBlock, Message, RawJson, Role};
use crate::{ids::Scope, time::Timestamp};

/// A content block with every field optional.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[allow(
    missing_docs,
    reason = "the names are the fields of the blocks they flatten"
)]
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
        let flat = Self {
            kind: block.kind().to_owned(),
            ..Self::default()
        };
        match block {
            ContentBlock::Text(b) => Self {
                text: Some(b.text.clone()),
                ..flat
            },
            ContentBlock::Thinking(b) => Self {
                thinking: Some(b.thinking.clone()),
                ..flat
            },
            ContentBlock::ToolUse(b) => Self {
                id: Some(b.id.clone()),
                name: Some(b.name.clone()),
                input: Some(b.input.clone()),
                ..flat
            },
            ContentBlock::ToolResult(b) => Self {
                tool_use_id: Some(b.tool_use_id.clone()),
                content: Some(b.content.text().into_owned()),
                is_error: Some(b.is_error),
                ..flat
            },
            ContentBlock::Image(_) | ContentBlock::Document(_) | ContentBlock::Other { .. } => {
                Self {
                    content: block.raw().map(|raw| raw.as_str().to_owned()),
                    ..flat
                }
            }
        }
    }
}

/// A message in the debug form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct StandardMessage {
    pub role: Role,
    /// The blocks in flat form.
    pub content: Vec<DebugBlock>,
    /// Time of the message in ISO 8601.
    #[serde(default)]
    pub timestamp: String,
    /// Id of the message, a UUID.
    #[serde(default)]
    pub message_id: String,
    /// Id of the conversation; empty until set.
    #[serde(default)]
    pub conversation_id: String,
    /// Id of the tenant; empty until set.
    #[serde(default)]
    pub user_id: String,
}

impl StandardMessage {
    /// Converts a message of time `at`. `random` becomes its id (UUID version 4).
    pub(crate) fn new(message: &Message, at: Timestamp, random: [u8; 16]) -> Self {
        Self {
            role: message.role(),
            content: message.blocks().iter().map(DebugBlock::from).collect(),
            timestamp: at.to_string(),
            message_id: uuid::Builder::from_random_bytes(random)
                .into_uuid()
                .to_string(),
            conversation_id: String::new(),
            user_id: String::new(),
        }
    }

    /// Names the conversation and the tenant that the message belongs to.
    #[must_use]
    pub(crate) fn of(self, scope: &Scope) -> Self {
        Self {
            conversation_id: scope.conversation.to_string(),
            user_id: scope.tenant.to_string(),
            ..self
        }
    }

    /// Returns the message as a JSON object without absent fields.
    pub fn to_debug_dict(&self, schema_version: &str) -> serde_json::Value {
        serde_json::json!({
            "role": self.role,
            "content": self.content,
            "schema_version": schema_version,
            "timestamp": self.timestamp,
            "message_id": self.message_id,
            "conversation_id": self.conversation_id,
            "user_id": self.user_id,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_kind_of_block_is_flat() {
        let of = |wire: serde_json::Value| {
            let wire = wire.to_string();
            let message = Message::from_wire(wire.as_bytes()).unwrap();
            let message = StandardMessage::new(&message, Timestamp(0), [0; 16]);
            message.to_debug_dict("1.9")["content"].take()
        };

        let asked = of(json!({"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 2}},
        ]}));
        let answered = of(json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "42"}]},
            {"type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": true},
        ]}));

        assert_eq!(
            asked,
            json!([
                {"type": "thinking", "thinking": "hm"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 2}},
            ])
        );
        assert_eq!(
            answered,
            json!([
                {"type": "tool_result", "tool_use_id": "t1", "content": "42", "is_error": false},
                {"type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": true},
            ])
        );
    }

    #[test]
    fn the_debug_form_names_everything_and_leaves_out_what_is_not_there() {
        let mut message = StandardMessage::new(&Message::user("hello"), Timestamp(0), [0xff; 16]);
        assert_eq!(
            (message.conversation_id.as_str(), message.user_id.as_str()),
            ("", "")
        );
        message.conversation_id = "c".into();
        message.user_id = "u".into();

        let dict = message.to_debug_dict("1.9");

        assert_eq!(
            dict,
            json!({
                "role": "user",
                "content": [{"type": "text", "text": "hello"}],
                "schema_version": "1.9",
                "timestamp": "1970-01-01T00:00:00.000Z",
                "message_id": "ffffffff-ffff-4fff-bfff-ffffffffffff",
                "conversation_id": "c",
                "user_id": "u",
            })
        );
        assert_eq!(
            serde_json::from_value::<StandardMessage>(dict).unwrap(),
            message
        );
    }
}
