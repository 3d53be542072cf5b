//! The configuration of a gateway, and the identity of its callers.

use std::sync::Arc;

use crate::{
    chat::ModelParameters,
    ids::TenantId,
    model_gateway::ModelRetryPolicy,
    policy::{BreakerConfig, CallClass},
};

/// Configuration of a gateway. It can change while calls wait ([`crate::Host::add_gateway`]).
#[derive(Debug, Clone, PartialEq)]
pub struct GatewayConfig {
    /// Calls that run at the same time.
    pub calls_max: usize,
    /// Whether `calls_max` is a limit of the provider, which all hosts keep together
    /// ([`crate::Host::share_limits`]), and not of this host. The limits per minute always are.
    pub calls_are_shared: bool,
    /// Calls that wait for a permit; further calls are refused.
    pub waiting_max: usize,
    /// Attempts that start per minute. `None`: only the limits that the provider reports apply.
    pub requests_per_minute: Option<u32>,
    /// Input and output tokens per minute. `None`: only the limits that the provider reports apply.
    pub tokens_per_minute: Option<u64>,
    /// Retries of failed calls.
    pub retry: ModelRetryPolicy,
    /// When the circuit breaker opens. A credential has one breaker: what the breaker counts
    /// (failed connections, timeouts, 5xx) is a fault of the endpoint and not of a model, and the
    /// number of models is unbounded. Failures of one tenant do not count while the provider
    /// answers others.
    pub breaker: BreakerConfig,
    /// The gateway that takes over failed calls. `None`: calls fail here.
    pub fallback: Option<Fallback>,
    /// How the provider's models are asked to answer, unless the host, the tenant or the prompt
    /// says otherwise.
    pub parameters: ModelParameters,
}

/// The gateway and the model that take over failed calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fallback {
    /// Name of the gateway, which was added before this one.
    pub gateway: String,
    /// Name of the model in that provider's API.
    pub model: Arc<str>,
}

/// The caller of a model call.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the field names say it")]
pub(crate) struct CallBy<'a> {
    pub tenant: &'a TenantId,
    /// Share beside other tenants ([`crate::tenant::Quotas::weight`]); 0 counts as 1.
    pub weight: u32,
    /// Priority of the call.
    pub class: CallClass,
}
