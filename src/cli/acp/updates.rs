//! Events of a round as updates of a session, and tool calls as an editor shows them. Editors render
//! texts as Markdown, in which a comment hides a part of a command and an image is fetched, so
//! arguments and results are in code blocks.
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
        let diff = self.diff(&input).map(|diff| strictly_visible(&diff));
        let mut shown = escaped_json(self.input.as_str()).into_owned();
        if let (Some(_), Value::Object(arguments)) = (&diff, &input) {
            // The diff has the texts. What else is there may widen it, such as `replace_all`.
            let mut rest = arguments.clone();
            rest.remove("old_text");
            rest.remove("new_text");
            shown = escaped_json(&Value::Object(rest).to_string()).into_owned();
        }
        let words = format!("{}\n\n{}", visible_strict(reason), fenced(&shown));
        if let Some(fields) = fields.as_object_mut() {
            let content: Vec<Value> = diff.into_iter().chain([block(&words)]).collect();
            fields.insert("content".into(), json!(content));
            fields.insert("rawInput".into(), strictly_visible(&input));
        }
        fields
    }

    fn title(&self, input: &Value) -> String {
        let field = |name: &str| input.get(name).and_then(Value::as_str);
        let (verb, subject) = match (self.name, field("command"), field("path")) {
            ("bash", Some(command), _) => ("", command.to_owned()),
            ("file_edit", _, Some(path)) if field("old_text") == Some("") => {
                ("Create ", path.to_owned())
            }
            ("file_edit", _, Some(path)) => ("Edit ", path.to_owned()),
            ("file_read", _, Some(path)) => ("Read ", path.to_owned()),
            _ => (
                "",
                callboard_actors::journal::summary(self.name, self.input),
            ),
        };
        let line = visible_strict(&subject)
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        format!("{verb}{}", inline_code(&cut(&line, TITLE_CHARS_MAX)))
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
        let output =
            (is_error || diff.is_none()).then(|| block(&fenced(&cut(output, OUTPUT_CHARS_MAX))));
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
        json!({"toolCallId": id, "status": "in_progress", "content": [block(&fenced(&cut(text, OUTPUT_CHARS_MAX)))]}),
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

/// Every string of a value with its invisible characters as escapes.
fn strictly_visible(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(visible_strict(text)),
        Value::Array(items) => items.iter().map(strictly_visible).collect(),
        Value::Object(fields) => Value::Object(
            fields
                .iter()
                .map(|(name, value)| (visible_strict(name), strictly_visible(value)))
                .collect(),
        ),
        other => other.clone(),
    }
}

/// Backticks that begin and end a piece of code with this text: more than it has in a row.
fn ticks(text: &str, min: usize) -> String {
    let longest = text
        .split(|c| c != '`')
        .map(str::len)
        .max()
        .unwrap_or_default();
    "`".repeat(min.max(longest + 1))
}

/// A text as a code block of Markdown, which shows every character of it.
fn fenced(text: &str) -> String {
    let fence = ticks(text, 3);
    format!("{fence}\n{text}\n{fence}")
}

/// A line as code within a line of Markdown, unless it is plain words that mean nothing else there.
fn inline_code(line: &str) -> String {
    let means_itself = |c: char| c.is_alphanumeric() || " /.,:=-+@%'\"?".contains(c);
    let is_plain = line.starts_with(char::is_alphanumeric)
        && !line.contains("://")
        && !line.contains("www.")
        && line.split('_').all(|part| !part.is_empty())
        && line.chars().all(|c| means_itself(c) || c == '_');
    if is_plain || line.is_empty() {
        return line.to_owned();
    }
    let fence = ticks(line, 1);
    // One blank at each end is no part of the code.
    let room = if line.starts_with('`') || line.ends_with('`') {
        " "
    } else {
        ""
    };
    format!("{fence}{room}{line}{room}{fence}")
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
            (&json!("execute"), &json!("`ls \\u{202e}hcuot`"))
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
    fn an_edit_is_asked_about_with_every_argument_and_hides_no_character() {
        let input = raw(json!({
            "path": "a\u{202e}.rs", "old_text": "1\u{200b}", "new_text": "2 \u{2066}// x", "replace_all": true,
        }));

        let asked = shown("file_edit", &input).asked("this tool changes something");

        let diff = &asked["content"][0];
        assert_eq!(
            (&diff["oldText"], &diff["newText"]),
            (&json!("1\\u{200b}"), &json!("2 \\u{2066}// x"))
        );
        let words = asked["content"][1]["content"]["text"].as_str().unwrap();
        assert!(words.contains("\"replace_all\":true"), "{words}");
        // The place is the file's own path, which an editor opens.
        let shown = format!(
            "{}{}{}",
            asked["title"], asked["content"], asked["rawInput"]
        );
        assert!(
            !shown.contains(['\u{202e}', '\u{200b}', '\u{2066}']),
            "{shown}"
        );
    }

    #[test]
    fn no_markdown_of_a_command_or_of_a_result_hides_a_part_or_fetches_an_image() {
        let attack = "true <!-- ; touch x --> ``` ![](http://h.example/x)";
        let input = raw(json!({ "command": attack }));
        let call = shown("bash", &input);

        let asked = call.asked("why");
        let done = call.finished(false, &format!("{attack}\n````\n"));

        assert_eq!(asked["title"], json!(format!("````{attack}````")));
        let words = asked["content"][0]["content"]["text"].as_str().unwrap();
        assert_eq!(words, format!("why\n\n````\n{}\n````", input.as_str()));
        let output = done["content"][0]["content"]["text"].as_str().unwrap();
        assert_eq!(output, format!("`````\n{attack}\n````\n\n`````"));
        let titles = [
            "cargo test",
            "cat src/a_b.rs",
            "ls *",
            "cat __init__.py",
            "# x",
            "`a",
        ]
        .map(inline_code);
        let expected = [
            "cargo test",
            "cat src/a_b.rs",
            "`ls *`",
            "`cat __init__.py`",
            "`# x`",
            "`` `a ``",
        ];
        assert_eq!(titles, expected);
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
