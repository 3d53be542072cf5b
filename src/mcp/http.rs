//! The HTTP clients that reach MCP servers. The embedding program supplies them, because it decides
//! which addresses are allowed (protection against SSRF).

use std::{fmt, sync::Arc};

/// The server that a client is requested for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpTarget {
    /// URL of the MCP endpoint.
    pub url: url::Url,
    /// `allow_private` of the configuration: the server may have a loopback or private address.
    pub allow_private: bool,
}

type Make = dyn Fn(&HttpTarget) -> Result<reqwest::Client, String> + Send + Sync;

/// A factory of HTTP clients. A client must check every address that it connects to, redirects
/// included. The text of a refusal is shown to people and models.
#[derive(Clone)]
pub struct HttpClients(Arc<Make>);

impl fmt::Debug for HttpClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HttpClients")
    }
}

impl HttpClients {
    /// A factory that calls `make` for each server. [`crate::tls::client_builder`] is a start for its
    /// clients.
    pub fn new(
        make: impl Fn(&HttpTarget) -> Result<reqwest::Client, String> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(make))
    }

    /// Clients only for servers with `allow_private = true`. These clients check no addresses,
    /// follow no redirects and use no proxy; servers without the flag are refused.
    pub fn vouched_only() -> Self {
        Self::new(|target| {
            if !target.allow_private {
                return Err("this program has no address filter for MCP servers; set `allow_private = true` to allow this one".to_owned());
            }
            let client = crate::tls::late_client_builder()
                .redirect(reqwest::redirect::Policy::none())
                .no_proxy();
            let client = client
                .connect_timeout(std::time::Duration::from_secs(10))
                .build();
            client.map_err(|_| "the HTTP client could not be created".to_owned())
        })
    }

    /// Creates a client for a server.
    ///
    /// # Errors
    /// Why the server may not be reached; shown to people and models.
    pub fn client(&self, target: &HttpTarget) -> Result<reqwest::Client, String> {
        (self.0)(target)
    }
}
