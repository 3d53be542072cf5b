//! Schemas of the kernel's own tools, whose arguments are texts. By hand: the macro behind `derive(JsonSchema)` would be two crates of the
//! kernel's eighty for them.

use schemars::{Schema, json_schema};
use serde_json::{Map, Value, json};

/// The schema of an object of texts, each a name and its description; no other names are taken.
pub(crate) fn text_arguments(required: &[(&str, &str)], optional: &[(&str, &str)]) -> Schema {
    let property = |(name, description): &(&str, &str)| ((*name).to_owned(), json!({ "type": "string", "description": description }));
    let properties: Map<String, Value> = required.iter().chain(optional).map(property).collect();
    let names: Vec<&str> = required.iter().map(|(name, _)| *name).collect();
    json_schema!({ "type": "object", "properties": properties, "required": names, "additionalProperties": false })
}
