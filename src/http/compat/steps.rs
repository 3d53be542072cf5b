//! What the events of a round mean for one call of a compatible API: text as it comes, and the end,
//! which is the end of the round or the moment in which it waits for its client's tools. Pure.

use std::collections::HashSet;

use callboard_actors::{
    chat::{ContentBlock, Message, ToolUseBlock, Usage},
    ids::Seq,
    stream::{EventKind, Failure, StopReason},
};

use super::prefix::Prefix;

/// What follows from an event.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::http) enum Step {
    Text(String),
    Thinking(String),
    /// A message is whole.
    Message(Whole),
    Ended(Ended),
    Failed(Failure),
}

/// A message of the model, with what of its text was not given as it came. Shares its bytes.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::http) struct Whole {
    pub(in crate::http) message: Message,
    /// The bytes of its text that were given; `None` if nothing is missing.
    missing_from: Option<usize>,
    /// Whether a newline separates what is missing from an earlier message.
    is_separated: bool,
}

impl Whole {
    /// Its thoughts, as the provider signed them.
    pub(in crate::http) fn thoughts(&self) -> Vec<ContentBlock> {
        thoughts(&self.message)
    }

    /// The part of its text that was not given.
    pub(in crate::http) fn missing(&self) -> Option<String> {
        let mut text = self.message.text();
        let mut missing = text.split_off(self.missing_from?.min(text.len()));
        if self.is_separated {
            missing.insert(0, '\n');
        }
        Some(missing)
    }
}

/// The end of a call.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::http) struct Ended {
    /// The last message of the model. Shares its bytes.
    pub(in crate::http) message: Option<Message>,
    /// Calls that the client has to run; empty at the end of the round.
    pub(in crate::http) calls: Vec<ToolUseBlock>,
    pub(in crate::http) stop: StopReason,
    /// Tokens of the model calls since the client's last request.
    pub(in crate::http) usage: Usage,
    /// The entry of the end.
    pub(in crate::http) seq: Seq,
}

impl Ended {
    /// Text of the last message of the model.
    pub(in crate::http) fn text(&self) -> String {
        self.message.as_ref().map(Message::text).unwrap_or_default()
    }

    /// Its thoughts, as the provider signed them.
    pub(in crate::http) fn thoughts(&self) -> Vec<ContentBlock> {
        self.message.as_ref().map(thoughts).unwrap_or_default()
    }

    /// Bytes of what it has: the message and the inputs of calls.
    pub(in crate::http) fn bytes(&self) -> usize {
        let message = self.message.as_ref();
        message.map_or(0, |message| message.wire().len()) + self.call_bytes()
    }

    /// Bytes of the inputs of its calls.
    pub(in crate::http) fn call_bytes(&self) -> usize {
        let inputs = self.calls.iter().map(|call| call.input.as_str().len());
        inputs.sum()
    }
}

/// A call of the open batch.
#[derive(Debug)]
struct OpenCall {
    call: ToolUseBlock,
    /// Whether the client has to run it.
    is_clients: bool,
}

/// Follows a round.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// Calls whose results this request brought: the call begins behind them.
    awaited: HashSet<String>,
    /// The entry behind which the call begins: the last of those results, or none for the first
    /// call of a round.
    begins_at: Seq,
    /// The entry of the last event.
    seq: Seq,
    open: Vec<OpenCall>,
    usage: Usage,
    /// The last message of the round, and of this call.
    last: Option<Message>,
    message: Option<Message>,
    /// Text already given of the message that the model is writing.
    given: Prefix,
    /// Whether an earlier message of the call was given; a newline separates the two.
    has_more: bool,
}

impl Steps {
    /// Follows a round from its start, or behind the results of these calls.
    pub(super) fn new(awaited: HashSet<String>) -> Self {
        Self {
            awaited,
            ..Self::default()
        }
    }

    /// Follows a call whose beginning is known.
    pub(super) fn behind(begins_at: Seq) -> Self {
        Self {
            begins_at,
            ..Self::default()
        }
    }

    /// The entry behind which the call begins. It is known once the call [is here](Self::is_here).
    pub(super) fn begins_at(&self) -> Seq {
        self.begins_at
    }

    /// Takes the next event, which follows from the entry `seq`.
    pub(super) fn take(&mut self, seq: Seq, event: &EventKind) -> Vec<Step> {
        self.seq = seq;
        let mut steps = Vec::new();
        match event {
            EventKind::TextDelta { text } if self.is_here() => self.give(text, &mut steps),
            EventKind::ThinkingDelta { text } if self.is_here() => {
                steps.push(Step::Thinking(text.clone()));
            }
            EventKind::Usage { usage, .. } if self.is_here() => self.usage = self.usage.plus(usage),
            EventKind::Message { message, .. } => {
                let to_open = |call| OpenCall {
                    call,
                    is_clients: false,
                };
                self.open = message.tool_uses().into_iter().map(to_open).collect();
                self.last = Some(message.clone());
                if !self.is_here() {
                    return steps;
                }
                self.message = Some(message.clone());
                // Deltas are dropped for a client that reads slowly, messages are not: give what
                // this one lacks.
                let text = message.text();
                let missing = self.given.rest(&text);
                steps.push(Step::Message(Whole {
                    message: message.clone(),
                    missing_from: missing.map(|missing| text.len() - missing.len()),
                    is_separated: self.given.is_empty() && self.has_more,
                }));
                self.has_more |= !self.given.is_empty() || missing.is_some();
                self.given = Prefix::default();
            }
            EventKind::ClientToolCall {
                tool_call_id,
                input,
                ..
            } => {
                let is_it = |open: &&mut OpenCall| open.call.id == *tool_call_id;
                if let Some(open) = self.open.iter_mut().find(is_it) {
                    open.is_clients = true;
                    open.call.input = input.clone();
                }
                steps.extend(self.at_client());
            }
            EventKind::ToolResult { tool_call_id, .. } => {
                if self.awaited.remove(tool_call_id) {
                    self.begins_at = seq;
                }
                self.open.retain(|open| open.call.id != *tool_call_id);
                steps.extend(self.at_client());
            }
            EventKind::RoundFinished { end } => steps.push(match failure_of(end) {
                Some(failure) => Step::Failed(failure.clone()),
                None => Step::Ended(Ended {
                    message: self.last.clone(),
                    calls: Vec::new(),
                    stop: end.stop_reason,
                    usage: self.usage,
                    seq,
                }),
            }),
            EventKind::Error { failure } => steps.push(Step::Failed(failure.clone())),
            _ => {}
        }
        steps
    }

    /// Whether the results that the request brought have been seen.
    pub(super) fn is_here(&self) -> bool {
        self.awaited.is_empty() && self.seq >= self.begins_at
    }

    fn give(&mut self, text: &str, steps: &mut Vec<Step>) {
        if self.given.is_empty() && self.has_more {
            steps.push(Step::Text("\n".to_owned()));
        }
        self.given.push(text);
        steps.push(Step::Text(text.to_owned()));
    }

    /// The end of the call, if the round waits for its client alone.
    fn at_client(&self) -> Option<Step> {
        let waits =
            self.is_here() && !self.open.is_empty() && self.open.iter().all(|open| open.is_clients);
        waits.then(|| {
            Step::Ended(Ended {
                message: self.message.clone(),
                calls: self.open.iter().map(|open| open.call.clone()).collect(),
                stop: StopReason::EndTurn,
                usage: self.usage,
                seq: self.seq,
            })
        })
    }
}

/// The blocks of a message that a provider takes back unchanged and in front of its calls.
fn thoughts(message: &Message) -> Vec<ContentBlock> {
    let is_thought =
        |block: &ContentBlock| ["thinking", "redacted_thinking"].contains(&block.kind());
    let blocks = message.blocks().into_iter();
    blocks.filter(is_thought).collect()
}

/// The failure of a round. A round that its budget cut has an answer if the model wrote any text;
/// the reason of its end says that it is cut.
fn failure_of(end: &callboard_actors::stream::RoundEnd) -> Option<&Failure> {
    let is_cut = end.stop_reason == StopReason::Budget && !end.text.is_empty();
    end.error.as_ref().filter(|_| !is_cut)
}

#[cfg(test)]
mod tests {
    use callboard_actors::{
        chat::{RawJson, Role},
        time::Timestamp,
    };

    use super::*;

    fn call(id: &str) -> ToolUseBlock {
        ToolUseBlock {
            id: id.to_owned(),
            name: format!("tool of {id}"),
            input: RawJson::empty_object(),
        }
    }

    fn message(text: &str, ids: &[&str]) -> EventKind {
        let calls = ids.iter().map(|id| ContentBlock::ToolUse(call(id)));
        let blocks: Vec<_> = [ContentBlock::text(text)]
            .into_iter()
            .chain(calls)
            .collect();
        EventKind::Message {
            message: Message::new(Role::Assistant, &blocks).unwrap(),
            partial: false,
        }
    }

    fn at_client(id: &str) -> EventKind {
        EventKind::ClientToolCall {
            tool_call_id: id.to_owned(),
            name: String::new(),
            input: RawJson::empty_object(),
            expires_at: Timestamp(0),
        }
    }

    fn result(id: &str) -> EventKind {
        EventKind::ToolResult {
            tool_call_id: id.to_owned(),
            name: String::new(),
            is_error: false,
            summary: String::new(),
            duration_ms: 0,
            preview: String::new(),
            retry_count: 0,
            artifact_id: None,
        }
    }

    /// The texts and the ids of calls that these events lead to.
    fn followed(steps: &mut Steps, events: &[EventKind]) -> Vec<String> {
        let mut all = Vec::new();
        for event in events {
            all.extend(steps.take(Seq(steps.seq.0 + 1), event));
        }
        let shown = |step| match step {
            Step::Text(text) => Some(text),
            Step::Message(whole) => whole.missing(),
            Step::Ended(ended) => {
                let ids: Vec<_> = ended.calls.iter().map(|call| call.id.as_str()).collect();
                Some(format!("calls {}", ids.join(" ")))
            }
            other => Some(format!("{other:?}")),
        };
        all.into_iter().filter_map(shown).collect()
    }

    #[test]
    fn text_that_did_not_come_in_pieces_is_given_with_its_message() {
        let delta = |text: &str| EventKind::TextDelta { text: text.into() };
        let mut steps = Steps::new(HashSet::new());
        let first = [delta("Let "), delta("me"), message("Let me see.", &[])];
        assert_eq!(followed(&mut steps, &first), ["Let ", "me", " see."]);
        let second = [message("Sunny.", &[]), delta("It"), message("It is.", &[])];
        assert_eq!(
            followed(&mut steps, &second),
            ["\nSunny.", "\n", "It", " is."]
        );
        let lost = [delta("is"), message("What is it?", &[])];
        assert_eq!(followed(&mut steps, &lost), ["\n", "is"]);
    }

    #[test]
    fn a_call_ends_when_every_open_tool_is_the_clients() {
        let mut steps = Steps::new(HashSet::new());
        let events = [
            message("Let me see.", &["a", "own", "b"]),
            at_client("a"),
            at_client("b"),
        ];
        assert_eq!(followed(&mut steps, &events), ["Let me see."]);

        let end = followed(&mut steps, &[result("own")]);

        assert_eq!(end, ["calls a b"], "the host's own tool was waited for");
    }

    #[test]
    fn a_call_that_brings_results_begins_behind_them_and_names_what_is_left() {
        let before = [
            message("Let me see.", &["a", "b"]),
            at_client("a"),
            at_client("b"),
        ];
        let mut some = Steps::new(HashSet::from(["a".to_owned()]));
        assert!(
            followed(&mut some, &before).is_empty(),
            "it was given before"
        );
        assert_eq!(followed(&mut some, &[result("a")]), ["calls b"]);

        let mut all = Steps::new(HashSet::from(["a".to_owned(), "b".to_owned()]));
        assert!(followed(&mut all, &before).is_empty());
        let rest = [result("b"), result("a"), message("Sunny.", &[])];
        assert_eq!(followed(&mut all, &rest), ["Sunny."]);
    }

    #[test]
    fn a_call_is_read_again_from_the_entry_behind_which_it_began() {
        let round = [
            message("Let me see.", &["a", "b"]),
            at_client("a"),
            at_client("b"),
            result("a"),
            result("b"),
            message("Sunny.", &[]),
        ];
        let of = |ids: &[&str]| Steps::new(ids.iter().map(|id| (*id).to_owned()).collect());
        for (mut first, expected) in [
            (of(&[]), vec!["Let me see.", "calls a b"]),
            (of(&["a"]), vec!["calls b"]),
            (of(&["a", "b"]), vec!["Sunny."]),
        ] {
            let seen = followed(&mut first, &round);
            let mut again = Steps::behind(first.begins_at());
            let read = followed(&mut again, &round);

            assert_eq!(seen, read);
            assert_eq!(read[..expected.len()], expected);
        }
    }
}
