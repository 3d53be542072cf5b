//! The title of a conversation: the first words of its first prompt.
//!
//! Pure.

use super::{Entry, EntryBody, StoredEntry};
use crate::chat::Message;

/// Characters of a title.
const CHARS: usize = 60;

/// Entries that a caller reads to find the title. A conversation begins with its first prompt or an
/// import, after at most a few entries that hold neither.
pub const TITLE_ENTRIES: usize = 4;

/// Returns the first words of the first prompt among these entries, on one line; `None` without one.
pub fn title(first: &[StoredEntry]) -> Option<String> {
    first.iter().find_map(|stored| {
        let text = match first_imported(stored) {
            Some(message) => message.text(),
            None => match Entry::decode(stored).ok()?.body {
                EntryBody::PromptAccepted { message, .. } => message?.text(),
                EntryBody::Imported { messages, .. } => messages.first()?.text(),
                _ => return None,
            },
        };
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        Some(clipped(&words)).filter(|title| !title.is_empty())
    })
}

/// The first message of an import, of which the other messages are not read: there may be many.
/// `None` for another entry, or one that is written in another way.
fn first_imported(stored: &StoredEntry) -> Option<Message> {
    const ENVELOPE_MAX: usize = 256;
    let begin = &b"\"kind\":\"imported\",\"body\":{\"messages\":["[..];
    let envelope = stored.bytes.get(..ENVELOPE_MAX.min(stored.bytes.len()))?;
    let at = envelope
        .windows(begin.len())
        .position(|text| text == begin)?;
    let messages = stored.bytes.get(at + begin.len()..)?;
    let mut messages = serde_json::Deserializer::from_slice(messages).into_iter();
    messages.next()?.ok()
}

fn clipped(words: &str) -> String {
    match words.char_indices().nth(CHARS) {
        Some((end, _)) => format!("{}…", words.get(..end).unwrap_or_default()),
        None => words.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::{Epoch, Seq},
        time::Timestamp,
    };

    #[test]
    fn of_an_import_the_first_message_alone_is_read() {
        let messages = vec![Message::user("Why is\n it slow?"), Message::user("b")];
        let body = EntryBody::Imported {
            messages,
            rounds: Vec::new(),
        };
        let entry = Entry {
            seq: Seq(1),
            epoch: Epoch(1),
            at: Timestamp(1),
            body,
        };
        let mut stored = entry.encode();
        stored.bytes.truncate(stored.bytes.len() - 20);

        assert_eq!(title(&[stored]).as_deref(), Some("Why is it slow?"));
    }
}
