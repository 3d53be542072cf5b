//! Lines that end in one backslash and go on in the next line, as in a shell. The prompt keeps the
//! line break and loses the backslash.

use std::sync::Arc;

use parking_lot::Mutex;
use reedline::{ValidationResult, Validator};

/// Whether a line goes on in the next one: it ends in one backslash. Two are text.
pub(super) fn continues(line: &str) -> bool {
    line.strip_suffix('\\')
        .is_some_and(|line| !line.ends_with('\\'))
}

/// The lines that the person continued at the prompt. Backslashes before line breaks that were
/// pasted stay as they are: a pasted command needs them.
#[derive(Clone, Default)]
pub(super) struct Continued(Arc<Mutex<Vec<String>>>);

impl Continued {
    /// The text as it is sent: without the backslashes behind which Enter was pressed.
    pub(super) fn joined(&self, mut text: String) -> String {
        let mut begun = std::mem::take(&mut *self.0.lock());
        // The longest first, so that the shorter ones are still where they were.
        begun.sort_by_key(|begun| std::cmp::Reverse(begun.len()));
        begun.dedup();
        for begun in begun {
            let is_here = text
                .strip_prefix(begun.as_str())
                .is_some_and(|rest| rest.starts_with('\n'));
            if is_here {
                text.remove(begun.len() - 1);
            }
        }
        text
    }
}

impl Validator for Continued {
    fn validate(&self, line: &str) -> ValidationResult {
        if continues(line) {
            self.0.lock().push(line.to_owned());
            ValidationResult::Incomplete
        } else {
            ValidationResult::Complete
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_on_behind_one_backslash_and_a_pasted_one_keeps_it() {
        let continued = Continued::default();
        let is_complete =
            |line: &str| matches!(continued.validate(line), ValidationResult::Complete);

        assert!(!is_complete("ls \\\n -l\\"));
        assert!(!is_complete("ls \\\n -l\\\nb\\"));
        assert!(is_complete("C:\\\\") && is_complete("") && is_complete("a"));
        assert_eq!(
            continued.joined("ls \\\n -l\\\nb\\\nc".to_owned()),
            "ls \\\n -l\nb\nc"
        );
        // Nothing of it is left for the next prompt.
        assert_eq!(
            continued.joined("ls \\\n -l\\\nb".to_owned()),
            "ls \\\n -l\\\nb"
        );
    }
}
