//! The checks before a tool call, in this order: permission, hooks, size, schema, and the tool's
//! own check. A refused call leaves no entry that says it started.

use std::sync::Arc;

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use crate::{
    chat::{ContentBlock, RawJson, ToolDefinition},
    conversation::{
        round::rules::{CallCheck, CallPolicy, CheckResult, CheckedAhead, ModelLimits, OtherModel},
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
    /// The results of long checks of the last answer, which were made before the decision about it.
    ahead: Mutex<Vec<CheckedAhead>>,
}

/// The digest by which a check that was made ahead is found.
fn digest(what: &[u8; 4], name: &str, text: &str) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(what);
    hash.update((name.len() as u64).to_le_bytes());
    hash.update(name.as_bytes());
    hash.update(text.as_bytes());
    hash.finalize().into()
}

fn call_digest(name: &str, input: &RawJson) -> [u8; 32] {
    digest(b"call", name, input.as_str())
}

fn output_digest(schema: &RawJson, text: &str) -> [u8; 32] {
    digest(b"text", schema.as_str(), text)
}

/// Whether compiling a schema takes long whatever its length: it may have patterns, also under an
/// escape.
fn is_costly(schema: &RawJson) -> bool {
    schema.as_str().contains("pattern") || schema.as_str().contains('\\')
}

/// The text of an answer, as it enters the history: without blocks of blanks.
fn text_of(blocks: &[ContentBlock]) -> String {
    let texts = blocks.iter().filter_map(ContentBlock::as_text);
    texts.filter(|text| !text.trim().is_empty()).collect()
}

impl CallGuard {
    pub(in crate::conversation) fn new(setup: Arc<Setup>, scope: Scope) -> Self {
        Self {
            setup,
            scope,
            ahead: Mutex::default(),
        }
    }

    /// The result of a check that was made ahead. Each is used once.
    fn checked_ahead(&self, digest: impl FnOnce() -> [u8; 32]) -> Option<CheckResult> {
        let mut ahead = self.ahead.lock();
        if ahead.is_empty() {
            return None;
        }
        let digest = digest();
        let at = ahead.iter().position(|checked| checked.digest == digest)?;
        Some(ahead.remove(at).result)
    }

    fn is_long_call(&self, name: &str, input: &RawJson) -> bool {
        // Calls of tools that the caller brought are the caller's to check.
        self.setup.tools.spec(name).is_some_and(|spec| {
            let schema = spec.definition.input_schema.as_str().len();
            schema.saturating_add(input.as_str().len()) > CHECKED_IN_PLACE
        })
    }

    fn is_long_output(schema: &RawJson, text: &str) -> bool {
        let bytes = schema.as_str().len().saturating_add(text.len());
        bytes > CHECKED_IN_PLACE || is_costly(schema)
    }

    /// Checks an answer on this thread. The schema is compiled once the answer has JSON.
    fn check_output_here(&self, schema: &RawJson, text: &str) -> Result<(), String> {
        let mut check = None;
        crate::conversation::json_in(text, |value| {
            if check.is_none() {
                check = Some(self.setup.output_check(schema)?);
            }
            check.as_ref().map_or(Ok(()), |check| check(&value))
        })
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
        let is_long = self.is_long_call(name, input);
        if is_long
            && let Some(CheckResult::Call(checked)) =
                self.checked_ahead(|| call_digest(name, input))
        {
            return checked;
        }
        off_workers(is_long, || self.check_here(name, input))
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
        let is_long = Self::is_long_output(schema, text);
        if is_long
            && let Some(CheckResult::Output(result)) =
                self.checked_ahead(|| output_digest(schema, text))
        {
            return result;
        }
        off_workers(is_long, || self.check_output_here(schema, text))
    }

    fn is_long_check(&self, output: Option<&RawJson>, blocks: &[ContentBlock]) -> bool {
        let is_long_call = |block: &ContentBlock| match block {
            ContentBlock::ToolUse(call) => self.is_long_call(&call.name, &call.input),
            _ => false,
        };
        // Hooks see a call when it is decided about.
        self.setup.hooks.is_empty() && blocks.iter().any(is_long_call)
            || output.is_some_and(|schema| Self::is_long_output(schema, &text_of(blocks)))
    }

    fn check_ahead(&self, output: Option<&RawJson>, blocks: &[ContentBlock]) -> Vec<CheckedAhead> {
        let mut ahead = Vec::new();
        let mut has_calls = false;
        for block in blocks {
            let ContentBlock::ToolUse(call) = block else {
                continue;
            };
            has_calls = true;
            if self.setup.hooks.is_empty() && self.is_long_call(&call.name, &call.input) {
                ahead.push(CheckedAhead {
                    digest: call_digest(&call.name, &call.input),
                    result: CheckResult::Call(self.check_here(&call.name, &call.input)),
                });
            }
        }
        if let Some(schema) = output.filter(|_| !has_calls) {
            let text = text_of(blocks);
            ahead.push(CheckedAhead {
                digest: output_digest(schema, &text),
                result: CheckResult::Output(self.check_output_here(schema, &text)),
            });
        }
        ahead
    }

    fn use_checked(&self, checked: Vec<CheckedAhead>) {
        *self.ahead.lock() = checked;
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
