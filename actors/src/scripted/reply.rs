//! The answer of a scripted model: plain data and its builder.

use std::{sync::Arc, time::Duration};

use serde::Serialize;

use crate::{
    chat::{ProviderStop, RawJson, Usage},
    ports::ProviderError,
};

/// The answer of a scripted model to one call. Cloning shares the texts.
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
    /// Reported before the content.
    pub(super) reported: Option<Usage>,
    pub(super) events_max: Option<usize>,
    pub(super) end: End,
}

/// How texts are split into deltas.
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
    Tool {
        id: Option<Arc<str>>,
        name: Arc<str>,
        input: RawJson,
    },
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
            reported: None,
            events_max: None,
            end,
        }
    }

    /// A reply with one text block, in one piece.
    pub fn text(text: impl Into<Arc<str>>) -> Self {
        Self::of(vec![Part::Text(text.into())], End::Completed)
    }

    /// A reply with one thinking block. Add the visible answer with [`Reply::and_text`].
    pub fn thinking(text: impl Into<Arc<str>>) -> Self {
        Self::of(vec![Part::Thinking(text.into())], End::Completed)
    }

    /// A reply that calls a tool. `input` should serialize to a JSON object; what cannot be
    /// serialized becomes `{}`.
    pub fn tool(name: impl Into<Arc<str>>, input: &impl Serialize) -> Self {
        Self::empty().and_tool(name, input)
    }

    /// A reply without content.
    pub fn empty() -> Self {
        Self::of(Vec::new(), End::Completed)
    }

    /// A call that fails before the stream opens, as with status 429.
    pub fn error(error: ProviderError) -> Self {
        Self::of(Vec::new(), End::Refused(error))
    }

    /// A stream that opens and never yields an item.
    pub fn stall() -> Self {
        Self::of(Vec::new(), End::Stalled)
    }

    /// A stream that yields `piece` for ever.
    pub fn endless(piece: impl Into<Arc<str>>) -> Self {
        Self::of(Vec::new(), End::Endless(piece.into()))
    }

    /// A stream that panics when polled.
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

    /// Adds a tool call. Its id is `call_<messages in the request>_<index of the call>`, which is
    /// unique within a conversation.
    pub fn and_tool(mut self, name: impl Into<Arc<str>>, input: &impl Serialize) -> Self {
        let input = RawJson::of(input).unwrap_or_else(|_| RawJson::empty_object());
        self.parts.push(Part::Tool {
            id: None,
            name: name.into(),
            input,
        });
        self
    }

    /// Adds a tool call with the given id.
    pub fn and_tool_with_id(
        mut self,
        id: impl Into<Arc<str>>,
        name: impl Into<Arc<str>>,
        input: RawJson,
    ) -> Self {
        self.parts.push(Part::Tool {
            id: Some(id.into()),
            name: name.into(),
            input,
        });
        self
    }

    /// Delays the opening of the stream by `latency`.
    pub fn after(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    /// Splits each text into `count` deltas. Without a delay between them, up to 16 arrive as one
    /// event, as from one read of a socket.
    pub fn chunks(mut self, count: usize) -> Self {
        self.chunk = Chunk::Count(count.max(1));
        self
    }

    /// Splits each text into deltas of about `bytes`, at character boundaries.
    pub fn chunk_bytes(mut self, bytes: usize) -> Self {
        self.chunk = Chunk::Bytes(bytes.max(1));
        self
    }

    /// Splits each text after the first white space past `bytes`, so that deltas hold whole words.
    pub fn chunk_words(mut self, bytes: usize) -> Self {
        self.chunk = Chunk::Words(bytes.max(1));
        self
    }

    /// Waits `delay` before each delta but the first.
    pub fn chunk_delay(mut self, delay: Duration) -> Self {
        self.chunk_delay = delay;
        self
    }

    /// Sets the stop reason. The default is `tool_use` with a tool call and `end_turn` without.
    pub fn stop(mut self, stop: ProviderStop) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Sets the usage. The default is an estimate at four bytes per token.
    pub fn usage(mut self, usage: Usage) -> Self {
        self.usage = ReplyUsage::Given(usage);
        self
    }

    /// Makes the reply report this usage before its content, as Anthropic does.
    pub fn reports_first(mut self, usage: Usage) -> Self {
        self.reported = Some(usage);
        self
    }

    /// Makes the reply report no usage.
    pub fn without_usage(mut self) -> Self {
        self.usage = ReplyUsage::Absent;
        self
    }

    /// Fails with `error` after the content, instead of completing.
    pub fn then_fail(mut self, error: ProviderError) -> Self {
        self.end = End::Failed(error);
        self
    }

    /// Fails after `events` events of the content, or at its end if it has fewer.
    pub fn fail_after(mut self, events: usize, error: ProviderError) -> Self {
        self.events_max = Some(events);
        self.then_fail(error)
    }

    /// Yields nothing more after the content, and does not end.
    pub fn then_stall(mut self) -> Self {
        self.end = End::Stalled;
        self
    }

    /// Ends the stream without completion or error, as a broken adapter would.
    pub fn then_cut(mut self) -> Self {
        self.end = End::Cut;
        self
    }
}
