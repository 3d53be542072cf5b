//! What the host tells the model between the lines: a text block that says by its wrapping who speaks (REQUIREMENTS M-18).
//!
//! Pure.

use super::ContentBlock;

const OPEN: &str = "<system-reminder>\n";
const CLOSE: &str = "\n</system-reminder>";

/// A reminder as a block of a user message. Tags inside of `text` are defused, so that no quoted text can end it early.
pub fn reminder(text: &str) -> ContentBlock {
    let text = text.replace("<system-reminder>", "<system-reminder >").replace("</system-reminder>", "</system-reminder >");
    ContentBlock::text(format!("{OPEN}{text}{CLOSE}"))
}

/// Whether a text is a reminder, and so nothing that a person said.
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
