//! The stream that plays a reply: a state machine that waits only where the reply has a delay.

use crate::{
    chat::{ContentBlock, ModelRequest, ProviderStop, ThinkingBlock, ToolUseBlock, Usage},
    ports::{BoxFuture, Completion, ModelEvent, ModelStream, ProviderError},
};
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::Stream;
use tokio_util::sync::CancellationToken;

use super::{
    TOKEN_BYTES, estimate_tokens,
    reply::{Chunk, End, Part, Reply, ReplyUsage},
};

/// Waits for `time`, or for ever if it is `None`. Cancellation ends the wait first.
pub(super) async fn wait(
    time: Option<Duration>,
    cancel: CancellationToken,
) -> Result<(), ProviderError> {
    tokio::select! {
        biased;
        () = cancel.cancelled() => Err(ProviderError::Cancelled),
        () = async { match time {
            Some(time) => tokio::time::sleep(time).await,
            None => std::future::pending().await,
        }} => Ok(()),
    }
}

/// The most deltas in one batch when no time passes between them: about as many as one read of a
/// socket holds.
const BURST_DELTAS: usize = 16;

type Waiting = Pin<Box<dyn Future<Output = Result<(), ProviderError>> + Send>>;

/// The stream of a reply.
pub(super) struct Playing {
    reply: Reply,
    cancel: CancellationToken,
    waiting: Option<Waiting>,
    /// The part that is being played, and the byte at which its next delta begins.
    part: usize,
    offset: usize,
    events: usize,
    deltas: usize,
    over: bool,
    messages: usize,
    input_tokens: u64,
}

/// What the next poll yields.
enum Item {
    Batch(Vec<ModelEvent>),
    Failure(ProviderError),
    Nothing,
    Never,
}

/// The next element of the content.
enum Next<'a> {
    Text(&'a str),
    Thinking(&'a str),
    Whole(&'a Part),
    End,
}

impl Reply {
    /// Plays the reply as the answer to `request`, with the return type of
    /// [`crate::ports::LlmProvider::stream`].
    pub fn play(
        self,
        request: &ModelRequest,
        cancel: CancellationToken,
    ) -> BoxFuture<'static, Result<ModelStream, ProviderError>> {
        let latency = self.latency;
        let playing = Playing::new(self, request, cancel);
        if latency.is_zero() {
            return Box::pin(std::future::ready(playing.open()));
        }
        Box::pin(async move {
            wait(Some(latency), playing.cancel_token()).await?;
            playing.open()
        })
    }
}

impl Playing {
    pub(super) fn new(reply: Reply, request: &ModelRequest, cancel: CancellationToken) -> Self {
        let input_tokens = if matches!(reply.usage, ReplyUsage::Estimated) {
            estimate_tokens(request)
        } else {
            0
        };
        let messages = request.messages.len();
        Self {
            reply,
            cancel,
            waiting: None,
            part: 0,
            offset: 0,
            events: 0,
            deltas: 0,
            over: false,
            messages,
            input_tokens,
        }
    }

    pub(super) fn cancel_token(&self) -> CancellationToken {
        self.cancel.clone()
    }

    pub(super) fn open(self) -> Result<ModelStream, ProviderError> {
        if self.cancel.is_cancelled() {
            return Err(ProviderError::Cancelled);
        }
        match &self.reply.end {
            End::Refused(error) => Err(error.clone()),
            End::Completed
            | End::Failed(_)
            | End::Stalled
            | End::Endless(_)
            | End::Cut
            | End::Panicked => Ok(Box::pin(self)),
        }
    }

    /// The next element of the content, without moving past it.
    fn peek(&self) -> Next<'_> {
        if self.reply.events_max.is_some_and(|max| self.events >= max) {
            return Next::End;
        }
        match self.reply.parts.get(self.part) {
            None => Next::End,
            Some(part @ Part::Text(text)) => self.piece(text).map_or(Next::Whole(part), Next::Text),
            Some(part @ Part::Thinking(text)) => {
                self.piece(text).map_or(Next::Whole(part), Next::Thinking)
            }
            Some(part @ Part::Tool { .. }) => Next::Whole(part),
        }
    }

    fn block(&self, part: &Part) -> ContentBlock {
        match part {
            Part::Text(text) => ContentBlock::text(&**text),
            Part::Thinking(text) => ContentBlock::Thinking(ThinkingBlock {
                thinking: (**text).into(),
                signature: None,
            }),
            Part::Tool { id, name, input } => ContentBlock::ToolUse(ToolUseBlock {
                id: id.as_deref().map_or_else(|| self.call_id(), str::to_owned),
                name: (**name).into(),
                input: input.clone(),
            }),
        }
    }

    fn call_id(&self) -> String {
        let index = self
            .reply
            .parts
            .iter()
            .take(self.part)
            .filter(|part| matches!(part, Part::Tool { .. }))
            .count();
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
                from + tail
                    .char_indices()
                    .find(|(_, c)| c.is_whitespace())
                    .map_or(tail.len(), |(at, c)| at + c.len_utf8())
            }
        };
        rest.get(..rest.ceil_char_boundary(at_least))
    }

    /// Up to `most` pieces of the current part at once, of which `first` is the first, and their
    /// number.
    fn burst<'a>(&'a self, first: &'a str, most: usize) -> (&'a str, usize) {
        let (Some(Part::Text(text) | Part::Thinking(text)), Chunk::Count(_) | Chunk::Bytes(_)) =
            (self.reply.parts.get(self.part), self.reply.chunk)
        else {
            return (first, 1);
        };
        let most = most.min(
            self.reply
                .events_max
                .map_or(most, |max| max.saturating_sub(self.events)),
        );
        let rest = text.get(self.offset..).unwrap_or_default();
        let end = rest.len().min(first.len().saturating_mul(most));
        // In ASCII text all pieces but the last have the same length.
        match rest.get(..end).filter(|burst| burst.is_ascii()) {
            Some(burst) if !first.is_empty() => (burst, end.div_ceil(first.len())),
            Some(_) | None => (first, 1),
        }
    }

    /// The next batch: several deltas if no time passes between them, else one; then all that needs
    /// no wait.
    fn batch(&mut self) -> Item {
        // Deltas of one kind in a row are joined into one event. A batch ends when its deltas are
        // used up, when a delay is due, or with the content. The reply's end comes in a separate
        // item, unless it is the completion, which closes the last batch.
        let most = if self.reply.chunk_delay.is_zero() {
            BURST_DELTAS
        } else {
            1
        };
        let begun = self.deltas;
        let mut batch = Vec::with_capacity(2);
        batch.extend(self.reply.reported.take().map(ModelEvent::Usage));
        loop {
            let left = most.saturating_sub(self.deltas - begun);
            let (bytes, count) = match self.peek() {
                Next::Text(_) | Next::Thinking(_)
                    if left == 0 || (most == 1 && !batch.is_empty()) =>
                {
                    return Item::Batch(batch);
                }
                // Pieces that arrive together are one event, as when an adapter reads them from one
                // packet.
                Next::Text(first) => {
                    let (burst, count) = self.burst(first, left);
                    match batch.last_mut() {
                        Some(ModelEvent::Text(text)) => text.push_str(burst),
                        _ => batch.push(ModelEvent::Text(burst.to_owned())),
                    }
                    (burst.len(), count)
                }
                Next::Thinking(first) => {
                    let (burst, count) = self.burst(first, left);
                    match batch.last_mut() {
                        Some(ModelEvent::Thinking(text)) => text.push_str(burst),
                        _ => batch.push(ModelEvent::Thinking(burst.to_owned())),
                    }
                    (burst.len(), count)
                }
                Next::Whole(part) => {
                    batch.push(ModelEvent::Block(self.block(part)));
                    (self.part, self.offset) = (self.part + 1, 0);
                    self.events += 1;
                    continue;
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
                    #[allow(
                        clippy::panic,
                        reason = "the script asks for it: a provider that panics is one of the faults"
                    )]
                    End::Panicked => panic!("the scripted model panics, as its script says"),
                },
            };
            self.offset += bytes;
            self.events += count;
            self.deltas += count;
        }
    }

    fn completion(&self) -> Completion {
        let calls = self
            .reply
            .parts
            .iter()
            .any(|part| matches!(part, Part::Tool { .. }));
        let stop = self.reply.stop.unwrap_or(if calls {
            ProviderStop::ToolUse
        } else {
            ProviderStop::EndTurn
        });
        let usage = match self.reply.usage {
            ReplyUsage::Absent => None,
            ReplyUsage::Given(usage) => Some(usage),
            ReplyUsage::Estimated => Some(Usage {
                input_uncached: self.input_tokens,
                output: self.output_tokens(),
                ..Usage::default()
            }),
        };
        Completion {
            stop,
            raw_stop: None,
            usage,
            raw_usage: None,
        }
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
    fn fail(
        &mut self,
        error: ProviderError,
    ) -> Poll<Option<Result<Vec<ModelEvent>, ProviderError>>> {
        self.over = true;
        self.waiting = None;
        Poll::Ready(Some(Err(error)))
    }

    /// The delay before the next batch, if any: before each delta but the first, and before each
    /// piece of an endless reply.
    fn pause(&self) -> Option<Duration> {
        if self.deltas == 0 || self.reply.chunk_delay.is_zero() {
            return None;
        }
        let delta = match self.peek() {
            Next::Text(_) | Next::Thinking(_) => true,
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
        // Without delays the stream is always ready. The coop budget keeps an endless reply from
        // starving its thread.
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
mod tests;
