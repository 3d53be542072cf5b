//! A task that ends with its owner.

use tokio::task::JoinHandle;

/// Aborts its task when dropped, so the task also ends when its owner panics or is killed.
#[derive(Debug)]
pub(crate) struct AbortOnDrop(pub(crate) JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
