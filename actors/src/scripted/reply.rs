//! What a scripted model answers: plain data and its builder.

use std::{sync::Arc, time::Duration};

use serde::Serialize;

use crate::{
    chat::{ProviderStop, RawJson, Usage},
    ports::ProviderError,
};

/// What a scripted model answers to one call. Cloning shares the texts.
///
/// ```
/// use std::time::Duration;
/// use callboard_actors::{ports::ProviderError, scripted::Reply};
///
/// let search = Reply::tool("grep_search", &serde_json::json!({ "pattern": "fn main" })).after(Duration::from_millis(20));
/// let answer = Reply::text("It is in src/main.rs.").chunks(4).chunk_delay(Duration::from_millis(5));
/// let broken = Reply::text("It is").then_fail(ProviderError::Connection { message: "reset".into() });
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Reply {
    pub(super) latency: Duration,
    pub(super) chunk_delay: Duration,
    pub(super) chunk: Chunk,
    pub(super) parts: Vec<Part>,
    pub(super) stop: Option<ProviderStop>,
    pub(super) usage: ReplyUsage,
    pub(super) events_max: Option<usize>,
    pub(super) end: End,
}

/// How texts are cut into deltas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chunk {
    Whole,
    Count(usize),
    Bytes(usize),
    Words(usize),
}

#[derive(Debug, Clone)]
pub(super) enum Part {
    Text(Arc<str>),
    Thinking(Arc<str>),
    Tool { id: Option<Arc<str>>, name: Arc<str>, input: RawJson },
}

#[derive(Debug, Clone)]
pub(super) enum ReplyUsage {
    Estimated,
    Given(Usage),
    Absent,
}

#[derive(Debug, Clone)]
pub(super) enum End {
    Completed,
    Refused(ProviderError),
    Failed(ProviderError),
    Stalled,
    Endless(Arc<str>),
    Cut,
    Panicked,
}

impl Reply {
    fn of(parts: Vec<Part>, end: End) -> Self {
        Self {
            latency: Duration::ZERO,
            chunk_delay: Duration::ZERO,
            chunk: Chunk::Whole,
            parts,
            stop: None,
            usage: ReplyUsage::Estimated,
            events_max: None,
            end,
        }
    }

    /// Says `text`, in one piece.
    pub fn text(text: impl Into<Arc<str>>) -> Self {
        Self::of(vec![Part::Text(text.into())], End::Completed)
    }

    /// Reasons, then stops; add what it says with [`Reply::and_text`].
    pub fn thinking(text: impl Into<Arc<str>>) -> Self {
        Self::of(vec![Part::Thinking(text.into())], End::Completed)
    }

    /// Calls a tool. `input` should become a JSON object; what cannot be JSON becomes `{}`.
    pub fn tool(name: impl Into<Arc<str>>, input: &impl Serialize) -> Self {
        Self::empty().and_tool(name, input)
    }

    /// Says nothing and ends.
    pub fn empty() -> Self {
        Self::of(Vec::new(), End::Completed)
    }

    /// Fails before the head of the answer, as a 429 does.
    pub fn error(error: ProviderError) -> Self {
        Self::of(Vec::new(), End::Refused(error))
    }

    /// Opens a stream that never tells anything.
    pub fn stall() -> Self {
        Self::of(Vec::new(), End::Stalled)
    }

    /// Sends `piece` for ever.
    pub fn endless(piece: impl Into<Arc<str>>) -> Self {
        Self::of(Vec::new(), End::Endless(piece.into()))
    }

    /// Panics inside the stream.
    pub fn panic() -> Self {
        Self::of(Vec::new(), End::Panicked)
    }

    /// Adds a text block.
    pub fn and_text(mut self, text: impl Into<Arc<str>>) -> Self {
        self.parts.push(Part::Text(text.into()));
        self
    }

    /// Adds a thinking block.
    pub fn and_thinking(mut self, text: impl Into<Arc<str>>) -> Self {
        self.parts.push(Part::Thinking(text.into()));
        self
    }

    /// Adds a tool call. Its id is `call_<messages in the request>_<index of the call>`: unique within a conversation.
    pub fn and_tool(mut self, name: impl Into<Arc<str>>, input: &impl Serialize) -> Self {
        let input = RawJson::of(input).unwrap_or_else(|_| RawJson::empty_object());
        self.parts.push(Part::Tool { id: None, name: name.into(), input });
        self
    }

    /// Adds a tool call with an id of your choice.
    pub fn and_tool_with_id(mut self, id: impl Into<Arc<str>>, name: impl Into<Arc<str>>, input: RawJson) -> Self {
        self.parts.push(Part::Tool { id: Some(id.into()), name: name.into(), input });
        self
    }

    /// Lets the head of the answer take `latency`.
    pub fn after(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    /// Cuts each text into `count` deltas. Where no time passes between them, up to 16 come together as one event, as of one read of a socket.
    pub fn chunks(mut self, count: usize) -> Self {
        self.chunk = Chunk::Count(count.max(1));
        self
    }

    /// Cuts each text into deltas of about `bytes`, at a character's border.
    pub fn chunk_bytes(mut self, bytes: usize) -> Self {
        self.chunk = Chunk::Bytes(bytes.max(1));
        self
    }

    /// Cuts each text after the first white space past `bytes`, so that deltas hold whole words.
    pub fn chunk_words(mut self, bytes: usize) -> Self {
        self.chunk = Chunk::Words(bytes.max(1));
        self
    }

    /// Waits `delay` before each delta but the first.
    pub fn chunk_delay(mut self, delay: Duration) -> Self {
        self.chunk_delay = delay;
        self
    }

    /// Sets why it stopped; otherwise `tool_use` with a tool call, `end_turn` without.
    pub fn stop(mut self, stop: ProviderStop) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Sets the usage; otherwise it is estimated at four bytes a token.
    pub fn usage(mut self, usage: Usage) -> Self {
        self.usage = ReplyUsage::Given(usage);
        self
    }

    /// Reports no usage.
    pub fn without_usage(mut self) -> Self {
        self.usage = ReplyUsage::Absent;
        self
    }

    /// Fails after the content, in place of the completion.
    pub fn then_fail(mut self, error: ProviderError) -> Self {
        self.end = End::Failed(error);
        self
    }

    /// Fails after `events` events of the content, or at its end if there are fewer.
    pub fn fail_after(mut self, events: usize, error: ProviderError) -> Self {
        self.events_max = Some(events);
        self.then_fail(error)
    }

    /// Goes silent after the content.
    pub fn then_stall(mut self) -> Self {
        self.end = End::Stalled;
        self
    }

    /// Ends the stream without a completion or an error: a broken adapter.
    pub fn then_cut(mut self) -> Self {
        self.end = End::Cut;
        self
    }

    /// Panics after the content.
    pub fn then_panic(mut self) -> Self {
        self.end = End::Panicked;
        self
    }
}
