//! Checks the arguments of tool calls against the tools' JSON Schemas, before a call is journaled
//! or run. Schemas may come from untrusted servers and arguments come from a model, so the work for
//! both is bounded.
//!
//! Guarantees: references to other documents are refused. Neither a schema nor arguments can make a
//! check slow. The error message says which argument is wrong, what was expected and what was
//! received.
//!
//! Limits: a schema has at most [`SCHEMA_BYTES_MAX`] bytes and 64 levels, and those of `bounds` and `weigh`;
//! arguments are nested at most 64 deep; patterns run on a linear-time engine where possible
//! (`pattern`); a message lists at most [`FAULTS_MAX`] faults.

mod bounds;
mod cost;
mod pattern;
mod faults;
mod plain;
mod weigh;

use std::sync::Arc;

use callboard_actors::{
    chat::RawJson,
    limits::JSON_DEPTH_MAX,
    ports::{SchemaCheck, Schemas},
    tool::ToolError,
};
use jsonschema::{Draft, Validator};
use serde_json::Value;

pub use faults::FAULTS_MAX;
use weigh::{Load, Shape};

/// Largest schema of a tool, in bytes. Real ones have a few thousand, since every request to a
/// model contains them.
pub const SCHEMA_BYTES_MAX: usize = 256 * 1024;

/// Compiles JSON Schemas, once for each tool. Draft 2020-12, unless `$schema` names draft 4, 6, 7
/// or 2019-09. References are resolved inside of the schema only; nothing is fetched. `format` is
/// an annotation.
///
/// ```
/// use callboard::{chat::RawJson, ports::Schemas, schema::JsonSchemas};
/// use serde_json::json;
///
/// let schema = json!({
///     "type": "object",
///     "properties": { "path": { "type": "string" }, "limit": { "type": "integer", "minimum": 1 } },
///     "required": ["path"],
///     "additionalProperties": false,
/// });
/// let check = JsonSchemas.compile("file_read", &RawJson::of(&schema)?)?;
///
/// assert!(check.check(&json!({ "path": "a.rs", "limit": 10 })).is_ok());
/// let error = check.check(&json!({ "pth": "a.rs", "limit": "ten" })).unwrap_err();
/// assert_eq!(
///     error.message,
///     "the arguments of file_read do not fit:\n\
///      - /limit: expected an integer, got the string \"ten\"\n\
///      - /pth is unknown; did you mean \"path\"?\n\
///      - /path is missing"
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct JsonSchemas;

impl Schemas for JsonSchemas {
    fn compile(&self, tool: &str, schema: &RawJson) -> Result<Arc<dyn SchemaCheck>, String> {
        Compiled::new(tool, schema).map(|compiled| Arc::new(compiled) as Arc<dyn SchemaCheck>)
    }
}

/// The compiled schema of one tool.
struct Compiled {
    tool: String,
    shape: Shape,
    validator: Validator,
}

/// The states of a schema's patterns, if it can be used. Compiling takes up to 200 ns for each.
#[cfg(feature = "mcp")]
pub(crate) fn pattern_states(schema: &RawJson) -> Result<usize, String> {
    Compiled::measured(schema).map(|(shape, _)| shape.states())
}

impl Compiled {
    /// Measures a schema without compiling it.
    fn measured(schema: &RawJson) -> Result<(Shape, Draft), String> {
        let bytes = schema.as_str().len();
        if bytes > SCHEMA_BYTES_MAX {
            return Err(format!(
                "it has {bytes} bytes; at most {SCHEMA_BYTES_MAX} are allowed"
            ));
        }
        let mut root: Value = schema
            .parse()
            .map_err(|error| format!("it is not valid JSON: {error}"))?;
        let Value::Object(fields) = &mut root else {
            return Err("it is not a JSON object".to_owned());
        };
        match fields.get("type") {
            None => {}
            Some(Value::String(kind)) if kind == "object" => {}
            Some(Value::Array(kinds)) if kinds.iter().any(|kind| kind == "object") => {}
            Some(_) => {
                return Err(
                    "it does not describe an object; the arguments of a tool are always an object"
                        .to_owned(),
                );
            }
        }
        let draft = match fields.remove("$schema") {
            None => Draft::Draft202012,
            Some(named) => draft_of(&named)?,
        };
        // The schema's own URI. Without it, `#` means the same and errors are easier to read.
        fields.remove("$id");
        if draft == Draft::Draft4 && fields.get("id").is_some_and(Value::is_string) {
            fields.remove("id");
        }
        if bounds::deeper_than(&root, JSON_DEPTH_MAX) {
            return Err(format!("it is nested deeper than {JSON_DEPTH_MAX} levels"));
        }
        let shape = Shape::from_schema(root, draft == Draft::Draft4)?;
        Ok((shape, draft))
    }

    fn new(tool: &str, schema: &RawJson) -> Result<Self, String> {
        let (shape, draft) = Self::measured(schema)?;
        let patterns = pattern::Patterns::default();
        let options = jsonschema::options()
            .with_draft(draft)
            .offline()
            .should_validate_formats(false)
            .with_pattern_options(pattern::linear())
            .with_keyword("pattern", move |_, value, _| {
                pattern::keyword(&patterns, value)
            });
        let validator = options
            .build(shape.root())
            .map_err(|error| faults::of_schema(&error))?;
        Ok(Self {
            tool: tool.to_owned(),
            shape,
            validator,
        })
    }
}

/// The draft that `$schema` names, in any common spelling.
fn draft_of(named: &Value) -> Result<Draft, String> {
    let name = named.as_str().unwrap_or_default();
    let drafts = [
        ("draft-04", Draft::Draft4),
        ("draft-06", Draft::Draft6),
        ("draft-07", Draft::Draft7),
        ("2019-09", Draft::Draft201909),
        ("2020-12", Draft::Draft202012),
    ];
    let found = drafts
        .into_iter()
        .find(|(word, _)| name.contains("json-schema.org/") && name.contains(word));
    found.map(|(_, draft)| draft).ok_or_else(|| {
        format!(
            "its $schema is {}, which is not a supported draft of JSON Schema",
            faults::short(named)
        )
    })
}

impl Compiled {
    /// The lines of the error message; empty if the arguments fit.
    fn faults(&self, arguments: &Value) -> Vec<String> {
        let too_much = || {
            vec!["there are too many ways to read them; give fewer, or less nested ones".to_owned()]
        };
        let load = self.shape.weigh(arguments);
        let is_light = match load {
            Load::TooDeep(levels) => {
                return vec![format!("they are nested deeper than {levels} levels")];
            }
            Load::TooMuch => return too_much(),
            Load::Light => true,
            Load::Heavy => false,
        };
        let lines = pattern::in_time(|| match is_light {
            _ if self.validator.is_valid(arguments) => Vec::new(),
            true => faults::lines(self.validator.iter_errors(arguments), self.shape.root()),
            false => vec![
                "they are too large to list the faults; compare them with the tool's schema"
                    .to_owned(),
            ],
        });
        lines.unwrap_or_else(too_much)
    }
}

impl SchemaCheck for Compiled {
    fn check(&self, arguments: &Value) -> Result<(), ToolError> {
        let lines = self.faults(arguments);
        if lines.is_empty() {
            return Ok(());
        }
        let mut message = format!("the arguments of {} do not fit:", self.tool);
        for line in lines {
            message.push_str("\n- ");
            message.push_str(&line);
        }
        Err(ToolError::invalid(message))
    }
}

#[cfg(test)]
mod tests;
