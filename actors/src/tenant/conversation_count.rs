//! The number of stored conversations of a tenant with `conversations_max`. The store is counted
//! once; afterwards the number follows what is created and deleted. When an outcome is unknown, the
//! store is counted again. Where several hosts create conversations of the tenant, a count is trusted
//! for a second, and each host creates only its part of what is left until it counts again.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::ids::ConversationId;

/// The value of `conversations_max` of a tenant without that limit.
const UNBOUNDED: u64 = u64::MAX;

/// Size of the table of conversations known to be stored, which saves most prompts a read of the
/// store: 8 KiB for each tenant with a limit.
const SEEN: usize = 1024;

/// How long a count is trusted that leaves no room. Another process may have deleted conversations
/// meanwhile.
const COUNT_TRUSTED: Duration = Duration::from_secs(1);

/// The number of a tenant's conversations, and those that may be about to be created.
#[derive(Debug)]
pub(crate) struct ConversationCount {
    max: AtomicU64,
    /// Hosts that create conversations of the tenant, this one included.
    hosts: AtomicU32,
    state: Mutex<State>,
    seen: OnceLock<Vec<AtomicU64>>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of stored conversations plus pending ones, and when it was counted; `None`
    /// until the store is counted.
    known: Option<(u64, Instant)>,
    /// The number up to which this host may create before the store is counted again.
    part: u64,
    /// How many times the store was counted.
    counts: u64,
    /// How many conversations this host has stored.
    stored: u64,
    /// Conversations that may be about to be created, each with the number of messages that may
    /// create it.
    pending: HashMap<ConversationId, Pending>,
}

#[derive(Debug, Default)]
struct Pending {
    /// Messages on their way that may create the conversation.
    messages: usize,
    is_counted: bool,
    is_stored: bool,
}

/// The state of the count when the store was asked. Answers that come late are recognized by it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CountBegun {
    counts: u64,
    stored: u64,
}

/// Held by a message that may create a conversation. Dropping it without
/// [`PendingConversation::keep`] leaves the outcome unknown, so the store is counted again.
#[derive(Debug)]
pub(crate) struct PendingConversation {
    count: Arc<ConversationCount>,
    conversation: ConversationId,
}

/// The result of [`PendingConversation::take`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The conversation is counted.
    Yes,
    /// The tenant has its maximum number of conversations.
    No,
    /// The caller must count the store, then try again.
    CountFirst,
    /// This host has created its part of what was left. The caller may try again then, when the other
    /// hosts have stored what they create now.
    Later(Instant),
}

impl ConversationCount {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            max: AtomicU64::new(UNBOUNDED),
            hosts: AtomicU32::new(1),
            state: Mutex::default(),
            seen: OnceLock::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn bound(&self, max: Option<u64>) {
        self.max.store(max.unwrap_or(UNBOUNDED), Ordering::Release);
    }

    /// Sets how many hosts create conversations of the tenant.
    pub(super) fn share(&self, hosts: u32) {
        self.hosts.store(hosts.max(1), Ordering::Release);
    }

    fn is_shared(&self) -> bool {
        self.hosts.load(Ordering::Acquire) > 1
    }

    /// Whether the number of conversations is limited.
    pub(crate) fn is_bounded(&self) -> bool {
        self.max.load(Ordering::Acquire) != UNBOUNDED
    }

    /// The number of stored conversations, if it was counted.
    pub(super) fn count(&self) -> Option<u64> {
        self.lock().known.map(|(count, _)| count)
    }

    /// Whether this conversation is known to be stored. May return false for a stored one: nothing is
    /// known where another host may have deleted it.
    pub(crate) fn has_seen(&self, conversation: &ConversationId) -> bool {
        if self.is_shared() {
            return false;
        }
        let (index, mark) = mark(conversation);
        self.seen
            .get()
            .and_then(|seen| seen.get(index))
            .is_some_and(|seen| seen.load(Ordering::Acquire) == mark)
    }

    /// Records that a conversation is stored.
    pub(crate) fn note_stored(&self, conversation: &ConversationId) {
        let (index, mark) = mark(conversation);
        let seen = self.seen.get_or_init(|| {
            std::iter::repeat_with(AtomicU64::default)
                .take(SEEN)
                .collect()
        });
        if let Some(seen) = seen.get(index) {
            seen.store(mark, Ordering::Release);
        }
    }

    /// Records that a stored conversation was deleted.
    pub(crate) fn note_deleted(&self, conversation: &ConversationId) {
        let (index, mark) = mark(conversation);
        if let Some(seen) = self.seen.get().and_then(|seen| seen.get(index)) {
            let _ = seen.compare_exchange(mark, 0, Ordering::AcqRel, Ordering::Acquire);
        }
        let mut state = self.lock();
        state.known = state.known.map(|(count, at)| (count.saturating_sub(1), at));
    }

    /// Must be called before the store is counted.
    pub(crate) fn begin_count(&self) -> CountBegun {
        let state = self.lock();
        CountBegun {
            counts: state.counts,
            stored: state.stored,
        }
    }

    /// Records a count of the store. Many messages of a burst count at the same time: once one of
    /// them has, the others know nothing newer, and what is left must not be divided again.
    pub(crate) fn counted(&self, begun: CountBegun, count: u64) {
        let mut state = self.lock();
        if state.counts != begun.counts && state.known.is_some() {
            return;
        }
        state.counts += 1;
        // The count may have missed what was stored meanwhile.
        let count = count.saturating_add(state.stored.saturating_sub(begun.stored));
        let unstored = state
            .pending
            .values()
            .filter(|pending| pending.is_counted && !pending.is_stored)
            .count() as u64;
        let count = count.saturating_add(unstored);
        state.known = Some((count, Instant::now()));
        // The other hosts may create as many at the same time.
        let left = self.max.load(Ordering::Acquire).saturating_sub(count);
        let hosts = u64::from(self.hosts.load(Ordering::Acquire));
        state.part = count.saturating_add(left.div_ceil(hosts));
    }

    /// Announces a message that may create this conversation. Must be called before the store is
    /// asked whether the conversation exists, so that a count in between is corrected.
    pub(crate) fn announce(self: &Arc<Self>, conversation: ConversationId) -> PendingConversation {
        self.lock()
            .pending
            .entry(conversation.clone())
            .or_default()
            .messages += 1;
        PendingConversation {
            count: self.clone(),
            conversation,
        }
    }
}

impl PendingConversation {
    /// Counts the conversation, which is not stored yet, unless another message has counted it.
    pub(crate) fn take(&self) -> Taken {
        let max = self.count.max.load(Ordering::Acquire);
        let mut state = self.count.lock();
        let State {
            known,
            part,
            pending,
            ..
        } = &mut *state;
        let is_shared = self.count.is_shared();
        let Some(pending) = pending.get_mut(&self.conversation) else {
            return Taken::CountFirst;
        };
        if pending.is_counted {
            return Taken::Yes;
        }
        match known {
            Some((_, at)) if is_shared && at.elapsed() >= COUNT_TRUSTED => Taken::CountFirst,
            Some((count, at)) if is_shared && *count < max && *count >= *part => {
                Taken::Later(*at + COUNT_TRUSTED)
            }
            Some((count, _)) if *count < max => {
                *count += 1;
                pending.is_counted = true;
                Taken::Yes
            }
            Some((_, at)) if at.elapsed() < COUNT_TRUSTED => Taken::No,
            Some(_) | None => Taken::CountFirst,
        }
    }

    /// Records that the conversation is stored.
    pub(crate) fn keep(self) {
        self.count.note_stored(&self.conversation);
        let mut state = self.count.lock();
        if let Some(pending) = state.pending.get_mut(&self.conversation)
            && !pending.is_stored
        {
            pending.is_stored = true;
            state.stored += 1;
        }
    }
}

impl Drop for PendingConversation {
    fn drop(&mut self) {
        let mut state = self.count.lock();
        let Some(pending) = state.pending.get_mut(&self.conversation) else {
            return;
        };
        pending.messages -= 1;
        if pending.messages == 0 {
            let in_doubt = pending.is_counted && !pending.is_stored;
            state.pending.remove(&self.conversation);
            if in_doubt {
                state.known = None; // Counted again when next needed.
            }
            if state.pending.is_empty() {
                state.pending.shrink_to_fit();
            }
        }
    }
}

/// The table index of a conversation and the mark stored there; the mark is never 0.
fn mark(conversation: &ConversationId) -> (usize, u64) {
    let mut hasher = DefaultHasher::new();
    conversation.hash(&mut hasher);
    let hash = hasher.finish();
    (usize::try_from(hash % SEEN as u64).unwrap_or(0), hash | 1)
}
