//! The checks before a tool call, in this order: permission, hooks, size, schema, and the tool's
//! own check. A refused call leaves no entry that says it started.

use std::sync::Arc;

use crate::{
    chat::RawJson,
    conversation::{
        round::rules::{CallCheck, CallPolicy, ModelLimits, OtherModel},
        setup::Setup,
    },
    ids::Scope,
    journal::ToolExecutionResult,
    ports::{Approval, Review, ToolSpec, Verdict},
    tool::ToolError,
};

/// Checks the tool calls of one conversation.
pub(in crate::conversation) struct CallGuard {
    setup: Arc<Setup>,
    scope: Scope,
}

impl CallGuard {
    pub(in crate::conversation) fn new(setup: Arc<Setup>, scope: Scope) -> Self {
        Self { setup, scope }
    }

    fn try_check(&self, name: &str, input: &RawJson) -> Result<CallCheck, ToolError> {
        let tools = &self.setup.tools;
        let (Some(tool), Some(spec)) = (tools.get(name), tools.spec(name)) else {
            return Err(tools.unknown(name));
        };
        if let Some(error) = self.setup.resources.permissions.refusal(spec) {
            return Err(error);
        }
        let mut replaced: Option<RawJson> = None;
        for hook in self.setup.hooks.iter() {
            match hook.before_tool(&self.scope, spec, replaced.as_ref().unwrap_or(input)) {
                Verdict::Allow => {}
                Verdict::Deny(why) => return Err(ToolError::denied(why).not_started()),
                Verdict::Replace(other) => replaced = Some(other),
            }
        }
        let checked = tools.check_arguments(name, replaced.as_ref().unwrap_or(input))?;
        let used = checked.input.or(replaced).filter(|other| other != input);
        let used_input = used.as_ref().unwrap_or(input);
        let pattern = match spec.approval {
            Approval::Never => None,
            Approval::ByMode if tool.only_reads(used_input) => None,
            Approval::ByMode => Some(format!("{name}:{}", tool.approval_pattern(used_input))),
        };
        Ok(CallCheck::Ready {
            spec: spec.clone(),
            input: used,
            pattern,
            level: checked.level,
        })
    }
}

impl CallPolicy for CallGuard {
    fn check_call(&self, name: &str, input: &RawJson) -> CallCheck {
        self.try_check(name, input)
            .unwrap_or_else(CallCheck::Refused)
    }

    fn spec(&self, name: &str) -> Option<Arc<ToolSpec>> {
        self.setup.tools.spec(name).cloned()
    }

    fn limits(&self, model: OtherModel<'_>) -> Option<ModelLimits> {
        self.setup.limits_of(model)
    }

    fn check_output(&self, schema: &RawJson, text: &str) -> Result<(), String> {
        let check = self.setup.output_check(schema)?;
        crate::conversation::json_in(text, |value| check(&value))
    }

    fn review(
        &self,
        name: &str,
        outcome: ToolExecutionResult,
        tool_call_id: &str,
    ) -> ToolExecutionResult {
        let Some(spec) = self.setup.tools.spec(name) else {
            return outcome;
        };
        self.setup.hooks.iter().fold(outcome, |outcome, hook| {
            match hook.after_tool(&self.scope, spec, &outcome) {
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
            }
        })
    }
}
