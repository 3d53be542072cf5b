//! Policies that several rooms share: no clock, no randomness, no I/O. Callers pass the time as an
//! argument.
//!
//! Pure.

mod breaker;
mod budget;
mod call_class;
mod fair_queue;
mod pacing;
mod prices;
mod pricing;
mod restart;
mod settings;
mod share;
mod shared_failures;
mod artifact_index;
mod token_bucket;
mod tool_retry;
mod ttl_cache;

pub use artifact_index::{ArtifactIndex, IndexPlace, IndexedArtifact};
pub(crate) use breaker::Breaker;
pub use breaker::{BreakerConfig, Permission, ProbeToken};
pub(crate) use budget::BudgetCounter;
pub use budget::{Amount, Budget, BudgetKind, BudgetLevel, Exhausted, Reservation, usd};
pub use call_class::CallClass;
pub use fair_queue::Taken;
pub(crate) use fair_queue::{FairQueue, WaiterId};
pub(crate) use pacing::Pacing;
pub(crate) use prices::names_model;
pub use prices::{Price, Prices};
pub use pricing::Pricing;
pub use restart::Restart;
pub(crate) use restart::RestartHistory;
pub use settings::{ConfigValue, Dict, InvalidSettings, ObservabilityConfig, TraceSampling};
pub use share::HostShare;
pub(crate) use shared_failures::SharedFailures;
pub(crate) use token_bucket::TokenBucket;
pub use tool_retry::ToolRetryPolicy;
pub(crate) use ttl_cache::{TtlCache, TtlCacheConfig};
