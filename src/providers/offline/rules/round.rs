//! Reads the open round of a request: the question, and the tool results since.

use std::collections::HashMap;

use callboard_actors::chat::{
    ContentBlock, Message, MessageList, ModelRequest, Role,
    attachment::{is_document_text, note},
};
use serde_json::Value;

/// A tool call and its result.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Seen {
    pub(super) tool: String,
    pub(super) input: Value,
    pub(super) text: String,
    pub(super) is_error: bool,
}

impl Seen {
    /// Returns a string argument of the call.
    pub(super) fn argument(&self, name: &str) -> Option<&str> {
        self.input.get(name).and_then(Value::as_str)
    }

    /// Why a failed call failed: the message of the host's error layout, else the first line.
    pub(super) fn reason(&self) -> &str {
        let mut lines = self.text.trim().lines();
        let first = lines.next().unwrap_or_default();
        lines
            .find_map(|line| line.strip_prefix("Error Message: "))
            .unwrap_or(first)
    }
}

/// The round so far.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Round {
    pub(super) question: String,
    /// Notes for the images and documents of the prompt, which rules cannot read.
    pub(super) unseen: Vec<String>,
    /// The calls by batch, in call order.
    pub(super) batches: Vec<Vec<Seen>>,
}

impl Round {
    /// Reads the end of a history. The last user message without tool results is the question; the
    /// messages after it belong to its round.
    pub(super) fn read(messages: &MessageList) -> Self {
        let mut after: Vec<&Message> = Vec::new();
        let mut question = String::new();
        let mut unseen = Vec::new();
        for message in messages.iter().rev() {
            if message.role() == Role::User && message.tool_result_ids().is_empty() {
                question = prompt_of(message);
                unseen = message
                    .blocks()
                    .iter()
                    .filter(|block| !is_document_text(block))
                    .filter_map(note)
                    .collect();
                break;
            }
            after.push(message);
        }
        after.reverse();
        let batches = after
            .iter()
            .zip(after.iter().skip(1))
            .filter(|(calls, results)| {
                !calls.tool_use_ids().is_empty() && !results.tool_result_ids().is_empty()
            })
            .map(|(calls, results)| exchange(calls, results))
            .collect();
        Self {
            question,
            unseen,
            batches,
        }
    }
}

/// Returns the prompt of a message: its last text that is not a tagged note, which hosts put before
/// prompts.
fn prompt_of(message: &Message) -> String {
    let texts: Vec<String> = message
        .blocks()
        .iter()
        .filter_map(|block| block.as_text().map(|text| text.trim().to_owned()))
        .collect();
    texts
        .iter()
        .rfind(|text| !text.is_empty() && !text.starts_with('<'))
        .or(texts.last())
        .cloned()
        .unwrap_or_default()
}

fn exchange(calls: &Message, results: &Message) -> Vec<Seen> {
    let mut answers: HashMap<String, (String, bool)> = HashMap::new();
    for block in results.blocks() {
        if let ContentBlock::ToolResult(result) = block {
            answers.insert(
                result.tool_use_id,
                (result.content.text().into_owned(), result.is_error),
            );
        }
    }
    let seen = calls.tool_uses().into_iter().map(|call| {
        let (text, is_error) = answers.remove(&call.id).unwrap_or_default();
        Seen {
            tool: call.name,
            input: call.input.parse().unwrap_or_default(),
            text,
            is_error,
        }
    });
    seen.collect()
}

/// Which of the tools that the rules use a request offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Offered {
    pub(super) grep: bool,
    pub(super) list: bool,
    pub(super) read: bool,
}

impl Offered {
    pub(super) fn from_request(request: &ModelRequest) -> Self {
        let has = |name: &str| request.tools.iter().any(|tool| tool.name == name);
        let may = request.tool_choice != callboard_actors::chat::ToolChoice::None;
        Self {
            grep: may && has("grep_search"),
            list: may && has("file_list"),
            read: may && has("file_read"),
        }
    }
}

#[cfg(test)]
mod tests {
    use callboard_actors::chat::{RawJson, ToolResultBlock, ToolResultContent, ToolUseBlock};
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_last_question_and_its_calls_count() {
        let call = |id: &str| {
            let input = RawJson::from_text(r#"{"path":"a"}"#).unwrap();
            let block = ContentBlock::ToolUse(ToolUseBlock {
                id: id.into(),
                name: "file_read".into(),
                input,
            });
            Message::new(Role::Assistant, &[block]).unwrap()
        };
        let result = |id: &str, is_error| ToolResultBlock {
            tool_use_id: id.into(),
            content: ToolResultContent::Text(format!("of {id}")),
            is_error,
        };
        let messages = MessageList::from_iter([
            Message::user("first?"),
            call("t1"),
            Message::tool_results([result("t1", false)], []),
            Message::assistant("done"),
            Message::user("second?"),
            call("t2"),
            Message::tool_results(
                [result("t2", true)],
                [ContentBlock::text("<note>budget</note>")],
            ),
        ]);

        assert_eq!(
            Round::read(&messages),
            Round {
                question: "second?".into(),
                unseen: vec![],
                batches: vec![vec![Seen {
                    tool: "file_read".into(),
                    input: json!({"path": "a"}),
                    text: "of t2".into(),
                    is_error: true
                }]],
            }
        );
    }
}
