//! Converts the items and tools of a request into the form that the compatible APIs share. Pure.

use callboard_actors::chat::{
    ContentBlock, ToolDefinition, ToolResultBlock, ToolResultContent, ToolUseBlock,
};

use super::{
    super::convert::{arguments, image, schema_of, unsupported},
    wire::{Input, ItemTaken, PartTaken, Parts, ResponseRequest, ToolTaken},
};
use crate::http::{
    compat::{Loose, LooseText, Speaker, Transcript, Turn},
    error::Problem,
};

/// Checks and converts a request's input.
pub(super) fn transcript(request: &ResponseRequest) -> Result<Transcript, Problem> {
    let mut instructions: Vec<String> = request.instructions.iter().cloned().collect();
    let mut turns: Vec<Turn> = Vec::new();
    match &request.input {
        Input::Text(text) => turns.push(Turn {
            index: 0,
            speaker: Speaker::User,
            blocks: vec![ContentBlock::text(text.as_str())],
        }),
        Input::List(items) => {
            for (index, item) in items.iter().enumerate() {
                take(index, item, &mut instructions, &mut turns)?;
            }
        }
        Input::None | Input::Object(_) | Input::Other => {
            return Err(unsupported("/input", "must be a text or a list of items"));
        }
    }
    let instructions: Vec<String> = instructions
        .into_iter()
        .filter(|text| !text.is_empty())
        .collect();
    let instructions = (!instructions.is_empty()).then(|| instructions.join("\n\n"));
    Transcript {
        list: "/input",
        instructions,
        turns,
    }
    .checked()
}

fn take(
    index: usize,
    item: &ItemTaken,
    instructions: &mut Vec<String>,
    turns: &mut Vec<Turn>,
) -> Result<(), Problem> {
    let at = |field: &str| format!("/input/{index}/{field}");
    let text = |field: &LooseText| field.as_str().unwrap_or_default().to_owned();
    let turn = match (item.kind.as_str(), item.role.as_str()) {
        (None | Some("message"), Some(role @ ("system" | "developer"))) => {
            let _ = role;
            let blocks = content(&item.content, &at("content"))?;
            let texts = blocks.iter().filter_map(ContentBlock::as_text);
            instructions.extend(texts.map(str::to_owned));
            return Ok(());
        }
        (None | Some("message"), Some("user")) => Turn {
            index,
            speaker: Speaker::User,
            blocks: content(&item.content, &at("content"))?,
        },
        (None | Some("message"), Some("assistant")) => Turn {
            index,
            speaker: Speaker::Model,
            blocks: content(&item.content, &at("content"))?,
        },
        (Some("function_call"), _) => Turn {
            index,
            speaker: Speaker::Model,
            blocks: vec![ContentBlock::ToolUse(ToolUseBlock {
                id: text(&item.call_id),
                name: text(&item.name),
                input: arguments(item.arguments.as_str().unwrap_or_default()),
            })],
        },
        (Some("function_call_output"), _) => {
            let output = match &item.output {
                Loose::Text(output) => output.clone(),
                parts => {
                    let blocks = content(parts, &at("output"))?;
                    let texts: Vec<&str> =
                        blocks.iter().filter_map(ContentBlock::as_text).collect();
                    texts.join("\n")
                }
            };
            Turn {
                index,
                speaker: Speaker::Tools,
                blocks: vec![ContentBlock::ToolResult(ToolResultBlock {
                    tool_use_id: text(&item.call_id),
                    content: ToolResultContent::Text(output),
                    is_error: false,
                })],
            }
        }
        // What a model thought elsewhere cannot be signed again.
        (Some("reasoning"), _) => return Ok(()),
        _ => {
            return Err(unsupported(
                at("type"),
                "an item is a `message`, a `function_call` or a `function_call_output`",
            ));
        }
    };
    turns.push(turn);
    Ok(())
}

/// The content of a message: a text, or parts.
fn content(content: &Parts, pointer: &str) -> Result<Vec<ContentBlock>, Problem> {
    let parts = match content {
        Loose::Text(text) => return Ok(vec![ContentBlock::text(text.as_str())]),
        Loose::List(parts) if !parts.is_empty() => parts,
        _ => return Err(unsupported(pointer, "must be a text or a list of parts")),
    };
    let block = |(index, part): (usize, &PartTaken)| {
        let block = match part.kind.as_str() {
            Some("input_text" | "output_text" | "text") => {
                part.text.as_str().map(ContentBlock::text)
            }
            Some("refusal") => part.refusal.as_str().map(ContentBlock::text),
            Some("input_image") => part.image_url.as_str().and_then(image),
            _ => None,
        };
        let detail = "a part is an `input_text`, or an `input_image` with a data: or https: URL";
        block.ok_or_else(|| unsupported(format!("{pointer}/{index}"), detail))
    };
    parts.iter().enumerate().map(block).collect()
}

/// The functions among the tools. Tools that OpenAI's servers run are left out if the client lets
/// the model choose: the model is not offered them, and calls none.
pub(super) fn tools(tools: &[ToolTaken]) -> Result<Vec<ToolDefinition>, Problem> {
    let function = |(index, tool): (usize, &ToolTaken)| match tool.name.as_str() {
        Some(name) => Ok(ToolDefinition {
            name: name.to_owned(),
            description: tool.description.as_str().unwrap_or_default().to_owned(),
            input_schema: schema_of(tool.parameters.as_ref()),
        }),
        None => Err(unsupported(format!("/tools/{index}/name"), "is required")),
    };
    tools
        .iter()
        .enumerate()
        .filter(|(_, tool)| tool.kind.as_str() == Some("function"))
        .map(function)
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn converted(input: Value) -> Result<Transcript, (u16, Option<String>)> {
        let request = json!({ "model": "m", "instructions": "Be brief.", "input": input });
        let request: ResponseRequest = serde_json::from_value(request).unwrap();
        transcript(&request).map_err(|problem| (problem.status, problem.pointer))
    }

    #[test]
    fn items_become_turns_in_order() {
        let transcript = converted(json!([
            { "role": "developer", "content": "Be kind." },
            { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "hi" }] },
            { "type": "reasoning", "summary": [] },
            { "type": "function_call", "call_id": "t1", "name": "f", "arguments": "{\"a\":1}" },
            { "type": "function_call_output", "call_id": "t1", "output": "yes" },
        ]))
        .unwrap();

        assert_eq!(
            transcript.instructions.as_deref(),
            Some("Be brief.\n\nBe kind.")
        );
        let speakers: Vec<Speaker> = transcript.turns.iter().map(|turn| turn.speaker).collect();
        assert_eq!(speakers, [Speaker::User, Speaker::Model, Speaker::Tools]);
        assert_eq!(
            serde_json::to_value(&transcript.turns[1].blocks).unwrap(),
            json!([{ "type": "tool_use", "id": "t1", "name": "f", "input": { "a": 1 } }])
        );
    }

    #[test]
    fn an_item_that_is_not_supported_is_reported_with_its_pointer() {
        for (input, pointer) in [
            (json!([]), "/input"),
            (json!([{ "role": "assistant", "content": "a" }]), "/input"),
            (json!([{ "type": "web_search_call" }]), "/input/0/type"),
            (
                json!([{ "role": "user", "content": [] }]),
                "/input/0/content",
            ),
            (
                json!([{ "role": "user", "content": [{ "type": "input_audio" }] }]),
                "/input/0/content/0",
            ),
        ] {
            assert_eq!(converted(input), Err((422, Some(pointer.to_owned()))));
        }
    }

    #[test]
    fn functions_are_taken_and_tools_of_openais_servers_are_left_out() {
        let function = json!({ "type": "function", "name": "f", "parameters": null });
        let tool = |tool: Value| serde_json::from_value::<ToolTaken>(tool).unwrap();
        let offered = tools(&[tool(json!({ "type": "web_search" })), tool(function)]).unwrap();

        assert_eq!(offered.len(), 1);
        assert_eq!(offered[0].name, "f");
        let nameless = tools(&[tool(json!({ "type": "function" }))]).unwrap_err();
        assert_eq!(nameless.pointer.as_deref(), Some("/tools/0/name"));
    }
}
