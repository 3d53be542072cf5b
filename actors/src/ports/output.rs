//! How much of a result a model reads, and for how long one may be used again: words that tools, requests and results share.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Whether and for how long a result may answer a later call with the same arguments (REQUIREMENTS T-16). Only `pure` calls are
/// ever answered so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CachePolicy {
    /// Never.
    #[default]
    NoCache,
    /// As long as the cache keeps things by default: one hour.
    Cacheable,
    /// 5 minutes.
    TtlShort,
    /// 1 hour.
    TtlMedium,
    /// 24 hours.
    TtlLong,
}

/// How long the cache keeps results whose policy names no time (REQUIREMENTS T-16, T-19).
pub const CACHE_TTL: Duration = Duration::from_secs(3600);

impl CachePolicy {
    /// How long a result is kept; `None`: not at all.
    pub fn ttl(self) -> Option<Duration> {
        match self {
            Self::NoCache => None,
            Self::Cacheable => Some(CACHE_TTL),
            Self::TtlShort => Some(Duration::from_secs(5 * 60)),
            Self::TtlMedium => Some(Duration::from_secs(60 * 60)),
            Self::TtlLong => Some(Duration::from_secs(24 * 60 * 60)),
        }
    }
}

/// What a call is allowed (REQUIREMENTS T-08).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PermissionLevel {
    /// What the session's approval mode says.
    #[default]
    Default,
    /// Only tools that never ask.
    Restricted,
    /// Every tool, without asking.
    Admin,
}

/// What of the outside a tool touches; says which part of the sandbox policy holds for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// Nothing that we know of: it is the embedding application's own code.
    #[default]
    Host,
    /// Nothing at all.
    Nothing,
    /// Files below the workspace.
    Files,
    /// Commands in the sandbox.
    Commands,
    /// Public addresses on the network.
    Web,
    /// An MCP server.
    Server,
    /// What Callboard keeps for this conversation: artifacts, memory.
    Store,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_keep_results_as_long_as_the_requirements_say() {
        let seconds = |policy: CachePolicy| policy.ttl().map(|ttl| ttl.as_secs());

        assert_eq!(seconds(CachePolicy::default()), None);
        assert_eq!(seconds(CachePolicy::Cacheable), Some(3600));
        assert_eq!(
            [CachePolicy::TtlShort, CachePolicy::TtlMedium, CachePolicy::TtlLong].map(seconds),
            [Some(300), Some(3600), Some(86_400)]
        );
    }
}
