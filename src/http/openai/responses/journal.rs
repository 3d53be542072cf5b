//! What the request of a stored response brought, as the journal of its conversation has it.

use std::sync::Arc;

use callboard_actors::{
    chat::{
        ClientTools, ContentBlock, MediaSource, Message, ModelParameters, RawJson, Role,
        ToolChoice, ToolDefinition, ToolResultContent, attachment::media_of,
    },
    host::{ConversationHandle, SendError},
    ids::{RoundId, Seq},
    journal::{Entry, EntryBody},
    time::Timestamp,
};
use serde_json::{Value, json};

use super::{
    ANY_OBJECT,
    wire::{
        Fixed, FormatShown, ReasoningShown, ResponseError, ResponseShown, TextShown, ToolShown,
    },
};
use crate::http::{
    answer_body::bytes_of,
    compat::{Place, instructions_in},
};

/// Entries of one read.
const PAGE: usize = 128;

/// What a request brought.
#[derive(Debug, Default)]
pub(super) struct Brought {
    at: Timestamp,
    /// The messages, the instructions of the application among them.
    messages: Vec<Message>,
    /// Results of the client's tools: the id of the call, and the text that the model reads.
    results: Vec<(String, String)>,
    parameters: Option<Arc<ModelParameters>>,
    schema: Option<RawJson>,
    tools: Option<Arc<ClientTools>>,
}

/// Reads the journal up to the beginning of a response. `None` if the round is not there any more.
pub(super) async fn brought(
    conversation: &ConversationHandle,
    place: Place,
) -> Result<Option<Brought>, SendError> {
    let mut brought = Brought::default();
    let mut is_found = false;
    let mut after = Seq(0);
    loop {
        let page = conversation.entries(after, PAGE).await?;
        let Some(last) = page.last() else {
            return Ok(is_found.then_some(brought));
        };
        after = last.seq;
        for entry in page {
            if is_found && entry.seq > place.begins_at {
                return Ok(Some(brought));
            }
            is_found |= brought.take(entry, place.round);
        }
    }
}

impl Brought {
    /// Takes the next entry; returns whether it is the prompt of the round.
    fn take(&mut self, entry: Entry, round: RoundId) -> bool {
        match entry.body {
            // The history of an application is the input of the first response. That of a fork is
            // the input of earlier ones.
            EntryBody::Imported { messages, .. } => self.messages = messages,
            EntryBody::PromptAccepted {
                round_id,
                message,
                output_schema,
                parameters,
                client_tools,
                ..
            } => {
                if round_id == round {
                    self.at = entry.at;
                    self.messages.extend(message);
                    (self.schema, self.parameters) = (output_schema, parameters);
                    self.tools = client_tools;
                    return true;
                }
                self.messages.clear();
            }
            // A response that begins behind results has those since the model's last message.
            EntryBody::Assistant { .. } | EntryBody::Forked { .. } => self.results.clear(),
            EntryBody::ToolFinished {
                tool_call_id,
                name,
                outcome,
                ..
            } if self.is_clients(&name) => {
                self.messages.clear();
                self.at = entry.at;
                self.results.push((tool_call_id, outcome.observation));
            }
            _ => {}
        }
        false
    }

    fn is_clients(&self, name: &str) -> bool {
        let tools = self.tools.iter().flat_map(|brought| brought.tools.iter());
        tools.into_iter().any(|tool| tool.name == name)
    }

    /// The bytes of what it is made of.
    pub(super) fn bytes(&self) -> usize {
        let results = self.results.iter().map(|(_, output)| output.len());
        bytes_of(&self.messages) + results.sum::<usize>()
    }

    /// The response before its end.
    pub(super) fn response(&self, id: String, model: String) -> ResponseShown {
        let parameters = self.parameters.as_deref();
        let effort = parameters.and_then(|wish| wish.effort);
        let format = match &self.schema {
            Some(schema) if schema.as_str() == ANY_OBJECT => FormatShown::JsonObject,
            Some(schema) => FormatShown::JsonSchema {
                name: Some("answer".to_owned()),
                schema: schema.clone(),
                description: None,
                strict: false,
            },
            None => FormatShown::Text,
        };
        let instructions = self.messages.iter().flat_map(Message::blocks);
        let instructions = instructions
            .filter_map(|block| instructions_in(&block).map(str::to_owned))
            .next();
        let tools = self.tools.iter().flat_map(|brought| brought.tools.iter());
        ResponseShown {
            id,
            object: "response",
            created_at: self.at.0 / 1000,
            completed_at: None,
            ended_at: None,
            status: "in_progress",
            background: false,
            error: None::<ResponseError>,
            incomplete_details: None,
            instructions,
            max_output_tokens: parameters.and_then(|wish| wish.max_tokens),
            model,
            output: Vec::new(),
            parallel_tool_calls: true,
            previous_response_id: None,
            reasoning: ReasoningShown {
                effort: effort.map(|effort| effort.as_str().to_owned()),
                summary: None,
            },
            store: true,
            temperature: parameters
                .and_then(|wish| wish.temperature)
                .map_or(1.0, f64::from),
            text: TextShown {
                format,
                verbosity: None,
            },
            tool_choice: choice_shown(self.tools.as_deref().map(|brought| &brought.choice)),
            tools: tools.map(function).collect(),
            fixed: Fixed::default(),
            truncation: "auto",
            usage: None,
            metadata: RawJson::empty_object(),
        }
    }

    /// The items in their order.
    pub(super) fn into_items(self, round: RoundId) -> Vec<Value> {
        let mut items = Vec::new();
        for message in &self.messages {
            add(&mut items, message, round);
        }
        for (call_id, output) in self.results {
            let id = format!("in_{round}_{}", items.len());
            items.push(output_item(&id, &call_id, &output));
        }
        items
    }
}

fn output_item(id: &str, call_id: &str, output: &str) -> Value {
    json!({
        "type": "function_call_output", "id": id, "status": "completed",
        "call_id": call_id, "output": output,
    })
}

/// Adds the items of a message: its parts, its calls, its results.
fn add(items: &mut Vec<Value>, message: &Message, round: RoundId) {
    let (role, text_kind) = match message.role() {
        Role::Assistant => ("assistant", "output_text"),
        Role::User | Role::System => ("user", "input_text"),
    };
    let mut parts = Vec::new();
    let mut others = Vec::new();
    for block in message.blocks() {
        let next = items.len() + others.len() + 1;
        let id = format!("in_{round}_{next}");
        match &block {
            ContentBlock::Text(_) if instructions_in(&block).is_some() => {}
            ContentBlock::Text(text) => {
                parts.push(json!({ "type": text_kind, "text": text.text }));
            }
            ContentBlock::ToolUse(call) => others.push(json!({
                "type": "function_call", "id": id, "status": "completed",
                "call_id": call.id, "name": call.name, "arguments": call.input.as_str(),
            })),
            ContentBlock::ToolResult(result) => {
                let text = match &result.content {
                    ToolResultContent::Text(text) => text.clone(),
                    blocks => blocks.text().into_owned(),
                };
                others.push(output_item(&id, &result.tool_use_id, &text));
            }
            ContentBlock::Image(image) => {
                let url = match (image.source(), media_of(&block)) {
                    (MediaSource::Url { url }, _) => url.clone(),
                    (_, Some(media)) => {
                        format!("data:{};base64,{}", media.media_type, media.data)
                    }
                    (_, None) => continue, // A file at the provider, which this API cannot name.
                };
                parts.push(json!({ "type": "input_image", "image_url": url, "detail": "auto" }));
            }
            ContentBlock::Thinking(_) | ContentBlock::Document(_) | ContentBlock::Other { .. } => {}
        }
    }
    if !parts.is_empty() {
        let id = format!("in_{round}_{}", items.len());
        items.push(json!({
            "type": "message", "id": id, "status": "completed", "role": role, "content": parts,
        }));
    }
    items.extend(others);
}

fn function(tool: &ToolDefinition) -> ToolShown {
    ToolShown {
        kind: "function",
        name: tool.name.clone(),
        description: Some(tool.description.clone()),
        parameters: Some(tool.input_schema.clone()),
        strict: Some(false),
    }
}

/// Whether the model may or must call a tool, in OpenAI's form.
pub(super) fn choice_shown(choice: Option<&ToolChoice>) -> Value {
    match choice {
        None | Some(ToolChoice::Auto) => json!("auto"),
        Some(ToolChoice::None) => json!("none"),
        Some(ToolChoice::Any) => json!("required"),
        Some(ToolChoice::Named(name)) => json!({ "type": "function", "name": name }),
    }
}
