//! Callboard: a runtime for LLM agents in which every conversation is an actor.
//!
//! This half touches the world: adapters for every port of the kernel ([`callboard_actors`]), the command line, the binary.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

pub use callboard_actors::{chat, ids, journal, limits, policy, ports, stream};

#[cfg(feature = "config")]
pub mod config;
pub mod providers;
pub mod storage;
#[cfg(feature = "tools")]
pub mod tools;
#[cfg(feature = "tools")]
pub mod sandbox;
#[cfg(feature = "cli")]
pub mod telemetry;
