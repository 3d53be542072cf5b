//! One model call as a task: acquires the permits, streams to the watchers, and ends with one
//! [`ModelOutcome`].

use std::{
    future::poll_fn,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::{
    chat::{ContentBlock, ModelRequest, RawJson, Usage},
    compactor::CompactorRef,
    conversation::{
        ConversationMsg, WaitsFor,
        commit::stream_writer::StreamWriter,
        message::EndedCall,
        round::{
            FailedAttempt, KEPT_ANSWER_BYTES, ModelOutcome,
            rules::{CallPolicy, CheckedAhead, ContextRules, ModelLimits, OtherModel},
        },
        run::{
            Live,
            collector::Collector,
            stream_timer::{StreamTimer, TimerEnd},
            trace::CallTrace,
        },
        wait_status::WaitStatus,
    },
    ids::{RoundId, WorkId},
    limits::{BYTES_A_TOKEN, LONG_ANSWER_BYTES},
    model_gateway::{CallBy, CallClass, Fallback, ModelGatewayRef, Waiting},
    ports::{Capabilities, Clock, Completion, ModelEvent, ModelStream, ProviderError},
    stream::EventKind,
    task::AbortOnDrop,
    tenant::{HeldMemory, LongAnswerPlace, RoundPermit, Tenant},
    tokens::WindowUse,
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
    /// The context rules of the call, and how full the window is.
    pub(in crate::conversation) context: ContextRules,
    pub(in crate::conversation) window: WindowUse,
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
    /// The least time between two text events; zero publishes text as it arrives.
    pub(in crate::conversation) flush_every: Duration,
    pub(in crate::conversation) trace: CallTrace,
    pub(in crate::conversation) attempts: Mutex<Attempts>,
    /// Checks what the answer brings, before it is decided about.
    pub(in crate::conversation) policy: Arc<dyn CallPolicy>,
    /// The schema that the answer must fit.
    pub(in crate::conversation) output: Option<RawJson>,
    /// Has the places of long checks.
    pub(in crate::conversation) compactor: CompactorRef,
    /// The bytes that the conversation has taken of its tenant's memory.
    pub(in crate::conversation) own_bytes: u64,
}

/// The attempts of a model call.
pub(in crate::conversation) struct Attempts {
    /// The model of the running attempt: the fallback's if the call fell back.
    model: Arc<str>,
    /// What the provider reported of the running attempt.
    reported: Option<Usage>,
    /// Bytes that the running attempt has written: text, thinking, and arguments of calls.
    written: usize,
    failed: Vec<FailedAttempt>,
    /// The fallback that the call goes to once the context was measured for it.
    fell_back: Option<(Fallback, ProviderError)>,
}

impl Attempts {
    fn new(model: Arc<str>) -> Self {
        Self {
            model,
            reported: None,
            written: 0,
            failed: Vec::new(),
            fell_back: None,
        }
    }

    /// Ends the running attempt as failed, after an answer of `kept` bytes. The provider bills all
    /// that the model wrote, also what no history keeps: open thinking, and calls without an end.
    /// Where it reported no input, that is estimated when the attempt is billed.
    fn failed(&mut self, kept: usize) {
        let written = std::mem::take(&mut self.written);
        let output = (written.max(kept) as u64) / BYTES_A_TOKEN;
        let mut usage = match self.reported.take() {
            Some(usage) => usage,
            None if written > 0 => Usage::default(),
            None => return,
        };
        usage.output = usage.output.max(output);
        self.failed.push(FailedAttempt {
            model: self.model.clone(),
            usage,
        });
    }
}

/// There is no memory for an answer.
struct NoMemory;

/// Others have all places of long answers.
struct NoPlace;

/// What an answer has got before the decision about it.
#[derive(Default)]
struct Waited {
    checked: Vec<CheckedAhead>,
    memory: Option<HeldMemory>,
    place: Option<LongAnswerPlace>,
}

impl ModelCall {
    /// Runs the call. A panic in the provider's adapter is a failed call.
    pub(in crate::conversation) async fn run(self) -> EndedCall {
        let run = AssertUnwindSafe(self.run_inner())
            .catch_unwind()
            .instrument(self.trace.span.clone());
        let mut outcome = run.await.unwrap_or_else(|_| ModelOutcome::Failed {
            error: ProviderError::Protocol {
                message: "the provider's adapter panicked".into(),
            },
            partial: Vec::new(),
        });
        let mut waited = Waited::default();
        if let ModelOutcome::Completed {
            blocks, has_memory, ..
        } = &mut outcome
        {
            match self.held(blocks) {
                Ok(memory) => match self.wait(blocks).await {
                    Ok(got) => waited = Waited { memory, ..got },
                    Err(NoPlace) => *has_memory = false,
                },
                Err(NoMemory) => *has_memory = false,
            }
        }
        let mut attempts = self.attempts.into_inner();
        if let (ModelOutcome::Failed { .. }, Some((fallback, error))) =
            (&outcome, attempts.fell_back.take())
        {
            attempts.failed(0);
            outcome = ModelOutcome::FellBack {
                gateway: fallback.gateway,
                model: fallback.model,
                error,
            };
        }
        if let ModelOutcome::Failed { partial, .. } | ModelOutcome::Cancelled { partial } = &outcome
        {
            let bytes: usize = partial.iter().map(ContentBlock::content_bytes).sum();
            attempts.failed(bytes);
        }
        let failed = attempts.failed.iter();
        let failed = failed.fold(Usage::default(), |sum, attempt| sum.plus(&attempt.usage));
        let times = self.trace.ended(
            self.gateway.provider().name(),
            &self.request.model,
            &outcome,
            &failed,
        );
        EndedCall {
            outcome,
            model: attempts.model,
            failed: attempts.failed,
            times: Some(times),
            checked: waited.checked,
            memory: waited.memory,
            place: waited.place,
        }
    }

    /// Takes memory for an answer from the end of its stream to the decision about it. Short answers
    /// need none.
    fn held(&self, blocks: &[ContentBlock]) -> Result<Option<HeldMemory>, NoMemory> {
        let bytes: usize = blocks.iter().map(ContentBlock::kept_bytes).sum();
        if bytes <= KEPT_ANSWER_BYTES {
            return Ok(None);
        }
        let held = self.tenant.hold_memory(bytes, self.own_bytes);
        held.map(Some).ok_or(NoMemory)
    }

    /// Waits for what few answers do at a time, and of one tenant at most half of them, because
    /// hundreds of rounds that end together would stop all others: checks that take long, and being
    /// written into the history.
    ///
    /// # Errors
    /// [`NoPlace`] if the round was cancelled before the answer could be written.
    async fn wait(&self, blocks: &mut Vec<ContentBlock>) -> Result<Waited, NoPlace> {
        let bytes: usize = blocks.iter().map(ContentBlock::content_bytes).sum();
        let mut waited = Waited::default();
        if self.policy.is_long_check(self.output.as_ref(), blocks) {
            (*blocks, waited.checked) = self.checked(std::mem::take(blocks)).await;
        }
        if bytes > LONG_ANSWER_BYTES {
            tokio::select! {
                biased;
                place = self.tenant.long_answer_place() => waited.place = place,
                // Otherwise very many that are cancelled together would be written together.
                () = self.cancel.cancelled() => return Err(NoPlace),
            }
        }
        Ok(waited)
    }

    /// Makes checks of an answer on the pool. Without them, as after a cancellation, the decision
    /// about the answer makes them.
    async fn checked(&self, blocks: Vec<ContentBlock>) -> (Vec<ContentBlock>, Vec<CheckedAhead>) {
        let blocks = Arc::new(blocks);
        let (policy, output) = (self.policy.clone(), self.output.clone());
        let compute = {
            let blocks = blocks.clone();
            move || {
                let checked = policy.check_ahead(output.as_ref(), &blocks);
                drop(blocks);
                checked
            }
        };
        let checking = self.compactor.on_pool(&self.tenant, compute);
        let checked = tokio::select! {
            biased;
            () = self.cancel.cancelled() => None,
            checked = checking => checked,
        };
        (Arc::unwrap_or_clone(blocks), checked.unwrap_or_default())
    }

    async fn run_inner(&self) -> ModelOutcome {
        let mut collector = Collector::default();
        // Both selects check the cancellation first, so a canceled call ends as canceled even if
        // its answer or its timeout is ready too.
        let permitted = tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(ProviderError::Cancelled),
            permitted = self.take_round_permit() => permitted.inspect(|()| self.trace.permitted()),
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
        {
            let mut attempts = self.attempts.lock();
            attempts.written = attempts.written.max(collector.written());
        }
        match result {
            Ok(completion) => ModelOutcome::Completed {
                blocks: collector.into_blocks(),
                completion,
                has_memory: true,
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
        // A request that may be too large for the fallback is measured for its window first.
        let fits = |fallback: &Fallback, capabilities: &Capabilities, error: &ProviderError| {
            let limits = ModelLimits {
                window: u64::from(capabilities.context_window),
                answer_max: u64::from(capabilities.fallback_answer_max()),
            };
            let fits = !self.context.with_model(limits).is_in_doubt(&self.window);
            if !fits {
                self.attempts.lock().fell_back = Some((fallback.clone(), error.clone()));
            }
            fits
        };
        let (request, cancel) = (self.request.clone(), self.cancel.clone());
        let start = self
            .gateway
            .stream_where(&by, request, cancel, on_wait, fits);
        let mut stream = start.await?;
        self.waits_for(WaitsFor::Model);
        self.trace.first_chunk();
        let mut timer = StreamTimer::new(self.idle);
        poll_fn(|cx| self.poll_stream(cx, &mut stream, collector, &mut timer)).await
    }

    /// Takes what is ready from the stream and publishes it. Events that are ready together are
    /// published together: a burst of tokens becomes one event for the watchers, without waiting
    /// for more.
    ///
    /// Polled by hand, so that a token costs two polls of the stream (one that finds it, one that
    /// registers for the next) and none of the timer.
    fn poll_stream(
        &self,
        cx: &mut Context<'_>,
        stream: &mut ModelStream,
        collector: &mut Collector,
        timer: &mut StreamTimer,
    ) -> Poll<Result<Completion, ProviderError>> {
        for taken in 0..BURST_MAX {
            let events = match stream.poll_next_unpin(cx) {
                Poll::Ready(Some(Ok(events))) => events,
                Poll::Ready(Some(Err(error))) => {
                    self.flush(collector);
                    return Poll::Ready(Err(error));
                }
                Poll::Ready(None) => {
                    self.flush(collector);
                    return Poll::Ready(Err(ProviderError::without_end()));
                }
                Poll::Pending => {
                    if taken > 0 {
                        timer.reset();
                    }
                    return self.poll_timer(cx, collector, timer);
                }
            };
            for event in events {
                collector.count(&event)?;
                if let Some(completion) = self.take(collector, event) {
                    self.flush(collector);
                    return Poll::Ready(Ok(completion));
                }
            }
            if collector.unpublished_bytes() > UNPUBLISHED_BYTES_MAX {
                self.flush(collector);
            }
        }
        timer.reset();
        cx.waker().wake_by_ref(); // Other tasks of the thread first.
        self.poll_timer(cx, collector, timer)
    }

    /// Publishes the collected text, at once or when it is due, and ends a call that is silent for
    /// too long.
    fn poll_timer<T>(
        &self,
        cx: &mut Context<'_>,
        collector: &mut Collector,
        timer: &mut StreamTimer,
    ) -> Poll<Result<T, ProviderError>> {
        loop {
            let mut due = None;
            if collector.unpublished_bytes() > 0 {
                due = collector.flushed.map(|at| at + self.flush_every);
                if self.flush_every.is_zero() || due.is_none_or(|due| due <= Instant::now()) {
                    self.flush(collector);
                    due = None;
                }
            }
            match timer.poll(cx, due) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(TimerEnd::Due) => {}
                Poll::Ready(TimerEnd::Silent) => {
                    self.flush(collector);
                    let message = format!("nothing came for {} s", self.idle.as_secs());
                    return Poll::Ready(Err(ProviderError::Timeout { message }));
                }
            }
        }
    }

    fn take(&self, collector: &mut Collector, event: ModelEvent) -> Option<Completion> {
        match event {
            ModelEvent::Text(text) => {
                self.publish_thinking(collector);
                collector.add_text(text);
            }
            ModelEvent::Thinking(text) => {
                self.publish_text(collector);
                collector.add_thinking(text);
            }
            ModelEvent::Block(block) => {
                if let ContentBlock::Text(_) = &block {
                    self.publish_text(collector);
                }
                collector.add_block(block);
            }
            ModelEvent::Completed(completion) => return Some(completion),
            ModelEvent::Usage(usage) => self.attempts.lock().reported = Some(usage),
            ModelEvent::Arguments(_) => {} // Counted.
            ModelEvent::Limits(_) => {}    // The gateway handles it.
        }
        None
    }

    fn flush(&self, collector: &mut Collector) {
        if !self.flush_every.is_zero() && collector.unpublished_bytes() > 0 {
            collector.flushed = Some(Instant::now());
        }
        self.publish_thinking(collector);
        self.publish_text(collector);
    }

    fn publish_text(&self, collector: &mut Collector) {
        if let Some(text) = collector.unpublished_text() {
            self.writer
                .ephemeral(self.round_id, EventKind::TextDelta { text });
        }
    }

    fn publish_thinking(&self, collector: &mut Collector) {
        if let Some(text) = collector.unpublished_thinking() {
            self.writer
                .ephemeral(self.round_id, EventKind::ThinkingDelta { text });
        }
    }

    fn publish_wait(&self, waiting: Waiting) {
        let event = match waiting {
            Waiting::Sent => return,
            Waiting::Arguments { bytes } => {
                self.attempts.lock().written = bytes;
                return;
            }
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

impl Live {
    /// Starts a model call as a task.
    pub(super) fn start_model(&mut self, work: WorkId) {
        let Some(round_id) = self.durable.round.as_ref().map(|round| round.id) else {
            return;
        };
        let output = self.durable.round.as_ref().and_then(|round| {
            let output = round.output.as_ref();
            output.map(|output| output.schema.clone())
        });
        let (request, gateway) = self.setup.call(&self.durable);
        self.watch_prefix(&request);
        let context = self.setup.context_of(&self.durable);
        let window = self.durable.context.window;
        let tenant = self.tenant.clone();
        let writer = self.commits.writer.clone();
        let wait_status = self.wait_status.clone();
        let clock = self.ports.clock.clone();
        let idle = self.setup.limits.model_idle;
        let total = self.setup.limits.model_total;
        let flush_every = self.setup.limits.flush;
        let me = self.me.clone();
        let scope = self.scope.clone();
        let class = self.setup.class;
        let first = self
            .durable
            .round
            .as_ref()
            .is_some_and(|round| round.model_calls <= 1);
        let policy = self.volatile.rules.call_policy.clone();
        let compactor = self.setup.compactor.clone();
        let own_bytes = self.history_bytes.taken();
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
            context,
            window,
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
            flush_every,
            trace,
            attempts,
            policy,
            output,
            compactor,
            own_bytes,
        };
        let task = tokio::spawn(Box::pin(async move {
            let asked = call.request.model.clone();
            // What writes the call's figures is not the kernel's either.
            let run = AssertUnwindSafe(call.run()).catch_unwind().await;
            let call = run.unwrap_or_else(|_| {
                let message = "the model call panicked".into();
                let error = ProviderError::Protocol { message };
                let partial = Vec::new();
                EndedCall {
                    outcome: ModelOutcome::Failed { error, partial },
                    model: asked,
                    failed: Vec::new(),
                    times: None,
                    checked: Vec::new(),
                    memory: None,
                    place: None,
                }
            });
            let call = Box::new(call);
            let _ = me.cast(ConversationMsg::ModelEnded { work, call });
        }));
        resources.tasks.insert(work, AbortOnDrop(task));
    }

    /// Publishes how full the window of `model` is, which answered.
    pub(super) fn publish_context(&self, usage: &Usage, model: &str) {
        let limits = (*model != *self.setup.model)
            .then(|| self.setup.limits_of(OtherModel::Answered(model)))
            .flatten();
        let own = self.setup.context;
        let rules = &limits.map_or(own, |limits| own.with_model(limits));
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
