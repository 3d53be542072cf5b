//! What survives a process: the store, what clients, tools and the model saw, and the trace.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::{dice::Dice, people::BegunFanOut, plan::Plan};
use crate::{
    conversation::round::OnBusy,
    ids::{CallKey, EventId, RoundId, Scope, Seq, TenantId},
    journal::digest,
    memory::MemorySessions,
    ports::{Append, Clock, Entropy},
    stream::Open,
    testing::SeededEntropy,
    time::Timestamp,
};

/// The wall time at which each run begins.
const BEGIN: Timestamp = Timestamp(1_795_300_000_000);

/// The most reads of the store at one instant.
const READS_MAX: u32 = 1000;

/// The answer that a client got for a prompt.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Answer {
    /// None yet. The process may have died meanwhile.
    Pending,
    Accepted {
        round: RoundId,
        replayed: bool,
    },
    /// Refused with this code.
    Refused(String),
}

impl Answer {
    /// Whether the prompt may or may not have been accepted.
    pub(super) fn is_unknown(&self) -> bool {
        match self {
            Self::Pending => true,
            Self::Accepted { .. } => false,
            Self::Refused(code) => {
                ["store_unavailable", "gone", "session_in_use"].contains(&code.as_str())
            }
        }
    }
}

/// A prompt as its client knows it.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub(super) scope: Scope,
    pub(super) text: String,
    pub(super) key: Option<String>,
    pub(super) on_busy: OnBusy,
    pub(super) has_picture: bool,
    pub(super) has_schema: bool,
    pub(super) answer: Answer,
    /// How often it was sent.
    pub(super) sends: u32,
    /// Positions in the order of all that happened: when it was first sent, and when its
    /// outcome was known.
    pub(super) sent_at: u64,
    pub(super) answered_at: u64,
}

/// A watched round.
#[derive(Debug, Clone)]
pub(super) struct Watched {
    pub(super) scope: Scope,
    pub(super) round: RoundId,
    /// The events in the order of their arrival; the flag says whether an event is durable.
    pub(super) events: Vec<(EventId, bool)>,
    pub(super) has_ended: bool,
    /// The code of the error event that ended it.
    pub(super) error: Option<String>,
}

/// A conversation that is watched over all its rounds, with its events as in [`Watched`].
#[derive(Debug, Clone)]
pub(super) struct Observed {
    pub(super) scope: Scope,
    pub(super) events: Vec<(EventId, bool)>,
}

/// The starts of a tool call.
#[derive(Debug, Clone, Default)]
pub(super) struct Starts {
    /// The tool. A pure one may start before its call is stored; if that never happens, the next
    /// call gets the same key.
    pub(super) tool: &'static str,
    pub(super) count: u32,
    /// Whether the last attempt answered that it did not begin.
    pub(super) not_started: bool,
}

/// How much a run covered.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) prompts: u64,
    pub(super) accepted: u64,
    pub(super) refused: u64,
    pub(super) rounds: u64,
    pub(super) model_calls: u64,
    pub(super) model_faults: u64,
    pub(super) tool_starts: u64,
    pub(super) store_faults: u64,
    pub(super) conflicts: u64,
    pub(super) kills: u64,
    pub(super) restarts: u64,
    pub(super) reconnects: u64,
    pub(super) subagents: u64,
    pub(super) compactions: u64,
    pub(super) approvals: u64,
    pub(super) fan_out_ends: u64,
    pub(super) deletions: u64,
    pub(super) helped: u64,
    pub(super) pauses: u64,
    pub(super) tenants_erased: u64,
    pub(super) pictures: u64,
    pub(super) skills: u64,
    pub(super) answers_in_schema: u64,
    pub(super) answers_refused: u64,
}

impl Figures {
    fn all(&self) -> [(&'static str, u64); 24] {
        [
            ("prompts", self.prompts),
            ("accepted", self.accepted),
            ("refused", self.refused),
            ("rounds", self.rounds),
            ("model_calls", self.model_calls),
            ("model_faults", self.model_faults),
            ("tool_starts", self.tool_starts),
            ("store_faults", self.store_faults),
            ("conflicts", self.conflicts),
            ("kills", self.kills),
            ("restarts", self.restarts),
            ("reconnects", self.reconnects),
            ("subagents", self.subagents),
            ("compactions", self.compactions),
            ("approvals", self.approvals),
            ("fan_out_ends", self.fan_out_ends),
            ("deletions", self.deletions),
            ("helped", self.helped),
            ("pauses", self.pauses),
            ("tenants_erased", self.tenants_erased),
            ("pictures", self.pictures),
            ("skills", self.skills),
            ("answers_in_schema", self.answers_in_schema),
            ("answers_refused", self.answers_refused),
        ]
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.prompts += other.prompts;
        self.accepted += other.accepted;
        self.refused += other.refused;
        self.rounds += other.rounds;
        self.model_calls += other.model_calls;
        self.model_faults += other.model_faults;
        self.tool_starts += other.tool_starts;
        self.store_faults += other.store_faults;
        self.conflicts += other.conflicts;
        self.kills += other.kills;
        self.restarts += other.restarts;
        self.reconnects += other.reconnects;
        self.subagents += other.subagents;
        self.compactions += other.compactions;
        self.approvals += other.approvals;
        self.fan_out_ends += other.fan_out_ends;
        self.deletions += other.deletions;
        self.helped += other.helped;
        self.pauses += other.pauses;
        self.tenants_erased += other.tenants_erased;
        self.pictures += other.pictures;
        self.skills += other.skills;
        self.answers_in_schema += other.answers_in_schema;
        self.answers_refused += other.answers_refused;
    }

    /// Checks that the runs together reached every part of the kernel.
    pub(super) fn assert_covers(&self) {
        for (name, figure) in self.all() {
            assert!(
                figure >= 20 || name == "helped",
                "the runs hardly reach {name}: {self:?}"
            );
        }
    }
}

/// What was seen from outside.
#[derive(Default)]
pub(super) struct Facts {
    /// The clock jumped forward by more than the time for which client keys are remembered.
    pub(super) clock_leapt: bool,
    /// Conversations that another process took over. Their tools may still run when the next
    /// activation starts them again.
    pub(super) taken_over: BTreeSet<Scope>,
    pub(super) sent: Vec<Sent>,
    pub(super) watched: Vec<Watched>,
    pub(super) observed: Vec<Observed>,
    pub(super) starts: HashMap<CallKey, Starts>,
    /// The position at which a conversation was last deleted or reset, if it was. Prompts that were
    /// sent before it may be gone.
    pub(super) erased: BTreeMap<Scope, u64>,
    /// The same for all conversations of a tenant.
    pub(super) tenants_erased: BTreeMap<TenantId, u64>,
    /// The position at which the last deletion, reset or erasure that succeeded began, of a
    /// conversation or of all of a tenant. Prompts that were answered before it are gone.
    pub(super) gone: BTreeMap<Scope, u64>,
    pub(super) tenants_gone: BTreeMap<TenantId, u64>,
    /// Tenants that are being erased, and those of which the store refused to erase a part.
    pub(super) erasing_tenants: BTreeSet<u64>,
    pub(super) half_erased: BTreeSet<u64>,
    /// What the head row of a conversation says it waits for, as the last append left it.
    pub(super) rows: BTreeMap<Scope, (Open, Option<Timestamp>)>,
    /// The calls of tools that run, by process, conversation and batch.
    pub(super) running: BTreeMap<(u64, Scope, Seq), usize>,
    /// Deletions and resets that have not ended.
    pub(super) erasing: Vec<Scope>,
    pub(super) fan_outs: Vec<BegunFanOut>,
    pub(super) violations: Vec<String>,
    pub(super) figures: Figures,
}

/// The later of two positions.
fn later(
    scopes: &BTreeMap<Scope, u64>,
    tenants: &BTreeMap<TenantId, u64>,
    scope: &Scope,
) -> Option<u64> {
    let (one, all) = (scopes.get(scope), tenants.get(&scope.tenant));
    one.max(all).copied()
}

impl Facts {
    /// When the conversation was last erased, alone or with its tenant.
    pub(super) fn erased_at(&self, scope: &Scope) -> Option<u64> {
        later(&self.erased, &self.tenants_erased, scope)
    }

    /// The position before which whatever was accepted is gone.
    pub(super) fn gone_before(&self, scope: &Scope) -> Option<u64> {
        later(&self.gone, &self.tenants_gone, scope)
    }

    fn tenant_erased(&mut self, number: u64, position: u64) {
        let id = tenant(number);
        self.starts.retain(|key, _| key.scope.tenant != id);
        self.tenants_erased.insert(id, position);
    }

    /// A conversation that is created again begins with the first entry again, and so do the names
    /// of its calls.
    fn forget_starts(&mut self, scope: &Scope) {
        let family = scope.conversation.family();
        self.starts.retain(|key, _| {
            key.scope.tenant != scope.tenant || key.scope.conversation.family() != family
        });
    }
}

fn tenant(number: u64) -> TenantId {
    format!("t-{number}").parse().unwrap()
}

/// The time for which client keys are remembered.
const DAY_MS: i64 = 24 * 60 * 60 * 1000;

struct State {
    trace: String,
    facts: Facts,
    /// The number of the process, and whether it is alive.
    process: u64,
    is_alive: bool,
    /// Whether its host is shutting down.
    is_stopping: bool,
    /// Simulated time before this process, and when it started.
    before_ms: u64,
    started: Option<Instant>,
    jumped_ms: i64,
    /// Whether faults are over.
    is_calm: bool,
    position: u64,
    /// The time of the last reads of the store, and their number.
    reads: (u64, u32),
}

/// The world around the processes.
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) sessions: Arc<MemorySessions>,
    pub(super) store_dice: Dice,
    pub(super) model_dice: Dice,
    pub(super) tool_dice: Dice,
    pub(super) people_dice: Dice,
    /// For what `Extras` adds.
    pub(super) extra_dice: Dice,
    /// Appends of the last process that are still on their way.
    pub(super) late: Mutex<Vec<Append>>,
    state: Mutex<State>,
}

impl World {
    pub(super) fn new(plan: Plan) -> Arc<Self> {
        let seed = plan.seed;
        Arc::new(Self {
            plan,
            sessions: Arc::new(MemorySessions::new()),
            store_dice: Dice::new(seed, 2),
            model_dice: Dice::new(seed, 3),
            tool_dice: Dice::new(seed, 4),
            people_dice: Dice::new(seed, 5),
            extra_dice: Dice::new(seed, 6),
            late: Mutex::default(),
            state: Mutex::new(State {
                trace: String::new(),
                facts: Facts::default(),
                process: 0,
                is_alive: false,
                is_stopping: false,
                before_ms: 0,
                started: None,
                jumped_ms: 0,
                is_calm: false,
                position: 0,
                reads: (0, 0),
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// A process starts. Called inside its runtime.
    pub(super) fn begin_process(&self) -> u64 {
        let mut state = self.state();
        state.process += 1;
        state.is_alive = true;
        state.is_stopping = false;
        state.started = Some(Instant::now());
        let process = state.process;
        drop(state);
        self.log(format_args!("process {process} starts"));
        process
    }

    /// The process ends: from now on it reaches nothing. Called inside its runtime.
    pub(super) fn end_process(&self) {
        self.log(format_args!("the process ends"));
        let mut state = self.state();
        state.is_alive = false;
        state.before_ms = state.now_ms();
        state.started = None;
        // A deletion that ended with its process may have deleted anything.
        state.position += 1;
        let position = state.position;
        for scope in std::mem::take(&mut state.facts.erasing) {
            state.facts.forget_starts(&scope);
            state.facts.erased.insert(scope, position);
        }
        for number in std::mem::take(&mut state.facts.erasing_tenants) {
            state.facts.tenant_erased(number, position);
        }
        // The tenants of the next process are open again.
        state.facts.half_erased.clear();
        let followed = state.facts.fan_outs.iter_mut();
        followed.for_each(|begun| begun.is_followed = false);
    }

    /// The host of the process begins to shut down: its streams end early.
    pub(super) fn begin_shutdown(&self) {
        self.state().is_stopping = true;
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.state().is_stopping
    }

    /// Whether this process is alive.
    pub(super) fn is_alive(&self, process: u64) -> bool {
        let state = self.state();
        state.is_alive && state.process == process
    }

    /// Simulated time since the start of the run.
    pub(super) fn now_ms(&self) -> u64 {
        self.state().now_ms()
    }

    pub(super) fn jump(&self, ms: i64) {
        let mut state = self.state();
        state.jumped_ms += ms;
        state.facts.clock_leapt |= ms > DAY_MS;
    }

    /// Ends all faults.
    pub(super) fn calm(&self) {
        self.state().is_calm = true;
    }

    pub(super) fn is_calm(&self) -> bool {
        self.state().is_calm
    }

    /// Counts a read. Returns false for a reader that turns in a circle: its reads at one
    /// instant have no end, and time would never go on.
    pub(super) fn reads_on(&self) -> bool {
        let mut state = self.state();
        let now = state.now_ms();
        if state.reads.0 != now {
            state.reads = (now, 0);
        }
        state.reads.1 += 1;
        let goes_on = state.reads.1 < READS_MAX;
        drop(state);
        if !goes_on {
            self.violated("the store is read again and again at one instant");
        }
        goes_on
    }

    /// Whether the store refuses everything now.
    pub(super) fn is_away(&self) -> bool {
        let state = self.state();
        let now = state.now_ms();
        let is_in = |(from, upto): &(u64, u64)| (*from..*upto).contains(&now);
        !state.is_calm && self.plan.store.away.iter().any(is_in)
    }

    /// Adds a line to the trace, unless no process is alive.
    pub(super) fn log(&self, what: fmt::Arguments<'_>) {
        use fmt::Write;
        let mut state = self.state();
        if state.is_alive {
            let (process, now) = (state.process, state.now_ms());
            let _ = writeln!(state.trace, "{process} {now:>6} {what}");
        }
    }

    /// The next position in the order of all that happens.
    pub(super) fn position(&self) -> u64 {
        let mut state = self.state();
        state.position += 1;
        state.position
    }

    pub(super) fn with<T>(&self, of: impl FnOnce(&mut Facts) -> T) -> T {
        of(&mut self.state().facts)
    }

    /// Changes what is known of a fan-out.
    pub(super) fn fan_out(&self, name: &str, change: impl FnOnce(&mut BegunFanOut)) {
        self.with(|facts| {
            let begun = facts.fan_outs.iter_mut().find(|begun| begun.name == name);
            begun.map(change);
        });
    }

    /// Everything of a tenant is about to be erased. Returns the position.
    pub(super) fn begin_tenant_erasure(&self, number: u64) -> u64 {
        let position = self.position();
        self.with(|facts| {
            facts.erasing_tenants.insert(number);
            facts.tenant_erased(number, position);
        });
        position
    }

    /// The erasure of a tenant ended.
    pub(super) fn end_tenant_erasure(&self, number: u64, begun: u64, was_erased: bool) {
        let position = self.position();
        self.with(|facts| {
            facts.erasing_tenants.remove(&number);
            facts.tenant_erased(number, position);
            if was_erased {
                facts.tenants_gone.insert(tenant(number), begun);
                facts.half_erased.remove(&number);
                facts.figures.tenants_erased += 1;
            } else {
                facts.half_erased.insert(number);
            }
        });
    }

    /// A conversation is about to be deleted or reset. Returns the position.
    pub(super) fn begin_erasure(&self, scope: &Scope) -> u64 {
        let position = self.position();
        self.with(|facts| {
            facts.erasing.push(scope.clone());
            facts.erased.insert(scope.clone(), position);
        });
        position
    }

    /// A deletion or a reset ended: well, badly, or with its process.
    pub(super) fn end_erasure(&self, scope: &Scope, begun: u64, was_erased: bool) {
        let position = self.position();
        self.with(|facts| {
            if was_erased {
                facts.gone.insert(scope.clone(), begun);
            }
            facts.erasing.retain(|erasing| erasing != scope);
            facts.erased.insert(scope.clone(), position);
            facts.figures.deletions += 1;
            facts.forget_starts(scope);
        });
    }

    /// Whether the conversation was deleted or reset at some time.
    pub(super) fn was_erased(&self, scope: &Scope) -> bool {
        self.with(|facts| facts.erased_at(scope).is_some())
    }

    /// Records a broken promise.
    pub(super) fn violated(&self, what: impl Into<String>) {
        let what = what.into();
        self.log(format_args!("VIOLATED {what}"));
        self.with(|facts| facts.violations.push(what));
    }

    pub(super) fn trace(&self) -> (u64, String) {
        let state = self.state();
        (digest(state.trace.as_bytes()), state.trace.clone())
    }
}

impl State {
    fn now_ms(&self) -> u64 {
        let running = self.started.map_or(0, |at| at.elapsed().as_millis() as u64);
        self.before_ms + running
    }
}

/// The wall clock of the world: it runs with the simulated time, and jumps when the plan says so.
pub(super) struct WorldClock(pub(super) Arc<World>);

impl Clock for WorldClock {
    fn now(&self) -> Timestamp {
        let state = self.0.state();
        let now = BEGIN.0 + state.now_ms();
        Timestamp(now.saturating_add_signed(state.jumped_ms))
    }
}

/// The entropy of one process. A process that has ended draws nothing.
pub(super) struct WorldEntropy(SeededEntropy);

impl WorldEntropy {
    pub(super) fn new(world: &World, process: u64) -> Self {
        Self(SeededEntropy::new(
            world.plan.seed.wrapping_mul(1009).wrapping_add(process),
        ))
    }
}

impl Entropy for WorldEntropy {
    fn bytes(&self) -> [u8; 16] {
        self.0.bytes()
    }
}
