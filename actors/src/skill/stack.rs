//! The stack of active skills. It is a call stack, not a history: a completed skill is removed.
//!
//! Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::SkillName;
use crate::{ids::ActivationId, time::Timestamp};

/// Assumed cost of a nested activation, in tokens.
pub(super) const NESTED_TOKENS: u64 = 1000;

/// Hard limit of active skills, whatever the policy says.
const ACTIVE_SKILLS_MAX: u32 = 64;

/// Separator between the names of a path in error messages.
const ARROW: &str = " → ";

/// How deeply skills may activate further skills.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SkillPolicy {
    /// Highest number of skills that are active at once.
    pub max_depth: u32,
    /// Depth limits of single skills; they override the other limits.
    pub skill_depths: BTreeMap<SkillName, u32>,
    /// Whether the name of a skill decides its depth limit: 5 for analyses, reports and charts, 2
    /// for names that begin with `simple-`. Off by default.
    pub depth_by_kind: bool,
    /// A budget of tokens for nested activations, at 1000 tokens each. When set, it replaces the
    /// depth limits.
    pub token_budget: Option<u64>,
}

impl Default for SkillPolicy {
    fn default() -> Self {
        Self {
            max_depth: 3,
            skill_depths: BTreeMap::new(),
            depth_by_kind: false,
            token_budget: None,
        }
    }
}

impl SkillPolicy {
    /// The depth limit of a skill, and whether it comes from a rule for this skill.
    fn depth_of(&self, name: &SkillName) -> (u32, bool) {
        if let Some(depth) = self.skill_depths.get(name) {
            return (*depth, true);
        }
        if self.depth_by_kind {
            let kind = name.as_str().replace('-', "_");
            if ["data_analysis", "report_generation", "multi_chart"]
                .iter()
                .any(|deep| kind.contains(deep))
            {
                return (5, true);
            }
            if kind.starts_with("simple_") {
                return (2, true);
            }
        }
        (self.max_depth, false)
    }
}

/// Why a skill is not activated. The model reads these texts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ActivationError {
    /// The skill is already active. Holds the path from the first skill to the repeated one.
    #[error("Circular dependency detected: {0}")]
    Circular(String),
    /// The request is nested too deeply for this skill.
    #[error("Maximum skill activation depth ({max_depth}) exceeded for {skill}")]
    DepthOf {
        /// The limit of this skill.
        max_depth: u32,
        /// The requested skill.
        skill: SkillName,
    },
    /// Too many skills are active.
    #[error("Maximum skill activation depth ({max_depth}) exceeded. Current stack: {stack}")]
    Stack {
        /// The depth of nesting that is allowed.
        max_depth: u32,
        /// The names of the active skills, joined by arrows.
        stack: String,
    },
    /// Nested activations have used up the token budget. Holds the remaining tokens.
    #[error("Token budget exhausted: {0} remaining")]
    Budget(u64),
}

impl ActivationError {
    /// A stable code for logs and results.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Circular(_) => "SKILL_CYCLE",
            Self::DepthOf { .. } | Self::Stack { .. } => "SKILL_DEPTH",
            Self::Budget(_) => "SKILL_BUDGET",
        }
    }
}

/// The error for a path that returns to a skill already on it.
pub(super) fn circular(path: &[SkillName], again: &SkillName) -> ActivationError {
    ActivationError::Circular(joined(path.iter().chain([again])))
}

fn joined<'a>(names: impl Iterator<Item = &'a SkillName>) -> String {
    names.map(SkillName::as_str).collect::<Vec<_>>().join(ARROW)
}

/// An active skill on the stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// The active skill.
    pub skill_name: SkillName,
    /// Id of the activation; a skill that completes must name it.
    pub activation_id: ActivationId,
    /// Time of the activation, ISO 8601 in UTC.
    pub timestamp: String,
}

impl Frame {
    /// The frame of an activation at the given time.
    pub(crate) fn new(skill_name: SkillName, activation_id: ActivationId, at: Timestamp) -> Self {
        Self {
            skill_name,
            activation_id,
            timestamp: at.to_string(),
        }
    }
}

/// The active skills, most recent last.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ActivationStack {
    frames: Vec<Frame>,
    /// Assumed cost of the nested activations since the stack was last empty, in tokens.
    pub(super) spent: u64,
}

impl ActivationStack {
    /// Pushes a skill.
    ///
    /// # Errors
    /// [`ActivationError`] if the skill is already active, the stack is full or the budget is used
    /// up. The stack is unchanged then.
    pub fn push(&mut self, frame: Frame, policy: &SkillPolicy) -> Result<(), ActivationError> {
        self.check(&frame.skill_name, policy)?;
        self.put(frame);
        Ok(())
    }

    /// Pushes a skill without checks, for entries of a journal: [`ActivationStack::check`] passed
    /// when they were written.
    pub(crate) fn put(&mut self, frame: Frame) {
        if !self.frames.is_empty() {
            self.spent = self.spent.saturating_add(NESTED_TOKENS);
        }
        self.frames.push(frame);
    }

    /// Whether a skill may be activated now, on top of the active ones. Two limits apply, that of
    /// the request and that of the stack; the stack's is stricter by one.
    ///
    /// # Errors
    /// As [`ActivationStack::push`].
    pub(crate) fn check(
        &self,
        name: &SkillName,
        policy: &SkillPolicy,
    ) -> Result<(), ActivationError> {
        if self.contains(name) {
            return Err(circular(&self.names(), name));
        }
        let active = u32::try_from(self.depth()).unwrap_or(u32::MAX);
        if let Some(budget) = policy.token_budget {
            let remaining = budget.saturating_sub(self.spent);
            return match active {
                0 => Ok(()),
                ACTIVE_SKILLS_MAX.. => Err(self.full(ACTIVE_SKILLS_MAX)),
                _ if remaining == 0 => Err(ActivationError::Budget(remaining)),
                _ => Ok(()),
            };
        }
        let (max_depth, of_its_own) = policy.depth_of(name);
        let max_depth = max_depth.min(ACTIVE_SKILLS_MAX);
        match active >= max_depth {
            true if of_its_own => Err(ActivationError::DepthOf {
                max_depth,
                skill: name.clone(),
            }),
            true => Err(self.full(max_depth)),
            false => Ok(()),
        }
    }

    fn full(&self, max_depth: u32) -> ActivationError {
        ActivationError::Stack {
            max_depth,
            stack: joined(self.frames.iter().map(|frame| &frame.skill_name)),
        }
    }

    /// Pops the top if it is this activation of this skill. Returns whether it was.
    pub(crate) fn pop(&mut self, skill_name: &SkillName, activation_id: ActivationId) -> bool {
        match self.frames.last() {
            None => {
                tracing::warn!(skill = %skill_name, "no skill is active");
                false
            }
            Some(top) if top.skill_name == *skill_name && top.activation_id == activation_id => {
                self.frames.pop();
                self.settle();
                true
            }
            Some(top) => {
                tracing::error!(skill = %skill_name, top = %top.skill_name, "the skill that completes is not the one on top");
                false
            }
        }
    }

    /// Ends a scope: removes every activation for which `stays` returns false, at any position.
    pub(crate) fn leave(&mut self, stays: impl Fn(&Frame) -> bool) {
        self.frames.retain(stays);
        self.settle();
    }

    /// Resets the token count when the stack is empty, since a budget covers one chain of
    /// activations.
    fn settle(&mut self) {
        if self.frames.is_empty() {
            self.spent = 0;
            self.frames.shrink_to_fit(); // Most conversations have no active skill most of the time.
        }
    }

    /// Whether a skill is active.
    pub(crate) fn contains(&self, name: &SkillName) -> bool {
        self.frames.iter().any(|frame| frame.skill_name == *name)
    }

    /// The names of the active skills, most recent last.
    pub(crate) fn names(&self) -> Vec<SkillName> {
        self.frames
            .iter()
            .map(|frame| frame.skill_name.clone())
            .collect()
    }

    /// The frames, most recent last.
    pub(crate) fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Number of active skills.
    pub(crate) fn depth(&self) -> usize {
        self.frames.len()
    }
}

#[cfg(test)]
mod tests;
