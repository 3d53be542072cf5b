//! What an open round holds: its permit, its tasks and timers, and its tool executor.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::{
    conversation::{
        ConversationMsg,
        run::{Live, model_call::PermitSlot, trace},
    },
    ids::{RoundId, Scope, WorkId},
    limits::CANCEL_GRACE,
    small_map::SmallMap,
    subagent::CREATE_SUBAGENT,
    task::AbortOnDrop,
    time::Timestamp,
    tool_executor::ToolExecutorRef,
};

/// The resources of an open round. Dropping them stops the round's tasks, timers and executor and
/// releases its permit.
pub(super) struct RoundResources {
    pub(super) cancel: CancellationToken,
    pub(super) permit: PermitSlot,
    pub(super) executor: Option<ToolExecutorRef>,
    pub(super) tasks: SmallMap<WorkId, AbortOnDrop>,
    pub(super) timers: Vec<AbortOnDrop>,
    /// How long the ended attempts of each call of the batch ran, by index, in milliseconds.
    pub(super) ran_ms: BTreeMap<u32, u64>,
    pub(super) span: Span,
}

impl RoundResources {
    fn new(span: Span) -> Self {
        Self {
            cancel: CancellationToken::new(),
            permit: Arc::default(),
            executor: None,
            tasks: SmallMap::default(),
            timers: Vec::new(),
            ran_ms: BTreeMap::new(),
            span,
        }
    }

    /// Releases the round's permit; the next model call acquires one again.
    fn release_permit(&self) {
        self.permit.lock().take();
    }
}

impl Drop for RoundResources {
    fn drop(&mut self) {
        if let Some(executor) = &self.executor {
            executor.stop();
        }
    }
}

impl Live {
    /// The resources of the open round, created on first use.
    pub(super) fn resources(&mut self) -> Option<&mut RoundResources> {
        let id = self.durable.round.as_ref()?.id;
        if self
            .resources
            .as_ref()
            .is_none_or(|(known, _)| *known != id)
        {
            let sampling = self.setup.trace_sampling;
            let inbox = self.durable.inbox.len();
            let span = trace::round(
                &self.scope,
                id,
                self.volatile.epoch.0,
                inbox,
                sampling,
                &*self.ports.entropy,
            );
            self.resources = Some((id, Box::new(RoundResources::new(span))));
        }
        self.resources
            .as_mut()
            .map(|(_, resources)| &mut **resources)
    }

    /// Cancels the round's work and starts the grace period.
    pub(super) fn cancel_round(&mut self, round_id: RoundId, grace_over: bool) {
        // Interrupt subagents explicitly: after a crash, a retried call may not be watching its
        // subagent yet.
        let children: Vec<Scope> = self.open_children().collect();
        if let Some(starter) = &self.setup.children {
            children.iter().for_each(|child| starter.interrupt(child));
        }
        let timer = (!grace_over).then(|| {
            self.timer(
                Instant::now() + CANCEL_GRACE,
                ConversationMsg::GraceOver { round_id },
            )
        });
        // A round that is given up ends in the decision that cancels it, and the next one of the
        // queue begins there: what is open by now may be another round.
        let open = self.durable.round.as_ref().map(|round| round.id);
        if open != Some(round_id) {
            return;
        }
        if let Some(resources) = self.resources() {
            resources.cancel.cancel();
            resources.timers.extend(timer);
        }
    }

    /// Aborts work without awaiting its result.
    pub(super) fn abort(&mut self, work: WorkId) {
        if let Some(resources) = self.resources() {
            resources.tasks.remove(&work);
            if let Some(executor) = &resources.executor {
                executor.abort(work);
            }
        }
    }

    /// Releases the permit while only approvals are awaited, and sets the timer of the first one
    /// that expires.
    pub(super) fn park(&mut self, until: Option<Timestamp>) {
        let wait = until.map_or(Duration::ZERO, |until| {
            Duration::from_millis(until.ms_since(self.ports.clock.now()))
        });
        let timer = self.timer(
            Instant::now() + wait + Duration::from_millis(1),
            ConversationMsg::Tick,
        );
        if let Some(resources) = self.resources() {
            resources.release_permit();
            resources.timers.clear();
            resources.timers.push(timer);
        }
    }

    /// Drops what the round held.
    pub(super) fn round_over(&mut self, round_id: RoundId) {
        self.admitted.remove(&round_id);
        if self
            .resources
            .as_ref()
            .is_some_and(|(id, _)| *id == round_id)
        {
            self.resources = None;
        }
    }

    /// Work ended: until new work is awaited, readers derive the status from the journal.
    pub(super) fn work_ended(&mut self, work: WorkId) {
        self.task_ended(work);
        if self.pause.is_none() {
            self.wait_status.clear();
        }
    }

    pub(super) fn task_ended(&mut self, work: WorkId) {
        if let Some((_, resources)) = &mut self.resources {
            resources.tasks.remove(&work);
        }
    }

    /// Releases the round's permit while only subagents run: each subagent needs a permit, and the
    /// parent may hold the tenant's last one. Calls that wait behind a subagent, or for an
    /// approval, do not keep the permit. The next model call acquires a permit again.
    pub(super) fn release_permit_for_subagents(&self) {
        let Some((_, resources)) = self
            .resources
            .as_ref()
            .filter(|_| self.setup.children.is_some())
        else {
            return;
        };
        let Some(batch) = self.durable.batch() else {
            return;
        };
        let mut running = batch
            .calls
            .iter()
            .filter(|call| call.is_started())
            .peekable();
        if running.peek().is_some() && running.all(|call| call.tool_use.name == CREATE_SUBAGENT) {
            resources.release_permit();
        }
    }

    /// The subagents that the open batch has started and not finished.
    pub(super) fn open_children(&self) -> impl Iterator<Item = Scope> {
        let batch = self
            .durable
            .batch()
            .filter(|_| self.setup.children.is_some());
        batch.into_iter().flat_map(|batch| {
            let begun = (0..)
                .zip(&batch.calls)
                .filter(|(_, call)| call.tool_use.name == CREATE_SUBAGENT && call.is_started());
            begun.map(|(index, _)| {
                Scope::new(
                    self.scope.tenant.clone(),
                    self.scope.conversation.child(batch.seq, index),
                )
            })
        })
    }
}
