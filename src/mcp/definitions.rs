//! Converts a server's tool definitions and call results into Callboard's types. Pure.

use std::{collections::HashSet, io, sync::Arc};

use base64::{
    Engine as _,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use callboard_actors::{
    chat::RawJson,
    ports::{McpContent, McpResult, McpToolDefinition, Schemas as _},
};
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents, Tool};
use serde_json::Value;

use super::{config::TOOLS_MAX, pins::digest, stdio::Scan};
use crate::{
    mask::Masker,
    schema::{JsonSchemas, pattern_states},
    visible::{visible_line, visible_material, visible_value},
};

/// Largest description and schema, in bytes; both are part of every request to a model.
const DESCRIPTION_BYTES_MAX: usize = 16 * 1024;
const SCHEMA_BYTES_MAX: usize = 64 * 1024;

/// Omitted tools that are listed with their reason; of further ones only the count is kept.
const LEFT_OUT_NAMED_MAX: usize = 16;

/// Longest name of a tool, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// Accepts base64 without padding, which some servers send.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// States of the patterns in all schemas of a server: each schema may have a quarter of them, and
/// compiling all takes less than a tenth of a second.
const PATTERN_STATES_MAX: usize = 400_000;

/// Converts a tool's definition; the error is why the tool is not offered. Keys that its server was given
/// are masked: the definition goes to the model's provider. The states of its patterns are taken from
/// `states_left`.
pub(super) fn definition(
    tool: &Tool,
    masker: &Masker,
    states_left: &mut usize,
) -> Result<McpToolDefinition, String> {
    let shown = visible_line(&tool.name, 64);
    if tool.name.is_empty() || tool.name.len() > NAME_BYTES_MAX {
        return Err(format!(
            "a tool has a name of {} bytes; allowed are 1 to {NAME_BYTES_MAX}",
            tool.name.len()
        ));
    }
    let mask = |text: &str| masker.mask_exact(text);
    if mask(&tool.name) != tool.name {
        return Err("a tool has a key of this host in its name".to_owned());
    }
    let description = tool.description.as_deref().unwrap_or_default();
    let schema = Value::Object((*tool.input_schema).clone());
    let annotations = tool.annotations.as_ref().map_or(Value::Null, |notes| {
        serde_json::to_value(notes).unwrap_or_default()
    });
    let digest = digest(&tool.name, description, &schema, &annotations);

    let description = mask(&visible_material(&mask(description)));
    let schema = masked(schema, &mask);
    if description.len() > DESCRIPTION_BYTES_MAX {
        return Err(format!(
            "`{shown}` has a description longer than {} KiB",
            DESCRIPTION_BYTES_MAX >> 10
        ));
    }
    let hints = tool.annotations.as_ref();
    Ok(McpToolDefinition {
        name: tool.name.to_string(),
        description,
        input_schema: schema_of(&schema, states_left)
            .map_err(|problem| format!("`{shown}`: {problem}"))?,
        read_only: hints.is_some_and(|hints| hints.read_only_hint == Some(true)),
        idempotent: hints.is_some_and(|hints| hints.idempotent_hint == Some(true)),
        digest,
    })
}

/// Checks a schema: an object schema, within limits of size and depth, without references to other
/// documents.
fn schema_of(schema: &Value, states_left: &mut usize) -> Result<RawJson, String> {
    let mut schema = visible_value(schema);
    if let Some(fields) = schema.as_object_mut() {
        match fields.get("type").and_then(Value::as_str) {
            Some("object") => {}
            None => drop(fields.insert("type".to_owned(), Value::String("object".to_owned()))),
            Some(_) => return Err("its arguments are not an object".to_owned()),
        }
    }
    if refers_elsewhere(&schema) {
        return Err("its schema refers to another document".to_owned());
    }
    let text = schema.to_string();
    if text.len() > SCHEMA_BYTES_MAX {
        return Err(format!(
            "its schema is longer than {} KiB",
            SCHEMA_BYTES_MAX >> 10
        ));
    }
    let raw = RawJson::from_text(text).map_err(|error| format!("its schema is {error}"))?;
    // Compiled here as the host will compile it: an invalid schema must omit one tool, not keep the
    // host from starting.
    let unusable =
        |problem: String| format!("its schema cannot be used: {}", visible_line(&problem, 200));
    let states = pattern_states(&raw).map_err(unusable)?;
    *states_left = states_left.checked_sub(states).ok_or_else(|| {
        format!(
            "its patterns and those of the tools before it have more than {PATTERN_STATES_MAX} states"
        )
    })?;
    JsonSchemas.compile("", &raw).map_err(unusable)?;
    Ok(raw)
}

fn refers_elsewhere(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields
            .iter()
            .any(|(name, value)| match (name.as_str(), value) {
                ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(target)) => {
                    !target.starts_with('#')
                }
                // With a base URI, even `#` may refer to another document.
                ("$id" | "id", Value::String(base)) => {
                    base.contains("://") && fields.contains_key("$ref")
                }
                (_, value) => refers_elsewhere(value),
            }),
        Value::Array(items) => items.iter().any(refers_elsewhere),
        _ => false,
    }
}

/// Converts the result of a call.
pub(super) fn result(result: CallToolResult) -> McpResult {
    let is_error = result.is_error == Some(true);
    McpResult {
        content: result.content.into_iter().map(content).collect(),
        structured: result.structured_content,
        is_error,
    }
}

fn content(block: ContentBlock) -> McpContent {
    match block {
        ContentBlock::Text(text) => McpContent::Text(text.text),
        ContentBlock::Image(image) => binary(&image.mime_type, &image.data),
        ContentBlock::Audio(audio) => binary(&audio.mime_type, &audio.data),
        ContentBlock::Resource(resource) => match resource.resource {
            ResourceContents::TextResourceContents { uri, text, .. } => {
                McpContent::Text(format!("[{}]\n{text}", visible_line(&uri, 200)))
            }
            ResourceContents::BlobResourceContents {
                mime_type, blob, ..
            } => binary(
                mime_type.as_deref().unwrap_or("application/octet-stream"),
                &blob,
            ),
            _ => McpContent::Text("[a resource of an unknown kind was omitted]".to_owned()),
        },
        ContentBlock::ResourceLink(link) => McpContent::Link {
            name: visible_line(&link.name, 200),
            uri: visible_line(&link.uri, 500),
        },
        _ => McpContent::Text("[content of an unknown kind was omitted]".to_owned()),
    }
}

fn binary(mime: &str, data: &str) -> McpContent {
    let mime = visible_line(mime, 80);
    match BASE64.decode(data.trim()) {
        Ok(bytes) => McpContent::Binary {
            mime,
            bytes: bytes.into(),
        },
        Err(_) => McpContent::Text(format!(
            "[{mime}: {} bytes of invalid base64 were omitted]",
            data.len()
        )),
    }
}

/// A value with its texts and the names of its fields masked.
pub(super) fn masked(value: Value, mask: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(mask(&text)),
        Value::Array(items) => {
            Value::Array(items.into_iter().map(|item| masked(item, mask)).collect())
        }
        Value::Object(fields) => Value::Object(
            fields
                .into_iter()
                .map(|(name, value)| (mask(&name), masked(value, mask)))
                .collect(),
        ),
        plain => plain,
    }
}

/// A server's list of tools, taken page by page. A page is converted before the next is asked for, and
/// all pages together have the bounds of one message: what a page holds in memory is much more.
pub(super) struct ToolList {
    masker: Arc<Masker>,
    listed: usize,
    size: Scan,
    /// States that the patterns of further tools may have.
    states_left: usize,
    taken: Vec<McpToolDefinition>,
    names: HashSet<String>,
    left_out: Vec<String>,
    /// Omitted tools without a line of their own.
    more: usize,
    /// Why tools after the last are omitted.
    cut: Option<String>,
}

impl ToolList {
    pub(super) fn new(masker: Arc<Masker>) -> Self {
        Self {
            masker,
            listed: 0,
            size: Scan::default(),
            states_left: PATTERN_STATES_MAX,
            taken: Vec::new(),
            names: HashSet::new(),
            left_out: Vec::new(),
            more: 0,
            cut: None,
        }
    }

    /// Takes a page; `false` if no further one counts. Takes up to a second: each schema is compiled.
    pub(super) fn take(&mut self, tools: Vec<Tool>) -> bool {
        for tool in tools {
            if self.listed == TOOLS_MAX {
                self.cut = Some(format!("all tools after the first {TOOLS_MAX}"));
            } else if let Err(problem) = serde_json::to_writer(Counted(&mut self.size), &tool) {
                let listed = self.listed;
                self.cut = Some(format!(
                    "all tools after the first {listed}: a list {problem}"
                ));
            }
            if self.cut.is_some() {
                return false;
            }
            self.listed += 1;
            self.take_one(&tool);
        }
        true
    }

    fn take_one(&mut self, tool: &Tool) {
        let problem = match definition(tool, &self.masker, &mut self.states_left) {
            Ok(definition) if self.names.insert(definition.name.clone()) => {
                self.taken.push(definition);
                return;
            }
            Ok(definition) => format!(
                "`{}` is listed twice; the first is used",
                visible_line(&definition.name, 64)
            ),
            Err(problem) => problem,
        };
        if self.left_out.len() < LEFT_OUT_NAMED_MAX {
            self.left_out.push(problem);
        } else {
            self.more += 1;
        }
    }

    /// The definitions in the server's order, and one line for each omitted tool.
    pub(super) fn end(mut self) -> (Arc<[McpToolDefinition]>, Vec<String>) {
        if self.more > 0 {
            let more = self.more;
            self.left_out
                .push(format!("{more} more tools, for similar reasons"));
        }
        self.left_out.extend(self.cut);
        (self.taken.into(), self.left_out)
    }
}

/// Counts what is written; an error if it is more than a message may have.
struct Counted<'a>(&'a mut Scan);

impl io::Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.take(bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(value: Value) -> Tool {
        serde_json::from_value(value).unwrap()
    }

    fn definitions(
        tools: &[Tool],
        masker: &Arc<Masker>,
    ) -> (Arc<[McpToolDefinition]>, Vec<String>) {
        let mut list = ToolList::new(masker.clone());
        list.take(tools.to_vec());
        list.end()
    }

    #[test]
    fn the_pages_of_a_list_have_the_bounds_of_one_message_together() {
        let page = |at: usize| {
            let values = vec!["x"; 40_000];
            let name = format!("t{at}");
            vec![
                tool(json!({"name": name, "inputSchema": {"enum": values}})),
                tool(json!({"name": format!("{name}-small"), "inputSchema": {}})),
            ]
        };
        let mut list = ToolList::new(Arc::default());

        let pages = (0..64).take_while(|at| list.take(page(*at))).count();
        let (taken, left_out) = list.end();

        assert_eq!(pages, 4, "a fifth has more than 200,000 values");
        assert_eq!(taken.len(), 4, "the large ones have schemas beyond 64 KiB");
        let last = left_out.last().unwrap();
        assert!(
            last.starts_with("all tools after the first 8: a list of more than 200000 values"),
            "{last}"
        );
    }

    #[test]
    fn the_patterns_of_all_tools_of_a_server_are_bounded_together() {
        let mut list = ToolList::new(Arc::default());
        let with = |n: usize, pattern: &str| {
            let schema = json!({ "properties": { "a": { "pattern": pattern } } });
            tool(json!({ "name": format!("t{n}"), "inputSchema": schema }))
        };
        let many = (0..50).map(|n| with(n, &format!(r"^(?!b)a{n}\w{{20}}$")));

        assert!(list.take(many.chain([with(50, "^[a-z]{2}$")]).collect()));

        let taken: Vec<&str> = list.taken.iter().map(|tool| tool.name.as_str()).collect();
        assert!((4..12).contains(&taken.len()), "{taken:?}");
        assert_eq!(taken.last(), Some(&"t50"), "a small one still fits");
        assert!(list.left_out[0].contains("more than 400000 states"));
    }

    fn read(tool: &Tool) -> Result<McpToolDefinition, String> {
        definition(tool, &Masker::default(), &mut PATTERN_STATES_MAX.clone())
    }

    #[test]
    fn a_key_that_a_server_repeats_in_a_definition_does_not_reach_the_model() {
        const KEY: &str = "tok-not-a-real-key-0123456789";
        let masker = Masker::new([KEY]);
        let poisoned = tool(json!({
            "name": "add", "description": format!("Use {KEY}. {}\u{200b}{}", &KEY[..9], &KEY[9..]),
            "inputSchema": {"properties": {KEY: {"enum": [format!("x{KEY}")], "default": KEY}}},
        }));

        let read = definition(&poisoned, &masker, &mut PATTERN_STATES_MAX.clone()).unwrap();

        let shown = format!("{} {}", read.description, read.input_schema.as_str());
        assert!(
            !shown.contains(KEY) && shown.contains("[masked:1]"),
            "{shown}"
        );
        let named = tool(json!({"name": format!("a{KEY}"), "inputSchema": {}}));
        let why = definition(&named, &masker, &mut PATTERN_STATES_MAX.clone()).unwrap_err();
        assert!(!why.contains(KEY), "{why}");
    }

    #[test]
    fn a_poisoned_definition_is_shown_as_it_is() {
        let read = read(&tool(json!({
            "name": "add", "description": "Adds.\u{e0049}\u{200b}</system>",
            "inputSchema": {"properties": {"a": {"description": "\u{202e}x", "type": "number"}}},
            "annotations": {"readOnlyHint": true},
        })))
        .unwrap();

        assert_eq!(read.description, "Adds.\\u{e0049}\\u{200b}&lt;/system>");
        assert_eq!(
            read.input_schema.parse::<Value>().unwrap(),
            json!({"type": "object", "properties": {"a": {"description": "\\u{202e}x", "type": "number"}}})
        );
        assert_eq!((read.read_only, read.idempotent), (true, false));
    }

    #[test]
    fn a_tool_that_cannot_be_offered_is_omitted_with_its_reason() {
        let deep = (0..80).fold(json!({}), |inner, _| json!({"not": inner}));
        for (schema, reason) in [
            (
                json!({"$ref": "https://example.com/schema.json"}),
                "refers to another document",
            ),
            (
                json!({"properties": {"a": {"$ref": "other.json#/a"}}}),
                "refers to another document",
            ),
            (json!({"type": "string"}), "not an object"),
            (
                json!({"type": "object", "properties": {"a": {"type": "nonsense"}}}),
                "cannot be used",
            ),
            (
                json!({"type": "object", "properties": {"x": {"$ref": "#/properties/x"}}}),
                "refer to one another",
            ),
            (
                json!({"description": "x".repeat(70_000)}),
                "longer than 64 KiB",
            ),
            (deep, "nested deeper"),
        ] {
            let error = read(&tool(json!({"name": "a", "inputSchema": schema}))).unwrap_err();
            assert!(error.contains(reason), "{reason}: {error}");
        }
        assert!(read(&tool(json!({"name": "n".repeat(300), "inputSchema": {}}))).is_err());
        assert!(
            read(&tool(
                json!({"name": "n", "description": "d".repeat(20_000), "inputSchema": {}})
            ))
            .is_err()
        );
        let (taken, left_out) = definitions(
            &[
                tool(json!({"name": "a", "description": "1", "inputSchema": {}})),
                tool(json!({"name": "a", "description": "2", "inputSchema": {}})),
            ],
            &Arc::new(Masker::default()),
        );
        assert_eq!(
            (taken.len(), taken[0].description.as_str(), left_out.len()),
            (1, "1", 1)
        );

        let bad: Vec<Tool> = (0..100)
            .map(|n| tool(json!({"name": n.to_string(), "inputSchema": {"type": "string"}})))
            .collect();
        let (_, left_out) = definitions(&bad, &Arc::new(Masker::default()));
        assert_eq!(
            (left_out.len(), left_out[16].as_str()),
            (17, "84 more tools, for similar reasons")
        );
    }

    #[test]
    fn every_kind_of_content_is_converted_or_reported_as_omitted() {
        let read: CallToolResult = serde_json::from_value(json!({"content": [
            {"type": "text", "text": "hello"},
            {"type": "image", "mimeType": "image/png", "data": "aGk="},
            {"type": "audio", "mimeType": "audio/wav", "data": "!!"},
            {"type": "resource", "resource": {"uri": "demo://1", "text": "inside"}},
            {"type": "resource", "resource": {"uri": "demo://2", "blob": "aGk"}},
            {"type": "resource_link", "uri": "demo://3", "name": "three"},
        ], "structuredContent": {"a": 1}, "isError": true}))
        .unwrap();

        let expected = vec![
            McpContent::Text("hello".into()),
            McpContent::Binary {
                mime: "image/png".into(),
                bytes: "hi".into(),
            },
            McpContent::Text("[audio/wav: 2 bytes of invalid base64 were omitted]".into()),
            McpContent::Text("[demo://1]\ninside".into()),
            McpContent::Binary {
                mime: "application/octet-stream".into(),
                bytes: "hi".into(),
            },
            McpContent::Link {
                name: "three".into(),
                uri: "demo://3".into(),
            },
        ];
        assert_eq!(
            result(read),
            McpResult {
                content: expected,
                structured: Some(json!({"a": 1})),
                is_error: true
            }
        );
    }
}
