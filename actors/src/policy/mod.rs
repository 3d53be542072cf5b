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
mod artifact_index;
mod token_bucket;
mod tool_retry;
mod ttl_cache;

pub use artifact_index::{ArtifactIndex, IndexPlace, IndexedArtifact};
pub use breaker::{Breaker, BreakerConfig, Permission, ProbeToken};
pub use budget::{
    Amount, Budget, BudgetCounter, BudgetKind, BudgetLevel, Exhausted, Reservation, usd,
};
pub use call_class::CallClass;
pub use fair_queue::{FairQueue, PASSED_MAX, Taken, WaiterId};
pub use pacing::{Pacing, RAMP_MAX, SHARES_FOR};
pub use prices::{Price, Prices, names_model};
pub use pricing::Pricing;
pub use restart::{Restart, RestartHistory};
pub use settings::{ConfigValue, Dict, InvalidSettings, ObservabilityConfig, TraceSampling};
pub use token_bucket::TokenBucket;
pub use tool_retry::ToolRetryPolicy;
pub use ttl_cache::{TtlCache, TtlCacheConfig};
