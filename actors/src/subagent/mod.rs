//! Subagents: conversations that a tool call starts. This module holds the tool `create_subagent`
//! and the trait through which the tool reaches its host. The host's directory runs subagents like
//! any other conversation.
//!
//! **Bound:** one level. Subagents are not offered this tool, so they cannot start subagents.

mod tool;

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

pub(crate) use tool::CreateSubagent;

use crate::{
    chat::{RawJson, ToolDefinition},
    ids::{CallKey, Scope},
    journal::Batch,
    limits::{SUBAGENT_BATCH_BYTES, SUBAGENT_RESULT_BYTES_MAX, SUBAGENT_RESULT_BYTES_MIN},
    ports::{BoxFuture, Progress},
    stream::RoundEnd,
    tool::ToolError,
};

pub use crate::journal::CREATE_SUBAGENT;

/// Error code of a call that was refused because the limits of subagents are reached.
pub const SUBAGENT_LIMIT: &str = "SUBAGENT_LIMIT";

/// Error code of a call whose subagent ended without an answer.
pub const SUBAGENT_FAILED: &str = "SUBAGENT_FAILED";

/// A task for a subagent.
pub(crate) struct Task {
    /// The tool call that starts the subagent; names it for good.
    pub(crate) key: CallKey,
    /// The prompt of the subagent.
    pub(crate) text: String,
    /// Cancelling it ends the subagent.
    pub(crate) cancel: CancellationToken,
    /// Receives the subagent's progress, at most once per second.
    pub(crate) progress: Progress,
}

/// The number of `create_subagent` calls in a batch. They share the bytes of answers that the
/// parent reads. The number is known when the batch starts, so a share does not depend on which
/// subagent ends first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Siblings(usize);

impl Siblings {
    /// Counts the `create_subagent` calls of the open batch; 1 without a batch.
    pub(crate) fn of(batch: Option<&Batch>) -> Self {
        let is_child = |name: &str| name == CREATE_SUBAGENT;
        Self(batch.map_or(1, |batch| {
            batch
                .calls
                .iter()
                .filter(|call| is_child(&call.tool_use.name))
                .count()
        }))
    }

    /// The most bytes of an answer that the parent reads inline.
    pub(crate) fn share(self) -> usize {
        (SUBAGENT_BATCH_BYTES / self.0.max(1))
            .clamp(SUBAGENT_RESULT_BYTES_MIN, SUBAGENT_RESULT_BYTES_MAX)
    }
}

/// The host's side of `create_subagent`.
pub(crate) trait Children: Send + Sync {
    /// Sends the task as the first prompt of the subagent of this call, and waits for the end of
    /// its round. If the subagent exists already, waits for its running round or returns its
    /// finished one.
    ///
    /// # Errors
    /// A [`ToolError`] that the parent's model reads.
    fn run(&self, task: Task) -> BoxFuture<'_, Result<RoundEnd, ToolError>>;

    /// Requests the end of a subagent's round.
    fn interrupt(&self, child: &Scope);

    /// Activates a subagent; recovery then continues its round or ends it, as the host is
    /// configured.
    fn wake(&self, child: &Scope);
}

/// The tool's description for the model: what it does and when to use it.
pub const DESCRIPTION: &str = "Gives a task to a second agent that starts with an empty history and has the same tools except this one, \
and returns its answer. Use it for work that stands on its own, such as a search through many files, and make several calls at once for \
tasks that do not depend on each other.";

/// The arguments of `create_subagent`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateSubagentArgs {
    /// The task, with all that it needs: the other agent sees nothing of this conversation.
    pub task: String,
}

// Written by hand: `derive(JsonSchema)` would add two crates to the kernel for this one type.
impl JsonSchema for CreateSubagentArgs {
    fn schema_name() -> Cow<'static, str> {
        "CreateSubagentArgs".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Arguments of `create_subagent`.",
            "type": "object",
            "properties": {
                "task": {
                    "description": "The task, with all that it needs: the other agent sees nothing of this conversation.",
                    "type": "string",
                    "minLength": 1,
                },
            },
            "additionalProperties": false,
            "required": ["task"],
        })
    }
}

/// The tool definition as model APIs receive it.
pub fn definition() -> ToolDefinition {
    let input_schema = RawJson::of(&schemars::schema_for!(CreateSubagentArgs))
        .unwrap_or_else(|_| RawJson::empty_object());
    ToolDefinition {
        name: CREATE_SUBAGENT.to_owned(),
        description: DESCRIPTION.to_owned(),
        input_schema,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::limits::OBSERVATION_BYTES_MAX;

    use super::*;

    #[test]
    fn the_subagents_of_a_batch_share_one_credit() {
        let all = |count: usize| count * Siblings(count).share();

        assert_eq!(
            [1, 2, 4, 16, 64].map(|count| Siblings(count).share()),
            [24 * 1024, 16 * 1024, 8 * 1024, 2 * 1024, 512]
        );
        assert!(
            (1..=64).all(|count| all(count) <= SUBAGENT_BATCH_BYTES),
            "a batch of the usual bounds stays within it"
        );
        assert!(
            Siblings(1).share() < OBSERVATION_BYTES_MAX,
            "and no answer is paged"
        );
    }

    #[test]
    fn a_subagent_is_created_with_a_task_and_nothing_else() {
        let definition = definition();
        let schema: Value = definition.input_schema.parse().unwrap();

        assert_eq!(
            (definition.name.as_str(), &schema["required"]),
            ("create_subagent", &json!(["task"]))
        );
        assert_eq!(
            (
                &schema["properties"]["task"]["type"],
                &schema["additionalProperties"]
            ),
            (&json!("string"), &json!(false))
        );
        assert!(schema["properties"]["task"]["description"].is_string());
        let read = |text: &str| serde_json::from_str::<CreateSubagentArgs>(text).ok();
        assert_eq!(
            read(r#"{"task": "count"}"#),
            Some(CreateSubagentArgs {
                task: "count".into()
            })
        );
        assert_eq!(
            (read("{}"), read(r#"{"task": "count", "model": "large"}"#)),
            (None, None)
        );
    }
}
