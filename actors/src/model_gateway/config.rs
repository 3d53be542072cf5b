//! How a gateway goes about it, and who asks it.

use std::sync::Arc;

use crate::{
    ids::TenantId,
    model_gateway::ModelRetryPolicy,
    policy::{BreakerConfig, CallClass},
};

/// How a gateway goes about it. May be changed while calls wait ([`crate::Host::add_gateway`]).
#[derive(Debug, Clone, PartialEq)]
pub struct GatewayConfig {
    /// Calls that run at once.
    pub calls_max: usize,
    /// Callers that wait at most.
    pub waiting_max: usize,
    /// Attempts that begin in a minute; `None` is no bound but what the provider tells.
    pub requests_per_minute: Option<u32>,
    /// Tokens, input and output, of the calls of a minute; `None` is no bound but what the provider tells.
    pub tokens_per_minute: Option<u64>,
    /// When a failed call is tried again.
    pub retry: ModelRetryPolicy,
    /// When a failing provider is left alone. One breaker a credential: what it counts (no connection, no answer, 5xx) is the trouble of an
    /// endpoint, not of a model, and the number of models is not ours to bound.
    pub breaker: BreakerConfig,
    /// Who takes the calls that this gateway gave up.
    pub fallback: Option<Fallback>,
}

/// Another gateway, and the model to ask there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fallback {
    /// The gateway's name; it was added before.
    pub gateway: String,
    /// The model's name as that provider knows it.
    pub model: Arc<str>,
}

/// Who makes a call.
#[derive(Debug, Clone, Copy)]
pub struct CallBy<'a> {
    /// The tenant.
    pub tenant: &'a TenantId,
    /// Its share beside others ([`crate::tenant::Quotas::weight`]); 0 counts as 1.
    pub weight: u32,
    /// How urgent it is.
    pub class: CallClass,
}
