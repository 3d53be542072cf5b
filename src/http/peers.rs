//! The other hosts on the same store ([`Peers`]), and the event streams that end when one of them
//! takes a conversation.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    net::IpAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use axum::{
    extract::Request,
    http::{HeaderName, Uri},
    response::Response,
};
use callboard_actors::{
    ids::Scope,
    ports::{BoxFuture, StoreError},
};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::addresses::Addresses;

/// Marks a request that another host sent on. It is sent on once: owners change, and a request must
/// not go in circles.
pub const FORWARDED: HeaderName = HeaderName::from_static("x-callboard-forwarded");

/// How often a host looks whether other hosts took conversations that its clients watch.
const LOOK: Duration = Duration::from_secs(2);

/// How often names of hosts are resolved again that have not changed.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// The other hosts on the same store.
pub trait Peers: Send + Sync {
    /// The address under which the others reach this host.
    fn address(&self) -> &str;

    /// The addresses of the other hosts that are alive. Their connections carry the requests of many
    /// clients, so they are not counted by address.
    fn others(&self) -> Vec<String> {
        Vec::new()
    }

    /// Those of the conversations that another host owns, with its address.
    fn owned_elsewhere(
        &self,
        scopes: Vec<Scope>,
    ) -> BoxFuture<'_, Result<Vec<(Scope, String)>, StoreError>>;

    /// Sends a request on and returns the answer while it arrives.
    ///
    /// # Errors
    /// The host cannot be reached.
    fn forward<'a>(
        &'a self,
        address: &'a str,
        request: Request,
    ) -> BoxFuture<'a, Result<Response, NotForwarded>>;
}

/// A request that another host did not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotForwarded {
    /// Why, as a clause.
    pub reason: String,
    /// Whether the other host may have received it.
    pub was_sent: bool,
}

/// Answers that end when something becomes of what they belong to: the event streams that this host
/// serves, of the conversations that no other host owned; or the requests that it sent on, of the
/// addresses of their hosts.
#[derive(Debug)]
pub(super) struct Watched<K = Scope>(Mutex<HashMap<K, (usize, CancellationToken)>>);

impl<K> Default for Watched<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// One such answer.
pub(super) struct Watching<K: Eq + Hash = Scope> {
    all: Arc<Watched<K>>,
    of: K,
    ended: CancellationToken,
}

impl<K: Clone + Eq + Hash> Watched<K> {
    pub(super) fn enter(self: &Arc<Self>, of: &K) -> Watching<K> {
        let mut all = self.0.lock();
        let (count, ended) = all.entry(of.clone()).or_default();
        *count += 1;
        Watching {
            all: Arc::clone(self),
            of: of.clone(),
            ended: ended.clone(),
        }
    }

    fn all(&self) -> Vec<K> {
        self.0.lock().keys().cloned().collect()
    }

    fn end(&self, of: &K) {
        if let Some((_, ended)) = self.0.lock().remove(of) {
            ended.cancel();
        }
    }
}

impl<K: Eq + Hash> Watching<K> {
    /// Cancelled when the answer is to end.
    pub(super) fn ended(&self) -> &CancellationToken {
        &self.ended
    }
}

impl<K: Eq + Hash> Drop for Watching<K> {
    fn drop(&mut self) {
        if self.ended.is_cancelled() {
            return; // An entry with this name is that of later ones.
        }
        let mut all = self.all.0.lock();
        if let Some((count, _)) = all.get_mut(&self.of) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                all.remove(&self.of);
            }
        }
    }
}

/// Finds the addresses from which the other hosts connect, until the server ends.
pub(super) async fn find_others(peers: Arc<dyn Peers>, addresses: Addresses) {
    let mut known: Option<Vec<String>> = None;
    let mut looked_at = Instant::now();
    loop {
        let mut others = peers.others();
        others.sort_unstable();
        if known.as_ref() != Some(&others) || looked_at.elapsed() >= LOOK_AGAIN {
            let mut found = Vec::new();
            for other in &others {
                found.extend(addresses_of(other).await);
            }
            addresses.set_hosts(found);
            (known, looked_at) = (Some(others), Instant::now());
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The addresses behind the URL of a host. None if its name is not known: its connections are counted
/// like those of a client then.
async fn addresses_of(url: &str) -> Vec<IpAddr> {
    let uri = url.parse::<Uri>().ok();
    let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
    let host = host.trim_matches(['[', ']']);
    let found = timeout(LOOK, tokio::net::lookup_host((host, 0))).await;
    let found = found.ok().and_then(Result::ok).into_iter().flatten();
    found.map(|address| address.ip()).collect()
}

/// Ends the event streams of conversations that another host has taken, until `watched` is dropped.
/// Their clients come back with the id of their last event and are sent on to that host.
pub(super) async fn end_moved(peers: Arc<dyn Peers>, watched: Weak<Watched>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(watched) = watched.upgrade() else {
            return;
        };
        let scopes = watched.all();
        if scopes.is_empty() {
            continue;
        }
        match peers.owned_elsewhere(scopes).await {
            Ok(moved) => moved.iter().for_each(|(scope, _)| watched.end(scope)),
            Err(error) => {
                tracing::debug!(%error, "whether watched conversations moved is not known")
            }
        }
    }
}

/// Ends what was sent on to hosts that are gone, until `sent` is dropped. A host that was stopped keeps
/// its connections, and answers nothing. One that has just started is not among the others yet.
pub(super) async fn end_gone(peers: Arc<dyn Peers>, sent: Weak<Watched<String>>) {
    let mut missed = HashSet::new();
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(sent) = sent.upgrade() else {
            return;
        };
        let others = peers.others();
        let mut missing: HashSet<_> = sent.all().into_iter().collect();
        missing.retain(|address| !others.contains(address));
        missing
            .intersection(&missed)
            .for_each(|address| sent.end(address));
        missed = missing;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_of_a_moved_conversation_ends_and_the_others_go_on() {
        let watched = Arc::new(Watched::default());
        let scope = |id: &str| Scope::new("t".parse().unwrap(), id.parse().unwrap());
        let (moved, too, stays) = (
            watched.enter(&scope("moved")),
            watched.enter(&scope("moved")),
            watched.enter(&scope("stays")),
        );

        watched.end(&scope("moved"));

        assert!(moved.ended.is_cancelled() && too.ended.is_cancelled());
        assert!(!stays.ended.is_cancelled());
        assert_eq!(watched.all(), [scope("stays")]);
        let again = watched.enter(&scope("moved"));
        drop(moved);
        assert!(!again.ended.is_cancelled());
        assert_eq!(watched.all().len(), 2, "the new one is watched too");
        drop((too, again, stays));
        assert!(watched.all().is_empty());
    }

    /// A host that knows these others.
    struct Alone(Mutex<Vec<String>>);

    impl Peers for Arc<Alone> {
        fn address(&self) -> &str {
            "http://here"
        }

        fn others(&self) -> Vec<String> {
            self.0.lock().clone()
        }

        fn owned_elsewhere(
            &self,
            _: Vec<Scope>,
        ) -> BoxFuture<'_, Result<Vec<(Scope, String)>, StoreError>> {
            Box::pin(async { Ok(Vec::new()) })
        }

        fn forward<'a>(
            &'a self,
            _: &'a str,
            _: Request,
        ) -> BoxFuture<'a, Result<Response, NotForwarded>> {
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_sent_on_to_a_host_that_is_gone_ends() {
        let [stays, goes] = ["http://stays", "http://goes"].map(str::to_owned);
        let peers = Arc::new(Alone(Mutex::new(vec![stays.clone(), goes.clone()])));
        let sent = Arc::new(Watched::default());
        let (to_one, to_other) = (sent.enter(&stays), sent.enter(&goes));
        tokio::spawn(end_gone(Arc::new(peers.clone()), Arc::downgrade(&sent)));
        let begun = Instant::now();
        tokio::time::sleep(10 * LOOK).await;
        assert!(!to_other.ended.is_cancelled());

        peers.0.lock().retain(|other| *other == stays);
        to_other.ended.cancelled().await;

        assert!(begun.elapsed() <= 12 * LOOK);
        assert!(!to_one.ended.is_cancelled());
    }
}
