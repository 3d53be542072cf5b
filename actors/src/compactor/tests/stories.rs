//! Messages for the tests of this folder.

use crate::chat::{
    ContentBlock, Message, RawJson, Role, ToolResultBlock, ToolResultContent, ToolUseBlock,
};

/// About three bytes per token.
pub(in crate::compactor) fn count(message: &Message) -> u64 {
    message.wire().len().div_ceil(3) as u64
}

pub(in crate::compactor) fn call(id: &str, name: &str) -> ContentBlock {
    ContentBlock::ToolUse(ToolUseBlock {
        id: id.into(),
        name: name.into(),
        input: RawJson::empty_object(),
    })
}

pub(in crate::compactor) fn result(id: &str, text: &str, is_error: bool) -> ToolResultBlock {
    ToolResultBlock {
        tool_use_id: id.into(),
        content: ToolResultContent::Text(text.into()),
        is_error,
    }
}

/// One call of `f` and its result.
pub(in crate::compactor) fn exchange(id: &str, text: &str) -> [Message; 2] {
    [
        Message::new(Role::Assistant, &[call(id, "f")]).unwrap(),
        Message::tool_results([result(id, text, false)], []),
    ]
}

pub(in crate::compactor) fn failed_exchange(id: &str, text: &str) -> [Message; 2] {
    [
        Message::new(Role::Assistant, &[call(id, "f")]).unwrap(),
        Message::tool_results([result(id, text, true)], []),
    ]
}
