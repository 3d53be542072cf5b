//! Types that tools, requests and results share: cache policy, permission level, reach.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Whether and for how long a cached result answers later calls with the same arguments. Applies to
/// `pure` calls only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CachePolicy {
    /// Results are not cached.
    #[default]
    NoCache,
    /// Results are cached for the default time, one hour.
    Cacheable,
    /// Results are cached for 5 minutes.
    TtlShort,
    /// Results are cached for 1 hour.
    TtlMedium,
    /// Results are cached for 24 hours.
    TtlLong,
}

/// How long results of the policy `Cacheable` are cached.
pub(crate) const CACHE_TTL: Duration = Duration::from_secs(3600);

impl CachePolicy {
    /// Returns how long a result is cached; `None` if it is not cached.
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

/// What a caller's tool calls are permitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PermissionLevel {
    /// The session's approval mode decides.
    #[default]
    Default,
    /// Only tools that never need approval.
    Restricted,
    /// Every tool, without approval.
    Admin,
}

/// What a tool reaches outside the kernel. Selects the part of the sandbox policy that applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// Unknown: the tool is code of the embedding application.
    #[default]
    Host,
    /// Nothing outside the call.
    Nothing,
    /// Files in the workspace.
    Files,
    /// Commands in the sandbox.
    Commands,
    /// Public network addresses.
    Web,
    /// An MCP server.
    Server,
    /// Callboard's data of the conversation: artifacts, memory.
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
            [
                CachePolicy::TtlShort,
                CachePolicy::TtlMedium,
                CachePolicy::TtlLong
            ]
            .map(seconds),
            [Some(300), Some(3600), Some(86_400)]
        );
    }
}
