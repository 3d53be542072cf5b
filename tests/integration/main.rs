//! Promises, a module each, in one binary: building twenty costs minutes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs, unreachable_pub)]

mod cassettes;
mod providers;
mod support;
#[cfg(feature = "config")]
mod config;
#[cfg(feature = "sqlite")]
mod storage;
