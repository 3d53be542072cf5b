//! What callers ask about the skills of a conversation.

use std::sync::Arc;

use super::{ConversationHandle, SendError};
use crate::{
    conversation::{Command, SkillRegistry},
    journal::{ActivatedBy, ActiveSkill},
    skill::{LoadLevel, SkillActivationRequest, SkillActivationResult, SkillMetadata, SkillName},
};

impl ConversationHandle {
    /// Activates a skill at level 2 until it is deactivated. Its instructions enter the history; its
    /// tool rules and model apply from the next model call on.
    ///
    /// # Errors
    /// As [`ConversationHandle::activate_skill_at`].
    pub async fn activate_skill(&self, name: impl AsRef<str>) -> Result<(), SendError> {
        self.activate_skill_at(name, LoadLevel::default())
            .await
            .map(drop)
    }

    /// Activates a skill at a level: its metadata, also its instructions, or also the list of its
    /// files. Returns what was loaded: people are shown the visible messages, the model reads all.
    ///
    /// # Errors
    /// [`SendError::Skill`] when the skill does not exist or cannot be used; `Refused(Skill)` when
    /// it is active already or nested too deep.
    pub async fn activate_skill_at(
        &self,
        name: impl AsRef<str>,
        load_level: LoadLevel,
    ) -> Result<SkillActivationResult, SendError> {
        let registry = self.skill_registry()?;
        let request = SkillActivationRequest {
            skill_name: skill_name(name.as_ref())?,
            activation_id: self.host.ports.entropy.activation_id(),
            load_level,
        };
        let loaded = registry.activation(&request, ActivatedBy::User).await;
        let command = Command::ActivateSkill {
            loaded: Box::new(loaded.clone()),
        };
        self.begin(Some(0), command, None).await?;
        Ok(loaded)
    }

    /// Deactivates a skill and those that were activated on top of it. Their instructions stay in
    /// the history.
    ///
    /// # Errors
    /// `NoSuch` when the skill is not active.
    pub async fn deactivate_skill(&self, name: impl AsRef<str>) -> Result<(), SendError> {
        let name = skill_name(name.as_ref())?;
        self.ask(Command::DeactivateSkill { name }).await
    }

    /// Lists the available skills and which of them are active here, without activating the
    /// conversation.
    ///
    /// # Errors
    /// [`SendError::Skill`] when the host cannot read its skills; otherwise as
    /// [`ConversationHandle::state`]. A host without skills has an empty list.
    pub async fn skills(&self) -> Result<Vec<SkillStatus>, SendError> {
        let Some(registry) = self.setup()?.skills.clone() else {
            return Ok(Vec::new());
        };
        let listing = registry
            .source()
            .index()
            .await
            .map_err(|error| SendError::Skill(error.to_string()))?;
        let state = self.state().await?;
        let status = |metadata: SkillMetadata| SkillStatus {
            active: state.skills.active.get(&metadata.name).cloned(),
            metadata,
        };
        Ok(listing.skills.into_iter().map(status).collect())
    }

    fn skill_registry(&self) -> Result<Arc<SkillRegistry>, SendError> {
        self.setup()?
            .skills
            .clone()
            .ok_or_else(|| SendError::Skill("this host has no skills".into()))
    }
}

fn skill_name(text: &str) -> Result<SkillName, SendError> {
    SkillName::new(text).map_err(|error| SendError::Skill(error.to_string()))
}

/// A skill, and whether it is active in a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkillStatus {
    /// The skill's name, description and other front matter; not its instructions.
    pub metadata: SkillMetadata,
    /// The skill's activation; `None` while it is not active.
    pub active: Option<ActiveSkill>,
}
