//! A provider that has its bytes in memory: the adapters' parsers without a connection.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use bytes::Bytes;
use callboard::{
    Host,
    chat::{MessageList, ModelRequest},
    ports::{BoxFuture, Capabilities, LlmProvider, ModelStream, ProviderError},
    providers::{AnthropicAssembler, Assemble, OpenAiAssembler},
    stream::EventKind,
};
use futures_util::stream;
use tokio_util::sync::CancellationToken;

use super::{Wire, forgetful::Forgetful, ours, scripted};

/// Splits the bytes of a stream into reads of `burst` events.
pub(crate) fn reads(wire: Wire, tokens: usize, burst: usize) -> Vec<Bytes> {
    let (head, token, tail) = match wire {
        Wire::Anthropic => (
            "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"m\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":50,\"output_tokens\":1}}}\n\n\
             event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"word\"}}\n\n",
            "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n\
             event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":50}}\n\n\
             event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        ),
        Wire::OpenAi => (
            "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n",
            "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"word\"},\"finish_reason\":null}]}\n\n",
            "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
             data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":50,\"completion_tokens\":50,\"total_tokens\":100}}\n\ndata: [DONE]\n\n",
        ),
    };
    let full = Bytes::from(token.repeat(burst));
    let mut reads = vec![Bytes::from(head)];
    reads.extend((0..tokens / burst).map(|_| full.clone()));
    reads.push(Bytes::from(tail));
    reads
}

pub(crate) fn assembler(wire: Wire, history: MessageList) -> Box<dyn Assemble> {
    match wire {
        Wire::Anthropic => Box::new(AnthropicAssembler::new(history)),
        Wire::OpenAi => Box::new(OpenAiAssembler::new(history)),
    }
}

/// Waits like a connection: until the runtime has polled other tasks, or for the next token of a
/// slow model. A poll with a waker that does nothing finds no data.
pub(crate) async fn between(pace: Option<Duration>) {
    if let Some(pace) = pace {
        return tokio::time::sleep(pace).await;
    }
    // `Waker::noop` is the only waker without data.
    let mut next = pin!(tokio::task::yield_now());
    poll_fn(|cx| {
        if cx.waker().data().is_null() {
            Poll::Pending
        } else {
            next.as_mut().poll(cx)
        }
    })
    .await;
}

/// A provider that replays bytes.
struct Fed {
    wire: Wire,
    reads: Arc<Vec<Bytes>>,
    pace: Option<Duration>,
}

impl LlmProvider for Fed {
    fn name(&self) -> &str {
        self.wire.name()
    }

    fn capabilities(&self, _: &str) -> Capabilities {
        scripted::capabilities()
    }

    fn stream(
        &self,
        request: ModelRequest,
        _: CancellationToken,
    ) -> BoxFuture<'_, Result<ModelStream, ProviderError>> {
        let assembler = assembler(self.wire, request.messages);
        let reads = self.reads.clone();
        let pace = self.pace;
        let batches = stream::unfold((assembler, 0), move |(mut assembler, at)| {
            let read = reads.get(at).cloned();
            async move {
                let read = read?;
                between(pace).await;
                let mut out = Vec::new();
                let fed = assembler.feed(&read, &mut out).map(|()| out);
                Some((fed, (assembler, at + 1)))
            }
        });
        Box::pin(std::future::ready(Ok(Box::pin(batches) as ModelStream)))
    }
}

pub(crate) async fn host(wire: Wire, tokens: usize, burst: usize, pace: Option<Duration>) -> Host {
    let provider = Fed {
        wire,
        reads: Arc::new(reads(wire, tokens, burst)),
        pace,
    };
    ours::host(Arc::new(provider), Arc::new(Forgetful)).await
}

/// Reads one answer to its end and returns its tokens.
pub(crate) async fn read_answer(host: &Host, tokens: usize) -> usize {
    let mut reply = ours::conversation(host, Vec::new())
        .await
        .send("go")
        .await
        .unwrap();
    let mut bytes = 0;
    while let Some(event) = reply.next().await {
        if let EventKind::TextDelta { text } = &event.kind {
            bytes += text.len();
        }
    }
    let end = reply.outcome().await.unwrap();
    assert_eq!(end.text.len(), tokens * 4, "{:?}", end.error);
    assert!(bytes <= tokens * 4);
    tokens
}
