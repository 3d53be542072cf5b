//! The readers that wait for the next event of a stream. A plain list of wakers: the caller holds
//! the lock, and wakes or drops wakers after it has released it.

use std::task::Waker;

/// The readers that wait for the next event of a stream, or for its end.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    wakers: Vec<(u64, Waker)>,
    /// Changes when the readers are woken, so that a reader knows whether it is still registered.
    turn: u64,
    registered: u64,
}

/// The registration of a waiting reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Registration {
    turn: u64,
    id: u64,
}

impl Waiting {
    /// Creates the list of the conversation's stream number `stream`. No two streams of a
    /// conversation have the same turns.
    pub(super) fn of(stream: u32) -> Self {
        Self {
            turn: u64::from(stream) << 32,
            ..Self::default()
        }
    }

    /// Registers the waker, or replaces that of an earlier registration. The replaced waker must
    /// be dropped outside of the lock.
    pub(super) fn register(
        &mut self,
        held: Option<Registration>,
        waker: &Waker,
    ) -> (Registration, Option<Waker>) {
        if let Some(held) = held.filter(|held| held.turn == self.turn)
            && let Some((_, known)) = self.wakers.iter_mut().find(|(id, _)| *id == held.id)
        {
            let replaced =
                (!known.will_wake(waker)).then(|| std::mem::replace(known, waker.clone()));
            return (held, replaced);
        }
        self.registered += 1;
        self.wakers.push((self.registered, waker.clone()));
        let registration = Registration {
            turn: self.turn,
            id: self.registered,
        };
        (registration, None)
    }

    /// Removes a registration. Returns its waker, which must be dropped outside of the lock.
    pub(super) fn remove(&mut self, held: Registration) -> Option<Waker> {
        let at = self
            .wakers
            .iter()
            .position(|(id, _)| held.turn == self.turn && *id == held.id)?;
        Some(self.wakers.swap_remove(at).1)
    }

    /// Frees what the wakers took, after the last of them was woken.
    pub(super) fn shrink(&mut self) {
        self.wakers.shrink_to_fit();
    }

    /// Moves all wakers to `woken`. The caller wakes them after it has released the lock.
    pub(super) fn take(&mut self, woken: &mut Vec<Waker>) {
        if !self.wakers.is_empty() {
            self.turn += 1;
            woken.extend(self.wakers.drain(..).map(|(_, waker)| waker));
        }
    }
}

/// Wakes readers. The vector keeps its allocation.
pub(super) fn wake(woken: &mut Vec<Waker>) {
    woken.drain(..).for_each(Waker::wake);
}
