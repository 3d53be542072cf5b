//! Permits to call, and the queue for them: a try on shared state when there is one, tenants in turn when there is none.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::{ids::TenantId, policy::FairQueue, ports::ProviderError};

/// The permits of one gateway.
#[derive(Clone)]
pub struct Permits(Arc<Shared>);

struct Shared {
    waiting_max: usize,
    state: Mutex<State>,
}

struct State {
    free: usize,
    queue: FairQueue<TenantId, oneshot::Sender<Permit>>,
}

/// The right to have one call running; given back on drop.
pub struct Permit(Option<Arc<Shared>>);

impl std::fmt::Debug for Permit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Permit")
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(shared) = self.0.take() else { return };
        loop {
            let next = {
                let mut state = shared.lock();
                match state.queue.pop() {
                    Some(next) => next,
                    None => {
                        state.free += 1;
                        return;
                    }
                }
            };
            // A waiter that left is skipped; its permit is emptied, or dropping it would come back here.
            match next.send(Permit(Some(shared.clone()))) {
                Ok(()) => return,
                Err(mut unsent) => drop(unsent.0.take()),
            }
        }
    }
}

impl Permits {
    /// `calls_max` permits and at most `waiting_max` waiters.
    pub fn new(calls_max: usize, waiting_max: usize) -> Self {
        Self(Arc::new(Shared { waiting_max, state: Mutex::new(State { free: calls_max.max(1), queue: FairQueue::default() }) }))
    }

    /// Free permits, and waiters.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.0.lock();
        (state.free, state.queue.len())
    }

    /// Takes a permit, waiting for its tenant's turn. `queued` is told the place in the queue when there is a wait.
    ///
    /// # Errors
    /// `Overloaded` when too many wait; `Cancelled`.
    pub async fn acquire(
        &self,
        tenant: &TenantId,
        cancel: &CancellationToken,
        queued: impl FnOnce(usize),
    ) -> Result<Permit, ProviderError> {
        let (position, waiting) = {
            let mut state = self.0.lock();
            if state.free > 0 {
                state.free -= 1;
                return Ok(Permit(Some(self.0.clone())));
            }
            if state.queue.len() >= self.0.waiting_max {
                return Err(ProviderError::Overloaded);
            }
            let (give, waiting) = oneshot::channel();
            state.queue.push(tenant.clone(), give);
            (state.queue.len(), waiting)
        };
        queued(position);
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(ProviderError::Cancelled),
            permit = waiting => permit.map_err(|_| ProviderError::Overloaded),
        }
    }
}
