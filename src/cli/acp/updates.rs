//! Events of a round as updates of a session, and tool calls as an editor shows them.
//!
//! Pure.

use std::path::Path;

use callboard_actors::{
    chat::{ContentBlock, Message, RawJson, Role, ToolResultBlock},
    stream::{EventKind, RoundEnd, StopReason},
};
use serde_json::{Value, json};

use super::content;
use crate::visible::{escaped_json, visible_strict};

/// Characters of a tool's output that an editor is shown. The model reads all of it.
const OUTPUT_CHARS_MAX: usize = 16 * 1024;

/// Characters of a title.
const TITLE_CHARS_MAX: usize = 300;

/// A tool call in the words of the protocol.
pub(super) struct Shown<'a> {
    pub(super) id: &'a str,
    pub(super) name: &'a str,
    pub(super) input: &'a RawJson,
    /// The folder of the session, which relative paths of tools start from.
    pub(super) folder: &'a Path,
}

impl Shown<'_> {
    /// The fields that a call has from its start.
    fn fields(&self, status: &str) -> Value {
        let input: Value = self.input.parse().unwrap_or(Value::Null);
        json!({
            "toolCallId": self.id,
            "title": self.title(&input),
            "kind": kind(self.name),
            "status": status,
            "rawInput": input,
            "locations": self.locations(&input),
            "content": self.content(&input),
        })
    }

    /// The update that announces the call.
    pub(super) fn announced(&self, status: &str) -> Value {
        with_type("tool_call", self.fields(status))
    }

    /// The call as a person is asked about it: with every argument, and no character that hides or
    /// turns one.
    pub(super) fn asked(&self, reason: &str) -> Value {
        let mut fields = self.fields("pending");
        let input: Value = self.input.parse().unwrap_or(Value::Null);
        if let (Some(fields), true) = (fields.as_object_mut(), self.diff(&input).is_none()) {
            let words = format!("{reason}\n\n{}", escaped_json(self.input.as_str()));
            fields.insert("content".into(), json!([block(&words)]));
        }
        fields
    }

    fn title(&self, input: &Value) -> String {
        let field = |name: &str| input.get(name).and_then(Value::as_str);
        let title = match self.name {
            "bash" => field("command").map(str::to_owned),
            "file_edit" => field("path").map(|path| match field("old_text") {
                Some("") => format!("Create {path}"),
                _ => format!("Edit {path}"),
            }),
            "file_read" => field("path").map(|path| format!("Read {path}")),
            _ => None,
        };
        let title =
            title.unwrap_or_else(|| callboard_actors::journal::summary(self.name, self.input));
        let line = visible_strict(&title)
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        cut(&line, TITLE_CHARS_MAX)
    }

    fn locations(&self, input: &Value) -> Value {
        let names_file = matches!(
            self.name,
            "file_edit" | "file_read" | "file_list" | "grep_search"
        );
        let Some(path) = input
            .get("path")
            .and_then(Value::as_str)
            .filter(|_| names_file)
        else {
            return json!([]);
        };
        let mut location = json!({"path": self.folder.join(path)});
        if let (Some(fields), Some(line)) = (
            location.as_object_mut(),
            input.get("offset").and_then(Value::as_u64),
        ) {
            fields.insert("line".into(), json!(line));
        }
        json!([location])
    }

    /// What an edit changes: the text that it replaces, and the new one.
    fn diff(&self, input: &Value) -> Option<Value> {
        if self.name != "file_edit" {
            return None;
        }
        let field = |name: &str| input.get(name).and_then(Value::as_str);
        let old = field("old_text").filter(|old| !old.is_empty());
        Some(json!({
            "type": "diff",
            "path": self.folder.join(field("path")?),
            "oldText": old,
            "newText": field("new_text")?,
        }))
    }

    fn content(&self, input: &Value) -> Value {
        self.diff(input).into_iter().collect()
    }

    /// The update with the result. A diff stays beside it.
    pub(super) fn finished(&self, is_error: bool, output: &str) -> Value {
        let input: Value = self.input.parse().unwrap_or(Value::Null);
        let diff = self.diff(&input);
        let output = (is_error || diff.is_none()).then(|| block(&cut(output, OUTPUT_CHARS_MAX)));
        let content: Vec<Value> = diff.into_iter().chain(output).collect();
        let status = if is_error { "failed" } else { "completed" };
        with_type(
            "tool_call_update",
            json!({"toolCallId": self.id, "status": status, "content": content}),
        )
    }
}

/// The update that a call runs.
pub(super) fn running(id: &str) -> Value {
    with_type(
        "tool_call_update",
        json!({"toolCallId": id, "status": "in_progress"}),
    )
}

/// The update with the newest output of a running call.
pub(super) fn progress(id: &str, text: &str) -> Value {
    with_type(
        "tool_call_update",
        json!({"toolCallId": id, "status": "in_progress", "content": [block(&cut(text, OUTPUT_CHARS_MAX))]}),
    )
}

/// An update with a piece of a message.
pub(super) fn chunk(kind: &str, content: Value) -> Value {
    json!({"sessionUpdate": kind, "content": content})
}

fn with_type(kind: &str, mut fields: Value) -> Value {
    if let Some(fields) = fields.as_object_mut() {
        fields.insert("sessionUpdate".into(), json!(kind));
    }
    fields
}

fn block(text: &str) -> Value {
    json!({"type": "content", "content": content::text(text)})
}

fn cut(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// What a tool does, in the words of the protocol, which choose an icon.
fn kind(name: &str) -> &'static str {
    match name {
        "file_read" | "read_more" | "recall" => "read",
        "file_edit" => "edit",
        "file_list" | "grep_search" => "search",
        "bash" => "execute",
        "web_fetch" | "web_search" => "fetch",
        "think" => "think",
        _ => "other",
    }
}

/// The text of the current model call that was sent, so that the whole message sends only the rest.
#[derive(Debug, Default)]
pub(super) struct Streamed {
    text: String,
}

impl Streamed {
    /// The updates for an event that has no more to it. Tool calls are the caller's.
    pub(super) fn updates(&mut self, event: &EventKind) -> Vec<Value> {
        match event {
            EventKind::TextDelta { text } => {
                self.text.push_str(text);
                vec![chunk("agent_message_chunk", content::text(text))]
            }
            EventKind::ThinkingDelta { text } => {
                vec![chunk("agent_thought_chunk", content::text(text))]
            }
            EventKind::Message { message, .. } => {
                let whole = message.text();
                let sent = std::mem::take(&mut self.text);
                let rest = whole.strip_prefix(sent.as_str()).unwrap_or(&whole);
                match rest {
                    "" => Vec::new(),
                    rest => vec![chunk("agent_message_chunk", content::text(rest))],
                }
            }
            EventKind::TurnRestarted { .. } => {
                self.text.clear();
                Vec::new()
            }
            EventKind::ToolProgress { tool_call_id, text } => vec![progress(tool_call_id, text)],
            EventKind::Context { tokens, window, .. } => {
                vec![json!({"sessionUpdate": "usage_update", "used": tokens, "size": window})]
            }
            _ => Vec::new(),
        }
    }
}

/// The result of `session/prompt`; `cancelled` whatever the round ended with, if the client cancelled
/// it. The round's own reason and usage are in `_meta`.
pub(super) fn stopped(end: &RoundEnd, round_id: &str, cancelled: bool) -> Value {
    let reason = match cancelled {
        true => "cancelled",
        false => stop_reason(end.stop_reason),
    };
    json!({
        "stopReason": reason,
        "_meta": {"callboard": {
            "roundId": round_id,
            "stopReason": end.stop_reason.code(),
            "usage": end.usage,
        }},
    })
}

fn stop_reason(reason: StopReason) -> &'static str {
    match reason {
        StopReason::EndTurn | StopReason::StopSequence => "end_turn",
        StopReason::MaxTokens | StopReason::ContextTooLarge | StopReason::Budget => "max_tokens",
        StopReason::IterationLimit | StopReason::LoopGuard => "max_turn_requests",
        StopReason::Refusal => "refusal",
        StopReason::Interrupted => "cancelled",
        _ => "end_turn",
    }
}

/// The updates that replay a stored history, in its order.
pub(super) fn replay(messages: &[Message], folder: &Path) -> Vec<Value> {
    let results: std::collections::HashMap<String, ToolResultBlock> = messages
        .iter()
        .flat_map(Message::blocks)
        .filter_map(|block| match block {
            ContentBlock::ToolResult(result) => Some((result.tool_use_id.clone(), result)),
            _ => None,
        })
        .collect();
    let mut updates = Vec::new();
    for message in messages {
        for block in message.blocks() {
            match (message.role(), block) {
                (Role::User, block) => updates.extend(
                    content::of_person(&block).map(|content| chunk("user_message_chunk", content)),
                ),
                (_, ContentBlock::Thinking(block)) if !block.thinking.is_empty() => {
                    updates.push(chunk("agent_thought_chunk", content::text(&block.thinking)))
                }
                (_, ContentBlock::Text(block)) => {
                    updates.push(chunk("agent_message_chunk", content::text(&block.text)));
                }
                (_, ContentBlock::ToolUse(call)) => {
                    let shown = Shown {
                        id: &call.id,
                        name: &call.name,
                        input: &call.input,
                        folder,
                    };
                    updates.push(shown.announced("pending"));
                    updates.extend(
                        results
                            .get(&call.id)
                            .map(|result| shown.finished(result.is_error, &result.content.text())),
                    );
                }
                _ => {}
            }
        }
    }
    updates
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown<'a>(name: &'a str, input: &'a RawJson) -> Shown<'a> {
        Shown {
            id: "t1",
            name,
            input,
            folder: Path::new("/folder"),
        }
    }

    fn raw(value: Value) -> RawJson {
        RawJson::of(&value).unwrap()
    }

    #[test]
    fn an_edit_is_a_diff_at_its_place() {
        let input = raw(json!({"path": "src/a.rs", "old_text": "1", "new_text": "2"}));

        let update = shown("file_edit", &input).announced("pending");

        assert_eq!(
            update,
            json!({
                "sessionUpdate": "tool_call",
                "toolCallId": "t1",
                "title": "Edit src/a.rs",
                "kind": "edit",
                "status": "pending",
                "rawInput": {"path": "src/a.rs", "old_text": "1", "new_text": "2"},
                "locations": [{"path": "/folder/src/a.rs"}],
                "content": [{"type": "diff", "path": "/folder/src/a.rs", "oldText": "1", "newText": "2"}],
            })
        );
        let created = raw(json!({"path": "b", "old_text": "", "new_text": "2"}));
        assert_eq!(
            shown("file_edit", &created).finished(false, "done")["content"],
            json!([{"type": "diff", "path": "/folder/b", "oldText": null, "newText": "2"}])
        );
    }

    #[test]
    fn a_question_shows_every_argument_and_hides_no_character() {
        let input = raw(json!({"command": "ls \u{202e}hcuot", "timeout_ms": 5}));

        let asked = shown("bash", &input).asked("this tool changes something");

        assert_eq!(
            (&asked["kind"], &asked["title"]),
            (&json!("execute"), &json!("ls \\u{202e}hcuot"))
        );
        let words = asked["content"][0]["content"]["text"].as_str().unwrap();
        assert!(
            words.contains("\\u202e")
                && words.contains("timeout_ms")
                && !words.contains('\u{202e}'),
            "{words}"
        );
    }

    #[test]
    fn a_whole_message_sends_only_what_was_not_streamed() {
        let mut streamed = Streamed::default();
        let message = |text: &str| EventKind::Message {
            message: Message::assistant(text),
            partial: false,
        };
        streamed.updates(&EventKind::TextDelta { text: "Hel".into() });

        let rest = streamed.updates(&message("Hello"));
        let next = streamed.updates(&message("Again"));

        assert_eq!(rest, [chunk("agent_message_chunk", content::text("lo"))]);
        assert_eq!(next, [chunk("agent_message_chunk", content::text("Again"))]);
    }

    #[test]
    fn a_history_is_replayed_in_its_order_without_what_only_models_read() {
        let call = ContentBlock::ToolUse(callboard_actors::chat::ToolUseBlock {
            id: "c1".into(),
            name: "file_read".into(),
            input: raw(json!({"path": "a", "offset": 3})),
        });
        let result = ContentBlock::ToolResult(ToolResultBlock {
            tool_use_id: "c1".into(),
            content: callboard_actors::chat::ToolResultContent::Text("1\tx".into()),
            is_error: false,
        });
        let messages = [
            Message::user("Read it"),
            Message::new(Role::Assistant, &[call]).unwrap(),
            Message::new(
                Role::User,
                &[
                    result,
                    callboard_actors::chat::reminder("the budget is low"),
                ],
            )
            .unwrap(),
            Message::assistant("It says x."),
        ];

        let kinds: Vec<String> = replay(&messages, Path::new("/w"))
            .iter()
            .map(|update| update["sessionUpdate"].as_str().unwrap().to_owned())
            .collect();

        assert_eq!(
            kinds,
            [
                "user_message_chunk",
                "tool_call",
                "tool_call_update",
                "agent_message_chunk"
            ]
        );
    }
}
