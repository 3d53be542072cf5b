//! Errors of requests to web servers. No text contains more of a URL than its host.

use std::time::Duration;

use super::{dns::NoAddress, policy::Denied};

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WebError {
    /// The policy denies the URL, or the target of a redirect. No connection was made to it.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The host name could not be resolved.
    #[error("the host's name could not be resolved")]
    NoSuchHost,
    /// The connection was refused, or TLS failed.
    #[error("no connection to the host")]
    Connect,
    /// A timeout expired.
    #[error("{what} took longer than {limit:?}")]
    Timeout {
        /// The step that took too long.
        what: &'static str,
        /// The step's limit.
        limit: Duration,
    },
    /// The caller cancelled the request.
    #[error("cancelled")]
    Cancelled,
    /// The server closed the connection early or sent invalid HTTP.
    #[error("the server's answer is broken: {0}")]
    Broken(&'static str),
    /// The body has an encoding that was not requested.
    #[error("the server sent a body in an encoding that was not requested; only gzip is supported")]
    Encoding,
    /// The server redirects, but the request carries a body or extra headers, which no other server
    /// may see.
    #[error("the server redirects; a request with a body or a key follows no redirect")]
    Redirected,
    /// The request is invalid.
    #[error("the request is not valid: {0}")]
    Request(&'static str),
}

impl WebError {
    /// Whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connect | Self::Timeout { .. } | Self::Broken(_) => true,
            Self::Denied(_)
            | Self::NoSuchHost
            | Self::Cancelled
            | Self::Encoding
            | Self::Redirected
            | Self::Request(_) => false,
        }
    }

    /// Classifies reqwest's error. Its text is dropped, since it may contain a URL or an address.
    pub(super) fn from_reqwest(error: &reqwest::Error, connect: Duration) -> Self {
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
            _ if error.is_timeout() => Self::Timeout {
                what: "connecting",
                limit: connect,
            },
            _ if error.is_connect() => Self::Connect,
            _ if error.is_body() || error.is_decode() => Self::Broken("the body ended early"),
            _ => Self::Broken("it is not valid HTTP, or its head is too large"),
        }
    }
}
