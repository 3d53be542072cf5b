//! Edits of a history as data. The journal stores the edits, and applying them again gives the same
//! history.
//!
//! Pure.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::{History, HistoryError, Message, Role};

/// One step over the old messages, from the first to the last. Messages behind the last step are
/// kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Edit {
    /// Keeps this number of messages.
    Keep(u32),
    /// Drops this number of messages.
    Drop(u32),
    /// Inserts a new message.
    Put(Message),
    /// Replaces one message by another form of it, which keeps its place.
    Replace(Message),
}

impl Edit {
    /// Returns the new index of each of `len` old messages; `None` for dropped ones.
    pub(crate) fn moves(edits: &[Self], len: usize) -> Vec<Option<u32>> {
        let mut moves = Vec::with_capacity(len);
        let mut next = 0_u32;
        for edit in edits {
            match edit {
                Self::Keep(count) => {
                    moves.extend(
                        (next..next.saturating_add(*count))
                            .map(Some)
                            .take(len - moves.len()),
                    );
                    next = next.saturating_add(*count);
                }
                Self::Drop(count) => moves.extend(std::iter::repeat_n(
                    None,
                    (*count as usize).min(len - moves.len()),
                )),
                Self::Put(_) => next = next.saturating_add(1),
                Self::Replace(_) => {
                    moves.extend((moves.len() < len).then_some(Some(next)));
                    next = next.saturating_add(1);
                }
            }
        }
        moves.extend((next..).map(Some).take(len - moves.len()));
        moves
    }
}

impl History {
    /// Applies `edits` and returns the new history. Messages are shared, not copied, at the cost of
    /// one pointer per message.
    ///
    /// # Errors
    /// [`HistoryError`] when the edits name more messages than exist, or separate a call from its
    /// result.
    pub fn edited(&self, edits: &[Edit]) -> Result<Self, HistoryError> {
        let mut edited = Rebuilt::default();
        let mut old = self.messages().iter();
        for edit in edits {
            match edit {
                Edit::Keep(count) => {
                    for _ in 0..*count {
                        edited.push(old.next().ok_or(HistoryError::BeyondEnd)?)?;
                    }
                }
                Edit::Drop(count) => {
                    for _ in 0..*count {
                        old.next().ok_or(HistoryError::BeyondEnd)?;
                    }
                }
                Edit::Put(message) => edited.push(message)?,
                Edit::Replace(message) => {
                    old.next().ok_or(HistoryError::BeyondEnd)?;
                    edited.push(message)?;
                }
            }
        }
        for message in old {
            edited.push(message)?;
        }
        edited.finish()
    }

    /// Returns the longest valid prefix of at most `count` messages, and its length. A prefix never
    /// ends between calls and their results. For forks and rewinds.
    pub fn prefix(&self, count: usize) -> (Self, usize) {
        let count = count.min(self.messages().len());
        let torn = count > 0
            && self
                .messages()
                .get(count - 1)
                .is_some_and(|last| !last.tool_use_ids().is_empty());
        let border = count - usize::from(torn);
        (
            Self::from_valid(self.messages().range(0..border).cloned().collect()),
            border,
        )
    }
}

/// A history that is rebuilt message by message.
#[derive(Default)]
struct Rebuilt {
    history: History,
    calls: Option<Message>,
}

impl Rebuilt {
    fn push(&mut self, message: &Message) -> Result<(), HistoryError> {
        if let Some(calls) = self.calls.take() {
            return self.history.push_exchange(calls, message.clone());
        }
        match message.role() {
            Role::User => self.history.push_user(message.clone()),
            Role::Assistant if message.tool_use_ids().is_empty() => {
                self.history.push_assistant(message.clone())
            }
            Role::Assistant => {
                self.calls = Some(message.clone());
                Ok(())
            }
            Role::System => Err(HistoryError::WrongRole {
                expected: Role::User,
            }),
        }
    }

    fn finish(self) -> Result<History, HistoryError> {
        if self.calls.is_some() {
            Err(HistoryError::Unpaired)
        } else {
            Ok(self.history)
        }
    }
}

/// Returns the name of a span of messages: the first 16 hex digits of the SHA-256 of its canonical
/// JSON, keys sorted. The author of a summary and its reader must both use this function.
pub(crate) fn span_hash<'a>(messages: impl IntoIterator<Item = &'a Message>) -> String {
    let mut hash = Sha256::new();
    let mut text = String::new();
    hash.update(b"[");
    for (index, message) in messages.into_iter().enumerate() {
        text.clear();
        if index > 0 {
            text.push(',');
        }
        canonical(message.wire_str(), &mut text);
        hash.update(text.as_bytes());
    }
    hash.update(b"]");
    hash.finalize()
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Writes JSON without whitespace, with sorted keys and uniform escapes. Numbers stay as written.
/// [`crate::limits::JSON_DEPTH_MAX`] bounds the recursion.
fn canonical(json: &str, out: &mut String) {
    match json.as_bytes().first() {
        Some(b'{') => {
            let members: BTreeMap<Cow<'_, str>, &RawValue> =
                serde_json::from_str(json).unwrap_or_default();
            out.push('{');
            for (index, (key, value)) in members.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                string(key, out);
                out.push(':');
                canonical(value.get(), out);
            }
            out.push('}');
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(json).unwrap_or_default();
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                canonical(item.get(), out);
            }
            out.push(']');
        }
        Some(b'"') if json.contains('\\') => string(
            &serde_json::from_str::<String>(json).unwrap_or_default(),
            out,
        ),
        _ => out.push_str(json),
    }
}

fn string(text: &str, out: &mut String) {
    out.push_str(&serde_json::to_string(text).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::{ContentBlock, RawJson, ToolResultBlock, ToolUseBlock};

    fn exchange(id: &str) -> (Message, Message) {
        let call = ToolUseBlock {
            id: id.into(),
            name: "f".into(),
            input: RawJson::empty_object(),
        };
        let result = ToolResultBlock {
            tool_use_id: id.into(),
            content: crate::chat::ToolResultContent::default(),
            is_error: false,
        };
        (
            Message::new(Role::Assistant, &[ContentBlock::ToolUse(call)]).unwrap(),
            Message::tool_results([result], []),
        )
    }

    fn history() -> History {
        let (calls, results) = exchange("a");
        let mut history = History::default();
        history.push_user(Message::user("one")).unwrap();
        history.push_exchange(calls, results).unwrap();
        history.push_assistant(Message::assistant("two")).unwrap();
        history
    }

    #[test]
    fn edits_are_data_and_what_they_do_not_name_is_kept() {
        let edits = vec![
            Edit::Keep(1),
            Edit::Drop(2),
            Edit::Put(Message::user("new")),
        ];
        let text = serde_json::to_string(&edits).unwrap();

        let edited = history()
            .edited(&serde_json::from_str::<Vec<Edit>>(&text).unwrap())
            .unwrap();

        assert_eq!(
            text,
            r#"[{"keep":1},{"drop":2},{"put":{"role":"user","content":[{"type":"text","text":"new"}]}}]"#
        );
        assert_eq!(
            edited
                .messages()
                .iter()
                .map(Message::text)
                .collect::<Vec<_>>(),
            ["one", "new", "two"]
        );
        assert_eq!(edited.messages().first_fault(), None);
        assert_eq!(history().edited(&[]), Ok(history()));
    }

    #[test]
    fn a_replaced_message_keeps_its_place() {
        let edits = vec![Edit::Keep(3), Edit::Replace(Message::assistant("new"))];
        let text = serde_json::to_string(&edits).unwrap();

        let edited = history()
            .edited(&serde_json::from_str::<Vec<Edit>>(&text).unwrap())
            .unwrap();

        assert_eq!(
            edited
                .messages()
                .iter()
                .map(Message::text)
                .next_back()
                .unwrap(),
            "new"
        );
        assert_eq!(edited.messages().len(), 4);
        assert_eq!(
            Edit::moves(&edits, 5),
            [0, 1, 2, 3, 4].map(Some),
            "no message moves"
        );
        assert_eq!(
            history().edited(&[Edit::Keep(4), Edit::Replace(Message::user("x"))]),
            Err(HistoryError::BeyondEnd)
        );
        let (calls, _) = exchange("b");
        assert_eq!(
            history().edited(&[Edit::Keep(3), Edit::Replace(calls)]),
            Err(HistoryError::Unpaired)
        );
    }

    #[test]
    fn edits_that_would_tear_a_call_from_its_result_are_refused() {
        let (calls, results) = exchange("b");

        assert_eq!(
            history().edited(&[Edit::Keep(1), Edit::Drop(1)]),
            Err(HistoryError::Unpaired)
        );
        assert_eq!(
            history().edited(&[Edit::Keep(2), Edit::Drop(1)]),
            Err(HistoryError::WrongRole {
                expected: Role::User
            })
        );
        assert_eq!(
            history().edited(&[Edit::Keep(2), Edit::Put(Message::user("x"))]),
            Err(HistoryError::Unpaired)
        );
        assert_eq!(
            history().edited(&[Edit::Keep(4), Edit::Put(calls.clone())]),
            Err(HistoryError::Unpaired)
        );
        assert_eq!(
            history().edited(&[Edit::Keep(4), Edit::Put(results.clone())]),
            Err(HistoryError::Unpaired)
        );
        assert_eq!(
            history().edited(&[Edit::Drop(5)]),
            Err(HistoryError::BeyondEnd)
        );
        assert_eq!(
            history()
                .edited(&[Edit::Keep(4), Edit::Put(calls), Edit::Put(results)])
                .unwrap()
                .messages()
                .len(),
            6
        );
    }

    #[test]
    fn a_prefix_never_ends_between_calls_and_results() {
        let borders: Vec<usize> = (0..7).map(|count| history().prefix(count).1).collect();

        assert_eq!(borders, [0, 1, 1, 3, 4, 4, 4]);
        for count in 0..7 {
            let (prefix, border) = history().prefix(count);
            assert_eq!(
                (prefix.messages().len(), prefix.messages().first_fault()),
                (border, None)
            );
        }
    }

    #[test]
    fn a_span_has_one_name_however_its_json_was_written() {
        let plain = Message::from_wire(
            r#"{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{"a":1.0,"b":"\u00e9"}}]}"#.as_bytes(),
        )
        .unwrap();
        let other = Message::from_wire("{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\",\"input\":{ \"b\": \"é\", \"a\": 1.0}}]}".as_bytes()).unwrap();
        let changed = Message::from_wire(
            r#"{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{"a":1.00,"b":"é"}}]}"#.as_bytes(),
        )
        .unwrap();

        assert_ne!(plain.wire(), other.wire());
        assert_eq!(span_hash([&plain]), span_hash([&other]));
        assert_ne!(span_hash([&plain]), span_hash([&changed]));
        assert_ne!(span_hash([&plain, &plain]), span_hash([&plain]));
        assert_eq!(span_hash([]), "4f53cda18c2baa0c");
        assert_eq!(span_hash([&Message::user("x")]).len(), 16);
    }
}
