//! Host names are resolved once, and every address is checked before a connection is made. The
//! checked address is the one connected to, so a name that changes its answer (DNS rebinding) gains
//! nothing.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use callboard_actors::ports::BoxFuture;
use reqwest::{
    ClientBuilder,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect::Policy,
};

use super::policy::{Denied, REDIRECTS_MAX, UrlPolicy};
use crate::tls::late_client_builder;

/// Most addresses of one name; a name with more is refused.
const ADDRESSES_MAX: usize = 256;

/// Resolves host names.
pub trait Resolver: Send + Sync + 'static {
    /// All addresses of `host`, in the order in which they should be tried.
    ///
    /// # Errors
    /// Any I/O error; its text is not shown.
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>>;
}

/// Resolves with the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            Ok(tokio::net::lookup_host((host, 0))
                .await?
                .map(|address| address.ip())
                .collect())
        })
    }
}

/// A name could not be resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the host's name could not be resolved")]
pub(super) struct NoAddress;

/// A resolver for reqwest that returns only permitted addresses. One forbidden address among
/// several refuses the name.
///
/// It does not see addresses that are written in a URL. A program that builds its own client with
/// it must check URLs by [`UrlPolicy::check_url`] first, redirects by [`guard_redirects`], and
/// disable proxies from the environment. [`guarded`] does all but the first.
#[derive(Clone)]
pub struct GuardedDns {
    policy: Arc<UrlPolicy>,
    resolver: Arc<dyn Resolver>,
}

impl fmt::Debug for GuardedDns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedDns")
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

impl GuardedDns {
    /// Resolves with `resolver` and checks the addresses against `policy`.
    pub fn new(policy: Arc<UrlPolicy>, resolver: Arc<dyn Resolver>) -> Self {
        Self { policy, resolver }
    }
}

impl Resolve for GuardedDns {
    fn resolve(&self, name: Name) -> Resolving {
        let Self { policy, resolver } = self.clone();
        Box::pin(async move {
            let host = name.as_str();
            let addresses = resolver.resolve(host).await.map_err(|_| NoAddress)?;
            if addresses.is_empty() || addresses.len() > ADDRESSES_MAX {
                return Err(NoAddress.into());
            }
            addresses
                .iter()
                .try_for_each(|ip| policy.check_resolved(host, *ip))?;
            // Port 0: reqwest substitutes the URL's port.
            Ok(Box::new(addresses.into_iter().map(|ip| SocketAddr::new(ip, 0))) as Addrs)
        })
    }
}

/// A redirect policy for reqwest: at most [`REDIRECTS_MAX`], each checked separately, never from
/// `https` to `http`.
pub fn guard_redirects(policy: Arc<UrlPolicy>) -> Policy {
    Policy::custom(move |attempt| {
        // `previous` starts with the original URL.
        let verdict = match attempt.previous() {
            before if before.len() > REDIRECTS_MAX => Err(Denied::Redirects),
            [.., from] => policy.check_redirect(from, attempt.url()),
            [] => policy.check(attempt.url()),
        };
        match verdict {
            Ok(()) => attempt.follow(),
            Err(denied) => attempt.error(denied),
        }
    })
}

/// A builder for a reqwest client that connects to permitted addresses only: checked names and
/// redirects, no proxy, no connection reuse, no retries, no `Referer`. Untrusted URLs must pass
/// [`UrlPolicy::check_url`] before they are given to it.
pub fn guarded(policy: Arc<UrlPolicy>, resolver: Arc<dyn Resolver>) -> ClientBuilder {
    late_client_builder()
        .dns_resolver(GuardedDns::new(policy.clone(), resolver))
        .redirect(guard_redirects(policy))
        .no_proxy()
        .referer(false)
        .retry(reqwest::retry::never())
        .pool_max_idle_per_host(0)
        .tcp_nodelay(true)
}
