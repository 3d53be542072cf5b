//! The callers that await an answer.

use crate::{
    conversation::{ConversationError, commit::after_commit::Waiter, round::Refusal, run::Live},
    ids::WaiterId,
    metrics_collector::Figure,
    small_map::SmallMap,
};

/// The callers that await an answer, by the ids under which decisions name them.
#[derive(Default)]
pub(super) struct Waiters {
    waiting: SmallMap<WaiterId, Waiter>,
    next: u64,
}

impl Waiters {
    pub(super) fn add(&mut self, waiter: Waiter) -> WaiterId {
        let id = WaiterId(self.next);
        self.next += 1;
        self.waiting.insert(id, waiter);
        id
    }

    pub(super) fn take(&mut self, id: WaiterId) -> Option<Waiter> {
        self.waiting.remove(&id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn refuse_all(&mut self, error: &ConversationError) {
        for (_, waiter) in self.waiting.take() {
            waiter.refuse(error.clone());
        }
    }
}

impl Live {
    /// Answers a caller with a refusal, and counts it.
    pub(super) fn refuse(&mut self, waiter: WaiterId, refusal: Refusal) {
        self.tally.add(Figure::Refused {
            code: refusal.code(),
        });
        if let Some(waiter) = self.waiters.take(waiter) {
            waiter.refuse(refusal.into());
        }
    }
}
