//! Subagents: conversations that a tool call begins (DESIGN §4.7). Here is the tool `create_subagent` and what it asks of its host
//! (REQUIREMENTS U-01, N-01); who runs the conversations is the host's directory, as for any other.
//!
//! **Bound:** one level. A subagent has no such tool, so it begins none.

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

/// Code of the refusal of a subagent beyond the bounds.
pub const SUBAGENT_LIMIT: &str = "SUBAGENT_LIMIT";

/// Code of a call whose subagent ended without an answer.
pub const SUBAGENT_FAILED: &str = "SUBAGENT_FAILED";

/// A task for a subagent.
pub(crate) struct Task {
    /// The call that gives it.
    pub(crate) key: CallKey,
    /// What is to be done.
    pub(crate) text: String,
    /// Ends the subagent.
    pub(crate) cancel: CancellationToken,
    /// Told how far it is, once a second at most.
    pub(crate) progress: Progress,
}

/// With how many others of its batch a subagent shares what its parent is shown (DESIGN §4.7, context credit). Their number is known when
/// the batch begins, so a share does not depend on who ends first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Siblings(usize);

impl Siblings {
    /// Those of the open batch.
    pub(crate) fn of(batch: Option<&Batch>) -> Self {
        let is_child = |name: &str| name == CREATE_SUBAGENT;
        Self(batch.map_or(1, |batch| batch.calls.iter().filter(|call| is_child(&call.tool_use.name)).count()))
    }

    /// Bytes of an answer that the parent is shown.
    pub(crate) fn share(self) -> usize {
        (SUBAGENT_BATCH_BYTES / self.0.max(1)).clamp(SUBAGENT_RESULT_BYTES_MIN, SUBAGENT_RESULT_BYTES_MAX)
    }
}

/// What runs subagents for tools.
pub(crate) trait Children: Send + Sync {
    /// Gives a task to the subagent of its call, or finds it at work on it or done with it, and waits for its end.
    ///
    /// # Errors
    /// For the model that asked.
    fn run(&self, task: Task) -> BoxFuture<'_, Result<RoundEnd, ToolError>>;

    /// Asks a subagent to end now.
    fn interrupt(&self, child: &Scope);

    /// Wakes a subagent, which then does what its host's recovery says.
    fn wake(&self, child: &Scope);
}

/// What the tool does and when to use it, for the model.
pub const DESCRIPTION: &str = "Gives a task to a second agent that starts with an empty history and has the same tools except this one, \
and returns its answer. Use it for work that stands on its own, such as a search through many files, and make several calls at once for \
tasks that do not depend on each other.";

/// Arguments of `create_subagent`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateSubagentArgs {
    /// The task, with all that it needs: the other agent sees nothing of this conversation.
    pub task: String,
}

// By hand: the macro behind `derive(JsonSchema)` would be two crates of the kernel's eighty for this one type.
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

/// The tool as model APIs are told of it.
pub fn definition() -> ToolDefinition {
    let input_schema = RawJson::of(&schemars::schema_for!(CreateSubagentArgs)).unwrap_or_else(|_| RawJson::empty_object());
    ToolDefinition { name: CREATE_SUBAGENT.to_owned(), description: DESCRIPTION.to_owned(), input_schema }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::limits::OBSERVATION_BYTES_MAX;

    use super::*;

    #[test]
    fn the_subagents_of_a_batch_share_one_credit() {
        let all = |count: usize| count * Siblings(count).share();

        assert_eq!([1, 2, 4, 16, 64].map(|count| Siblings(count).share()), [24 * 1024, 16 * 1024, 8 * 1024, 2 * 1024, 512]);
        assert!((1..=64).all(|count| all(count) <= SUBAGENT_BATCH_BYTES), "a batch of the usual bounds stays within it");
        assert!(Siblings(1).share() < OBSERVATION_BYTES_MAX, "and no answer is paged");
    }

    #[test]
    fn a_subagent_is_created_with_a_task_and_nothing_else() {
        let definition = definition();
        let schema: Value = definition.input_schema.parse().unwrap();

        assert_eq!((definition.name.as_str(), &schema["required"]), ("create_subagent", &json!(["task"])));
        assert_eq!((&schema["properties"]["task"]["type"], &schema["additionalProperties"]), (&json!("string"), &json!(false)));
        assert!(schema["properties"]["task"]["description"].is_string());
        let read = |text: &str| serde_json::from_str::<CreateSubagentArgs>(text).ok();
        assert_eq!(read(r#"{"task": "count"}"#), Some(CreateSubagentArgs { task: "count".into() }));
        assert_eq!((read("{}"), read(r#"{"task": "count", "model": "large"}"#)), (None, None));
    }
}
