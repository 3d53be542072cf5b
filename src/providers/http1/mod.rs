//! A small HTTP/1.1 client for servers that are reached over plain `http://` without a proxy: a
//! model on this machine or network, or a gateway beside this process. It does only what the
//! adapters need, a POST and its answer. TLS, HTTP/2 and proxies are reqwest's.
//!
//! # Layout
//! `head` and `framing` parse an answer, pure · `connection` drives one exchange · `pool` keeps
//! connections between calls.
//!
//! **Invariant:** a request is sent once, with one exception. A server may close an idle connection
//! at any time; if a request meets that (no byte of an answer arrived), it is sent once more on a
//! new connection. No redirect is followed. A connection is reused only if its last answer was read
//! to its end.

mod head;
mod framing;
mod connection;
mod pool;

use std::{
    collections::VecDeque,
    future::poll_fn,
    io::{self, Write},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use callboard_actors::ports::ProviderError;
use http::Uri;
use hyper_util::client::{legacy::connect::HttpConnector, proxy::matcher::Matcher};
use reqwest::{
    Url,
    header::{HeaderMap, HeaderValue},
};
use tokio::time::timeout;
use tower_service::Service;

use self::{
    connection::{Broken, Connection},
    head::Head,
    pool::Pool,
};
use super::{body::Body, errors::with_sources};

/// Interval of TCP keep-alive probes, which detect a dead peer.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 3;
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);

/// A client for one server.
#[derive(Clone)]
pub(super) struct Http1Client {
    server: Uri,
    /// Header lines of every request. They hold the key: never print them.
    lines: Arc<[u8]>,
    connector: HttpConnector,
    connect: Duration,
    pool: Arc<Pool>,
}

impl Http1Client {
    /// Creates a client, or returns `None` if the server needs more than plain HTTP: TLS, a proxy
    /// of the environment, a password in the URL.
    pub(super) fn new(
        base: &Url,
        is_loopback: bool,
        headers: &HeaderMap,
        connect: Duration,
    ) -> Option<Self> {
        let server: Uri = base.as_str().parse().ok()?;
        let needs_more =
            base.scheme() != "http" || !base.username().is_empty() || base.password().is_some();
        if needs_more || !is_loopback && Matcher::from_system().intercept(&server).is_some() {
            return None;
        }
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(connect));
        connector.set_keepalive(Some(KEEPALIVE));
        connector.set_keepalive_interval(Some(KEEPALIVE));
        connector.set_keepalive_retries(Some(KEEPALIVE_PROBES));
        #[cfg(target_os = "linux")]
        connector.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX));
        Some(Self {
            lines: lines(base, headers)?.into(),
            server,
            connector,
            connect,
            pool: Arc::default(),
        })
    }

    /// Posts a body and returns once the head of the answer has arrived.
    pub(super) async fn post(
        &self,
        url: &Url,
        accept: &str,
        body: Body,
    ) -> Result<Answer, ProviderError> {
        let request = self
            .request(url, accept, body)
            .map_err(|error| failure(error.into()))?;
        if let Some(mut rested) = self.pool.take() {
            rested.begin(request.clone());
            match poll_fn(|cx| rested.poll_head(cx)).await {
                Ok(head) => return Ok(self.answer(rested, head)),
                // The server closed the idle connection before it read the request, and no byte of an
                // answer arrived: sending again cannot run the call twice.
                Err(error) if error.is_let_go() && !rested.has_received() => {}
                Err(error) => return Err(failure(error)),
            }
        }
        let mut connection = self.open().await?;
        connection.begin(request);
        let head = poll_fn(|cx| connection.poll_head(cx))
            .await
            .map_err(failure)?;
        Ok(self.answer(connection, head))
    }

    fn answer(&self, connection: Connection, head: Head) -> Answer {
        Answer {
            status: head.status,
            headers: head.headers,
            connection,
            pool: self.pool.clone(),
        }
    }

    async fn open(&self) -> Result<Connection, ProviderError> {
        let opened = self.connector.clone().call(self.server.clone());
        match timeout(self.connect, opened).await {
            Ok(Ok(socket)) => Ok(Connection::new(socket.into_inner())),
            Ok(Err(error)) => {
                let cause = std::error::Error::source(&error)
                    .and_then(|cause| cause.downcast_ref::<io::Error>());
                if cause.is_some_and(|cause| cause.kind() == io::ErrorKind::TimedOut) {
                    return Err(self.no_connection());
                }
                Err(ProviderError::Connection {
                    message: with_sources(&error),
                })
            }
            Err(_) => Err(self.no_connection()),
        }
    }

    fn no_connection(&self) -> ProviderError {
        ProviderError::Timeout {
            message: format!("no connection within {:?}", self.connect),
        }
    }

    fn request(&self, url: &Url, accept: &str, body: Body) -> io::Result<VecDeque<Bytes>> {
        let mut head = Vec::with_capacity(self.lines.len() + url.path().len() + 128);
        write!(head, "POST {} HTTP/1.1\r\n", url.path())?;
        head.write_all(&self.lines)?;
        write!(
            head,
            "accept: {accept}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )?;
        let slices = body.into_slices();
        let mut request = VecDeque::with_capacity(slices.len() + 1);
        request.push_back(head.into());
        request.extend(slices);
        Ok(request)
    }
}

/// The header lines that are the same in every request.
fn lines(base: &Url, headers: &HeaderMap) -> Option<Vec<u8>> {
    let host = match base.port() {
        Some(port) => format!("{}:{port}", base.host_str()?),
        None => base.host_str()?.to_owned(),
    };
    let host = HeaderValue::from_str(&host).ok()?;
    let mut lines = Vec::new();
    let all = [("host", &host)]
        .into_iter()
        .chain(headers.iter().map(|(name, value)| (name.as_str(), value)));
    for (name, value) in all {
        lines.extend_from_slice(name.as_bytes());
        lines.extend_from_slice(b": ");
        lines.extend_from_slice(value.as_bytes());
        lines.extend_from_slice(b"\r\n");
    }
    Some(lines)
}

/// An answer whose body is being read. Dropping it closes the connection.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    connection: Connection,
    pool: Arc<Pool>,
}

impl Answer {
    /// Reads once and returns the bytes of the body that arrived; `None` at its end.
    pub(super) fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<&[u8]>, ProviderError>> {
        Poll::Ready(ready!(self.connection.poll_body(cx)).map_err(failure))
    }

    /// Discards the rest of the body. The connection serves another call once the rest has arrived.
    pub(super) fn release(self) {
        self.pool.keep(self.connection);
    }
}

fn failure(error: Broken) -> ProviderError {
    let message = with_sources(&error);
    match error {
        Broken::Io(error) if error.kind() == io::ErrorKind::TimedOut => {
            ProviderError::Timeout { message }
        }
        Broken::Io(_) | Broken::NoAnswer | Broken::LongHead | Broken::Head(_) | Broken::Body(_) => {
            ProviderError::Connection { message }
        }
    }
}

#[cfg(test)]
mod tests;
