//! The `think` tool: records a thought of the model and has no other effect.

use callboard_actors::{
    ports::{Reach, ToolContext, ToolSource, ToolSpec, TypedTool},
    tool::ToolError,
};
use schemars::JsonSchema;
use serde::Deserialize;

/// Arguments of `think`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ThinkArgs {
    /// What the model reasons; it is stored as the argument of the call.
    pub thought: String,
}

/// The `think` tool.
#[derive(Debug, Clone, Copy, Default)]
pub struct Think;

impl TypedTool for Think {
    type Args = ThinkArgs;
    type Output = String;
    const NAME: &'static str = "think";
    const DESCRIPTION: &'static str = "Writes down a thought and does nothing else. Use it to plan several steps, to weigh what a result means or to \
check a plan against the rules before acting.";

    fn declare(&self, spec: ToolSpec) -> ToolSpec {
        spec.read_only()
            .not_shared()
            .reach(Reach::Nothing)
            .source(ToolSource::BuiltIn)
    }

    async fn call(&self, _args: ThinkArgs, _context: ToolContext) -> Result<String, ToolError> {
        Ok("Noted.".to_owned())
    }
}
