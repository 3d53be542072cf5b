//! The tools of a host, by name and in a fixed order: the definitions that models see, and the
//! checks of arguments.

use std::{collections::HashMap, sync::Arc};

use serde_json::{Map, Value, json};

use crate::{
    chat::{RawJson, ToolDefinition, ambiguity, is_tool_name, values_in},
    limits::{JSON_VALUES_MAX, TOOL_INPUT_BYTES_MAX},
    ports::{SchemaCheck, Schemas, Tool, ToolSpec},
    tool::{OutputLevel, ToolError},
};

/// The argument with which a model chooses the output level of one call.
const LEVEL: &str = "output_level";

/// Tools by name, in a fixed order: the definitions are part of the prompt prefix that providers
/// cache, so their order must not change. A clone shares the tools; changing one clone leaves the
/// others as they are.
#[derive(Clone)]
pub struct Toolset {
    by_name: HashMap<String, Known>,
    definitions: Arc<[ToolDefinition]>,
}

/// A tool, its declaration and its compiled schema.
#[derive(Clone)]
struct Known {
    tool: Arc<dyn Tool>,
    spec: Arc<ToolSpec>,
    schema: Option<Arc<dyn SchemaCheck>>,
    /// Whether models may choose the output level of a call.
    has_levels: bool,
}

/// Why a set of tools was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ToolsetError {
    /// Two tools have the same name.
    #[error("two tools are named {0:?}; rename one of them")]
    SameName(String),
    /// A name that model APIs do not accept.
    #[error("{0:?} is no tool name: use 1-64 of A-Z a-z 0-9 _ -")]
    BadName(String),
    /// The schema of the arguments does not compile.
    #[allow(missing_docs, reason = "the field names say it")]
    #[error("the schema of the tool {name:?} cannot be used: {why}")]
    BadSchema {
        name: String,
        /// What is wrong with the schema.
        why: String,
    },
}

/// Arguments that passed all checks, in normalized form.
pub(in crate::conversation) struct CheckedArguments {
    /// The normalized arguments; `None` if the model's arguments are used as they are.
    pub(in crate::conversation) input: Option<RawJson>,
    /// The output level that the call asks for; `None` if it asks for none.
    pub(in crate::conversation) level: Option<OutputLevel>,
}

impl Toolset {
    /// Collects tools. With `schemas`, the arguments of every call are checked against the tool's
    /// schema.
    ///
    /// # Errors
    /// [`ToolsetError`] for two tools of one name, a name that model APIs refuse, and an invalid
    /// schema.
    pub fn new(
        tools: impl IntoIterator<Item = Arc<dyn Tool>>,
        schemas: Option<&dyn Schemas>,
    ) -> Result<Self, ToolsetError> {
        let mut by_name = HashMap::default();
        let mut definitions = Vec::new();
        for tool in tools {
            let spec = Arc::new(tool.spec().clone());
            let name = spec.name().to_owned();
            if !is_tool_name(&name) {
                return Err(ToolsetError::BadName(name));
            }
            let compiled = schemas
                .map(|schemas| schemas.compile(&name, &spec.definition.input_schema))
                .transpose();
            let schema = compiled.map_err(|why| ToolsetError::BadSchema {
                name: name.clone(),
                why,
            })?;
            let has_levels = spec.returns_data && !declares_level(&spec);
            definitions.push(offered(&spec, has_levels));
            let known = Known {
                tool,
                spec,
                schema,
                has_levels,
            };
            if by_name.insert(name.clone(), known).is_some() {
                return Err(ToolsetError::SameName(name));
            }
        }
        Ok(Self {
            by_name,
            definitions: definitions.into(),
        })
    }

    /// The same tools without those named in `exclude`. Unknown names are ignored.
    #[must_use]
    pub(crate) fn without(&self, exclude: &[&str]) -> Self {
        let stays = |name: &str| !exclude.contains(&name);
        Self {
            by_name: self
                .by_name
                .iter()
                .filter(|(name, _)| stays(name))
                .map(|(name, known)| (name.clone(), known.clone()))
                .collect(),
            definitions: self
                .definitions
                .iter()
                .filter(|definition| stays(&definition.name))
                .cloned()
                .collect(),
        }
    }

    /// The definitions that models see, in order.
    pub(crate) fn definitions(&self) -> &Arc<[ToolDefinition]> {
        &self.definitions
    }

    /// The names, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.definitions
            .iter()
            .map(|definition| definition.name.as_str())
    }

    /// The tool of that name.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.by_name.get(name).map(|known| &known.tool)
    }

    /// The declaration of a tool.
    pub(crate) fn spec(&self, name: &str) -> Option<&Arc<ToolSpec>> {
        self.by_name.get(name).map(|known| &known.spec)
    }

    /// The declarations of all tools, in order.
    pub fn specs(&self) -> impl Iterator<Item = &Arc<ToolSpec>> {
        self.definitions
            .iter()
            .filter_map(|definition| self.spec(&definition.name))
    }

    /// The error for an unknown tool name; it lists the known ones.
    pub(in crate::conversation) fn unknown(&self, name: &str) -> ToolError {
        let mut known: Vec<&str> = self.by_name.keys().map(String::as_str).collect();
        known.sort_unstable();
        ToolError::not_found(format!(
            "there is no tool named {name:?}; the tools are: {}",
            known.join(", ")
        ))
        .not_started()
    }

    /// Checks the arguments: size, schema, then the tool's own check. Returns them in the form in
    /// which the tool normalizes them.
    pub(in crate::conversation) fn check_arguments(
        &self,
        name: &str,
        input: &RawJson,
    ) -> Result<CheckedArguments, ToolError> {
        let Some(known) = self.by_name.get(name) else {
            return Err(self.unknown(name));
        };
        if input.as_str().len() > TOOL_INPUT_BYTES_MAX {
            let message = format!(
                "the arguments have {} bytes; at most {TOOL_INPUT_BYTES_MAX} are allowed",
                input.as_str().len()
            );
            return Err(ToolError::invalid(message));
        }
        let values = values_in(input.as_str().as_bytes());
        if values > JSON_VALUES_MAX {
            let message = format!(
                "the arguments have {values} JSON values; at most {JSON_VALUES_MAX} are allowed"
            );
            return Err(ToolError::invalid(message));
        }
        if let Some(why) = ambiguity(input.as_str()) {
            return Err(ToolError::invalid(format!("the arguments: {why}")));
        }
        let (level, without_level) = if known.has_levels {
            take_level(input)?
        } else {
            (None, None)
        };
        let given = without_level.as_ref().unwrap_or(input);
        if let Some(schema) = &known.schema {
            let value: Value = given.parse().map_err(|error| {
                ToolError::invalid(format!("the arguments are no JSON: {error}"))
            })?;
            schema.check(&value)?;
        }
        known.tool.check(given)?;
        let resolved = known.tool.resolve(given);
        Ok(CheckedArguments {
            input: resolved.or(without_level),
            level,
        })
    }
}

/// Removes the output level from the arguments of a call and returns both.
fn take_level(input: &RawJson) -> Result<(Option<OutputLevel>, Option<RawJson>), ToolError> {
    if !input.as_str().contains(LEVEL) {
        return Ok((None, None));
    }
    let Ok(mut arguments) = input.parse::<Map<String, Value>>() else {
        return Ok((None, None));
    };
    let Some(level) = arguments.remove(LEVEL) else {
        return Ok((None, None));
    };
    let level: Option<OutputLevel> = serde_json::from_value(level).map_err(|_| {
        ToolError::invalid(format!("{LEVEL} is \"brief\", \"standard\" or \"full\""))
    })?;
    let rest = RawJson::of(&arguments)
        .map_err(|error| ToolError::invalid(format!("the arguments are no JSON: {error}")))?;
    Ok((level, Some(rest)))
}

/// Whether the tool has an argument of its own by the name of the output level, as tools of MCP
/// servers may. It is the tool's then.
fn declares_level(spec: &ToolSpec) -> bool {
    spec.definition
        .input_schema
        .parse::<Map<String, Value>>()
        .is_ok_and(|schema| {
            schema
                .get("properties")
                .is_some_and(|properties| properties.get(LEVEL).is_some())
        })
}

/// The definition that models see: the declared one, plus the output level if models may choose
/// it.
fn offered(spec: &ToolSpec, has_levels: bool) -> ToolDefinition {
    let mut definition = spec.definition.clone();
    if !has_levels {
        return definition;
    }
    let Ok(mut schema) = definition.input_schema.parse::<Map<String, Value>>() else {
        return definition;
    };
    let level = json!({
        "type": "string",
        "enum": [OutputLevel::Brief, OutputLevel::Standard, OutputLevel::Full],
        "description": "How much of the result to show. Without it: what suits the tool and the room that is left.",
    });
    if let Value::Object(properties) = schema.entry("properties").or_insert_with(|| json!({})) {
        properties.insert(LEVEL.to_owned(), level);
    }
    if let Ok(with_level) = RawJson::of(&schema) {
        definition.input_schema = with_level;
    }
    definition
}

/// The first sentence of a description.
pub fn first_sentence(text: &str) -> &str {
    text.find(". ")
        .map_or(text, |end| text.get(..=end).unwrap_or(text))
}

#[cfg(test)]
mod tests {
    use crate::{
        conversation::setup::toolset::*,
        ports::{FnTool, ToolSource},
        tool::ToolErrorType,
    };

    fn tool(name: &str, source: ToolSource) -> Arc<dyn Tool> {
        let schema = json!({ "type": "object", "properties": { "path": { "type": "string" } } });
        let description = format!("Does {name}. And more.");
        let tool = FnTool::raw(
            name,
            &description,
            &schema,
            |arguments, _| async move { Ok(arguments.to_string()) },
            None,
        );
        Arc::new(tool.declare(|spec| spec.read_only().source(source)))
    }

    fn three() -> Toolset {
        let mcp = tool("srv__b", ToolSource::Mcp("srv".to_owned()));
        Toolset::new(
            [
                tool("z", ToolSource::BuiltIn),
                mcp,
                tool("a", ToolSource::Custom),
            ],
            None,
        )
        .unwrap()
    }

    fn names(set: &Toolset) -> Vec<&str> {
        set.names().collect()
    }

    #[test]
    fn a_name_is_unique_and_one_that_model_apis_accept() {
        let of = |names: &[&str]| {
            Toolset::new(
                names.iter().map(|name| tool(name, ToolSource::Custom)),
                None,
            )
            .map(|_| ())
        };
        let longest = "x".repeat(64);

        assert_eq!(
            of(&["a", "b", "a"]),
            Err(ToolsetError::SameName("a".into()))
        );
        assert_eq!(of(&["a", "A", "a-1_b", &longest]), Ok(()));
        for bad in ["", "a b", "a.b", "ä", &"x".repeat(65)] {
            assert_eq!(
                of(&[bad]),
                Err(ToolsetError::BadName(bad.to_owned())),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn tools_are_listed_in_the_order_in_which_they_were_given() {
        let set = three();

        assert_eq!(names(&set), ["z", "srv__b", "a"]);
        let listed: Vec<_> = set
            .definitions()
            .iter()
            .map(|tool| (tool.name.as_str(), tool.description.as_str()))
            .collect();
        assert_eq!(
            listed,
            [
                ("z", "Does z. And more."),
                ("srv__b", "Does srv__b. And more."),
                ("a", "Does a. And more.")
            ]
        );
        let schema: Value = set.definitions()[0].input_schema.parse().unwrap();
        assert_eq!(
            schema,
            json!({ "type": "object", "properties": { "path": { "type": "string" } } })
        );
    }

    #[test]
    fn a_set_without_some_tools_is_a_set_of_its_own() {
        let all = three();
        let mut fewer = all.without(&["z", "unknown"]);
        assert_eq!((names(&all).len(), names(&fewer)), (3, vec!["srv__b", "a"]));
        assert!(fewer.get("z").is_none() && fewer.spec("z").is_none() && all.get("z").is_some());

        fewer = fewer.without(&["a"]);
        assert_eq!(
            (names(&fewer), names(&all)),
            (vec!["srv__b"], vec!["z", "srv__b", "a"])
        );
        assert!(
            fewer
                .unknown("z")
                .message
                .ends_with("the tools are: srv__b"),
            "its error names its own tools only"
        );
    }

    #[test]
    fn arguments_that_readers_understand_in_different_ways_are_refused() {
        let set = three();
        let checked = |json: &str| set.check_arguments("a", &RawJson::from_text(json).unwrap());
        let refused = |json: &str| checked(json).err().unwrap().message;

        assert!(checked(r#"{"path":"x"}"#).is_ok());
        assert_eq!(
            refused(r#"{"path":"shown","path":"used"}"#),
            "the arguments: the field `path` is there twice"
        );
        assert_eq!(
            refused(r#"{"path":"x","lines":[18446744073709551617]}"#),
            "the arguments: the number 18446744073709551617 has more digits than are kept: send it as text"
        );
    }

    #[test]
    fn arguments_of_very_many_values_are_refused_before_they_are_read() {
        let set = three();
        let of = |values: usize| {
            let items = vec!["0"; values - 2].join(",");
            RawJson::from_text(format!(r#"{{"path":"[,{{","items":[{items}]}}"#)).unwrap()
        };
        let refused = |values| set.check_arguments("a", &of(values)).err();

        assert_eq!(refused(JSON_VALUES_MAX), None);
        assert_eq!(
            refused(JSON_VALUES_MAX + 1).unwrap().message,
            "the arguments have 100001 JSON values; at most 100000 are allowed"
        );
    }

    #[test]
    fn ten_mebibytes_of_arguments_are_accepted_and_a_byte_more_is_refused() {
        let set = three();
        let of = |bytes: usize| {
            RawJson::from_text(format!(
                "{{\"path\":\"{}\"}}",
                "x".repeat(bytes - "{\"path\":\"\"}".len())
            ))
            .unwrap()
        };

        assert!(set.check_arguments("a", &of(TOOL_INPUT_BYTES_MAX)).is_ok());
        let refused = set
            .check_arguments("a", &of(TOOL_INPUT_BYTES_MAX + 1))
            .err()
            .unwrap();

        assert_eq!(
            (refused.kind, refused.code.as_str()),
            (ToolErrorType::InvalidParameters, "INVALID_PARAMETERS")
        );
        assert_eq!(
            refused.message,
            "the arguments have 10485761 bytes; at most 10485760 are allowed"
        );
    }
}
