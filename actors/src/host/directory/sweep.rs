//! Puts idle conversations to sleep: those that were not used for a time, and the least recently
//! used ones when there are too many.
//!
//! A conversation decides itself whether it sleeps; one that works ignores the request.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::Instant;

use super::{Directory, Slot};
use crate::{
    conversation::{ConversationMsg, WaitStatus, WaitsFor},
    ids::Scope,
    limits::RECLAIMED_PART,
};

/// Conversations that a sweep asks to sleep in one batch, and the pause between batches. Going to
/// sleep costs about 20 µs, so a sweep takes about a quarter of one core.
const SWEPT_AT_ONCE: usize = 16;
const SWEEP_PAUSE: Duration = Duration::from_millis(1);

/// The part of the bound of idle histories by which histories grow before they are counted again.
const GROWTH_PART: usize = 8;

/// Bytes of an idle conversation beside its history.
const IDLE_BYTES: usize = 10_000;

/// Returns how much has to go: what exceeds the bound, and a part of the bound. Zero within it.
fn excess(held: usize, max: usize) -> usize {
    match held.checked_sub(max) {
        None | Some(0) => 0,
        Some(over) => over.saturating_add(max / RECLAIMED_PART).min(held),
    }
}

/// A conversation that is asked to sleep unless it was used after `used_s`.
struct Asked {
    scope: Scope,
    used_s: u64,
}

impl Directory {
    /// Asks conversations that were idle for `idle` to go to sleep, or the least recently used ones
    /// if there are none and too many conversations are idle.
    pub(crate) fn sweep(&self, idle: Duration) {
        self.forget_failures();
        let Some(last) = self.used_s().checked_sub(idle.as_secs()) else {
            return self.relieve();
        };
        let all = self.slots.iter().filter_map(|slot| match slot.value() {
            Slot::Live { used_s, .. } if *used_s <= last => Some(Asked {
                scope: slot.key().clone(),
                used_s: last,
            }),
            _ => None,
        });
        let all: Vec<Asked> = all.collect();
        if all.is_empty() {
            return self.relieve();
        }
        self.ask(all);
    }

    /// Removes the slots of failed conversations that accept messages again.
    fn forget_failures(&self) {
        let now = Instant::now();
        let is_over = |slot: &Slot| matches!(slot, Slot::Failed { until, .. } if *until <= now);
        let over: Vec<Scope> = self
            .slots
            .iter()
            .filter(|slot| is_over(slot.value()))
            .map(|slot| slot.key().clone())
            .collect();
        for scope in over {
            let gone = self.slots.remove_if(&scope, |_, slot| is_over(slot));
            drop(gone);
        }
    }

    /// As [`Directory::relieve`], at the first activation of a second and after each quarter of the
    /// bound (or of the conversations in memory, if they are more): a count looks at all of them,
    /// so each activation pays for a few.
    pub(super) fn relieve_at_times(&self) {
        let now = self.used_s();
        let started = self.started_since.fetch_add(1, Ordering::Relaxed);
        if self.relieved_s.swap(now, Ordering::Relaxed) != now
            || started == self.relieved_after.load(Ordering::Relaxed)
        {
            self.relieve();
        }
    }

    /// As [`Directory::relieve`], if histories have grown by a good part of the bound: rounds that end
    /// together start no conversation.
    pub(crate) fn relieve_of_histories(&self) {
        let part = self.limits.idle_bytes_max / GROWTH_PART;
        if self.tenants.histories_have_grown(part) {
            self.relieve();
        }
    }

    /// If more than `idle_conversations_max` conversations are idle, or more than `idle_bytes_max`
    /// bytes of them, asks the least recently used ones to go to sleep: the excess, and a quarter
    /// of the bound, so that the next activations need no search.
    fn relieve(&self) {
        let max = self.limits.idle_conversations_max;
        let bytes_max = self.limits.idle_bytes_max;
        let in_memory = self.slots.len();
        self.relieved_after
            .store(max.max(in_memory) / RECLAIMED_PART, Ordering::Relaxed);
        self.started_since.store(0, Ordering::Relaxed);
        let idle = self.slots.iter().filter_map(|slot| match slot.value() {
            Slot::Live {
                used_s,
                wait_status,
                ..
            } if is_idle(wait_status) => Some((
                Asked {
                    scope: slot.key().clone(),
                    used_s: *used_s,
                },
                IDLE_BYTES + wait_status.history_bytes(),
            )),
            _ => None,
        });
        let mut idle: Vec<(Asked, usize)> = idle.collect();
        let bytes: usize = idle.iter().map(|(_, bytes)| bytes).sum();
        let count_excess = excess(idle.len(), max);
        let mut bytes_excess = excess(bytes, bytes_max);
        if count_excess == 0 && bytes_excess == 0 {
            return;
        }
        idle.sort_unstable_by_key(|(asked, _)| asked.used_s);
        let asked = idle
            .into_iter()
            .enumerate()
            .map_while(|(index, (asked, bytes))| {
                let is_asked = index < count_excess || bytes_excess > 0;
                bytes_excess = bytes_excess.saturating_sub(bytes);
                is_asked.then_some(asked)
            });
        self.ask(asked.collect());
    }

    /// Asks conversations to go to sleep, in small batches, so that a sweep of a hundred thousand
    /// conversations does not delay the busy ones.
    fn ask(&self, mut first: Vec<Asked>) {
        let rest = first.split_off(first.len().min(SWEPT_AT_ONCE));
        first.iter().for_each(|asked| self.ask_one(asked));
        if rest.is_empty() {
            return;
        }
        let Some(me) = self.me.get().cloned() else {
            return;
        };
        self.runtime.spawn(async move {
            for some in rest.chunks(SWEPT_AT_ONCE) {
                tokio::time::sleep(SWEEP_PAUSE).await;
                let Some(me) = me.upgrade() else { return };
                some.iter().for_each(|asked| me.ask_one(asked));
            }
        });
    }

    fn ask_one(&self, asked: &Asked) {
        if let Some(slot) = self.slots.get(&asked.scope)
            && let Slot::Live { actor, used_s, .. } = slot.value()
            && *used_s <= asked.used_s
        {
            let _ = actor.cast(ConversationMsg::Sweep);
        }
    }
}

/// Whether the conversation waits for nothing, or only for a person.
fn is_idle(wait_status: &WaitStatus) -> bool {
    match wait_status.get() {
        None | Some((WaitsFor::Nothing | WaitsFor::Person { .. }, _)) => true,
        Some(_) => false,
    }
}
