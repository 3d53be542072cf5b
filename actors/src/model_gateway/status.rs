//! Reports on a gateway, for operators and for a caller that waits.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::TenantId;

/// A gateway at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GatewayStatus {
    /// Name of the provider.
    pub provider: String,
    /// Calls that could start now without exceeding the concurrency limit.
    pub free: usize,
    /// Calls that hold a permit now.
    pub running: usize,
    /// Calls in the queue for a permit.
    pub waiting: usize,
    /// What the first call of the queue waits for. `None` when the queue is empty.
    pub waits_for: Option<ProviderWait>,
    /// Tenants with waiting calls, in order of their ids.
    pub tenants: Vec<TenantWaiting>,
    /// Requests that may start now. `None` without a limit.
    pub requests_left: Option<i64>,
    /// Tokens that may be used now; negative when earlier calls used more than estimated. `None`
    /// without a limit.
    pub tokens_left: Option<i64>,
    /// Milliseconds left of a pause that the provider asked for.
    pub held_ms: Option<u64>,
    /// Whether calls are refused because the provider failed repeatedly.
    pub breaker_open: bool,
    /// Milliseconds until the breaker allows a probe. `None` while it is closed.
    pub breaker_retry_ms: Option<u64>,
    /// Name of the fallback gateway.
    pub fallback: Option<String>,
}

/// The waiting calls of one tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct TenantWaiting {
    pub tenant: TenantId,
    /// Number of its waiting calls.
    pub waiting: usize,
    /// Approximate place of its last call in the queue over all tenants, from 1.
    pub position: usize,
}

/// What keeps a waiting call from running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProviderWait {
    /// The limit of concurrent calls.
    Concurrency,
    /// The number of calls that the connections to the provider carry.
    Connections,
    /// The limit of requests per minute.
    Requests,
    /// The limit of tokens per minute.
    Tokens,
    /// A pause that the provider asked for, by Retry-After or by reporting that nothing is left
    /// until a reset.
    RetryAfter,
}

impl ProviderWait {
    /// Returns the reason as words that follow "waits for".
    pub fn words(self) -> &'static str {
        match self {
            Self::Concurrency => "one of the calls that run at the provider",
            Self::Connections => "a connection to the provider",
            Self::Requests => "the provider's requests/min",
            Self::Tokens => "the provider's tokens/min",
            Self::RetryAfter => "the time after which the provider wants to be asked again",
        }
    }
}

/// The progress of a call that has no content yet, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiting {
    /// The call waits for a permit. Sent again when its place changes.
    Queued {
        /// Approximate place in the queue over all tenants, from 1.
        position: usize,
        /// What the first call of the queue waits for.
        waits_for: ProviderWait,
        /// Estimated wait, from the recent pace of the queue. `None` when unknown.
        delay: Option<Duration>,
    },
    /// An attempt has its permit, and its request goes to the provider, who may bill it from now on.
    Sent,
    /// The provider reported usage of the running attempt; replaces earlier reports. If the attempt
    /// fails, the provider bills it all the same.
    Reported {
        /// The tokens.
        usage: crate::chat::Usage,
    },
    /// The running attempt has written this many bytes of a call's arguments, and nothing else yet.
    Arguments {
        /// All bytes so far.
        bytes: usize,
    },
    /// An attempt failed; another one follows.
    Retry {
        /// Number of the retry, from 1.
        attempt: u32,
        /// Delay before the retry.
        delay: Duration,
        /// Code of the failure.
        reason: &'static str,
    },
    /// The call failed here and goes to the fallback, whose prefix cache is cold.
    Fallback {
        /// Code of the failure.
        reason: &'static str,
        /// Model of the fallback.
        model: std::sync::Arc<str>,
    },
}
