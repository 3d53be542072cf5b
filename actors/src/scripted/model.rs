//! A model provider that answers from a script, and records its requests on demand.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use futures_util::Stream;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    chat::ModelRequest,
    ports::{BoxFuture, Capabilities, LlmProvider, ModelEvent, ModelStream, ProviderError},
};

use super::Reply;

/// How the calls of a [`ScriptedModel`] ended. A running call counts only as started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallCounts {
    /// Calls that started.
    pub started: usize,
    /// Calls that completed, failed or were cut off.
    pub finished: usize,
    /// Calls that were dropped before their end, as on cancellation.
    pub dropped: usize,
}

type Script = Box<dyn Fn(&ModelRequest, usize) -> Reply + Send + Sync>;

/// A scripted model provider for tests, benchmarks, load runs and examples. It records requests and
/// counts how calls end, unless [`ScriptedModel::without_record`] turns that off.
///
/// ```
/// use callboard_actors::scripted::{Reply, ScriptedModel};
///
/// let model = ScriptedModel::replies([Reply::tool("file_list", &serde_json::json!({})), Reply::text("Two files.")]);
/// let echo = ScriptedModel::answering(|request, call| Reply::text(format!("{call}: {} messages", request.messages.len())));
/// ```
pub struct ScriptedModel {
    script: Script,
    name: &'static str,
    capabilities: Capabilities,
    calls: AtomicUsize,
    record: Option<Record>,
}

/// What a model keeps of its calls.
#[derive(Default)]
struct Record {
    requests: Mutex<Vec<ModelRequest>>,
    counts: Arc<watch::Sender<CallCounts>>,
}

impl Record {
    fn requests(&self) -> MutexGuard<'_, Vec<ModelRequest>> {
        self.requests.lock()
    }
}

impl ScriptedModel {
    /// A model whose script computes each reply from the request and the number of earlier calls.
    pub fn answering(
        script: impl Fn(&ModelRequest, usize) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self {
            script: Box::new(script),
            name: "scripted",
            capabilities: Capabilities {
                context_window: 200_000,
                output_max: 32_000,
                tools: true,
                output_schema: false,
                counts_tokens: false,
                images: true,
                documents: true,
                request_bytes_max: None,
                thinking: false,
            },
            calls: AtomicUsize::new(0),
            record: Some(Record::default()),
        }
    }

    /// A model that gives these replies in order; further calls are refused with status 400.
    pub fn replies(replies: impl IntoIterator<Item = Reply>) -> Self {
        let queue = Mutex::new(replies.into_iter().collect::<VecDeque<_>>());
        Self::answering(move |_, call| {
            let next = queue.lock().pop_front();
            next.unwrap_or_else(|| {
                Reply::error(ProviderError::InvalidRequest {
                    status: 400,
                    message: format!("the script has no reply for call {call}"),
                })
            })
        })
    }

    /// A model that always gives this reply.
    pub fn always(reply: Reply) -> Self {
        Self::answering(move |_, _| reply.clone())
    }

    /// Sets the provider's name. The default is `scripted`.
    #[must_use]
    pub fn named(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    /// Sets the capabilities that the model reports.
    #[must_use]
    pub fn capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// Keeps no requests and counts nothing, so that memory does not grow with the number of calls.
    /// [`ScriptedModel::requests`] is then empty, and [`ScriptedModel::counts`] stays at zero.
    #[must_use]
    pub fn without_record(mut self) -> Self {
        self.record = None;
        self
    }

    /// All requests so far, in order of arrival.
    pub fn requests(&self) -> Vec<ModelRequest> {
        self.record
            .as_ref()
            .map_or_else(Vec::new, |record| record.requests().clone())
    }

    /// The most recent request; `None` before the first.
    pub fn last_request(&self) -> Option<ModelRequest> {
        self.record
            .as_ref()
            .and_then(|record| record.requests().last().cloned())
    }

    /// How the calls ended so far.
    pub fn counts(&self) -> CallCounts {
        self.record
            .as_ref()
            .map_or_else(CallCounts::default, |record| *record.counts.borrow())
    }

    /// Waits until the counts satisfy `condition`. Wrap it in a timeout.
    pub async fn until(&self, condition: impl Fn(&CallCounts) -> bool) -> CallCounts {
        let Some(record) = &self.record else {
            return CallCounts::default();
        };
        let mut counts = record.counts.subscribe();
        counts
            .wait_for(|counts| condition(counts))
            .await
            .map_or_else(|_| self.counts(), |counts| *counts)
    }
}

impl LlmProvider for ScriptedModel {
    fn name(&self) -> &str {
        self.name
    }

    fn capabilities(&self, _model: &str) -> Capabilities {
        self.capabilities.clone()
    }

    fn stream(
        &self,
        request: ModelRequest,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, Result<ModelStream, ProviderError>> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let Some(record) = &self.record else {
            return (self.script)(&request, call).play(&request, cancel);
        };
        let guard = CallGuard::begin(record.counts.clone());
        let playing = (self.script)(&request, call).play(&request, cancel);
        record.requests().push(request);
        Box::pin(async move {
            match playing.await {
                Ok(stream) => Ok(Box::pin(Counted { stream, guard }) as ModelStream),
                Err(error) => {
                    guard.finish();
                    Err(error)
                }
            }
        })
    }
}

/// Counts a call as dropped unless it finished.
struct CallGuard {
    counts: Arc<watch::Sender<CallCounts>>,
    open: bool,
}

impl CallGuard {
    fn begin(counts: Arc<watch::Sender<CallCounts>>) -> Self {
        counts.send_modify(|counts| counts.started += 1);
        Self { counts, open: true }
    }

    fn finish(mut self) {
        self.mark_finished();
    }

    fn mark_finished(&mut self) {
        if std::mem::take(&mut self.open) {
            self.counts.send_modify(|counts| counts.finished += 1);
        }
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        if self.open {
            self.counts.send_modify(|counts| counts.dropped += 1);
        }
    }
}

struct Counted {
    stream: ModelStream,
    guard: CallGuard,
}

impl Stream for Counted {
    type Item = Result<Vec<ModelEvent>, ProviderError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let item = ready!(self.stream.as_mut().poll_next(context));
        let ended = match &item {
            None | Some(Err(_)) => true,
            Some(Ok(batch)) => matches!(batch.last(), Some(ModelEvent::Completed(_))),
        };
        if ended {
            self.guard.mark_finished();
        }
        Poll::Ready(item)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;
    use crate::chat::{Message, MessageList, ToolChoice};

    fn request(text: &str) -> ModelRequest {
        ModelRequest {
            model: "scripted".into(),
            system: None,
            messages: MessageList::from_iter([Message::user(text)]),
            tools: Arc::new([]),
            tool_choice: ToolChoice::Auto,
            max_tokens: 100,
            stop: Arc::new([]),
            effort: None,
            thinking: None,
            temperature: None,
            output_schema: None,
            cache: false,
        }
    }

    async fn read(model: &ScriptedModel, text: &str) -> Result<String, ProviderError> {
        let stream = model
            .stream(request(text), CancellationToken::new())
            .await?;
        let batches: Vec<_> = stream.collect().await;
        let mut said = String::new();
        for batch in batches {
            batch?.iter().for_each(|event| {
                if let ModelEvent::Text(piece) = event {
                    said.push_str(piece)
                }
            });
        }
        Ok(said)
    }

    #[tokio::test]
    async fn replies_come_in_turn_and_requests_are_recorded() {
        let model = ScriptedModel::replies([Reply::text("one"), Reply::text("two")]);

        let said = [read(&model, "a").await, read(&model, "b").await];

        assert_eq!(said, [Ok("one".into()), Ok("two".into())]);
        assert_eq!(
            read(&model, "c").await.unwrap_err().code(),
            "provider_invalid_request"
        );
        let asked: Vec<String> = model
            .requests()
            .iter()
            .map(|request| request.messages.last().unwrap().text())
            .collect();
        assert_eq!(asked, ["a", "b", "c"]);
        assert_eq!(
            model.counts(),
            CallCounts {
                started: 3,
                finished: 3,
                dropped: 0
            }
        );
    }

    #[tokio::test]
    async fn a_dropped_stream_and_a_dropped_head_are_counted() {
        let model = ScriptedModel::always(Reply::stall());
        let slow =
            ScriptedModel::always(Reply::text("x").after(std::time::Duration::from_secs(3600)));

        drop(
            model
                .stream(request("a"), CancellationToken::new())
                .await
                .unwrap(),
        );
        drop(slow.stream(request("a"), CancellationToken::new()));

        assert_eq!(
            model.until(|counts| counts.dropped == 1).await,
            CallCounts {
                started: 1,
                finished: 0,
                dropped: 1
            }
        );
        assert_eq!(
            slow.counts(),
            CallCounts {
                started: 1,
                finished: 0,
                dropped: 1
            }
        );
    }

    #[tokio::test]
    async fn a_model_without_a_record_answers_and_keeps_nothing() {
        let model = ScriptedModel::always(Reply::text("one")).without_record();

        assert_eq!(read(&model, "a").await, Ok("one".into()));
        assert_eq!(
            (model.requests().len(), model.counts()),
            (0, CallCounts::default())
        );
    }
}
