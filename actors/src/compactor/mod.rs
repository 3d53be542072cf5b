//! Makes a history that has grown too large smaller, and keeps it valid.
//!
//! The ladder is pure: token counts, summaries and the time are arguments, and a [`Plan`] is the
//! result. The actor makes summaries in the background, a few at a time. State: cached summaries
//! and money spent, behind short locks in an `Arc` that outlives the actor; the actor itself holds
//! the waiting and the running jobs. Supervised by the HostSupervisor. After a restart the queue is
//! empty, and conversations whose jobs were lost keep their rule summaries.
//!
//! **Invariant:** a round never waits for a summary. Only a caller that requests a compaction may
//! wait, for a bounded time.
//!
//! Promises: compaction_always_makes_the_next_request_fit, prefix_is_byte_stable_between_compactions.

mod mode;
mod settings;
mod units;
mod importance;
mod keep;
mod rules;
mod summary_pair;
mod plan;
mod prompt;
mod ladder;
mod draft;
mod extract;
mod truncate;
mod ledger;
mod cache;
mod refocus;
mod by_age;
mod message;
mod recall;
mod request_bytes;
mod summarise;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use futures_util::FutureExt;
use parking_lot::{Mutex, RwLock};
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SpawnErr};
use tokio::{
    sync::{Semaphore, oneshot},
    time::Instant,
};

use cache::summaries_of;
pub(crate) use cache::{CachedSummary, SummaryCache, summary_key};
pub(crate) use recall::Recall;
#[cfg(test)]
pub(crate) use recall::SpanPointer;

pub use ladder::plan;
pub(crate) use ledger::SummaryLedger;
pub(crate) use message::CompactorMsg;
pub use mode::CompressionMode;
pub use plan::{CompactionOutcome, CompactionStep, DroppedSpan, Fixed, Plan, Problem, Window};
pub(crate) use prompt::{FOCUS_AREAS, merge_prompt, summary_prompts};
pub(crate) use refocus::reminder_at;
pub use request_bytes::RequestBytes;

pub use settings::CompactionSettings;
pub(crate) use settings::MEMORY;

use crate::{
    chat::{MessageList, RawJson, Usage},
    ids::{ConversationId, Scope, TenantId},
    limits::MEASUREMENTS_MAX,
    metrics_collector::Counters,
    model_gateway::ModelGatewayRef,
    policy::{BudgetCounter, Pricing},
    ports::Clock,
    task::{AbortOnDrop, spawn_blocking},
    tenant::Tenant,
};

/// Most summaries that are made at the same time.
const RUNNING_MAX: usize = 2;

/// Most jobs that wait. Further ones are refused, and their conversations keep rule summaries.
const WAITING_MAX: usize = 64;

/// Most tenants whose spending is tracked.
const LEDGERS_MAX: usize = 10_000;

/// A span of messages to summarize.
#[derive(Debug, Clone)]
pub(crate) struct SummaryJob {
    /// The conversation that the messages belong to.
    pub scope: Scope,
    /// The conversation's model. It writes the summary unless the settings name another model.
    pub model: Arc<str>,
    /// The conversation's gateway, so that the tenant's own credential pays.
    pub gateway: ModelGatewayRef,
    /// The tenant, in whose figures and rate the tokens count.
    pub tenant: Arc<Tenant>,
    /// The budget from which the cost is reserved.
    pub budget: Arc<BudgetCounter>,
    /// Prices of models, to compute the cost.
    pub spending: Arc<Pricing>,
    /// Records what the summary used in the journal of the conversation.
    pub bill_to: BillTo,
    /// The hash of the messages; part of the key of the summary.
    pub hash: String,
    /// The messages to summarize.
    pub messages: MessageList,
}

/// What a model call for a summary used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SummaryBill {
    /// The model of the last attempt.
    pub model: Arc<str>,
    /// Its tokens, failed attempts included.
    pub usage: Usage,
    /// Its cost; 0 without a price.
    pub cost_micro_usd: u64,
}

/// Where the bills of a summary go. The conversation stays awake while one of its jobs holds it.
#[derive(Clone)]
pub(crate) struct BillTo(Arc<dyn Fn(SummaryBill) + Send + Sync>);

impl BillTo {
    /// Bills are passed to `record`, in the order in which the calls end.
    pub(crate) fn new(record: impl Fn(SummaryBill) + Send + Sync + 'static) -> Self {
        Self(Arc::new(record))
    }
}

impl std::fmt::Debug for BillTo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BillTo")
    }
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
    pool: Arc<Semaphore>,
    started: Instant,
    clock: Arc<dyn Clock>,
    cache: Mutex<SummaryCache>,
    ledgers: Mutex<BTreeMap<TenantId, SummaryLedger>>,
    actor: RwLock<Option<ActorRef<CompactorMsg>>>,
}

impl Shared {
    /// Monotonic time since the host started. Jumps of the wall clock neither expire summaries nor
    /// refund spending.
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether the tenant can afford a summary of about `tokens` within the hour. With `note`, the
    /// cost is recorded.
    fn may_spend(&self, scope: &Scope, tokens: u64, note: bool) -> bool {
        let now = self.now();
        let settings = &self.settings;
        let mut ledgers = self.ledgers.lock();
        if ledgers.len() >= LEDGERS_MAX {
            ledgers.retain(|_, ledger| {
                ledger.may_spend(0, settings, now); // Removes spending older than an hour.
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
    /// A compactor without an actor; [`CompactorRef::start`] starts it.
    pub(crate) fn new(
        settings: CompactionSettings,
        counters: Arc<Counters>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let cache = Mutex::new(SummaryCache::new(&settings));
        let pool = Arc::new(Semaphore::new(MEASUREMENTS_MAX));
        let started = Instant::now();
        Self(Arc::new(Shared {
            settings,
            counters,
            pool,
            started,
            clock,
            cache,
            ledgers: Mutex::default(),
            actor: RwLock::default(),
        }))
    }

    /// Starts the actor, or its replacement after a failure.
    pub(crate) async fn start(&self, supervisor: ActorCell) -> Result<ActorCell, SpawnErr> {
        let (actor, _) = Actor::spawn_linked(None, Compactor, self.clone(), supervisor).await?;
        let cell = actor.get_cell();
        *self.0.actor.write() = Some(actor);
        Ok(cell)
    }

    /// The host's settings of compaction.
    pub(crate) fn settings(&self) -> &CompactionSettings {
        &self.0.settings
    }

    /// The summary of the messages with this hash, if it is cached.
    pub(crate) fn ready(&self, scope: &Scope, hash: &str) -> Option<String> {
        let mut cache = self.0.cache.lock();
        cache
            .get(&summary_key(scope, hash), self.0.now())
            .map(|summary| summary.summary.clone())
    }

    /// Whether a summary of about `tokens` is allowed and affordable within the hour.
    pub(crate) fn may_spend(&self, scope: &Scope, tokens: u64) -> bool {
        self.0.settings.enable_llm_summarization && self.0.may_spend(scope, tokens, false)
    }

    /// Queues a summary in the background and returns at once. When the queue is full, the job is
    /// dropped.
    pub(crate) fn summarise(&self, job: SummaryJob) {
        self.queue(job, None);
    }

    /// Makes a summary and waits for it, at most for the configured timeout. `None` if there is
    /// none.
    ///
    /// # Cancel safety
    /// The summary is made and cached all the same.
    pub(crate) async fn summary(&self, job: SummaryJob) -> Option<String> {
        if let Some(text) = self.ready(&job.scope, &job.hash) {
            return Some(text);
        }
        if !self.0.settings.enable_llm_summarization {
            return None;
        }
        let (reply, answer) = oneshot::channel();
        self.queue(job, Some(reply));
        tokio::time::timeout(self.0.settings.timeout(), answer)
            .await
            .ok()?
            .ok()?
    }

    /// Removes the summaries of a conversation, or of all conversations of a tenant, and cancels
    /// those that wait or are being made.
    pub(crate) fn forget(&self, tenant: &TenantId, conversation: Option<&ConversationId>) {
        let actor = self.0.actor.read();
        if let Some(actor) = &*actor {
            let _ = actor.cast(CompactorMsg::Forget {
                tenant: tenant.clone(),
                conversation: conversation.cloned(),
            });
        }
        drop(actor);
        let prefix = summaries_of(tenant, conversation);
        self.0.cache.lock().forget(&prefix);
        if conversation.is_none() {
            self.0.ledgers.lock().remove(tenant);
        }
    }

    fn queue(&self, job: SummaryJob, reply: Option<oneshot::Sender<Option<String>>>) {
        let actor = self.0.actor.read();
        if let Some(actor) = &*actor {
            let _ = actor.cast(CompactorMsg::Summarise {
                job: Box::new(job),
                reply,
            });
        }
    }

    /// Runs a computation on a history of `tenant` on the blocking pool, a few at a time, and at
    /// most half of them of one tenant: the largest history takes a good part of a second. `None`
    /// if it panicked.
    ///
    /// # Cancel safety
    /// A computation that has started runs to its end, and keeps its place until then.
    pub(crate) async fn on_pool<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        compute: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        // In this order: what waits for the tenant's own place is in no other tenant's way.
        let own = tenant.measurements().clone().acquire_owned().await.ok()?;
        let place = self.0.pool.clone().acquire_owned().await.ok()?;
        let result = spawn_blocking(move || {
            let _places = (own, place);
            compute()
        })
        .await;
        result
            .inspect_err(
                |error| tracing::error!(%error, "a computation on the blocking pool failed"),
            )
            .ok()
    }
}

/// The actor that makes summaries.
struct Compactor;

struct State {
    me: CompactorRef,
    waiting: VecDeque<SummaryJob>,
    running: BTreeMap<String, AbortOnDrop>,
    /// Callers that wait, by the key of their summary.
    replies: Vec<(String, oneshot::Sender<Option<String>>)>,
}

impl Actor for Compactor {
    type Msg = CompactorMsg;
    type State = State;
    type Arguments = CompactorRef;

    async fn pre_start(
        &self,
        _: ActorRef<CompactorMsg>,
        me: CompactorRef,
    ) -> Result<State, ActorProcessingErr> {
        Ok(State {
            me,
            waiting: VecDeque::new(),
            running: BTreeMap::new(),
            replies: Vec::new(),
        })
    }

    async fn handle(
        &self,
        me: ActorRef<CompactorMsg>,
        message: CompactorMsg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            CompactorMsg::Summarise { job, reply } => state.take(*job, reply),
            CompactorMsg::Forget {
                tenant,
                conversation,
            } => state.forget(&summaries_of(&tenant, conversation.as_ref())),
            CompactorMsg::Done { key, text } => state.done(&key, text),
        }
        state.begin(&me);
        Ok(())
    }
}

impl State {
    /// Queues a job. A job that already waits or runs is not queued again.
    fn take(&mut self, job: SummaryJob, reply: Option<oneshot::Sender<Option<String>>>) {
        let key = job.key();
        let known = self.running.contains_key(&key)
            || self.waiting.iter().any(|waiting| waiting.key() == key);
        if !known && self.waiting.len() >= WAITING_MAX {
            self.me.0.counters.summaries_failed.add(1);
            return; // Dropping the reply closes its caller's channel.
        }
        self.replies.extend(reply.map(|reply| (key, reply)));
        if !known {
            self.waiting.push_back(job);
        }
    }

    fn done(&mut self, key: &str, text: Option<String>) {
        self.running.remove(key);
        let counters = &self.me.0.counters;
        if text.is_some() {
            &counters.summaries
        } else {
            &counters.summaries_failed
        }
        .add(1);
        for (_, reply) in self.replies.extract_if(.., |(of, _)| of == key) {
            let _ = reply.send(text.clone());
        }
    }

    fn forget(&mut self, prefix: &str) {
        self.waiting.retain(|job| !job.key().starts_with(prefix));
        self.running.retain(|key, _| !key.starts_with(prefix));
        self.replies.retain(|(key, _)| !key.starts_with(prefix)); // Dropping a reply closes its caller's channel.
        self.me.0.cache.lock().forget(prefix);
    }

    fn begin(&mut self, me: &ActorRef<CompactorMsg>) {
        while self.running.len() < RUNNING_MAX
            && let Some(job) = self.waiting.pop_front()
        {
            let shared = self.me.0.clone();
            let me = me.clone();
            let key = job.key();
            let task = tokio::spawn(async move {
                // A panic in a provider's adapter must still free the job's place.
                let text = AssertUnwindSafe(summarise::summarise(&shared, &job))
                    .catch_unwind()
                    .await
                    .unwrap_or(None);
                if let Some(text) = &text {
                    let summary = CachedSummary {
                        summary: text.clone(),
                        timestamp: shared.clock.now(),
                        metadata: RawJson::empty_object(),
                    };
                    let now = shared.now();
                    shared.cache.lock().put(job.key(), summary, now);
                }
                let _ = me.cast(CompactorMsg::Done {
                    key: job.key(),
                    text,
                });
            });
            self.running.insert(key, AbortOnDrop(task));
        }
    }
}
