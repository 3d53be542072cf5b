//! Counts a store's threads, so that closing can wait for them with a timeout. (`JoinHandle::join`
//! has none.)

use std::{sync::Arc, time::Duration};

use parking_lot::{Condvar, Mutex, MutexGuard};

#[derive(Debug, Default)]
pub(super) struct Gate {
    inside: Mutex<usize>,
    bell: Condvar,
}

/// Held by a thread for as long as it runs.
#[derive(Debug)]
pub(super) struct Pass(Arc<Gate>);

impl Gate {
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.inside.lock()
    }

    pub(super) fn enter(self: &Arc<Self>) -> Pass {
        *self.lock() += 1;
        Pass(Arc::clone(self))
    }

    /// Waits until at most `left` threads run; `false` on timeout.
    pub(super) fn wait(&self, left: usize, within: Duration) -> bool {
        let mut inside = self.lock();
        !self
            .bell
            .wait_while_for(&mut inside, |inside| *inside > left, within)
            .timed_out()
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        *self.0.lock() -= 1;
        self.0.bell.notify_all();
    }
}

/// Starts a thread that holds a pass until it ends.
pub(super) fn spawn(
    gate: &Arc<Gate>,
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    let pass = gate.enter();
    let run = move || {
        work();
        drop(pass);
    };
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map(drop)
}
