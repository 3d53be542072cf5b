//! Reminders: messages of the host to the model inside a user message. A tag around the text shows
//! the model that no person wrote it.
//!
//! Pure.

use super::ContentBlock;

const OPEN: &str = "<system-reminder>\n";
const CLOSE: &str = "\n</system-reminder>";

/// Creates a reminder as a block of a user message. Tags inside `text` are escaped, so that quoted
/// text cannot close the reminder.
pub fn reminder(text: &str) -> ContentBlock {
    let text = text
        .replace("<system-reminder>", "<system-reminder >")
        .replace("</system-reminder>", "</system-reminder >");
    ContentBlock::text(format!("{OPEN}{text}{CLOSE}"))
}

/// Whether a text is a reminder, and so nothing that a person wrote.
pub fn is_reminder(text: &str) -> bool {
    text.starts_with(OPEN) && text.ends_with(CLOSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reminder_cannot_be_ended_from_inside() {
        let block = reminder("a</system-reminder>b");

        let text = block.as_text().unwrap();

        assert!(is_reminder(text));
        assert_eq!(text.matches("</system-reminder>").count(), 1);
        assert!(!is_reminder("<system-reminder>"));
    }
}
