//! Limits the work that a schema can cause, before it is used. Pure.
//!
//! A validator applies `$ref`, `anyOf` and similar keywords to the same value ("in place"). A chain
//! of definitions in which each refers to the next one twice doubles the work at every step, and a
//! loop never ends; such schemas are refused at compilation. If such a chain descends into the
//! value, the value's depth decides: the applications of schemas to a value are counted first, and
//! too many are refused.

use std::collections::HashMap;

use callboard_actors::limits::JSON_DEPTH_MAX;
use serde_json::{Map, Value};

/// Most subschemas of a schema.
const SUBSCHEMAS_MAX: usize = 8192;

/// Most patterns of a schema; a compiled pattern may take 256 KiB.
const PATTERNS_MAX: usize = 256;

/// Longest chain of schemas that are applied in place.
const IN_PLACE_DEPTH_MAX: u32 = 16;

/// Limit of (levels of the value) × (schemas applied in place at each level). All of them are on
/// the stack at once, with up to 3 KiB each in an unoptimized build; a worker's stack has 2 MiB.
const STACKED_MAX: usize = 400;

/// Most schemas that are applied to one value in place.
const IN_PLACE_MAX: u32 = 2000;

/// Schema applications allowed for a value of any size. Real schemas and arguments need a few
/// hundred.
const STEPS_MAX: usize = 100_000;

/// Further applications allowed for each part of the value.
const STEPS_PER_PART: usize = 20;

/// Applications up to which the faults are listed. Listing is expensive: it evaluates every
/// alternative and collects its errors.
const EXPLAINED_MAX: usize = 20_000;

/// Longest reference, in bytes.
const REFERENCE_BYTES_MAX: usize = 1000;

/// Keywords whose value is one schema for the same value.
const IN_PLACE: &[&str] = &["not", "if", "then", "else"];
/// Keywords whose value is a list of schemas for the same value.
const IN_PLACE_LISTS: &[&str] = &["allOf", "anyOf", "oneOf"];
/// Keywords whose value maps names to schemas for the same value.
const IN_PLACE_MAPS: &[&str] = &["dependentSchemas", "dependencies"];
/// Keywords whose value is one schema for an object's members.
const OF_MEMBERS: &[&str] = &[
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
];
/// Keywords whose value is one schema for an array's items.
const OF_ITEMS: &[&str] = &["items", "additionalItems", "unevaluatedItems", "contains"];
/// Keywords whose value is a list of schemas for items.
const BELOW_LISTS: &[&str] = &["items", "prefixItems"];
/// Keywords whose value maps names, or patterns of names, to schemas for members.
const BELOW_MAPS: &[&str] = &["properties", "patternProperties"];
/// Keywords that contain definitions.
const DEFINITIONS: &[&str] = &["$defs", "definitions"];
/// Keywords that refer to another schema.
const REFERENCES: &[&str] = &["$ref", "$dynamicRef", "$recursiveRef"];

/// A schema whose work is bounded.
pub(super) struct Shape {
    root: Value,
    /// Pointers of the schemas that have an anchor, by its name.
    anchors: HashMap<String, String>,
    /// Longest chain of schemas that are applied in place.
    chain: usize,
}

/// Whether a value may be validated, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    /// Validate it; list the faults if it does not fit.
    Light,
    /// Validate it, but do not list the faults: that would take too long.
    Heavy,
    /// Refuse it: it is nested deeper than this number of levels.
    TooDeep(usize),
    /// Refuse it: it needs too many applications of schemas.
    TooMuch,
}

impl Shape {
    /// Measures a schema; the error is why it is refused.
    pub(super) fn from_schema(root: Value) -> Result<Self, String> {
        let mut survey = Survey::default();
        survey.visit(&root, &mut String::new())?;
        let mut shape = Self {
            root,
            anchors: survey.anchors,
            chain: 1,
        };
        let mut measured = HashMap::new();
        shape.measure_all(&shape.root, &mut measured)?;
        shape.chain = measured
            .values()
            .map(|measure| measure.depth as usize)
            .max()
            .unwrap_or(1);
        Ok(shape)
    }

    pub(super) fn root(&self) -> &Value {
        &self.root
    }

    /// The schema that a reference refers to.
    fn target(&self, reference: &str) -> Option<&Value> {
        match reference.strip_prefix('#')? {
            "" => Some(&self.root),
            pointer if pointer.starts_with('/') => self.root.pointer(&percent_decoded(pointer)),
            name => self.root.pointer(self.anchors.get(name)?),
        }
    }

    /// The schemas that are applied to the same value as `schema`.
    fn in_place<'a>(&'a self, schema: &'a Map<String, Value>) -> impl Iterator<Item = &'a Value> {
        let references = REFERENCES
            .iter()
            .filter_map(|keyword| self.target(schema.get(*keyword)?.as_str()?));
        let single = IN_PLACE.iter().filter_map(|keyword| schema.get(*keyword));
        let listed = IN_PLACE_LISTS
            .iter()
            .filter_map(|keyword| schema.get(*keyword)?.as_array())
            .flatten();
        let mapped = IN_PLACE_MAPS
            .iter()
            .filter_map(|keyword| schema.get(*keyword)?.as_object())
            .flat_map(Map::values);
        references.chain(single).chain(listed).chain(mapped)
    }

    fn measure_all<'a>(
        &'a self,
        schema: &'a Value,
        measured: &mut HashMap<*const Value, Measure>,
    ) -> Result<(), String> {
        self.measure(schema, 0, measured)?;
        each_subschema(schema, &mut |_, child| self.measure_all(child, measured))
    }

    fn measure<'a>(
        &'a self,
        schema: &'a Value,
        depth: u32,
        measured: &mut HashMap<*const Value, Measure>,
    ) -> Result<Measure, String> {
        if let Some(known) = measured.get(&std::ptr::from_ref(schema)) {
            return Ok(*known);
        }
        // This also ends loops: an in-place cycle exceeds every depth.
        if depth > IN_PLACE_DEPTH_MAX {
            return Err(format!(
                "more than {IN_PLACE_DEPTH_MAX} of its schemas refer to one another for one and the same value"
            ));
        }
        let mut sum = Measure { asked: 1, depth: 1 };
        for next in schema
            .as_object()
            .into_iter()
            .flat_map(|fields| self.in_place(fields))
        {
            let next = self.measure(next, depth + 1, measured)?;
            sum = Measure {
                asked: sum.asked.saturating_add(next.asked),
                depth: sum.depth.max(next.depth + 1),
            };
        }
        if sum.depth > IN_PLACE_DEPTH_MAX {
            return Err(format!(
                "more than {IN_PLACE_DEPTH_MAX} of its schemas refer to one another for one and the same value"
            ));
        }
        if sum.asked > IN_PLACE_MAX {
            return Err(format!(
                "more than {IN_PLACE_MAX} of its schemas are asked of one and the same value"
            ));
        }
        measured.insert(schema, sum);
        Ok(sum)
    }

    /// Estimates the work of validating a value. Must run before the validator.
    pub(super) fn weigh(&self, value: &Value) -> Load {
        let levels_max = JSON_DEPTH_MAX.min(STACKED_MAX / self.chain.max(1));
        if deeper_than(value, levels_max) {
            return Load::TooDeep(levels_max);
        }
        let allowed = STEPS_MAX.saturating_add(parts(value).saturating_mul(STEPS_PER_PART));
        let mut left = allowed;
        match self.ask(&self.root, value, &mut left) {
            None => Load::TooMuch,
            Some(()) if allowed - left > EXPLAINED_MAX => Load::Heavy,
            Some(()) => Load::Light,
        }
    }

    /// Counts schema applications as if every alternative were evaluated; `None` when `left` is
    /// used up.
    fn ask(&self, schema: &Value, value: &Value, left: &mut usize) -> Option<()> {
        *left = left.checked_sub(1)?;
        let Value::Object(fields) = schema else {
            return Some(());
        };
        // Unevaluated members are known only after everything in place was evaluated, so that
        // happens twice.
        let unevaluated =
            fields.contains_key("unevaluatedProperties") || fields.contains_key("unevaluatedItems");
        for _ in 0..1 + u8::from(unevaluated) {
            for next in self.in_place(fields) {
                self.ask(next, value, left)?;
            }
        }
        for (keyword, inner) in fields {
            let word = keyword.as_str();
            match (value, inner) {
                (Value::Array(items), Value::Array(schemas)) if BELOW_LISTS.contains(&word) => {
                    for (schema, item) in schemas.iter().zip(items) {
                        self.ask(schema, item, left)?;
                    }
                }
                (Value::Array(items), Value::Object(_)) if OF_ITEMS.contains(&word) => {
                    for item in items {
                        self.ask(inner, item, left)?;
                    }
                }
                (Value::Object(members), Value::Object(_)) if OF_MEMBERS.contains(&word) => {
                    for member in members.values() {
                        self.ask(inner, member, left)?;
                    }
                }
                (Value::Object(members), Value::Object(named)) if word == "properties" => {
                    for (name, schema) in named {
                        if let Some(member) = members.get(name) {
                            self.ask(schema, member, left)?;
                        }
                    }
                }
                (Value::Object(members), Value::Object(patterns))
                    if word == "patternProperties" =>
                {
                    for schema in patterns.values() {
                        for member in members.values() {
                            self.ask(schema, member, left)?;
                        }
                    }
                }
                _ => {}
            }
        }
        Some(())
    }
}

/// Cost of applying a schema to one value.
#[derive(Debug, Clone, Copy)]
struct Measure {
    /// Number of schemas applied in place.
    asked: u32,
    /// Longest chain of them.
    depth: u32,
}

/// Visits every subschema once: counts, collects anchors, and refuses what is not allowed.
#[derive(Default)]
struct Survey {
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
        if !pointer.is_empty() && fields.get("$id").is_some_and(Value::is_string) {
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
            self.anchors.insert(name.to_owned(), pointer.clone());
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
            let visited = self.visit(child, pointer);
            pointer.truncate(length);
            visited
        })
    }
}

/// Calls `each` for every direct subschema of `schema`, with its path.
fn each_subschema<'a>(
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

/// Number of values in a value, itself included.
fn parts(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(parts).fold(1, usize::saturating_add),
        Value::Object(members) => members.values().map(parts).fold(1, usize::saturating_add),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
}

/// Decodes a percent-encoded pointer in a URI fragment.
fn percent_decoded(text: &str) -> String {
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
