//! The directory of active conversations: starts them, restarts them after a crash, and holds their
//! messages while they start, stop or back off. A conversation has at most one actor.
//!
//! The directory is a sharded map and not an actor, so sending to one conversation never waits for
//! another one.
//!
//! **Invariant:** code that holds a shard guard only looks up a slot, changes it, or casts to its
//! actor. It never spawns, awaits or calls out, and never drops a message, a lease or an actor
//! reference: their destructors may enter the map again, and the guard is not re-entrant. Whatever
//! must be dropped or answered is moved out and handled after the guard is released.

mod activation;
mod after_exit;
mod deletion;
mod slot;
mod sweep;
#[cfg(test)]
mod tests;
mod trial;

pub(crate) use deletion::Deletion;
pub(crate) use slot::Activity;

use std::{
    hash::BuildHasher,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use dashmap::{DashMap, mapref::entry::Entry};
use parking_lot::RwLock;
use ractor::{ActorCell, MessagingErr};
use tokio::{
    sync::{Notify, Semaphore, futures::Notified, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use after_exit::{MEMORY_RETRY, Resume};
use slot::{AfterUnlock, Slot};

use super::{SlotCounts, fan_out_context::FanOutContexts, setups::TenantSetups};
use crate::{
    conversation::{ConversationError, ConversationMsg, Ports, Setup, load, refuse},
    hashing::MapHasher,
    ids::{ConversationId, EventId, Scope, TenantId},
    journal::Durable,
    limits::{AWAKE_READ_WAIT, LOADS_MAX, Limits},
    ports::{StreamKey, StreamStatus},
    stream::{EventKind, Failure, Open, StreamEvent},
    tenant::{Family, Tenant, Tenants},
};

/// Parked conversations that one sweep wakes; the next sweep takes the rest.
const WAKES_MAX: usize = 256;

/// How long a restart waits for the store to report the appends of the ended activation.
const APPENDS_SETTLE_MAX: Duration = Duration::from_secs(60);

/// The directory of a host.
pub(crate) struct Directory {
    slots: DashMap<Scope, Slot, MapHasher>,
    generations: AtomicU64,
    ports: Ports,
    tenants: Arc<Tenants>,
    loads: Arc<Semaphore>,
    limits: Arc<Limits>,
    started: Instant,
    closed: AtomicBool,
    /// Whether the last host on this store stopped without a crash.
    follows_orderly_stop: bool,
    /// The second in which idle conversations were last counted.
    relieved_s: AtomicU64,
    /// Activations since then, and the number of them after which they are counted again.
    started_since: AtomicUsize,
    relieved_after: AtomicUsize,
    /// The last conversation of the page that [`Directory::wake_due`] read; `None` after the last
    /// page. Locked while the store is asked.
    due_after: Arc<tokio::sync::Mutex<Option<Scope>>>,
    /// Held by the task that tries an unattended store.
    tries_store: Arc<Semaphore>,
    /// One place, for the task that stores what tenants have spent.
    stores_spending: Arc<Semaphore>,
    /// Notified whenever a slot is removed.
    emptied: Notify,
    /// Cancelled when the host stops: no more events follow.
    stopped: CancellationToken,
    supervisors: RwLock<Vec<ActorCell>>,
    runtime: tokio::runtime::Handle,
    me: OnceLock<std::sync::Weak<Directory>>,
    /// The setups, ports and budgets of running fan-outs.
    fan_outs: Arc<FanOutContexts>,
    setups: TenantSetups,
}

impl Directory {
    pub(crate) fn new(
        limits: Arc<Limits>,
        ports: Ports,
        tenants: Arc<Tenants>,
        setup: Arc<Setup>,
        runtime: tokio::runtime::Handle,
        follows_orderly_stop: bool,
    ) -> Arc<Self> {
        let directory = Arc::new(Self {
            slots: DashMap::default(),
            generations: AtomicU64::new(1),
            ports,
            tenants,
            loads: Arc::new(Semaphore::new(LOADS_MAX)),
            limits,
            started: Instant::now(),
            closed: AtomicBool::new(false),
            follows_orderly_stop,
            relieved_s: AtomicU64::new(0),
            started_since: AtomicUsize::new(0),
            relieved_after: AtomicUsize::new(0),
            due_after: Arc::default(),
            tries_store: Arc::new(Semaphore::new(1)),
            stores_spending: Arc::new(Semaphore::new(1)),
            emptied: Notify::new(),
            stopped: CancellationToken::new(),
            supervisors: RwLock::new(Vec::new()),
            runtime,
            me: OnceLock::new(),
            fan_outs: Arc::default(),
            setups: TenantSetups::new(setup),
        });
        let _ = directory.me.set(Arc::downgrade(&directory));
        directory
    }

    /// Sets the supervisor with this index; replaces one that died.
    pub(crate) fn set_supervisor(&self, index: usize, supervisor: ActorCell) {
        let mut supervisors = self.supervisors.write();
        match supervisors.get_mut(index) {
            Some(old) => *old = supervisor,
            None => supervisors.push(supervisor),
        }
    }

    fn supervisor_of(&self, scope: &Scope) -> Option<ActorCell> {
        let supervisors = self.supervisors.read();
        let hash = self.slots.hasher().hash_one(scope);
        let index = usize::try_from(hash % u64::try_from(supervisors.len().max(1)).unwrap_or(1))
            .unwrap_or(0);
        supervisors.get(index).cloned()
    }

    fn next_generation(&self) -> u64 {
        self.generations.fetch_add(1, Ordering::Relaxed)
    }

    fn used_s(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    /// The token that is cancelled when the host stops. Watchers then reconnect to the next host.
    pub(crate) fn stopped(&self) -> &CancellationToken {
        &self.stopped
    }

    /// The activity of a conversation, with its wait status if it has an actor.
    pub(crate) fn activity(&self, scope: &Scope) -> Activity {
        match self.slots.get(scope).as_deref() {
            None => Activity::Asleep,
            Some(Slot::Live { wait_status, .. }) => Activity::Awake(wait_status.clone()),
            Some(
                Slot::Starting { .. }
                | Slot::Closing { .. }
                | Slot::Backoff { .. }
                | Slot::Deleting { .. },
            ) => Activity::Changing,
            Some(Slot::Failed { error, .. }) => Activity::Failed(error.clone()),
        }
    }

    /// The ports of all conversations except those of fan-outs.
    pub(crate) fn ports(&self) -> &Ports {
        &self.ports
    }

    /// The setups, ports and budgets of running fan-outs.
    pub(crate) fn fan_outs(&self) -> &Arc<FanOutContexts> {
        &self.fan_outs
    }

    /// Whether the host is draining: no new round begins.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The ports of a conversation: its fan-out's, or the host's.
    fn ports_of(&self, scope: &Scope) -> Ports {
        self.fan_outs
            .get(scope)
            .map_or_else(|| self.ports.clone(), |context| context.ports.clone())
    }

    /// The tenants of the host.
    pub(crate) fn tenants(&self) -> &Arc<Tenants> {
        &self.tenants
    }

    /// Asks an active conversation to go to sleep if it is idle. Does nothing for an inactive one.
    pub(crate) fn put_to_sleep(&self, scope: &Scope) {
        if let Some(Slot::Live { actor, .. }) = self.slots.get(scope).as_deref() {
            let _ = actor.cast(ConversationMsg::Sweep);
        }
    }

    /// The state of a conversation that is awake, as the store holds it: its actor answers from its
    /// own fold. `None` if the conversation has no actor, if too many reads wait for it, or if it
    /// does not answer soon; the store can then be read. Does not count as use, so a conversation
    /// that is only read falls asleep. Conversations of fan-outs are left to their stores.
    pub(crate) async fn read_awake(&self, scope: &Scope) -> Option<Box<Durable>> {
        if self.fan_outs.get(scope).is_some() {
            return None;
        }
        let (reply, answer) = oneshot::channel();
        // Mail that the actor did not take leaves the guard before it is dropped.
        let sent = match self.slots.get(scope).as_deref() {
            Some(Slot::Live {
                actor, wait_status, ..
            }) => wait_status
                .begin_read()
                .map(|place| actor.cast(ConversationMsg::Read { reply, place })),
            _ => None,
        };
        sent?.ok()?;
        tokio::time::timeout(AWAKE_READ_WAIT, answer)
            .await
            .ok()?
            .ok()?
            .ok()
    }

    /// A future that completes when a slot is removed after this call.
    pub(crate) fn emptied(&self) -> Notified<'_> {
        self.emptied.notified()
    }

    /// The number of conversations that are not asleep.
    pub(crate) fn awake(&self) -> usize {
        self.slots.len()
    }

    /// The number of conversations that are not asleep, by state. Visits every slot of the host.
    pub(crate) fn slots(&self) -> SlotCounts {
        let mut counts = SlotCounts::default();
        for slot in &self.slots {
            let count = match slot.value() {
                Slot::Starting { .. } => &mut counts.starting,
                Slot::Live { .. } => &mut counts.live,
                Slot::Closing { .. } => &mut counts.closing,
                Slot::Backoff { .. } => &mut counts.backoff,
                Slot::Failed { .. } => &mut counts.failed,
                Slot::Deleting { .. } => &mut counts.deleting,
            };
            *count += 1;
        }
        counts
    }

    /// The tokio runtime on which the host's tasks run.
    pub(crate) fn runtime(&self) -> &tokio::runtime::Handle {
        &self.runtime
    }

    /// A tenant's conversations that are not asleep. Visits every slot of the host.
    pub(crate) fn awake_of(&self, tenant: &TenantId) -> Vec<Scope> {
        self.slots
            .iter()
            .filter(|slot| slot.key().tenant == *tenant)
            .map(|slot| slot.key().clone())
            .collect()
    }

    /// Sends a message to a conversation, which is started if it sleeps. A message that cannot be
    /// delivered is answered with the reason.
    pub(crate) fn send(&self, scope: &Scope, mail: ConversationMsg) {
        // While the host drains, open rounds may finish, so they may still start subagents.
        let begins = matches!(mail, ConversationMsg::Prompt(_) | ConversationMsg::Resume)
            && !scope.conversation.is_subagent();
        if begins && self.closed.load(Ordering::Acquire) {
            return refuse(mail, &crate::conversation::round::Refusal::Draining.into());
        }
        let mut replaced = None; // An actor reference must not be dropped under the guard.
        let after = match self.slots.entry(scope.clone()) {
            Entry::Vacant(entry) => {
                let generation = self.next_generation();
                entry.insert(Slot::Starting {
                    generation,
                    held: vec![mail],
                    crashes: None,
                });
                AfterUnlock::Activate(generation)
            }
            Entry::Occupied(mut entry) => match entry.get_mut() {
                Slot::Live {
                    actor,
                    used_s,
                    generation,
                    crashes,
                    ..
                } => {
                    *used_s = self.used_s();
                    match actor.cast(mail) {
                        Ok(())
                        | Err(MessagingErr::ChannelClosed | MessagingErr::InvalidActorType) => {
                            AfterUnlock::Nothing
                        }
                        Err(MessagingErr::SendErr(mail)) => {
                            let closing = Slot::Closing {
                                generation: *generation,
                                returned: Vec::new(),
                                held: vec![mail],
                                crashes: crashes.take(),
                            };
                            replaced = Some(entry.insert(closing));
                            AfterUnlock::Nothing
                        }
                    }
                }
                Slot::Starting { held, .. }
                | Slot::Closing { held, .. }
                | Slot::Backoff { held, .. } => {
                    if held.len() < self.limits.held_mail_max {
                        held.push(mail);
                        AfterUnlock::Nothing
                    } else {
                        let error = ConversationError::Overloaded {
                            what: "mail of a conversation that is starting",
                            retry_after_ms: 500,
                        };
                        AfterUnlock::Refuse(vec![mail], error)
                    }
                }
                Slot::Failed { error, until } if Instant::now() < *until => {
                    AfterUnlock::Refuse(vec![mail], error.clone())
                }
                Slot::Deleting { .. } => {
                    AfterUnlock::Refuse(vec![mail], ConversationError::Deleted)
                }
                Slot::Failed { .. } => {
                    let generation = self.next_generation();
                    replaced = Some(entry.insert(Slot::Starting {
                        generation,
                        held: vec![mail],
                        crashes: None,
                    }));
                    AfterUnlock::Activate(generation)
                }
            },
        };
        drop(replaced);
        self.finish(scope, after);
    }

    /// Does what a slot change requires. Must be called without a shard guard.
    fn finish(&self, scope: &Scope, after: AfterUnlock) {
        match after {
            AfterUnlock::Nothing => {}
            AfterUnlock::Activate(generation) => self.start(scope, generation),
            AfterUnlock::Refuse(mail, error) => {
                mail.into_iter().for_each(|mail| refuse(mail, &error))
            }
            AfterUnlock::WakeAfter {
                after,
                generation,
                resume,
                appends,
            } => {
                let Some(me) = self.me.get().and_then(std::sync::Weak::upgrade) else {
                    return;
                };
                let scope = scope.clone();
                self.runtime.spawn(async move {
                    tokio::time::sleep(after).await;
                    // A journal that still grows would be read too early, and the round that a
                    // late append opens would have no activation.
                    let _ = tokio::time::timeout(APPENDS_SETTLE_MAX, appends.settled()).await;
                    let resume = match resume {
                        Resume::Always => true,
                        Resume::Never => false,
                        Resume::WithMemory(bytes) => {
                            while me.awaits_memory(&scope, generation, bytes) {
                                tokio::time::sleep(MEMORY_RETRY).await;
                            }
                            true
                        }
                        Resume::IfAt(found) => {
                            let head = me.ports_of(&scope).sessions.head(&scope).await;
                            head.map_or(true, |head| head == found)
                        }
                    };
                    me.backoff_over(&scope, generation, resume);
                });
            }
        }
    }

    /// Whether a conversation with an open round still lacks memory for its history, and no
    /// message came meanwhile.
    fn awaits_memory(&self, scope: &Scope, generation: u64, history: u64) -> bool {
        let waits = match self.slots.get(scope).as_deref() {
            Some(Slot::Backoff {
                generation: current,
                held,
                ..
            }) => *current == generation && held.is_empty(),
            _ => false,
        };
        waits && !self.is_closed() && !self.tenants.get(&scope.tenant).has_memory_for(history)
    }

    /// The setup that a tenant's conversations get at their next activation.
    pub(crate) fn setup_of(&self, tenant: &TenantId) -> Arc<Setup> {
        self.setups.get(tenant)
    }

    /// Sets the setup that a tenant's conversations get at their next activation.
    pub(crate) fn set_up(&self, tenant: TenantId, setup: Arc<Setup>) {
        self.setups.set(tenant, setup);
    }

    /// The shared budget of a conversation and its subagents; `None` without a budget.
    pub(crate) fn family_of(
        &self,
        tenant: &Tenant,
        conversation: &ConversationId,
    ) -> Option<Arc<Family>> {
        tenant.family(conversation, self.setup_of(tenant.id()).family_budget()?)
    }

    fn mark_failed(&self, scope: &Scope, reason: &str) {
        let sessions = self.ports_of(scope).sessions;
        let scope = scope.clone();
        let reason = reason.to_owned();
        tracing::error!(conversation = %scope.conversation, reason, "this conversation cannot be read");
        self.runtime.spawn(async move {
            let _ = sessions.mark_failed(&scope, Some(reason)).await;
        });
    }

    /// Ends the event streams of rounds that no activation will finish soon, so that their watchers
    /// do not wait for ever.
    fn fail_streams(&self, scope: &Scope, error: &ConversationError) {
        let ports = self.ports_of(scope);
        let scope = scope.clone();
        let error = error.clone();
        self.runtime.spawn(async move {
            let _ = end_streams(&ports, &scope, &error).await;
        });
    }

    fn backoff_over(&self, scope: &Scope, generation: u64, resume: bool) {
        let mut dropped = None;
        let after = match self.slots.entry(scope.clone()) {
            Entry::Occupied(mut entry) if entry.get().generation() == Some(generation) => {
                let next = self.next_generation();
                let (mut held, crashes, actor) = std::mem::replace(
                    entry.get_mut(),
                    Slot::Closing {
                        generation: next,
                        returned: Vec::new(),
                        held: Vec::new(),
                        crashes: None,
                    },
                )
                .into_parts();
                dropped = actor;
                if resume {
                    held.insert(0, ConversationMsg::Resume);
                }
                if held.is_empty() {
                    entry.remove();
                    AfterUnlock::Nothing
                } else {
                    entry.insert(Slot::Starting {
                        generation: next,
                        held,
                        crashes,
                    });
                    AfterUnlock::Activate(next)
                }
            }
            Entry::Occupied(_) | Entry::Vacant(_) => AfterUnlock::Nothing,
        };
        drop(dropped);
        self.emptied.notify_waiters();
        self.finish(scope, after);
    }

    /// Wakes parked conversations whose approval deadline has passed. A task reads them from the
    /// store, page by page over the calls, so that conversations that make no progress do not keep
    /// the rest waiting. Does nothing while the store still answers an earlier call; after a store
    /// error the next call tries again.
    pub(crate) fn wake_due(self: &Arc<Self>) {
        let Some(mut after) = self.due_after.clone().try_lock_owned().ok() else {
            return;
        };
        let me = self.clone();
        self.runtime.spawn(async move {
            let now = me.ports.clock.now();
            match me
                .ports
                .sessions
                .list_open(Open::Parked, Some(now), after.clone(), WAKES_MAX)
                .await
            {
                Ok(due) => {
                    *after = due.last().filter(|_| due.len() == WAKES_MAX).cloned();
                    due.iter()
                        .for_each(|scope| me.send(scope, ConversationMsg::Resume));
                }
                Err(error) => tracing::debug!(%error, "parked conversations were not looked for"),
            }
        });
    }

    /// Stops admitting rounds, lets open ones run until `deadline`, interrupts the rest, and waits
    /// until all conversations sleep. Returns how many were awake at the start.
    pub(crate) async fn drain(&self, deadline: Instant) -> usize {
        self.closed.store(true, Ordering::Release);
        let awake = self.slots.len();
        loop {
            // Register for the notification before the slots are inspected: a slot that is removed
            // in between must not be missed. Conversations that only wait for a restart have no
            // actor to drain, so they are removed here. The timeout covers slots that were starting
            // during the pass and became live after it.
            let emptied = self.emptied.notified();
            tokio::pin!(emptied);
            emptied.as_mut().enable();
            let mut idle = Vec::new();
            for slot in &self.slots {
                match slot.value() {
                    Slot::Live { actor, .. } => {
                        drop(actor.cast(ConversationMsg::Drain { deadline }))
                    }
                    Slot::Backoff { .. } | Slot::Failed { .. } => idle.push(slot.key().clone()),
                    Slot::Starting { .. } | Slot::Closing { .. } | Slot::Deleting { .. } => {}
                }
            }
            for scope in idle {
                if let Some((_, slot)) = self.slots.remove(&scope) {
                    let (held, _, _) = slot.into_parts();
                    let error = crate::conversation::round::Refusal::Draining.into();
                    held.into_iter().for_each(|mail| refuse(mail, &error));
                }
            }
            let grace = deadline + crate::limits::CANCEL_GRACE + Duration::from_secs(1);
            if self.slots.is_empty() || Instant::now() >= grace {
                return awake;
            }
            let _ = tokio::time::timeout(Duration::from_millis(100), emptied).await;
        }
    }
}

/// Ends the event streams of rounds that the journal shows as open or queued. Returns whether there
/// were any.
async fn end_streams(ports: &Ports, scope: &Scope, error: &ConversationError) -> bool {
    let failure = Failure {
        code: error.code().to_owned(),
        message: error.to_string(),
        retry_after_ms: None,
    };
    let Ok(state) = load(&*ports.sessions, scope).await else {
        return false;
    };
    let mut ended_any = false;
    let open = state.round.iter().map(|round| round.id);
    for round in open.chain(state.inbox.iter().map(|prompt| prompt.round_id)) {
        let key = StreamKey {
            scope: scope.clone(),
            round,
        };
        if let Ok(Some(StreamStatus::Complete | StreamStatus::Failed)) =
            ports.events.get_status(&key).await
        {
            continue; // Its activation ended the stream.
        }
        // An id after every event that the activation can have published.
        let id = EventId {
            epoch: state.epoch,
            seq: state.head,
            n: u32::MAX,
        };
        let kind = EventKind::Error {
            failure: failure.clone(),
        };
        let event = StreamEvent {
            id,
            conversation_id: scope.conversation.clone(),
            round_id: Some(round),
            kind,
        };
        let _ = ports.events.append(&key, vec![Arc::new(event)]).await;
        let _ = ports.events.mark_failed(&key).await;
        ended_any = true;
    }
    ended_any
}
