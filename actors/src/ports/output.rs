//! How much of a result a model reads, and for how long one may be used again: words that tools, requests and results share.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How much of [`super::ToolOutput::Data`] is shown (REQUIREMENTS O-01). Text is never shortened by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputLevel {
    /// One line.
    Brief,
    /// The first few items or 500 characters.
    #[default]
    Standard,
    /// Everything.
    Full,
}

impl OutputLevel {
    /// The word as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Brief => "brief",
            Self::Standard => "standard",
            Self::Full => "full",
        }
    }

    /// The level of one call, by the four steps of REQUIREMENTS O-09: the call's own, the tool's, BRIEF above 0.8 of the window
    /// (strictly, O-10), the global default.
    pub fn effective(call: Option<Self>, tool: Option<Self>, window_used: f64, global: Self) -> Self {
        let crowded = (window_used > CROWDED).then_some(Self::Brief);
        call.or(tool).or(crowded).unwrap_or(global)
    }
}

/// Share of the context window above which results are brief unless somebody chose otherwise (REQUIREMENTS O-09, O-10).
pub const CROWDED: f64 = 0.8;

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
    fn the_level_follows_the_four_steps_and_point_eight_itself_is_not_crowded() {
        use OutputLevel::{Brief, Full, Standard};
        let of = OutputLevel::effective;

        assert_eq!(of(Some(Full), Some(Brief), 0.9, Standard), Full);
        assert_eq!(of(None, Some(Full), 0.9, Standard), Full);
        assert_eq!(of(None, None, 0.81, Full), Brief);
        assert_eq!(of(None, None, 0.8, Standard), Standard);
        assert_eq!(of(None, None, f64::NAN, Standard), Standard);
        assert_eq!(OutputLevel::default(), Standard);
    }

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
