//! File locks: at most one call at a time works on a file, across all conversations of a tenant.
//! Within a batch the plan already keeps the order.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// Number of entries at which unused locks are removed.
const SWEEP_AT: usize = 256;

/// Locks by workspace and normalized path.
#[derive(Default)]
pub(super) struct FileLocks {
    files: Mutex<HashMap<String, Weak<AsyncMutex<()>>>>,
}

/// The exclusive right to a file; released on drop.
pub(super) struct FileGuard {
    _guard: OwnedMutexGuard<()>,
}

impl FileLocks {
    /// Waits until the file is free. Waiters are served in order of arrival.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub(super) async fn take(&self, file: String) -> FileGuard {
        // The map holds weak references: a lock lives as long as its holder and waiters, and dead
        // entries are removed when the map has grown. The map is never locked during a wait.
        let mutex = {
            let mut files = self.files.lock();
            if files.len() >= SWEEP_AT {
                files.retain(|_, mutex| mutex.strong_count() > 0);
            }
            match files.get(&file).and_then(Weak::upgrade) {
                Some(mutex) => mutex,
                None => {
                    let mutex = Arc::new(AsyncMutex::new(()));
                    files.insert(file, Arc::downgrade(&mutex));
                    mutex
                }
            }
        };
        FileGuard {
            _guard: mutex.lock_owned().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_file_is_for_one_and_other_files_are_free() {
        let locks = FileLocks::default();
        let first = locks.take("a".into()).await;

        assert!(locks.take("a".into()).now_or_never().is_none());
        assert!(locks.take("b".into()).now_or_never().is_some());
        drop(first);
        assert!(locks.take("a".into()).now_or_never().is_some());
    }
}
