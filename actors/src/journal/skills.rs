//! The skills of a conversation, folded from its journal: the lists offered, the active skills, and
//! the texts that the model has read. Only [`Durable::apply`](super::Durable::apply) changes them.
//!
//! Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{ActivatedBy, digest};
use crate::{
    chat::{ContentBlock, Message},
    ids::ActivationId,
    skill::{
        ACTIVATE_SKILL, ActivationStack, Combined, ContextModifier, LoadLevel, SkillIndex,
        SkillName,
    },
};

/// An active skill. Its place on the stack is in [`SkillState::stack`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct ActiveSkill {
    pub activation_id: ActivationId,
    /// Whether the model or a person activated it.
    pub by: ActivatedBy,
    /// How much of the skill was loaded.
    pub level: LoadLevel,
    /// What the skill changes while it is active, such as the allowed tools.
    pub modifier: ContextModifier,
    /// The skill's message. A compaction appends it to the history again.
    pub message: Message,
}

/// The skills of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SkillState {
    /// The list in the system prompt. It changes only at a compaction, so that the cached prefix
    /// stays valid.
    pub offered: Option<SkillIndex>,
    /// A later list, announced by a reminder. It replaces `offered` at the next compaction.
    pub announced: Option<SkillIndex>,
    /// The active skills, in order of activation.
    pub stack: ActivationStack,
    /// The active skills by name.
    pub active: BTreeMap<SkillName, ActiveSkill>,
    /// Digests of the skill texts that stand in the history, so that no text is sent twice.
    #[serde(rename = "said")]
    pub shown: BTreeMap<SkillName, u64>,
    /// Every skill that was active at any time in this conversation.
    pub used: BTreeSet<SkillName>,
}

impl SkillState {
    /// Returns the newest list that the model has read.
    pub(crate) fn latest(&self) -> Option<&SkillIndex> {
        self.announced.as_ref().or(self.offered.as_ref())
    }

    /// Returns the modifiers of the active skills, in order of activation.
    pub(crate) fn context_modifiers(&self) -> impl Iterator<Item = &ContextModifier> {
        self.stack
            .frames()
            .iter()
            .filter_map(|frame| self.active.get(&frame.skill_name))
            .map(|skill| &skill.modifier)
    }

    /// Returns the combined effect of those modifiers; `None` when they change nothing.
    pub(crate) fn narrowing(&self) -> Option<Combined> {
        if self.active.is_empty() {
            return None; // The usual case.
        }
        Some(Combined::from_modifiers(self.context_modifiers()))
            .filter(|combined| *combined != Combined::default())
    }

    /// Whether an activation is on the stack.
    pub(crate) fn is_active(&self, activation_id: ActivationId) -> bool {
        self.active
            .values()
            .any(|skill| skill.activation_id == activation_id)
    }

    /// Whether exactly this text of a skill stands in the history.
    pub(crate) fn has_shown(&self, name: &SkillName, text: &str) -> bool {
        self.shown.get(name) == Some(&digest(text.as_bytes()))
    }

    /// Ends a round: skills that the model activated in it become inactive, skills that a person
    /// activated stay.
    pub(super) fn round_over(&mut self) {
        self.keep(|skill| skill.by == ActivatedBy::User);
    }

    /// Resets the active skills after the history was replaced by another one.
    pub(super) fn history_replaced(&mut self) {
        self.keep(|_| false);
        self.shown.clear();
    }

    fn keep(&mut self, stays: impl Fn(&ActiveSkill) -> bool) {
        if self.active.is_empty() {
            return;
        }
        self.active.retain(|_, skill| stays(skill));
        let active = &self.active;
        self.stack.leave(|frame| {
            active
                .get(&frame.skill_name)
                .is_some_and(|skill| skill.activation_id == frame.activation_id)
        });
    }
}

/// Updates the skills for a compaction. The announced list replaces the offered one, since the
/// bytes of the system prompt change anyway, and no skill text counts as read any more. Returns the
/// messages of the active skills, which the caller appends to the shortened history.
pub(crate) fn refresh_at_compaction(skills: &mut SkillState) -> Vec<Message> {
    if let Some(announced) = skills.announced.take() {
        skills.offered = Some(announced);
    }
    let active = &skills.active;
    skills.shown.retain(|name, _| active.contains_key(name));
    skills
        .stack
        .frames()
        .iter()
        .filter_map(|frame| active.get(&frame.skill_name))
        .map(|skill| skill.message.clone())
        .collect()
}

/// Counts the skill activations in messages: calls of `activate_skill` with a successful result. It
/// looks at content blocks, so text that mentions the tool does not count.
pub fn skill_activations<'a>(messages: impl IntoIterator<Item = &'a Message>) -> usize {
    let mut asked: BTreeSet<String> = BTreeSet::new();
    let mut count = 0;
    for message in messages {
        for block in message.blocks() {
            match block {
                ContentBlock::ToolUse(call) if call.name == ACTIVATE_SKILL => {
                    let _ = asked.insert(call.id);
                }
                ContentBlock::ToolResult(result) => {
                    count += usize::from(asked.remove(&result.tool_use_id) && !result.is_error)
                }
                ContentBlock::ToolUse(_)
                | ContentBlock::Text(_)
                | ContentBlock::Thinking(_)
                | ContentBlock::Image(_)
                | ContentBlock::Document(_)
                | ContentBlock::Other { .. } => {}
            }
        }
    }
    count
}

#[cfg(test)]
mod tests;
