//! The one place that decides which HTTP client reaches a server (FAULTS F6): the caller makes the clients, guarded or not.

use std::{fmt, sync::Arc};

/// What a client is wanted for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpTarget {
    /// Where it goes.
    pub url: url::Url,
    /// Configuration says `allow_private = true`: the server may lie on this machine or in a private network.
    pub allow_private: bool,
}

type Make = dyn Fn(&HttpTarget) -> Result<reqwest::Client, String> + Send + Sync;

/// Makes HTTP clients. A client must check every address that it dials, and follow no redirect without checking it again; the reason of
/// a refusal is shown to people and models.
#[derive(Clone)]
pub struct HttpClients(Arc<Make>);

impl fmt::Debug for HttpClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HttpClients")
    }
}

impl HttpClients {
    /// Clients by `make`.
    pub fn new(make: impl Fn(&HttpTarget) -> Result<reqwest::Client, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(make))
    }

    /// Clients for servers that configuration names with `allow_private = true`, and for no others: it checks no addresses, so it
    /// reaches only what somebody vouched for. Neither redirects nor proxies.
    pub fn vouched_only() -> Self {
        Self::new(|target| {
            if !target.allow_private {
                return Err("there is no guard for public addresses; `allow_private = true` vouches for this one".to_owned());
            }
            let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy();
            let client = client.connect_timeout(std::time::Duration::from_secs(10)).build();
            client.map_err(|_| "no HTTP client can be made".to_owned())
        })
    }

    /// A client for a server.
    ///
    /// # Errors
    /// Why it may not be reached; shown to people and models.
    pub fn client(&self, target: &HttpTarget) -> Result<reqwest::Client, String> {
        (self.0)(target)
    }
}
