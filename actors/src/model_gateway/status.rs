//! What a gateway is doing, for operators and for "why is this conversation waiting?".

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::TenantId;

/// A gateway at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GatewayStatus {
    /// Name of the provider.
    pub provider: String,
    /// Calls that could run beside those that do.
    pub free: usize,
    /// Calls that run.
    pub running: usize,
    /// Callers that wait.
    pub waiting: usize,
    /// What they wait for; `None` when nobody waits.
    pub waits_for: Option<ProviderWait>,
    /// Who waits, in order of their names.
    pub tenants: Vec<TenantWaiting>,
    /// Requests that may begin now, where they are bounded.
    pub requests_left: Option<i64>,
    /// Tokens that may be used now, where they are bounded; below zero they are owed.
    pub tokens_left: Option<i64>,
    /// Milliseconds for which the provider asked us to leave it alone.
    pub held_ms: Option<u64>,
    /// Whether calls are refused because the provider failed repeatedly.
    pub breaker_open: bool,
    /// Milliseconds until a probe is due.
    pub breaker_retry_ms: Option<u64>,
    /// Name of the gateway that takes over.
    pub fallback: Option<String>,
}

/// How many calls of a tenant wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TenantWaiting {
    /// Whose.
    pub tenant: TenantId,
    /// How many.
    pub waiting: usize,
    /// How many calls of all tenants are served before its last one, itself included; about.
    pub position: usize,
}

/// What keeps a waiting call from running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProviderWait {
    /// As many calls run as may at once.
    Concurrency,
    /// The provider's requests a minute.
    Requests,
    /// The provider's tokens a minute.
    Tokens,
    /// The provider asked to be left alone (Retry-After, or nothing left until a reset).
    RetryAfter,
}

impl ProviderWait {
    /// In words, to go after "waits for".
    pub fn words(self) -> &'static str {
        match self {
            Self::Concurrency => "one of the calls that run at the provider",
            Self::Requests => "the provider's requests/min",
            Self::Tokens => "the provider's tokens/min",
            Self::RetryAfter => "the time after which the provider wants to be asked again",
        }
    }
}

/// What a caller may show while its call has not begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiting {
    /// It waits for a permit; told again when it moved.
    Queued {
        /// Calls of all tenants that are served before it, and itself; about.
        position: usize,
        /// What it waits for.
        waits_for: ProviderWait,
        /// How long that may take, as far as calls went through lately.
        delay: Option<Duration>,
    },
    /// An attempt failed; another follows (P-04).
    Retry {
        /// Which, from 1.
        attempt: u32,
        /// After this pause.
        delay: Duration,
        /// The code of the failure.
        reason: &'static str,
    },
    /// The call is given up here and goes to another provider. Its cache does not know the prefix.
    Fallback {
        /// The code of the failure.
        reason: &'static str,
        /// The model that is asked there.
        model: std::sync::Arc<str>,
    },
}
