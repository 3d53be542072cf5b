//! What a model is told of `create_subagent` (REQUIREMENTS U-01, N-01): name, description, arguments.
//!
//! **Bound:** this is the declaration alone. No host offers the tool yet: running subagents comes with the fan-out, and a tool that
//! could only refuse would cost every request its tokens.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use crate::{chat::RawJson, ports::ToolDefinition};

/// The name of the tool.
pub const CREATE_SUBAGENT: &str = "create_subagent";

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
