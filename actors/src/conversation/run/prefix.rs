//! Watches whether each model call starts with what the last one sent, so that the provider's
//! prompt cache applies.
//!
//! Cache marks are ignored. The fixed parts (model, system prompt, tools) are compared directly,
//! the messages by their running hash.

use std::sync::Arc;

use crate::{
    chat::{ModelRequest, ToolDefinition},
    conversation::run::Live,
    journal::EntryBody,
    metrics_collector::{Figure, PrefixBreak},
};

/// What the last call sent.
#[derive(Debug)]
struct Sent {
    fixed: Fixed,
    messages: usize,
    chain: Option<u64>,
}

/// The parts before the messages. Usually the same allocations as in the last call, which `Arc`
/// compares by pointer first.
#[derive(Debug, PartialEq, Eq)]
struct Fixed {
    model: Arc<str>,
    system: Option<Arc<str>>,
    tools: Arc<[ToolDefinition]>,
}

/// Watches the calls of one activation.
#[derive(Debug, Default)]
pub(in crate::conversation) struct PrefixWatch {
    last: Option<Sent>,
    announced: Option<PrefixBreak>,
    /// Whether a skill became active in this round. A skill that the model activated ends with the
    /// round, without an entry.
    skill_in_round: bool,
}

impl PrefixWatch {
    /// Notes the change of the prefix that an entry causes.
    pub(in crate::conversation) fn note(&mut self, entry: &EntryBody) {
        let cause = match entry {
            EntryBody::Compacted { .. } => PrefixBreak::Compaction,
            EntryBody::SkillsOffered { .. }
            | EntryBody::SkillActivated { .. }
            | EntryBody::SkillDeactivated { .. } => PrefixBreak::Skill,
            EntryBody::Imported { .. }
            | EntryBody::Rewound { .. }
            | EntryBody::Reset {}
            | EntryBody::PromptWithdrawn { .. } => PrefixBreak::Edit,
            EntryBody::RoundFinished { .. } if self.skill_in_round => PrefixBreak::Skill,
            _ => return,
        };
        match entry {
            EntryBody::SkillActivated { .. } => self.skill_in_round = true,
            EntryBody::RoundFinished { .. } => self.skill_in_round = false,
            _ => {}
        }
        self.announced = self.announced.or(Some(cause));
    }

    /// Notes a call about to be made. Returns why its prefix differs from that of the last call;
    /// `None` if it does not, or if there was no last call.
    pub(in crate::conversation) fn call(&mut self, request: &ModelRequest) -> Option<PrefixBreak> {
        let ModelRequest {
            model,
            system,
            tools,
            messages,
            ..
        } = request;
        let fixed = Fixed {
            model: model.clone(),
            system: system.clone(),
            tools: tools.clone(),
        };
        let sent = Sent {
            fixed,
            messages: messages.len(),
            chain: messages.chain(messages.len()),
        };
        let announced = self.announced.take();
        let before = self.last.replace(sent)?;
        let same_fixed = self
            .last
            .as_ref()
            .is_some_and(|now| now.fixed == before.fixed);
        if same_fixed && messages.chain(before.messages) == before.chain {
            return None;
        }
        let unannounced = if same_fixed {
            PrefixBreak::Unknown
        } else {
            PrefixBreak::Configuration
        };
        Some(announced.unwrap_or(unannounced))
    }
}

impl Live {
    /// Counts a call whose prompt prefix differs from the last call's, and the tokens that the
    /// provider cannot read from its cache.
    pub(super) fn watch_prefix(&mut self, request: &ModelRequest) {
        let Some(cause) = self.prefix.call(request) else {
            return;
        };
        let tokens = self
            .durable
            .context
            .window
            .estimate(self.setup.context.fixed);
        self.tally.add(Figure::PrefixBroken {
            cause,
            rebilled_tokens: tokens,
        });
        tracing::debug!(conversation = %self.scope.conversation, ?cause, tokens, "the provider's cache is missed");
    }
}

#[cfg(test)]
mod tests {
    use crate::{chat::Message, conversation::run::prefix::*, testing::contract::example_request};

    fn request(model: &str, texts: &[&str]) -> ModelRequest {
        ModelRequest {
            model: model.into(),
            messages: texts.iter().map(|text| Message::user(*text)).collect(),
            ..example_request()
        }
    }

    #[test]
    fn a_history_that_grows_breaks_nothing() {
        let mut watch = PrefixWatch::default();

        assert_eq!(
            watch.call(&request("m", &["a"])),
            None,
            "the first call has no prefix"
        );
        assert_eq!(watch.call(&request("m", &["a", "b", "c"])), None);
        assert_eq!(watch.call(&request("m", &["a", "b", "c"])), None);
    }

    #[test]
    fn a_break_is_named_by_its_cause() {
        let mut watch = PrefixWatch::default();
        watch.call(&request("m", &["a", "b"]));

        assert_eq!(
            watch.call(&request("m", &["x", "b"])),
            Some(PrefixBreak::Unknown)
        );
        assert_eq!(
            watch.call(&request("n", &["x", "b"])),
            Some(PrefixBreak::Configuration)
        );
        watch.note(&EntryBody::Reset {});
        assert_eq!(watch.call(&request("n", &["b"])), Some(PrefixBreak::Edit));
        watch.note(&EntryBody::Reset {});
        assert_eq!(
            watch.call(&request("n", &["b", "c"])),
            None,
            "what is announced and changes nothing breaks nothing"
        );
        assert_eq!(
            watch.call(&request("n", &["c"])),
            Some(PrefixBreak::Unknown),
            "an announcement holds for the next call only"
        );
    }

    #[test]
    fn a_skill_that_ends_with_its_round_is_the_cause_of_what_follows() {
        use crate::{
            ids::ActivationId,
            journal::ActivatedBy,
            skill::{LoadLevel, SkillName},
            stream::StopReason,
        };
        let mut watch = PrefixWatch::default();
        let over = EntryBody::RoundFinished {
            stop_reason: StopReason::EndTurn,
            latency_ms: 0,
            error: None,
        };
        watch.call(&request("m", &["a"]));
        watch.note(&EntryBody::SkillActivated {
            name: SkillName::new("pdf").unwrap(),
            activation_id: ActivationId::from_random([1; 16]),
            by: ActivatedBy::Model,
            level: LoadLevel::Instructions,
            modifier: Default::default(),
            message: Message::user("s"),
            text_digest: 0,
        });

        assert_eq!(
            watch.call(&request("narrow", &["a", "b"])),
            Some(PrefixBreak::Skill)
        );
        watch.note(&over);
        assert_eq!(
            watch.call(&request("m", &["a", "b", "c"])),
            Some(PrefixBreak::Skill)
        );
        watch.note(&over);
        assert_eq!(
            watch.call(&request("n", &["a", "b", "c"])),
            Some(PrefixBreak::Configuration),
            "a round without one ends nothing"
        );
    }
}
