//! The keywords that contain schemas, and the bounds of a schema by itself. Pure.
//!
//! A validator applies `$ref`, `anyOf` and similar keywords to the same value ("in place"). A chain
//! of definitions in which each refers to the next one twice doubles the work at every step, and a
//! loop never ends; such schemas are refused at compilation. If such a chain descends into the
//! value, the value's depth decides: [`weigh`](super::weigh) counts the steps for a value first.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// Most subschemas of a schema.
pub(super) const SUBSCHEMAS_MAX: usize = 8192;

/// Most patterns of a schema; a compiled pattern may take 256 KiB.
const PATTERNS_MAX: usize = 256;

/// Longest chain of schemas that are applied in place.
pub(super) const IN_PLACE_DEPTH_MAX: usize = 16;

/// Longest pointer to a schema, in bytes. Each schema may keep one while it is measured.
pub(super) const POINTER_BYTES_MAX: usize = 4096;

/// Longest reference, in bytes.
const REFERENCE_BYTES_MAX: usize = 1000;

/// Keywords whose value is one schema for the same value.
pub(super) const IN_PLACE: &[&str] = &["not", "if", "then", "else"];
/// Keywords whose value is a list of schemas for the same value.
pub(super) const IN_PLACE_LISTS: &[&str] = &["allOf", "anyOf", "oneOf"];
/// Keywords whose value maps names to schemas for the same value.
pub(super) const IN_PLACE_MAPS: &[&str] = &["dependentSchemas", "dependencies"];
/// Keywords whose value is one schema for an object's members.
pub(super) const OF_MEMBERS: &[&str] = &[
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
];
/// Keywords whose value is one schema for an array's items.
pub(super) const OF_ITEMS: &[&str] = &["items", "additionalItems", "unevaluatedItems", "contains"];
/// Keywords whose value is a list of schemas for items.
pub(super) const BELOW_LISTS: &[&str] = &["items", "prefixItems"];
/// Keywords whose value maps names, or patterns of names, to schemas for members.
pub(super) const BELOW_MAPS: &[&str] = &["properties", "patternProperties"];
/// Keywords that contain definitions.
pub(super) const DEFINITIONS: &[&str] = &["$defs", "definitions"];
/// Keywords that refer to another schema.
pub(super) const REFERENCES: &[&str] = &["$ref", "$dynamicRef", "$recursiveRef"];

/// Checks a schema; the error is why it is refused. Returns the pointers of the schemas that have an
/// anchor, by its name.
pub(super) fn survey(root: &Value, is_draft4: bool) -> Result<HashMap<String, String>, String> {
    let mut survey = Survey {
        is_draft4,
        ..Survey::default()
    };
    survey.visit(root, &mut String::new())?;
    Ok(survey.anchors)
}

/// Visits every subschema once: counts, collects anchors, and refuses what is not allowed.
#[derive(Default)]
struct Survey {
    is_draft4: bool,
    subschemas: usize,
    patterns: usize,
    anchors: HashMap<String, String>,
}

impl Survey {
    fn visit(&mut self, schema: &Value, pointer: &mut String) -> Result<(), String> {
        self.subschemas += 1;
        if self.subschemas > SUBSCHEMAS_MAX {
            return Err(format!("it contains more than {SUBSCHEMAS_MAX} schemas"));
        }
        let Value::Object(fields) = schema else {
            return Ok(());
        };
        if !pointer.is_empty() && has_id(schema, self.is_draft4) {
            return Err(format!(
                "{pointer} has an $id: a schema must be one document"
            ));
        }
        for reference in REFERENCES
            .iter()
            .filter_map(|keyword| fields.get(*keyword)?.as_str())
        {
            if !reference.starts_with('#') || reference.len() > REFERENCE_BYTES_MAX {
                let shown = super::faults::short(&Value::from(reference));
                return Err(format!(
                    "{pointer} refers to {shown}; only references inside of the schema (\"#…\") are followed"
                ));
            }
        }
        for name in ["$anchor", "$dynamicAnchor"]
            .iter()
            .filter_map(|keyword| fields.get(*keyword)?.as_str())
        {
            let known = self.anchors.insert(name.to_owned(), pointer.clone());
            if known.is_some_and(|known| known != *pointer) {
                let shown = super::faults::short(&Value::from(name));
                return Err(format!("the anchor {shown} is there twice"));
            }
        }
        let named = fields
            .get("patternProperties")
            .and_then(Value::as_object)
            .map_or(0, Map::len);
        self.patterns += named + usize::from(fields.contains_key("pattern"));
        if self.patterns > PATTERNS_MAX {
            return Err(format!("it contains more than {PATTERNS_MAX} patterns"));
        }
        each_subschema(schema, &mut |path, child| {
            let length = pointer.len();
            for segment in path {
                pointer.push('/');
                pointer.push_str(&segment.replace('~', "~0").replace('/', "~1"));
            }
            if pointer.len() > POINTER_BYTES_MAX {
                return Err(too_long());
            }
            let visited = self.visit(child, pointer);
            pointer.truncate(length);
            visited
        })
    }
}

/// Why a schema with a long pointer is refused.
pub(super) fn too_long() -> String {
    format!("the names that lead to one of its schemas have more than {POINTER_BYTES_MAX} bytes")
}

/// Whether an inner schema names itself, from where references would be resolved. Draft 4 has the
/// keyword `id` for it.
pub(super) fn has_id(schema: &Value, is_draft4: bool) -> bool {
    let is_named = |keyword| schema.get(keyword).is_some_and(Value::is_string);
    is_named("$id") || is_draft4 && is_named("id")
}

/// Calls `each` for every direct subschema of `schema`, with its path.
pub(super) fn each_subschema<'a>(
    schema: &'a Value,
    each: &mut impl FnMut(&[&str], &'a Value) -> Result<(), String>,
) -> Result<(), String> {
    let Value::Object(fields) = schema else {
        return Ok(());
    };
    for (keyword, value) in fields {
        let word = keyword.as_str();
        let of = |lists: [&[&str]; 3]| lists.iter().any(|list| list.contains(&word));
        match value {
            Value::Array(items) if of([IN_PLACE_LISTS, BELOW_LISTS, &[]]) => {
                for (index, item) in items.iter().enumerate() {
                    each(&[word, &index.to_string()], item)?;
                }
            }
            Value::Object(members) if of([IN_PLACE_MAPS, BELOW_MAPS, DEFINITIONS]) => {
                for (name, member) in members {
                    each(&[word, name], member)?;
                }
            }
            Value::Object(_) | Value::Bool(_) if of([IN_PLACE, OF_MEMBERS, OF_ITEMS]) => {
                each(&[word], value)?
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether a value is nested deeper than `levels`. Descends no further than that.
pub(super) fn deeper_than(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => {
            levels == 0 || items.iter().any(|item| deeper_than(item, levels - 1))
        }
        Value::Object(members) => {
            levels == 0
                || members
                    .values()
                    .any(|member| deeper_than(member, levels - 1))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Decodes a percent-encoded pointer in a URI fragment.
pub(super) fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = (*first == b'%')
            .then(|| after.get(..2))
            .flatten()
            .and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
