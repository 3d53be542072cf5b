//! A reply that is written down before it is asked for, and the stream that plays it. Serves tests, benches and load runs.
//!
//! Pure but for `tokio::time`: without delays it makes no timer, spawns nothing and never waits.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::Stream;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::{
    chat::{ContentBlock, RawJson, ThinkingBlock, ToolUseBlock},
    ports::{BoxFuture, Completion, ModelEvent, ModelRequest, ModelStream, ProviderError, ProviderStop, Usage},
};

/// Bytes that stand for one token in estimates.
const TOKEN_BYTES: u64 = 4;

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
    latency: Duration,
    chunk_delay: Duration,
    chunk: Chunk,
    parts: Vec<Part>,
    stop: Option<ProviderStop>,
    usage: ReplyUsage,
    events_max: Option<usize>,
    end: End,
}

/// How texts are cut into deltas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chunk {
    Whole,
    Count(usize),
    Bytes(usize),
    Words(usize),
}

#[derive(Debug, Clone)]
enum Part {
    Text(Arc<str>),
    Thinking(Arc<str>),
    Tool { id: Option<Arc<str>>, name: Arc<str>, input: RawJson },
}

#[derive(Debug, Clone)]
enum ReplyUsage {
    Estimated,
    Given(Usage),
    Absent,
}

#[derive(Debug, Clone)]
enum End {
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

    /// Cuts each text into `count` deltas.
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

    /// Plays the reply as the answer to `request`: what [`crate::ports::LlmProvider::stream`] returns.
    pub fn play(self, request: &ModelRequest, cancel: CancellationToken) -> BoxFuture<'static, Result<ModelStream, ProviderError>> {
        let latency = self.latency;
        let playing = Playing::new(self, request, cancel);
        if latency.is_zero() {
            return Box::pin(std::future::ready(playing.open()));
        }
        Box::pin(async move {
            wait(Some(latency), playing.cancel.clone()).await?;
            playing.open()
        })
    }
}

/// Tokens of a request at four bytes each: what an estimated usage reports as input.
pub fn estimate_tokens(request: &ModelRequest) -> u64 {
    let system = request.system.as_ref().map_or(0, |text| text.len());
    let tools: usize = request.tools.iter().map(|tool| tool.name.len() + tool.description.len() + tool.input_schema.as_str().len()).sum();
    (request.messages.wire_bytes() + system + tools) as u64 / TOKEN_BYTES
}

/// One step of splitmix64: well mixed bits of `index`. For chance by a seed; not for secrets.
pub fn splitmix64(index: u64) -> u64 {
    let mut z = index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Waits for the time to pass, or for ever; a cancel comes first.
async fn wait(time: Option<Duration>, cancel: CancellationToken) -> Result<(), ProviderError> {
    tokio::select! {
        biased;
        () = cancel.cancelled() => Err(ProviderError::Cancelled),
        () = async { match time {
            Some(time) => tokio::time::sleep(time).await,
            None => std::future::pending().await,
        }} => Ok(()),
    }
}

type Waiting = Pin<Box<dyn Future<Output = Result<(), ProviderError>> + Send>>;

/// The stream of a reply.
struct Playing {
    reply: Reply,
    cancel: CancellationToken,
    waiting: Option<Waiting>,
    /// Part that is played, and the byte its next delta begins at.
    part: usize,
    offset: usize,
    events: usize,
    deltas: usize,
    over: bool,
    messages: usize,
    input_tokens: u64,
}

/// An item of the stream.
enum Item {
    Batch(Vec<ModelEvent>),
    Failure(ProviderError),
    Nothing,
    Never,
}

/// What comes next in the content.
enum Next {
    Delta(ModelEvent),
    Whole(ModelEvent),
    End,
}

impl Playing {
    fn new(reply: Reply, request: &ModelRequest, cancel: CancellationToken) -> Self {
        let input_tokens = if matches!(reply.usage, ReplyUsage::Estimated) { estimate_tokens(request) } else { 0 };
        let messages = request.messages.len();
        Self { reply, cancel, waiting: None, part: 0, offset: 0, events: 0, deltas: 0, over: false, messages, input_tokens }
    }

    fn open(self) -> Result<ModelStream, ProviderError> {
        if self.cancel.is_cancelled() {
            return Err(ProviderError::Cancelled);
        }
        match &self.reply.end {
            End::Refused(error) => Err(error.clone()),
            End::Completed | End::Failed(_) | End::Stalled | End::Endless(_) | End::Cut | End::Panicked => Ok(Box::pin(self)),
        }
    }

    /// The next event of the content, without moving past it.
    fn peek(&self) -> Next {
        if self.reply.events_max.is_some_and(|max| self.events >= max) {
            return Next::End;
        }
        match self.reply.parts.get(self.part) {
            None => Next::End,
            Some(Part::Text(text)) => match self.piece(text) {
                Some(piece) => Next::Delta(ModelEvent::Text(piece.to_owned())),
                None => Next::Whole(ModelEvent::Block(ContentBlock::text(&**text))),
            },
            Some(Part::Thinking(text)) => match self.piece(text) {
                Some(piece) => Next::Delta(ModelEvent::Thinking(piece.to_owned())),
                None => {
                    Next::Whole(ModelEvent::Block(ContentBlock::Thinking(ThinkingBlock { thinking: (**text).into(), signature: None })))
                }
            },
            Some(Part::Tool { id, name, input }) => Next::Whole(ModelEvent::Block(ContentBlock::ToolUse(ToolUseBlock {
                id: id.as_deref().map_or_else(|| self.call_id(), str::to_owned),
                name: (**name).into(),
                input: input.clone(),
            }))),
        }
    }

    fn call_id(&self) -> String {
        let index = self.reply.parts.iter().take(self.part).filter(|part| matches!(part, Part::Tool { .. })).count();
        format!("call_{}_{index}", self.messages)
    }

    fn piece<'a>(&self, text: &'a str) -> Option<&'a str> {
        let rest = text.get(self.offset..).filter(|rest| !rest.is_empty())?;
        let at_least = match self.reply.chunk {
            Chunk::Whole => rest.len(),
            Chunk::Count(count) => text.len().div_ceil(count),
            Chunk::Bytes(bytes) => bytes,
            Chunk::Words(bytes) => {
                let from = rest.ceil_char_boundary(bytes);
                let tail = rest.get(from..).unwrap_or_default();
                from + tail.char_indices().find(|(_, c)| c.is_whitespace()).map_or(tail.len(), |(at, c)| at + c.len_utf8())
            }
        };
        rest.get(..rest.ceil_char_boundary(at_least))
    }

    fn step(&mut self, event: &ModelEvent) {
        self.events += 1;
        match event {
            ModelEvent::Text(piece) | ModelEvent::Thinking(piece) => self.offset += piece.len(),
            ModelEvent::Block(_) | ModelEvent::Completed(_) => (self.part, self.offset) = (self.part + 1, 0),
        }
    }

    /// A batch: at most one delta, then all that needs no waiting.
    fn batch(&mut self) -> Item {
        let mut batch = Vec::with_capacity(3);
        loop {
            match self.peek() {
                Next::Delta(_) if !batch.is_empty() => return Item::Batch(batch),
                Next::Delta(event) => {
                    self.deltas += 1;
                    self.step(&event);
                    batch.push(event);
                }
                Next::Whole(event) => {
                    self.step(&event);
                    batch.push(event);
                }
                Next::End => match &self.reply.end {
                    End::Completed => {
                        self.over = true;
                        batch.push(ModelEvent::Completed(self.completion()));
                        return Item::Batch(batch);
                    }
                    _ if !batch.is_empty() => return Item::Batch(batch),
                    End::Failed(error) | End::Refused(error) => {
                        let error = error.clone();
                        self.over = true;
                        return Item::Failure(error);
                    }
                    End::Stalled => return Item::Never,
                    End::Endless(piece) => {
                        let piece = piece.to_string();
                        self.deltas += 1;
                        return Item::Batch(vec![ModelEvent::Text(piece)]);
                    }
                    End::Cut => {
                        self.over = true;
                        return Item::Nothing;
                    }
                    #[allow(clippy::panic, reason = "the script asks for it: a provider that panics is one of the faults")]
                    End::Panicked => panic!("the scripted model panics, as its script says"),
                },
            }
        }
    }

    fn completion(&self) -> Completion {
        let calls = self.reply.parts.iter().any(|part| matches!(part, Part::Tool { .. }));
        let stop = self.reply.stop.unwrap_or(if calls { ProviderStop::ToolUse } else { ProviderStop::EndTurn });
        let usage = match self.reply.usage {
            ReplyUsage::Absent => None,
            ReplyUsage::Given(usage) => Some(usage),
            ReplyUsage::Estimated => Some(Usage { input_uncached: self.input_tokens, output: self.output_tokens(), ..Usage::default() }),
        };
        Completion { stop, raw_stop: None, usage, raw_usage: None }
    }

    fn output_tokens(&self) -> u64 {
        let bytes: usize = self
            .reply
            .parts
            .iter()
            .map(|part| match part {
                Part::Text(text) | Part::Thinking(text) => text.len(),
                Part::Tool { name, input, .. } => name.len() + input.as_str().len(),
            })
            .sum();
        bytes as u64 / TOKEN_BYTES
    }
}

impl Playing {
    fn fail(&mut self, error: ProviderError) -> Poll<Option<Result<Vec<ModelEvent>, ProviderError>>> {
        self.over = true;
        self.waiting = None;
        Poll::Ready(Some(Err(error)))
    }

    /// Whether time must pass before the next batch: a delta after the first, or a piece of an endless reply.
    fn pause(&self) -> Option<Duration> {
        if self.deltas == 0 || self.reply.chunk_delay.is_zero() {
            return None;
        }
        let delta = match self.peek() {
            Next::Delta(_) => true,
            Next::Whole(_) => false,
            Next::End => matches!(self.reply.end, End::Endless(_)),
        };
        delta.then_some(self.reply.chunk_delay)
    }
}

impl Stream for Playing {
    type Item = Result<Vec<ModelEvent>, ProviderError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.over {
            return Poll::Ready(None);
        }
        // A reply without delays is always ready: without the budget an endless one would starve its thread.
        let budget = ready!(tokio::task::coop::poll_proceed(context));
        loop {
            if let Some(waiting) = &mut this.waiting {
                if let Err(error) = ready!(waiting.as_mut().poll(context)) {
                    return this.fail(error);
                }
                this.waiting = None;
            } else if this.cancel.is_cancelled() {
                return this.fail(ProviderError::Cancelled);
            } else if let Some(pause) = this.pause() {
                this.waiting = Some(Box::pin(wait(Some(pause), this.cancel.clone())));
                continue;
            }
            budget.made_progress();
            match this.batch() {
                Item::Batch(batch) => return Poll::Ready(Some(Ok(batch))),
                Item::Failure(error) => return this.fail(error),
                Item::Nothing => return Poll::Ready(None),
                Item::Never => this.waiting = Some(Box::pin(wait(None, this.cancel.clone()))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;
    use crate::{
        chat::{Message, MessageList},
        ports::ToolChoice,
    };

    type Batches = Vec<Result<Vec<ModelEvent>, ProviderError>>;

    fn request() -> ModelRequest {
        ModelRequest {
            model: "scripted".into(),
            system: None,
            messages: MessageList::from_iter([Message::user("hi")]),
            tools: Arc::new([]),
            tool_choice: ToolChoice::Auto,
            max_tokens: 100,
            stop: Arc::new([]),
            effort: None,
            output_schema: None,
            cache: false,
        }
    }

    async fn played(reply: Reply) -> Batches {
        reply.play(&request(), CancellationToken::new()).await.unwrap().collect().await
    }

    fn completed(stop: ProviderStop, input: u64, output: u64) -> ModelEvent {
        let usage = Some(Usage { input_uncached: input, output, ..Usage::default() });
        ModelEvent::Completed(Completion { stop, raw_stop: None, usage, raw_usage: None })
    }

    fn text(piece: &str) -> ModelEvent {
        ModelEvent::Text(piece.into())
    }

    fn block(text: &str) -> ModelEvent {
        ModelEvent::Block(ContentBlock::text(text))
    }

    fn broken() -> ProviderError {
        ProviderError::Connection { message: "reset".into() }
    }

    #[tokio::test]
    async fn a_text_comes_in_one_batch_with_its_end() {
        let input = estimate_tokens(&request());

        assert_eq!(
            played(Reply::text("twelve bytes")).await,
            [Ok(vec![text("twelve bytes"), block("twelve bytes"), completed(ProviderStop::EndTurn, input, 3),])]
        );
    }

    #[tokio::test]
    async fn pieces_join_to_the_text_whatever_the_cut() {
        let whole = "Größe: 汉字 and some words";
        for reply in [
            Reply::text(whole).chunks(5),
            Reply::text(whole).chunks(1000),
            Reply::text(whole).chunk_bytes(1),
            Reply::text(whole).chunk_words(3),
            Reply::text(whole).chunk_words(1000),
        ] {
            let batches = played(reply).await;

            let pieces: String = batches
                .iter()
                .flatten()
                .flatten()
                .filter_map(|event| if let ModelEvent::Text(piece) = event { Some(piece.as_str()) } else { None })
                .collect();
            assert_eq!(pieces, whole);
            assert!(batches.iter().flatten().all(|batch| batch.iter().filter(|event| matches!(event, ModelEvent::Text(_))).count() <= 1));
        }
    }

    #[tokio::test]
    async fn calls_stop_for_tools_and_have_ids_of_their_place() {
        let reply = Reply::thinking("hm").and_tool("a", &serde_json::json!({})).and_tool("b", &serde_json::json!({"x": 1})).without_usage();

        let events: Vec<ModelEvent> = played(reply).await.into_iter().flatten().flatten().collect();

        let call = |id: &str, name: &str, input: &str| {
            let input = RawJson::from_text(input).unwrap();
            ModelEvent::Block(ContentBlock::ToolUse(ToolUseBlock { id: id.into(), name: name.into(), input }))
        };
        assert_eq!(
            events,
            [
                ModelEvent::Thinking("hm".into()),
                ModelEvent::Block(ContentBlock::Thinking(ThinkingBlock { thinking: "hm".into(), signature: None })),
                call("call_1_0", "a", "{}"),
                call("call_1_1", "b", r#"{"x":1}"#),
                ModelEvent::Completed(Completion { stop: ProviderStop::ToolUse, raw_stop: None, usage: None, raw_usage: None }),
            ]
        );
    }

    #[tokio::test]
    async fn faults_come_where_the_script_says() {
        let nothing = CancellationToken::new;

        assert_eq!(Reply::error(broken()).play(&request(), nothing()).await.err(), Some(broken()));
        assert_eq!(
            played(Reply::text("abcd").chunks(4).fail_after(2, broken())).await,
            [Ok(vec![text("a")]), Ok(vec![text("b")]), Err(broken())]
        );
        assert_eq!(played(Reply::text("ab").then_fail(broken())).await, [Ok(vec![text("ab"), block("ab")]), Err(broken())]);
        assert_eq!(played(Reply::text("ab").then_cut()).await, [Ok(vec![text("ab"), block("ab")])]);
    }

    #[tokio::test]
    #[should_panic(expected = "as its script says")]
    async fn a_panic_comes_where_the_script_says() {
        played(Reply::panic()).await;
    }

    #[tokio::test(start_paused = true)]
    async fn latency_and_delays_pass_in_virtual_time() {
        let start = tokio::time::Instant::now();

        played(Reply::text("abcd").chunks(4).after(Duration::from_secs(10)).chunk_delay(Duration::from_secs(1))).await;

        assert_eq!(start.elapsed().as_secs(), 13);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancel_ends_a_latency_a_stall_and_an_endless_reply() {
        for reply in [Reply::text("x").after(Duration::from_secs(3600)), Reply::stall(), Reply::endless("x"), Reply::text("x").then_stall()]
        {
            let cancel = CancellationToken::new();
            let later = cancel.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                later.cancel();
            });

            let last = match reply.play(&request(), cancel).await {
                Ok(stream) => {
                    // An endless reply without delays must leave room for the cancelling task and for the clock.
                    let paced = stream.then(|item| async {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        item
                    });
                    paced.collect::<Batches>().await.pop().and_then(Result::err)
                }
                Err(error) => Some(error),
            };

            assert_eq!(last, Some(ProviderError::Cancelled));
        }
    }

    #[tokio::test]
    async fn an_endless_reply_lets_others_run() {
        let mut stream = Reply::endless("x").play(&request(), CancellationToken::new()).await.unwrap();
        let reader = tokio::spawn(async move { while stream.next().await.is_some() {} });

        tokio::task::yield_now().await;

        reader.abort();
        assert!(reader.await.unwrap_err().is_cancelled());
    }
}
