//! Makes a history that has grown too large smaller, and keeps it valid (REQUIREMENTS C-01..C-52; the ladder of its rulings).
//!
//! The ladder and all it needs are pure: counts, summaries and the time come in, a [`Plan`] goes out. The actor beside it makes background
//! summaries, a few at once. State: summaries kept and money spent, behind short locks in an `Arc` that outlives the actor; the actor
//! itself holds what waits and what runs. Supervised by the HostSupervisor; a new one begins with an empty queue, and what was lost with
//! the old one stays with the words that rules found for it.
//!
//! **Invariant:** a turn never waits for a summary; whoever asks for a compaction may, for a bounded time.
//!
//! Promises: compaction_always_makes_the_next_request_fit, prefix_is_byte_stable_between_compactions.

mod mode;
mod settings;
mod units;
mod importance;
mod keep;
mod rules;
mod stub;
mod plan;
mod prompt;
mod ladder;
mod draft;
mod extract;
mod truncate;
mod ledger;
mod cache;
mod refocus;
mod compressed;
mod message;
mod recall;
mod summarise;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use futures_util::FutureExt;
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SpawnErr};
use tokio::{
    sync::{Semaphore, oneshot},
    time::Instant,
};

use cache::summaries_of;
pub use cache::{CachedSummary, SummaryCache, summary_key};
pub use compressed::{MarkedMessage, MessageRecord, MessageRecords, RoundView, VIEW_ROUNDS, compressed_text, round_views, should_compress};
pub use importance::{CLEARED, MessageImportance, MessagePriority};
pub use keep::{Recent, keep_rounds};
pub use ladder::plan;
pub use ledger::SummaryLedger;
pub use message::CompactorMsg;
pub use mode::CompressionMode;
pub use plan::{CompactionStep, DroppedSpan, Fixed, Plan, Problem, Verdict, Window};
pub use prompt::{FOCUS_AREAS, merge_prompt, summary_prompts};
pub use recall::{Recall, RecallArgs, SpanPointer};
pub use refocus::reminder_at;
pub use rules::{RoundLines, fallback_summary};
pub use settings::{CompactionSettings, CompactionSettingsError};

use crate::{
    chat::{MessageList, RawJson},
    ids::{ConversationId, Scope, TenantId},
    metrics_collector::Counters,
    model_gateway::ModelGatewayRef,
    policy::{BudgetCounter, Pricing},
    ports::Clock,
    task::AbortOnDrop,
};

/// Summaries that are made at once.
const RUNNING_MAX: usize = 2;

/// Summaries that wait; what comes beyond is left to rules.
const WAITING_MAX: usize = 64;

/// Measurements that run at once on the blocking pool: they are short, and the processors have conversations to serve.
const MEASUREMENTS_MAX: usize = 4;

/// Tenants whose spending is remembered.
const LEDGERS_MAX: usize = 10_000;

/// What is to be summarised.
#[derive(Debug, Clone)]
pub struct SummaryJob {
    /// Whose.
    pub scope: Scope,
    /// The conversation's model, which writes it unless another one is set.
    pub model: Arc<str>,
    /// The gateway of the conversation: what it costs is on its tenant's credential.
    pub gateway: ModelGatewayRef,
    /// Where what it costs is counted.
    pub budget: Arc<BudgetCounter>,
    /// What models cost.
    pub spending: Arc<Pricing>,
    /// Hash of the messages.
    pub hash: String,
    /// The messages.
    pub messages: MessageList,
}

impl SummaryJob {
    fn key(&self) -> String {
        summary_key(&self.scope, &self.hash)
    }
}

/// A shared handle to the compactor.
#[derive(Clone)]
pub struct CompactorRef(Arc<Shared>);

struct Shared {
    settings: CompactionSettings,
    counters: Arc<Counters>,
    pool: Semaphore,
    started: Instant,
    clock: Arc<dyn Clock>,
    cache: Mutex<SummaryCache>,
    ledgers: Mutex<BTreeMap<TenantId, SummaryLedger>>,
    actor: RwLock<Option<ActorRef<CompactorMsg>>>,
}

impl Shared {
    /// Time since the host began: no clock jump makes summaries old or money new.
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether a summary of about so many tokens may be paid for within the hour (C-27), by its tenant; notes it if it is to be made.
    fn may_spend(&self, scope: &Scope, tokens: u64, note: bool) -> bool {
        let (now, settings) = (self.now(), &self.settings);
        let mut ledgers = self.ledgers.lock().unwrap_or_else(PoisonError::into_inner);
        if ledgers.len() >= LEDGERS_MAX {
            ledgers.retain(|_, ledger| {
                ledger.may_spend(0, settings, now); // Forgets what is older than an hour.
                ledger.spent_micro_usd() > 0
            });
        }
        if ledgers.len() >= LEDGERS_MAX && !ledgers.contains_key(&scope.tenant) {
            return false;
        }
        let ledger = ledgers.entry(scope.tenant.clone()).or_default();
        let may = ledger.may_spend(tokens, settings, now);
        if may && note {
            ledger.note(tokens, now);
        }
        may
    }
}

impl CompactorRef {
    /// A compactor. Its actor begins with [`CompactorRef::start`].
    pub(crate) fn new(settings: CompactionSettings, counters: Arc<Counters>, clock: Arc<dyn Clock>) -> Self {
        let cache = Mutex::new(SummaryCache::new(&settings));
        let (pool, started) = (Semaphore::new(MEASUREMENTS_MAX), Instant::now());
        Self(Arc::new(Shared { settings, counters, pool, started, clock, cache, ledgers: Mutex::default(), actor: RwLock::default() }))
    }

    /// Starts the actor, or a new one in place of one that died.
    pub(crate) async fn start(&self, supervisor: ActorCell) -> Result<ActorCell, SpawnErr> {
        let (actor, _) = Actor::spawn_linked(None, Compactor, self.clone(), supervisor).await?;
        let cell = actor.get_cell();
        *self.0.actor.write().unwrap_or_else(PoisonError::into_inner) = Some(actor);
        Ok(cell)
    }

    /// The settings.
    pub fn settings(&self) -> &CompactionSettings {
        &self.0.settings
    }

    /// The summary of messages with this hash, if it is there.
    pub fn ready(&self, scope: &Scope, hash: &str) -> Option<String> {
        let mut cache = self.0.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.get(&summary_key(scope, hash), self.0.now()).map(|summary| summary.summary.clone())
    }

    /// Whether a summary of about so many tokens may be paid for within the hour (REQUIREMENTS C-27).
    pub fn may_spend(&self, scope: &Scope, tokens: u64) -> bool {
        self.0.settings.enable_llm_summarization && self.0.may_spend(scope, tokens, false)
    }

    /// Has a summary made in the background; nobody waits. Beyond what may wait it is left to rules.
    pub fn summarise(&self, job: SummaryJob) {
        self.tell(job, None);
    }

    /// Has a summary made and waits for it, at most as long as the settings say. `None`: there will be none.
    ///
    /// # Cancel safety
    /// The summary is made and kept all the same.
    pub async fn summary(&self, job: SummaryJob) -> Option<String> {
        if let Some(text) = self.ready(&job.scope, &job.hash) {
            return Some(text);
        }
        if !self.0.settings.enable_llm_summarization {
            return None;
        }
        let (reply, answer) = oneshot::channel();
        self.tell(job, Some(reply));
        tokio::time::timeout(self.0.settings.timeout(), answer).await.ok()?.ok()?
    }

    /// Forgets the summaries of a conversation, or of all conversations of a tenant, and makes those no more that wait or are being made.
    pub(crate) fn forget(&self, tenant: &TenantId, conversation: Option<&ConversationId>) {
        let actor = self.0.actor.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(actor) = &*actor {
            let _ = actor.cast(CompactorMsg::Forget { tenant: tenant.clone(), conversation: conversation.cloned() });
        }
        drop(actor);
        let prefix = summaries_of(tenant, conversation);
        self.0.cache.lock().unwrap_or_else(PoisonError::into_inner).forget(&prefix);
        if conversation.is_none() {
            self.0.ledgers.lock().unwrap_or_else(PoisonError::into_inner).remove(tenant);
        }
    }

    fn tell(&self, job: SummaryJob, reply: Option<oneshot::Sender<Option<String>>>) {
        let actor = self.0.actor.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(actor) = &*actor {
            let _ = actor.cast(CompactorMsg::Summarise { job: Box::new(job), reply });
        }
    }

    /// Runs a short computation on the blocking pool, a few at a time. `None` when it panicked.
    ///
    /// # Cancel safety
    /// A computation that began runs to its end.
    pub(crate) async fn on_pool<T: Send + 'static>(&self, compute: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let _permit = self.0.pool.acquire().await.ok()?;
        let result = tokio::task::spawn_blocking(compute).await;
        result.inspect_err(|error| tracing::error!(%error, "measuring a context failed")).ok()
    }
}

/// The actor.
struct Compactor;

struct State {
    me: CompactorRef,
    waiting: VecDeque<SummaryJob>,
    running: BTreeMap<String, AbortOnDrop>,
    /// Who waits for which summary.
    replies: Vec<(String, oneshot::Sender<Option<String>>)>,
}

impl Actor for Compactor {
    type Msg = CompactorMsg;
    type State = State;
    type Arguments = CompactorRef;

    async fn pre_start(&self, _: ActorRef<CompactorMsg>, me: CompactorRef) -> Result<State, ActorProcessingErr> {
        Ok(State { me, waiting: VecDeque::new(), running: BTreeMap::new(), replies: Vec::new() })
    }

    async fn handle(&self, me: ActorRef<CompactorMsg>, message: CompactorMsg, state: &mut State) -> Result<(), ActorProcessingErr> {
        match message {
            CompactorMsg::Summarise { job, reply } => state.take(*job, reply),
            CompactorMsg::Forget { tenant, conversation } => state.forget(&summaries_of(&tenant, conversation.as_ref())),
            CompactorMsg::Done { key, text } => state.done(&key, text),
        }
        state.begin(&me);
        Ok(())
    }
}

impl State {
    /// Queues a job; one that waits or runs already is not made twice.
    fn take(&mut self, job: SummaryJob, reply: Option<oneshot::Sender<Option<String>>>) {
        let key = job.key();
        let known = self.running.contains_key(&key) || self.waiting.iter().any(|waiting| waiting.key() == key);
        if !known && self.waiting.len() >= WAITING_MAX {
            self.me.0.counters.summaries_failed.add(1);
            return; // Its caller sees the closed channel.
        }
        self.replies.extend(reply.map(|reply| (key, reply)));
        if !known {
            self.waiting.push_back(job);
        }
    }

    fn done(&mut self, key: &str, text: Option<String>) {
        self.running.remove(key);
        let counters = &self.me.0.counters;
        if text.is_some() { &counters.summaries } else { &counters.summaries_failed }.add(1);
        for (_, reply) in self.replies.extract_if(.., |(of, _)| of == key) {
            let _ = reply.send(text.clone());
        }
    }

    fn forget(&mut self, prefix: &str) {
        self.waiting.retain(|job| !job.key().starts_with(prefix));
        self.running.retain(|key, _| !key.starts_with(prefix));
        self.replies.retain(|(key, _)| !key.starts_with(prefix)); // Their callers see the closed channel.
        self.me.0.cache.lock().unwrap_or_else(PoisonError::into_inner).forget(prefix);
    }

    fn begin(&mut self, me: &ActorRef<CompactorMsg>) {
        while self.running.len() < RUNNING_MAX
            && let Some(job) = self.waiting.pop_front()
        {
            let (shared, me, key) = (self.me.0.clone(), me.clone(), job.key());
            let task = tokio::spawn(async move {
                // A provider's adapter that panics must not keep its place for ever.
                let text = AssertUnwindSafe(summarise::summarise(&shared, &job)).catch_unwind().await.unwrap_or(None);
                if let Some(text) = &text {
                    let summary = CachedSummary { summary: text.clone(), timestamp: shared.clock.now(), metadata: RawJson::empty_object() };
                    let now = shared.now();
                    shared.cache.lock().unwrap_or_else(PoisonError::into_inner).put(job.key(), summary, now);
                }
                let _ = me.cast(CompactorMsg::Done { key: job.key(), text });
            });
            self.running.insert(key, AbortOnDrop(task));
        }
    }
}
