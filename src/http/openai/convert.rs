//! Converts OpenAI's messages and tools into the form that the compatible APIs share. Pure.

use callboard_actors::chat::{
    ContentBlock, RawJson, ToolChoice, ToolDefinition, ToolResultBlock, ToolResultContent,
    ToolUseBlock,
};
use serde_json::json;

use super::wire::{
    ChatRequest, ChatTool, ChoiceTaken, MessageContent, NamedChoice, Part, RequestMessage,
};
use crate::http::{
    compat::{Loose, Speaker, Transcript, Turn},
    error::{Problem, quoted},
};

/// Checks and converts a request's messages.
pub(super) fn transcript(request: &ChatRequest) -> Result<Transcript, Problem> {
    refuse(request)?;
    let mut instructions: Vec<String> = Vec::new();
    let mut turns: Vec<Turn> = Vec::new();
    for (index, message) in request.messages.iter().enumerate() {
        let speaker = match message.role.as_str() {
            "system" | "developer" => {
                let blocks = blocks(index, message)?;
                let texts = blocks.iter().filter_map(ContentBlock::as_text);
                instructions.extend(texts.map(str::to_owned));
                continue;
            }
            "user" => Speaker::User,
            "assistant" => Speaker::Model,
            "tool" => Speaker::Tools,
            _ => {
                return Err(unsupported(
                    format!("/messages/{index}/role"),
                    "the role must be system, developer, user, assistant or tool",
                ));
            }
        };
        let blocks = match speaker {
            Speaker::User => blocks(index, message)?,
            Speaker::Model => said(index, message)?,
            Speaker::Tools => vec![result(index, message)?],
        };
        turns.push(Turn {
            index,
            speaker,
            blocks,
        });
    }
    let instructions = (!instructions.is_empty()).then(|| instructions.join("\n\n"));
    Transcript {
        list: "/messages",
        instructions,
        turns,
    }
    .checked()
}

/// Refuses what an answer without it would misrepresent.
fn refuse(request: &ChatRequest) -> Result<(), Problem> {
    if request.functions.0 {
        let detail = "is the older form: declare the functions in `tools`";
        return Err(unsupported("/functions", detail));
    }
    if request.n.is_some_and(|n| n != 1) {
        return Err(unsupported("/n", "only one choice is supported"));
    }
    if request.logprobs == Some(true) {
        return Err(unsupported("/logprobs", "logprobs are not supported"));
    }
    let modalities = request.modalities.iter().flatten();
    if let Some(other) = modalities.into_iter().find(|form| *form != "text") {
        let detail = format!("{} is not supported: answers are text", quoted(other));
        return Err(unsupported("/modalities", detail));
    }
    if request.web_search_options.0 {
        let detail = "is a tool of OpenAI's servers; configure one on this host";
        return Err(unsupported("/web_search_options", detail));
    }
    Ok(())
}

pub(super) fn unsupported(pointer: impl Into<String>, detail: impl Into<String>) -> Problem {
    Problem::invalid(pointer, detail)
}

/// The function tools of a request.
pub(super) fn tools(tools: &[ChatTool]) -> Result<Vec<ToolDefinition>, Problem> {
    let function = |(index, tool): (usize, &ChatTool)| match (&*tool.kind, &tool.function) {
        ("function", Some(function)) => Ok(ToolDefinition {
            name: function.name.clone(),
            description: function.description.clone().unwrap_or_default(),
            input_schema: schema_of(function.parameters.as_ref()),
        }),
        ("function", None) => Err(unsupported(
            format!("/tools/{index}/function"),
            "is required",
        )),
        (other, _) => Err(unsupported(
            format!("/tools/{index}/type"),
            format!(
                "{} is not supported: a tool of the caller is a `function`",
                quoted(other)
            ),
        )),
    };
    tools.iter().enumerate().map(function).collect()
}

/// The schema of a function's arguments; one without parameters takes an empty object.
pub(super) fn schema_of(parameters: Option<&RawJson>) -> RawJson {
    let none = || RawJson::of(&json!({ "type": "object", "properties": {} })).ok();
    let schema = parameters.cloned().or_else(none);
    schema.unwrap_or_else(RawJson::empty_object)
}

/// Whether the model may or must call a tool.
pub(super) fn tool_choice(choice: &ChoiceTaken) -> Result<Option<ToolChoice>, Problem> {
    let named = match choice {
        Loose::None => return Ok(None),
        Loose::Text(word) => match word.as_str() {
            "auto" => return Ok(None),
            "none" => return Ok(Some(ToolChoice::None)),
            "required" => return Ok(Some(ToolChoice::Any)),
            _ => None,
        },
        Loose::Object(choice) if choice.kind.as_str() == Some("function") => name_of(choice),
        Loose::Object(_) | Loose::List(_) | Loose::Other => None,
    };
    let detail = "must be `auto`, `none`, `required` or a function";
    let name = named.ok_or_else(|| unsupported("/tool_choice", detail))?;
    Ok(Some(ToolChoice::Named(name.to_owned())))
}

fn name_of(choice: &NamedChoice) -> Option<&str> {
    let nested = match &choice.function {
        Loose::Object(function) => function.name.as_str(),
        _ => None,
    };
    nested.or(choice.name.as_str())
}

/// A schema of the answer, if it is nested as deep as the host allows at most.
pub(super) fn answer_schema(schema: &RawJson, pointer: &str) -> Result<RawJson, Problem> {
    RawJson::from_text(schema.as_str()).map_err(|error| unsupported(pointer, error.to_string()))
}

/// The arguments of a call as an object. What is none is kept as it is, in one field.
pub(super) fn arguments(text: &str) -> RawJson {
    let parsed = RawJson::from_text(text).ok().filter(RawJson::is_object);
    let kept = || RawJson::of(&json!({ "arguments": text })).ok();
    parsed.or_else(kept).unwrap_or_else(RawJson::empty_object)
}

/// What the model said, with its calls.
fn said(index: usize, message: &RequestMessage) -> Result<Vec<ContentBlock>, Problem> {
    let calls = message.tool_calls.as_deref().unwrap_or_default();
    let is_silent = match &message.content {
        None => true,
        Some(MessageContent::Text(text)) => text.is_empty(),
        Some(MessageContent::Parts(parts)) => parts.is_empty(),
    };
    let mut said = match is_silent && !calls.is_empty() {
        true => Vec::new(),
        false => blocks(index, message)?,
    };
    said.extend(calls.iter().map(|call| {
        ContentBlock::ToolUse(ToolUseBlock {
            id: call.id.clone(),
            name: call.function.name.clone(),
            input: arguments(&call.function.arguments),
        })
    }));
    Ok(said)
}

/// The result of a call.
fn result(index: usize, message: &RequestMessage) -> Result<ContentBlock, Problem> {
    let Some(id) = &message.tool_call_id else {
        let pointer = format!("/messages/{index}/tool_call_id");
        return Err(unsupported(pointer, "is required"));
    };
    let text = match &message.content {
        Some(MessageContent::Text(text)) => text.clone(),
        Some(MessageContent::Parts(_)) => {
            let blocks = blocks(index, message)?;
            let texts: Vec<&str> = blocks.iter().filter_map(ContentBlock::as_text).collect();
            texts.join("\n")
        }
        None => String::new(),
    };
    Ok(ContentBlock::ToolResult(ToolResultBlock {
        tool_use_id: id.clone(),
        content: ToolResultContent::Text(text),
        is_error: false,
    }))
}

fn blocks(index: usize, message: &RequestMessage) -> Result<Vec<ContentBlock>, Problem> {
    let at = |field: &str| format!("/messages/{index}/{field}");
    let blocks = match &message.content {
        Some(MessageContent::Text(text)) => vec![ContentBlock::text(text.as_str())],
        Some(MessageContent::Parts(parts)) => {
            let blocks = parts.iter().enumerate().map(|(part, value)| {
                block(value).ok_or_else(|| unsupported(at(&format!("content/{part}")), PARTS))
            });
            blocks.collect::<Result<Vec<_>, _>>()?
        }
        None => return Err(unsupported(at("content"), "is required")),
    };
    if blocks.is_empty() {
        Err(unsupported(at("content"), "must not be empty"))
    } else {
        Ok(blocks)
    }
}

const PARTS: &str = "a part is a `text`, or an `image_url` with a data: or https: URL";

fn block(part: &Part) -> Option<ContentBlock> {
    match part.kind.as_str() {
        "text" => part.text.as_deref().map(ContentBlock::text),
        "image_url" => image(&part.image_url.as_ref()?.url),
        _ => None,
    }
}

/// An image by its URL.
pub(super) fn image(url: &str) -> Option<ContentBlock> {
    let source = match url.strip_prefix("data:") {
        Some(data) => {
            let (media_type, data) = data.split_once(";base64,")?;
            json!({ "type": "base64", "media_type": media_type, "data": data })
        }
        None => json!({ "type": "url", "url": url }),
    };
    serde_json::from_value(json!({ "type": "image", "source": source })).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn converted(messages: Value) -> Result<Transcript, (u16, Option<String>)> {
        let request: ChatRequest =
            serde_json::from_value(json!({ "model": "m", "messages": messages })).unwrap();
        transcript(&request).map_err(|problem| (problem.status, problem.pointer))
    }

    #[test]
    fn calls_and_results_of_the_clients_tools_are_read() {
        let call = json!({ "id": "t1", "type": "function",
            "function": { "name": "weather", "arguments": "{\"city\":\"Oslo\"}" } });
        let transcript = converted(json!([
            { "role": "system", "content": "Be brief." },
            { "role": "user", "content": "hi" },
            { "role": "assistant", "content": null, "tool_calls": [call] },
            { "role": "tool", "tool_call_id": "t1", "content": [{ "type": "text", "text": "rain" }] },
        ]));

        let transcript = transcript.unwrap();

        assert_eq!(transcript.instructions.as_deref(), Some("Be brief."));
        let speakers: Vec<Speaker> = transcript.turns.iter().map(|turn| turn.speaker).collect();
        assert_eq!(speakers, [Speaker::User, Speaker::Model, Speaker::Tools]);
        let blocks = |turn: usize| serde_json::to_value(&transcript.turns[turn].blocks).unwrap();
        assert_eq!(
            blocks(1),
            json!([{ "type": "tool_use", "id": "t1", "name": "weather", "input": { "city": "Oslo" } }])
        );
        assert_eq!(blocks(2)[0]["tool_use_id"], "t1");
        assert_eq!(blocks(2)[0]["content"], "rain");
    }

    #[test]
    fn an_unsupported_field_is_reported_with_its_pointer() {
        let wrong = |pointer: &str| (422, Some(pointer.to_owned()));

        assert_eq!(converted(json!([])), Err(wrong("/messages")));
        assert_eq!(
            converted(
                json!([{ "role": "user", "content": "a" }, { "role": "assistant", "content": "b" }])
            ),
            Err(wrong("/messages"))
        );
        assert_eq!(
            converted(json!([{ "role": "tool", "content": "a" }])),
            Err(wrong("/messages/0/tool_call_id"))
        );
        assert_eq!(
            converted(json!([{ "role": "function", "content": "a" }])),
            Err(wrong("/messages/0/role"))
        );
        assert_eq!(
            converted(json!([{ "role": "user", "content": [{ "type": "input_audio" }] }])),
            Err(wrong("/messages/0/content/0"))
        );
        let of = |field: &str, value: Value| {
            let mut request =
                json!({ "model": "m", "messages": [{ "role": "user", "content": "a" }] });
            request[field] = value;
            let request: ChatRequest = serde_json::from_value(request).unwrap();
            let tools = tools(&request.tools).and_then(|_| tool_choice(&request.tool_choice));
            let refused = transcript(&request).map(drop).and(tools.map(drop));
            refused.map_err(|problem| problem.pointer.unwrap_or_default())
        };
        for (field, value, pointer) in [
            ("n", json!(2), "/n"),
            ("logprobs", json!(true), "/logprobs"),
            ("functions", json!([{ "name": "f" }]), "/functions"),
            ("modalities", json!(["text", "audio"]), "/modalities"),
            ("web_search_options", json!({}), "/web_search_options"),
            ("tools", json!([{ "type": "custom" }]), "/tools/0/type"),
            (
                "tools",
                json!([{ "type": "function" }]),
                "/tools/0/function",
            ),
            ("tool_choice", json!("maybe"), "/tool_choice"),
        ] {
            assert_eq!(of(field, value), Err(pointer.to_owned()));
        }
        for (field, value) in [
            ("n", json!(1)),
            ("seed", json!(7)),
            ("parallel_tool_calls", json!(true)),
            ("tool_choice", json!("required")),
        ] {
            assert_eq!(of(field, value), Ok(()), "{field}");
        }
    }
}
