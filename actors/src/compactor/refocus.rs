//! What a conversation is reminded of every few rounds (REQUIREMENTS C-50; BUG-19, CON-44: rounds, not messages).
//!
//! Pure.

use crate::limits::REFOCUS_ROUNDS;

/// The reminder that is due after so many finished rounds: after every fifth, if there are lines to be reminded of. The caller wraps it
/// as M-18 says and puts it between two rounds, so that it never stands between a call and its result.
pub fn reminder_at(rounds: u64, lines: &[String]) -> Option<String> {
    let due = rounds > 0 && rounds.is_multiple_of(REFOCUS_ROUNDS) && !lines.is_empty();
    due.then(|| format!("# Context Reminder (Round {rounds})\n\n{}", lines.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fifth_round_is_reminded_of_the_system_context() {
        let lines = ["Keep to the budget.".to_owned(), "只用中文。".to_owned()];

        assert!((0..100).all(|round| reminder_at(round, &[]).is_none()), "nothing to be reminded of");
        let due: Vec<u64> = (0..21).filter(|round| reminder_at(*round, &lines).is_some()).collect();
        assert_eq!(due, [5, 10, 15, 20]);
        assert_eq!(reminder_at(10, &lines).unwrap(), "# Context Reminder (Round 10)\n\nKeep to the budget.\n只用中文。");
    }
}
