//! One call a file at a time, also of different conversations of a tenant (REQUIREMENTS G-13, G-14). Within a batch the plan keeps the
//! order already.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// Names of files between two sweeps of those that nobody holds.
const SWEEP_AT: usize = 256;

/// Files in use, by workspace and path in one spelling.
#[derive(Default)]
pub(super) struct FileLocks {
    files: Mutex<HashMap<String, Weak<AsyncMutex<()>>>>,
}

/// A file that is one's own until this is dropped.
pub(super) struct FileGuard {
    _guard: OwnedMutexGuard<()>,
}

impl FileLocks {
    /// Waits until the file is free. First come, first served.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub(super) async fn take(&self, file: String) -> FileGuard {
        let mutex = {
            let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
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
        FileGuard { _guard: mutex.lock_owned().await }
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
