//! The strategy IMPORTANCE: old messages are shortened before anything is dropped. Answers and
//! system messages go by their age; then results of tools, oldest first, until the context is small
//! enough. User messages, errors and the last round keep their words. No model is called.
//!
//! Pure.

use super::{
    draft::Draft, importance::MessageImportance, plan::CompactionStep, rules::clip, units::UnitKind,
};
use crate::chat::{Message, Role};

/// Characters that are left of a message.
const MESSAGE_CHARS: usize = 100;

/// Characters that are left of a result.
const RESULT_CHARS: usize = 200;

/// Shortens messages by age, then results of the first `old` rounds until `goal` is reached.
pub(super) fn shorten(draft: &mut Draft<'_>, old: usize, goal: u64) {
    let current = draft.rounds().saturating_sub(1);
    let aged: Vec<usize> = draft
        .kept_units(current)
        .filter(|(_, unit)| match unit.kind {
            // Calls stay: without them their results would have none.
            UnitKind::Exchange => false,
            UnitKind::User | UnitKind::Assistant => {
                draft.message(unit.start).is_some_and(|message| {
                    MessageImportance::from_message(message)
                        .compressible_at(current.saturating_sub(unit.round))
                })
            }
        })
        .map(|(index, _)| index)
        .collect();
    for index in aged {
        draft.shorten_message(index, short_message);
    }
    let exchanges: Vec<usize> = draft
        .kept_units(old)
        .filter(|(_, unit)| unit.kind == UnitKind::Exchange)
        .map(|(index, _)| index)
        .collect();
    for index in exchanges {
        if draft.tokens() <= goal {
            break;
        }
        draft.replace_results(index, CompactionStep::Importance, false, short_result);
    }
}

/// The short form of a message. `...` appears only where text was cut.
fn short_message(message: &Message) -> Message {
    match message.role() {
        Role::Assistant => Message::assistant(format!(
            "[assistant] {}",
            clip(&message.text(), MESSAGE_CHARS)
        )),
        Role::User | Role::System => {
            Message::user(format!("[system] {}", clip(&message.text(), MESSAGE_CHARS)))
        }
    }
}

/// The short form of a result.
fn short_result(text: &str) -> String {
    format!("[Tool Result: {}]", clip(text, RESULT_CHARS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compactor::tests::stories::{exchange, failed_exchange};

    #[test]
    fn ages_are_strict_and_only_system_messages_and_answers_have_one() {
        use MessageImportance::{Critical, High, Low, Medium};

        assert_eq!([3, 4].map(|age| Low.compressible_at(age)), [false, true]);
        assert_eq!([5, 6].map(|age| Medium.compressible_at(age)), [false, true]);
        assert!(!High.compressible_at(99) && !Critical.compressible_at(99));
    }

    #[test]
    fn importance_follows_role_and_failure() {
        let [calls, results] = exchange("a", "x");
        let [_, failed] = failed_exchange("b", "x");

        let found = [&Message::user("u"), &failed, &results, &calls]
            .map(|message| MessageImportance::from_message(message) as u8);

        assert_eq!(found, [1, 1, 2, 3]);
    }

    #[test]
    fn a_short_form_says_what_it_is_and_cuts_only_what_is_long() {
        assert_eq!(short_result("short"), "[Tool Result: short]");
        assert_eq!(
            short_result(&"x".repeat(201)),
            format!("[Tool Result: {}...]", "x".repeat(200))
        );
        assert_eq!(
            short_message(&Message::assistant("想".repeat(101))).text(),
            format!("[assistant] {}...", "想".repeat(100))
        );
    }
}
