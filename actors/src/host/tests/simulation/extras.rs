//! What the checker judges of skills, pictures and answers in a schema, entry by entry.

use std::collections::BTreeSet;

use super::{schemas, world::World};
use crate::{
    chat::Message,
    ids::RoundId,
    journal::{Durable, EntryBody},
    skill::Combined,
    stream::StopReason,
};

/// What is known of one journal.
#[derive(Default)]
pub(super) struct ExtraFacts {
    /// Rounds whose answer has a schema.
    in_schema: BTreeSet<RoundId>,
    /// The open round, and its last answer.
    round: Option<RoundId>,
    answer: String,
    /// What the active skills allowed when the model last answered.
    allowed: Option<Combined>,
}

impl ExtraFacts {
    /// Judges an entry. `state` is the state before it.
    pub(super) fn judge(
        &mut self,
        world: &World,
        state: &Durable,
        entry: &EntryBody,
        say: &mut impl FnMut(String),
    ) {
        let figures = |count: fn(&mut super::world::Figures)| {
            world.with(|facts| count(&mut facts.figures));
        };
        match entry {
            EntryBody::PromptAccepted {
                round_id,
                output_schema: Some(_),
                ..
            } => drop(self.in_schema.insert(*round_id)),
            EntryBody::RoundStarted { round_id, .. } => {
                self.round = Some(*round_id);
                self.answer.clear();
            }
            EntryBody::Assistant { message, .. } => {
                self.answer = message.as_ref().map(Message::text).unwrap_or_default();
                self.allowed = state.skills.narrowing();
            }
            EntryBody::OutputRefused { .. } => figures(|figures| figures.answers_refused += 1),
            EntryBody::SkillActivated { .. } => figures(|figures| figures.skills += 1),
            EntryBody::ToolStarted { name, .. } => {
                // Skills that become active between an answer and its calls may allow more or less.
                let excludes = |allowed: &Combined| !allowed.allows(name);
                let now = state.skills.narrowing();
                if self.allowed.as_ref().is_some_and(excludes) && now.as_ref().is_some_and(excludes)
                {
                    say(format!("`{name}` was started, and the skills exclude it"));
                }
            }
            EntryBody::RoundFinished {
                stop_reason: StopReason::EndTurn,
                error: None,
                ..
            } => {
                let has_schema = self
                    .round
                    .take()
                    .is_some_and(|round| self.in_schema.contains(&round));
                if has_schema && !schemas::is_answer(&self.answer) {
                    say(format!("an answer is not in its schema: {}", self.answer));
                } else if has_schema {
                    figures(|figures| figures.answers_in_schema += 1);
                }
            }
            _ => {}
        }
    }
}
