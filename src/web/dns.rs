//! Names become addresses here, once, and every address is judged before any is dialed: what was checked is what is dialed, so a
//! name that changes its answer gains nothing (DNS rebinding).

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

/// Addresses of one name that are looked at; a name with more is refused.
const ADDRESSES_MAX: usize = 256;

/// Asks for the addresses of a name.
pub trait Resolver: Send + Sync + 'static {
    /// All addresses of `host`, in the order in which they should be tried.
    ///
    /// # Errors
    /// Whatever the system says; shown to nobody.
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>>;
}

/// Asks the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, 0)).await?.map(|address| address.ip()).collect()) })
    }
}

/// A name has no address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the host's name could not be resolved")]
pub(super) struct NoAddress;

/// A resolver for reqwest that hands out public addresses only. One private address among several refuses them all.
///
/// It never sees addresses that stand in a URL: whoever builds a client with it judges URLs by [`UrlPolicy::check_url`] first,
/// redirects by [`guard_redirects`], and takes no proxy from the environment. [`guarded`] does all but the first.
#[derive(Clone)]
pub struct GuardedDns {
    policy: Arc<UrlPolicy>,
    resolver: Arc<dyn Resolver>,
}

impl fmt::Debug for GuardedDns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedDns").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl GuardedDns {
    /// Asks `resolver` and judges its answers by `policy`.
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
            addresses.iter().try_for_each(|ip| policy.check_resolved(host, *ip))?;
            // Port 0: reqwest puts in that of the URL.
            Ok(Box::new(addresses.into_iter().map(|ip| SocketAddr::new(ip, 0))) as Addrs)
        })
    }
}

/// A redirect policy for reqwest: at most [`REDIRECTS_MAX`], each judged anew, never from `https` to `http`.
pub fn guard_redirects(policy: Arc<UrlPolicy>) -> Policy {
    Policy::custom(move |attempt| {
        // The first of these is where it began.
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

/// A reqwest client that dials public addresses only: guarded names and redirects, no proxy, no connection kept for another
/// request, no retry, no Referer. URLs that somebody else wrote must pass [`UrlPolicy::check_url`] before they are given to it.
pub fn guarded(policy: Arc<UrlPolicy>, resolver: Arc<dyn Resolver>) -> ClientBuilder {
    ClientBuilder::new()
        .dns_resolver(GuardedDns::new(policy.clone(), resolver))
        .redirect(guard_redirects(policy))
        .no_proxy()
        .referer(false)
        .retry(reqwest::retry::never())
        .pool_max_idle_per_host(0)
        .tcp_nodelay(true)
}
