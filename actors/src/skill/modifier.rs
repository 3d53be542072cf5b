//! What a skill changes while it is active (REQUIREMENTS S-25, S-26, D-07).
//!
//! Pure.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{ACTIVATE_SKILL, SKILL_RESOURCE};

/// The change that one active skill makes to its conversation, and to no other (REQUIREMENTS R-19).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ContextModifier {
    /// The only tools that are offered and may run; all if absent. Narrows what the host allows and never widens it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<BTreeSet<String>>,
    /// The model of the calls that follow; unchanged if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// While it is active, the model activates no further skill. Another thing than the flag of the same name on a skill (CON-43).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disable_model_invocation: bool,
}

impl ContextModifier {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What several modifiers come to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Combined {
    /// The tools that every one of them allows; all if none narrows.
    pub allowed_tools: Option<BTreeSet<String>>,
    /// The model that the last one names.
    pub model: Option<String>,
    /// One of them keeps the model from activating skills.
    pub disable_model_invocation: bool,
}

impl Combined {
    /// Combines modifiers in the order in which their skills were activated.
    pub fn of<'a>(modifiers: impl IntoIterator<Item = &'a ContextModifier>) -> Self {
        modifiers.into_iter().fold(Self::default(), |all, next| Self {
            allowed_tools: match (all.allowed_tools, &next.allowed_tools) {
                (None, other) => other.clone(),
                (some, None) => some,
                (Some(before), Some(other)) => Some(before.intersection(other).cloned().collect()),
            },
            model: next.model.clone().or(all.model),
            disable_model_invocation: all.disable_model_invocation || next.disable_model_invocation,
        })
    }

    /// Whether a tool may be offered and run. The tools of skills themselves are not narrowed away, or no skill could read its own
    /// files; `activate_skill` is, where one of the modifiers says so.
    pub fn allows(&self, tool: &str) -> bool {
        if tool == ACTIVATE_SKILL {
            return !self.disable_model_invocation;
        }
        tool == SKILL_RESOURCE || self.allowed_tools.as_ref().is_none_or(|allowed| allowed.contains(tool))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(names: &[&str]) -> ContextModifier {
        ContextModifier { allowed_tools: Some(names.iter().map(|name| (*name).to_owned()).collect()), ..ContextModifier::default() }
    }

    #[test]
    fn several_modifiers_allow_what_each_allows_and_the_last_model_wins() {
        let named = |model: &str| ContextModifier { model: Some(model.to_owned()), ..ContextModifier::default() };
        let all = [allows(&["a", "b"]), named("one"), ContextModifier::default(), allows(&["b", "c"]), named("two")];

        let combined = Combined::of(&all);

        assert_eq!(combined.allowed_tools, Some(BTreeSet::from(["b".to_owned()])));
        assert_eq!(combined.model.as_deref(), Some("two"));
        assert!(combined.allows("b") && !combined.allows("a") && !combined.allows("c"));
        assert!(Combined::of([]).allows("anything"));
        assert!(!Combined::of(&[allows(&["a"]), allows(&["b"])]).allows("a"), "what nobody allows together is nothing");
    }

    #[test]
    fn the_tools_of_skills_stay_and_activation_can_be_switched_off() {
        let narrow = Combined::of(&[allows(&[])]);
        let off = Combined::of(&[ContextModifier { disable_model_invocation: true, ..ContextModifier::default() }]);

        assert!(narrow.allows(SKILL_RESOURCE) && narrow.allows(ACTIVATE_SKILL) && !narrow.allows("bash"));
        assert!(!off.allows(ACTIVATE_SKILL) && off.allows(SKILL_RESOURCE) && off.allows("bash"));
    }
}
