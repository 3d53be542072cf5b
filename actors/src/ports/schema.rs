//! Checks arguments against a tool's JSON Schema. The kernel carries no validator: an adapter compiles a schema once a tool.

use std::sync::Arc;

use serde_json::Value;

use crate::{chat::RawJson, tool::ToolError};

/// A schema, ready to check arguments.
pub trait SchemaCheck: Send + Sync + 'static {
    /// Checks arguments.
    ///
    /// # Errors
    /// [`ToolError::invalid`] whose message tells the model which argument is wrong, what was expected and what came.
    fn check(&self, arguments: &Value) -> Result<(), ToolError>;
}

/// Compiles schemas. References to other documents are never followed.
pub trait Schemas: Send + Sync + 'static {
    /// Compiles the schema of one tool.
    ///
    /// # Errors
    /// Says what is wrong with the schema.
    fn compile(&self, tool: &str, schema: &RawJson) -> Result<Arc<dyn SchemaCheck>, String>;
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_ports_are_dyn_compatible() {
        fn takes(_: &dyn super::Schemas, _: &dyn super::SchemaCheck) {}
        let _ = takes;
    }
}
