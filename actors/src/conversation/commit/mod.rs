//! Commits entries to the store and their events to watchers, and performs effects after the
//! commit.

pub(in crate::conversation) mod after_commit;
pub mod append_queue;
pub(in crate::conversation) mod stream_writer;
