//! Decides about skills: which list the model sees, whether a loaded skill becomes active, and
//! which tools an active skill leaves. Part of [`crate::conversation::round`] and of the request of
//! a model call.
//!
//! Pure.

use std::sync::Arc;

use crate::{
    chat::{Message, Role, ToolDefinition, reminder},
    conversation::round::{DecisionBuilder, Effect, Refusal, rules::SkillView},
    ids::WaiterId,
    journal::{ActivatedBy, Durable, EntryBody, ToolExecutionResult, digest},
    skill::{
        ACTIVATE_SKILL, ActivationError, SKILL_RESOURCE, SkillActivationResult, SkillName,
        SkillPolicy,
    },
    tool::{EffectClass, ToolError},
    tool_executor::{RunResult, outcome},
};

/// Offers the list of skills before a round starts. The first list enters the system prompt, which
/// must keep its bytes for the provider's cache; a changed list enters as a reminder.
pub(in crate::conversation) fn offer(decision: &mut DecisionBuilder<'_>) {
    let Some(SkillView { index, .. }) = &decision.volatile.skills else {
        return;
    };
    match decision.durable.skills.latest() {
        None if index.is_empty() => {}
        None => {
            decision.entry(EntryBody::SkillsOffered {
                index: (**index).clone(),
                message: None,
            });
        }
        Some(known) if *known == **index => {}
        Some(_) => {
            let Some(message) = reminding(&index.announcement()) else {
                return;
            };
            decision.entry(EntryBody::SkillsOffered {
                index: (**index).clone(),
                message: Some(message),
            });
        }
    }
}

/// The text as a reminder message; `None` does not occur for a text.
fn reminding(text: &str) -> Option<Message> {
    Message::new(Role::User, &[reminder(text)]).ok()
}

/// Checks whether a skill may become active now, and returns the entry that activates it.
/// Instructions that the history holds already are not repeated.
fn activation(
    decision: &DecisionBuilder<'_>,
    loaded: &SkillActivationResult,
    by: ActivatedBy,
) -> Result<Option<EntryBody>, ActivationError> {
    let skills = &decision.durable.skills;
    let name = &loaded.skill_name;
    let default_policy = SkillPolicy::default();
    let policy = decision
        .volatile
        .skills
        .as_ref()
        .map_or(&default_policy, |view| &*view.policy);
    skills.stack.check(name, policy)?;
    let text = loaded.text();
    let instructions = if skills.has_shown(name, &text) {
        format!("The skill {name} is active again. Its instructions above hold, unchanged.")
    } else {
        text.clone()
    };
    Ok(
        reminding(&instructions).map(|message| EntryBody::SkillActivated {
            name: name.clone(),
            activation_id: loaded.activation_id,
            by,
            level: loaded.level,
            modifier: loaded.context_modifier.clone(),
            message,
            text_digest: digest(text.as_bytes()),
        }),
    )
}

/// The result of a call that loaded a skill, and the entry to append before that result. The entry
/// carries the instructions; the history places them after the results of the batch, because
/// results must follow their calls directly.
pub(in crate::conversation) fn model_activation(
    decision: &DecisionBuilder<'_>,
    loaded: &SkillActivationResult,
    effect: EffectClass,
    tool_call_id: &str,
) -> (Option<EntryBody>, ToolExecutionResult) {
    let skills = &decision.durable.skills;
    if decision.volatile.cancelling.is_some() {
        return (None, outcome(RunResult::Cancelled, effect, tool_call_id));
    }
    if !loaded.success {
        return (
            None,
            outcome(
                RunResult::Activation(Box::new(loaded.clone())),
                effect,
                tool_call_id,
            ),
        );
    }
    let now_active = format!(
        "The skill {} is active. Its instructions follow after the results of these calls.",
        loaded.skill_name
    );
    if skills.is_active(loaded.activation_id) {
        return (None, ToolExecutionResult::ok(now_active)); // The same call ran again after a crash.
    }
    if let Some(error) = refusal(decision.durable, ACTIVATE_SKILL) {
        return (None, ToolExecutionResult::error(&error, tool_call_id)); // An earlier skill of the batch forbids it.
    }
    match activation(decision, loaded, ActivatedBy::Model) {
        Ok(entry) => (entry, ToolExecutionResult::ok(now_active)),
        Err(error) => {
            let error = ToolError::failed(error.to_string()).code(error.code());
            (None, ToolExecutionResult::error(&error, tool_call_id))
        }
    }
}

/// Activates a skill for a user or for the application.
pub(in crate::conversation) fn activate(
    decision: &mut DecisionBuilder<'_>,
    loaded: &SkillActivationResult,
    waiter: WaiterId,
) {
    let refuse = |decision: &mut DecisionBuilder<'_>, why: String| {
        decision.effect(Effect::Refuse {
            waiter,
            refusal: Refusal::Skill(why),
        })
    };
    if !loaded.success {
        return refuse(decision, loaded.error.clone().unwrap_or_default());
    }
    match activation(decision, loaded, ActivatedBy::User) {
        Err(error) => refuse(decision, error.to_string()),
        Ok(entry) => {
            if let Some(entry) = entry {
                decision.entry(entry);
            }
            decision.effect(Effect::Answer { waiter });
        }
    }
}

/// Deactivates a skill and the skills that were activated on top of it, the top one first.
pub(in crate::conversation) fn deactivate(
    decision: &mut DecisionBuilder<'_>,
    name: &SkillName,
    waiter: WaiterId,
) {
    let frames = decision.durable.skills.stack.frames();
    let Some(place) = frames.iter().position(|frame| frame.skill_name == *name) else {
        return decision.effect(Effect::Refuse {
            waiter,
            refusal: Refusal::NoSuch("active skill"),
        });
    };
    for frame in frames.iter().skip(place).rev() {
        decision.entry(EntryBody::SkillDeactivated {
            name: frame.skill_name.clone(),
            activation_id: frame.activation_id,
        });
    }
    decision.effect(Effect::Answer { waiter });
}

/// The error for a tool that the active skills do not allow; `None` if they allow it.
pub(in crate::conversation) fn refusal(durable: &Durable, tool: &str) -> Option<ToolError> {
    let combined = durable.skills.narrowing()?;
    if combined.allows(tool) {
        return None;
    }
    let names: Vec<String> = durable
        .skills
        .stack
        .names()
        .iter()
        .map(ToString::to_string)
        .collect();
    let message = format!(
        "the tool {tool:?} is not among those that the active skills ({}) allow",
        names.join(", ")
    );
    Some(ToolError::denied(message).not_started())
}

/// The system prompt followed by the list of skills. The bytes stay the same from the first round
/// to the next compaction.
pub(in crate::conversation) fn system(
    system: Option<&Arc<str>>,
    durable: &Durable,
) -> Option<Arc<str>> {
    let list = durable
        .skills
        .offered
        .as_ref()
        .map(|index| index.prompt())
        .unwrap_or_default();
    match system {
        _ if list.is_empty() => system.cloned(),
        None => Some(list.into()),
        Some(system) => Some(format!("{}\n\n{list}", system.trim_end()).into()),
    }
}

/// The tools that the model sees: those that the active skills allow, and the skill tools only if
/// there are skills.
pub(in crate::conversation) fn tools(
    all: &Arc<[ToolDefinition]>,
    durable: &Durable,
) -> Arc<[ToolDefinition]> {
    let skills = &durable.skills;
    let any_skill =
        !skills.active.is_empty() || skills.latest().is_some_and(|index| !index.is_empty());
    let narrowing = skills.narrowing();
    let offered = |name: &str| {
        let is_idle = !any_skill && (name == ACTIVATE_SKILL || name == SKILL_RESOURCE);
        !is_idle
            && narrowing
                .as_ref()
                .is_none_or(|combined| combined.allows(name))
    };
    if all.iter().all(|tool| offered(&tool.name)) {
        return all.clone();
    }
    all.iter()
        .filter(|tool| offered(&tool.name))
        .cloned()
        .collect()
}

/// The model that the active skills select; the last skill that names one wins.
pub(in crate::conversation) fn model(durable: &Durable) -> Option<String> {
    durable
        .skills
        .narrowing()
        .and_then(|combined| combined.model)
}
