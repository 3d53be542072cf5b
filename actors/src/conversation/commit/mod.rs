//! The way of entries to the store and to watchers, and what waits until they are durable.

pub(in crate::conversation) mod after_commit;
pub mod append_queue;
pub(in crate::conversation) mod stream_writer;
