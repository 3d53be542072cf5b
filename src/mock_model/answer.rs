//! The bytes of a reply. Parts that all replies share are rendered once; a call adds a few hundred
//! bytes.

use std::{io, time::Duration};

use axum::body::{Body, Bytes};
use futures_util::stream;

use super::{
    MockModelSettings, WritePer, anthropic,
    asked::{Asked, TOKEN_BYTES},
    call::{Call, Whole},
    fault::Fault,
    meter::Running,
    openai,
};

/// Which API's JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    Anthropic,
    OpenAi,
}

/// How the bytes of a stream end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The stream ends as the API documents it.
    Well,
    /// The connection closes early.
    Cut,
    /// No end: the stream stalls.
    Stall,
}

/// The word that answers repeat.
const FILLER: &[u8] = b"word";

/// Arguments that are not valid JSON.
const BROKEN_INPUT: &str = r#"{"argument": "never clo"#;

/// Rendered chunks of one wire.
#[derive(Debug)]
struct Chunks {
    one: Bytes,
    many: Bytes,
}

impl Chunks {
    fn new(event: &str, most: usize) -> Self {
        Self {
            one: Bytes::copy_from_slice(event.as_bytes()),
            many: Bytes::from(event.repeat(most)),
        }
    }

    fn first(&self, count: usize) -> Bytes {
        self.many
            .slice(..(self.one.len() * count).min(self.many.len()))
    }
}

/// Everything that replies are rendered from.
#[derive(Debug)]
pub(super) struct Answers {
    settings: MockModelSettings,
    text: String,
    anthropic: Chunks,
    openai: Chunks,
}

impl Answers {
    pub(super) fn new(settings: MockModelSettings) -> Self {
        let filler = || {
            FILLER
                .iter()
                .cycle()
                .take(settings.chunk_bytes)
                .map(|byte| char::from(*byte))
                .collect()
        };
        let text = settings.text.clone().unwrap_or_else(filler);
        let most = settings.chunks.max(settings.tool_chunks);
        let anthropic = Chunks::new(&anthropic::chunk(&text), most);
        let openai = Chunks::new(&openai::chunk(&text), most);
        Self {
            settings,
            text,
            anthropic,
            openai,
        }
    }

    /// Returns the tool call of a reply.
    fn tool<'a>(&'a self, asked: &'a Asked, broken: bool) -> Option<(&'a str, &'a str)> {
        let name = self
            .settings
            .tool
            .as_deref()
            .or(asked.tool.as_deref())
            .filter(|_| asked.calls_before < self.settings.tool_calls)?;
        Some((
            name,
            if broken {
                BROKEN_INPUT
            } else {
                &self.settings.tool_input
            },
        ))
    }

    fn chunks(&self, tool: bool) -> usize {
        if tool {
            self.settings.tool_chunks
        } else {
            self.settings.chunks
        }
    }

    fn call<'a>(&'a self, asked: &'a Asked, nth: u64, broken: bool) -> Call<'a> {
        let tool = self.tool(asked, broken);
        let bytes = self.chunks(tool.is_some()) * self.text.len()
            + tool.map_or(0, |(name, input)| name.len() + input.len());
        Call {
            nth,
            model: &asked.model,
            tool,
            input_tokens: asked.tokens,
            output_tokens: (bytes / TOKEN_BYTES).max(1),
        }
    }

    /// Renders an answer without streaming. A fault cuts its end off.
    pub(super) fn whole(
        &self,
        wire: Wire,
        asked: &Asked,
        nth: u64,
        fault: Option<Fault>,
    ) -> String {
        let call = self.call(asked, nth, false);
        let mut text = asked
            .mark
            .as_ref()
            .filter(|_| call.tool.is_none())
            .map_or_else(String::new, |mark| format!("{mark} "));
        text += &self.text.repeat(self.chunks(call.tool.is_some()));
        let mut body = match wire {
            Wire::Anthropic => anthropic::whole(&call, &Whole { text }),
            Wire::OpenAi => openai::whole(&call, &Whole { text }),
        };
        if fault == Some(Fault::MalformedJson) {
            body.truncate(body.len() / 2);
        }
        body
    }

    /// Renders an answer as a stream of events. The call counts as running until the last byte is
    /// taken.
    pub(super) fn stream(
        &self,
        wire: Wire,
        asked: &Asked,
        nth: u64,
        fault: Option<Fault>,
        running: Running,
    ) -> Body {
        let malformed = fault == Some(Fault::MalformedJson);
        let call = self.call(asked, nth, malformed);
        let chunks = self.chunks(call.tool.is_some());
        // Only the last call of a round, which answers the prompt, contains the mark.
        let mark = asked.mark.as_ref().filter(|_| call.tool.is_none());
        let has_text = chunks > 0 || mark.is_some();
        let mut head = match wire {
            Wire::Anthropic => anthropic::head(&call, has_text),
            Wire::OpenAi => openai::head(),
        };
        if let Some(mark) = mark {
            head += &match wire {
                Wire::Anthropic => anthropic::chunk(&format!("{mark} ")),
                Wire::OpenAi => openai::chunk(&format!("{mark} ")),
            };
        }
        let whole_tail = || match wire {
            Wire::Anthropic => anthropic::tail(&call, has_text),
            Wire::OpenAi => openai::tail(&call, asked.usage),
        };
        let (count, tail, end) = match fault {
            Some(Fault::Half) => (chunks / 2, String::new(), End::Cut),
            Some(Fault::Stall) => (chunks / 2, String::new(), End::Stall),
            Some(Fault::ErrorEvent) => (chunks / 2, self.error_event(wire), End::Well),
            Some(Fault::MalformedJson) if call.tool.is_none() => {
                (chunks / 2, self.malformed(wire) + &whole_tail(), End::Well)
            }
            _ => (chunks, whole_tail(), End::Well),
        };
        let ready = match wire {
            Wire::Anthropic => &self.anthropic,
            Wire::OpenAi => &self.openai,
        };
        let write_per = self.settings.write_per;
        let mut playing = Playing {
            due: Bytes::new(),
            chunk: ready.one.clone(),
            left: 0,
            delay: self.settings.chunk_delay,
            tail: Bytes::new(),
            end,
            write_per,
            begun: false,
            _running: running,
        };
        if playing.delay.is_zero() || count <= 1 {
            let mut all = head.into_bytes();
            all.extend_from_slice(&ready.first(count));
            all.extend_from_slice(tail.as_bytes());
            if (end, write_per) == (End::Well, WritePer::Answer) {
                return Body::from(all);
            }
            playing.due = all.into();
            return body(playing);
        }
        playing.due = [head.as_bytes(), &ready.one].concat().into();
        playing.left = count - 1;
        playing.tail = tail.into();
        body(playing)
    }

    fn error_event(&self, wire: Wire) -> String {
        match wire {
            Wire::Anthropic => anthropic::error_event(),
            Wire::OpenAi => openai::error_event(),
        }
    }

    fn malformed(&self, wire: Wire) -> String {
        match wire {
            Wire::Anthropic => anthropic::malformed(),
            Wire::OpenAi => openai::malformed(),
        }
    }
}

/// A reply that is sent in pieces.
struct Playing {
    /// Bytes that may be written now.
    due: Bytes,
    chunk: Bytes,
    /// Chunks that are not due yet.
    left: usize,
    delay: Duration,
    tail: Bytes,
    end: End,
    write_per: WritePer,
    /// Whether a piece was taken already.
    begun: bool,
    _running: Running,
}

/// Takes one event and the empty line after it; everything if there is no such line.
fn take_event(due: &mut Bytes) -> Bytes {
    let end = due.windows(2).position(|two| two == b"\n\n");
    due.split_to(end.map_or(due.len(), |end| end + 2))
}

impl Playing {
    async fn next(mut self) -> Option<(io::Result<Bytes>, Self)> {
        if self.due.is_empty() && self.left > 0 {
            tokio::time::sleep(self.delay).await;
            self.left -= 1;
            self.due = self.chunk.clone();
        } else if self.due.is_empty() {
            self.due = std::mem::take(&mut self.tail);
        }
        if !self.due.is_empty() {
            let piece = match self.write_per {
                WritePer::Answer => std::mem::take(&mut self.due),
                WritePer::Event => {
                    if self.begun {
                        // While the body has nothing to give, the server writes what it has.
                        tokio::task::yield_now().await;
                    }
                    take_event(&mut self.due)
                }
            };
            self.begun = true;
            return Some((Ok(piece), self));
        }
        match self.end {
            End::Well => None,
            End::Cut => {
                // Without this pause the server would discard what it has not written yet.
                tokio::time::sleep(Duration::from_millis(1)).await;
                self.end = End::Well;
                Some((Err(io::ErrorKind::ConnectionReset.into()), self))
            }
            End::Stall => std::future::pending().await,
        }
    }
}

fn body(playing: Playing) -> Body {
    Body::from_stream(stream::unfold(playing, Playing::next))
}
