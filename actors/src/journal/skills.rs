//! The skills of a conversation as its journal tells of them: what was offered, what is active, what was said (REQUIREMENTS S-27,
//! S-33, S-35, S-36). Pure; changed by [`Durable::apply`](super::Durable::apply) alone.
//!
//! Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{ActivatedBy, digest};
use crate::{
    chat::{ContentBlock, Message},
    ids::ActivationId,
    skill::{ACTIVATE_SKILL, ActivationStack, Combined, ContextModifier, LoadLevel, SkillIndex, SkillName},
};

/// What is known of an active skill besides its place on the stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveSkill {
    /// This activation.
    pub activation_id: ActivationId,
    /// Who wanted it.
    pub by: ActivatedBy,
    /// How much of it was loaded.
    pub level: LoadLevel,
    /// What it changes.
    pub modifier: ContextModifier,
    /// What it said; said again after a compaction.
    pub message: Message,
}

/// The skills of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SkillState {
    /// The list in the system prompt; the same from the first round to the next compaction.
    pub offered: Option<SkillIndex>,
    /// A later list, told of in a reminder; takes the place of `offered` at the next compaction.
    pub announced: Option<SkillIndex>,
    /// What is active.
    pub stack: ActivationStack,
    /// The same by name (S-27, `active_skill_context`).
    pub active: BTreeMap<SkillName, ActiveSkill>,
    /// Digests of what skills said and what still stands in the history, so that nothing is said twice (S-33).
    pub said: BTreeMap<SkillName, u64>,
    /// Every skill that was ever active here.
    pub used: BTreeSet<SkillName>,
}

impl SkillState {
    /// The list that counts: the last one that the model was told of.
    pub fn latest(&self) -> Option<&SkillIndex> {
        self.announced.as_ref().or(self.offered.as_ref())
    }

    /// The changes of the active skills, in the order of activation (S-27, `context_modifiers`).
    pub fn context_modifiers(&self) -> impl Iterator<Item = &ContextModifier> {
        self.stack.frames().iter().filter_map(|frame| self.active.get(&frame.skill_name)).map(|skill| &skill.modifier)
    }

    /// What those changes come to; `None` when nothing is changed.
    pub fn narrowing(&self) -> Option<Combined> {
        if self.active.is_empty() {
            return None; // Most conversations, most of the time.
        }
        Some(Combined::of(self.context_modifiers())).filter(|combined| *combined != Combined::default())
    }

    /// Whether an activation is on the stack.
    pub fn is_active(&self, activation_id: ActivationId) -> bool {
        self.active.values().any(|skill| skill.activation_id == activation_id)
    }

    /// Whether just this text of a skill stands in the history.
    pub fn has_said(&self, name: &SkillName, text: &str) -> bool {
        self.said.get(name) == Some(&digest(text.as_bytes()))
    }

    /// A round is over: what the model activated in it completed (S-17); what a person activated stays.
    pub(super) fn round_over(&mut self) {
        self.keep(|skill| skill.by == ActivatedBy::User);
    }

    /// Another history took the place of the one in which skills were active.
    pub(super) fn history_replaced(&mut self) {
        self.keep(|_| false);
        self.said.clear();
    }

    fn keep(&mut self, stays: impl Fn(&ActiveSkill) -> bool) {
        if self.active.is_empty() {
            return;
        }
        self.active.retain(|_, skill| stays(skill));
        let active = &self.active;
        self.stack.leave(|frame| active.get(&frame.skill_name).is_some_and(|skill| skill.activation_id == frame.activation_id));
    }
}

/// What a compaction means for skills, for whoever applies one: the announced list takes the place of the offered one in the system
/// prompt, whose bytes change anyway, and what skills said counts as forgotten. Returns what the active skills said, to stand in the
/// shortened history again.
pub fn refresh_at_compaction(skills: &mut SkillState) -> Vec<Message> {
    if let Some(announced) = skills.announced.take() {
        skills.offered = Some(announced);
    }
    let active = &skills.active;
    skills.said.retain(|name, _| active.contains_key(name));
    skills.stack.frames().iter().filter_map(|frame| active.get(&frame.skill_name)).map(|skill| skill.message.clone()).collect()
}

/// Skills activated in these messages: calls of `activate_skill` that were answered and did not fail. Counted by blocks, not by words
/// (REQUIREMENTS C-46, C-47, BUG-18).
pub fn skill_activations<'a>(messages: impl IntoIterator<Item = &'a Message>) -> usize {
    let mut asked: BTreeSet<String> = BTreeSet::new();
    let mut count = 0;
    for message in messages {
        for block in message.blocks() {
            match block {
                ContentBlock::ToolUse(call) if call.name == ACTIVATE_SKILL => drop(asked.insert(call.id)),
                ContentBlock::ToolResult(result) => count += usize::from(asked.remove(&result.tool_use_id) && !result.is_error),
                ContentBlock::ToolUse(_) | ContentBlock::Text(_) | ContentBlock::Thinking(_) | ContentBlock::Other { .. } => {}
            }
        }
    }
    count
}

#[cfg(test)]
mod tests;
