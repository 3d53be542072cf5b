//! The loops that offer turns to a target: closed (each waits for the last answer) or open (at a
//! fixed rate).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use super::{
    LoadError, Plan, Target,
    process::Process,
    tally::{Span, Tally},
    turn::{Turn, chance},
};

/// Open turns at a given rate. Beyond this number a due turn counts as refused by the generator,
/// whose own memory is limited too.
const UNDER_WAY_MAX: usize = 200_000;

/// Live figures of a run, for the progress display.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    served: AtomicU64,
    others: AtomicU64,
    /// Turns that were assigned an id, over all phases.
    ids: AtomicU64,
    /// Progress of the phase, 0 to 1000.
    permille: AtomicU64,
    phase: Mutex<&'static str>,
}

impl Progress {
    /// Returns how many turns succeeded, and how many did not.
    pub(crate) fn turns(&self) -> (u64, u64) {
        (
            self.served.load(Ordering::Relaxed),
            self.others.load(Ordering::Relaxed),
        )
    }

    /// Returns the progress of the phase, 0 to 1000, and its name.
    pub(crate) fn phase(&self) -> (u64, &'static str) {
        (self.permille.load(Ordering::Relaxed), *self.phase.lock())
    }

    pub(super) fn begin(&self, phase: &'static str) {
        *self.phase.lock() = phase;
        self.permille.store(0, Ordering::Relaxed);
    }

    /// Adds turns that ended, successful and other ones.
    pub(super) fn note(&self, well: u64, otherwise: u64) {
        self.served.fetch_add(well, Ordering::Relaxed);
        self.others.fetch_add(otherwise, Ordering::Relaxed);
    }

    pub(super) fn id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn at(&self, done: f64, of: f64) {
        let part = if of > 0.0 { done / of * 1000.0 } else { 1000.0 };
        self.permille
            .store(part.clamp(0.0, 1000.0) as u64, Ordering::Relaxed);
    }
}

/// Tenants that offer turns in the same way.
#[derive(Debug, Clone)]
pub(super) struct Crowd {
    pub(super) name: &'static str,
    pub(super) tenants: std::ops::Range<usize>,
    /// Conversations that run concurrently.
    pub(super) conversations: usize,
    /// Turns per second; `None` sends the next turn when the last one is answered.
    pub(super) rate: Option<f64>,
}

impl Crowd {
    fn tenant_of(&self, conversation: usize) -> usize {
        self.tenants.start + conversation % self.tenants.len().max(1)
    }
}

/// The result of a phase.
#[derive(Debug)]
pub(super) struct Ran {
    /// The tenants and the tally of each crowd.
    pub(super) crowds: Vec<(std::ops::Range<usize>, Tally)>,
    /// The time during which turns were offered.
    pub(super) offered_for: Duration,
    /// Turns of all crowds that ended after the warm-up.
    pub(super) turns: u64,
    /// CPU time of this process during the phase, and of the server process.
    pub(super) cpu: Option<Duration>,
    pub(super) server_cpu: Option<Duration>,
}

impl Ran {
    /// Adds the result of a later phase with the same crowds.
    pub(super) fn absorb(&mut self, other: &Self) {
        for ((_, tally), (_, more)) in self.crowds.iter_mut().zip(&other.crowds) {
            tally.absorb(more, self.offered_for);
        }
        self.offered_for += other.offered_for;
        self.turns += other.turns;
        self.cpu = self.cpu.zip(other.cpu).map(|(a, b)| a + b);
        self.server_cpu = self.server_cpu.zip(other.server_cpu).map(|(a, b)| a + b);
    }
}

/// State that all turns of a phase share.
struct Stage {
    plan: Plan,
    target: Arc<Target>,
    progress: Arc<Progress>,
    tallies: Vec<Mutex<Tally>>,
    began: Instant,
    /// Turns that were due earlier are warm-up and not counted.
    from: Instant,
    /// No turn is due after this time.
    until: Option<Instant>,
    ended: AtomicU64,
}

impl Stage {
    fn tally(&self, crowd: usize) -> Option<parking_lot::MutexGuard<'_, Tally>> {
        Some(self.tallies.get(crowd)?.lock())
    }

    fn turn_of(&self, tenant: usize, conversation: String) -> Turn {
        let id = self.progress.id();
        Turn {
            tenant,
            conversation,
            id,
            cancel: chance(self.plan.seed, id) < self.plan.cancel_rate,
        }
    }

    /// Runs one turn and records it unless it belongs to the warm-up. Returns whether it succeeded.
    async fn run(&self, crowd: usize, turn: Turn, due: Instant) -> bool {
        let last = self.until.map(|until| until + self.plan.drain);
        let work = self.target.turn(&turn);
        let seen = match last {
            Some(last) => tokio::time::timeout_at(last.into(), work).await.ok(),
            None => Some(work.await),
        };
        let span = Span {
            due,
            over: Instant::now(),
        };
        self.ended.fetch_add(1, Ordering::Relaxed);
        let well = seen.as_ref().is_some_and(|seen| {
            matches!(
                seen.end,
                super::turn::End::Well | super::turn::End::Interrupted
            )
        });
        if well {
            &self.progress.served
        } else {
            &self.progress.others
        }
        .fetch_add(1, Ordering::Relaxed);
        if due >= self.from
            && let Some(mut tally) = self.tally(crowd)
        {
            match seen {
                Some(seen) => tally.take(turn.tenant, span, self.from, seen),
                None => tally.take_unfinished(span),
            }
        }
        well
    }

    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// Runs all crowds at the same time, until their time is over and every turn is answered or the
/// drain time has passed.
///
/// # Errors
/// [`LoadError::Latencies`].
pub(super) async fn phase(
    plan: &Plan,
    target: &Arc<Target>,
    progress: &Arc<Progress>,
    name: &'static str,
    crowds: &[Crowd],
) -> Result<Ran, LoadError> {
    progress.begin(name);
    let began = Instant::now();
    let from = began + plan.warm_up;
    let stage = Arc::new(Stage {
        plan: plan.clone(),
        target: target.clone(),
        progress: progress.clone(),
        tallies: crowds
            .iter()
            .map(|_| Ok(Mutex::new(Tally::new(plan.tenants)?)))
            .collect::<Result<_, LoadError>>()?,
        began,
        from,
        until: plan.duration.map(|duration| from + duration),
        ended: AtomicU64::new(0),
    });
    let server = plan.server_pid.map(Process::other);
    let tracker = TaskTracker::new();
    let lanes = Arc::new(AtomicUsize::new(0));
    for (index, crowd) in crowds.iter().enumerate() {
        match crowd.rate {
            Some(rate) => drop(tracker.spawn(at_rate(
                stage.clone(),
                tracker.clone(),
                index,
                crowd.clone(),
                rate,
                name,
            ))),
            None => {
                for lane in 0..crowd.conversations {
                    lanes.fetch_add(1, Ordering::Relaxed);
                    drop(tracker.spawn(one_lane(
                        stage.clone(),
                        index,
                        crowd.clone(),
                        lane,
                        name,
                        lanes.clone(),
                    )));
                }
            }
        }
    }
    tracker.close();
    let all_lanes = lanes.load(Ordering::Relaxed);

    let watching = async {
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            match plan.duration {
                Some(duration) => progress.at(
                    began.elapsed().as_secs_f64(),
                    (plan.warm_up + duration).as_secs_f64(),
                ),
                None => progress.at(
                    stage.ended.load(Ordering::Relaxed) as f64,
                    (all_lanes * plan.turns) as f64,
                ),
            }
        }
    };
    // CPU time is read when the warm-up ends. `watching` never ends, so `select!` returns with
    // `measuring`, after every turn has ended or timed out.
    let measuring = async {
        tokio::time::sleep_until(from.into()).await;
        let before = (
            Process::this().cpu(),
            server.and_then(Process::cpu),
            stage.ended.load(Ordering::Relaxed),
        );
        tracker.wait().await;
        before
    };
    let (own, of_server, ended_before) = tokio::select! {
        before = measuring => before,
        () = watching => (None, None, 0),
    };
    let used =
        |process: Option<Process>, before: Option<Duration>| process?.cpu()?.checked_sub(before?);
    let last = stage.until.unwrap_or_else(Instant::now);
    Ok(Ran {
        crowds: crowds
            .iter()
            .zip(&stage.tallies)
            .map(|(crowd, tally)| (crowd.tenants.clone(), tally.lock().clone()))
            .collect(),
        offered_for: last.saturating_duration_since(from),
        turns: stage.ended.load(Ordering::Relaxed) - ended_before,
        cpu: used(Some(Process::this()), own),
        server_cpu: used(server, of_server),
    })
}

/// Offers a turn every `1 / rate` seconds, regardless of earlier turns.
async fn at_rate(
    stage: Arc<Stage>,
    tracker: TaskTracker,
    index: usize,
    crowd: Crowd,
    rate: f64,
    name: &'static str,
) {
    let until = stage.until.unwrap_or(stage.from);
    let under_way = Arc::new(Semaphore::new(UNDER_WAY_MAX));
    for nth in 0u64.. {
        // Due times follow from the start of the phase, not from the last turn, so a late wake-up does
        // not lower the offered rate. Without a free permit the turn is counted but not sent: waiting
        // for one would let a slow host slow the generator down.
        let due = stage.began + Duration::from_secs_f64(nth as f64 / rate);
        if due >= until {
            return;
        }
        tokio::time::sleep_until(due.into()).await;
        let Ok(permit) = under_way.clone().try_acquire_owned() else {
            if due >= stage.from
                && let Some(mut tally) = stage.tally(index)
            {
                tally.take_unsent();
            }
            continue;
        };
        let nth = usize::try_from(nth).unwrap_or(usize::MAX);
        let place = nth % crowd.conversations.max(1);
        let age = nth / crowd.conversations.max(1) / stage.plan.turns.max(1);
        let conversation = format!("{}-{name}-{}-{place}-{age}", stage.plan.run, crowd.name);
        let turn = stage.turn_of(crowd.tenant_of(place), conversation);
        let stage = stage.clone();
        drop(tracker.spawn(async move {
            stage.run(index, turn, due).await;
            drop(permit);
        }));
    }
}

/// Runs conversations one after the other. Each turn is sent when the last one is answered.
async fn one_lane(
    stage: Arc<Stage>,
    index: usize,
    crowd: Crowd,
    lane: usize,
    name: &'static str,
    lanes: Arc<AtomicUsize>,
) {
    for age in 0usize.. {
        let conversation = format!("{}-{name}-{}-{lane}-{age}", stage.plan.run, crowd.name);
        for _ in 0..stage.plan.turns.max(1) {
            if stage.is_over() {
                return;
            }
            let turn = stage.turn_of(crowd.tenant_of(lane), conversation.clone());
            if !stage.run(index, turn, Instant::now()).await {
                // Without a pause, a host that refuses at once would be asked in a busy loop.
                tokio::time::sleep(REFUSED_PAUSE).await;
            }
        }
        if stage.until.is_none() {
            break;
        }
    }
    lanes.fetch_sub(1, Ordering::Relaxed);
}

/// Pause of a conversation after a failed turn.
const REFUSED_PAUSE: Duration = Duration::from_millis(10);
