//! The JSON of the HTTP API: what is sent and what comes back. Plain data; the document at `/openapi.json` is made of it.

use callboard_actors::{
    chat::{ContentBlock, Message, Usage},
    conversation::round::OnBusy,
    host::ConversationStatus,
    ids::{ConversationId, EventId, RoundId},
    journal::CompactionNote,
    ports::SessionSummary,
    stream::{Failure, Open, RoundEnd, RoundStatus, StopReason},
    time::Timestamp,
};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{SeqAccess, Visitor},
};
use utoipa::{IntoParams, ToSchema};

/// Longest deadline that may be asked for, in milliseconds: a day.
pub(super) const DEADLINE_MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// What is said: a text, or blocks in the form of Anthropic's API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    Text(String),
    Blocks(Vec<ContentBlock>),
}

/// By hand, so that a wrong block is named by its place.
impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Content;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string or a list of blocks")
            }

            fn visit_str<E>(self, text: &str) -> Result<Content, E> {
                Ok(Content::Text(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<Content, E> {
                Ok(Content::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Content, A::Error> {
                let mut blocks = Vec::new();
                while let Some(block) = list.next_element()? {
                    blocks.push(block);
                }
                Ok(Content::Blocks(blocks))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

impl Content {
    pub(super) fn into_blocks(self) -> Vec<ContentBlock> {
        match self {
            Self::Text(text) => vec![ContentBlock::text(text)],
            Self::Blocks(blocks) => blocks,
        }
    }
}

/// What becomes of a prompt that meets an open round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum WhenBusy {
    /// It waits its turn.
    #[default]
    Queue,
    /// It is refused with 409 `conversation_busy`.
    Reject,
    /// It ends the open round and takes its place.
    Interrupt,
    /// It is told to the model within the open round.
    Steer,
}

impl From<WhenBusy> for OnBusy {
    fn from(when: WhenBusy) -> Self {
        match when {
            WhenBusy::Queue => Self::Queue,
            WhenBusy::Reject => Self::Reject,
            WhenBusy::Interrupt => Self::Interrupt,
            WhenBusy::Steer => Self::Steer,
        }
    }
}

/// A prompt.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Say {
    /// A string, or a list of blocks in the form of Anthropic's Messages API (`text`, `image`, `document`).
    #[schema(value_type = Object)]
    pub(super) content: Content,
    /// What to do when a round is open.
    #[serde(default)]
    pub(super) on_busy: WhenBusy,
    /// Whether to answer with the round's events (`text/event-stream`).
    #[serde(default)]
    pub(super) stream: bool,
    /// How long the round may take, its wait included, in milliseconds; 1 to 86400000.
    #[schema(minimum = 1, maximum = 86_400_000)]
    pub(super) deadline_ms: Option<u64>,
}

/// How a round ended.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(super) struct Answer {
    /// The conversation.
    #[schema(value_type = String)]
    pub(super) conversation_id: ConversationId,
    /// The round; also the id of its stream.
    #[schema(value_type = String)]
    pub(super) round_id: RoundId,
    /// `completed`, or `error` when the round failed: then `error` says how, and the texts hold what was said until then.
    #[schema(value_type = String)]
    pub(super) status: RoundStatus,
    /// `end_turn`, `max_tokens`, `stop_sequence`, `refusal`, `iteration_limit`, `loop_guard`, `budget`, `interrupted`,
    /// `context_too_large` or `error`.
    #[schema(value_type = String)]
    pub(super) stop_reason: StopReason,
    /// The last message of the model.
    pub(super) text: String,
    /// All that the model said in the round.
    pub(super) full_text: String,
    /// Tokens of all its calls: `input_uncached`, `cache_read`, `cache_write`, `output`.
    #[schema(value_type = Object)]
    pub(super) usage: Usage,
    /// From its start to its end, in milliseconds.
    pub(super) latency_ms: u64,
    /// What failed: `code`, `message`, `retry_after_ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub(super) error: Option<Failure>,
}

impl Answer {
    pub(super) fn new(conversation_id: ConversationId, round_id: RoundId, end: RoundEnd) -> Self {
        let RoundEnd { status, stop_reason, text, full_text, usage, latency_ms, error } = end;
        Self { conversation_id, round_id, status, stop_reason, text, full_text, usage, latency_ms, error }
    }
}

/// A prompt that was taken; the round goes on by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Accepted {
    /// The conversation.
    #[schema(value_type = String)]
    pub(super) conversation_id: ConversationId,
    /// The round that the prompt opens, or, when it steers, the open one.
    #[schema(value_type = String)]
    pub(super) round_id: RoundId,
    /// The id of the round's stream: the same.
    #[schema(value_type = String)]
    pub(super) stream_id: RoundId,
    /// Where its events are.
    pub(super) events: String,
}

/// What to set in a conversation. Makes one that is not there.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Configure {
    /// A history to begin with, in place of what is there: messages in the form of Anthropic's API.
    #[schema(value_type = Option<Vec<Object>>)]
    pub(super) messages: Option<Vec<Message>>,
    /// Lines that the model is told and that stay through every compaction; added to those that are there.
    #[serde(default)]
    pub(super) pinned: Vec<String>,
}

/// A conversation in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Listed {
    /// The conversation.
    #[schema(value_type = String)]
    pub(super) conversation_id: ConversationId,
    /// `none`, `running` or `parked`: whether a round is open.
    #[schema(value_type = String)]
    pub(super) open: Open,
    /// When its first entry was stored, in milliseconds since 1970.
    #[schema(value_type = u64)]
    pub(super) created_at: Timestamp,
    /// When its last entry was stored.
    #[schema(value_type = u64)]
    pub(super) updated_at: Timestamp,
    /// Why it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<String>,
}

impl From<SessionSummary> for Listed {
    fn from(row: SessionSummary) -> Self {
        let SessionSummary { conversation, open, created_at, updated_at, failed, .. } = row;
        Self { conversation_id: conversation, open, created_at, updated_at, failed }
    }
}

/// A page of conversations, in order of their ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Conversations {
    /// The conversations.
    pub(super) conversations: Vec<Listed>,
    /// What to give as `after` for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
}

/// How a conversation stands and what it waits for.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(super) struct Standing {
    /// `conversation_id`, `state` (`asleep`, `idle`, `running`, `parked`, `failed`), `round_id`, `waits_for` with its `kind`, `since_ms`,
    /// `prompts_waiting`, `context`, `spent`, `budget_left`, `messages`, `rounds`, `created_at`, `updated_at`, `failure`.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub(super) status: ConversationStatus,
}

/// Which part of a list.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// Begins behind this one.
    pub(super) after: Option<String>,
    /// At most so many; 1 to 1000, 100 if absent.
    pub(super) limit: Option<usize>,
}

/// A message with its place.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(super) struct Placed {
    /// Its place in the history, from 0.
    pub(super) index: usize,
    /// The message in the form of Anthropic's API.
    #[schema(value_type = Object)]
    pub(super) message: Message,
}

/// A page of a conversation's history.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(super) struct History {
    /// The messages, oldest first.
    pub(super) messages: Vec<Placed>,
    /// Messages of the whole history.
    pub(super) total: usize,
    /// What to give as `after` for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<usize>,
}

/// Where a watcher begins.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct WatchFrom {
    /// Behind this event; the header `Last-Event-ID` wins, for a browser sends it when it comes back.
    pub(super) after: Option<String>,
    /// Only this round, until it ends.
    pub(super) round: Option<String>,
}

/// One event of a stream, as the `data` of a server-sent event. Further fields depend on `type`; readers pass over types they do not know.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[allow(dead_code, reason = "the document's picture of a kernel type")]
pub(super) struct Event {
    /// `epoch.seq.n`, three numbers that are compared as numbers.
    #[schema(value_type = String)]
    pub(super) id: EventId,
    /// The conversation.
    #[schema(value_type = String)]
    pub(super) conversation_id: ConversationId,
    /// The round, if it belongs to one.
    #[schema(value_type = Option<String>)]
    pub(super) round_id: Option<RoundId>,
    /// What happened: `text_delta`, `tool_call`, `message`, `round_finished` and others.
    #[serde(rename = "type")]
    pub(super) kind: String,
}

/// An answer to an approval.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Approval {
    /// Whether the call may run.
    pub(super) allow: bool,
    /// With `allow`: also every later call of the same pattern in this conversation.
    #[serde(default)]
    pub(super) always: bool,
}

/// A message for the model to read when it can.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Inject {
    /// The client's name for it: one with a known id is taken once.
    pub(super) id: Option<String>,
    /// The text.
    pub(super) text: String,
}

/// What a compaction did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Compacted {
    /// Whether there was something to drop.
    pub(super) compacted: bool,
    /// Tokens before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) before_tokens: Option<u64>,
    /// Tokens after.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) after_tokens: Option<u64>,
    /// The steps that it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mode: Option<String>,
}

impl From<Option<CompactionNote>> for Compacted {
    fn from(note: Option<CompactionNote>) -> Self {
        let compacted = note.is_some();
        let (before_tokens, after_tokens) = (note.as_ref().map(|note| note.before_tokens), note.as_ref().map(|note| note.after_tokens));
        Self { compacted, before_tokens, after_tokens, mode: note.map(|note| note.mode) }
    }
}

/// A copy to make.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Fork {
    /// The id of the copy, of which nothing may be stored.
    pub(super) conversation_id: String,
    /// The round at whose end the copy is made; the last finished one if absent.
    #[schema(value_type = Option<String>)]
    pub(super) at: Option<RoundId>,
}

/// A conversation that was made.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Made {
    /// The conversation.
    #[schema(value_type = String)]
    pub(super) conversation_id: ConversationId,
}

/// A skill within reach.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct SkillShown {
    /// Its name.
    pub(super) name: String,
    /// What it does and when to use it.
    pub(super) description: String,
    /// Whether it is active in this conversation.
    pub(super) active: bool,
}

/// The skills within reach.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Skills {
    /// The skills.
    pub(super) skills: Vec<SkillShown>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_a_text_or_blocks_and_a_wrong_block_is_named_by_its_place() {
        let parse = |json: &str| {
            let mut json = serde_json::Deserializer::from_str(json);
            serde_path_to_error::deserialize::<_, Say>(&mut json).map_err(|error| error.path().to_string())
        };

        assert_eq!(parse(r#"{"content":"hi"}"#).unwrap().content, Content::Text("hi".into()));
        let blocks = parse(r#"{"content":[{"type":"text","text":"a"},{"type":"image","source":{"x":1}}]}"#).unwrap();
        assert_eq!(blocks.content.into_blocks()[1].kind(), "image");
        assert_eq!(parse(r#"{"content":[{"type":"text","text":"a"},{"type":"text"}]}"#), Err("content[1]".into()));
        assert_eq!(parse(r#"{"content":7}"#), Err("content".into()));
        assert_eq!(parse(r#"{"content":"a","on_busy":"sometimes"}"#), Err("on_busy".into()));
    }
}
