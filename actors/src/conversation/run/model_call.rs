//! One model call as a task: acquires the permits, streams to the watchers, and ends with one
//! [`ModelOutcome`].

use std::{panic::AssertUnwindSafe, pin::pin, sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::{
    chat::{ContentBlock, ModelRequest, TextBlock, Usage},
    conversation::{
        ConversationMsg, WaitsFor,
        commit::stream_writer::StreamWriter,
        round::{FailedAttempt, ModelOutcome},
        run::{Live, trace::CallTrace},
        wait_status::WaitStatus,
    },
    ids::{RoundId, WorkId},
    limits::{BYTES_A_TOKEN, PARTIAL_ANSWER_BYTES_MAX},
    metrics_collector::Counters,
    model_gateway::{CallBy, CallClass, ModelGatewayRef, Waiting},
    ports::{AnswerSize, Clock, Completion, ModelEvent, ProviderError},
    stream::EventKind,
    task::AbortOnDrop,
    tenant::{RoundPermit, Tenant},
};

/// The slot of a round's permit. The first model call fills it; a park, a wait for subagents or the
/// end of the round empties it.
pub(in crate::conversation) type PermitSlot = Arc<Mutex<Option<RoundPermit>>>;

/// The most event batches taken in one burst, so that other tasks of the thread can run.
const BURST_MAX: usize = 64;

/// Above this many collected bytes, text and thinking are published even within a burst.
const UNPUBLISHED_BYTES_MAX: usize = 4096;

/// The parts of a model call.
pub(in crate::conversation) struct ModelCall {
    pub(in crate::conversation) gateway: ModelGatewayRef,
    pub(in crate::conversation) request: ModelRequest,
    pub(in crate::conversation) tenant: Arc<Tenant>,
    pub(in crate::conversation) class: CallClass,
    pub(in crate::conversation) permit: PermitSlot,
    pub(in crate::conversation) writer: Arc<StreamWriter>,
    pub(in crate::conversation) wait_status: Arc<WaitStatus>,
    pub(in crate::conversation) clock: Arc<dyn Clock>,
    pub(in crate::conversation) round_id: RoundId,
    pub(in crate::conversation) cancel: CancellationToken,
    pub(in crate::conversation) idle: Duration,
    pub(in crate::conversation) total: Duration,
    pub(in crate::conversation) counters: Arc<Counters>,
    pub(in crate::conversation) trace: CallTrace,
    pub(in crate::conversation) attempts: Mutex<Attempts>,
}

/// The attempts of a model call.
pub(in crate::conversation) struct Attempts {
    /// The model of the running attempt: the fallback's if the call fell back.
    model: Arc<str>,
    /// What the provider reported of the running attempt.
    reported: Option<Usage>,
    failed: Vec<FailedAttempt>,
}

impl Attempts {
    fn new(model: Arc<str>) -> Self {
        Self {
            model,
            reported: None,
            failed: Vec::new(),
        }
    }

    /// Ends the running attempt as failed, after `output` tokens by our own estimate.
    fn failed(&mut self, output: u64) {
        if let Some(mut usage) = self.reported.take() {
            usage.output = usage.output.max(output);
            self.failed.push(FailedAttempt {
                model: self.model.clone(),
                usage,
            });
        }
    }
}

impl ModelCall {
    /// Runs the call. Returns its outcome, the model of the last attempt and the attempts that
    /// failed. A panic in the provider's adapter is a failed call.
    pub(in crate::conversation) async fn run(self) -> (ModelOutcome, Arc<str>, Vec<FailedAttempt>) {
        let run = AssertUnwindSafe(self.run_inner())
            .catch_unwind()
            .instrument(self.trace.span.clone());
        let outcome = run.await.unwrap_or_else(|_| ModelOutcome::Failed {
            error: ProviderError::Protocol {
                message: "the provider's adapter panicked".into(),
            },
            partial: Vec::new(),
        });
        let mut attempts = self.attempts.into_inner();
        if let ModelOutcome::Failed { partial, .. } | ModelOutcome::Cancelled { partial } = &outcome
        {
            let bytes: usize = partial.iter().map(ContentBlock::content_bytes).sum();
            attempts.failed(bytes as u64 / BYTES_A_TOKEN);
        }
        let failed = attempts.failed.iter();
        let failed = failed.fold(Usage::default(), |sum, attempt| sum.plus(&attempt.usage));
        self.trace.ended(
            &self.counters.latencies,
            self.gateway.provider().name(),
            &self.request.model,
            &outcome,
            &failed,
        );
        (outcome, attempts.model, attempts.failed)
    }

    async fn run_inner(&self) -> ModelOutcome {
        let mut collector = Collector::default();
        // Both selects check the cancellation first, so a canceled call ends as canceled even if
        // its answer or its timeout is ready too.
        let permitted = tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(ProviderError::Cancelled),
            permitted = self.take_round_permit() => permitted.inspect(|()| self.trace.permitted(&self.counters.latencies)),
        };
        // The total timeout starts after the permit: waiting for the tenant's quota or pause does
        // not count as a hanging call.
        let total = tokio::time::sleep(self.total);
        tokio::pin!(total);
        let result = tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(ProviderError::Cancelled),
            result = async { permitted?; self.stream(&mut collector).await } => result,
            () = &mut total => Err(ProviderError::Timeout { message: format!("no end after {} s", self.total.as_secs()) }),
        };
        match result {
            Ok(completion) => ModelOutcome::Completed {
                blocks: collector.blocks,
                completion,
            },
            Err(ProviderError::Cancelled) if self.cancel.is_cancelled() => {
                ModelOutcome::Cancelled {
                    partial: collector.partial(),
                }
            }
            Err(error) => ModelOutcome::Failed {
                error,
                partial: collector.partial(),
            },
        }
    }

    async fn stream(&self, collector: &mut Collector) -> Result<Completion, ProviderError> {
        self.waits_for(WaitsFor::Model);
        let on_wait = |waiting| self.publish_wait(waiting);
        let by = CallBy {
            tenant: self.tenant.id(),
            weight: self.tenant.quotas().weight,
            class: self.class,
        };
        let start = self
            .gateway
            .stream(&by, self.request.clone(), self.cancel.clone(), on_wait);
        let mut stream = start.await?;
        self.waits_for(WaitsFor::Model);
        self.trace.first_chunk(&self.counters.latencies);
        // One timer for the whole stream. When it fires it looks at the last event and rearms, so a
        // token never touches the timer.
        let idle = tokio::time::sleep(self.idle);
        tokio::pin!(idle);
        let mut last = Instant::now();
        loop {
            let batch = tokio::select! {
                biased;
                batch = stream.next() => batch,
                () = &mut idle => {
                    let quiet = last.elapsed();
                    if quiet >= self.idle {
                        return Err(ProviderError::Timeout { message: format!("nothing came for {} s", self.idle.as_secs()) });
                    }
                    idle.as_mut().reset(last + self.idle);
                    continue;
                }
            };
            last = Instant::now();
            // Events that are ready now are published together: a burst of tokens becomes one event
            // for the watchers, without waiting for more.
            let mut batch = batch;
            for taken in 1.. {
                let Some(events) = batch else {
                    self.flush(collector);
                    return Err(ProviderError::without_end());
                };
                for event in events.inspect_err(|_| self.flush(collector))? {
                    collector.count(&event)?;
                    if let Some(completion) = self.take(collector, event) {
                        self.flush(collector);
                        return Ok(completion);
                    }
                }
                if taken >= BURST_MAX {
                    break;
                }
                match stream.next().now_or_never() {
                    Some(next) => batch = next,
                    None => break,
                }
                if collector.unpublished_bytes() > UNPUBLISHED_BYTES_MAX {
                    self.flush(collector);
                }
            }
            self.flush(collector);
        }
    }

    fn take(&self, collector: &mut Collector, event: ModelEvent) -> Option<Completion> {
        match event {
            ModelEvent::Text(text) => {
                self.publish_thinking(collector);
                collector.text.push_str(&text);
            }
            ModelEvent::Thinking(text) => {
                self.publish_text(collector);
                collector.unpublished_thinking.push_str(&text);
            }
            ModelEvent::Block(block) => {
                if matches!(block, ContentBlock::Text(_)) {
                    self.publish_text(collector);
                    (collector.text, collector.published_bytes) = (String::new(), 0);
                }
                collector.blocks.push(block);
            }
            ModelEvent::Completed(completion) => return Some(completion),
            ModelEvent::Usage(usage) => self.attempts.lock().reported = Some(usage),
            ModelEvent::Limits(_) => {} // The gateway handles it.
        }
        None
    }

    fn flush(&self, collector: &mut Collector) {
        self.publish_thinking(collector);
        self.publish_text(collector);
    }

    fn publish_text(&self, collector: &mut Collector) {
        if let Some(unpublished) = collector
            .text
            .get(collector.published_bytes..)
            .filter(|unpublished| !unpublished.is_empty())
        {
            let text = unpublished.to_owned();
            collector.published_bytes = collector.text.len();
            self.writer
                .ephemeral(self.round_id, EventKind::TextDelta { text });
        }
    }

    fn publish_thinking(&self, collector: &mut Collector) {
        if !collector.unpublished_thinking.is_empty() {
            let text = std::mem::take(&mut collector.unpublished_thinking);
            self.writer
                .ephemeral(self.round_id, EventKind::ThinkingDelta { text });
        }
    }

    fn publish_wait(&self, waiting: Waiting) {
        let event = match waiting {
            Waiting::Reported { usage } => {
                self.attempts.lock().reported = Some(usage);
                return;
            }
            Waiting::Queued {
                position,
                waits_for,
                ..
            } => {
                self.waits_for(WaitsFor::Provider {
                    position,
                    reason: waits_for,
                });
                EventKind::Queued { position }
            }
            Waiting::Retry {
                attempt,
                delay,
                reason,
            } => {
                self.attempts.lock().failed(0);
                let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
                let reason = reason.to_owned();
                self.waits_for(WaitsFor::Retry {
                    attempt,
                    delay_ms,
                    reason: reason.clone(),
                });
                EventKind::Retry {
                    layer: "gateway",
                    attempt,
                    delay_ms,
                    reason,
                }
            }
            Waiting::Fallback { reason, model } => {
                let mut attempts = self.attempts.lock();
                attempts.failed(0);
                attempts.model = model;
                drop(attempts);
                self.waits_for(WaitsFor::Model);
                EventKind::Retry {
                    layer: "fallback",
                    attempt: 1,
                    delay_ms: 0,
                    reason: reason.to_owned(),
                }
            }
        };
        self.writer.ephemeral(self.round_id, event);
    }

    fn waits_for(&self, waits_for: WaitsFor) {
        self.wait_status.set(waits_for, &*self.clock);
    }

    async fn take_round_permit(&self) -> Result<(), ProviderError> {
        let slot = || self.permit.lock();
        if slot().is_some() {
            return Ok(());
        }
        let mut turn = pin!(self.tenant.clone().round_permit());
        let permit = match turn.as_mut().now_or_never() {
            Some(permit) => permit,
            None => {
                self.waits_for(WaitsFor::TenantTurn { position: 0 });
                turn.await
            }
        };
        let permit = permit.ok_or(ProviderError::Cancelled)?;
        *slot() = Some(permit);
        Ok(())
    }
}

/// Collects an answer.
#[derive(Default)]
struct Collector {
    blocks: Vec<ContentBlock>,
    /// The text so far of an open block.
    text: String,
    /// Bytes of `text` that are published.
    published_bytes: usize,
    /// Thinking that is not published yet.
    unpublished_thinking: String,
    /// The size of `blocks`.
    size: AnswerSize,
    /// Bytes of the pieces whose block has not arrived.
    open_bytes: usize,
}

impl Collector {
    fn unpublished_bytes(&self) -> usize {
        self.text.len().saturating_sub(self.published_bytes) + self.unpublished_thinking.len()
    }

    /// Counts an event against the bounds of an answer.
    fn count(&mut self, event: &ModelEvent) -> Result<(), ProviderError> {
        match event {
            ModelEvent::Text(piece) | ModelEvent::Thinking(piece) => self.open_bytes += piece.len(),
            ModelEvent::Block(block) => {
                self.open_bytes = 0;
                self.size.add_block(block.content_bytes());
                self.size.calls += usize::from(matches!(block, ContentBlock::ToolUse(_)));
            }
            ModelEvent::Usage(_) | ModelEvent::Completed(_) | ModelEvent::Limits(_) => {}
        }
        self.size.check(self.open_bytes)
    }

    /// The unfinished answer, shortened to what may enter a history.
    fn partial(mut self) -> Vec<ContentBlock> {
        if !self.text.is_empty() {
            self.blocks.push(ContentBlock::Text(TextBlock {
                text: self.text,
                cache_control: None,
                citations: None,
            }));
        }
        let mut left = PARTIAL_ANSWER_BYTES_MAX;
        self.blocks.retain_mut(|block| {
            if let ContentBlock::Text(text) = block {
                let end = text.text.floor_char_boundary(left);
                text.text.truncate(end);
                text.text.shrink_to_fit();
            }
            let fits = block.content_bytes() <= left;
            left = left.saturating_sub(block.content_bytes());
            fits
        });
        self.blocks
    }
}

impl Live {
    /// Starts a model call as a task.
    pub(super) fn start_model(&mut self, work: WorkId) {
        let Some(round_id) = self.durable.round.as_ref().map(|round| round.id) else {
            return;
        };
        self.ports.counters.model_calls.add(1);
        let mut request = self.setup.request(&self.durable);
        self.watch_prefix(&request);
        let output = self
            .durable
            .round
            .as_ref()
            .and_then(|round| round.output.as_ref())
            .filter(|_| self.setup.native_output);
        request.output_schema = output.map(|output| output.schema.clone());
        let gateway = self.setup.gateway.clone();
        let tenant = self.tenant.clone();
        let writer = self.commits.writer.clone();
        let wait_status = self.wait_status.clone();
        let clock = self.ports.clock.clone();
        let idle = self.setup.limits.model_idle;
        let total = self.setup.limits.model_total;
        let me = self.me.clone();
        let counters = self.ports.counters.clone();
        let scope = self.scope.clone();
        let class = self.setup.class;
        let first = self
            .durable
            .round
            .as_ref()
            .is_some_and(|round| round.model_calls <= 1);
        let Some(resources) = self.resources() else {
            return;
        };
        let permit = resources.permit.clone();
        let cancel = resources.cancel.clone();
        let trace = CallTrace::begin(
            &resources.span,
            first,
            &scope,
            gateway.provider().name(),
            &request,
        );
        let attempts = Mutex::new(Attempts::new(request.model.clone()));
        let call = ModelCall {
            gateway,
            request,
            tenant,
            class,
            permit,
            writer,
            wait_status,
            clock,
            round_id,
            cancel,
            idle,
            total,
            counters,
            trace,
            attempts,
        };
        let task = tokio::spawn(Box::pin(async move {
            let (outcome, model, failed) = call.run().await;
            let _ = me.cast(ConversationMsg::ModelEnded {
                work,
                outcome: Box::new(outcome),
                model,
                failed,
            });
        }));
        resources.tasks.insert(work, AbortOnDrop(task));
    }

    /// Publishes how full the model's window is.
    pub(super) fn publish_context(&self, usage: &Usage) {
        let rules = &self.setup.context;
        if let Some(round) = self
            .durable
            .round
            .as_ref()
            .filter(|_| usage.input() > 0 && rules.window > 0)
        {
            let tokens = self.durable.context.window.estimate(rules.fixed);
            let fraction = tokens as f64 / rules.window as f64;
            self.commits.writer.ephemeral(
                round.id,
                EventKind::Context {
                    tokens,
                    window: rules.window,
                    fraction,
                },
            );
        }
    }
}
