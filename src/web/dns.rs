//! Host names are resolved once, and every address is checked before a connection is made. The
//! checked address is the one connected to, so a name that changes its answer (DNS rebinding) gains
//! nothing.
//!
//! The operating system resolves a name on a blocking thread, and nothing cancels that. The threads
//! are those of all files and large bodies too, so few look-ups run at a time, each tenant's in its
//! turn.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    sync::{Arc, LazyLock},
};

use callboard_actors::{ids::TenantId, ports::BoxFuture};
use reqwest::{
    ClientBuilder,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect::Policy,
};

use super::policy::{Denied, REDIRECTS_MAX, UrlPolicy};
use crate::{
    fair::{FairPlaces, Owner, Waiting},
    tls::late_client_builder,
};

/// Most addresses of one name; a name with more is refused.
const ADDRESSES_MAX: usize = 256;

/// Look-ups of the operating system at a time, of all tenants together.
const LOOK_UPS_MAX: usize = 32;

static LOOK_UPS: LazyLock<Arc<FairPlaces>> = LazyLock::new(|| {
    let waiting = Waiting {
        all: 16 * 1024,
        tenant: 4 * 1024,
    };
    FairPlaces::new(LOOK_UPS_MAX, waiting)
});

tokio::task_local! {
    /// For whom names are resolved.
    static TENANT: TenantId;
}

/// Runs `work`; the names that it resolves count as this tenant's.
pub(crate) async fn for_tenant<T>(tenant: TenantId, work: impl Future<Output = T>) -> T {
    TENANT.scope(tenant, work).await
}

/// For whom the running task resolves names.
pub(crate) fn owner() -> Owner {
    TENANT.try_with(TenantId::clone).ok()
}

/// Asks on a blocking thread, once there is a place. A question whose caller is gone holds its place
/// until it is answered.
async fn look_up<T: Send + 'static>(
    places: &Arc<FairPlaces>,
    owner: Owner,
    ask: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let place = places.acquire(owner).await;
    let place = place.map_err(|_| io::Error::from(io::ErrorKind::ResourceBusy))?;
    let asking = tokio::task::spawn_blocking(move || {
        let _held = place;
        ask()
    });
    asking.await.unwrap_or_else(|error| Err(error.into()))
}

/// Resolves host names.
pub trait Resolver: Send + Sync + 'static {
    /// All addresses of `host`, in the order in which they should be tried.
    ///
    /// # Errors
    /// Any I/O error; its text is not shown.
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>>;
}

/// Resolves with the operating system: at most 32 names at a time, of the tenants in turn.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            let host = host.to_owned();
            let ask = move || {
                let addresses = (host.as_str(), 0).to_socket_addrs()?;
                Ok(addresses.map(|address| address.ip()).collect())
            };
            look_up(&LOOK_UPS, owner(), ask).await
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures_util::poll;

    use super::*;

    #[tokio::test]
    async fn names_of_one_tenant_that_get_no_answer_keep_no_other_tenants_name_waiting() {
        let waiting = Waiting {
            all: 64,
            tenant: 64,
        };
        let places = FairPlaces::new(4, waiting);
        let slow = || Some("slow".parse().unwrap());
        let (begun, begins) = mpsc::channel();
        let (answer, answers) = mpsc::channel::<()>();
        let answers = Arc::new(parking_lot::Mutex::new(answers));
        let mut hanging = Vec::new();
        for _ in 0..8 {
            let (begun, answers) = (begun.clone(), answers.clone());
            let mut asking = Box::pin(look_up(&places, slow(), move || {
                begun.send(()).unwrap();
                let _ = answers.lock().recv();
                Ok(())
            }));
            assert!(poll!(&mut asking).is_pending());
            hanging.push(asking);
        }
        // Their callers leave; the system goes on.
        drop(hanging);
        drop(begun);

        let other = Some("other".parse().unwrap());
        assert_eq!(look_up(&places, other, || Ok(7)).await.unwrap(), 7);
        assert_eq!(places.free(), 2, "two are held until they are answered");
        drop(answer);
        assert!(look_up(&places, slow(), || Ok(())).await.is_ok());
        let ran = tokio::task::spawn_blocking(move || begins.iter().count());
        assert_eq!(ran.await.unwrap(), 2);
    }
}
