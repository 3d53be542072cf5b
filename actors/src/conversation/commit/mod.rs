//! The way of a decision's entries to the store and to the watchers. `Committer::commit` is the one
//! verb: it appends the entries, and once they are durable it publishes their events and performs
//! the effects that wait for them.
//!
//! **Invariant:** only the actor sends appends, so they keep their order. The store calls back on
//! one of its own threads, which may publish events and perform effects, but sends nothing.

pub(in crate::conversation) mod after_commit;
pub mod append_queue;
pub(in crate::conversation) mod stream_writer;

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use ractor::ActorRef;
use tokio::sync::Notify;

use crate::{
    conversation::{
        ConversationArgs,
        commit::{
            after_commit::AfterCommit,
            append_queue::{AppendBatch, AppendQueue, PauseOutcome},
            stream_writer::StreamWriter,
        },
        message::{ConversationError, ConversationMsg},
        store_health::StoreHealth,
        unsettled::UnsettledAppends,
    },
    ids::{Epoch, Scope},
    journal::{Durable, Entry, EntryBody, Growth, Head, StoredEntry},
    ports::{Append, AppendError, Durability, OutboxMessage, SessionBackend},
    stream::Open,
    tenant::Tenant,
    time::Timestamp,
};

/// Commits the entries of one activation.
pub(in crate::conversation) struct Committer {
    me: ActorRef<ConversationMsg>,
    scope: Scope,
    epoch: Epoch,
    sessions: Arc<dyn SessionBackend>,
    tenant: Arc<Tenant>,
    health: Arc<StoreHealth>,
    appends: UnsettledAppends,
    queue: SharedQueue,
    /// Publishes events; shared with the tasks of model calls and tools.
    pub(in crate::conversation) writer: Arc<StreamWriter>,
    /// Rung after a message for a receiver outside is stored.
    bell: Option<Arc<Notify>>,
    /// How often appends were sent again. A lost append of an earlier time has an older number.
    sending: u32,
}

/// The append queue, shared with the store's threads.
#[derive(Clone)]
struct SharedQueue(Arc<Mutex<QueueState>>);

struct QueueState {
    appends: AppendQueue<AfterCommit>,
    /// The first append is durable and `Claimed` is in the mailbox. Until `Claimed` is handled, no
    /// batch is sent.
    claimed: bool,
}

impl SharedQueue {
    /// An empty queue behind a journal that ends at `head`.
    fn new(head: Head) -> Self {
        Self(Arc::new(Mutex::new(QueueState {
            appends: AppendQueue::new(head),
            claimed: false,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.0.lock()
    }
}

impl Committer {
    /// The committer of the activation `epoch`, behind a journal that ends at `head`.
    pub(in crate::conversation) fn new(
        args: &ConversationArgs,
        me: ActorRef<ConversationMsg>,
        epoch: Epoch,
        head: Head,
    ) -> Self {
        let scope = args.scope.clone();
        let ports = &args.ports;
        let writer = StreamWriter::new(
            scope.clone(),
            ports.events.clone(),
            epoch,
            head.seq,
            args.setup.limits.ring_bytes,
        );
        Self {
            me,
            scope,
            epoch,
            sessions: ports.sessions.clone(),
            tenant: args.tenant.clone(),
            health: ports.store_health.clone(),
            appends: args.lease.appends().clone(),
            queue: SharedQueue::new(head),
            writer: Arc::new(writer),
            bell: args.setup.outbox.as_ref().map(|outbox| outbox.bell.clone()),
            sending: 0,
        }
    }

    /// Appends `entries`, which led to `state`, and performs each effect of `after_commit` once all
    /// entries so far are durable. `messages` are stored with the entries. Returns by how much the
    /// journal grows.
    pub(in crate::conversation) fn commit(
        &self,
        entries: &[Entry],
        state: &Durable,
        messages: Vec<OutboxMessage>,
        after_commit: Vec<AfterCommit>,
    ) -> Growth {
        let (open, wake_at) = open(state);
        let stored = Entry::encode_all(entries);
        let growth = Growth::of(&stored);
        if self.sessions.keeps_entries() {
            self.tenant.stored().grew(growth.bytes);
        }
        let watched = entries.iter().any(|entry| {
            matches!(
                entry.body,
                EntryBody::RoundFinished { .. } | EntryBody::ApprovalAsked { .. }
            )
        });
        let mut queue = self.queue.lock();
        let (batch, ready) =
            queue
                .appends
                .push(self.epoch, stored, open, wake_at, messages, after_commit);
        let batch = batch.filter(|_| !queue.claimed); // Held batches go first; `Claimed` sends them.
        drop(queue);
        if let Some(batch) = batch {
            let awaited = batch.awaited || watched;
            self.send(AppendBatch { awaited, ..batch }, false);
        }
        ready.into_iter().for_each(AfterCommit::perform);
        growth
    }

    /// Appends a batch. The success of a trial is reported to the actor as `StoreWritten`.
    fn send(&self, batch: AppendBatch, is_trial: bool) {
        let AppendBatch {
            expected,
            epoch,
            entries,
            open,
            wake_at,
            messages,
            awaited,
        } = batch;
        let upto = entries.last().map_or(expected.seq, |entry| entry.seq);
        let queue = self.queue.clone();
        let writer = self.writer.clone();
        let me = self.me.clone();
        let sending = self.sending;
        let durability = if awaited {
            Durability::Awaited
        } else {
            Durability::Deferred
        };
        // Runs on a thread of the store. The queue's lock is not held while effects are performed
        // or events are published. While `claimed` is set, `commit` sends nothing, so the batches
        // held behind the first append keep their order.
        let under_way = self.appends.begin();
        let health = self.health.clone();
        let bell = self.bell.clone().filter(|_| !messages.is_empty());
        let done = Box::new(move |result: Result<(), AppendError>| {
            let _under_way = under_way;
            match result {
                Ok(()) => {
                    health.written();
                    if let Some(bell) = bell {
                        bell.notify_one();
                    }
                    let mut guard = queue.lock();
                    let committed = guard.appends.stored(upto);
                    guard.claimed |= !committed.send.is_empty();
                    drop(guard);
                    writer.stored(upto);
                    committed
                        .released
                        .into_iter()
                        .for_each(AfterCommit::perform);
                    if !committed.send.is_empty() {
                        let _ = me.cast(ConversationMsg::Claimed);
                    }
                    if is_trial {
                        let _ = me.cast(ConversationMsg::StoreWritten { sending });
                    }
                }
                Err(error) => {
                    match &error {
                        AppendError::Unavailable { message } => health.failed(message),
                        AppendError::Overloaded { .. } | AppendError::Conflict { .. } => {}
                    }
                    let _ = me.cast(ConversationMsg::AppendLost { error, sending });
                }
            }
        });
        let scope = self.scope.clone();
        self.sessions.append(Append {
            scope,
            expected,
            epoch,
            entries,
            open,
            wake_at,
            messages,
            durability,
            done,
        });
    }

    /// Sends the batches that were held behind the first append, which is durable now.
    pub(in crate::conversation) fn send_held(&self) {
        let mut queue = self.queue.lock();
        queue.claimed = false;
        let held = if queue.appends.is_paused() {
            Vec::new()
        } else {
            queue.appends.outstanding()
        };
        drop(queue);
        self.send_again(held);
    }

    fn send_again(&self, batches: Vec<AppendBatch>) {
        batches.into_iter().for_each(|batch| {
            let awaited = true;
            self.send(AppendBatch { awaited, ..batch }, false);
        });
    }

    /// Whether nothing is on its way to the store.
    pub(in crate::conversation) fn is_idle(&self) -> bool {
        self.queue.lock().appends.is_empty()
    }

    /// Bytes of all entries not known to be durable.
    pub(in crate::conversation) fn backlog_bytes(&self) -> usize {
        self.queue.lock().appends.backlog_bytes()
    }

    /// The last head known to be durable.
    pub(in crate::conversation) fn stored_head(&self) -> Head {
        self.queue.lock().appends.stored_head()
    }

    /// Whether `sending` is the number of the appends sent last. The loss of an older append means
    /// nothing: its outcome follows from the head of the store.
    pub(in crate::conversation) fn is_current(&self, sending: u32) -> bool {
        sending == self.sending
    }

    /// Stops sending until [`Committer::resume`].
    pub(in crate::conversation) fn pause(&self) {
        self.queue.lock().appends.lost();
    }

    /// Decides how a pause continues, from the head of the store and the entry after the last one
    /// known to be durable.
    pub(in crate::conversation) fn head_read(
        &self,
        head: Head,
        next: Option<&StoredEntry>,
    ) -> PauseOutcome<AfterCommit> {
        self.queue.lock().appends.head_read(head, next)
    }

    /// Publishes and performs what turned out to be stored during a pause, and appends `trial`. The
    /// pause lasts until the trial is stored.
    pub(in crate::conversation) fn try_store(
        &mut self,
        head: Head,
        released: Vec<AfterCommit>,
        trial: AppendBatch,
    ) {
        self.stored_meanwhile(head, released);
        let awaited = true;
        self.send(AppendBatch { awaited, ..trial }, true);
    }

    /// Publishes and performs what turned out to be stored during a pause. Losses of appends that
    /// were sent before are ignored from now on.
    pub(in crate::conversation) fn stored_meanwhile(
        &mut self,
        head: Head,
        released: Vec<AfterCommit>,
    ) {
        self.sending += 1;
        self.writer.stored(head.seq);
        released.into_iter().for_each(AfterCommit::perform);
    }

    /// Ends a pause: appends what is not durable.
    pub(in crate::conversation) fn resume(&self) {
        let batches = self.queue.lock().appends.resume();
        self.send_again(batches);
    }

    /// Drops the entries that are not durable, and answers the callers that wait for them with
    /// `error`.
    pub(in crate::conversation) fn refuse_all(&self, error: &ConversationError) {
        let waiting = self.queue.lock().appends.close();
        waiting
            .into_iter()
            .for_each(|after| after.refuse(error.clone()));
    }
}

/// The status and wake-up time for the store's head row.
fn open(state: &Durable) -> (Open, Option<Timestamp>) {
    match &state.round {
        Some(round) if round.is_parked() => (
            Open::Parked,
            state
                .batch()
                .and_then(|batch| batch.expires_at())
                .into_iter()
                .chain(round.deadline_at)
                .min(),
        ),
        Some(_) => (Open::Running, None),
        None if state.inbox.is_empty() => (Open::None, None),
        None => (Open::Running, None), // Accepted prompts wait, so a restart must activate the conversation.
    }
}
