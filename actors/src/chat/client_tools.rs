//! Tools that a caller brings with a prompt and runs itself: the model may call them, and the caller
//! sends the results.
//!
//! Pure.

use std::{collections::HashSet, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{ToolChoice, ToolDefinition};
use crate::limits::{CLIENT_TOOLS_BYTES_MAX, CLIENT_TOOLS_MAX};

/// The tools that a caller brings with one prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientTools {
    /// The tools, in the order in which the model is offered them, behind those of the host.
    pub tools: Arc<[ToolDefinition]>,
    /// Whether the model may or must call a tool. It holds for the first model call of the round:
    /// a round that had to call a tool every time would never end.
    #[serde(default, skip_serializing_if = "ToolChoice::is_auto")]
    pub choice: ToolChoice,
}

/// A declaration that no model accepts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("client tool {index}: `{field}` {problem}")]
pub struct ClientToolFault {
    /// The place of the tool in the list, from 0.
    pub index: usize,
    /// The field: `name`, `description` or `input_schema`.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

impl ClientTools {
    /// The tool of that name.
    pub(crate) fn get(&self, name: &str) -> Option<&ToolDefinition> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// Bytes of the declarations, as far as they vary.
    pub(crate) fn bytes(&self) -> usize {
        self.tools.iter().map(bytes_of).sum()
    }

    /// Checks the declarations. `is_taken` knows the names of the host's own tools.
    ///
    /// # Errors
    /// The first fault.
    pub(crate) fn check(&self, is_taken: impl Fn(&str) -> bool) -> Result<(), ClientToolFault> {
        let fault = |index, field, problem: String| {
            Err(ClientToolFault {
                index,
                field,
                problem,
            })
        };
        let mut names = HashSet::new();
        let mut bytes = 0;
        for (index, tool) in self.tools.iter().enumerate() {
            if index >= CLIENT_TOOLS_MAX {
                let problem = format!("is one too many: at most {CLIENT_TOOLS_MAX} are allowed");
                return fault(index, "name", problem);
            }
            bytes += bytes_of(tool);
            if bytes > CLIENT_TOOLS_BYTES_MAX {
                let problem =
                    format!("makes all tools larger than {CLIENT_TOOLS_BYTES_MAX} bytes together");
                return fault(index, "input_schema", problem);
            }
            if !is_tool_name(&tool.name) {
                return fault(index, "name", TOOL_NAME_RULE.to_owned());
            }
            if is_taken(&tool.name) {
                let problem = format!("{:?} is a tool of the host; rename it", tool.name);
                return fault(index, "name", problem);
            }
            if !names.insert(&tool.name) {
                return fault(index, "name", format!("{:?} is given twice", tool.name));
            }
            if !tool.input_schema.is_object() {
                return fault(index, "input_schema", "must be a JSON object".to_owned());
            }
        }
        match &self.choice {
            ToolChoice::Named(name) if !is_tool_name(name) => {
                fault(0, "name", format!("of the tool choice {TOOL_NAME_RULE}"))
            }
            ToolChoice::Named(name) if self.get(name).is_none() && !is_taken(name) => fault(
                0,
                "name",
                format!("of the tool choice, {name:?}, is unknown"),
            ),
            _ => Ok(()),
        }
    }
}

fn bytes_of(tool: &ToolDefinition) -> usize {
    tool.name.len() + tool.description.len() + tool.input_schema.as_str().len()
}

/// What model APIs accept as the name of a tool, in words.
const TOOL_NAME_RULE: &str = "must have 1-64 of A-Z a-z 0-9 _ -";

/// Whether model APIs accept this name of a tool.
pub(crate) fn is_tool_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=64).contains(&name.len()) && name.bytes().all(is_plain)
}

/// What a caller found out for one call of a tool that it brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientToolResult {
    /// The id of the call, from the event `client_tool_call`.
    pub tool_call_id: String,
    /// The text that the model reads.
    pub content: String,
    /// Whether the call failed.
    pub is_error: bool,
}

impl ClientToolResult {
    /// A successful result.
    pub fn new(tool_call_id: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            tool_call_id: tool_call_id.into(),
            content: content.into(),
            is_error: false,
        }
    }

    /// The result of a call that failed.
    pub fn failed(tool_call_id: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            is_error: true,
            ..Self::new(tool_call_id, content)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::RawJson;

    fn tool(name: &str) -> ToolDefinition {
        ToolDefinition {
            name: name.to_owned(),
            description: "Does it.".to_owned(),
            input_schema: RawJson::empty_object(),
        }
    }

    fn checked(tools: Vec<ToolDefinition>, choice: ToolChoice) -> Result<(), (usize, String)> {
        let tools = ClientTools {
            tools: tools.into(),
            choice,
        };
        tools
            .check(|name| name == "host")
            .map_err(|fault| (fault.index, fault.to_string()))
    }

    #[test]
    fn a_declaration_that_no_model_accepts_is_refused_with_its_place_and_field() {
        let auto = ToolChoice::Auto;
        let named = |name: &str| ToolChoice::Named(name.to_owned());
        let many = |count: usize| (0..count).map(|n| tool(&format!("t{n}"))).collect();

        assert_eq!(checked(vec![tool("a"), tool("b")], auto.clone()), Ok(()));
        assert_eq!(checked(many(CLIENT_TOOLS_MAX), auto.clone()), Ok(()));
        assert_eq!(checked(vec![tool("a")], named("host")), Ok(()));
        let no_object = ToolDefinition {
            input_schema: RawJson::from_text("[]").unwrap(),
            ..tool("a")
        };
        let large = ToolDefinition {
            description: "x".repeat(CLIENT_TOOLS_BYTES_MAX),
            ..tool("a")
        };
        for (tools, choice, index, words) in [
            (vec![tool("a"), tool("b c")], auto.clone(), 1, "1-64"),
            (vec![tool("host")], auto.clone(), 0, "a tool of the host"),
            (vec![tool("a"), tool("a")], auto.clone(), 1, "given twice"),
            (vec![no_object], auto.clone(), 0, "must be a JSON object"),
            (vec![large], auto.clone(), 0, "larger than"),
            (
                many(CLIENT_TOOLS_MAX + 1),
                auto,
                CLIENT_TOOLS_MAX,
                "too many",
            ),
            (vec![tool("a")], named("b"), 0, "is unknown"),
        ] {
            let fault = checked(tools, choice).unwrap_err();
            assert!(fault.0 == index && fault.1.contains(words), "{fault:?}");
        }
    }
}
