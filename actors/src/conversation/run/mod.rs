//! The shell of an activation: translates mail to inputs, appends the entries of each decision, and
//! performs its effects.

pub(in crate::conversation) mod budget_guard;
mod collector;
mod end;
mod figures;
pub(in crate::conversation) mod fork;
pub(in crate::conversation) mod load;
mod mail;
pub(in crate::conversation) mod measure;
pub(in crate::conversation) mod model_call;
mod pause;
pub(in crate::conversation) mod prefix;
pub(in crate::conversation) mod progress;
mod prompt;
mod round_resources;
mod stream_timer;
mod tools;
pub(in crate::conversation) mod trace;
mod waiters;

use std::sync::Arc;

use ractor::ActorRef;
use tokio::time::Instant;

use crate::{
    conversation::{
        ConversationArgs, ConversationError, ExitReason,
        commit::{
            Committer,
            after_commit::{AfterCommit, Waiter},
        },
        message::ConversationMsg,
        round::{self, Effect, Input, Outcome, When, rules::Recovery, volatile::Volatile},
        run::{
            budget_guard::BudgetGuard,
            pause::{Pause, survives_pause},
            prefix::PrefixWatch,
            round_resources::RoundResources,
            waiters::Waiters,
        },
        setup::{Ports, Setup},
        wait_status::WaitStatus,
    },
    ids::{RoundId, Scope},
    journal::{Durable, EntryBody, Growth, Head},
    metrics_collector::{Figure, Tally},
    ports::OutboxMessage,
    small_map::SmallMap,
    stream::EventKind,
    task::AbortOnDrop,
    tenant::{HistoryBytes, LongAnswerPlace, Seat, Tenant},
    time::Timestamp,
};

/// What the actor does after a message.
pub(in crate::conversation) enum Flow {
    /// Handles the next message.
    GoOn,
    /// Ends the activation.
    End(ExitReason),
}

/// One activation of a conversation.
pub(in crate::conversation) struct Live {
    me: ActorRef<ConversationMsg>,
    scope: Scope,
    setup: Arc<Setup>,
    ports: Ports,
    tenant: Arc<Tenant>,
    durable: Box<Durable>,
    volatile: Volatile,
    commits: Committer,
    wait_status: Arc<WaitStatus>,
    /// Those that the host counts as memory.
    history_bytes: HistoryBytes,
    /// Boxed, so that an idle conversation stays small in memory.
    resources: Option<(RoundId, Box<RoundResources>)>,
    waiters: Waiters,
    /// Seats and deadline timers of prompts whose rounds are not over, by round.
    admitted: SmallMap<RoundId, (Option<Seat>, Vec<AbortOnDrop>)>,
    /// Effects that wait for the end of a store pause.
    held: Vec<Effect>,
    pause: Option<Pause>,
    budget_guard: BudgetGuard,
    /// What the journal holds after the last snapshot.
    growth: Growth,
    drain: Option<AbortOnDrop>,
    /// The compaction that a caller asked for.
    compaction: Option<AbortOnDrop>,
    /// Shared with the summaries that are being written, whose bills come as mail.
    bills_open: Arc<()>,
    prefix: PrefixWatch,
    tally: Tally,
    /// The place of the answer that the next commit stores.
    long_answer: Option<LongAnswerPlace>,
}

impl Live {
    /// Starts an activation after the fold.
    pub(in crate::conversation) fn begin(
        args: &ConversationArgs,
        me: ActorRef<ConversationMsg>,
        durable: Box<Durable>,
        growth: Growth,
        history_bytes: HistoryBytes,
    ) -> Self {
        let scope = args.scope.clone();
        let setup = args.setup.clone();
        let ports = args.ports.clone();
        let epoch = durable.next_epoch(ports.clock.now());
        args.tenant.woke();
        let [a, b, c, d, e, f, g, h, ..] = ports.entropy.bytes();
        let nonce = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        args.wait_status.note_history(durable.message_bytes());
        let commits = Committer::new(
            args,
            me.clone(),
            epoch,
            Head {
                epoch: durable.epoch,
                seq: durable.head,
            },
        );
        let mut volatile = Volatile::new(epoch, nonce, setup.rules(&scope));
        volatile.in_order = args.follows_orderly_end;
        Self {
            me,
            volatile,
            commits,
            wait_status: args.wait_status.clone(),
            history_bytes,
            resources: None,
            waiters: Waiters::default(),
            admitted: SmallMap::default(),
            held: Vec::new(),
            pause: None,
            budget_guard: BudgetGuard::new(
                args.tenant.budget().clone(),
                args.family.clone(),
                args.scope.conversation.is_subagent(),
            ),
            growth,
            drain: None,
            compaction: None,
            bills_open: Arc::default(),
            prefix: PrefixWatch::default(),
            long_answer: None,
            tally: Tally::new(ports.collector.clone(), scope.tenant.clone()),
            tenant: args.tenant.clone(),
            scope,
            setup,
            ports,
            durable,
        }
    }

    /// Resumes or closes what the journal left open.
    pub(in crate::conversation) fn recover(&mut self) -> Result<Flow, String> {
        self.pause_in_outage();
        self.restore_deadlines();
        if self.setup.recovery == Recovery::Close {
            // Subagents of a closed round must close too, and only an active subagent can. Each
            // closes its own round when it wakes.
            let children: Vec<Scope> = self.open_children().collect();
            if let Some(starter) = &self.setup.children {
                children.iter().for_each(|child| starter.wake(child));
            }
        }
        let waiting = self.durable.inbox.iter().map(|prompt| prompt.round_id);
        for round in self
            .durable
            .round
            .iter()
            .map(|round| round.id)
            .chain(waiting)
        {
            self.commits.writer.open(round);
        }
        match self.input(Input::Recovered {
            recovery: self.setup.recovery,
        })? {
            Flow::GoOn => self.input(Input::Tick), // Approvals may have expired while the conversation slept.
            end @ Flow::End(_) => Ok(end),
        }
    }

    /// Handles one input, the heart of a conversation:
    ///
    /// 1. *Decide.* The pure round turns the input into entries and effects. The budget guard
    ///    answers its reservations at once, and those answers are decided too.
    /// 2. *Commit.* One append takes all entries, with the effects that wait until they are durable.
    /// 3. *Perform.* Every other effect is performed now, after the append. While the store is away,
    ///    or this host is not sure to own the conversation, effects that start work are held:
    ///    another activation may own the journal by now.
    fn input(&mut self, input: Input) -> Result<Flow, String> {
        let now = self.ports.clock.now();
        let mut messages = Vec::new();
        let Outcome {
            mut entries,
            mut effects,
        } = self.decide(input, now, &mut messages)?;
        while let Some(answer) = self.budget_guard.answer() {
            let more = self.decide(answer, now, &mut messages)?;
            entries.extend(more.entries);
            effects.extend(more.effects);
        }
        if entries
            .iter()
            .any(|entry| matches!(entry.body, EntryBody::PromptWithdrawn { .. }))
        {
            self.release_withdrawn();
        }
        self.watch_time_budget(now);
        self.tally.post(); // Before the commit: who sees the end of a round finds it in the figures.
        let mut after_commit: Vec<AfterCommit> = effects
            .extract_if(.., |effect| effect.when() == When::Stored)
            .map(|effect| self.after_commit(effect))
            .collect();
        after_commit.extend(self.long_answer.take().map(AfterCommit::LongAnswer));
        if !entries.is_empty() || !after_commit.is_empty() {
            let growth = self
                .commits
                .commit(&entries, &self.durable, messages, after_commit);
            self.growth.add(growth);
        }
        if self.durable.batch().is_none() {
            // Results that no decision asked for, as for a call of a kind that is refused before.
            self.volatile.rules.call_policy.use_checked(Vec::new());
        }
        self.count_history();
        self.pause_unless_sure(&effects);
        for effect in effects {
            if self.pause.is_some() && !survives_pause(&effect) {
                self.held.push(effect);
            } else {
                self.perform(effect);
            }
        }
        self.release_permit_for_subagents();
        self.tally.post();
        Ok(self.sleep_if_due(&entries))
    }

    /// Counts the bytes of the history, as memory while the conversation works, and of what waits to
    /// enter it. Those of prompts with seats count already.
    fn count_history(&mut self) {
        let history = self.durable.history.messages().kept_bytes();
        let waiting = self.durable.waiting_bytes();
        let before = self.wait_status.history_bytes();
        self.wait_status.note_history(history + waiting);
        let growth = (history + waiting).saturating_sub(before);
        if growth > 0 {
            self.tenant.note_growth(growth);
        }
        let round = self.durable.round.as_ref();
        let works = round.is_some_and(|round| !round.is_parked()) || !self.durable.inbox.is_empty();
        let seats = self.admitted.values().filter_map(|(seat, _)| seat.as_ref());
        let prompts = seats.map(Seat::bytes).sum();
        let history = if works { history } else { 0 };
        self.history_bytes.set(history + waiting, prompts);
    }

    /// Decides one input, updates counters, and forwards reservations to the budget guard. Adds what
    /// receivers outside are to learn to `messages`.
    fn decide(
        &mut self,
        input: Input,
        now: Timestamp,
        messages: &mut Vec<OutboxMessage>,
    ) -> Result<Outcome, String> {
        self.volatile.tenant_left = self.budget_guard.tenant_left();
        self.volatile.bounds_money = self.budget_guard.bounds_money();
        self.volatile.is_store_full = self.tenant.stored().is_full();
        self.volatile.memory_left = self.history_bytes.left();
        self.volatile.skills = self.setup.skills.as_ref().map(|skills| skills.view());
        let answered = match &input {
            Input::Model { model, .. } => Some(model.clone()),
            _ => None,
        };
        let writer = &self.commits.writer;
        let outcome = round::apply_input(
            &mut self.durable,
            &mut self.volatile,
            now,
            input,
            |before, entry| {
                writer.entry(before, entry);
                let outbox = self.setup.outbox.as_ref();
                messages.extend(
                    outbox.and_then(|outbox| outbox.rules.message(&self.scope, before, entry)),
                );
            },
        );
        let outcome = outcome.map_err(|error| {
            tracing::error!(conversation = %self.scope.conversation, %error, "a decision does not fit the state; this activation ends");
            error.to_string()
        })?;
        for entry in &outcome.entries {
            self.prefix.note(&entry.body);
            self.count(entry);
            if let (EntryBody::Assistant { usage, .. }, Some(model)) = (&entry.body, &answered) {
                self.publish_context(usage, model);
            }
        }
        self.budget_guard.note(&outcome.entries);
        for effect in &outcome.effects {
            match effect {
                Effect::Reserve { work, amount, .. } => self.budget_guard.reserve(*work, *amount),
                Effect::StartModel { .. } => self.tally.add(Figure::ModelCallRequested),
                _ => {}
            }
        }
        Ok(outcome)
    }

    /// Converts an effect that waits for the commit into its [`AfterCommit`].
    fn after_commit(&mut self, effect: Effect) -> AfterCommit {
        match effect {
            Effect::Acknowledge { waiter, receipt } => match self.waiters.take(waiter) {
                Some(Waiter::Receipt(reply)) => AfterCommit::Receipt(reply, receipt),
                Some(Waiter::Done(reply, place)) => AfterCommit::Done(reply, place),
                None => AfterCommit::Nothing,
            },
            Effect::Answer { waiter } => match self.waiters.take(waiter) {
                Some(Waiter::Done(reply, place)) => AfterCommit::Done(reply, place),
                Some(Waiter::Receipt(_)) | None => AfterCommit::Nothing,
            },
            Effect::StartTool(start) => match self.tool_run(start) {
                Some((executor, run)) => AfterCommit::Tool(executor, Box::new(run)),
                None => AfterCommit::Nothing,
            },
            Effect::Refuse { .. }
            | Effect::Reserve { .. }
            | Effect::StartModel { .. }
            | Effect::MeasureContext { .. }
            | Effect::Summarise { .. }
            | Effect::CompactionDropped
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
            Effect::Refuse { waiter, refusal } => self.refuse(waiter, refusal),
            Effect::Reserve { .. } => {} // Done by `decide`.
            Effect::StartModel { work } => self.start_model(work),
            Effect::MeasureContext {
                work,
                waiter,
                summary,
            } => self.measure(work, waiter.is_some(), summary),
            Effect::Summarise { hash, messages } => self.summarise(hash, messages),
            Effect::CompactionDropped => self.tally.add(Figure::CompactionDropped),
            Effect::StartTool(start) => {
                if let Some((executor, run)) = self.tool_run(start) {
                    executor.execute(run);
                }
            }
            Effect::ToolRetry {
                round_id,
                again,
                last_error,
                ..
            } => self.publish_tool_retry(round_id, again, &last_error),
            Effect::CancelRound {
                round_id,
                grace_over,
                ..
            } => self.cancel_round(round_id, grace_over),
            Effect::Abort { work } => self.abort(work),
            Effect::Queued { round_id, position } => self
                .commits
                .writer
                .ephemeral(round_id, EventKind::Queued { position }),
            Effect::Park { until, .. } => self.park(until),
            Effect::RoundOver { round_id } => self.round_over(round_id),
            Effect::Acknowledge { .. } | Effect::Answer { .. } => {
                let answer = self.after_commit(effect);
                self.commits
                    .commit(&[], &self.durable, Vec::new(), vec![answer]);
            }
        }
    }

    fn timer(&self, at: Instant, message: ConversationMsg) -> AbortOnDrop {
        let me = self.me.clone();
        AbortOnDrop(tokio::spawn(async move {
            tokio::time::sleep_until(at).await;
            let _ = me.cast(message);
        }))
    }
}

impl Live {
    /// Counts a message that woke the actor.
    pub(in crate::conversation) fn woke_up(&mut self) {
        self.tally.woke_up();
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.tenant.slept();
        self.commits.writer.close();
        self.commits.refuse_all(&ConversationError::Gone);
    }
}
