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
    chat::RawJson,
    ids::{CallKey, Scope},
    ports::{BoxFuture, Progress, ToolDefinition, ToolError},
    stream::RoundEnd,
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

    use super::*;

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
