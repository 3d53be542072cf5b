//! Answers in a schema: an object with a number. Half of the model's answers are such objects.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    chat::RawJson,
    ports::{SchemaCheck, Schemas},
    tool::ToolError,
};

/// The only schema of the world. The input of tools is not checked.
pub(super) fn schema() -> RawJson {
    let number = json!({ "type": "integer" });
    RawJson::of(&json!({ "type": "object", "properties": { "number": number } })).unwrap()
}

/// An answer in the schema.
pub(super) fn answer(call: usize) -> String {
    json!({ "number": call }).to_string()
}

/// Whether a text is an answer in the schema.
pub(super) fn is_answer(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok_and(|value| value["number"].is_u64())
}

/// Compiles the schema of the world, and checks nothing for others.
pub(super) struct Numbers;

struct Check {
    wants_number: bool,
}

impl Schemas for Numbers {
    fn compile(&self, _: &str, schema: &RawJson) -> Result<Arc<dyn SchemaCheck>, String> {
        let wants_number = schema.as_str().contains("number");
        Ok(Arc::new(Check { wants_number }))
    }
}

impl SchemaCheck for Check {
    fn check(&self, value: &Value) -> Result<(), ToolError> {
        if self.wants_number && !value["number"].is_u64() {
            return Err(ToolError::invalid("`number` is no number"));
        }
        Ok(())
    }
}
