//! The start of an activation, and what its lease reports: messages that come back, and its end.

use std::sync::{Arc, atomic::Ordering};

use dashmap::mapref::entry::Entry;
use futures_util::FutureExt;
use ractor::{ActorRef, ActorRuntime, MessagingErr};
use tokio::{task::unconstrained, time::Instant};

use super::{
    AfterUnlock, Directory, Slot,
    after_exit::{AfterExit, after_exit},
};
use crate::{
    conversation::{
        Conversation, ConversationArgs, ConversationMsg, ExitReason, Lease, LeaseIssuer,
        UnsettledAppends, WaitStatus,
    },
    host::fan_out_context::FanOutContext,
    ids::Scope,
    metrics_collector::Figure,
};

impl Directory {
    /// Starts an activation. Must be called without a shard guard. The result of the spawn is not
    /// evaluated for failures: the lease's drop reports every end of an activation, a failed start
    /// included.
    pub(super) fn start(&self, scope: &Scope, generation: u64) {
        let (Some(directory), Some(supervisor)) = (
            self.me.get().and_then(std::sync::Weak::upgrade),
            self.supervisor_of(scope),
        ) else {
            return;
        };
        self.relieve_at_times();
        let lease = Lease::new(directory, scope.clone(), generation);
        let tenant = self.tenants.get(&scope.tenant);
        let wait_status: Arc<WaitStatus> = Arc::default();
        let (setup, ports, family) = match self
            .fan_outs
            .get(scope)
            .map(|context| FanOutContext::clone(&context))
        {
            Some(FanOutContext {
                setup,
                ports,
                family,
            }) => (setup, ports, family),
            None => (
                self.setup_of(&scope.tenant).of(&scope.conversation),
                self.ports.clone(),
                self.family_of(&tenant, &scope.conversation),
            ),
        };
        let follows_orderly_end = self
            .slots
            .get(scope)
            .is_some_and(|slot| match slot.value() {
                Slot::Starting { crashes, .. } => match crashes {
                    Some(history) => history.has_ended_in_order(),
                    None => self.follows_orderly_stop,
                },
                _ => false,
            });
        let args = ConversationArgs {
            follows_orderly_end,
            scope: scope.clone(),
            setup,
            ports,
            family,
            tenant,
            loads: self.loads.clone(),
            wait_status: wait_status.clone(),
            lease,
        };
        // Actors are spawned on the current runtime. A caller may be on another one, which may end
        // before the host does.
        let _entered = self.runtime.enter();
        // The conversation's `pre_start` awaits nothing, so one poll completes the spawn here and
        // saves a task. The task below is only the fallback.
        let mut starting = Box::pin(unconstrained(ActorRuntime::spawn_linked(
            None,
            Conversation,
            args,
            supervisor,
        )));
        match (&mut starting).now_or_never() {
            Some(Ok((actor, _))) => self.set_live(scope, generation, actor, wait_status),
            Some(Err(_)) => {}
            None => {
                let Some(me) = self.me.get().and_then(std::sync::Weak::upgrade) else {
                    return;
                };
                let scope = scope.clone();
                self.runtime.spawn(async move {
                    if let Ok((actor, _)) = starting.await {
                        me.set_live(&scope, generation, actor, wait_status);
                    }
                });
            }
        }
    }

    /// Makes a started actor the live one and sends it the held messages. The casts happen under
    /// the guard, so a message that is sent meanwhile cannot overtake the held ones. An actor whose
    /// generation is no longer current is stopped.
    fn set_live(
        &self,
        scope: &Scope,
        generation: u64,
        actor: ActorRef<ConversationMsg>,
        wait_status: Arc<WaitStatus>,
    ) {
        let mut stale = Some(actor.clone());
        let mut replaced = None;
        if let Entry::Occupied(mut entry) = self.slots.entry(scope.clone())
            && let Slot::Starting {
                generation: current,
                held,
                crashes,
            } = entry.get_mut()
            && *current == generation
        {
            let mut rest = std::mem::take(held).into_iter();
            let crashes = crashes.take();
            let mut unsent = Vec::new();
            for mail in rest.by_ref() {
                if let Err(MessagingErr::SendErr(mail)) = actor.cast(mail) {
                    unsent.push(mail);
                    break;
                }
            }
            unsent.extend(rest);
            replaced = Some(entry.insert(if unsent.is_empty() {
                stale = None;
                Slot::Live {
                    generation,
                    actor,
                    crashes,
                    used_s: self.used_s(),
                    wait_status,
                }
            } else {
                Slot::Closing {
                    generation,
                    returned: Vec::new(),
                    held: unsent,
                    crashes,
                }
            }));
        }
        drop(replaced);
        if let Some(actor) = stale {
            actor.stop(None);
        }
    }
}

impl LeaseIssuer for Directory {
    /// Keeps a message that a closing conversation handed back, for the next activation.
    fn hold(&self, scope: &Scope, generation: u64, mail: ConversationMsg) {
        let mut mail = Some(mail);
        let mut replaced = None;
        if let Entry::Occupied(mut entry) = self.slots.entry(scope.clone())
            && entry.get().generation() == Some(generation)
        {
            match entry.get_mut() {
                Slot::Live { crashes, .. } => {
                    let closing = Slot::Closing {
                        generation,
                        returned: mail.take().into_iter().collect(),
                        held: Vec::new(),
                        crashes: crashes.take(),
                    };
                    replaced = Some(entry.insert(closing));
                }
                Slot::Closing { returned, .. } => returned.extend(mail.take()),
                Slot::Starting { held, .. } | Slot::Backoff { held, .. } => {
                    held.extend(mail.take());
                }
                Slot::Failed { .. } | Slot::Deleting { .. } => {}
            }
        }
        drop(replaced);
        if let Some(mail) = mail {
            self.send(scope, mail); // A newer activation owns the slot: send it there.
        }
    }

    /// Moves the slot of an ended activation to its next state; the lease calls this when it is
    /// dropped. A stale generation changes nothing. Under the guard the slot is only replaced.
    /// Restarting, refusing held messages and ending streams follow after the guard is released.
    fn ended(&self, scope: &Scope, generation: u64, end: &ExitReason, appends: &UnsettledAppends) {
        let now = self.started.elapsed();
        let count = |figure| self.ports.collector.count(Some(&scope.tenant), figure);
        match end {
            ExitReason::Hibernated | ExitReason::Drained => count(Figure::Hibernated),
            ExitReason::Crashed => count(Figure::Crashed),
            ExitReason::Conflict
            | ExitReason::Overtaken
            | ExitReason::Contested(_)
            | ExitReason::StoreAway { .. }
            | ExitReason::NoMemory(_)
            | ExitReason::NeedsNewerVersion(_)
            | ExitReason::Unreadable(_) => {}
        }
        if matches!(end, ExitReason::Hibernated | ExitReason::Drained) {
            self.ports.sessions.release(scope);
        }
        let closed = self.closed.load(Ordering::Acquire);
        let mut dropped = None;
        let mut deleting = None;
        let after = match self.slots.entry(scope.clone()) {
            Entry::Occupied(mut entry) if matches!(entry.get(), Slot::Deleting { .. }) => {
                if let Slot::Deleting { ending, over } = entry.get_mut()
                    && *ending == Some(generation)
                {
                    *ending = None;
                    deleting = Some(over.clone());
                }
                AfterUnlock::Nothing
            }
            Entry::Occupied(mut entry) if entry.get().generation() == Some(generation) => {
                let next = self.next_generation();
                // A placeholder, so that the old slot can be taken apart. Every arm below replaces
                // or removes it, and `next` makes late callbacks of the ended activation stale.
                let slot = std::mem::replace(
                    entry.get_mut(),
                    Slot::Closing {
                        generation: next,
                        returned: Vec::new(),
                        held: Vec::new(),
                        crashes: None,
                    },
                );
                let (held, mut crashes, actor) = slot.into_parts();
                dropped = actor;
                let crash = || crashes.get_or_insert_default().crashed(now);
                match after_exit(end, closed, !held.is_empty(), crash) {
                    AfterExit::Sleep => {
                        entry.remove();
                        AfterUnlock::Nothing
                    }
                    AfterExit::Drain => {
                        entry.remove();
                        AfterUnlock::Refuse(
                            held,
                            crate::conversation::round::Refusal::Draining.into(),
                        )
                    }
                    AfterExit::Activate => {
                        entry.insert(Slot::Starting {
                            generation: next,
                            held,
                            crashes,
                        });
                        AfterUnlock::Activate(next)
                    }
                    AfterExit::Backoff { after, resume } => {
                        if !matches!(end, ExitReason::Crashed) {
                            crashes.get_or_insert_default().ended_in_order();
                        }
                        entry.insert(Slot::Backoff {
                            generation: next,
                            held,
                            crashes,
                        });
                        AfterUnlock::WakeAfter {
                            after,
                            generation: next,
                            resume,
                            appends: appends.clone(),
                        }
                    }
                    AfterExit::Fail { error, pause } => {
                        entry.insert(Slot::Failed {
                            error: error.clone(),
                            until: Instant::now() + pause,
                        });
                        AfterUnlock::Refuse(held, error)
                    }
                }
            }
            Entry::Occupied(_) | Entry::Vacant(_) => AfterUnlock::Nothing,
        };
        drop(dropped);
        if let Some(over) = deleting {
            over.notify_waiters();
            return;
        }
        match (&after, end) {
            (_, ExitReason::Unreadable(reason)) => self.mark_failed(scope, reason),
            (AfterUnlock::Refuse(_, error), ExitReason::Crashed | ExitReason::Overtaken) => {
                self.fail_streams(scope, error);
            }
            _ => {}
        }
        self.emptied.notify_waiters();
        self.finish(scope, after);
    }
}
