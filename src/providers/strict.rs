//! Whether a schema of an answer meets the rules of OpenAI's `strict`. Pure.

use callboard_actors::chat::RawJson;
use serde_json::Value;

/// Whether every object of the schema is closed and requires all of its properties.
pub(super) fn fits_strict(schema: &RawJson) -> bool {
    fn fits(value: &Value) -> bool {
        match value {
            Value::Object(object) => {
                let closed = match object.get("properties") {
                    Some(Value::Object(properties)) => {
                        let required = object.get("required").and_then(Value::as_array);
                        object.get("additionalProperties") == Some(&Value::Bool(false))
                            && properties.keys().all(|name| {
                                required.is_some_and(|list| list.iter().any(|entry| entry == name))
                            })
                    }
                    _ => object.get("type").is_none_or(|kind| kind != "object"),
                };
                closed && object.values().all(fits)
            }
            Value::Array(list) => list.iter().all(fits),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
        }
    }
    // The parser bounds the depth.
    schema
        .parse::<Value>()
        .is_ok_and(|value| value.get("type").is_some_and(|kind| kind == "object") && fits(&value))
}
