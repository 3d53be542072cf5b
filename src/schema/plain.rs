//! Replaces the references of a schema by pointers from its root. Pure.
//!
//! What `#name` or `#/a/b` leads to may depend on anchors, and on names and drafts of schemas inside.
//! A validator looks for these in more places than this program, so it might follow a reference to
//! a schema whose work was not measured. A pointer from the root of a document without inner names
//! leads to one place only.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::{
    bounds::{
        BELOW_MAPS, DEFINITIONS, IN_PLACE_MAPS, POINTER_BYTES_MAX, REFERENCES, each_subschema,
        has_id, percent_decoded, too_long,
    },
    faults,
};

/// Keywords whose value is no schema.
const VALUES: [&str; 5] = ["const", "enum", "default", "examples", "example"];

/// Why a schema is refused in which an inner one has a name of its own.
const NAMED_INSIDE: &str = "it has an $id inside: a schema must be one document";

/// Makes the references of a schema plain; the error is why it is refused. `anchors` has the
/// pointers of the schemas with an anchor, by its name.
pub(super) fn make_plain(
    root: &mut Value,
    anchors: &HashMap<String, String>,
    is_draft4: bool,
) -> Result<(), String> {
    remove_drafts(root, Place::Root, is_draft4)?;
    let schemas = Ways {
        root,
        anchors,
        is_draft4,
    }
    .all()?;
    for (pointer, references) in schemas {
        let Some(fields) = root.pointer_mut(&pointer).and_then(Value::as_object_mut) else {
            continue;
        };
        for name in ["$schema", "$anchor", "$dynamicAnchor"] {
            remove_text(fields, name);
        }
        for (keyword, to) in references {
            fields.insert(keyword.to_owned(), Value::String(to));
        }
    }
    Ok(())
}

/// Where a value stands in a schema.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Root,
    Inside,
    /// Schemas by name.
    Names,
}

/// Removes the drafts that inner schemas name: a schema is one document, of one draft. Refuses
/// names of inner schemas, also where none is applied. Values that are compared stay as they are.
fn remove_drafts(value: &mut Value, place: Place, is_draft4: bool) -> Result<(), String> {
    if place == Place::Inside && has_id(value, is_draft4) {
        return Err(NAMED_INSIDE.to_owned());
    }
    let fields = match value {
        Value::Object(fields) => fields,
        Value::Array(items) => {
            let mut items = items.iter_mut();
            return items.try_for_each(|item| remove_drafts(item, Place::Inside, is_draft4));
        }
        _ => return Ok(()),
    };
    if place != Place::Names {
        remove_text(fields, "$schema");
    }
    for (name, inner) in fields.iter_mut() {
        let keyword = name.as_str();
        match place {
            Place::Names => remove_drafts(inner, Place::Inside, is_draft4)?,
            _ if VALUES.contains(&keyword) => {}
            _ if BELOW_MAPS
                .iter()
                .chain(IN_PLACE_MAPS)
                .chain(DEFINITIONS)
                .any(|maps| *maps == keyword) =>
            {
                remove_drafts(inner, Place::Names, is_draft4)?;
            }
            _ => remove_drafts(inner, Place::Inside, is_draft4)?,
        }
    }
    Ok(())
}

fn remove_text(fields: &mut Map<String, Value>, name: &str) {
    if fields.get(name).is_some_and(Value::is_string) {
        fields.remove(name);
    }
}

/// References of one schema, in their new form, by keyword.
type References = Vec<(&'static str, String)>;

/// The ways from the root to every schema.
struct Ways<'a> {
    root: &'a Value,
    anchors: &'a HashMap<String, String>,
    is_draft4: bool,
}

impl Ways<'_> {
    /// The pointers of all schemas, those in unknown places that references lead to among them, with
    /// their references.
    fn all(&self) -> Result<Vec<(String, References)>, String> {
        let mut known = HashSet::from([String::new()]);
        let mut waiting = vec![String::new()];
        let mut found = Vec::new();
        while let Some(pointer) = waiting.pop() {
            let Some(schema) = self.root.pointer(&pointer) else {
                continue;
            };
            let Value::Object(fields) = schema else {
                continue;
            };
            if !pointer.is_empty() && has_id(schema, self.is_draft4) {
                return Err(NAMED_INSIDE.to_owned());
            }
            each_subschema(schema, &mut |path, _| {
                let mut inner = pointer.clone();
                for segment in path {
                    inner.push('/');
                    inner.push_str(&segment.replace('~', "~0").replace('/', "~1"));
                }
                if inner.len() > POINTER_BYTES_MAX {
                    return Err(too_long());
                }
                if known.insert(inner.clone()) {
                    waiting.push(inner);
                }
                Ok(())
            })?;
            let mut references = References::new();
            for keyword in REFERENCES {
                let Some(Value::String(to)) = fields.get(*keyword) else {
                    continue;
                };
                // A recursive reference leads to the root, whatever is written there.
                let to = if *keyword == "$recursiveRef" { "#" } else { to };
                let target = self.target(to)?;
                references.push((keyword, as_reference(&target)));
                if known.insert(target.clone()) {
                    waiting.push(target);
                }
            }
            found.push((pointer, references));
        }
        Ok(found)
    }

    /// The pointer of the schema that a reference leads to.
    fn target(&self, reference: &str) -> Result<String, String> {
        let lost = || {
            let shown = faults::short(&Value::from(reference));
            format!("it refers to {shown}, which is not in the schema")
        };
        let pointer = match reference.strip_prefix('#') {
            Some("") => return Ok(String::new()),
            Some(pointer) if pointer.starts_with('/') => percent_decoded(pointer),
            Some(name) => self.anchors.get(name).ok_or_else(lost)?.clone(),
            None => return Err(lost()),
        };
        let mut at = self.root;
        for segment in pointer.split('/').skip(1) {
            at = at.pointer(&format!("/{segment}")).ok_or_else(lost)?;
            if has_id(at, self.is_draft4) {
                return Err(NAMED_INSIDE.to_owned());
            }
        }
        Ok(pointer)
    }
}

/// A pointer as a reference: what a URI does not allow is encoded.
fn as_reference(pointer: &str) -> String {
    let mut reference = String::with_capacity(pointer.len() + 1);
    reference.push('#');
    for byte in pointer.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => reference.push(char::from(byte)),
            byte if b"-._~!$&'()*+,;=:@/?".contains(&byte) => reference.push(char::from(byte)),
            byte => reference.push_str(&format!("%{byte:02X}")),
        }
    }
    reference
}
