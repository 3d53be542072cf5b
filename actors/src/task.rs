//! A task that ends with its owner, and the ways off the worker threads.

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task::JoinHandle,
};

/// Aborts its task when dropped, so the task also ends when its owner panics or is killed.
#[derive(Debug)]
pub(crate) struct AbortOnDrop(pub(crate) JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs a computation on the runtime's blocking pool.
pub(crate) fn spawn_blocking<T: Send + 'static>(
    compute: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    #[cfg(test)]
    if in_tasks::is_set() {
        return tokio::spawn(async move { compute() });
    }
    tokio::task::spawn_blocking(compute)
}

/// Runs a computation of an actor that takes long and cannot move to another thread, because it borrows
/// the actor's state. The other tasks of this worker thread move to another thread first. Without
/// effect on a runtime of one thread.
///
/// For tasks that the kernel has spawned, and not for futures of its callers, who may poll them in a
/// `LocalSet`, where this panics.
pub(crate) fn off_workers<T>(is_long: bool, compute: impl FnOnce() -> T) -> T {
    let has_workers = || {
        Handle::try_current()
            .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread)
    };
    match is_long && has_workers() {
        true => tokio::task::block_in_place(compute),
        false => compute(),
    }
}

/// A simulation has one thread: the order of its steps must not depend on another one.
#[cfg(test)]
pub(crate) mod in_tasks {
    use std::cell::Cell;

    thread_local! {
        static IN_TASKS: Cell<bool> = const { Cell::new(false) };
    }

    /// From now on, computations that this thread spawns run as tasks of its runtime.
    pub(crate) fn set() {
        IN_TASKS.set(true);
    }

    pub(super) fn is_set() -> bool {
        IN_TASKS.get()
    }
}
