//! The request to activate a skill, and its result.
//!
//! Pure.

use serde::{Deserialize, Serialize};

use super::{
    ActivationError, ActivationStack, ContextModifier, LoadLevel, Skill, SkillName, SkillPolicy,
    stack::{NESTED_TOKENS, circular},
};
use crate::{
    chat::Message,
    ids::{ActivationId, ConversationId},
};

/// A request to activate a skill.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SkillActivationRequest {
    /// The skill to activate.
    pub skill_name: SkillName,
    /// Id of this activation; the result carries the same id.
    pub activation_id: ActivationId,
    /// The conversation that the activation belongs to.
    pub conversation_id: Option<ConversationId>,
    /// What the user asked for, as text.
    pub user_request: String,
    /// The messages before this request.
    pub conversation_history: Vec<Message>,
    /// How much of the skill to load.
    pub load_level: LoadLevel,
    /// Number of activations below this one; 0 for the first.
    pub activation_depth: u32,
    /// Highest allowed depth.
    pub max_depth: u32,
    /// The active skills below this one, outermost first.
    pub activation_chain: Vec<SkillName>,
    /// Tokens left for nested activations. When set, it replaces the depth limit.
    pub token_budget: Option<u64>,
}

impl SkillActivationRequest {
    /// A first activation, at level 2 with a depth limit of 3. The caller supplies the id, since
    /// the kernel has no randomness.
    pub(crate) fn new(skill_name: SkillName, activation_id: ActivationId) -> Self {
        Self {
            skill_name,
            activation_id,
            conversation_id: None,
            user_request: String::new(),
            conversation_history: Vec::new(),
            load_level: LoadLevel::default(),
            activation_depth: 0,
            max_depth: SkillPolicy::default().max_depth,
            activation_chain: Vec::new(),
            token_budget: None,
        }
    }

    /// The request for a skill that this one activates: one level deeper, with this skill at the
    /// end of its chain.
    ///
    /// # Errors
    /// [`ActivationError`]: the skill is this one or already in the chain, the nesting is too deep,
    /// or no token budget is left.
    pub fn nested(
        &self,
        skill_name: SkillName,
        activation_id: ActivationId,
    ) -> Result<Self, ActivationError> {
        let mut path = self.activation_chain.clone();
        path.push(self.skill_name.clone());
        if path.contains(&skill_name) {
            return Err(circular(&path, &skill_name));
        }
        match self.token_budget {
            Some(0) => return Err(ActivationError::Budget(0)),
            None if self.activation_depth >= self.max_depth => {
                return Err(ActivationError::Depth(self.max_depth));
            }
            Some(_) | None => {}
        }
        Ok(Self {
            skill_name,
            activation_id,
            activation_depth: self.activation_depth.saturating_add(1),
            activation_chain: path,
            token_budget: self
                .token_budget
                .map(|budget| budget.saturating_sub(NESTED_TOKENS)),
            ..self.clone()
        })
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

    /// The contents of all messages as one text, in order.
    pub fn text(&self) -> String {
        self.messages
            .iter()
            .map(|message| message.content.as_str())
            .collect::<Vec<_>>()
            .join("\n\n")
    }
}

impl ActivationStack {
    /// A request to activate a skill on top of the active ones.
    pub fn request(
        &self,
        name: SkillName,
        activation_id: ActivationId,
        policy: &SkillPolicy,
    ) -> SkillActivationRequest {
        let depth = u32::try_from(self.depth()).unwrap_or(u32::MAX);
        SkillActivationRequest {
            activation_depth: depth,
            max_depth: policy.max_depth,
            activation_chain: self.names(),
            token_budget: policy
                .token_budget
                .map(|budget| budget.saturating_sub(self.spent)),
            ..SkillActivationRequest::new(name, activation_id)
        }
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
        let conversation_id = Some(ConversationId::new("c").unwrap());
        let conversation_history = vec![Message::user("hello")];
        let user_request = "make a table".to_owned();
        SkillActivationRequest {
            conversation_id,
            user_request,
            conversation_history,
            ..SkillActivationRequest::new(name("a"), id(1))
        }
    }

    #[test]
    fn a_request_wants_level_2_at_depth_0_of_3() {
        let request = SkillActivationRequest::new(name("a"), id(1));

        assert_eq!(
            (
                request.load_level,
                request.activation_depth,
                request.max_depth
            ),
            (LoadLevel::Instructions, 0, 3)
        );
        assert!(request.activation_chain.is_empty() && request.token_budget.is_none());
    }

    #[test]
    fn a_nested_request_copies_all_and_is_one_deeper() {
        let nested = root().nested(name("b"), id(2)).unwrap();

        let expected = SkillActivationRequest {
            skill_name: name("b"),
            activation_id: id(2),
            activation_depth: 1,
            activation_chain: vec![name("a")],
            ..root()
        };
        assert_eq!(nested, expected);
    }

    #[test]
    fn no_request_closes_a_circle_direct_or_not() {
        let direct = root().nested(name("a"), id(2)).unwrap_err();
        let third = root()
            .nested(name("b"), id(2))
            .unwrap()
            .nested(name("c"), id(3))
            .unwrap();
        let indirect = third.nested(name("a"), id(4)).unwrap_err();

        assert_eq!(direct.to_string(), "Circular dependency detected: a → a");
        assert_eq!(
            indirect.to_string(),
            "Circular dependency detected: a → b → c → a"
        );
    }

    #[test]
    fn a_request_nests_below_its_depth_only() {
        let chain = ["b", "c", "d"]
            .into_iter()
            .try_fold(root(), |request, next| request.nested(name(next), id(9)))
            .unwrap();

        assert_eq!(chain.activation_depth, 3);
        assert_eq!(
            chain.nested(name("e"), id(9)).unwrap_err().to_string(),
            "Maximum skill activation depth (3) exceeded"
        );
    }

    #[test]
    fn a_budget_takes_the_place_of_the_depth_and_is_used_up() {
        let root = SkillActivationRequest {
            token_budget: Some(3500),
            max_depth: 1,
            ..root()
        };

        let chain = ["b", "c", "d", "e"]
            .into_iter()
            .try_fold(root, |request, next| request.nested(name(next), id(9)))
            .unwrap();

        assert_eq!(
            (chain.activation_depth, chain.token_budget),
            (4, Some(0)),
            "the rest is never below 0"
        );
        assert_eq!(
            chain.nested(name("f"), id(9)).unwrap_err().to_string(),
            "Token budget exhausted: 0 remaining"
        );
        assert!(
            chain
                .nested(name("a"), id(9))
                .unwrap_err()
                .to_string()
                .starts_with("Circular"),
            "a circle stays refused"
        );
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
