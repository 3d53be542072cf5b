//! The tools that an MCP client is offered, and their arguments.

use std::sync::Arc;

use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

/// How long `get_round` waits for the end of a round if the caller sets nothing, in milliseconds.
pub(super) const WAIT_MS: u64 = 30_000;

/// The longest wait that a caller can set, in milliseconds.
pub(super) const WAIT_MS_MAX: u64 = 600_000;

/// Arguments of `send_prompt`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SendPrompt {
    /// What the agent is to do or to answer.
    pub(super) prompt: String,
    /// The conversation to continue: an id of an earlier answer or of `list_conversations`. A new
    /// conversation is started if absent.
    pub(super) conversation_id: Option<String>,
    /// What happens if the conversation is at work: `queue` (the prompt waits, the default), `reject`,
    /// `interrupt` or `steer` (the prompt joins the work in progress).
    pub(super) on_busy: Option<WhenBusy>,
    /// Return at once with the id of the round; `get_round` then reads its end.
    #[serde(default)]
    pub(super) background: bool,
    /// Limit of the whole round in milliseconds; 1 to 86400000.
    #[schemars(range(min = 1, max = 86_400_000))]
    pub(super) deadline_ms: Option<u64>,
    /// A name of this prompt within its conversation: the same prompt with the same name is not run a
    /// second time. Needs `conversation_id`.
    pub(super) idempotency_key: Option<String>,
}

/// What happens to a prompt while a round is open.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum WhenBusy {
    Queue,
    Reject,
    Interrupt,
    Steer,
}

/// Arguments of `get_round`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GetRound {
    /// The conversation.
    pub(super) conversation_id: String,
    /// The round; the open one if absent, or else the last one.
    pub(super) round_id: Option<String>,
    /// How long to wait for the round's end, in milliseconds; 30000 if absent, 0 to 600000.
    #[schemars(range(max = 600_000))]
    pub(super) wait_ms: Option<u64>,
}

/// Arguments of `cancel_round`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CancelRound {
    /// The conversation whose open round is cancelled.
    pub(super) conversation_id: String,
}

/// Arguments of `answer_approval`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AnswerApproval {
    /// The conversation whose round waits.
    pub(super) conversation_id: String,
    /// The tool call that waits, from `approvals` of the round.
    pub(super) tool_call_id: String,
    /// `round_id` of the round that showed it: the answer counts for no call of another round.
    pub(super) round_id: Option<String>,
    /// Whether the tool call may run.
    pub(super) allow: bool,
    /// With `allow`: later calls of the same pattern in this conversation need no approval.
    #[serde(default)]
    pub(super) always: bool,
}

/// Arguments of `list_conversations`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListConversations {
    /// The list starts after this id: `next` of the page before.
    pub(super) after: Option<String>,
    /// Largest number of conversations; 20 if absent, at most 100.
    #[schemars(range(min = 1, max = 100))]
    pub(super) limit: Option<u32>,
}

/// Arguments of `read_conversation`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadConversation {
    /// The conversation.
    pub(super) conversation_id: String,
    /// The page starts after the message with this index: `next` of the page before. The newest
    /// messages if absent.
    pub(super) after: Option<u64>,
    /// Largest number of messages; 20 if absent, at most 100.
    #[schemars(range(min = 1, max = 100))]
    pub(super) limit: Option<u32>,
}

/// Arguments of `start_fan_out`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StartFanOut {
    /// One prompt for each task; each is run by an agent that sees nothing of the others.
    pub(super) tasks: Vec<String>,
    /// Name of the fan-out: the same name and tasks attach to an earlier one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    /// Tasks at once, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub(super) parallel: Option<u64>,
    /// Limit of the whole fan-out in milliseconds; 1 to 86400000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400_000))]
    pub(super) deadline_ms: Option<u64>,
    /// Whether to run tasks again that failed in an earlier fan-out of this name.
    #[serde(default)]
    pub(super) retry_failed: bool,
}

/// Arguments of `get_fan_out`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GetFanOut {
    /// Name of the fan-out.
    pub(super) name: String,
    /// The page starts after the task with this index: `next` of the page before.
    pub(super) after: Option<u64>,
    /// Largest number of results; 20 if absent, at most 100.
    #[schemars(range(min = 1, max = 100))]
    pub(super) limit: Option<u32>,
    /// Wait this long until every task has ended, in milliseconds; 0 if absent, at most 600000.
    #[schemars(range(max = 600_000))]
    pub(super) wait_ms: Option<u64>,
}

/// Arguments of `cancel_fan_out`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CancelFanOut {
    /// Name of the fan-out.
    pub(super) name: String,
}

/// Where a round stands: the structured result of `send_prompt`, `get_round` and `answer_approval`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(super) struct RoundShown {
    /// The conversation.
    pub(super) conversation_id: String,
    /// The round.
    pub(super) round_id: Option<String>,
    /// Whether it has ended, is at work, or waits for an approval.
    pub(super) status: RoundState,
    /// The last message of the agent, if the round has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) text: Option<String>,
    /// Why it ended: `end_turn`, `max_tokens`, `interrupted`, `error` or another reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stop_reason: Option<String>,
    /// Tokens of its model calls, if it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<JsonObject>,
    /// Why it failed: `code` and `message`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<JsonObject>,
    /// The tool calls that wait for an approval.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) approvals: Vec<Approval>,
}

/// Where a round stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum RoundState {
    Running,
    WaitsForApproval,
    Completed,
    Failed,
}

/// A tool call that waits for an approval.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(super) struct Approval {
    /// Its id, for `answer_approval`.
    pub(super) tool_call_id: String,
    /// Name of the tool.
    pub(super) tool: String,
    /// The arguments.
    pub(super) input: Value,
    /// Why it needs an approval.
    pub(super) reason: String,
}

/// What a tool does to the world.
#[derive(Clone, Copy)]
enum Effect {
    Reads,
    Acts,
    /// May run tools of the host that change something.
    Works,
}

/// The tools that a client is offered. Their schemas are made once: that takes as long as a turn.
#[derive(Clone)]
pub(in crate::http) struct Offered(Arc<[Tool]>);

impl Offered {
    pub(in crate::http) fn new() -> Self {
        Self(all().into())
    }

    pub(super) fn all(&self) -> &[Tool] {
        &self.0
    }

    pub(super) fn named(&self, name: &str) -> Option<&Tool> {
        self.0.iter().find(|tool| tool.name == name)
    }
}

fn all() -> Vec<Tool> {
    vec![
        tool::<SendPrompt>(
            "send_prompt",
            "Give a Callboard agent a task or a question, and wait for its answer. It works with tools of its own. \
             Starts a conversation, or continues one. Use `background` for work of many minutes.",
            Effect::Works,
        )
        .with_raw_output_schema(shown::<RoundShown>()),
        tool::<GetRound>(
            "get_round",
            "Read how a round stands, and its answer if it has ended. Waits for the end up to `wait_ms`.",
            Effect::Reads,
        )
        .with_raw_output_schema(shown::<RoundShown>()),
        tool::<CancelRound>(
            "cancel_round",
            "Cancel the open round of a conversation. What it wrote until then stays.",
            Effect::Acts,
        ),
        tool::<AnswerApproval>(
            "answer_approval",
            "Allow or refuse a tool call for which a round waits, and wait for the round's answer. Ask the user before \
             you allow anything.",
            Effect::Works,
        )
        .with_raw_output_schema(shown::<RoundShown>()),
        tool::<ListConversations>(
            "list_conversations",
            "List conversations in the order of their ids, with the first words of each.",
            Effect::Reads,
        ),
        tool::<ReadConversation>(
            "read_conversation",
            "Read messages of a conversation, oldest first, and what it waits for. Long texts are cut.",
            Effect::Reads,
        ),
        tool::<StartFanOut>(
            "start_fan_out",
            "Give many tasks to many agents at once, one agent for each task. Returns at once; `get_fan_out` reads the \
             results.",
            Effect::Works,
        ),
        tool::<GetFanOut>(
            "get_fan_out",
            "Read the results of a fan-out, in pages.",
            Effect::Reads,
        ),
        tool::<CancelFanOut>(
            "cancel_fan_out",
            "Cancel a fan-out: running tasks are interrupted, waiting ones never begin.",
            Effect::Acts,
        ),
    ]
}

fn tool<T: JsonSchema>(name: &'static str, description: &'static str, effect: Effect) -> Tool {
    let annotations = match effect {
        Effect::Reads => ToolAnnotations::new().read_only(true).open_world(false),
        Effect::Acts => ToolAnnotations::new()
            .read_only(false)
            .destructive(false)
            .idempotent(true)
            .open_world(false),
        Effect::Works => ToolAnnotations::new()
            .read_only(false)
            .destructive(true)
            .open_world(true),
    };
    Tool::new(name, description, schema::<T>()).with_annotations(annotations)
}

/// The schema of arguments.
fn schema<T: JsonSchema>() -> Arc<JsonObject> {
    schema_with::<T>(SchemaSettings::draft2020_12())
}

/// The schema of a structured result.
fn shown<T: JsonSchema>() -> Arc<JsonObject> {
    schema_with::<T>(SchemaSettings::draft2020_12().for_serialize())
}

/// A schema without references: some clients do not follow them.
fn schema_with<T: JsonSchema>(mut settings: SchemaSettings) -> Arc<JsonObject> {
    settings.inline_subschemas = true;
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let mut schema = schema.as_object().cloned().unwrap_or_default();
    schema.remove("title");
    Arc::new(schema)
}

/// The arguments of a call.
///
/// # Errors
/// The result that names what is wrong with them.
pub(super) fn arguments<T: DeserializeOwned>(
    tool: &str,
    arguments: Option<JsonObject>,
) -> Result<T, CallToolResult> {
    let given = Value::Object(arguments.unwrap_or_default());
    serde_path_to_error::deserialize(given).map_err(|error| {
        let place = match error.path().to_string() {
            path if path == "." => String::new(),
            path => format!("{path}: "),
        };
        let what: String = error.inner().to_string().chars().take(300).collect();
        failed(&format!("arguments of {tool}: {place}{what}"))
    })
}

/// A failed call, as a line for the model.
pub(super) fn failed(line: &str) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(line)])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_argument_has_a_description_and_every_schema_stands_alone() {
        for tool in all() {
            let schema = Value::Object((*tool.input_schema).clone());
            assert_eq!(schema["type"], "object", "{}", tool.name);
            let fields = schema["properties"].as_object().unwrap();
            for (field, schema) in fields {
                let text = schema["description"].as_str().unwrap_or_default();
                assert!(text.len() > 10, "{} of {}", field, tool.name);
            }
            let text = schema.to_string();
            assert!(!text.contains("$ref"), "{text}");
            assert!(tool.annotations.is_some());
        }
    }

    #[test]
    fn a_wrong_argument_is_named() {
        let given = json!({"prompt": "hi", "on_busy": "sometimes"});
        let given = given.as_object().cloned();

        let wrong = arguments::<SendPrompt>("send_prompt", given).unwrap_err();

        let text = serde_json::to_string(&wrong.content).unwrap();
        assert!(
            text.contains("arguments of send_prompt: on_busy: unknown variant"),
            "{text}"
        );
        assert_eq!(wrong.is_error, Some(true));
        let missing = arguments::<SendPrompt>("send_prompt", None).unwrap_err();
        let text = serde_json::to_string(&missing.content).unwrap();
        assert!(text.contains("missing field `prompt`"), "{text}");
    }
}
