//! What active skills change in their conversation: tools, model, and further activations.
//!
//! Pure.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{ACTIVATE_SKILL, SKILL_RESOURCE};

/// The changes of one active skill. They apply to its conversation only.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ContextModifier {
    /// The only tools that are offered and may run; `None` allows all. It narrows what the host
    /// allows and never widens it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<BTreeSet<String>>,
    /// The model of later model calls; `None` keeps the conversation's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// While true, the model cannot activate further skills. The flag of the same name on a skill's
    /// metadata means something else: it hides the skill.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disable_model_invocation: bool,
}

impl ContextModifier {
    /// Whether the modifier changes nothing.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The combined effect of several modifiers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Combined {
    /// The tools that every modifier allows; `None` if none narrows them.
    pub allowed_tools: Option<BTreeSet<String>>,
    /// The model that the last modifier with a model names.
    pub model: Option<String>,
    /// Whether any modifier keeps the model from activating skills.
    pub disable_model_invocation: bool,
}

impl Combined {
    /// Combines modifiers in the order of activation.
    pub(crate) fn from_modifiers<'a>(
        modifiers: impl IntoIterator<Item = &'a ContextModifier>,
    ) -> Self {
        modifiers
            .into_iter()
            .fold(Self::default(), |all, next| Self {
                allowed_tools: match (all.allowed_tools, &next.allowed_tools) {
                    (None, other) => other.clone(),
                    (some, None) => some,
                    (Some(before), Some(other)) => {
                        Some(before.intersection(other).cloned().collect())
                    }
                },
                model: next.model.clone().or(all.model),
                disable_model_invocation: all.disable_model_invocation
                    || next.disable_model_invocation,
            })
    }

    /// Whether a tool may be offered and run. `skill_resource` is always allowed, since an active
    /// skill needs its files. `activate_skill` is refused only by `disable_model_invocation`.
    pub(crate) fn allows(&self, tool: &str) -> bool {
        if tool == ACTIVATE_SKILL {
            return !self.disable_model_invocation;
        }
        tool == SKILL_RESOURCE
            || self
                .allowed_tools
                .as_ref()
                .is_none_or(|allowed| allowed.contains(tool))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(names: &[&str]) -> ContextModifier {
        ContextModifier {
            allowed_tools: Some(names.iter().map(|name| (*name).to_owned()).collect()),
            ..ContextModifier::default()
        }
    }

    #[test]
    fn several_modifiers_allow_what_each_allows_and_the_last_model_wins() {
        let named = |model: &str| ContextModifier {
            model: Some(model.to_owned()),
            ..ContextModifier::default()
        };
        let all = [
            allows(&["a", "b"]),
            named("one"),
            ContextModifier::default(),
            allows(&["b", "c"]),
            named("two"),
        ];

        let combined = Combined::from_modifiers(&all);

        assert_eq!(
            combined.allowed_tools,
            Some(BTreeSet::from(["b".to_owned()]))
        );
        assert_eq!(combined.model.as_deref(), Some("two"));
        assert!(combined.allows("b") && !combined.allows("a") && !combined.allows("c"));
        assert!(Combined::from_modifiers([]).allows("anything"));
        assert!(
            !Combined::from_modifiers(&[allows(&["a"]), allows(&["b"])]).allows("a"),
            "two disjoint lists allow no tool"
        );
    }

    #[test]
    fn the_tools_of_skills_stay_and_activation_can_be_switched_off() {
        let narrow = Combined::from_modifiers(&[allows(&[])]);
        let off = Combined::from_modifiers(&[ContextModifier {
            disable_model_invocation: true,
            ..ContextModifier::default()
        }]);

        assert!(
            narrow.allows(SKILL_RESOURCE)
                && narrow.allows(ACTIVATE_SKILL)
                && !narrow.allows("bash")
        );
        assert!(!off.allows(ACTIVATE_SKILL) && off.allows(SKILL_RESOURCE) && off.allows("bash"));
    }
}
