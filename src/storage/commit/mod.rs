//! What the stores of journals share: the queue in which changes wait for a commit, and the digests
//! that find damage.
//!
//! The statements are those of each store (`sqlite`, `postgres`).

pub(in crate::storage) mod columns;
pub(in crate::storage) mod error;
pub(in crate::storage) mod job;
pub(in crate::storage) mod queue;
pub(in crate::storage) mod read_lines;
pub(in crate::storage) mod stored;
pub(in crate::storage) mod digest;
