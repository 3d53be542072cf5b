//! How entries about skills change a conversation's state.
//!
//! Pure.

use super::Durable;
use crate::{
    chat::Message,
    ids::ActivationId,
    journal::ActiveSkill,
    skill::{Frame, SkillIndex, SkillName},
    time::Timestamp,
};

/// The fields of a `SkillActivated` entry.
pub(super) struct Activated<'a> {
    pub(super) name: &'a SkillName,
    pub(super) at: Timestamp,
    pub(super) skill: ActiveSkill,
    pub(super) text_digest: u64,
}

impl Durable {
    /// Applies `SkillsOffered`.
    pub(super) fn skills_offered(
        &mut self,
        index: &SkillIndex,
        message: Option<&Message>,
    ) -> Result<(), String> {
        match message {
            None => {
                self.skills.offered = Some(index.clone());
                self.skills.announced = None;
                Ok(())
            }
            Some(message) => {
                self.skills.announced = Some(index.clone());
                self.enter(message)
            }
        }
    }

    /// Applies `SkillActivated`.
    pub(super) fn skill_activated(&mut self, activated: Activated<'_>) -> Result<(), String> {
        let Activated {
            name,
            at,
            skill,
            text_digest,
        } = activated;
        if self.skills.stack.contains(name) {
            return Err("the skill is active".into());
        }
        self.enter(&skill.message)?;
        self.skills
            .stack
            .put(Frame::new(name.clone(), skill.activation_id, at));
        self.skills.active.insert(name.clone(), skill);
        self.skills.shown.insert(name.clone(), text_digest);
        self.skills.used.insert(name.clone());
        self.metrics.skill_activations += 1;
        self.metrics.unique_skills = self.skills.used.len() as u64;
        Ok(())
    }

    /// Applies `SkillDeactivated`.
    pub(super) fn skill_deactivated(
        &mut self,
        name: &SkillName,
        activation_id: ActivationId,
    ) -> Result<(), String> {
        if !self.skills.stack.pop(name, activation_id) {
            return Err("the skill is not the one on top".into());
        }
        self.skills.active.remove(name);
        Ok(())
    }
}
