//! The checks before a tool call, in this order: permission, hooks, size, schema, and the tool's
//! own check. A refused call leaves no entry that says it started.

use std::sync::Arc;

use crate::{
    chat::{RawJson, ToolDefinition},
    conversation::{
        round::rules::{CallCheck, CallPolicy, ModelLimits, OtherModel},
        setup::Setup,
    },
    ids::Scope,
    journal::ToolExecutionResult,
    ports::{Approval, Hook, Review, Tool, ToolSpec, Verdict},
    task::off_workers,
    tool::ToolError,
};

/// Bytes of a schema and of a value that are checked on the worker thread. Most take microseconds.
const CHECKED_IN_PLACE: usize = 4 * 1024;

/// Checks the tool calls of one conversation.
pub(in crate::conversation) struct CallGuard {
    setup: Arc<Setup>,
    scope: Scope,
}

impl CallGuard {
    pub(in crate::conversation) fn new(setup: Arc<Setup>, scope: Scope) -> Self {
        Self { setup, scope }
    }

    /// Asks the hooks before a call. Returns the arguments if a hook replaced them.
    fn hooked(&self, spec: &ToolSpec, input: &RawJson) -> Result<Option<RawJson>, ToolError> {
        let mut replaced: Option<RawJson> = None;
        for hook in self.setup.hooks.iter() {
            match hook.before_tool(&self.scope, spec, replaced.as_ref().unwrap_or(input)) {
                Verdict::Allow => {}
                Verdict::Deny(why) => return Err(ToolError::denied(why).not_started()),
                Verdict::Replace(other) => replaced = Some(other),
            }
        }
        Ok(replaced)
    }

    /// The outcome of a call after all hooks have seen it.
    fn reviewed(
        &self,
        spec: &ToolSpec,
        outcome: ToolExecutionResult,
        tool_call_id: &str,
    ) -> ToolExecutionResult {
        let review = |outcome: ToolExecutionResult, hook: &Arc<dyn Hook>| match hook.after_tool(
            &self.scope,
            spec,
            &outcome,
        ) {
            Review::Keep => outcome,
            Review::Replace(observation) => ToolExecutionResult {
                observation,
                ..outcome
            },
            Review::Withhold(why) => {
                let error = ToolExecutionResult::error(&ToolError::denied(why), tool_call_id);
                ToolExecutionResult {
                    duration_ms: outcome.duration_ms,
                    retry_count: outcome.retry_count,
                    ..error
                }
            }
        };
        self.setup.hooks.iter().fold(outcome, review)
    }

    fn try_check(&self, name: &str, input: &RawJson) -> Result<CallCheck, ToolError> {
        let tools = &self.setup.tools;
        let (Some(tool), Some(spec)) = (tools.get(name), tools.spec(name)) else {
            return Err(tools.unknown(name));
        };
        if let Some(error) = self.setup.resources.permissions.refusal(spec) {
            return Err(error);
        }
        let replaced = self.hooked(spec, input)?;
        let given = replaced.as_ref().unwrap_or(input);
        let checked = tools.check_arguments(name, given)?;
        let used = checked.input.or(replaced).filter(|other| other != input);
        let used_input = used.as_ref().unwrap_or(input);
        Ok(CallCheck::Ready {
            spec: spec.clone(),
            pattern: pattern(tool.as_ref(), spec, used_input),
            input: used,
            level: checked.level,
        })
    }
}

/// The pattern of a call that needs approval.
fn pattern(tool: &dyn Tool, spec: &ToolSpec, input: &RawJson) -> Option<String> {
    match spec.approval {
        Approval::Never => None,
        Approval::ByMode if tool.only_reads(input) => None,
        Approval::ByMode => Some(format!("{}:{}", spec.name(), tool.approval_pattern(input))),
    }
}

/// A call that does not run. Calls that run log their failures at their end.
fn refused(name: &str, error: ToolError) -> CallCheck {
    let why: String = error.message.chars().take(200).collect();
    tracing::debug!(
        tool = name,
        error = error.kind.as_str(),
        "the tool call was refused: {why}"
    );
    CallCheck::Refused(error)
}

impl CallGuard {
    /// Checks a call on this thread.
    pub(in crate::conversation) fn check_here(&self, name: &str, input: &RawJson) -> CallCheck {
        let checked = self.try_check(name, input);
        checked.unwrap_or_else(|error| refused(name, error))
    }
}

impl CallPolicy for CallGuard {
    fn check_call(&self, name: &str, input: &RawJson) -> CallCheck {
        let spec = self.setup.tools.spec(name);
        let schema = spec.map_or(0, |spec| spec.definition.input_schema.as_str().len());
        let bytes = schema.saturating_add(input.as_str().len());
        off_workers(bytes > CHECKED_IN_PLACE, || self.check_here(name, input))
    }

    fn check_client_call(&self, tool: &ToolDefinition, input: &RawJson) -> CallCheck {
        let spec = ToolSpec::client(tool);
        match self.hooked(&spec, input) {
            Ok(replaced) => CallCheck::client(spec, replaced),
            Err(error) => refused(&tool.name, error),
        }
    }

    fn review_client(
        &self,
        tool: &ToolDefinition,
        outcome: ToolExecutionResult,
        tool_call_id: &str,
    ) -> ToolExecutionResult {
        self.reviewed(&ToolSpec::client(tool), outcome, tool_call_id)
    }

    fn pattern(&self, name: &str, input: &RawJson) -> Option<String> {
        let tools = &self.setup.tools;
        pattern(tools.get(name)?.as_ref(), tools.spec(name)?, input)
    }

    fn spec(&self, name: &str) -> Option<Arc<ToolSpec>> {
        self.setup.tools.spec(name).cloned()
    }

    fn limits(&self, model: OtherModel<'_>) -> Option<ModelLimits> {
        self.setup.limits_of(model)
    }

    fn check_output(&self, schema: &RawJson, text: &str) -> Result<(), String> {
        let bytes = schema.as_str().len().saturating_add(text.len());
        off_workers(bytes > CHECKED_IN_PLACE, || {
            let check = self.setup.output_check(schema)?;
            crate::conversation::json_in(text, |value| check(&value))
        })
    }

    fn review(
        &self,
        name: &str,
        outcome: ToolExecutionResult,
        tool_call_id: &str,
    ) -> ToolExecutionResult {
        match self.setup.tools.spec(name) {
            Some(spec) => self.reviewed(spec, outcome, tool_call_id),
            None => outcome,
        }
    }
}
