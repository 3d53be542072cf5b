//! Schemas of the kernel's own tools, whose arguments are all texts. Written by hand:
//! `derive(JsonSchema)` would add two crates to the kernel's eighty.

use schemars::{Schema, json_schema};
use serde_json::{Map, Value, json};

/// Returns the schema of an object with text fields, given as pairs of name and description. Other
/// fields are refused.
pub(crate) fn text_arguments(required: &[(&str, &str)], optional: &[(&str, &str)]) -> Schema {
    let property = |(name, description): &(&str, &str)| {
        (
            (*name).to_owned(),
            json!({ "type": "string", "description": description }),
        )
    };
    let properties: Map<String, Value> = required.iter().chain(optional).map(property).collect();
    let names: Vec<&str> = required.iter().map(|(name, _)| *name).collect();
    json_schema!({ "type": "object", "properties": properties, "required": names, "additionalProperties": false })
}
