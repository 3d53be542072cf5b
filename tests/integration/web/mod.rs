//! Access to the web: what may and may not be reached, and the tools that use it. A canary listens
//! where no connection is allowed and counts those made.

mod guard;
mod bounds;
mod tools;
mod urls;

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use callboard::{
    ports::BoxFuture,
    web::{Resolver, UrlPolicy, WebBody, WebClient, WebError, WebRequest},
};
use parking_lot::Mutex;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// Listens where no connection is allowed, on IPv4 and, if available, on IPv6.
struct Canary {
    port: u16,
    accepted: Arc<AtomicUsize>,
    tasks: JoinSet<()>,
}

impl Canary {
    async fn at(address: &str) -> Self {
        let mut canary = Self {
            port: 0,
            accepted: Arc::default(),
            tasks: JoinSet::new(),
        };
        canary.listen(TcpListener::bind(address).await.unwrap());
        if let Ok(listener) = TcpListener::bind(("::1", canary.port)).await {
            canary.listen(listener);
        }
        canary
    }

    fn listen(&mut self, listener: TcpListener) {
        self.port = listener.local_addr().unwrap().port();
        let accepted = self.accepted.clone();
        self.tasks.spawn(async move {
            while listener.accept().await.is_ok() {
                accepted.fetch_add(1, Ordering::SeqCst);
            }
        });
    }

    /// Number of connections. Waits for one more connection, made by the test, so that all earlier
    /// ones are counted.
    async fn accepted(&self, address: &str) -> usize {
        let before = self.accepted.load(Ordering::SeqCst);
        let own = tokio::net::TcpStream::connect((address, self.port))
            .await
            .unwrap();
        while self.accepted.load(Ordering::SeqCst) == before {
            tokio::task::yield_now().await;
        }
        drop(own);
        self.accepted.load(Ordering::SeqCst) - 1
    }
}

/// A resolver with scripted answers: each name's in order, the last one repeated.
#[derive(Clone, Default)]
struct Names {
    answers: Arc<Mutex<HashMap<String, Vec<Vec<IpAddr>>>>>,
    asked: Arc<AtomicUsize>,
}

impl Names {
    fn with(self, name: &str, answers: &[&[&str]]) -> Self {
        let answers = answers
            .iter()
            .map(|answer| answer.iter().map(|ip| ip.parse().unwrap()).collect())
            .collect();
        self.answers.lock().insert(name.to_owned(), answers);
        self
    }
}

impl Resolver for Names {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mut answers = self.answers.lock();
        let answer = match answers.get_mut(host) {
            Some(answers) if answers.len() > 1 => Ok(answers.remove(0)),
            Some(answers) => Ok(answers[0].clone()),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        Box::pin(async move { answer })
    }
}

/// The public internet, and the given entries.
fn policy(allowed: &[&str]) -> UrlPolicy {
    allowed.iter().fold(UrlPolicy::public(), |policy, entry| {
        policy.allow(entry).unwrap()
    })
}

fn client(allowed: &[&str], names: Names) -> WebClient {
    WebClient::builder()
        .policy(policy(allowed))
        .resolver(names)
        .build()
        .unwrap()
}

async fn get(client: &WebClient, url: &str) -> Result<WebBody, WebError> {
    let cancel = CancellationToken::new();
    client
        .open(WebRequest::get(url), &cancel)
        .await?
        .read(&cancel)
        .await
}

fn port_of(url: &str) -> u16 {
    url.trim_start_matches("http://")
        .parse::<SocketAddr>()
        .unwrap()
        .port()
}
