//! Which skills are active, one on top of the other (REQUIREMENTS S-09..S-21). A call stack, not a history: what completed leaves.
//!
//! Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::SkillName;
use crate::{ids::ActivationId, time::Timestamp};

/// What a nested activation is taken to cost, in tokens (S-15).
pub(super) const NESTED_TOKENS: u64 = 1000;

/// Skills that are active at most, whatever a policy says: nothing in the kernel nests deeper (DESIGN §10).
const ACTIVE_SKILLS_MAX: u32 = 64;

/// What joins the names of a path.
const ARROW: &str = " → ";

/// How deep skills may activate skills.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SkillPolicy {
    /// Skills that may be active at once (S-19).
    pub max_depth: u32,
    /// Limits of single skills, before all others (S-14).
    pub skill_depths: BTreeMap<SkillName, u32>,
    /// Whether the kind of a skill says how deep it may be: 5 for analyses and reports, 2 for simple ones (S-14). Off unless asked for
    /// (CON-21).
    pub depth_by_kind: bool,
    /// In place of the depth: tokens for nested activations, 1000 each (S-15).
    pub token_budget: Option<u64>,
}

impl Default for SkillPolicy {
    fn default() -> Self {
        Self { max_depth: 3, skill_depths: BTreeMap::new(), depth_by_kind: false, token_budget: None }
    }
}

impl SkillPolicy {
    /// How deep a skill may be, and whether a rule for it alone says so (S-14).
    fn depth_of(&self, name: &SkillName) -> (u32, bool) {
        if let Some(depth) = self.skill_depths.get(name) {
            return (*depth, true);
        }
        if self.depth_by_kind {
            let kind = name.as_str().replace('-', "_");
            if ["data_analysis", "report_generation", "multi_chart"].iter().any(|deep| kind.contains(deep)) {
                return (5, true);
            }
            if kind.starts_with("simple_") {
                return (2, true);
            }
        }
        (self.max_depth, false)
    }
}

/// Why a skill is not activated. The texts are those of the requirements, and the model reads them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ActivationError {
    /// It is active already (S-10).
    #[error("Circular dependency detected: {0}")]
    Circular(String),
    /// A request is nested too deep (S-12).
    #[error("Maximum skill activation depth ({0}) exceeded")]
    Depth(u32),
    /// A request is nested too deep for this skill (S-16).
    #[error("Maximum skill activation depth ({max_depth}) exceeded for {skill}")]
    DepthOf {
        /// The limit.
        max_depth: u32,
        /// The skill.
        skill: SkillName,
    },
    /// Too many skills are active (S-19).
    #[error("Maximum skill activation depth ({max_depth}) exceeded. Current stack: {stack}")]
    Stack {
        /// The limit.
        max_depth: u32,
        /// The names, joined by arrows.
        stack: String,
    },
    /// Nested activations have cost too much (S-16).
    #[error("Token budget exhausted: {0} remaining")]
    Budget(u64),
}

impl ActivationError {
    /// Stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Circular(_) => "SKILL_CYCLE",
            Self::Depth(_) | Self::DepthOf { .. } | Self::Stack { .. } => "SKILL_DEPTH",
            Self::Budget(_) => "SKILL_BUDGET",
        }
    }
}

/// A path that ends where it already was.
pub(super) fn circular(path: &[SkillName], again: &SkillName) -> ActivationError {
    ActivationError::Circular(joined(path.iter().chain([again])))
}

fn joined<'a>(names: impl Iterator<Item = &'a SkillName>) -> String {
    names.map(SkillName::as_str).collect::<Vec<_>>().join(ARROW)
}

/// An active skill's place on the stack (S-18).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// The skill.
    pub skill_name: SkillName,
    /// This activation.
    pub activation_id: ActivationId,
    /// When, as ISO 8601 in UTC.
    pub timestamp: String,
}

impl Frame {
    /// A frame of an activation.
    pub fn new(skill_name: SkillName, activation_id: ActivationId, at: Timestamp) -> Self {
        Self { skill_name, activation_id, timestamp: at.to_string() }
    }
}

/// The active skills, the latest last.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ActivationStack {
    frames: Vec<Frame>,
    /// Tokens that nested activations are taken to have cost since the stack was empty.
    pub(super) spent: u64,
}

impl ActivationStack {
    /// Puts a skill on top.
    ///
    /// # Errors
    /// [`ActivationError`]: it is active already, the stack is full, or the budget is used up; the stack is unchanged then.
    pub fn push(&mut self, frame: Frame, policy: &SkillPolicy) -> Result<(), ActivationError> {
        self.check(&frame.skill_name, policy)?;
        self.put(frame);
        Ok(())
    }

    /// Puts a skill on top that [`ActivationStack::check`] let pass before, in the words of a journal.
    pub(crate) fn put(&mut self, frame: Frame) {
        if !self.frames.is_empty() {
            self.spent = self.spent.saturating_add(NESTED_TOKENS);
        }
        self.frames.push(frame);
    }

    /// Whether a skill may be activated now, on top of what is active. Both limits of the seeds stand: that of the request and that
    /// of the stack, which is stricter by one (CON-20).
    ///
    /// # Errors
    /// As [`ActivationStack::push`].
    pub fn check(&self, name: &SkillName, policy: &SkillPolicy) -> Result<(), ActivationError> {
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
            true if of_its_own => Err(ActivationError::DepthOf { max_depth, skill: name.clone() }),
            true => Err(self.full(max_depth)),
            false => Ok(()),
        }
    }

    fn full(&self, max_depth: u32) -> ActivationError {
        ActivationError::Stack { max_depth, stack: joined(self.frames.iter().map(|frame| &frame.skill_name)) }
    }

    /// Takes the top off, if it is this activation of this skill; says whether it was (S-20).
    pub fn pop(&mut self, skill_name: &SkillName, activation_id: ActivationId) -> bool {
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

    /// Ends a scope: every activation that `stays` does not hold leaves, wherever it stands (S-21).
    pub fn leave(&mut self, stays: impl Fn(&Frame) -> bool) {
        self.frames.retain(stays);
        self.settle();
    }

    /// A budget is that of one chain.
    fn settle(&mut self) {
        if self.frames.is_empty() {
            self.spent = 0;
            self.frames.shrink_to_fit(); // Most conversations have none, most of the time.
        }
    }

    /// Whether a skill is active.
    pub fn contains(&self, name: &SkillName) -> bool {
        self.frames.iter().any(|frame| frame.skill_name == *name)
    }

    /// The active skills, the latest last; also called the chain.
    pub fn names(&self) -> Vec<SkillName> {
        self.frames.iter().map(|frame| frame.skill_name.clone()).collect()
    }

    /// The frames, the latest last.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// How many are active.
    pub fn depth(&self) -> usize {
        self.frames.len()
    }
}

#[cfg(test)]
mod tests;
