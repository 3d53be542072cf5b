//! A conversation as a list of rounds: what `sessions show --rounds` and the route of the rounds
//! answer with. A model is sent the history, which the compactor shortens independently of this
//! view.
//!
//! Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{ActivatedBy, ConversationRound, Durable, round_summary};
use crate::{
    chat::{Message, Role, reminder},
    ids::{ActivationId, ConversationId, Scope, TenantId},
    skill::{ContextModifier, LoadLevel, SkillName},
};

/// Number of the last rounds that a compressed view keeps complete.
const COMPLETE_ROUNDS: usize = 5;

/// What is known about an active skill, as people see it. Its instructions are in the history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct ActiveSkillContext {
    pub activation_id: ActivationId,
    /// Whether the model or a person activated it.
    pub by: ActivatedBy,
    /// How much of the skill was loaded.
    pub level: LoadLevel,
}

/// A conversation as a list of rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct MultiRoundConversation {
    pub conversation_id: ConversationId,
    /// The tenant that owns the conversation.
    pub user_id: TenantId,
    /// The rounds, oldest first.
    pub rounds: Vec<ConversationRound>,
    /// Active skills by name.
    pub active_skill_context: BTreeMap<SkillName, ActiveSkillContext>,
    /// The changes that active skills make, oldest first.
    pub context_modifiers: Vec<ContextModifier>,
    /// Size of the model's window, in tokens.
    pub context_window_limit: u64,
    /// Share of the window above which the context is compressed, from 0 to 1.
    pub compression_threshold: f64,
    /// Tokens of the last model call, input and output. Not the sum over rounds, which would never
    /// fall after a compaction.
    pub context_tokens: u64,
    /// The messages of the history.
    #[serde(skip)]
    pub messages: Vec<Message>,
}

impl MultiRoundConversation {
    /// The window without a model that says otherwise, in tokens.
    pub const WINDOW: u64 = 200_000;

    /// Builds the view from the records of the rounds and the state that a journal folds into.
    /// `window` is the size of the model's window and the share of it at which compaction begins.
    pub fn new(
        scope: &Scope,
        rounds: Vec<ConversationRound>,
        state: &Durable,
        window: (u64, f64),
    ) -> Self {
        let skills = state.skills.active.iter().map(|(name, skill)| {
            let context = ActiveSkillContext {
                activation_id: skill.activation_id,
                by: skill.by,
                level: skill.level,
            };
            (name.clone(), context)
        });
        Self {
            conversation_id: scope.conversation.clone(),
            user_id: scope.tenant.clone(),
            rounds,
            active_skill_context: skills.collect(),
            context_modifiers: state.skills.context_modifiers().cloned().collect(),
            context_window_limit: window.0,
            compression_threshold: window.1,
            context_tokens: state
                .last_usage
                .input()
                .saturating_add(state.last_usage.output),
            messages: state.history.messages().iter().cloned().collect(),
        }
    }

    /// Whether compression is due: `context_tokens` is strictly above the threshold.
    pub fn should_compress_context(&self) -> bool {
        self.context_tokens as f64 > self.context_window_limit as f64 * self.compression_threshold
    }

    /// Returns the whole history unchanged while compression is not due. Otherwise returns the
    /// messages before the first round, a reminder that summarizes each earlier round, and the last
    /// five rounds complete.
    pub fn compressed_history(&self) -> Vec<Message> {
        let starts: Vec<usize> = self
            .rounds
            .iter()
            .filter_map(|round| round.start)
            .map(|start| start as usize)
            .collect();
        let early = starts.len().saturating_sub(COMPLETE_ROUNDS);
        let (Some(first), Some(kept)) = (starts.first(), starts.get(early)) else {
            return self.messages.clone();
        };
        if !self.should_compress_context() || early == 0 {
            return self.messages.clone();
        }
        let summaries: Vec<String> = self
            .rounds
            .iter()
            .filter(|round| round.start.is_some())
            .take(early)
            .map(round_summary)
            .collect();
        let summary = Message::new(Role::User, &[reminder(&summaries.join("\n"))]).ok();
        let before = self.messages.iter().take(*first).cloned();
        before
            .chain(summary)
            .chain(self.messages.iter().skip(*kept).cloned())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        chat::MessageList,
        ids::{Epoch, Seq},
        journal::{Entry, EntryBody, RoundsReader},
        time::Timestamp,
    };

    fn of(rounds: usize) -> MultiRoundConversation {
        let call = r#"{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"bash","input":{}},{"type":"tool_use","id":"u","name":"grep","input":{}}]}"#;
        let results = r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"no","is_error":true},{"type":"tool_result","tool_use_id":"u","content":"yes"}]}"#;
        let messages = (0..rounds).flat_map(|n| {
            let wire = |text: &str| Message::from_wire(text.as_bytes()).unwrap();
            [
                Message::user(format!("q{n}")),
                wire(call),
                wire(results),
                Message::assistant(format!("a{n}")),
            ]
        });
        let mut reader = RoundsReader::new(ConversationId::new("c").unwrap());
        let bodies = [
            EntryBody::LifeStarted {
                nonce: 1,
                in_order: false,
            },
            EntryBody::Imported {
                messages: messages.collect(),
                rounds: vec![],
            },
        ];
        for (seq, body) in (1..).zip(bodies) {
            reader
                .take(&Entry {
                    seq: Seq(seq),
                    epoch: Epoch(1),
                    at: Timestamp(1),
                    body,
                })
                .unwrap();
        }
        let scope = Scope::new(
            TenantId::new("t").unwrap(),
            ConversationId::new("c").unwrap(),
        );
        let (rounds, state) = reader.into_rounds();
        MultiRoundConversation::new(&scope, rounds, &state, (200_000, 0.8))
    }

    #[test]
    fn compression_is_due_strictly_above_the_threshold() {
        let at = |context_tokens| {
            MultiRoundConversation {
                context_tokens,
                ..of(1)
            }
            .should_compress_context()
        };

        assert_eq!(
            [at(159_999), at(160_000), at(160_001)],
            [false, false, true]
        );
    }

    #[test]
    fn the_full_history_is_every_message_in_order() {
        let conversation = of(7);

        assert_eq!(conversation.compressed_history().len(), 28);
        assert_eq!(
            conversation.compressed_history(),
            conversation.messages,
            "nothing is compressed before it is due"
        );
        assert!(
            conversation.compressed_history()[2]
                .wire_str()
                .contains(r#""is_error":true"#),
            "BUG-42"
        );
    }

    #[test]
    fn the_last_five_rounds_stay_complete_and_earlier_ones_become_summaries() {
        let conversation = MultiRoundConversation {
            context_tokens: 170_000,
            ..of(7)
        };

        let compressed = conversation.compressed_history();

        assert_eq!(
            compressed[1..],
            conversation.messages[8..],
            "five rounds of four messages"
        );
        let summary = compressed[0].text();
        for line in [
            "  Request: q0",
            "  Request: q1",
            "  Tools: [bash, grep]",
            "  Observation: no",
            "  Answer: a1",
        ] {
            assert!(summary.contains(line), "{line} in {summary}");
        }
        assert!(!summary.contains("q2"));
        assert_eq!(
            compressed
                .into_iter()
                .collect::<MessageList>()
                .first_fault(),
            None
        );
        let few = MultiRoundConversation {
            context_tokens: 170_000,
            ..of(5)
        };
        assert_eq!(few.compressed_history(), few.messages);
    }
}
