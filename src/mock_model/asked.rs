//! Parses the fields of a request that decide the answer, for both wires. Pure.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::MARK;

/// Longest mark that is repeated in the answer.
const MARK_BYTES_MAX: usize = 64;

/// Bytes that count as one token.
pub(super) const TOKEN_BYTES: usize = 4;

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow, default)]
    model: Cow<'a, str>,
    #[serde(default)]
    stream: bool,
    #[serde(borrow, default)]
    messages: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    tools: Vec<&'a RawValue>,
    #[serde(default)]
    stream_options: StreamOptions,
}

#[derive(Deserialize, Default)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

#[derive(Deserialize)]
struct MessageHead<'a> {
    #[serde(borrow, default)]
    role: Cow<'a, str>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    text: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A tool definition of either wire.
#[derive(Deserialize)]
struct Tool<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    function: Option<Function<'a>>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
}

/// The fields of a request that decide its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    /// The requested model; the answer names it.
    pub(super) model: String,
    /// Whether the client requests a stream.
    pub(super) stream: bool,
    /// Whether an OpenAI stream must report its usage.
    pub(super) usage: bool,
    /// Name of the first tool that the request offers.
    pub(super) tool: Option<String>,
    /// Model calls of this round that are already answered.
    pub(super) calls_before: u32,
    /// The first word of the prompt, if it is a mark.
    pub(super) mark: Option<String>,
    /// Tokens of the request, at four bytes each.
    pub(super) tokens: usize,
}

impl Asked {
    /// Parses the body of a request.
    ///
    /// # Errors
    /// The error of the JSON parser.
    pub(super) fn read(body: &[u8]) -> Result<Self, serde_json::Error> {
        let parsed: Body<'_> = serde_json::from_slice(body)?;
        let mut calls_before = 0;
        let mut mark = None;
        for message in parsed.messages.iter().rev() {
            let head: MessageHead<'_> = serde_json::from_str(message.get())?;
            match &*head.role {
                "assistant" => calls_before += 1,
                "tool" => {}
                "user" => {
                    if let UserContent::Prompt(found) = user_content(head.content)? {
                        mark = found;
                        break;
                    }
                }
                _ => break,
            }
        }
        let tool = match parsed.tools.first() {
            Some(tool) => {
                let tool: Tool<'_> = serde_json::from_str(tool.get())?;
                Some(
                    tool.function
                        .map_or(tool.name, |function| function.name)
                        .into_owned(),
                )
            }
            None => None,
        };
        Ok(Self {
            model: parsed.model.into_owned(),
            stream: parsed.stream,
            usage: parsed.stream_options.include_usage,
            tool,
            calls_before,
            mark,
            tokens: (body.len() / TOKEN_BYTES).max(1),
        })
    }
}

/// The content of a user message.
enum UserContent {
    /// Results of tools.
    Results,
    /// A prompt, with its mark if it has one.
    Prompt(Option<String>),
}

fn user_content(content: Option<&RawValue>) -> Result<UserContent, serde_json::Error> {
    let Some(content) = content else {
        return Ok(UserContent::Prompt(None));
    };
    if content.get().starts_with('"') {
        let text: Text<'_> = serde_json::from_str(content.get())?;
        return Ok(UserContent::Prompt(mark(&text.0)));
    }
    let blocks: Vec<Block<'_>> = serde_json::from_str(content.get())?;
    if blocks.iter().any(|block| block.kind == "tool_result") {
        return Ok(UserContent::Results);
    }
    Ok(UserContent::Prompt(
        blocks.iter().find_map(|block| mark(&block.text)),
    ))
}

/// Returns the first word of a text if it begins like a mark and consists of letters, digits and
/// hyphens.
pub(super) fn mark(text: &str) -> Option<String> {
    let word = text.split_ascii_whitespace().next()?;
    let plain = word.len() <= MARK_BYTES_MAX
        && word
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    (plain && word.starts_with(MARK)).then(|| word.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(body: &Value) -> Asked {
        Asked::read(body.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn calls_of_a_turn_are_counted_from_its_prompt_on_both_wires() {
        let anthropic = json!({ "model": "m", "stream": true, "tools": [{ "name": "a" }, { "name": "b" }], "messages": [
            { "role": "user", "content": "load-1 old" },
            { "role": "assistant", "content": "answer" },
            { "role": "user", "content": [{ "type": "text", "text": "load-2 new" }] },
            { "role": "assistant", "content": [{ "type": "tool_use", "id": "t", "name": "a", "input": {} }] },
            { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t", "content": "r" }, { "type": "text", "text": "by the way" }] },
        ] });
        let openai = json!({ "model": "m", "stream": true, "tools": [{ "type": "function", "function": { "name": "a" } }], "messages": [
            { "role": "system", "content": "s" },
            { "role": "user", "content": "load-2 new" },
            { "role": "assistant", "content": null, "tool_calls": [] },
            { "role": "tool", "tool_call_id": "t", "content": "r" },
        ] });

        for body in [anthropic, openai] {
            let asked = read(&body);
            assert_eq!(
                (
                    asked.calls_before,
                    asked.mark.as_deref(),
                    asked.tool.as_deref()
                ),
                (1, Some("load-2"), Some("a")),
                "{body}"
            );
        }
    }

    #[test]
    fn a_fresh_prompt_begins_a_turn_and_words_that_are_no_mark_stay_unread() {
        for (prompt, expected) in [
            ("load-7f hello", Some("load-7f")),
            ("hello load-7", None),
            ("load-\"x", None),
            ("", None),
        ] {
            let asked = read(&json!({ "messages": [{ "role": "user", "content": prompt }] }));

            assert_eq!((asked.calls_before, asked.mark.as_deref()), (0, expected));
        }
    }

    #[test]
    fn what_is_no_request_is_an_error() {
        for body in [
            "",
            "[]x",
            "{\"messages\":7}",
            "{\"messages\":[7]}",
            "{\"messages\":[{\"role\":\"user\",\"content\":7}]}",
        ] {
            assert!(Asked::read(body.as_bytes()).is_err(), "{body}");
        }
    }
}
