//! Reads of journals: the place of one among those of its tenant, and where it is decoded.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{journal::StoredEntry, ports::StoreError, task::spawn_blocking};

/// Bytes of snapshot and entries up to which they are decoded on a thread of the runtime: about two
/// milliseconds.
pub(crate) const DECODED_IN_PLACE: usize = 256 * 1024;

/// The place of a read among those of its tenant.
pub(crate) type ReadPermit = Option<Arc<OwnedSemaphorePermit>>;

/// Waits for a place among the reads of a tenant's journals.
pub(crate) async fn permit(reads: &Arc<Semaphore>) -> ReadPermit {
    reads.clone().acquire_owned().await.ok().map(Arc::new)
}

/// Runs a computation on bytes of a journal: here if they are few, else on the blocking pool,
/// because a thread of the runtime that decodes for a second serves no request meanwhile.
///
/// A computation that has begun goes on when its caller has left, so it holds `permit`: otherwise
/// callers that leave would have as many journals decoded at a time as they ask for.
pub(crate) async fn decoded<T: Send + 'static>(
    bytes: usize,
    permit: &ReadPermit,
    compute: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StoreError> {
    if bytes <= DECODED_IN_PLACE {
        return Ok(compute());
    }
    let held = permit.clone();
    let computing = spawn_blocking(move || {
        let _held = held;
        compute()
    });
    computing.await.map_err(|error| {
        tracing::error!(%error, "the reading of a journal did not end");
        StoreError::Unavailable {
            message: "the journal could not be read".into(),
        }
    })
}

/// The bytes of stored entries.
pub(crate) fn bytes_of(entries: &[StoredEntry]) -> usize {
    entries.iter().map(|entry| entry.bytes.len()).sum()
}
