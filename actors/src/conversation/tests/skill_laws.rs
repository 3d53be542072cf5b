//! The laws of skills: which become active, which tools they leave, and how the list is offered;
//! and skills for the random world.

use std::sync::Arc;

use super::{Rng, laws::Law};
use crate::{
    conversation::{
        Command,
        round::{Input, rules::SkillView, volatile::Volatile},
    },
    ids::ActivationId,
    journal::{ActivatedBy, Durable, EntryBody},
    skill::{
        ContextModifier, Skill, SkillActivationRequest, SkillActivationResult, SkillIndex,
        SkillName, SkillPolicy,
    },
    tool_executor::RunResult,
};

/// How many skills may be active at once in this world.
const DEPTH: u32 = 2;

fn skill(n: usize) -> Skill {
    Skill::new(
        SkillName::new(format!("s{n}")).unwrap(),
        "d",
        format!("how to do {n}"),
    )
}

/// A skill as its source returns it: some narrow the tools, some are unavailable.
pub(super) fn loaded(rng: &mut Rng) -> SkillActivationResult {
    let mut skill = skill(rng.below(4));
    let request =
        SkillActivationRequest::new(skill.name().clone(), ActivationId::from_random(rng.bytes()));
    if rng.percent(10) {
        return SkillActivationResult::failed(&request, "it is away");
    }
    let mut some = |names: &[&str]| {
        names
            .iter()
            .filter(|_| rng.percent(70))
            .map(|name| (*name).to_owned())
            .collect()
    };
    skill.modifier = match skill.name().as_str() {
        "s0" => ContextModifier {
            allowed_tools: Some(some(&["read", "put", "send", "build"])),
            ..ContextModifier::default()
        },
        "s1" => ContextModifier {
            model: Some("other".into()),
            ..ContextModifier::default()
        },
        _ => ContextModifier::default(),
    };
    SkillActivationResult::loaded(&request, &skill)
}

pub(super) fn name(rng: &mut Rng) -> SkillName {
    skill(rng.below(4)).name().clone()
}

/// The skills of the activation's host; another host may have others, or none.
pub(super) fn view(rng: &mut Rng) -> Option<SkillView> {
    let skills: Vec<_> = (0..rng.below(4)).map(|n| skill(n).metadata).collect();
    let policy = SkillPolicy {
        max_depth: DEPTH,
        ..SkillPolicy::default()
    };
    rng.percent(80).then(|| SkillView {
        index: Arc::new(SkillIndex::from_skills(&skills)),
        policy: Arc::new(policy),
    })
}

fn depth(volatile: &Volatile) -> usize {
    volatile
        .skills
        .as_ref()
        .map_or(SkillPolicy::default().max_depth, |view| {
            view.policy.max_depth
        }) as usize
}

/// Whether a loaded skill may become active.
pub(super) fn fits(state: &Durable, volatile: &Volatile, loaded: &SkillActivationResult) -> bool {
    loaded.success
        && !state.skills.stack.contains(&loaded.skill_name)
        && state.skills.stack.depth() < depth(volatile)
}

/// Whether the active skills allow a tool.
pub(super) fn allows(state: &Durable, tool: &str) -> bool {
    let modifiers = state
        .skills
        .active
        .values()
        .filter_map(|skill| skill.modifier.allowed_tools.as_ref());
    modifiers.into_iter().all(|allowed| allowed.contains(tool))
}

impl Law<'_> {
    /// A call that loaded a skill fails exactly when the skill may not become active.
    pub(super) fn activation_failed(&self, state: &Durable, result: &RunResult) -> Option<bool> {
        let RunResult::Activation(loaded) = result else {
            return None;
        };
        // The entry that activates the skill is applied already, if there is one.
        let became = state.skills.is_active(loaded.activation_id);
        assert_eq!(
            became,
            self.outcome
                .entries
                .iter()
                .any(|entry| matches!(entry.body, EntryBody::SkillActivated { .. }))
        );
        Some(!became)
    }

    /// An entry about skills has its cause.
    pub(super) fn skill_entry(&self, state: &Durable, body: &EntryBody, cancelled: bool) {
        match body {
            EntryBody::SkillsOffered { index, message } => {
                let view = self.before.skills.as_ref().expect("a host with skills");
                assert_eq!(*index, *view.index);
                assert_ne!(state.skills.latest(), Some(index), "a list is offered once");
                assert_eq!(
                    message.is_some(),
                    state.skills.offered.is_some(),
                    "the first stands in the system prompt"
                );
                assert!(
                    state.round.is_none() && !state.inbox.is_empty(),
                    "a list is offered when a round begins"
                );
            }
            EntryBody::SkillActivated {
                name,
                activation_id,
                by,
                message,
                ..
            } => {
                let (loaded, who) = match self.input {
                    Input::Command {
                        command: Command::ActivateSkill { loaded },
                        ..
                    } => (loaded, ActivatedBy::User),
                    Input::Tool {
                        result: RunResult::Activation(loaded),
                        ..
                    } => (loaded, ActivatedBy::Model),
                    other => panic!("a skill out of nothing: {other:?}"),
                };
                assert!(
                    fits(state, self.before, loaded) && (who == ActivatedBy::User || !cancelled),
                    "{name} may not be active"
                );
                assert_eq!(
                    (name, activation_id, *by),
                    (&loaded.skill_name, &loaded.activation_id, who)
                );
                assert!(
                    crate::chat::is_reminder(&message.text()),
                    "a skill enters as a reminder"
                );
            }
            EntryBody::SkillDeactivated {
                name,
                activation_id,
            } => {
                let top = state
                    .skills
                    .stack
                    .frames()
                    .last()
                    .expect("a skill is active");
                assert_eq!(
                    (&top.skill_name, &top.activation_id),
                    (name, activation_id),
                    "the top leaves first"
                );
                assert!(matches!(
                    self.input,
                    Input::Command {
                        command: Command::DeactivateSkill { .. },
                        ..
                    }
                ));
            }
            other => panic!("{other:?} is not about skills"),
        }
    }

    /// The stack and the map of active skills agree, and skills that the model activated end with
    /// the round.
    pub(super) fn skills_rest(&self, state: &Durable) {
        let skills = &state.skills;
        let mut names = skills.stack.names();
        names.sort();
        assert_eq!(
            names,
            skills.active.keys().cloned().collect::<Vec<_>>(),
            "stack and map agree"
        );
        assert!(
            state.round.is_some()
                || skills
                    .active
                    .values()
                    .all(|skill| skill.by == ActivatedBy::User),
            "the model's skills end with its round"
        );
    }
}
