//! The actor that owns the jobs, the finished summaries and what each tenant spent.

use std::{collections::BTreeMap, panic::AssertUnwindSafe};

use futures_util::FutureExt;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::oneshot;

use super::{
    CompactorMsg, CompactorRef, SummaryJob, SummaryView,
    cache::{SummaryCache, summaries_of},
    ledger::SummaryLedger,
    queue::TurnQueue,
    summarise::summarise,
};
use crate::{
    ids::{Scope, TenantId},
    metrics_collector::Figure,
    task::AbortOnDrop,
};

/// Most summaries that are made at the same time.
const RUNNING_MAX: usize = 8;

/// Most summaries of one tenant that are made at the same time, so that a model server that does
/// not answer holds up its own tenant.
const TENANT_RUNNING_MAX: usize = 2;

/// Most jobs that wait. The conversation of a job that is dropped keeps its rule summary.
const WAITING_MAX: usize = 64;

/// Most tenants whose spending is tracked.
const LEDGERS_MAX: usize = 10_000;

/// The actor that has summaries made.
pub(super) struct Compactor;

pub(super) struct State {
    me: CompactorRef,
    waiting: TurnQueue<SummaryJob>,
    running: BTreeMap<String, (TenantId, AbortOnDrop)>,
    /// Callers that wait, by the key of their summary.
    replies: Vec<(String, oneshot::Sender<Option<String>>)>,
    cache: SummaryCache,
    ledgers: BTreeMap<TenantId, SummaryLedger>,
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
            cache: SummaryCache::new(me.settings()),
            me,
            waiting: TurnQueue::new(WAITING_MAX),
            running: BTreeMap::new(),
            replies: Vec::new(),
            ledgers: BTreeMap::new(),
        })
    }

    async fn handle(
        &self,
        me: ActorRef<CompactorMsg>,
        message: CompactorMsg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            CompactorMsg::Look { scope, reply } => {
                let _ = reply.send(state.look(&scope));
            }
            CompactorMsg::Summarise { job, reply } => state.enqueue(*job, reply),
            CompactorMsg::Spend {
                tenant,
                micro_usd,
                reply,
            } => {
                let _ = reply.send(state.spend(&tenant, micro_usd));
            }
            CompactorMsg::Forget {
                tenant,
                conversation,
            } => {
                if conversation.is_none() {
                    state.ledgers.remove(&tenant);
                }
                state.forget(&summaries_of(&tenant, conversation.as_ref()));
            }
            CompactorMsg::Done { key, text } => state.done(&key, text),
        }
        state.begin(&me);
        Ok(())
    }
}

impl State {
    fn look(&mut self, scope: &Scope) -> SummaryView {
        let now = self.me.0.now();
        let cap = self.me.settings().cap_micro_usd();
        SummaryView {
            summaries: self.cache.of(scope, now),
            left_micro_usd: match self.ledgers.get_mut(&scope.tenant) {
                Some(ledger) => cap.saturating_sub(ledger.spent_micro_usd(now)),
                None => cap,
            },
        }
    }

    /// Queues a job. A summary that is cached is answered at once, and a job that already waits or
    /// runs is not queued again.
    fn enqueue(&mut self, job: SummaryJob, reply: Option<oneshot::Sender<Option<String>>>) {
        let key = job.key();
        if let Some(summary) = self.cache.get(&key, self.me.0.now()) {
            if let Some(reply) = reply {
                let _ = reply.send(Some(summary.as_ref().into()));
            }
            return;
        }
        if !self.me.settings().enable_llm_summarization {
            return; // Dropping the reply closes its caller's channel.
        }
        self.replies.extend(reply.map(|reply| (key.clone(), reply)));
        if self.running.contains_key(&key) || self.waiting.contains(&key) {
            return;
        }
        let tenant = job.scope.tenant.clone();
        if let Some(dropped) = self.waiting.push(&tenant, key, job) {
            self.answer(&dropped, None);
        }
    }

    /// Records the cost of a summary, if the tenant can afford it.
    fn spend(&mut self, tenant: &TenantId, micro_usd: u64) -> bool {
        let now = self.me.0.now();
        if self.ledgers.len() >= LEDGERS_MAX {
            self.ledgers
                .retain(|_, ledger| ledger.spent_micro_usd(now) > 0);
        }
        if self.ledgers.len() >= LEDGERS_MAX && !self.ledgers.contains_key(tenant) {
            return false;
        }
        let ledger = self.ledgers.entry(tenant.clone()).or_default();
        let may = ledger.may_spend(micro_usd, self.me.settings(), now);
        if may {
            ledger.note(micro_usd, now);
        }
        may
    }

    /// A summary ended. One that was forgotten meanwhile is not kept.
    fn done(&mut self, key: &str, text: Option<String>) {
        if self.running.remove(key).is_none() {
            return;
        }
        let shared = &self.me.0;
        if let Some(text) = &text {
            self.cache
                .put(key.to_owned(), text.as_str().into(), shared.now());
        }
        self.answer(key, text);
    }

    /// Counts a job that ended or was dropped, and answers the callers that wait for it.
    fn answer(&mut self, key: &str, text: Option<String>) {
        let ended = Figure::SummaryEnded {
            succeeded: text.is_some(),
        };
        self.me.0.collector.count(None, ended);
        for (_, reply) in self.replies.extract_if(.., |(of, _)| of == key) {
            let _ = reply.send(text.clone());
        }
    }

    fn forget(&mut self, prefix: &str) {
        self.waiting.forget(prefix);
        self.running.retain(|key, _| !key.starts_with(prefix));
        self.replies.retain(|(key, _)| !key.starts_with(prefix)); // Dropping a reply closes its caller's channel.
        self.cache.forget(prefix);
    }

    /// Begins jobs while there are places.
    fn begin(&mut self, me: &ActorRef<CompactorMsg>) {
        while self.running.len() < RUNNING_MAX {
            let running = &self.running;
            let of = |tenant: &TenantId| running.values().filter(|(of, _)| of == tenant).count();
            let Some((tenant, job)) = self.waiting.take(|tenant| of(tenant) < TENANT_RUNNING_MAX)
            else {
                return;
            };
            let compactor = self.me.clone();
            let me = me.clone();
            let key = job.key();
            let task = tokio::spawn(async move {
                // A panic in a provider's adapter must still free the job's place.
                let text = AssertUnwindSafe(summarise(&compactor, &job))
                    .catch_unwind()
                    .await
                    .unwrap_or_else(|_| {
                        tracing::warn!(conversation = %job.scope.conversation, "a background summary panicked");
                        None
                    });
                let _ = me.cast(CompactorMsg::Done {
                    key: job.key(),
                    text,
                });
            });
            self.running.insert(key, (tenant, AbortOnDrop(task)));
        }
    }
}
