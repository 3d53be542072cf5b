//! The shell of an activation: translates mail to inputs, appends the entries of each decision, and
//! performs its effects.

pub(in crate::conversation) mod budget_guard;
pub(in crate::conversation) mod fork;
pub(in crate::conversation) mod load;
pub(in crate::conversation) mod measure;
pub(in crate::conversation) mod model_call;
mod pause;
pub(in crate::conversation) mod prefix;
pub(in crate::conversation) mod progress;
pub(in crate::conversation) mod trace;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ractor::ActorRef;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::{
    chat::{ModelRequest, Usage},
    compactor::SummaryJob,
    conversation::{
        ConversationArgs, ExitReason, WaitsFor,
        commit::{
            after_commit::{AfterCommit, Waiter},
            append_queue::{AppendBatch, AppendQueue},
            stream_writer::StreamWriter,
        },
        message::{ConversationError, ConversationMsg, PromptMail},
        round::{
            self, Effect, Input, NewPrompt, Outcome, StartTool, When, budget,
            rules::Recovery,
            volatile::{Volatile, Work},
        },
        run::{
            budget_guard::BudgetGuard,
            measure::Measurement,
            model_call::{ModelCall, PermitSlot},
            pause::{Pause, survives_pause},
            prefix::{PrefixBreak, PrefixWatch},
            progress::progress_of,
            trace::CallTrace,
        },
        setup::{Ports, Setup},
        wait_status::WaitStatus,
    },
    ids::{CallKey, PromptId, RoundId, Scope, WaiterId, WorkId},
    journal::{CallState, Durable, Entry, EntryBody, Head, WithdrawReason},
    limits::{CANCEL_GRACE, SNAPSHOT_ENTRIES},
    model_gateway::CallClass,
    ports::{Append, AppendError, Durability},
    small_map::SmallMap,
    stream::{EventKind, Failure, Open},
    subagent::{CREATE_SUBAGENT, Siblings},
    task::AbortOnDrop,
    tenant::{Seat, Tenant},
    time::Timestamp,
    tool_executor::{Run, RunResult, ToolEnvironment, ToolExecutorArgs, ToolExecutorRef, ToolInvocationRequest},
};

/// What the actor does after a message.
pub(in crate::conversation) enum Flow {
    /// Handles the next message.
    GoOn,
    /// Ends the activation.
    End(ExitReason),
}

/// The resources of an open round. Dropping them stops the round's tasks, timers and executor and
/// releases its permit.
struct RoundResources {
    cancel: CancellationToken,
    permit: PermitSlot,
    executor: Option<ToolExecutorRef>,
    tasks: SmallMap<WorkId, AbortOnDrop>,
    timers: Vec<AbortOnDrop>,
    /// When each call of the batch first started, by index.
    began: BTreeMap<u32, Instant>,
    span: Span,
}

impl RoundResources {
    fn new(span: Span) -> Self {
        Self {
            cancel: CancellationToken::new(),
            permit: Arc::default(),
            executor: None,
            tasks: SmallMap::default(),
            timers: Vec::new(),
            began: BTreeMap::new(),
            span,
        }
    }
}

impl Drop for RoundResources {
    fn drop(&mut self) {
        if let Some(executor) = &self.executor {
            executor.stop();
        }
    }
}

/// One activation of a conversation.
pub(in crate::conversation) struct Live {
    me: ActorRef<ConversationMsg>,
    scope: Scope,
    setup: Arc<Setup>,
    ports: Ports,
    tenant: Arc<Tenant>,
    durable: Durable,
    volatile: Volatile,
    append_queue: SharedQueue,
    writer: Arc<StreamWriter>,
    wait_status: Arc<WaitStatus>,
    resources: Option<(RoundId, RoundResources)>,
    waiters: SmallMap<WaiterId, Waiter>,
    next_waiter: u64,
    /// Seats and deadline timers of prompts whose rounds are not over, by round.
    admitted: SmallMap<RoundId, (Option<Seat>, Option<AbortOnDrop>)>,
    /// Effects that wait for the end of a store pause.
    held: Vec<Effect>,
    pause: Option<Pause>,
    budget_guard: BudgetGuard,
    sending: u32,
    snapshot_at: u64,
    drain: Option<AbortOnDrop>,
    /// The compaction that a caller asked for.
    compaction: Option<AbortOnDrop>,
    prefix: PrefixWatch,
}

impl Live {
    /// Starts an activation after the fold.
    pub(in crate::conversation) fn begin(args: &ConversationArgs, me: ActorRef<ConversationMsg>, durable: Durable) -> Self {
        let (scope, setup, ports) = (args.scope.clone(), args.setup.clone(), args.ports.clone());
        let life = durable.next_life(ports.clock.now());
        args.tenant.figures().woke();
        let [a, b, c, d, e, f, g, h, ..] = ports.entropy.bytes();
        let nonce = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let head = Head { epoch: durable.epoch, seq: durable.head };
        let writer = StreamWriter::new(scope.clone(), ports.events.clone(), life, durable.head, setup.limits.ring_bytes);
        Self {
            me,
            volatile: Volatile::new(life, nonce, setup.rules(&scope)),
            append_queue: Arc::new(Mutex::new(QueueState { append_queue: AppendQueue::new(head), claimed: false })),
            writer: Arc::new(writer),
            wait_status: args.wait_status.clone(),
            resources: None,
            waiters: SmallMap::default(),
            next_waiter: 0,
            admitted: SmallMap::default(),
            held: Vec::new(),
            pause: None,
            budget_guard: BudgetGuard::new(args.tenant.budget().clone(), args.family.clone(), args.scope.conversation.is_subagent()),
            sending: 0,
            snapshot_at: durable.head.0,
            drain: None,
            compaction: None,
            prefix: PrefixWatch::default(),
            tenant: args.tenant.clone(),
            scope,
            setup,
            ports,
            durable,
        }
    }

    /// Resumes or closes what the journal left open.
    pub(in crate::conversation) fn recover(&mut self) -> Result<Flow, String> {
        if self.setup.recovery == Recovery::Close {
            // Subagents of a closed round must close too, and only an active subagent can. Each
            // closes its own round when it wakes.
            let children: Vec<Scope> = self.open_children().collect();
            if let Some(begins) = &self.setup.children {
                children.iter().for_each(|child| begins.wake(child));
            }
        }
        let waiting = self.durable.inbox.iter().map(|prompt| prompt.round_id);
        for round in self.durable.round.iter().map(|round| round.id).chain(waiting) {
            self.writer.open(round);
        }
        match self.input(Input::Recovered { recovery: self.setup.recovery })? {
            Flow::GoOn => self.input(Input::Tick), // Approvals may have expired while the conversation slept.
            end @ Flow::End(_) => Ok(end),
        }
    }

    /// Handles one message.
    pub(in crate::conversation) fn handle(&mut self, message: ConversationMsg) -> Result<Flow, String> {
        let input = match message {
            ConversationMsg::Prompt(prompt) => return self.prompt(*prompt),
            ConversationMsg::Ask { command, reply } => Input::Command { command, waiter: self.wait(Waiter::Done(reply)) },
            ConversationMsg::Cancel { failure } => Input::Cancel { failure },
            ConversationMsg::ContextMeasured { work, outcome } => {
                self.work_ended(work);
                Input::Context { work, outcome: *outcome }
            }
            ConversationMsg::Peek { reply } => {
                let _ = reply.send(Ok(Box::new(self.durable.clone())));
                return Ok(Flow::GoOn);
            }
            ConversationMsg::ModelEnded { work, outcome, model } => {
                self.work_ended(work);
                Input::Model { work, outcome: *outcome, model }
            }
            ConversationMsg::ToolEnded { work, result, duration_ms } => Input::Tool { work, result: *result, duration_ms },
            ConversationMsg::RetryDue { batch, call } => Input::RetryDue { batch, call },
            ConversationMsg::GraceOver { round_id } => Input::GraceOver { round_id },
            ConversationMsg::DeadlineOver { prompt_id, round_id } => self.deadline_over(prompt_id, round_id),
            ConversationMsg::BudgetTimeOver { round_id } => {
                if self.durable.round.as_ref().is_none_or(|round| round.id != round_id) {
                    return Ok(Flow::GoOn);
                }
                Input::Cancel { failure: Some(budget::time_over(&self.setup.spending.budget)) }
            }
            ConversationMsg::Tick => Input::Tick,
            ConversationMsg::AppendLost { error, sending } => return Ok(self.append_lost(error, sending)),
            ConversationMsg::Claimed => {
                let mut guard = lock(&self.append_queue);
                guard.claimed = false;
                let held = if guard.append_queue.is_paused() { Vec::new() } else { guard.append_queue.outstanding() };
                drop(guard);
                held.into_iter().for_each(|batch| self.send(AppendBatch { awaited: true, ..batch }));
                return Ok(Flow::GoOn);
            }
            ConversationMsg::HeadRead(result) => return Ok(self.head_read(result)),
            ConversationMsg::Sweep => {
                let end = if self.volatile.draining { ExitReason::Drained } else { ExitReason::Hibernated };
                return Ok(self.sleep_if_idle(end));
            }
            ConversationMsg::Drain { deadline } => {
                self.drain = Some(self.timer(deadline, ConversationMsg::DrainDeadline));
                Input::Drain
            }
            ConversationMsg::DrainDeadline => {
                let failure = Failure { code: "draining".into(), message: "the host is shutting down".into(), retry_after_ms: None };
                Input::Cancel { failure: Some(failure) }
            }
            ConversationMsg::Delete => return self.delete(),
            // The conversation is active already. Check for expired approvals: the timer may have
            // fired before the wall clock reached the expiry.
            ConversationMsg::Resume => Input::Tick,
            ConversationMsg::Loaded(_) => return Ok(Flow::GoOn),
        };
        self.input(input)
    }

    fn prompt(&mut self, prompt: PromptMail) -> Result<Flow, String> {
        let PromptMail { id, round_id, client_key, message, output_schema, on_busy, deadline, seat, reply } = prompt;
        if lock(&self.append_queue).append_queue.backlog_bytes() > self.setup.limits.journal_backlog_bytes {
            let _ = reply.send(Err(ConversationError::Overloaded { what: "entries waiting for the store", retry_after_ms: 1000 }));
            return Ok(Flow::GoOn);
        }
        self.ports.counters.prompts.add(1);
        self.tenant.figures().prompt();
        let deadline = deadline.map(|at| self.timer(at, ConversationMsg::DeadlineOver { prompt_id: id, round_id }));
        self.admitted.insert(round_id, (Some(seat), deadline));
        let waiter = self.wait(Waiter::Receipt(reply));
        let flow = self.input(Input::Prompt(NewPrompt { id, round_id, client_key, message, output_schema, on_busy, waiter }))?;
        // A refused, replayed or steering prompt opens no round, so its seat is released.
        let waits = self.durable.inbox.iter().any(|prompt| prompt.round_id == round_id);
        if !waits && self.durable.round.as_ref().is_none_or(|round| round.id != round_id) {
            self.admitted.remove(&round_id);
        }
        Ok(flow)
    }

    fn deadline_over(&self, prompt_id: PromptId, round_id: RoundId) -> Input {
        if self.durable.round.as_ref().is_some_and(|round| round.id == round_id) {
            let failure =
                Failure { code: "deadline".into(), message: "the time given for this prompt is over".into(), retry_after_ms: None };
            return Input::Cancel { failure: Some(failure) };
        }
        Input::Withdraw { prompt_id, reason: WithdrawReason::Deadline }
    }

    /// Decides, appends, performs. The answers of the budget guard are decided before the append,
    /// so that one append holds all entries. Then the order matters: the append takes the entries,
    /// with the effects that wait for them, before any other effect is performed.
    fn input(&mut self, input: Input) -> Result<Flow, String> {
        let now = self.ports.clock.now();
        let Outcome { mut entries, mut effects } = self.decide(input, now)?;
        while let Some(answer) = self.budget_guard.answer() {
            let more = self.decide(answer, now)?;
            entries.extend(more.entries);
            effects.extend(more.effects);
        }
        if entries.iter().any(|entry| matches!(entry.body, EntryBody::PromptWithdrawn { .. })) {
            let (inbox, open) = (&self.durable.inbox, self.durable.round.as_ref().map(|round| round.id));
            self.admitted.retain(|round, _| open == Some(*round) || inbox.iter().any(|prompt| prompt.round_id == *round));
        }
        let (budget, round) = (self.setup.spending.budget, self.durable.round.as_ref());
        if let Some((round_id, left)) = self.budget_guard.time_left(&budget, &self.durable.spent.amount, round, now) {
            let timer = self.timer(Instant::now() + left, ConversationMsg::BudgetTimeOver { round_id });
            self.budget_guard.set_clock(round_id, timer);
        }
        let waits: Vec<AfterCommit> =
            effects.extract_if(.., |effect| effect.when() == When::Stored).map(|effect| self.release(effect)).collect();
        if !entries.is_empty() || !waits.is_empty() {
            self.append(&entries, waits);
        }
        // During a pause, effects that start work are held: another activation may own
        // the journal by now.
        for effect in effects {
            if self.pause.is_some() && !survives_pause(&effect) {
                self.held.push(effect);
            } else {
                self.perform(effect);
            }
        }
        self.lend_permit();
        // A subagent has one task, so it goes to sleep when its round is over.
        let is_over = || entries.iter().any(|entry| matches!(entry.body, EntryBody::RoundFinished { .. }));
        let end = (self.setup.class == CallClass::Subagent && is_over()).then_some(ExitReason::Hibernated);
        let end = if self.drain.is_some() { Some(ExitReason::Drained) } else { end };
        Ok(end.map_or(Flow::GoOn, |end| self.sleep_if_idle(end)))
    }

    /// Decides one input, updates counters, and forwards reservations to the budget guard.
    fn decide(&mut self, input: Input, now: Timestamp) -> Result<Outcome, String> {
        self.volatile.tenant_left = self.budget_guard.tenant_left();
        self.volatile.bounds_money = self.budget_guard.bounds_money();
        self.volatile.is_store_full = self.tenant.stored().is_full();
        self.volatile.skills = self.setup.skills.as_ref().map(|shelf| shelf.view());
        let writer = &self.writer;
        let outcome = round::apply_input(&mut self.durable, &mut self.volatile, now, input, |before, entry| writer.entry(before, entry));
        let outcome = outcome.map_err(|error| {
            tracing::error!(conversation = %self.scope.conversation, %error, "a decision does not fit the state; this life ends");
            error.to_string()
        })?;
        for entry in &outcome.entries {
            self.prefix.note(&entry.body);
            self.count(entry);
            if let EntryBody::Assistant { usage, .. } = &entry.body {
                self.tell_context(usage);
            }
        }
        self.budget_guard.note(&outcome.entries);
        for effect in &outcome.effects {
            if let Effect::Reserve { work, amount, .. } = effect {
                self.budget_guard.reserve(*work, *amount);
            }
        }
        Ok(outcome)
    }

    /// Releases the round's permit while only subagents are awaited: each subagent needs a permit,
    /// and the parent may hold the tenant's last one. The next model call acquires a permit again.
    fn lend_permit(&self) {
        let Some((_, resources)) = self.resources.as_ref().filter(|_| self.setup.children.is_some()) else { return };
        let Some(batch) = self.durable.batch() else { return };
        let mut open = batch.calls.iter().filter(|call| !matches!(call.state, CallState::Finished(_))).peekable();
        if open.peek().is_some() && open.all(|call| call.tool_use.name == CREATE_SUBAGENT) {
            resources.permit.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }

    /// The subagents that the open batch has started and not finished.
    fn open_children(&self) -> impl Iterator<Item = Scope> {
        let batch = self.durable.batch().filter(|_| self.setup.children.is_some());
        batch.into_iter().flat_map(|batch| {
            let begun = (0..).zip(&batch.calls).filter(|(_, call)| call.tool_use.name == CREATE_SUBAGENT && call.is_started());
            begun.map(|(index, _)| Scope::new(self.scope.tenant.clone(), self.scope.conversation.child(batch.seq, index)))
        })
    }

    fn append(&mut self, entries: &[Entry], waits: Vec<AfterCommit>) {
        let (open, wake_at) = self.open();
        let stored = Entry::encode_all(entries);
        if self.ports.sessions.keeps_entries() {
            self.tenant.stored().grew(stored.iter().map(|entry| entry.bytes.len() as u64).sum());
        }
        let watched = entries.iter().any(|entry| matches!(entry.body, EntryBody::RoundFinished { .. } | EntryBody::ApprovalAsked { .. }));
        let mut guard = lock(&self.append_queue);
        let (batch, ready) = guard.append_queue.push(self.volatile.life, stored, open, wake_at, waits);
        let batch = batch.filter(|_| !guard.claimed); // Held batches go first; `Claimed` sends them.
        drop(guard);
        if let Some(batch) = batch {
            self.send(AppendBatch { awaited: batch.awaited || watched, ..batch });
        }
        ready.into_iter().for_each(AfterCommit::perform);
    }

    fn send(&self, batch: AppendBatch) {
        let AppendBatch { expected, epoch, entries, open, wake_at, awaited } = batch;
        let upto = entries.last().map_or(expected.seq, |entry| entry.seq);
        let (append_queue, writer, me, sending) = (self.append_queue.clone(), self.writer.clone(), self.me.clone(), self.sending);
        let durability = if awaited { Durability::Awaited } else { Durability::Deferred };
        // Runs on a thread of the store. The queue's lock is not held while effects are performed
        // or events are published. While `claimed` is set, `append` sends nothing, so the batches
        // held behind the first append keep their order.
        let done = Box::new(move |result: Result<(), AppendError>| match result {
            Ok(()) => {
                let mut guard = lock(&append_queue);
                let committed = guard.append_queue.stored(upto);
                guard.claimed |= !committed.send.is_empty();
                drop(guard);
                writer.stored(upto);
                committed.released.into_iter().for_each(AfterCommit::perform);
                if !committed.send.is_empty() {
                    let _ = me.cast(ConversationMsg::Claimed); // Only the actor sends, so that appends keep their order.
                }
            }
            Err(error) => drop(me.cast(ConversationMsg::AppendLost { error, sending })),
        });
        let scope = self.scope.clone();
        self.ports.sessions.append(Append { scope, expected, epoch, entries, open, wake_at, durability, done });
    }

    /// The status and wake-up time for the store's head row, after the entries so far.
    fn open(&self) -> (Open, Option<Timestamp>) {
        match &self.durable.round {
            Some(round) if round.is_parked() => (Open::Parked, self.durable.batch().and_then(|batch| batch.expires_at())),
            Some(_) => (Open::Running, None),
            None if self.durable.inbox.is_empty() => (Open::None, None),
            None => (Open::Running, None), // Accepted prompts wait, so a restart must activate the conversation.
        }
    }

    /// Converts an effect that waits for the commit into its [`AfterCommit`].
    fn release(&mut self, effect: Effect) -> AfterCommit {
        match effect {
            Effect::Acknowledge { waiter, receipt } => match self.waiters.remove(&waiter) {
                Some(Waiter::Receipt(reply)) => AfterCommit::Receipt(reply, receipt),
                Some(Waiter::Done(reply)) => AfterCommit::Done(reply),
                None => AfterCommit::Nothing,
            },
            Effect::Answer { waiter } => match self.waiters.remove(&waiter) {
                Some(Waiter::Done(reply)) => AfterCommit::Done(reply),
                Some(Waiter::Receipt(_)) | None => AfterCommit::Nothing,
            },
            Effect::StartTool(start) => match self.run(start) {
                Some((executor, run)) => AfterCommit::Tool(executor, Box::new(run)),
                None => AfterCommit::Nothing,
            },
            Effect::Refuse { .. }
            | Effect::Reserve { .. }
            | Effect::StartModel { .. }
            | Effect::MeasureContext { .. }
            | Effect::Summarise { .. }
            | Effect::CompactionDropped
            | Effect::RetryLater { .. }
            | Effect::ToolRetry { .. }
            | Effect::CancelRound { .. }
            | Effect::Abort { .. }
            | Effect::Queued { .. }
            | Effect::Park { .. }
            | Effect::RoundOver { .. } => AfterCommit::Nothing,
        }
    }

    fn perform(&mut self, effect: Effect) {
        // A held effect may have been aborted meanwhile; it must not start in another round.
        let ordered = match &effect {
            Effect::StartModel { work } | Effect::MeasureContext { work, .. } => Some(*work),
            Effect::StartTool(start) => Some(start.work),
            _ => None,
        };
        if ordered.is_some_and(|work| !self.volatile.work.contains_key(&work)) {
            return;
        }
        match effect {
            Effect::Refuse { waiter, refusal } => {
                self.ports.counters.refusals.add(1);
                self.tenant.figures().refused(refusal.code());
                if let Some(waiter) = self.waiters.remove(&waiter) {
                    waiter.refuse(refusal.into());
                }
            }
            Effect::Reserve { .. } => {} // Done by `decide`.
            Effect::StartModel { work } => self.start_model(work),
            Effect::MeasureContext { work, waiter } => self.measure(work, waiter.is_some()),
            Effect::Summarise { hash, messages } => {
                let (scope, model, gateway) = (self.scope.clone(), self.setup.model.clone(), self.setup.gateway.clone());
                let (budget, spending) = (self.budget_guard.counter().clone(), self.setup.spending.clone());
                self.setup.compactor.summarise(SummaryJob { scope, model, gateway, budget, spending, hash, messages });
            }
            Effect::CompactionDropped => self.ports.counters.compactions_dropped.add(1),
            Effect::StartTool(start) => {
                if let Some((executor, run)) = self.run(start) {
                    executor.execute(run);
                }
            }
            Effect::RetryLater { batch, call, delay, .. } => {
                let timer = self.timer(Instant::now() + delay, ConversationMsg::RetryDue { batch, call });
                if let Some(resources) = self.resources() {
                    resources.timers.push(timer);
                }
            }
            Effect::ToolRetry { round_id, attempt, delay, reason } => {
                self.ports.counters.tool_retries.add(1);
                let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
                self.writer.ephemeral(round_id, EventKind::Retry { layer: "tool", attempt, delay_ms, reason });
            }
            Effect::CancelRound { round_id, grace_over, .. } => {
                // Interrupt subagents explicitly: after a crash, a retried call may not be watching
                // its subagent yet.
                let children: Vec<Scope> = self.open_children().collect();
                if let Some(begins) = &self.setup.children {
                    children.iter().for_each(|child| begins.interrupt(child));
                }
                let timer = (!grace_over).then(|| self.timer(Instant::now() + CANCEL_GRACE, ConversationMsg::GraceOver { round_id }));
                if let Some(resources) = self.resources() {
                    resources.cancel.cancel();
                    resources.timers.extend(timer);
                }
            }
            Effect::Abort { work } => {
                if let Some(resources) = self.resources() {
                    resources.tasks.remove(&work);
                    if let Some(executor) = &resources.executor {
                        executor.abort(work);
                    }
                }
            }
            Effect::Queued { round_id, position } => self.writer.ephemeral(round_id, EventKind::Queued { position }),
            Effect::Park { until, .. } => {
                let wait = until.map_or(Duration::ZERO, |until| Duration::from_millis(until.ms_since(self.ports.clock.now())));
                let timer = self.timer(Instant::now() + wait + Duration::from_millis(1), ConversationMsg::Tick);
                if let Some(resources) = self.resources() {
                    resources.permit.lock().unwrap_or_else(PoisonError::into_inner).take();
                    resources.timers.clear();
                    resources.timers.push(timer);
                }
            }
            Effect::RoundOver { round_id } => {
                self.admitted.remove(&round_id);
                if self.resources.as_ref().is_some_and(|(id, _)| *id == round_id) {
                    self.resources = None;
                }
            }
            Effect::Acknowledge { .. } | Effect::Answer { .. } => {
                let release = self.release(effect);
                self.append(&[], vec![release]);
            }
        }
    }

    /// The resources of the open round, created on first use.
    fn resources(&mut self) -> Option<&mut RoundResources> {
        let id = self.durable.round.as_ref()?.id;
        if self.resources.as_ref().is_none_or(|(known, _)| *known != id) {
            let (sampling, inbox) = (self.setup.trace_sampling, self.durable.inbox.len());
            let span = trace::round(&self.scope, id, self.volatile.life.0, inbox, sampling, &*self.ports.entropy);
            self.resources = Some((id, RoundResources::new(span)));
        }
        self.resources.as_mut().map(|(_, resources)| resources)
    }

    fn start_model(&mut self, work: WorkId) {
        let Some(round_id) = self.durable.round.as_ref().map(|round| round.id) else { return };
        self.ports.counters.model_calls.add(1);
        let mut request = self.setup.request(&self.durable);
        self.watch_prefix(&request);
        let wish = self.durable.round.as_ref().and_then(|round| round.output.as_ref()).filter(|_| self.setup.native_output);
        request.output_schema = wish.map(|wish| wish.schema.clone());
        let (gateway, tenant, writer) = (self.setup.gateway.clone(), self.tenant.clone(), self.writer.clone());
        let (wait_status, clock) = (self.wait_status.clone(), self.ports.clock.clone());
        let (idle, total, me) = (self.setup.limits.model_idle, self.setup.limits.model_total, self.me.clone());
        let (counters, scope, class) = (self.ports.counters.clone(), self.scope.clone(), self.setup.class);
        let first = self.durable.round.as_ref().is_some_and(|round| round.model_calls <= 1);
        let Some(resources) = self.resources() else { return };
        let (permit, cancel) = (resources.permit.clone(), resources.cancel.clone());
        let trace = CallTrace::begin(&resources.span, first, &scope, gateway.provider().name(), &request);
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
            stood_in: Mutex::default(),
        };
        let task = tokio::spawn(Box::pin(async move {
            let (outcome, model) = call.run().await;
            let _ = me.cast(ConversationMsg::ModelEnded { work, outcome: Box::new(outcome), model });
        }));
        resources.tasks.insert(work, AbortOnDrop(task));
    }

    /// Publishes how full the model's window is.
    fn tell_context(&self, usage: &Usage) {
        let rules = &self.setup.context;
        if let Some(round) = self.durable.round.as_ref().filter(|_| usage.input() > 0 && rules.window > 0) {
            let tokens = self.durable.context.window.estimate(rules.fixed);
            let fraction = tokens as f64 / rules.window as f64;
            self.writer.ephemeral(round.id, EventKind::Context { tokens, window: rules.window, fraction });
        }
    }

    /// Counts a call whose prompt prefix differs from the last call's, and the tokens that the
    /// provider cannot read from its cache.
    fn watch_prefix(&mut self, request: &ModelRequest) {
        let Some(cause) = self.prefix.call(request) else { return };
        let counters = &self.ports.counters;
        let counter = match cause {
            PrefixBreak::Compaction => &counters.prefix_breaks_compaction,
            PrefixBreak::Skill => &counters.prefix_breaks_skill,
            PrefixBreak::Edit => &counters.prefix_breaks_edit,
            PrefixBreak::Configuration => &counters.prefix_breaks_configuration,
            PrefixBreak::Unknown => &counters.prefix_breaks_unknown,
        };
        counter.add(1);
        let tokens = self.durable.context.window.estimate(self.setup.context.fixed);
        counters.rebilled_tokens.add(tokens);
        tracing::debug!(conversation = %self.scope.conversation, ?cause, tokens, "the provider's cache is missed");
    }

    /// Starts a measurement of the context as a task.
    fn measure(&mut self, work: WorkId, asked: bool) {
        self.wait_status.set(WaitsFor::Compaction, &*self.ports.clock);
        let (setup, scope, me) = (self.setup.clone(), self.scope.clone(), self.me.clone());
        let request = setup.request(&self.durable);
        let parts = (setup.compactor.clone(), setup.tokens.clone(), setup.gateway.clone());
        let pays = (self.budget_guard.counter().clone(), setup.spending.clone());
        let measurement = Measurement { asked, ..Measurement::of(&self.durable, request, parts, scope, setup.context, pays) };
        let task = AbortOnDrop(tokio::spawn(async move {
            let outcome = Box::new(measurement.run().await);
            let _ = me.cast(ConversationMsg::ContextMeasured { work, outcome });
        }));
        if asked {
            self.compaction = Some(task);
        } else if let Some(resources) = self.resources() {
            resources.tasks.insert(work, task);
        }
    }

    /// Work ended: until new work is awaited, readers derive the status from the journal.
    fn work_ended(&mut self, work: WorkId) {
        self.task_ended(work);
        if self.pause.is_none() {
            self.wait_status.clear();
        }
    }

    fn task_ended(&mut self, work: WorkId) {
        if let Some((_, resources)) = &mut self.resources {
            resources.tasks.remove(&work);
        }
    }

    /// The environment in which this conversation's tools run.
    fn environment(&self) -> ToolEnvironment {
        let (resources, tools, counters) = (self.setup.resources.clone(), self.tenant.tools().clone(), self.ports.counters.clone());
        // A subagent's artifacts and runs belong to its parent, so that the parent can read them.
        let owner = self.durable.parent(&self.scope).unwrap_or_else(|| self.scope.clone());
        ToolEnvironment::new(resources, tools, owner, counters)
    }

    /// The executor and the run for one attempt; starts the executor if the round has none.
    fn run(&mut self, start: StartTool) -> Option<(ToolExecutorRef, Run)> {
        let StartTool { work, batch, call, tool_use, attempt, level, spec, last_error: _ } = start;
        let tool = self.setup.tools.get(&tool_use.name)?.clone();
        let round_id = self.durable.round.as_ref()?.id;
        let (me, writer) = (self.me.clone(), self.writer.clone());
        let supervisor = self.me.get_cell();
        let key = CallKey { scope: self.scope.clone(), seq: batch, index: call };
        let siblings = (tool_use.name == CREATE_SUBAGENT).then(|| Siblings::of(self.durable.batch()));
        let executor = match self.resources()?.executor.clone() {
            Some(executor) => executor,
            None => {
                let environment = self.environment();
                let resources = self.resources()?;
                let report = move |work, result, duration_ms| {
                    let _ = me.cast(ConversationMsg::ToolEnded { work, result: Box::new(result), duration_ms });
                };
                let cancel = resources.cancel.clone();
                let args = ToolExecutorArgs { report: Arc::new(report), progress: progress_of(writer, round_id), environment, cancel };
                let executor = ToolExecutorRef::start(args, supervisor)?;
                resources.executor = Some(executor.clone());
                executor
            }
        };
        let resources = self.resources()?;
        if attempt == 0 {
            resources.began.remove(&call); // Left by the call with the same index of an earlier batch.
        }
        let began = *resources.began.entry(call).or_insert_with(Instant::now);
        let request = ToolInvocationRequest::from_spec(&spec, tool_use.id, tool_use.input);
        Some((executor, Run { work, key, tool, request, level, attempt, began, turn: Some(resources.span.clone()), siblings }))
    }

    /// Handles a crash of the executor: its open calls end with an error, and their effect is
    /// unknown.
    pub(in crate::conversation) fn executor_failed(&mut self) -> Result<Flow, String> {
        if let Some((_, resources)) = &mut self.resources {
            resources.executor = None;
        }
        let is_tool = |(id, work): (&WorkId, &Work)| matches!(work, Work::Tool { .. }).then_some(*id);
        let open: Vec<WorkId> = self.volatile.work.iter().filter_map(is_tool).collect();
        for work in open {
            let result = RunResult::Panicked { message: "the tool executor crashed".into() };
            if let Flow::End(end) = self.input(Input::Tool { work, result, duration_ms: 0 })? {
                return Ok(Flow::End(end));
            }
        }
        Ok(Flow::GoOn)
    }

    /// Ends the activation because of the store: callers get `error`, streams end with it, and
    /// waiting effects are dropped.
    fn exit(&mut self, error: &ConversationError, end: ExitReason) -> Flow {
        for release in lock(&self.append_queue).append_queue.close() {
            release.refuse(error.clone());
        }
        self.tell_end(error);
        Flow::End(end)
    }

    /// Ends the activation because the conversation is being deleted: cancels the open round, then
    /// sleeps. Callers and watchers are notified at once; entries written afterwards are deleted
    /// with the journal.
    fn delete(&mut self) -> Result<Flow, String> {
        self.tell_end(&ConversationError::Deleted);
        self.drain = Some(self.timer(Instant::now(), ConversationMsg::Sweep));
        let failure = ConversationError::Deleted;
        let failure = Failure { code: failure.code().to_owned(), message: failure.to_string(), retry_after_ms: None };
        match self.input(Input::Drain)? {
            Flow::GoOn => self.input(Input::Cancel { failure: Some(failure) }),
            end @ Flow::End(_) => Ok(end),
        }
    }

    /// Answers all waiting callers with `error` and ends all streams with it.
    fn tell_end(&mut self, error: &ConversationError) {
        for (_, waiter) in self.waiters.take() {
            waiter.refuse(error.clone());
        }
        let failure = Failure { code: error.code().to_owned(), message: error.to_string(), retry_after_ms: None };
        let open = self.durable.round.iter().map(|round| round.id);
        let rounds: Vec<RoundId> = open.chain(self.durable.inbox.iter().map(|prompt| prompt.round_id)).collect();
        self.writer.fail(&rounds, &failure);
    }

    /// Ends the activation if no round is open (or only approvals are awaited), no work runs, no
    /// caller waits and nothing is on its way to the store.
    fn sleep_if_idle(&mut self, end: ExitReason) -> Flow {
        let waits_for_nobody = match &self.durable.round {
            Some(round) => round.is_parked(),
            None => self.durable.inbox.is_empty() || self.volatile.draining,
        };
        let idle = waits_for_nobody
            && self.volatile.work.is_empty()
            && self.volatile.retries.is_empty()
            && self.waiters.is_empty()
            && self.held.is_empty()
            && self.pause.is_none()
            && lock(&self.append_queue).append_queue.is_empty();
        if !idle {
            if self.drain.is_some() && waits_for_nobody && self.pause.is_none() {
                // No round keeps the conversation awake, only an append, a caller or a short task:
                // check again soon.
                self.drain = Some(self.timer(Instant::now() + Duration::from_millis(5), ConversationMsg::Sweep));
            }
            return Flow::GoOn;
        }
        self.snapshot();
        Flow::End(end)
    }

    /// Writes a snapshot in the background if enough entries were added. A snapshot is a cache, so
    /// its result is not awaited.
    fn snapshot(&mut self) {
        if self.durable.head.0.saturating_sub(self.snapshot_at) < SNAPSHOT_ENTRIES {
            return;
        }
        self.snapshot_at = self.durable.head.0;
        let (sessions, scope, durable) = (self.ports.sessions.clone(), self.scope.clone(), self.durable.clone());
        tokio::spawn(async move {
            if let Err(error) = sessions.snapshot(&scope, durable.head, durable.snapshot()).await {
                tracing::debug!(%error, "a snapshot was not kept");
            }
        });
    }

    fn wait(&mut self, waiter: Waiter) -> WaiterId {
        let id = WaiterId(self.next_waiter);
        self.next_waiter += 1;
        self.waiters.insert(id, waiter);
        id
    }

    fn timer(&self, at: Instant, message: ConversationMsg) -> AbortOnDrop {
        let me = self.me.clone();
        AbortOnDrop(tokio::spawn(async move {
            tokio::time::sleep_until(at).await;
            let _ = me.cast(message);
        }))
    }

    fn count(&self, entry: &Entry) {
        let (counters, figures) = (&self.ports.counters, self.tenant.figures());
        match &entry.body {
            EntryBody::Assistant { usage, cost_micro_usd, .. } => {
                counters.cost_micro_usd.add(cost_micro_usd.unwrap_or(0));
                counters.input_tokens.add(usage.input());
                counters.cache_read_tokens.add(usage.cache_read);
                counters.output_tokens.add(usage.output);
                figures.spent(usage, cost_micro_usd.unwrap_or(0));
                self.tenant.charge_tokens(usage.input().saturating_add(usage.output));
            }
            EntryBody::Compacted { .. } => counters.compactions.add(1),
            EntryBody::ToolFinished { outcome, .. } => {
                counters.tool_calls.add(1);
                counters.tool_calls_failed.add(u64::from(outcome.is_error));
                counters.latencies.tool_call.record(Duration::from_millis(outcome.duration_ms));
                figures.tool_call(outcome.is_error);
            }
            EntryBody::SkillActivated { .. } => counters.skill_activations.add(1),
            EntryBody::RoundFinished { stop_reason, latency_ms, error } => {
                counters.rounds.add(1);
                counters.rounds_failed.add(u64::from(!stop_reason.is_done()));
                figures.round(!stop_reason.is_done());
                let (span, error) =
                    (self.resources.as_ref().map(|(_, resources)| &resources.span), error.as_ref().map(|error| error.code.as_str()));
                trace::turn_ended(span, &counters.latencies, *latency_ms, stop_reason.code(), error);
            }
            _ => {}
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.tenant.figures().slept();
        self.writer.close();
        for release in lock(&self.append_queue).append_queue.close() {
            release.refuse(ConversationError::Gone);
        }
    }
}

/// The append queue, shared with the store's threads.
type SharedQueue = Arc<Mutex<QueueState>>;

struct QueueState {
    append_queue: AppendQueue<AfterCommit>,
    /// The first append is durable and `Claimed` is in the mailbox. Until `Claimed` is handled, no
    /// batch is sent.
    claimed: bool,
}

fn lock(append_queue: &SharedQueue) -> MutexGuard<'_, QueueState> {
    append_queue.lock().unwrap_or_else(PoisonError::into_inner)
}
