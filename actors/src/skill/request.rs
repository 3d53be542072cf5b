//! The request to activate a skill, and its result.
//!
//! Pure.

use serde::{Deserialize, Serialize};

use super::{ContextModifier, LoadLevel, Skill, SkillName};
use crate::ids::ActivationId;

/// A request to load a skill. Whether it may become active is decided by the conversation's
/// [`ActivationStack`](super::ActivationStack), which has its depth, its chain and its budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SkillActivationRequest {
    /// The skill to activate.
    pub(crate) skill_name: SkillName,
    /// Id of this activation; the result carries the same id.
    pub(crate) activation_id: ActivationId,
    /// How much of the skill to load.
    pub(crate) load_level: LoadLevel,
}

impl SkillActivationRequest {
    /// A request at level 2. The caller supplies the id, since the kernel has no randomness.
    pub(crate) fn new(skill_name: SkillName, activation_id: ActivationId) -> Self {
        Self {
            skill_name,
            activation_id,
            load_level: LoadLevel::default(),
        }
    }
}

/// The role of a message that a skill adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageKind {
    /// Names the active skill and its files.
    Metadata,
    /// The instructions for the model.
    Instruction,
    /// The tools that may be used.
    Permissions,
}

/// Whether people see a message. The model sees every message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Visibility {
    /// People see the message.
    #[default]
    Visible,
    /// Only the model sees the message.
    Hidden,
}

/// A message that a skill adds to the conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkillMessage {
    /// The role of the message.
    #[serde(rename = "type")]
    pub kind: MessageKind,
    /// The instructions that the model reads.
    pub content: String,
    /// Whether people see it.
    #[serde(default)]
    pub visibility: Visibility,
}

/// The result of an activation request. It holds what was loaded; the conversation decides whether
/// the skill becomes active.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkillActivationResult {
    /// The id of the request.
    pub activation_id: ActivationId,
    /// The requested skill.
    pub skill_name: SkillName,
    /// The level at which the skill was loaded.
    pub level: LoadLevel,
    /// The messages to add to the conversation, in order.
    pub messages: Vec<SkillMessage>,
    /// The changes while the skill is active.
    pub context_modifier: ContextModifier,
    /// Whether the skill could be loaded.
    pub success: bool,
    /// Why the skill could not be loaded; `None` on success.
    pub error: Option<String>,
}

impl SkillActivationResult {
    /// The result for a skill that was loaded.
    pub(crate) fn loaded(request: &SkillActivationRequest, skill: &Skill) -> Self {
        let name = skill.name();
        let message = |kind, content, visibility| SkillMessage {
            kind,
            content,
            visibility,
        };
        let mut about = format!(
            "The skill {name} is active: {}",
            skill.metadata.description.trim()
        );
        if let Some(resources) = skill
            .resources
            .as_ref()
            .filter(|resources| !resources.is_empty())
        {
            about.push_str("\nIts files: ");
            about.push_str(
                &resources
                    .iter()
                    .map(|resource| resource.path.as_str())
                    .collect::<Vec<_>>()
                    .join(", "),
            );
        }
        let mut messages = vec![message(MessageKind::Metadata, about, Visibility::Visible)];
        if let Some(instructions) = skill
            .instructions
            .as_deref()
            .map(str::trim)
            .filter(|text| !text.is_empty())
        {
            messages.push(message(
                MessageKind::Instruction,
                instructions.to_owned(),
                Visibility::Hidden,
            ));
        }
        if let Some(allowed) = &skill.modifier.allowed_tools {
            let names: Vec<&str> = allowed.iter().map(String::as_str).collect();
            let names = if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(", ")
            };
            messages.push(message(
                MessageKind::Permissions,
                format!("While {name} is active, the tools are: {names}"),
                Visibility::Hidden,
            ));
        }
        Self {
            activation_id: request.activation_id,
            skill_name: request.skill_name.clone(),
            level: request.load_level,
            messages,
            context_modifier: skill.modifier.clone(),
            success: true,
            error: None,
        }
    }

    /// The result for a skill that could not be loaded.
    pub(crate) fn failed(request: &SkillActivationRequest, error: impl Into<String>) -> Self {
        Self {
            activation_id: request.activation_id,
            skill_name: request.skill_name.clone(),
            level: request.load_level,
            messages: Vec::new(),
            context_modifier: ContextModifier::default(),
            success: false,
            error: Some(error.into()),
        }
    }

    /// The messages that people are shown. The model reads all of them.
    pub fn shown(&self) -> impl Iterator<Item = &SkillMessage> {
        self.messages
            .iter()
            .filter(|message| message.visibility == Visibility::Visible)
    }

    /// The contents of all messages as one text, in order.
    pub fn text(&self) -> String {
        self.messages
            .iter()
            .map(|message| message.content.as_str())
            .collect::<Vec<_>>()
            .join("\n\n")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn name(text: &str) -> SkillName {
        SkillName::new(text).unwrap()
    }

    fn id(n: u8) -> ActivationId {
        ActivationId::from_random([n; 16])
    }

    fn root() -> SkillActivationRequest {
        SkillActivationRequest::new(name("a"), id(1))
    }

    #[test]
    fn a_request_wants_level_2() {
        assert_eq!(root().load_level, LoadLevel::Instructions);
    }

    #[test]
    fn a_result_has_the_id_of_its_request_and_three_kinds_of_messages() {
        let mut skill = Skill::new(name("a"), "Makes tables.", "\n# How\n");
        skill.modifier.allowed_tools = Some(BTreeSet::from(["file_read".to_owned()]));

        let result = SkillActivationResult::loaded(&root(), &skill);

        assert_eq!(
            (result.activation_id, result.success, &result.error),
            (id(1), true, &None)
        );
        assert_eq!(
            serde_json::to_value(&result.messages).unwrap(),
            json!([
                { "type": "metadata", "content": "The skill a is active: Makes tables.", "visibility": "visible" },
                { "type": "instruction", "content": "# How", "visibility": "hidden" },
                { "type": "permissions", "content": "While a is active, the tools are: file_read", "visibility": "hidden" },
            ])
        );
        let plain: SkillMessage =
            serde_json::from_value(json!({ "type": "metadata", "content": "x" })).unwrap();
        assert_eq!(plain.visibility, Visibility::Visible);
        let shown: Vec<&str> = result
            .shown()
            .map(|message| message.content.as_str())
            .collect();
        assert_eq!(shown, ["The skill a is active: Makes tables."]);
    }

    #[test]
    fn a_skill_that_could_not_be_loaded_is_a_result_too() {
        let result = SkillActivationResult::failed(&root(), "there is no such skill");

        assert_eq!(
            (
                result.success,
                result.error.as_deref(),
                result.activation_id
            ),
            (false, Some("there is no such skill"), id(1))
        );
        assert!(result.messages.is_empty() && result.context_modifier.is_empty());
    }
}
