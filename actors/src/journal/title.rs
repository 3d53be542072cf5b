//! The title of a conversation: the first words of its first prompt.
//!
//! Pure.

use super::{Entry, EntryBody, StoredEntry};

/// Characters of a title.
const CHARS: usize = 60;

/// Entries that a caller reads to find the title. A conversation begins with its first prompt or an
/// import, after at most a few entries that hold neither.
pub const TITLE_ENTRIES: usize = 4;

/// Returns the first words of the first prompt among these entries, on one line; `None` without one.
pub fn title(first: &[StoredEntry]) -> Option<String> {
    first.iter().find_map(|stored| {
        let text = match Entry::decode(stored).ok()?.body {
            EntryBody::PromptAccepted { message, .. } => message?.text(),
            EntryBody::Imported { messages, .. } => messages.first()?.text(),
            _ => return None,
        };
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        Some(clipped(&words)).filter(|title| !title.is_empty())
    })
}

fn clipped(words: &str) -> String {
    match words.char_indices().nth(CHARS) {
        Some((end, _)) => format!("{}…", words.get(..end).unwrap_or_default()),
        None => words.to_owned(),
    }
}
