//! The end of an activation: sleep, deletion, or a store that another activation writes.

use std::{sync::Arc, time::Duration};

use tokio::{sync::oneshot, time::Instant};

use crate::{
    conversation::{
        ConversationError, ConversationMsg, ExitReason,
        commit::after_commit::AfterCommit,
        round::Input,
        run::{Flow, Live},
    },
    ids::RoundId,
    journal::{Entry, EntryBody, Growth},
    limits::{AWAKE_SNAPSHOT_ENTRIES, SNAPSHOT_BYTES, SNAPSHOT_ENTRIES},
    model_gateway::CallClass,
    stream::Failure,
};

/// Bytes of messages up to which a snapshot is encoded on a thread of the runtime: less than a
/// millisecond.
const ENCODED_IN_PLACE: usize = 64 * 1024;

impl Live {
    /// Ends the activation because of the store: callers get `error`, streams end with it, and
    /// waiting effects are dropped.
    pub(super) fn exit(&mut self, error: &ConversationError, end: ExitReason) -> Flow {
        self.commits.refuse_all(error);
        self.refuse_callers(error);
        Flow::End(end)
    }

    /// Ends the activation because the conversation is being deleted: cancels the open round, then
    /// sleeps. Callers and watchers are notified at once; entries written afterwards are deleted
    /// with the journal.
    pub(super) fn delete(&mut self) -> Result<Flow, String> {
        self.refuse_callers(&ConversationError::Deleted);
        self.drain = Some(self.timer(Instant::now(), ConversationMsg::Sweep));
        let failure = ConversationError::Deleted;
        let failure = Failure {
            code: failure.code().to_owned(),
            message: failure.to_string(),
            retry_after_ms: None,
        };
        match self.input(Input::Drain)? {
            Flow::GoOn => self.input(Input::Cancel {
                failure: Some(failure),
            }),
            end @ Flow::End(_) => Ok(end),
        }
    }

    /// Answers all waiting callers with `error` and ends all streams with it.
    fn refuse_callers(&mut self, error: &ConversationError) {
        self.waiters.refuse_all(error);
        let failure = Failure {
            code: error.code().to_owned(),
            message: error.to_string(),
            retry_after_ms: None,
        };
        let open = self.durable.round.iter().map(|round| round.id);
        let rounds: Vec<RoundId> = open
            .chain(self.durable.inbox.iter().map(|prompt| prompt.round_id))
            .collect();
        self.commits.writer.fail(&rounds, &failure);
    }

    /// Sleeps after a decision if the host drains, or if a subagent, which has one task, finished
    /// its round.
    pub(super) fn sleep_if_due(&mut self, entries: &[Entry]) -> Flow {
        let is_over = || {
            entries
                .iter()
                .any(|entry| matches!(entry.body, EntryBody::RoundFinished { .. }))
        };
        if self.drain.is_some() {
            self.sleep_if_idle(ExitReason::Drained)
        } else if is_over() && self.setup.class == CallClass::Subagent {
            self.sleep_if_idle(ExitReason::Hibernated)
        } else {
            if self.durable.round.is_none() {
                self.snapshot(AWAKE_SNAPSHOT_ENTRIES);
            }
            Flow::GoOn
        }
    }

    /// Ends the activation if no round is open (or only approvals are awaited), no work runs, no
    /// caller waits and nothing is on its way to the store.
    pub(super) fn sleep_if_idle(&mut self, end: ExitReason) -> Flow {
        let waits_for_no_round = match &self.durable.round {
            Some(round) => round.is_parked(),
            None => self.durable.inbox.is_empty() || self.volatile.draining,
        };
        let idle = waits_for_no_round
            && self.volatile.work.is_empty()
            && self.volatile.retries.is_empty()
            && self.waiters.is_empty()
            && self.held.is_empty()
            && self.pause.is_none()
            && self.commits.is_idle();
        // The shutdown of a host does not wait for a summary: the compactor ends with it.
        let is_billed = self.drain.is_some() || Arc::strong_count(&self.bills_open) == 1;
        if idle && !is_billed {
            return Flow::GoOn;
        }
        if !idle {
            if self.drain.is_some() && waits_for_no_round && self.pause.is_none() {
                // No round keeps the conversation awake, only an append, a caller or a short task:
                // check again soon.
                self.drain = Some(self.timer(
                    Instant::now() + Duration::from_millis(5),
                    ConversationMsg::Sweep,
                ));
            }
            return Flow::GoOn;
        }
        self.snapshot(SNAPSHOT_ENTRIES);
        Flow::End(end)
    }

    /// Writes a snapshot in the background if the journal grew by at least `after` entries since
    /// the last one, or if the next activation would read much more than the history. A snapshot is
    /// a cache, so its result is not awaited.
    fn snapshot(&mut self, after: u64) {
        let history = self.durable.history.messages().wire_bytes() as u64;
        let is_heavy = self.growth.bytes >= SNAPSHOT_BYTES.max(history.saturating_mul(2));
        if self.growth.entries < after && !is_heavy {
            return;
        }
        self.growth = Growth::default();
        // A store ignores a snapshot that its journal has not reached.
        let (reply, stored) = oneshot::channel();
        let answer = AfterCommit::Done(reply, None);
        self.commits
            .commit(&[], &self.durable, Vec::new(), vec![answer]);
        let sessions = self.ports.sessions.clone();
        let scope = self.scope.clone();
        let durable = self.durable.clone();
        let compactor = self.setup.compactor.clone();
        let tenant = self.tenant.clone();
        tokio::spawn(async move {
            if !matches!(stored.await, Ok(Ok(()))) {
                return;
            }
            let upto = durable.head;
            let is_large = durable.history.messages().wire_bytes() > ENCODED_IN_PLACE;
            let encoded = match is_large {
                true => compactor.on_pool(&tenant, move || durable.snapshot()).await,
                false => Some(durable.snapshot()),
            };
            let Some(encoded) = encoded else { return };
            if let Err(error) = sessions.snapshot(&scope, upto, encoded).await {
                tracing::debug!(%error, "a snapshot was not kept");
            }
        });
    }
}
