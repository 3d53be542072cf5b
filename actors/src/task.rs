//! A task that ends with its owner (RACTOR, idioms).

use tokio::task::JoinHandle;

/// Aborts its task when dropped, so panic, kill and stop of the owner end it too.
#[derive(Debug)]
pub(crate) struct AbortOnDrop(pub(crate) JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
