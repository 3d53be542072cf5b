//! What a conversation is reminded of every few rounds (REQUIREMENTS C-50, C-51; BUG-19, CON-44: rounds, not messages).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::chat::RawJson;

/// Rounds from one reminder to the next.
pub const REFOCUS_ROUNDS: u64 = 5;

/// Bytes of all system context: it is repeated in the window, so it must stay small beside it.
pub const SYSTEM_CONTEXT_BYTES_MAX: usize = 16 * 1024;

/// Says that a line of system context was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("system context would be larger than {SYSTEM_CONTEXT_BYTES_MAX} bytes")]
pub struct SystemContextFull;

/// System context of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RefocusContext {
    system_context: Vec<String>,
    /// What is going on, by name.
    pub active_context: BTreeMap<String, RawJson>,
}

impl RefocusContext {
    /// Adds a line (C-51).
    ///
    /// # Errors
    /// [`SystemContextFull`] when there would be too many; what is there stays.
    pub fn add_system_context(&mut self, text: impl Into<String>) -> Result<(), SystemContextFull> {
        let text = text.into();
        let bytes: usize = self.system_context.iter().map(|line| line.len() + 1).sum();
        if bytes + text.len() > SYSTEM_CONTEXT_BYTES_MAX {
            return Err(SystemContextFull);
        }
        self.system_context.push(text);
        Ok(())
    }

    /// The lines, in order.
    pub fn system_context(&self) -> &[String] {
        &self.system_context
    }

    /// The reminder that is due when round `round` (from 1) begins: at every fifth, if there is system context. The caller wraps
    /// it as M-18 says, in the user message with which the round begins, so that it never stands between a call and its result.
    pub fn reminder_at(&self, round: u64) -> Option<String> {
        let due = round > 0 && round.is_multiple_of(REFOCUS_ROUNDS) && !self.system_context.is_empty();
        due.then(|| format!("# Context Reminder (Round {round})\n\n{}", self.system_context.join("\n")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fifth_round_is_reminded_of_the_system_context() {
        let mut context = RefocusContext::default();
        assert!((0..100).all(|round| context.reminder_at(round).is_none()), "nothing to be reminded of");

        context.add_system_context("Keep to the budget.").unwrap();
        context.add_system_context("只用中文。").unwrap();

        let due: Vec<u64> = (0..21).filter(|round| context.reminder_at(*round).is_some()).collect();
        assert_eq!(due, [5, 10, 15, 20]);
        assert_eq!(context.reminder_at(10).unwrap(), "# Context Reminder (Round 10)\n\nKeep to the budget.\n只用中文。");
        let text = serde_json::to_string(&context).unwrap();
        assert_eq!(serde_json::from_str::<RefocusContext>(&text).unwrap(), context);
    }

    #[test]
    fn system_context_is_bounded() {
        let mut context = RefocusContext::default();
        context.add_system_context("x".repeat(SYSTEM_CONTEXT_BYTES_MAX - 1)).unwrap();

        assert_eq!(context.add_system_context("y"), Err(SystemContextFull));
        assert_eq!(context.system_context().len(), 1);
    }
}
