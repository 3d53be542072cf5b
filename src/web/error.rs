//! What may go wrong between us and a public server. No text holds more of a URL than its host.

use std::time::Duration;

use super::{dns::NoAddress, policy::Denied};

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WebError {
    /// The policy says no; nothing was dialed, or nothing more after a redirect.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The name has no address.
    #[error("the host's name could not be resolved")]
    NoSuchHost,
    /// Nobody answers there, or TLS failed.
    #[error("no connection to the host")]
    Connect,
    /// Too slow.
    #[error("{what} took longer than {limit:?}")]
    Timeout {
        /// What took too long.
        what: &'static str,
        /// How long it might have.
        limit: Duration,
    },
    /// The caller wants it no more.
    #[error("cancelled")]
    Cancelled,
    /// The server breaks off or does not speak HTTP as we understand it.
    #[error("the server's answer is broken: {0}")]
    Broken(&'static str),
    /// The body is compressed in a way that was not asked for.
    #[error("the server sent a body in an encoding that was not asked for; only gzip is read")]
    Encoding,
    /// A redirect that may not be followed: the request carries a body or headers of its own.
    #[error("the server redirects; a request with a body or a key follows no redirect")]
    Redirected,
    /// The request itself cannot be written.
    #[error("the request is not valid: {0}")]
    Request(&'static str),
}

impl WebError {
    /// Whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connect | Self::Timeout { .. } | Self::Broken(_) => true,
            Self::Denied(_) | Self::NoSuchHost | Self::Cancelled | Self::Encoding | Self::Redirected | Self::Request(_) => false,
        }
    }

    /// The class of reqwest's error; its text is dropped, for it may hold a URL or an address.
    pub(super) fn of(error: &reqwest::Error, connect: Duration) -> Self {
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(cause) = source {
            if let Some(denied) = cause.downcast_ref::<Denied>() {
                return Self::Denied(denied.clone());
            }
            if cause.is::<NoAddress>() {
                return Self::NoSuchHost;
            }
            source = cause.source();
        }
        match error {
            _ if error.is_timeout() => Self::Timeout { what: "connecting", limit: connect },
            _ if error.is_connect() => Self::Connect,
            _ if error.is_body() || error.is_decode() => Self::Broken("the body ended early"),
            _ => Self::Broken("it is no HTTP, or its head is too large"),
        }
    }
}
