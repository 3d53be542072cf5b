//! How a provider's server is reached: certificates, protocols, the bound of connections.

use std::sync::Arc;

use rustls::ClientConfig;

use super::{config::ProviderConfigError, errors::with_sources};
use crate::tls::Trust;

/// How the server of a provider is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// Certificates to trust besides those of the system, and the client's own.
    pub trust: Trust,
    /// Whether HTTP/2 is offered to servers with TLS. Without it every concurrent call has a
    /// connection of its own.
    pub http2: bool,
    /// Connections to the server that may be open at the same time. Calls beyond what they carry are queued by the gateway.
    pub connections_max: usize,
}

impl Default for Network {
    fn default() -> Self {
        Self {
            trust: Trust::default(),
            http2: true,
            connections_max: 1000,
        }
    }
}

impl Network {
    pub(super) fn tls(&self) -> Result<Arc<ClientConfig>, ProviderConfigError> {
        let protocols: &[&[u8]] = if self.http2 {
            &[b"h2", b"http/1.1"]
        } else {
            &[b"http/1.1"]
        };
        crate::tls::config(&self.trust, protocols)
            .map(Arc::new)
            .map_err(|error| ProviderConfigError::Client {
                reason: with_sources(&error),
            })
    }
}
