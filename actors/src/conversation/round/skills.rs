//! Decides about skills: what is offered, whether one that was loaded becomes active, what is narrowed meanwhile. Pure; a part of
//! [`crate::conversation::round`] and of the request of a model call.
//!
//! Pure.

use std::sync::Arc;

use crate::{
    chat::{Message, Role, ToolDefinition, reminder},
    conversation::round::{DecisionBuilder, Effect, Refusal, rules::SkillView},
    ids::WaiterId,
    journal::{ActivatedBy, Durable, EntryBody, ToolExecutionResult, digest},
    skill::{ACTIVATE_SKILL, ActivationError, SKILL_RESOURCE, SkillActivationResult, SkillName, SkillPolicy},
    tool::{EffectClass, ToolError},
    tool_executor::{RunResult, outcome},
};

/// Tells of the list of skills before a round begins: at first in the system prompt, of a later one in a reminder (S-24, S-35 as
/// ruled).
pub(in crate::conversation) fn offer(decision: &mut DecisionBuilder<'_>) {
    let Some(SkillView { index, .. }) = &decision.volatile.skills else { return };
    match decision.durable.skills.latest() {
        None if index.is_empty() => {}
        None => {
            decision.entry(EntryBody::SkillsOffered { index: (**index).clone(), message: None });
        }
        Some(known) if *known == **index => {}
        Some(_) => {
            let Some(message) = reminding(&index.announcement()) else { return };
            decision.entry(EntryBody::SkillsOffered { index: (**index).clone(), message: Some(message) });
        }
    }
}

/// A reminder as a message; a text is never none.
fn reminding(text: &str) -> Option<Message> {
    Message::new(Role::User, &[reminder(text)]).ok()
}

/// Whether a skill may become active now, and the entry that makes it so.
fn activation(
    decision: &DecisionBuilder<'_>,
    loaded: &SkillActivationResult,
    by: ActivatedBy,
) -> Result<Option<EntryBody>, ActivationError> {
    let (skills, name) = (&decision.durable.skills, &loaded.skill_name);
    let usual = SkillPolicy::default();
    let policy = decision.volatile.skills.as_ref().map_or(&usual, |view| &*view.policy);
    skills.stack.check(name, policy)?;
    let text = loaded.text();
    let told = if skills.has_said(name, &text) {
        format!("The skill {name} is active again. Its instructions above hold, unchanged.")
    } else {
        text.clone()
    };
    Ok(reminding(&told).map(|message| EntryBody::SkillActivated {
        name: name.clone(),
        activation_id: loaded.activation_id,
        by,
        level: loaded.level,
        modifier: loaded.context_modifier.clone(),
        message,
        text_digest: digest(text.as_bytes()),
    }))
}

/// What becomes of a call that loaded a skill: its result, and the entry that is to stand before it. The instructions enter with that
/// entry and so stand after the results of the batch (REQUIREMENTS S-34, V-13).
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
        return (None, outcome(RunResult::Activation(Box::new(loaded.clone())), effect, tool_call_id));
    }
    let now_active = format!("The skill {} is active. Its instructions follow after the results of these calls.", loaded.skill_name);
    if skills.is_active(loaded.activation_id) {
        return (None, ToolExecutionResult::ok(now_active)); // This very call ran twice, around a crash.
    }
    if let Some(error) = refusal(decision.durable, ACTIVATE_SKILL) {
        return (None, ToolExecutionResult::error(&error, tool_call_id)); // By a skill of the same batch.
    }
    match activation(decision, loaded, ActivatedBy::Model) {
        Ok(entry) => (entry, ToolExecutionResult::ok(now_active)),
        Err(error) => {
            let error = ToolError::failed(error.to_string()).code(error.code());
            (None, ToolExecutionResult::error(&error, tool_call_id))
        }
    }
}

/// A person, or the application, activates a skill.
pub(in crate::conversation) fn activate(decision: &mut DecisionBuilder<'_>, loaded: &SkillActivationResult, waiter: WaiterId) {
    let refuse = |decision: &mut DecisionBuilder<'_>, why: String| decision.effect(Effect::Refuse { waiter, refusal: Refusal::Skill(why) });
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

/// A skill is to be active no longer, nor those that were activated on top of it: they are its callees.
pub(in crate::conversation) fn deactivate(decision: &mut DecisionBuilder<'_>, name: &SkillName, waiter: WaiterId) {
    let frames = decision.durable.skills.stack.frames();
    let Some(place) = frames.iter().position(|frame| frame.skill_name == *name) else {
        return decision.effect(Effect::Refuse { waiter, refusal: Refusal::NoSuch("active skill") });
    };
    for frame in frames.iter().skip(place).rev() {
        decision.entry(EntryBody::SkillDeactivated { name: frame.skill_name.clone(), activation_id: frame.activation_id });
    }
    decision.effect(Effect::Answer { waiter });
}

/// Why a tool may not run while the active skills are active (REQUIREMENTS S-26, T-48).
pub(in crate::conversation) fn refusal(durable: &Durable, tool: &str) -> Option<ToolError> {
    let combined = durable.skills.narrowing()?;
    if combined.allows(tool) {
        return None;
    }
    let names: Vec<String> = durable.skills.stack.names().iter().map(ToString::to_string).collect();
    let message = format!("the tool {tool:?} is not among those that the active skills ({}) allow", names.join(", "));
    Some(ToolError::denied(message).not_started())
}

/// The system prompt with the list of skills behind it, the same bytes from the first round to the next compaction.
pub(in crate::conversation) fn system(system: Option<&Arc<str>>, durable: &Durable) -> Option<Arc<str>> {
    let list = durable.skills.offered.as_ref().map(|index| index.prompt()).unwrap_or_default();
    match system {
        _ if list.is_empty() => system.cloned(),
        None => Some(list.into()),
        Some(system) => Some(format!("{}\n\n{list}", system.trim_end()).into()),
    }
}

/// The tools that a model is offered: without those that active skills take away, and without those of skills where there are none.
pub(in crate::conversation) fn tools(all: &Arc<[ToolDefinition]>, durable: &Durable) -> Arc<[ToolDefinition]> {
    let skills = &durable.skills;
    let any_skill = !skills.active.is_empty() || skills.latest().is_some_and(|index| !index.is_empty());
    let narrowing = skills.narrowing();
    let offered = |name: &str| {
        let is_idle = !any_skill && (name == ACTIVATE_SKILL || name == SKILL_RESOURCE);
        !is_idle && narrowing.as_ref().is_none_or(|combined| combined.allows(name))
    };
    if all.iter().all(|tool| offered(&tool.name)) {
        return all.clone();
    }
    all.iter().filter(|tool| offered(&tool.name)).cloned().collect()
}

/// The model that the last skill names which names one.
pub(in crate::conversation) fn model(durable: &Durable) -> Option<String> {
    durable.skills.narrowing().and_then(|combined| combined.model)
}
