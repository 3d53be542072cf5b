//! Computes how many recent rounds are kept in full.
//!
//! Pure.

use crate::{
    chat::{MessageList, Role},
    journal::skill_activations,
};

use super::importance::has_error;

/// Fewest and most rounds that are kept in full.
pub(super) const KEEP_ROUNDS: std::ops::RangeInclusive<u32> = 3..=15;

/// Recent rounds that a compaction on request keeps, unless the settings say otherwise.
pub(super) const KEEP_ROUNDS_ON_REQUEST: u32 = 10;

/// Number of recent messages that the formula examines.
const RECENT_MESSAGES: usize = 20;

/// The inputs of the formula, from the last 20 messages.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Recent {
    /// Uninterrupted sequences of tool calls and results.
    pub tool_chains: u32,
    /// Skills that were activated recently.
    pub skill_activations: u32,
    /// Share of messages with a failed result, 0.0 to 1.0; 0 without messages.
    pub error_rate: f64,
}

impl Recent {
    /// Counts the recent messages by their block types; texts are not examined.
    pub(crate) fn of(messages: &MessageList) -> Self {
        let first = messages.len().saturating_sub(RECENT_MESSAGES);
        let skill_activations = skill_activations(messages.range(first..messages.len()));
        let mut chains = 0;
        let mut failed = 0_u32;
        let mut in_chain = false;
        let mut seen = 0_u32;
        for message in messages.range(first..messages.len()) {
            seen += 1;
            let of_chain =
                !message.tool_use_ids().is_empty() || !message.tool_result_ids().is_empty();
            chains += u32::from(of_chain && !in_chain);
            in_chain = of_chain;
            failed +=
                u32::from(message.role() == Role::User && of_chain && has_error(&message.blocks()));
        }
        let error_rate = if seen == 0 {
            0.0
        } else {
            f64::from(failed) / f64::from(seen)
        };
        Self {
            tool_chains: chains,
            skill_activations: u32::try_from(skill_activations).unwrap_or(u32::MAX),
            error_rate,
        }
    }
}

/// The number of rounds to keep: `explicit` if it is set, else 5, plus up to 5 for tool chains, up
/// to 3 for skills, and 2 if the error rate is above 30 %. The result is clamped to 3..=15.
pub(crate) fn keep_rounds(explicit: Option<u32>, recent: &Recent) -> u32 {
    let formula = || {
        5 + recent.tool_chains.min(5)
            + recent.skill_activations.min(3)
            + if recent.error_rate > 0.3 { 2 } else { 0 }
    };
    explicit
        .unwrap_or_else(formula)
        .clamp(*KEEP_ROUNDS.start(), *KEEP_ROUNDS.end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        chat::Message,
        compactor::tests::stories::{call, exchange, failed_exchange, result},
    };

    #[test]
    fn the_count_follows_the_formula_and_its_bounds() {
        let keep = |tool_chains, skill_activations, error_rate| {
            keep_rounds(
                None,
                &Recent {
                    tool_chains,
                    skill_activations,
                    error_rate,
                },
            )
        };

        assert_eq!(keep(0, 0, 0.0), 5);
        assert_eq!(keep(2, 1, 0.0), 8);
        assert_eq!(keep(0, 0, 0.3), 5, "the rate must exceed 0.3");
        assert_eq!(keep(0, 0, 0.31), 7);
        assert_eq!(keep(99, 99, 1.0), 15);
        for (explicit, kept) in [(0, 3), (2, 3), (3, 3), (9, 9), (15, 15), (16, 15)] {
            assert_eq!(
                keep_rounds(
                    Some(explicit),
                    &Recent {
                        tool_chains: 9,
                        ..Recent::default()
                    }
                ),
                kept
            );
        }
    }

    #[test]
    fn only_typed_blocks_of_the_last_twenty_messages_are_counted() {
        let activation = |id: &str, is_error| {
            [
                Message::new(Role::Assistant, &[call(id, "activate_skill")]).unwrap(),
                Message::tool_results([result(id, "", is_error)], []),
            ]
        };
        let mut messages: Vec<Message> = (0..4)
            .flat_map(|index| failed_exchange(&format!("old{index}"), "no"))
            .collect();
        messages.extend(activation("old", false));
        messages.extend((0..9).map(|_| Message::user("tool_use tool_result error")));
        messages.extend(exchange("a", "error: only a word"));
        messages.extend(exchange("b", "fine"));
        messages.push(Message::assistant("error"));
        messages.extend(activation("c", true));
        messages.extend(activation("d", false));
        messages.extend((0..2).map(|_| Message::user("x")));

        let recent = Recent::of(&messages.into_iter().collect());

        assert_eq!(
            recent,
            Recent {
                tool_chains: 2,
                skill_activations: 1,
                error_rate: 0.05
            }
        );
        assert_eq!(Recent::of(&MessageList::default()), Recent::default());
    }
}
