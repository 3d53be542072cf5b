//! The rules behind a conversation's decisions: which tools may run, the limits of a round, and the
//! size of the context.
//!
//! Pure.

use std::{fmt, sync::Arc};

use crate::{
    chat::{ClientTools, ContentBlock, ModelParameters, RawJson, ToolDefinition},
    compactor::RequestBytes,
    journal::{Durable, ToolExecutionResult},
    limits::BYTES_A_TOKEN,
    policy::Pricing,
    ports::ToolSpec,
    skill::{SkillIndex, SkillPolicy},
    tokens::WindowUse,
    tool::{OutputLevel, ToolError},
};

/// Whether tools that change something may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ApprovalMode {
    /// Only after a person approved the call.
    Ask,
    /// No: such calls are refused.
    #[default]
    Deny,
    /// Yes, without approval.
    Auto,
}

/// What happens at activation to a round that was open when its host stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recovery {
    /// The round continues.
    #[default]
    Resume,
    /// The round ends as interrupted.
    Close,
}

/// The result of checking a tool call, before any entry about it is written.
#[derive(Debug, Clone, PartialEq)]
pub enum CallCheck {
    /// The call may run.
    Ready {
        /// The declaration of the tool.
        spec: Arc<ToolSpec>,
        /// The arguments to use if they are not the model's: replaced by a hook, or normalized.
        input: Option<RawJson>,
        /// The pattern of calls that "always allow" covers; `None` if the call needs no approval.
        pattern: Option<String>,
        /// The output level that the call asks for; `None` if it asks for none.
        level: Option<OutputLevel>,
    },
    /// The call must not run: unknown tool, invalid arguments, or refused by a hook.
    Refused(ToolError),
}

impl CallCheck {
    /// A call that the caller runs, with `input` if it is not the model's.
    pub(in crate::conversation) fn client(spec: ToolSpec, input: Option<RawJson>) -> Self {
        Self::Ready {
            spec: Arc::new(spec),
            input,
            pattern: None,
            level: None,
        }
    }
}

/// The result of a long check that was made before the decision about the answer. It is found by a
/// digest of what was checked: of another hash, a model could write two calls of which one runs with
/// the check of the other.
#[derive(Debug)]
pub struct CheckedAhead {
    pub(in crate::conversation) digest: [u8; 32],
    pub(in crate::conversation) result: CheckResult,
}

/// What a check of [`CheckedAhead`] came to.
#[derive(Debug)]
pub(in crate::conversation) enum CheckResult {
    Call(CallCheck),
    Output(Result<(), String>),
}

/// A model that answers instead of the conversation's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherModel<'a> {
    /// The model with this name, which a skill selected.
    Chosen(&'a str),
    /// The model of the fallback with this gateway.
    Fallback(&'a str),
    /// The model with this name, which answered: a chosen one or that of a fallback.
    Answered(&'a str),
}

/// How much a model reads and writes, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelLimits {
    /// Its window; 0 if it is unknown.
    pub window: u64,
    /// The longest answer that it is asked for.
    pub answer_max: u64,
}

/// Checks the calls of a conversation against its tools and hooks. Must return the same result for
/// the same call, since a call is checked again before a retry.
pub trait CallPolicy: Send + Sync {
    /// Checks one call.
    fn check_call(&self, name: &str, input: &RawJson) -> CallCheck;

    /// Checks one call of a tool that the caller brought. Its arguments are the caller's to check.
    fn check_client_call(&self, tool: &ToolDefinition, input: &RawJson) -> CallCheck {
        let _ = input;
        CallCheck::client(ToolSpec::client(tool), None)
    }

    /// Reviews the result that the caller sent for such a call.
    fn review_client(
        &self,
        tool: &ToolDefinition,
        outcome: ToolExecutionResult,
        tool_call_id: &str,
    ) -> ToolExecutionResult {
        let _ = (tool, tool_call_id);
        outcome
    }

    /// The pattern of a call whose input was checked before; `None` if it needs no approval.
    fn pattern(&self, name: &str, input: &RawJson) -> Option<String> {
        match self.check_call(name, input) {
            CallCheck::Ready { pattern, .. } => pattern,
            CallCheck::Refused(_) => None,
        }
    }

    /// The declaration of a tool.
    fn spec(&self, name: &str) -> Option<Arc<ToolSpec>>;

    /// The limits of another model than the conversation's own; `None` if they are not known.
    fn limits(&self, model: OtherModel<'_>) -> Option<ModelLimits> {
        let _ = model;
        None
    }

    /// Checks an answer that must be JSON fitting `schema`. The default checks only that it is
    /// JSON.
    ///
    /// # Errors
    /// What is wrong with the answer, as text for the model.
    fn check_output(&self, schema: &RawJson, text: &str) -> Result<(), String> {
        let _ = schema;
        crate::conversation::json_in(text, |_| Ok(()))
    }

    /// Whether checking what an answer brings takes long. `output` is the schema that it must fit.
    fn is_long_check(&self, output: Option<&RawJson>, blocks: &[ContentBlock]) -> bool {
        let _ = (output, blocks);
        false
    }

    /// Checks what an answer brings, before the decision about it.
    fn check_ahead(&self, output: Option<&RawJson>, blocks: &[ContentBlock]) -> Vec<CheckedAhead> {
        let _ = (output, blocks);
        Vec::new()
    }

    /// Uses these results in place of the same checks, and no earlier ones.
    fn use_checked(&self, checked: Vec<CheckedAhead>) {
        drop(checked);
    }

    /// Reviews a result before it enters the journal; hooks may replace or withhold it.
    fn review(
        &self,
        name: &str,
        outcome: ToolExecutionResult,
        tool_call_id: &str,
    ) -> ToolExecutionResult {
        let _ = (name, tool_call_id);
        outcome
    }
}

/// The rules of one conversation. Activations with the same configuration share the parts.
#[derive(Clone)]
pub struct Rules {
    /// Checks tool calls and answers.
    pub call_policy: Arc<dyn CallPolicy>,
    /// Whether tools that change something may run.
    pub approval: ApprovalMode,
    /// Whether a person can be asked for approval.
    pub has_approver: bool,
    /// How much of a tool's data the model sees, if neither the call nor the tool decides it.
    pub output_level: OutputLevel,
    /// The model's context window, in tokens.
    pub window_tokens: u64,
    /// The limits that decide when the context is measured.
    pub context: ContextRules,
    /// How often a round may get the same result from the same call before the loop guard refuses
    /// the next one.
    pub identical_calls_max: u32,
    /// The most model calls of a round.
    pub tool_iterations_max: u32,
    /// The most calls of a batch that run at once.
    pub parallel_tools_max: usize,
    /// The most subagents that a round may start.
    pub subagents_a_round_max: usize,
    /// The most subagents that all rounds of the conversation together may start.
    pub subagents_max: u64,
    /// How long a call waits for its caller, in milliseconds.
    pub client_result_ms: u64,
    /// The most prompts in the inbox.
    pub inbox_prompts_max: usize,
    /// Prices and the budget of the conversation.
    pub pricing: Arc<Pricing>,
}

impl Rules {
    /// The context rules of the next model call.
    pub(in crate::conversation) fn context_of(&self, state: &Durable) -> ContextRules {
        self.context
            .next_call(state, &self.pricing, |model| self.call_policy.limits(model))
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rules({:?})", self.approval)
    }
}

/// The skills of the host, as last read from their source.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SkillView {
    /// The available skills.
    pub index: Arc<SkillIndex>,
    /// How deep skills may activate one another.
    pub policy: Arc<SkillPolicy>,
}

/// When the context is measured and compacted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContextRules {
    /// The model's window, in tokens; 0 means unknown, and nothing is compacted.
    pub window: u64,
    /// The longest answer, in tokens.
    pub max_tokens: u64,
    /// The estimated tokens of the system prompt and the tools.
    pub fixed: u64,
    /// The estimate, in tokens, from which the context is measured (inclusive).
    pub trigger: u64,
    /// The bytes that the provider accepts in a request.
    pub bytes: RequestBytes,
    /// Whether the model may save notes before a round compacts its context.
    pub memory_flush: bool,
}

impl ContextRules {
    /// The rules of the next model call: those of the model that it asks, and of the answer that its
    /// round asks for.
    pub(in crate::conversation) fn next_call(
        self,
        state: &Durable,
        pricing: &Pricing,
        limits: impl FnOnce(OtherModel<'_>) -> Option<ModelLimits>,
    ) -> Self {
        let brought = state.client_tools().map_or(0, ClientTools::bytes) as u64;
        let rules = Self {
            fixed: self.fixed.saturating_add(brought / BYTES_A_TOKEN),
            ..self.with_answer(state.asked_parameters())
        };
        let other = match (state.fallback(), pricing.chosen_model(state)) {
            (Some(fallback), _) => limits(OtherModel::Fallback(&fallback.gateway)),
            (None, Some(model)) => limits(OtherModel::Chosen(&model)),
            (None, None) => None,
        };
        other.map_or(rules, |limits| rules.with_model(limits))
    }

    /// These rules for a round that asks for an answer of `max_tokens`.
    #[must_use]
    fn with_answer(self, parameters: Option<&ModelParameters>) -> Self {
        let asked = parameters.and_then(|parameters| parameters.max_tokens);
        Self {
            max_tokens: self.max_tokens.max(asked.map_or(0, u64::from)),
            ..self
        }
    }

    /// These rules for another model.
    #[must_use]
    pub(crate) fn with_model(self, ModelLimits { window, answer_max }: ModelLimits) -> Self {
        let trigger = u128::from(self.trigger)
            .saturating_mul(u128::from(window))
            .checked_div(u128::from(self.window))
            .and_then(|trigger| u64::try_from(trigger).ok());
        Self {
            window,
            max_tokens: self.max_tokens.min(answer_max),
            trigger: trigger.unwrap_or(window),
            ..self
        }
    }

    /// The largest request, in tokens: the window less the longest answer.
    pub(crate) fn room(&self) -> u64 {
        self.window.saturating_sub(self.max_tokens)
    }

    /// Whether the next request may not fit, by the estimate or by its upper bound.
    pub(crate) fn is_in_doubt(&self, used: &WindowUse) -> bool {
        self.window > 0
            && (used.estimate(self.fixed) >= self.trigger.min(self.room())
                || used.at_most(self.fixed) > self.room())
    }
}
