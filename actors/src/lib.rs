//! The kernel of Callboard: it decides.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

pub mod ids;
pub mod chat;
pub mod journal;
pub mod stream;
pub mod limits;
pub mod policy;
pub mod ports;
pub mod memory;
pub mod scripted;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
