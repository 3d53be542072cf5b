//! Makes a history that has grown too large smaller, and keeps it valid.
//!
//! The ladder is pure: token counts, summaries and the time are arguments, and a [`Plan`] is the
//! result. The actor has summaries made in the background, a few at a time and by tenant in turn.
//! State: the jobs that wait and run, finished summaries, and what each tenant spent within the
//! hour; others ask for these by message. Supervised by the HostSupervisor. After a restart all of
//! it is empty: conversations whose jobs were lost keep their rule summaries, and what was spent is
//! forgotten.
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
mod actor;
mod message;
mod queue;
mod recall;
mod request_bytes;
mod summarise;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::RwLock;
use ractor::{Actor, ActorCell, ActorRef, SpawnErr};
use tokio::{
    sync::{Semaphore, oneshot},
    time::Instant,
};

use actor::Compactor;
use cache::summary_key;
pub(crate) use recall::Recall;
#[cfg(test)]
pub(crate) use recall::SpanPointer;

pub use ladder::plan;
pub(crate) use message::CompactorMsg;
pub use mode::CompressionMode;
pub use plan::{CompactionOutcome, CompactionStep, DroppedSpan, Fixed, Plan, Problem, Window};
pub(crate) use prompt::{FOCUS_AREAS, merge_prompt, summary_prompts};
pub(crate) use refocus::reminder_at;
pub use request_bytes::RequestBytes;

pub use settings::CompactionSettings;
pub(crate) use settings::MEMORY;

use crate::{
    chat::{MessageList, Usage},
    ids::{ConversationId, Scope, TenantId},
    limits::MEASUREMENTS_MAX,
    metrics_collector::MetricsCollectorRef,
    model_gateway::ModelGatewayRef,
    policy::{BudgetCounter, Pricing},
    task::spawn_blocking,
    tenant::Tenant,
};

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

/// What the compactor knows for a conversation at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct SummaryView {
    /// The conversation's finished summaries, by the hash of the messages that each stands for.
    summaries: BTreeMap<String, Arc<str>>,
    /// What the tenant may still spend within the hour, in millionths of a US dollar.
    left_micro_usd: u64,
}

impl SummaryView {
    /// The summary of the messages with this hash.
    pub(crate) fn ready(&self, hash: &str) -> Option<String> {
        self.summaries.get(hash).map(|text| text.as_ref().into())
    }

    /// Whether no summary is cached.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.summaries.is_empty()
    }

    /// Whether the tenant can afford a summary of about `tokens`.
    pub(crate) fn may_spend(&self, tokens: u64) -> bool {
        CompressionMode::Summarize.cost_micro_usd(tokens) < self.left_micro_usd
    }
}

/// A shared handle to the compactor.
#[derive(Clone)]
pub struct CompactorRef(Arc<Shared>);

struct Shared {
    settings: CompactionSettings,
    collector: MetricsCollectorRef,
    pool: Arc<Semaphore>,
    started: Instant,
    actor: RwLock<Option<ActorRef<CompactorMsg>>>,
}

impl Shared {
    /// Monotonic time since the host started. Jumps of the wall clock neither expire summaries nor
    /// refund spending.
    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}

impl CompactorRef {
    /// A compactor without an actor; [`CompactorRef::start`] starts it.
    pub(crate) fn new(settings: CompactionSettings, collector: MetricsCollectorRef) -> Self {
        Self(Arc::new(Shared {
            settings,
            collector,
            pool: Arc::new(Semaphore::new(MEASUREMENTS_MAX)),
            started: Instant::now(),
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

    /// The conversation's finished summaries, and what its tenant may still spend. While the actor
    /// is being replaced there are no summaries and no money.
    ///
    /// # Cancel safety
    /// Looking changes nothing.
    pub(crate) async fn look(&self, scope: &Scope) -> SummaryView {
        let (reply, answer) = oneshot::channel();
        self.cast(CompactorMsg::Look {
            scope: scope.clone(),
            reply,
        });
        answer.await.unwrap_or_default()
    }

    /// Queues a summary in the background and returns at once. When the queue is full, the newest
    /// job of the tenant with the most jobs is dropped.
    pub(crate) fn summarise(&self, job: SummaryJob) {
        self.queue(job, None);
    }

    /// Makes a summary, unless a finished one is cached, and waits for it, at most for the
    /// configured timeout. `None` if there is none.
    ///
    /// # Cancel safety
    /// The summary is made and cached all the same.
    pub(crate) async fn summary(&self, job: SummaryJob) -> Option<String> {
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
        self.cast(CompactorMsg::Forget {
            tenant: tenant.clone(),
            conversation: conversation.cloned(),
        });
    }

    /// Records that a summary of about `micro_usd` is paid for by `tenant`. Returns false, and
    /// records nothing, if the tenant cannot afford it within the hour.
    async fn spend(&self, tenant: &TenantId, micro_usd: u64) -> bool {
        let (reply, answer) = oneshot::channel();
        self.cast(CompactorMsg::Spend {
            tenant: tenant.clone(),
            micro_usd,
            reply,
        });
        answer.await.unwrap_or(false)
    }

    fn queue(&self, job: SummaryJob, reply: Option<oneshot::Sender<Option<String>>>) {
        self.cast(CompactorMsg::Summarise {
            job: Box::new(job),
            reply,
        });
    }

    /// Sends a message. Without an actor it is dropped, and with it a caller's channel.
    fn cast(&self, message: CompactorMsg) {
        if let Some(actor) = &*self.0.actor.read() {
            let _ = actor.cast(message);
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
