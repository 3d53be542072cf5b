//! Fakes, and one contract suite per port (feature `test-util`).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a contract suite fails by panicking"
)]

pub mod contract;
pub mod media;
mod cluster;
mod faulty_store;

pub use cluster::{ClusterSessions, MemoryCluster};
pub use faulty_store::{Fault, FaultPlan, FaultySessions};

mod clock;
mod entropy;
mod size;

pub use crate::scripted::{CallCounts, Reply, ScriptedModel};
pub use clock::ManualClock;
pub use entropy::SeededEntropy;
pub use size::TestSize;
