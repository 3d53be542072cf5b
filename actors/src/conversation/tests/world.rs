//! A store, activations and an outside world, moved one event at a time. The shell here performs
//! the effects in the simplest correct way: entries to the store first, waiting effects after their
//! commit.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use super::{
    Rng,
    call_laws::must_wait,
    laws::Law,
    skill_laws,
    store::{Fault, Notice, Store},
};
use crate::{
    conversation::{
        Command,
        commit::append_queue::{AppendQueue, Committed, PauseOutcome},
        round::{
            self, Effect, Input, ModelOutcome, OnBusy, Receipt, StartTool, When,
            rules::{Recovery, Rules},
            volatile::Volatile,
        },
    },
    ids::{Epoch, EventId, PromptId, RoundId, Seq, WaiterId, WorkId},
    journal::{Durable, Head, Phase, StoredEntry, project, restore},
    stream::{EventKind, Open},
    time::Timestamp,
    tool::EffectClass,
    tool_executor::{Again, RunResult, ToolInvocationRequest},
};

/// The answer that a caller got.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Reply {
    Acknowledged(Receipt),
    Answered,
    Refused(&'static str),
}

/// A prompt as a client sent it.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub(super) id: PromptId,
    pub(super) round_id: RoundId,
    pub(super) key: Option<String>,
    pub(super) on_busy: OnBusy,
    pub(super) waiter: WaiterId,
}

/// An effect and the entry it waits for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Wait {
    tail: Seq,
    effect: Effect,
}

/// One activation and its shell.
pub(super) struct Activation {
    pub(super) number: u64,
    pub(super) durable: Durable,
    pub(super) volatile: Volatile,
    pub(super) append_queue: AppendQueue<Wait>,
    pub(super) notices: VecDeque<Notice>,
    /// The head that was read during a pause, and the entry after the last one known to be stored;
    /// not handled yet.
    pub(super) head_read: Option<(Head, Option<StoredEntry>)>,
    /// The end of the batch that was appended again as a trial of the store.
    pub(super) trial: Option<Seq>,
    pub(super) models: Vec<WorkId>,
    /// The contexts under measurement, as they were when it was ordered.
    pub(super) measures: Vec<(WorkId, Durable)>,
    pub(super) tools: Vec<StartTool>,
    pub(super) timers: Vec<(Seq, u32)>,
    pub(super) graces: Vec<RoundId>,
    /// Open questions to the tenant's budget.
    pub(super) reserves: Vec<WorkId>,
    /// Work whose token is canceled.
    pub(super) cancelled: BTreeSet<WorkId>,
    /// Mail that arrives too late to have an effect.
    pub(super) late: Vec<Input>,
    /// Whether the append queue said that this activation is over.
    pub(super) over: bool,
    aborted: BTreeSet<WorkId>,
    shadow: Durable,
    held: VecDeque<Wait>,
    /// What the append queue must hold, counted independently.
    waits: VecDeque<Wait>,
    base: Seq,
    written: Vec<StoredEntry>,
    stored_seq: Seq,
    unpublished: VecDeque<(EventId, EventKind)>,
    not_started: BTreeSet<(Seq, u32)>,
}

/// Names of the states of the coverage table.
pub(super) const STATES: [&str; 11] = [
    "starting",
    "idle",
    "measuring",
    "reserving",
    "model",
    "batch",
    "parked",
    "cancelling",
    "draining",
    "paused",
    "ended",
];

/// Names of the inputs of the coverage table.
pub(super) const INPUTS: [&str; 24] = [
    "Recovered",
    "Prompt",
    "Budget",
    "Model",
    "Tool",
    "RetryDue",
    "Approve",
    "Tick",
    "Interrupt",
    "Cancel",
    "GraceOver",
    "Inject",
    "Withdraw",
    "Context",
    "Summary",
    "Compact",
    "Pin",
    "Import",
    "Rewind",
    "Fork",
    "Reset",
    "ActivateSkill",
    "DeactivateSkill",
    "Drain",
];

fn input_name(input: &Input) -> &'static str {
    match input {
        Input::Recovered { .. } => "Recovered",
        Input::Prompt(_) => "Prompt",
        Input::Command { command, .. } => match command {
            Command::Interrupt => "Interrupt",
            Command::ToolResults { .. } => "ToolResults",
            Command::Approve { .. } => "Approve",
            Command::Inject { .. } => "Inject",
            Command::Compact { .. } => "Compact",
            Command::Pin { .. } => "Pin",
            Command::Import { .. } => "Import",
            Command::Rewind { .. } => "Rewind",
            Command::Fork { .. } => "Fork",
            Command::Reset => "Reset",
            Command::ActivateSkill { .. } => "ActivateSkill",
            Command::DeactivateSkill { .. } => "DeactivateSkill",
        },
        Input::Budget { .. } => "Budget",
        Input::Model { .. } => "Model",
        Input::Tool { .. } => "Tool",
        Input::RetryDue { .. } => "RetryDue",
        Input::Tick => "Tick",
        Input::Cancel { .. } => "Cancel",
        Input::GraceOver { .. } => "GraceOver",
        Input::Withdraw { .. } => "Withdraw",
        Input::Context { .. } => "Context",
        Input::Summary(_) => "Summary",
        Input::Drain => "Drain",
    }
}

impl Activation {
    pub(super) fn state(&self) -> &'static str {
        match &self.durable.round {
            _ if self.over => "ended",
            _ if !self.volatile.recovered => "starting",
            _ if self.append_queue.is_paused() => "paused",
            _ if self.volatile.cancelling.is_some() => "cancelling",
            _ if self.volatile.draining => "draining",
            None => "idle",
            _ if self.volatile.reserving.is_some() => "reserving",
            Some(round) if round.is_parked() => "parked",
            Some(round) => match round.phase {
                Phase::Model { .. } => "model",
                Phase::Batch(_) => "batch",
                Phase::Ready => "measuring",
                Phase::Ended { .. } => "resting wrongly",
            },
        }
    }

    /// Whether nothing is under way and nothing is open.
    pub(super) fn is_quiet(&self) -> bool {
        let open = self.durable.round.is_some()
            || !(self.durable.inbox.is_empty() || self.volatile.draining);
        !open
            && self.append_queue.is_empty()
            && !self.append_queue.is_paused()
            && self.notices.is_empty()
            && self.held.is_empty()
    }
}

/// How often each state met each input.
pub(super) type Coverage = BTreeMap<(&'static str, &'static str), u64>;

/// The error of a script that was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut;

pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) now: Timestamp,
    pub(super) store: Store,
    pub(super) activations: Vec<Activation>,
    pub(super) rules: Rules,
    /// Whether the tenant has a budget.
    pub(super) tenant: bool,
    pub(super) sent: Vec<Sent>,
    pub(super) replies: BTreeMap<WaiterId, Reply>,
    pub(super) published: Vec<(EventId, EventKind)>,
    pub(super) coverage: Coverage,
    /// How often the host crashed; each time, unpublished events are lost.
    pub(super) crashes: u64,
    pub(super) trace: bool,
    /// Points passed, and the one at which to stop.
    pub(super) points: usize,
    pub(super) cut_at: Option<usize>,
    /// Starts of `once` calls that may have had an effect.
    once: BTreeSet<(Seq, u32)>,
    paused: BTreeSet<Bytes>,
    numbers: u64,
    pub(super) activations_begun: u64,
}

impl World {
    pub(super) fn new(seed: u64, rules: Rules) -> Self {
        Self {
            rng: Rng::new(seed),
            now: Timestamp(1_800_000_000_000),
            store: Store::default(),
            activations: Vec::new(),
            tenant: seed.is_multiple_of(3),
            rules,
            sent: Vec::new(),
            replies: BTreeMap::new(),
            published: Vec::new(),
            coverage: Coverage::new(),
            crashes: 0,
            trace: false,
            points: 0,
            cut_at: None,
            once: BTreeSet::new(),
            paused: BTreeSet::new(),
            numbers: 0,
            activations_begun: 0,
        }
    }

    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(super) fn waiter(&mut self) -> WaiterId {
        WaiterId(self.number())
    }

    fn log(&self, text: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("{}", text());
        }
    }

    /// A point at which the host may be killed.
    fn point(&mut self) -> Result<(), Cut> {
        self.points += 1;
        if self.cut_at == Some(self.points) {
            Err(Cut)
        } else {
            Ok(())
        }
    }

    /// Loads the stored journal and starts an activation on it.
    pub(super) fn activate(&mut self, recovery: Recovery) -> Result<(), Cut> {
        let snapshot = self.store.snapshot.is_some() && self.rng.percent(50);
        let loaded = self.store.load(snapshot);
        let durable = restore(&loaded)
            .expect("the snapshot is of use")
            .expect("the journal is readable");
        if snapshot {
            assert_eq!(
                restore(&self.store.load(false)),
                Some(Ok(durable.clone())),
                "a snapshot is the fold up to it"
            );
        }
        assert_eq!(
            (durable.epoch, durable.head),
            (self.store.head.epoch, self.store.head.seq)
        );
        let number = self.number();
        self.activations_begun += 1;
        let mut volatile = Volatile::new(
            Epoch(durable.epoch.0 + 1),
            self.rng.next(),
            self.rules.clone(),
        );
        volatile.skills = skill_laws::view(&mut self.rng);
        self.log(|| {
            format!(
                "# activation {number} begins at {:?} with {recovery:?}",
                loaded.head
            )
        });
        self.activations.push(Activation {
            number,
            shadow: durable.clone(),
            base: durable.head,
            stored_seq: durable.head,
            durable,
            volatile,
            append_queue: AppendQueue::new(loaded.head),
            notices: VecDeque::new(),
            head_read: None,
            trial: None,
            models: Vec::new(),
            measures: Vec::new(),
            tools: Vec::new(),
            timers: Vec::new(),
            graces: Vec::new(),
            reserves: Vec::new(),
            cancelled: BTreeSet::new(),
            late: Vec::new(),
            over: false,
            aborted: BTreeSet::new(),
            held: VecDeque::new(),
            waits: VecDeque::new(),
            written: Vec::new(),
            unpublished: VecDeque::new(),
            not_started: BTreeSet::new(),
        });
        self.input(self.activations.len() - 1, Input::Recovered { recovery })
    }

    /// Kills the host: everything that is not stored is lost; the first `stored` appends under way
    /// succeed.
    pub(super) fn crash(&mut self, stored: usize) {
        self.log(|| {
            format!(
                "# crash; {stored} of {} appends make it",
                self.store.queue.len()
            )
        });
        for _ in 0..stored {
            self.store.work(Fault::None);
        }
        self.store.queue.clear();
        self.activations.clear();
        self.crashes += 1;
    }

    pub(super) fn command(
        &mut self,
        index: usize,
        command: Command,
        waiter: WaiterId,
    ) -> Result<(), Cut> {
        self.input(index, Input::Command { command, waiter })
    }

    /// Gives an input to an activation, as its shell does: decide, apply, encode, send, perform.
    pub(super) fn input(&mut self, index: usize, input: Input) -> Result<(), Cut> {
        let now = self.now;
        let left = *self.rng.pick(&[100, 60, 20, 5, 0]);
        let activation = &mut self.activations[index];
        activation.volatile.tenant_left = self.tenant.then_some(left);
        *self
            .coverage
            .entry((activation.state(), input_name(&input)))
            .or_default() += 1;
        if self.trace {
            eprintln!(
                "{} {} activation {}: {input:?}",
                now.0,
                activation.state(),
                activation.number
            );
        }
        let before = activation.volatile.clone();
        let mut events = Vec::new();
        let outcome = round::apply_input(
            &mut activation.durable,
            &mut activation.volatile,
            now,
            input.clone(),
            |state, entry| {
                let (round, kinds) = project(&"c-1".parse().unwrap(), state, entry);
                assert!(
                    kinds.is_empty() || round.is_some(),
                    "an event belongs to a round"
                );
                events.extend((0..).zip(kinds).map(|(n, kind)| {
                    (
                        EventId {
                            epoch: entry.epoch,
                            seq: entry.seq,
                            n,
                        },
                        kind,
                    )
                }));
            },
        )
        .unwrap_or_else(|error| panic!("{error} after {input:?}"));
        if self.trace {
            outcome
                .entries
                .iter()
                .for_each(|entry| eprintln!("    {} {:?}", entry.seq, entry.body));
            outcome
                .effects
                .iter()
                .for_each(|effect| eprintln!("    -> {effect:?}"));
        }
        let law = Law {
            before: &before,
            after: &activation.volatile,
            input: &input,
            outcome: &outcome,
            now,
            not_started: &activation.not_started,
            paused: &mut self.paused,
        };
        let entries = law.check(&mut activation.shadow, &activation.durable);
        activation.unpublished.extend(events);
        let sent = entries.len();
        activation.written.extend(entries.iter().cloned());

        let (open, wake_at) = match &activation.durable.round {
            None => (Open::None, None),
            Some(round) if round.is_parked() => (
                Open::Parked,
                activation
                    .durable
                    .batch()
                    .and_then(crate::journal::Batch::expires_at),
            ),
            Some(_) => (Open::Running, None),
        };
        let tail = activation.durable.head;
        let wait = |effect| Wait { tail, effect };
        let (waiting, now): (Vec<Effect>, Vec<Effect>) = outcome
            .effects
            .into_iter()
            .partition(|effect| effect.when() == When::Stored);
        let waiting: Vec<Wait> = waiting.into_iter().map(wait).collect();
        let has_entries = !entries.is_empty();
        let (batch, free) = activation.append_queue.push(
            activation.volatile.epoch,
            entries,
            open,
            wake_at,
            Vec::new(),
            waiting.clone(),
        );
        if activation.over {
            assert!(
                batch.is_none() && free.is_empty(),
                "an activation that is over sends and shows nothing"
            );
            return Ok(());
        }
        let behind_first =
            activation.stored_seq == activation.base && activation.written.len() > sent;
        let goes = has_entries && !activation.append_queue.is_paused() && !behind_first;
        assert_eq!(
            batch.is_some(),
            goes,
            "entries go to the store at once, unless it is away or the first ones are not known to be there"
        );
        if activation.stored_seq >= tail {
            assert_eq!(free, waiting, "what waits for nothing is free");
        } else {
            assert!(free.is_empty(), "what waits is kept");
            activation.waits.extend(waiting);
        }
        if let Some(batch) = batch {
            self.store.queue.push_back((activation.number, batch));
        }
        for wait in now.into_iter().map(wait).chain(free) {
            self.perform_or_hold(index, wait)?;
        }
        Ok(())
    }

    fn perform_or_hold(&mut self, index: usize, wait: Wait) -> Result<(), Cut> {
        let goes = matches!(
            wait.effect,
            Effect::CancelRound { .. }
                | Effect::Abort { .. }
                | Effect::Refuse { .. }
                | Effect::Reserve { .. }
                | Effect::Queued { .. }
        );
        if self.activations[index].append_queue.is_paused() && !goes {
            self.activations[index].held.push_back(wait);
            return Ok(());
        }
        self.perform(index, wait)
    }

    fn perform(&mut self, index: usize, wait: Wait) -> Result<(), Cut> {
        self.point()?;
        let Wait { tail, effect } = wait;
        let activation = &mut self.activations[index];
        if must_wait(&effect) && tail > activation.base {
            let from = activation.base.0 as usize;
            let upto = tail.0 as usize;
            let ends =
                |entries: &[StoredEntry]| (entries.first().cloned(), entries.last().cloned());
            let stored = self.store.entries.get(from..upto).map(ends);
            assert_eq!(
                stored,
                Some(ends(&activation.written[..upto - from])),
                "{effect:?} waits until its entries are stored"
            );
        }
        match effect {
            Effect::Acknowledge { waiter, receipt } => {
                self.reply(waiter, Reply::Acknowledged(receipt))
            }
            Effect::Answer { waiter } => self.reply(waiter, Reply::Answered),
            Effect::Refuse { waiter, refusal } => {
                self.reply(waiter, Reply::Refused(refusal.code()))
            }
            Effect::Reserve { work, .. } => activation.reserves.push(work),
            Effect::StartModel { work } if activation.aborted.contains(&work) => {}
            Effect::StartModel { work } => activation.models.push(work),
            Effect::MeasureContext { work, .. } => {
                activation.measures.push((work, activation.durable.clone()))
            }
            Effect::StartTool(start) if activation.aborted.contains(&start.work) => {}
            Effect::StartTool(start) => {
                // A call that was canceled before its start does not start; its result arrives like
                // any other.
                if start.spec.effect == EffectClass::Once
                    && !activation.cancelled.contains(&start.work)
                {
                    assert!(
                        self.once.insert((start.batch, start.call)),
                        "a once call is started twice: {start:?}"
                    );
                }
                self.activations[index].tools.push(start);
            }
            Effect::ToolRetry { batch, call, .. } => activation.timers.push((batch, call)),
            Effect::CancelRound {
                round_id,
                grace_over,
                ..
            } => {
                activation
                    .cancelled
                    .extend(activation.volatile.work.iter().map(|(id, _)| *id));
                if !grace_over {
                    activation.graces.push(round_id);
                }
            }
            Effect::Abort { work } => {
                activation.aborted.insert(work);
                if activation.models.contains(&work) {
                    activation.late.push(Input::Model {
                        work,
                        outcome: ModelOutcome::Cancelled { partial: vec![] },
                        model: std::sync::Arc::default(),
                        failed: Vec::new(),
                    });
                }
                if activation.tools.iter().any(|tool| tool.work == work) {
                    activation.late.push(Input::Tool {
                        work,
                        result: RunResult::Cancelled,
                        duration_ms: 1,
                        again: None,
                    });
                }
                activation.models.retain(|model| *model != work);
                activation.tools.retain(|tool| tool.work != work);
            }
            Effect::Summarise { .. }
            | Effect::CompactionDropped
            | Effect::Queued { .. }
            | Effect::Park { .. }
            | Effect::RoundOver { .. } => {}
        }
        Ok(())
    }

    fn reply(&mut self, waiter: WaiterId, reply: Reply) {
        self.log(|| format!("    waiter {} gets {reply:?}", waiter.0));
        assert_eq!(
            self.replies.insert(waiter, reply),
            None,
            "a caller is answered once"
        );
    }

    /// A model call of an activation ends.
    pub(super) fn model_ends(
        &mut self,
        index: usize,
        place: usize,
        outcome: ModelOutcome,
    ) -> Result<(), Cut> {
        let work = self.activations[index].models.remove(place);
        self.input(
            index,
            Input::Model {
                work,
                outcome,
                model: std::sync::Arc::default(),
                failed: Vec::new(),
            },
        )
    }

    /// An attempt of a tool call ends.
    pub(super) fn tool_ends(
        &mut self,
        index: usize,
        place: usize,
        result: RunResult,
    ) -> Result<(), Cut> {
        let activation = &mut self.activations[index];
        let start = activation.tools.remove(place);
        let key = (start.batch, start.call);
        if result.not_started() {
            self.once.remove(&key);
            activation.not_started.insert(key);
        } else {
            activation.not_started.remove(&key);
        }
        // As the executor decides, which may not know yet that the round is cancelled.
        let tool_use = start.tool_use;
        let request = ToolInvocationRequest::from_spec(&start.spec, tool_use.id, tool_use.input);
        let again = Again::after(&start.spec, &request, start.attempt, &result);
        self.input(
            index,
            Input::Tool {
                work: start.work,
                result,
                duration_ms: 7,
                again,
            },
        )
    }

    /// The store handles the next append.
    pub(super) fn store_works(&mut self, fault: Fault) -> Result<(), Cut> {
        self.point()?;
        if let Some((number, notice)) = self.store.work(fault) {
            self.log(|| {
                format!(
                    "    store: {notice:?} for activation {number}, {fault:?}; head {:?}",
                    self.store.head
                )
            });
            if let Some(activation) = self
                .activations
                .iter_mut()
                .find(|activation| activation.number == number)
            {
                activation.notices.push_back(notice);
            }
        }
        self.point()
    }

    /// An activation is notified of the outcome of an append.
    pub(super) fn deliver(&mut self, index: usize) -> Result<(), Cut> {
        let activation = &mut self.activations[index];
        match activation.notices.pop_front() {
            Some(Notice::Stored(seq)) => {
                let Committed { released, send } = activation.append_queue.stored(seq);
                if activation.over {
                    assert!(
                        released.is_empty() && send.is_empty(),
                        "an activation that is over shows nothing and sends nothing"
                    );
                    return Ok(());
                }
                let number = activation.number;
                self.store
                    .queue
                    .extend(send.into_iter().map(|batch| (number, batch)));
                self.release(index, seq, released)?;
                match self.activations[index].trial {
                    Some(trial) if seq >= trial => self.resume(index),
                    Some(_) | None => Ok(()),
                }
            }
            Some(Notice::Failed) => {
                activation.append_queue.lost();
                activation.trial = None;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// A paused activation reads the head.
    pub(super) fn read_head(&mut self, index: usize) {
        let known = self.activations[index].append_queue.stored_head().seq.0 as usize;
        self.activations[index].head_read =
            Some((self.store.head, self.store.entries.get(known).cloned()));
    }

    /// An activation handles the head that was read, which may be outdated by now.
    pub(super) fn end_pause(&mut self, index: usize) -> Result<(), Cut> {
        let activation = &mut self.activations[index];
        let Some((head, next)) = activation.head_read.take() else {
            return Ok(());
        };
        let from = activation.base.0 as usize;
        let upto = head.seq.0 as usize;
        let ours = upto <= from
            || activation.written.get(..upto - from) == self.store.entries.get(from..upto);
        match activation.append_queue.head_read(head, next.as_ref()) {
            PauseOutcome::End { stored, .. } => {
                assert!(
                    !ours || activation.over,
                    "an activation ends only when another one writes"
                );
                let mut kept = stored;
                kept.extend(activation.append_queue.close());
                assert_eq!(
                    kept,
                    Vec::from(std::mem::take(&mut activation.waits)),
                    "what waits is given back"
                );
                activation.over = true;
                Ok(())
            }
            PauseOutcome::Continue { released, trial } => {
                assert!(
                    ours,
                    "an activation does not go on in another one's journal"
                );
                let number = activation.number;
                activation.trial = trial
                    .as_ref()
                    .and_then(|batch| batch.entries.last())
                    .map(|entry| entry.seq);
                let is_stored = trial.is_none();
                self.store.queue.extend(trial.map(|batch| (number, batch)));
                self.release(index, head.seq, released)?;
                if is_stored {
                    self.resume(index)
                } else {
                    Ok(())
                }
            }
        }
    }

    /// The trial of a paused activation is stored: the rest is appended, and held effects are
    /// performed.
    fn resume(&mut self, index: usize) -> Result<(), Cut> {
        let activation = &mut self.activations[index];
        activation.trial = None;
        let number = activation.number;
        let rest = activation.append_queue.resume();
        self.store
            .queue
            .extend(rest.into_iter().map(|batch| (number, batch)));
        for wait in std::mem::take(&mut self.activations[index].held) {
            self.perform_or_hold(index, wait)?;
        }
        Ok(())
    }

    /// Everything up to `seq` is known to be stored: exactly the effects that waited for it are
    /// performed, and its events are published.
    fn release(&mut self, index: usize, seq: Seq, released: Vec<Wait>) -> Result<(), Cut> {
        let activation = &mut self.activations[index];
        activation.stored_seq = activation.stored_seq.max(seq);
        let stored_seq = activation.stored_seq;
        assert!(
            activation.append_queue.stored_head().seq == stored_seq
                && stored_seq <= self.store.head.seq
        );
        let count = activation
            .waits
            .iter()
            .take_while(|wait| wait.tail <= stored_seq)
            .count();
        let expected: Vec<Wait> = activation.waits.drain(..count).collect();
        assert_eq!(
            released, expected,
            "what waited is released by its own entries, no sooner and no later"
        );
        while let Some((id, kind)) = activation
            .unpublished
            .pop_front_if(|(id, _)| id.seq <= stored_seq)
        {
            let own = &activation.written[(id.seq.0 - activation.base.0) as usize - 1];
            assert_eq!(
                &self.store.entries[id.seq.0 as usize - 1],
                own,
                "nothing is shown before it is stored"
            );
            self.published.push((id, kind));
        }
        for wait in released {
            self.perform(index, wait)?;
        }
        Ok(())
    }

    /// Writes a snapshot if everything that the activation knows is stored.
    pub(super) fn take_snapshot(&mut self, index: usize) {
        let activation = &self.activations[index];
        if activation.append_queue.is_empty()
            && activation.stored_seq == activation.durable.head
            && !activation.over
        {
            self.store.snapshot = Some((activation.durable.head, activation.durable.snapshot()));
        }
    }
}
