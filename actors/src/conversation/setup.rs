//! What a conversation is made of: its model, tools, rules and the ports it uses. Shared by all that are configured alike.

use std::{collections::HashMap, sync::Arc};

use super::volatile::{ApprovalMode, Judge, Judgement, Recovery, Rules};
use crate::{
    chat::{MessageList, RawJson},
    ids::Scope,
    limits::{Limits, TOOL_INPUT_BYTES_MAX},
    metrics_collector::Counters,
    model_gateway::ModelGatewayRef,
    ports::{
        Clock, Effort, Entropy, EventStore, Hook, ModelRequest, SchemaCheck, Schemas, SessionBackend, Tool, ToolChoice, ToolDefinition,
        ToolError, ToolErrorType, ToolSpec, Verdict,
    },
    tool_executor::Lent,
};

/// The ports that conversations use.
#[derive(Clone)]
pub struct Ports {
    /// Journals.
    pub sessions: Arc<dyn SessionBackend>,
    /// Events.
    pub events: Arc<dyn EventStore>,
    /// Wall time.
    pub clock: Arc<dyn Clock>,
    /// Chance.
    pub entropy: Arc<dyn Entropy>,
    /// Counters.
    pub counters: Arc<Counters>,
}

/// How a conversation behaves.
#[derive(Clone)]
pub struct Setup {
    /// The door to its model.
    pub gateway: ModelGatewayRef,
    /// Its model.
    pub model: Arc<str>,
    /// Its system prompt.
    pub system: Option<Arc<str>>,
    /// Longest answer, in tokens.
    pub max_tokens: u32,
    /// How hard to think.
    pub effort: Option<Effort>,
    /// Its tools.
    pub tools: Arc<Toolset>,
    /// Verdicts before tool calls.
    pub hooks: Arc<[Arc<dyn Hook>]>,
    /// Whether tools that change something may run.
    pub approval: ApprovalMode,
    /// Whether somebody can be asked.
    pub has_approver: bool,
    /// What becomes of a round that was open when its host stopped.
    pub recovery: Recovery,
    /// What it lends to its tools.
    pub lent: Lent,
    /// Bounds.
    pub limits: Arc<Limits>,
}

impl Setup {
    /// The rules of one conversation.
    pub(super) fn rules(self: &Arc<Self>, scope: &Scope) -> Rules {
        Rules {
            judge: Arc::new(Door { setup: self.clone(), scope: scope.clone() }),
            approval: self.approval,
            has_approver: self.has_approver,
            tool_iterations_max: self.limits.tool_iterations_max,
            parallel_tools_max: self.limits.parallel_tools_max,
            inbox_prompts_max: self.limits.inbox_prompts_max,
        }
    }

    /// Judges a call as a conversation would: hooks, then the tools.
    pub fn judge(self: &Arc<Self>, scope: &Scope, name: &str, input: &RawJson) -> Judgement {
        Door { setup: self.clone(), scope: scope.clone() }.judge(name, input)
    }

    /// The request of the next model call.
    pub fn request(&self, messages: MessageList) -> ModelRequest {
        ModelRequest {
            model: self.model.clone(),
            system: self.system.clone(),
            messages,
            tools: self.tools.definitions.clone(),
            tool_choice: ToolChoice::Auto,
            max_tokens: self.max_tokens,
            stop: Arc::from([]),
            effort: self.effort,
            output_schema: None,
            cache: true,
        }
    }
}

/// Tools by name, in a fixed order (REQUIREMENTS G-04: the order is part of the cacheable prefix).
pub struct Toolset {
    by_name: HashMap<String, Known>,
    definitions: Arc<[ToolDefinition]>,
}

/// A tool, what it declares, and what checks its arguments.
#[derive(Clone)]
struct Known {
    tool: Arc<dyn Tool>,
    spec: Arc<ToolSpec>,
    schema: Option<Arc<dyn SchemaCheck>>,
}

/// Says why a set of tools cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolsetError {
    /// Two tools have the same name.
    #[error("two tools are named {0:?}; rename one of them")]
    SameName(String),
    /// A name that model APIs refuse.
    #[error("{0:?} is no tool name: use 1-64 of A-Z a-z 0-9 _ -")]
    BadName(String),
    /// Its arguments cannot be checked.
    #[error("the schema of the tool {name:?} cannot be used: {why}")]
    BadSchema {
        /** Which. */
        name: String,
        /** What is wrong with it. */
        why: String,
    },
}

impl Toolset {
    /// Collects tools. With `schemas` the arguments of every call are checked against the tool's schema.
    ///
    /// # Errors
    /// [`ToolsetError`] for names that clash or that no model API takes, and for schemas that are none.
    pub fn new(tools: impl IntoIterator<Item = Arc<dyn Tool>>, schemas: Option<&dyn Schemas>) -> Result<Self, ToolsetError> {
        let mut by_name = HashMap::new();
        let mut definitions = Vec::new();
        for tool in tools {
            let spec = Arc::new(tool.spec().clone());
            let name = spec.name().to_owned();
            let fits = (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
            if !fits {
                return Err(ToolsetError::BadName(name));
            }
            let compiled = schemas.map(|schemas| schemas.compile(&name, &spec.definition.input_schema)).transpose();
            let schema = compiled.map_err(|why| ToolsetError::BadSchema { name: name.clone(), why })?;
            definitions.push(spec.definition.clone());
            if by_name.insert(name.clone(), Known { tool, spec, schema }).is_some() {
                return Err(ToolsetError::SameName(name));
            }
        }
        Ok(Self { by_name, definitions: definitions.into() })
    }

    /// What models are told, in order.
    pub fn definitions(&self) -> &Arc<[ToolDefinition]> {
        &self.definitions
    }

    /// A tool by name.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.by_name.get(name).map(|known| &known.tool)
    }

    /// What the tools declare, in order.
    pub fn specs(&self) -> impl Iterator<Item = &Arc<ToolSpec>> {
        self.definitions.iter().filter_map(|definition| self.by_name.get(&definition.name).map(|known| &known.spec))
    }

    /// Judges a call by name and arguments: the tool is there, the input is not too large and fits (REQUIREMENTS R-13, T-11).
    pub fn judge(&self, name: &str, input: &RawJson) -> Judgement {
        let Some(Known { tool, spec, .. }) = self.by_name.get(name) else {
            let mut known: Vec<&str> = self.by_name.keys().map(String::as_str).collect();
            known.sort_unstable();
            let message = format!("there is no tool named {name:?}; the tools are: {}", known.join(", "));
            return Judgement::Refused(ToolError::not_found(message).not_started());
        };
        if input.as_str().len() > TOOL_INPUT_BYTES_MAX {
            let message = format!("the arguments have {} bytes; at most {TOOL_INPUT_BYTES_MAX} are allowed", input.as_str().len());
            return Judgement::Refused(ToolError::invalid(message));
        }
        match tool.check(input) {
            Ok(()) => Judgement::Ready { spec: spec.clone(), input: None },
            Err(error) => Judgement::Refused(error),
        }
    }
}

/// Judges the calls of one conversation: hooks first, then its tools.
struct Door {
    setup: Arc<Setup>,
    scope: Scope,
}

impl Judge for Door {
    fn judge(&self, name: &str, input: &RawJson) -> Judgement {
        let tools = &self.setup.tools;
        let Some(tool) = tools.get(name) else { return tools.judge(name, input) };
        let mut replaced: Option<RawJson> = None;
        for hook in self.setup.hooks.iter() {
            match hook.before_tool(&self.scope, tool.spec(), replaced.as_ref().unwrap_or(input)) {
                Verdict::Allow => {}
                Verdict::Deny(why) => return Judgement::Refused(ToolError::new(ToolErrorType::PermissionDenied, why).not_started()),
                Verdict::Replace(other) => replaced = Some(other),
            }
        }
        match tools.judge(name, replaced.as_ref().unwrap_or(input)) {
            Judgement::Ready { spec, .. } => Judgement::Ready { spec, input: replaced },
            refused @ Judgement::Refused(_) => refused,
        }
    }
}
