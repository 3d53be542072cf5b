//! Converts the messages and tools of a request into the form that the compatible APIs share. Pure.

use callboard_actors::chat::{
    ContentBlock, Effort, ModelParameters, RawJson, Thinking, ToolChoice, ToolDefinition,
};

use super::wire::{
    ChoiceTaken, FormatTaken, MessageTaken, MessagesRequest, ThinkingTaken, ToolTaken,
};
use crate::http::{
    api::Content,
    compat::{Given, Speaker, Transcript, Turn},
    error::{Problem, quoted},
};

/// Blocks of a user's message that the host knows.
const USER: [&str; 4] = ["text", "image", "document", "tool_result"];

/// Blocks of a model's message that the host knows.
const MODEL: [&str; 4] = ["text", "thinking", "redacted_thinking", "tool_use"];

/// Checks and converts messages and system prompt.
pub(super) fn transcript(
    messages: Vec<MessageTaken>,
    system: Option<Content>,
) -> Result<Transcript, Problem> {
    let mut instructions: Vec<String> = Vec::new();
    if let Some(system) = system {
        instructions.push(text_of(system, "/system")?);
    }
    let mut turns: Vec<Turn> = Vec::with_capacity(messages.len());
    for (index, message) in messages.into_iter().enumerate() {
        let at = format!("/messages/{index}/content");
        match message.role.as_str() {
            "user" => {
                let blocks = known(message.content.into_blocks(), &USER, &at)?;
                let is_result = |block: &ContentBlock| block.kind() == "tool_result";
                let (results, rest): (Vec<_>, Vec<_>) = blocks.into_iter().partition(is_result);
                let parts = [(Speaker::Tools, results), (Speaker::User, rest)];
                let parts = parts.into_iter().filter(|(_, blocks)| !blocks.is_empty());
                turns.extend(parts.map(|(speaker, blocks)| Turn {
                    index,
                    speaker,
                    blocks,
                }));
            }
            "assistant" => {
                let blocks = known(message.content.into_blocks(), &MODEL, &at)?;
                turns.push(Turn {
                    index,
                    speaker: Speaker::Model,
                    blocks: blocks.into_iter().map(unsigned).collect(),
                });
            }
            "system" => instructions.push(text_of(message.content, &at)?),
            _ => {
                let detail = "the role must be user, assistant or system";
                return Err(Problem::invalid(format!("/messages/{index}/role"), detail));
            }
        }
    }
    instructions.retain(|text| !text.is_empty());
    let instructions = (!instructions.is_empty()).then(|| instructions.join("\n\n"));
    Transcript {
        list: "/messages",
        instructions,
        turns,
    }
    .checked()
}

/// Refuses blocks that the host does not know: its provider might not either.
fn known(
    blocks: Vec<ContentBlock>,
    kinds: &[&str],
    pointer: &str,
) -> Result<Vec<ContentBlock>, Problem> {
    if blocks.is_empty() {
        return Err(Problem::invalid(pointer, "must not be empty"));
    }
    match blocks
        .iter()
        .position(|block| !kinds.contains(&block.kind()))
    {
        None => Ok(blocks),
        Some(index) => Err(Problem::invalid(
            format!("{pointer}/{index}/type"),
            format!("a block of this role is one of: {}", kinds.join(", ")),
        )),
    }
}

/// A thought that its provider did not sign comes back with an empty signature.
fn unsigned(block: ContentBlock) -> ContentBlock {
    match block {
        ContentBlock::Thinking(mut thought) => {
            thought.signature.take_if(|signature| signature.is_empty());
            ContentBlock::Thinking(thought)
        }
        other => other,
    }
}

/// The text of a system prompt.
fn text_of(content: Content, pointer: &str) -> Result<String, Problem> {
    let blocks = content.into_blocks();
    if let Some(index) = blocks.iter().position(|block| block.as_text().is_none()) {
        let detail = "a system prompt has text blocks only";
        return Err(Problem::invalid(format!("{pointer}/{index}/type"), detail));
    }
    let texts: Vec<&str> = blocks.iter().filter_map(ContentBlock::as_text).collect();
    Ok(texts.join("\n\n"))
}

/// Refuses what an answer without it would misrepresent.
pub(super) fn refuse(request: &MessagesRequest) -> Result<(), Problem> {
    for (Given(is_given), pointer, detail) in [
        (
            request.mcp_servers,
            "/mcp_servers",
            "the operator of this host configures MCP servers",
        ),
        (
            request.container,
            "/container",
            "this host has no containers",
        ),
        (
            request.prefill,
            "/prefill",
            "an answer cannot be begun by the client",
        ),
    ] {
        if is_given {
            return Err(Problem::invalid(pointer, detail));
        }
    }
    Ok(())
}

/// The client's tools.
pub(super) fn tools(tools: Option<Vec<ToolTaken>>) -> Result<Vec<ToolDefinition>, Problem> {
    let tool = |(index, tool): (usize, ToolTaken)| {
        let at = |field: &str| format!("/tools/{index}/{field}");
        let kind = tool.kind.as_deref().unwrap_or("custom");
        if kind != "custom" {
            let detail = format!(
                "{} is not supported: describe a tool of the client",
                quoted(kind)
            );
            return Err(Problem::invalid(at("type"), detail));
        }
        let schema = tool
            .input_schema
            .ok_or_else(|| Problem::invalid(at("input_schema"), "is required"))?;
        Ok(ToolDefinition {
            name: tool.name,
            description: tool.description.unwrap_or_default(),
            input_schema: bounded(&schema, at("input_schema"))?,
        })
    };
    let tools = tools.unwrap_or_default().into_iter();
    tools.enumerate().map(tool).collect()
}

/// Whether the model may or must call a tool.
pub(super) fn tool_choice(choice: Option<&ChoiceTaken>) -> Result<Option<ToolChoice>, Problem> {
    let Some(choice) = choice else {
        return Ok(None);
    };
    match (choice.kind.as_str(), &choice.name) {
        ("auto", _) => Ok(None),
        ("none", _) => Ok(Some(ToolChoice::None)),
        ("any", _) => Ok(Some(ToolChoice::Any)),
        ("tool", Some(name)) => Ok(Some(ToolChoice::Named(name.clone()))),
        _ => Err(Problem::invalid(
            "/tool_choice/type",
            "must be `auto`, `any`, `none`, or `tool` with a `name`",
        )),
    }
}

/// How the model is asked to answer. `takes_thinking` says whether the provider has such a setting:
/// clients ask for thoughts of any model, and one without thoughts answers all the same.
pub(super) fn parameters(
    request: &MessagesRequest,
    takes_thinking: bool,
) -> Result<ModelParameters, Problem> {
    let effort = request.output_config.as_ref();
    let effort = effort.and_then(|config| config.effort.as_deref());
    Ok(ModelParameters {
        max_tokens: Some(request.max_tokens),
        effort: match effort {
            None => None,
            Some("low") => Some(Effort::Low),
            Some("medium") => Some(Effort::Medium),
            Some("high" | "xhigh" | "max") => Some(Effort::High),
            Some(_) => {
                let detail = "must be `low`, `medium`, `high`, `xhigh` or `max`";
                return Err(Problem::invalid("/output_config/effort", detail));
            }
        },
        thinking: match &request.thinking {
            None => None,
            Some(thinking) => self::thinking(thinking, takes_thinking)?,
        },
        temperature: request.temperature,
        stop: request.stop_sequences.as_deref().map(Into::into),
    })
}

fn thinking(asked: &ThinkingTaken, takes_thinking: bool) -> Result<Option<Thinking>, Problem> {
    match (asked.kind.as_str(), asked.budget_tokens) {
        ("disabled", _) => Ok(takes_thinking.then_some(Thinking::Off)),
        ("adaptive", _) => Ok(takes_thinking.then_some(Thinking::Adaptive)),
        ("enabled", Some(tokens)) => Ok(takes_thinking.then_some(Thinking::Budget(tokens))),
        ("enabled", None) => Err(Problem::invalid("/thinking/budget_tokens", "is required")),
        _ => Err(Problem::invalid(
            "/thinking/type",
            "must be `enabled`, `adaptive` or `disabled`",
        )),
    }
}

/// The JSON Schema that the answer must match.
pub(super) fn schema(request: &MessagesRequest) -> Result<Option<RawJson>, Problem> {
    let config = request.output_config.as_ref();
    let (format, pointer) = match config.and_then(|config| config.format.as_ref()) {
        Some(format) => (format, "/output_config/format"),
        None => match &request.output_format {
            Some(format) => (format, "/output_format"),
            None => return Ok(None),
        },
    };
    match format {
        FormatTaken {
            kind,
            schema: Some(schema),
        } if kind == "json_schema" => bounded(schema, format!("{pointer}/schema")).map(Some),
        _ => Err(Problem::invalid(
            pointer,
            "must be `json_schema` with a `schema`",
        )),
    }
}

/// The schema, if it is nested as deep as the host allows at most.
fn bounded(schema: &RawJson, pointer: String) -> Result<RawJson, Problem> {
    RawJson::from_text(schema.as_str())
        .map_err(|error| Problem::invalid(pointer, error.to_string()))
}
