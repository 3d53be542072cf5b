//! The reminder that a conversation gets every few rounds.
//!
//! Pure.

use crate::limits::REFOCUS_ROUNDS;

/// The reminder due after this number of finished rounds: after every fifth, if there are lines.
/// The caller wraps it in `<system-reminder>` tags and places it between two rounds, so that it
/// never separates a call from its result.
pub(crate) fn reminder_at(rounds: u64, lines: &[String]) -> Option<String> {
    let due = rounds > 0 && rounds.is_multiple_of(REFOCUS_ROUNDS) && !lines.is_empty();
    due.then(|| {
        format!(
            "# Context Reminder (Round {rounds})\n\n{}",
            lines.join("\n")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fifth_round_is_reminded_of_the_system_context() {
        let lines = ["Keep to the budget.".to_owned(), "只用中文。".to_owned()];

        assert!(
            (0..100).all(|round| reminder_at(round, &[]).is_none()),
            "nothing to be reminded of"
        );
        let due: Vec<u64> = (0..21)
            .filter(|round| reminder_at(*round, &lines).is_some())
            .collect();
        assert_eq!(due, [5, 10, 15, 20]);
        assert_eq!(
            reminder_at(10, &lines).unwrap(),
            "# Context Reminder (Round 10)\n\nKeep to the budget.\n只用中文。"
        );
    }
}
