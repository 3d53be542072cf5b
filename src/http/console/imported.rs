//! The messages of an imported history: their texts, and their tool calls with arguments and
//! results, as other threads show them.
//!
//! Pure.

use std::collections::{HashMap, HashSet};

use callboard_actors::{
    chat::{ContentBlock, Message, ToolResultBlock},
    journal::ToolExecutionResult,
    time::Timestamp,
};

use super::items::{Call, calls};

/// The tool calls of a history.
#[derive(Debug, Default)]
pub(super) struct History {
    /// The calls of each message.
    calls: Vec<Vec<Call>>,
    /// The ids of the calls, with whose results they are shown.
    shown: HashSet<String>,
}

impl History {
    /// Reads the calls of some messages, each with its result among them. `at` is when they were
    /// imported.
    pub(super) fn of<'a>(messages: impl Iterator<Item = &'a Message>, at: Timestamp) -> Self {
        let mut history = Self::default();
        let mut results: HashMap<String, ToolResultBlock> = HashMap::new();
        for message in messages {
            history.calls.push(calls(message));
            results.extend(
                message
                    .blocks()
                    .into_iter()
                    .filter_map(|block| match block {
                        ContentBlock::ToolResult(result) => {
                            Some((result.tool_use_id.clone(), result))
                        }
                        _ => None,
                    }),
            );
        }
        for (call, index) in history.calls.iter_mut().flatten().zip(0..) {
            call.index = index; // Unique within the item, as its elements are.
            call.is_imported = true;
            // A provider may use an id again: the first call with it has the result.
            if let Some(result) = results.remove(&call.id) {
                call.finished = Some((at, outcome(&result)));
                history.shown.insert(call.id.clone());
            }
        }
        history
    }

    /// The calls of the message at this place.
    pub(super) fn calls(&self, place: usize) -> &[Call] {
        self.calls.get(place).map_or(&[], Vec::as_slice)
    }

    /// Whether a result is shown with its call.
    pub(super) fn has(&self, result: &ToolResultBlock) -> bool {
        self.shown.contains(&result.tool_use_id)
    }

    /// Whether a message has nothing but results that are shown with their calls.
    pub(super) fn is_shown(&self, message: &Message) -> bool {
        let blocks = message.blocks();
        let is_shown = |block: &ContentBlock| match block {
            ContentBlock::ToolResult(result) => self.has(result),
            _ => false,
        };
        !blocks.is_empty() && blocks.iter().all(is_shown)
    }
}

fn outcome(result: &ToolResultBlock) -> ToolExecutionResult {
    ToolExecutionResult {
        observation: result.content.text().to_string(),
        is_error: result.is_error,
        ..ToolExecutionResult::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_of_an_imported_history_has_its_arguments_and_its_result() {
        let wire = [
            r#"{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"bash","input":{"command":"ls"}},{"type":"tool_use","id":"t2","name":"think","input":{}}]}"#,
            r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"a.txt"}]}"#,
        ];
        let messages = wire.map(|wire| Message::from_wire(wire.as_bytes()).unwrap());

        let history = History::of(messages.iter(), Timestamp(1));

        let [bash, think] = history.calls(0) else {
            panic!("{history:?}");
        };
        let input = bash.input.as_ref().unwrap().as_str();
        let (_, result) = bash.finished.as_ref().unwrap();
        assert_eq!((&*bash.name, input), ("bash", r#"{"command":"ls"}"#));
        assert_eq!(&*result.observation, "a.txt");
        assert_eq!((think.index, think.finished.is_none()), (1, true));
        assert!(history.is_shown(&messages[1]) && !history.is_shown(&messages[0]));
    }
}
