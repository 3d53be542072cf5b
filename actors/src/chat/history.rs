//! A history of messages that always holds the pairing rule: every `tool_use` has its `tool_result`
//! in the next message, and every `tool_result` its `tool_use`. No method can break the rule, and
//! [`History::repair`] mends a list from outside.
//!
//! Pure.

use std::collections::{HashMap, HashSet};

use super::{ContentBlock, Message, MessageList, Role, ToolResultBlock, ToolResultContent};

/// Why a message cannot enter a history.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    /// The other role is expected next.
    #[error("expected a message of role {expected:?}")]
    WrongRole {
        /// The expected role.
        expected: Role,
    },
    /// Calls and results do not pair one to one and in order.
    #[error("tool calls and tool results do not pair")]
    Unpaired,
    /// A call id appears twice in one message.
    #[error("tool call id {0:?} appears twice")]
    RepeatedId(String),
    /// An edit names more messages than exist.
    #[error("the edits name more messages than there are")]
    BeyondEnd,
}

/// What [`History::repair`] or [`History::mend`] changed in one message.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Repair {
    /// Index of the message in the input.
    pub index: usize,
    /// The fault and its repair, for people.
    pub what: String,
}

/// A place of a list that differs from the form of a [`History`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// Index of the message.
    pub(super) index: usize,
    /// Index of the block; `None` for the whole message.
    pub(super) block: Option<usize>,
    /// Whether providers refuse it. If not, only the form differs.
    pub(super) is_fault: bool,
    /// The difference and its repair, for people.
    pub(super) what: String,
}

impl Finding {
    pub(super) fn fault(index: usize, block: Option<usize>, what: impl Into<String>) -> Self {
        Self {
            index,
            block,
            is_fault: true,
            what: what.into(),
        }
    }

    pub(super) fn form(index: usize, block: Option<usize>, what: impl Into<String>) -> Self {
        Self {
            is_fault: false,
            ..Self::fault(index, block, what)
        }
    }
}

impl From<Finding> for Repair {
    fn from(finding: Finding) -> Self {
        Self {
            index: finding.index,
            what: finding.what,
        }
    }
}

/// Messages that hold the pairing rule of this module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    messages: MessageList,
}

impl History {
    /// Returns the messages.
    pub fn messages(&self) -> &MessageList {
        &self.messages
    }

    /// Wraps messages that a function of this module has already checked.
    pub(super) fn from_valid(messages: MessageList) -> Self {
        Self { messages }
    }

    /// Appends a user message without tool results.
    ///
    /// # Errors
    /// [`HistoryError`] for another role or a message with tool results.
    pub fn push_user(&mut self, message: Message) -> Result<(), HistoryError> {
        if message.role() != Role::User {
            return Err(HistoryError::WrongRole {
                expected: Role::User,
            });
        }
        if !message.tool_result_ids().is_empty() {
            return Err(HistoryError::Unpaired);
        }
        self.messages.push(message);
        Ok(())
    }

    /// Appends an assistant message without tool calls.
    ///
    /// # Errors
    /// [`HistoryError`] for another role or a message with tool calls.
    pub fn push_assistant(&mut self, message: Message) -> Result<(), HistoryError> {
        if message.role() != Role::Assistant {
            return Err(HistoryError::WrongRole {
                expected: Role::Assistant,
            });
        }
        if !message.tool_use_ids().is_empty() {
            return Err(HistoryError::Unpaired);
        }
        self.messages.push(message);
        Ok(())
    }

    /// Appends an assistant message with tool calls, and the user message with the results of all
    /// calls, in call order.
    ///
    /// # Errors
    /// [`HistoryError`] when a role is wrong, an id repeats, or calls and results differ.
    pub fn push_exchange(&mut self, calls: Message, results: Message) -> Result<(), HistoryError> {
        check_exchange(&calls, &results)?;
        self.messages.push(calls);
        self.messages.push(results);
        Ok(())
    }

    /// Removes and returns the last message, if it is a user message without tool results.
    pub(crate) fn withdraw_last_user(&mut self) -> Option<Message> {
        let last = self.messages.last()?;
        if last.role() == Role::User && last.tool_result_ids().is_empty() {
            self.messages.pop()
        } else {
            None
        }
    }

    /// Keeps the first `keep` messages and removes the others.
    ///
    /// # Errors
    /// [`HistoryError::Unpaired`] when the cut would separate calls from their results; then
    /// nothing is removed.
    pub(crate) fn cut(&mut self, keep: usize) -> Result<(), HistoryError> {
        if self
            .messages
            .iter()
            .nth(keep)
            .is_some_and(|next| !next.tool_result_ids().is_empty())
        {
            return Err(HistoryError::Unpaired);
        }
        while self.messages.len() > keep {
            self.messages.pop();
        }
        Ok(())
    }

    /// Builds a history from any messages. Repairs what breaks the pairing rule and returns a list
    /// of the repairs. [`History::mend`] also repairs what the messages hold.
    ///
    /// All text of a person stays where it was. A call without a result gets an error result; a
    /// result without a call becomes text; a repeated id within a message keeps its first use.
    pub fn repair(messages: impl IntoIterator<Item = Message>) -> (Self, Vec<Repair>) {
        let (history, findings) = Self::paired(messages);
        (history, findings.into_iter().map(Repair::from).collect())
    }

    /// [`History::repair`], with the places of the repairs.
    pub(super) fn paired(messages: impl IntoIterator<Item = Message>) -> (Self, Vec<Finding>) {
        let mut history = Self::default();
        let mut repairs = Vec::new();
        // A message with calls stays in `open` until the next message shows which results it has.
        let mut open: Option<(usize, Message)> = None;
        for (index, message) in messages.into_iter().enumerate() {
            match message.role() {
                Role::User => {
                    let calls = open.take();
                    history.answer(calls, Some((index, message)), &mut repairs);
                }
                Role::Assistant | Role::System => {
                    let calls = open.take();
                    history.answer(calls, None, &mut repairs);
                    let message = without_repeated_ids(index, message, &mut repairs);
                    if message.tool_use_ids().is_empty() {
                        history.messages.push(message);
                    } else {
                        open = Some((index, message));
                    }
                }
            }
        }
        history.answer(open, None, &mut repairs);
        (history, repairs)
    }

    /// Pairs the open calls with the user message that follows them. Either may be missing.
    fn answer(
        &mut self,
        calls: Option<(usize, Message)>,
        user: Option<(usize, Message)>,
        repairs: &mut Vec<Finding>,
    ) {
        let Some((call_index, calls)) = calls else {
            if let Some((index, user)) = user {
                self.messages
                    .push(without_stray_results(index, user, repairs));
            }
            return;
        };
        if let Some((_, user)) = &user
            && check_exchange(&calls, user).is_ok()
        {
            self.messages.push(calls);
            self.messages.push(user.clone());
            return;
        }
        // Results are rebuilt in call order, with an error result for each call that has none.
        // Blocks that are not the first result of a call follow behind them: other blocks as they
        // are, surplus results as text.
        let (user_index, blocks) = user.map_or((call_index, Vec::new()), |(index, message)| {
            (index, message.blocks())
        });
        let found_before = repairs.len();
        let mut first: HashMap<&str, &ToolResultBlock> = HashMap::new();
        for block in &blocks {
            if let ContentBlock::ToolResult(result) = block {
                first.entry(&result.tool_use_id).or_insert(result);
            }
        }
        let mut results: Vec<ToolResultBlock> = Vec::new();
        for id in calls.tool_use_ids() {
            let found = first.get(&**id).map(|result| (*result).clone());
            results.push(found.unwrap_or_else(|| {
                repairs.push(Finding::fault(
                    call_index,
                    place_of_call(&calls, id),
                    format!("tool_use {id} had no result: an error result was added"),
                ));
                ToolResultBlock {
                    tool_use_id: id.to_string(),
                    content: ToolResultContent::Text(
                        "[no result was recorded for this call]".into(),
                    ),
                    is_error: true,
                }
            }));
        }
        let known: HashSet<&str> = calls.tool_use_ids().iter().map(|id| &**id).collect();
        let mut answered: HashSet<String> = HashSet::new();
        let mut rest = Vec::new();
        for (place, block) in blocks.iter().cloned().enumerate() {
            match block {
                ContentBlock::ToolResult(result) => {
                    let is_first = known.contains(&*result.tool_use_id)
                        && answered.insert(result.tool_use_id.clone());
                    if !is_first {
                        rest.push(stray(user_index, place, &result, repairs));
                    }
                }
                other => rest.push(other),
            }
        }
        if repairs.len() == found_before {
            repairs.push(Finding::form(
                user_index,
                None,
                "tool results were put in call order, before other blocks",
            ));
        }
        self.messages.push(calls);
        self.messages.push(Message::tool_results(results, rest));
    }
}

fn place_of_call(message: &Message, id: &str) -> Option<usize> {
    let calls =
        |block: &ContentBlock| matches!(block, ContentBlock::ToolUse(call) if call.id == id);
    message.blocks().iter().position(calls)
}

fn stray(
    index: usize,
    block: usize,
    result: &ToolResultBlock,
    repairs: &mut Vec<Finding>,
) -> ContentBlock {
    let id = &result.tool_use_id;
    repairs.push(Finding::fault(
        index,
        Some(block),
        format!("tool_result {id} had no call before it: kept as text"),
    ));
    ContentBlock::text(format!(
        "[result of tool call {id}]\n{}",
        result.content.text()
    ))
}

fn without_stray_results(index: usize, message: Message, repairs: &mut Vec<Finding>) -> Message {
    if message.tool_result_ids().is_empty() {
        return message;
    }
    let blocks: Vec<_> = message
        .blocks()
        .into_iter()
        .enumerate()
        .map(|(place, block)| match block {
            ContentBlock::ToolResult(result) => stray(index, place, &result, repairs),
            other => other,
        })
        .collect();
    Message::new(Role::User, &blocks).unwrap_or(message)
}

fn without_repeated_ids(index: usize, message: Message, repairs: &mut Vec<Finding>) -> Message {
    let mut seen = HashSet::new();
    if message.tool_use_ids().iter().all(|id| seen.insert(id)) {
        return message;
    }
    let mut seen = HashSet::new();
    let blocks: Vec<_> = message
        .blocks()
        .into_iter()
        .enumerate()
        .filter(|(place, block)| match block {
            ContentBlock::ToolUse(call) => {
                let first = seen.insert(call.id.clone());
                if !first {
                    repairs.push(Finding::fault(
                        index,
                        Some(*place),
                        format!(
                            "tool_use id {} appeared twice: the later one was dropped",
                            call.id
                        ),
                    ));
                }
                first
            }
            _ => true,
        })
        .map(|(_, block)| block)
        .collect();
    Message::new(Role::Assistant, &blocks).unwrap_or(message)
}

fn check_exchange(calls: &Message, results: &Message) -> Result<(), HistoryError> {
    if calls.role() != Role::Assistant {
        return Err(HistoryError::WrongRole {
            expected: Role::Assistant,
        });
    }
    if results.role() != Role::User {
        return Err(HistoryError::WrongRole {
            expected: Role::User,
        });
    }
    let ids = calls.tool_use_ids();
    if ids.is_empty() || ids != results.tool_result_ids() {
        return Err(HistoryError::Unpaired);
    }
    let mut seen = HashSet::new();
    match ids.iter().find(|id| !seen.insert(*id)) {
        Some(id) => Err(HistoryError::RepeatedId(id.to_string())),
        None => Ok(()),
    }
}

/// Checks of the pairing rule on any list, for tests and contract suites.
#[cfg(any(test, feature = "test-util"))]
impl MessageList {
    /// Returns a description of the first place that breaks the pairing rule.
    pub fn first_fault(&self) -> Option<String> {
        let messages: Vec<_> = self.iter().collect();
        let mut expected: &[Box<str>] = &[];
        for (index, message) in messages.iter().enumerate() {
            if message.tool_result_ids() != expected {
                return Some(format!(
                    "message {index}: results {:?}, calls {expected:?}",
                    message.tool_result_ids()
                ));
            }
            expected = if message.role() == Role::Assistant {
                message.tool_use_ids()
            } else {
                &[]
            };
        }
        (!expected.is_empty()).then(|| format!("calls {expected:?} at the end have no results"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::{RawJson, ToolUseBlock};

    fn calls(ids: &[&str]) -> Message {
        let blocks: Vec<_> = ids
            .iter()
            .map(|id| {
                ContentBlock::ToolUse(ToolUseBlock {
                    id: (*id).into(),
                    name: "f".into(),
                    input: RawJson::empty_object(),
                })
            })
            .collect();
        Message::new(Role::Assistant, &blocks).unwrap()
    }

    fn results(ids: &[&str]) -> Message {
        let result = |id: &&str| ToolResultBlock {
            tool_use_id: (*id).into(),
            content: ToolResultContent::Text("ok".into()),
            is_error: false,
        };
        Message::tool_results(ids.iter().map(result), [])
    }

    #[test]
    fn a_call_without_its_result_cannot_enter() {
        let mut history = History::default();

        assert_eq!(
            history.push_assistant(calls(&["a"])),
            Err(HistoryError::Unpaired)
        );
        assert_eq!(
            history.push_user(results(&["a"])),
            Err(HistoryError::Unpaired)
        );
        assert_eq!(
            history.push_exchange(calls(&["a", "b"]), results(&["a"])),
            Err(HistoryError::Unpaired)
        );
        assert_eq!(
            history.push_exchange(calls(&["a", "b"]), results(&["b", "a"])),
            Err(HistoryError::Unpaired)
        );
        assert_eq!(
            history.push_exchange(calls(&["a", "a"]), results(&["a", "a"])),
            Err(HistoryError::RepeatedId("a".into()))
        );
        assert!(history.messages().is_empty());
        assert_eq!(
            history.push_exchange(calls(&["a", "b"]), results(&["a", "b"])),
            Ok(())
        );
    }

    #[test]
    fn every_broken_list_is_repaired_and_no_user_text_is_lost() {
        let user = |text: &str| Message::user(text);
        let pieces: Vec<(&str, Message)> = vec![
            ("u", user("said")),
            ("c", calls(&["a"])),
            ("cc", calls(&["a", "b"])),
            ("dup", calls(&["a", "a"])),
            ("r", results(&["a"])),
            ("rev", results(&["b", "a"])),
            ("stray", results(&["x"])),
            ("t", Message::assistant("text")),
        ];
        let n = pieces.len();
        for code in 0..n.pow(4) {
            let list: Vec<Message> = (0..4)
                .map(|place| pieces[code / n.pow(place) % n].1.clone())
                .collect();
            let said = list.iter().filter(|m| m.text() == "said").count();

            let (history, repairs) = History::repair(list.clone());

            assert_eq!(history.messages().first_fault(), None, "{list:?}");
            assert_eq!(
                history
                    .messages()
                    .iter()
                    .filter(|m| m.text() == "said")
                    .count(),
                said
            );
            let valid = list
                .iter()
                .cloned()
                .collect::<MessageList>()
                .first_fault()
                .is_none()
                && list
                    .iter()
                    .all(|m| m.tool_use_ids() != [Box::from("a"), Box::from("a")]);
            assert_eq!(repairs.is_empty(), valid, "{list:?}\n{repairs:?}");
            assert_eq!(
                History::repair(history.messages().iter().cloned()),
                (history.clone(), vec![])
            );
        }
    }
}
