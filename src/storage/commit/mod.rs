//! What the stores of journals share: the queue in which changes wait for a commit, and the digests
//! that find damage.
//!
//! The statements are those of each store (`sqlite`, `postgres`).

use crate::fair::{Refused, Waiting};

pub(in crate::storage) mod columns;
pub(in crate::storage) mod error;
pub(in crate::storage) mod job;
pub(in crate::storage) mod queue;
pub(in crate::storage) mod stored;
pub(in crate::storage) mod digest;
pub(in crate::storage) mod turn;

/// Most reads that wait for a connection.
pub(in crate::storage) const READS_WAITING: Waiting = Waiting {
    all: 4096,
    tenant: 1024,
};

/// Most erasures that wait for a writer, and those of one tenant.
const ERASURES_WAITING: usize = 4096;
const TENANT_ERASURES_WAITING: usize = 1024;

/// Why a read is refused.
pub(in crate::storage) fn read_refusal(refused: Refused) -> &'static str {
    match refused {
        Refused::Closed => "the store is closed",
        Refused::Full => "too many reads are waiting for the store",
        Refused::TenantFull => "too many reads of this tenant are waiting for the store",
    }
}
