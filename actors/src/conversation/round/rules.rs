//! The rules that a conversation's decisions follow: who may run which tool, what bounds a round, what a context must fit.
//!
//! Pure.

use std::{fmt, sync::Arc};

use crate::{
    chat::RawJson,
    journal::ToolExecutionResult,
    policy::Pricing,
    ports::ToolSpec,
    skill::{SkillIndex, SkillPolicy},
    tokens::WindowUse,
    tool::{OutputLevel, ToolError},
};

/// Whether tools that change something may run (INTERFACES §2, `--approve`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ApprovalMode {
    /// A person is asked.
    Ask,
    /// They are refused.
    #[default]
    Deny,
    /// They run.
    Auto,
}

/// What becomes of a round that was open when its host stopped (DESIGN §4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recovery {
    /// It is taken up again.
    #[default]
    Resume,
    /// It is closed as interrupted.
    Close,
}

/// What is to be said of a call before anything of it is journaled.
#[derive(Debug, Clone, PartialEq)]
pub enum Judgement {
    /// It may go, with this input where it is not the model's.
    Ready {
        /// What its tool declares.
        spec: Arc<ToolSpec>,
        /// Arguments in place of the model's: a hook's, or the same in their one spelling.
        input: Option<RawJson>,
        /// What a person agrees to who says "always"; `None` where nobody needs to agree.
        pattern: Option<String>,
        /// The output level that the call names.
        level: Option<OutputLevel>,
    },
    /// It may not: no such tool, bad arguments, a hook's no.
    Refused(ToolError),
}

/// Judges calls: knows the tools and hooks of a conversation. The same answer for the same call.
pub trait CallPolicy: Send + Sync {
    /// Judges one call.
    fn judge(&self, name: &str, input: &RawJson) -> Judgement;

    /// What a tool declares.
    fn spec(&self, name: &str) -> Option<Arc<ToolSpec>>;

    /// Judges an answer that must be JSON of a schema.
    ///
    /// # Errors
    /// What is wrong with it, for the model.
    fn check_output(&self, schema: &RawJson, text: &str) -> Result<(), String> {
        let _ = schema;
        crate::conversation::json_in(text, |_| Ok(()))
    }

    /// Looks at a result before it is journaled.
    fn review(&self, name: &str, outcome: ToolExecutionResult, tool_call_id: &str) -> ToolExecutionResult {
        let _ = (name, tool_call_id);
        outcome
    }
}

/// What a conversation goes by. Shared by all lives that were configured alike.
#[derive(Clone)]
pub struct Rules {
    /// The tools.
    pub judge: Arc<dyn CallPolicy>,
    /// Whether tools that change something may run.
    pub approval: ApprovalMode,
    /// Whether somebody can be asked.
    pub has_approver: bool,
    /// How much of data is shown where neither call nor tool says so.
    pub output_level: OutputLevel,
    /// The model's context window, in tokens.
    pub window_tokens: u64,
    /// What a request must fit.
    pub context: ContextRules,
    /// How often a round may get the same result from the same call before the next one is refused (FAULTS F22).
    pub identical_calls_max: u32,
    /// Model calls of a round at most.
    pub tool_iterations_max: u32,
    /// Calls of a batch that run at once.
    pub parallel_tools_max: usize,
    /// Subagents that a round may begin (FAULTS F22).
    pub subagents_a_round_max: usize,
    /// Subagents that all its rounds together may begin.
    pub subagents_max: u64,
    /// Prompts that wait at most.
    pub inbox_prompts_max: usize,
    /// What its calls may cost.
    pub spending: Arc<Pricing>,
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rules({:?})", self.approval)
    }
}

/// The skills within reach, as they were last seen.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SkillView {
    /// The list.
    pub index: Arc<SkillIndex>,
    /// How deep they may activate one another.
    pub policy: Arc<SkillPolicy>,
}

/// What a context must fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContextRules {
    /// The model's window, in tokens; 0: not known, nothing is compacted.
    pub window: u64,
    /// Longest answer, in tokens.
    pub max_tokens: u64,
    /// Estimated tokens of the system prompt and the tools.
    pub fixed: u64,
    /// Tokens from which compaction is considered (C-02): equal counts.
    pub trigger: u64,
}

impl ContextRules {
    /// Tokens that a request may have.
    pub fn room(&self) -> u64 {
        self.window.saturating_sub(self.max_tokens)
    }

    /// Whether the estimate leaves doubt that the next request fits.
    pub fn is_in_doubt(&self, used: &WindowUse) -> bool {
        self.window > 0 && (used.estimate(self.fixed) >= self.trigger.min(self.room()) || used.at_most(self.fixed) > self.room())
    }
}
