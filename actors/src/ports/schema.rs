//! Validation of arguments against a tool's JSON Schema. The kernel contains no validator; an
//! adapter compiles each schema once.

use std::sync::Arc;

use serde_json::Value;

use crate::{chat::RawJson, tool::ToolError};

/// A compiled schema.
pub trait SchemaCheck: Send + Sync + 'static {
    /// Checks arguments against the schema.
    ///
    /// # Errors
    /// [`ToolError::invalid`] with a message for the model: which argument is wrong, what was
    /// expected and what was given.
    fn check(&self, arguments: &Value) -> Result<(), ToolError>;
}

/// Compiles schemas. Never follows references to other documents.
pub trait Schemas: Send + Sync + 'static {
    /// Compiles the schema of one tool.
    ///
    /// # Errors
    /// A description of the fault in the schema.
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
