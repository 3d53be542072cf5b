//! Posts requests to one server over `http://` or `https://`. The server chooses HTTP/2 or HTTP/1.1
//! while TLS begins; without TLS it is HTTP/1.1.
//!
//! # Layout
//! `plan` decides how many connections to open, pure · `pool` keeps connections and lends them to
//! calls · `dial` opens one: TCP, proxy, TLS · `http1` and `http2` are the protocols · `socket` is
//! what they run on.
//!
//! **Invariant:** a request is sent once, with two exceptions in which the server certainly did not
//! begin with it. An idle HTTP/1.1 connection may be closed by the server at any time; if a request
//! meets that at once (no byte of an answer arrived), it is sent once more on a new connection. An HTTP/2
//! connection may refuse a new stream before anything was sent; another connection is taken then.
//! No redirect is followed.

mod plan;
mod socket;
mod dial;
mod http1;
mod http2;
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
use http::{HeaderMap, HeaderName, HeaderValue, Request, header, uri::PathAndQuery};
use reqwest::Url;
use rustls::ClientConfig;
use tokio::time::Instant;

#[cfg(any(test, feature = "fuzzing"))]
pub(super) use self::http1::fuzz;
use self::{
    dial::Dialer,
    http1::HEADERS_MAX,
    http2::AnswerBody,
    pool::{Http1Lease, Http2Lease, Lease, Pool},
};
use super::{body::Body, config::ProviderConfigError, errors::with_sources};

/// How long after a request was sent on an idle connection the server may close it without an
/// answer, for the request to be sent again. Later it may have begun with the call.
const CLOSED_IDLE_MAX: Duration = Duration::from_secs(1);

/// Connections on which a call is tried that close before it is sent.
const CONNECTIONS_TRIED_MAX: usize = 3;

/// Certificates and bounds of a client.
#[derive(Debug, Clone)]
pub(super) struct TransportConfig {
    /// Certificates and protocols.
    pub(super) tls: Arc<ClientConfig>,
    /// Longest time to open a connection.
    pub(super) connect: Duration,
    /// Connections that may be open at the same time.
    pub(super) connections_max: usize,
}

/// A client of one server and credential.
#[derive(Clone)]
pub(super) struct Transport {
    /// Header lines of every HTTP/1.1 request. They hold the key: never print them.
    lines: Arc<[u8]>,
    /// The same for HTTP/2.
    headers: Arc<HeaderMap>,
    pool: Arc<Pool>,
}

impl Transport {
    /// Creates a client that adds `headers` to every request.
    pub(super) fn new(
        base: &Url,
        is_loopback: bool,
        headers: HeaderMap,
        config: TransportConfig,
    ) -> Result<Self, ProviderConfigError> {
        let dialer = Dialer::new(base, config.tls, is_loopback, config.connect)?;
        Ok(Self {
            lines: lines(&dialer, &headers).into(),
            headers: Arc::new(headers),
            pool: Arc::new(Pool::new(dialer, config.connections_max)),
        })
    }

    /// Calls that the connections carry at the same time, as far as that is known.
    pub(super) fn calls_max(&self) -> usize {
        self.pool.calls_max()
    }

    /// Waits for a connection. Cancel safe.
    pub(super) async fn connect(&self) -> Result<Connected, ProviderError> {
        Ok(Connected {
            transport: self.clone(),
            lease: self.pool.lease().await?,
        })
    }

    fn http1_request(&self, path: &str, accept: &str, body: Body) -> io::Result<VecDeque<Bytes>> {
        let mut head = Vec::with_capacity(self.lines.len() + path.len() + 160);
        let dialer = self.pool.dialer();
        if dialer.is_forwarded() {
            let authority = dialer.server().authority().map_or("", |host| host.as_str());
            write!(head, "POST http://{authority}{path} HTTP/1.1\r\n")?;
        } else {
            write!(head, "POST {path} HTTP/1.1\r\n")?;
        }
        head.write_all(&self.lines)?;
        write!(
            head,
            "accept: {accept}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )?;
        let mut request = body.into_pieces();
        request.push_front(head.into());
        Ok(request)
    }

    fn http2_request(
        &self,
        path: &str,
        accept: &'static str,
        length: u64,
    ) -> Result<Request<()>, http::Error> {
        let mut uri = self.pool.dialer().server().clone().into_parts();
        uri.path_and_query = Some(PathAndQuery::try_from(path)?);
        let mut request = Request::post(http::Uri::from_parts(uri)?).body(())?;
        let headers = request.headers_mut();
        *headers = (*self.headers).clone();
        headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
        headers.insert(header::CONTENT_LENGTH, length.into());
        Ok(request)
    }
}

/// A connection that was lent to one call.
pub(super) struct Connected {
    transport: Transport,
    lease: Lease,
}

impl Connected {
    /// Posts a body and returns once the head of the answer has arrived. Dropping the future closes
    /// the connection, or resets its stream.
    pub(super) async fn post(
        mut self,
        path: &str,
        accept: &'static str,
        body: Body,
    ) -> Result<Answer, ProviderError> {
        for _ in 0..CONNECTIONS_TRIED_MAX {
            match self.lease {
                Lease::Http1(lease) => {
                    return http1(self.transport, lease, path, accept, body).await;
                }
                Lease::Http2(lease) => {
                    match http2(&self.transport, lease, path, accept, body.clone()).await {
                        Ok(answer) => return Ok(answer),
                        Err(Http2Failure::Closed) => {
                            self.lease = self.transport.pool.lease().await?;
                        }
                        Err(Http2Failure::Error(error)) => return Err(error),
                    }
                }
            }
        }
        Err(ProviderError::NotStarted {
            message: "the server closes each connection before a call".to_owned(),
        })
    }
}

async fn http1(
    transport: Transport,
    mut lease: Box<Http1Lease>,
    path: &str,
    accept: &str,
    body: Body,
) -> Result<Answer, ProviderError> {
    let request = transport
        .http1_request(path, accept, body)
        .map_err(|error| http1_error(error.into()))?;
    let again = lease.is_rested.then(|| request.clone());
    lease.connection.begin(request);
    let begun = Instant::now();
    let head = match poll_fn(|cx| lease.connection.poll_head(cx)).await {
        // The server closed the idle connection before it read the request, and no byte of an
        // answer arrived: sending again cannot run the call twice.
        Err(error) if error.is_let_go() && !lease.connection.has_received() => match again {
            Some(request) if begun.elapsed() < CLOSED_IDLE_MAX => {
                drop(lease);
                lease = transport.pool.fresh_http1().await?;
                lease.connection.begin(request);
                poll_fn(|cx| lease.connection.poll_head(cx)).await
            }
            Some(_) | None => Err(error),
        },
        head => head,
    };
    let head = head.map_err(http1_error)?;
    Ok(Answer {
        status: head.status,
        headers: head.headers,
        body: AnswerOf::Http1(lease, transport.pool),
    })
}

enum Http2Failure {
    /// The connection takes no further calls, and this one was not sent.
    Closed,
    Error(ProviderError),
}

async fn http2(
    transport: &Transport,
    mut lease: Http2Lease,
    path: &str,
    accept: &'static str,
    body: Body,
) -> Result<Answer, Http2Failure> {
    let request = transport
        .http2_request(path, accept, body.len())
        .map_err(|error| {
            Http2Failure::Error(ProviderError::Protocol {
                message: with_sources(&error),
            })
        })?;
    if lease.connection.ready().await.is_err() {
        lease.forget();
        return Err(Http2Failure::Closed);
    }
    match lease.connection.call(request, body).await {
        Ok((head, _)) if head.headers.len() > HEADERS_MAX => {
            Err(Http2Failure::Error(ProviderError::Protocol {
                message: format!("the head of an answer has more than {HEADERS_MAX} fields"),
            }))
        }
        Ok((head, body)) => Ok(Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            body: AnswerOf::Http2(Box::new(body), lease),
        }),
        Err(broken) => {
            if broken.is_lost() {
                lease.forget();
            }
            Err(Http2Failure::Error(lease.connection.shared.error(broken)))
        }
    }
}

/// An answer whose body is being read. Dropping it closes the connection, or resets its stream.
pub(super) struct Answer {
    status: u16,
    headers: HeaderMap,
    body: AnswerOf,
}

enum AnswerOf {
    Http1(Box<Http1Lease>, Arc<Pool>),
    Http2(Box<AnswerBody>, Http2Lease),
}

impl Answer {
    pub(super) fn status(&self) -> u16 {
        self.status
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Frees the headers, which are not needed while the body is read.
    pub(super) fn forget_headers(&mut self) {
        self.headers = HeaderMap::new();
    }

    /// Reads once and returns the bytes of the body that arrived; `None` at its end.
    pub(super) fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<&[u8]>, ProviderError>> {
        Poll::Ready(match &mut self.body {
            AnswerOf::Http1(lease, _) => {
                ready!(lease.connection.poll_body(cx)).map_err(http1_error)
            }
            AnswerOf::Http2(body, lease) => {
                ready!(body.poll(cx)).map_err(|broken| lease.connection.shared.error(broken))
            }
        })
    }

    /// How many bytes were read around those of the body, since the last call.
    pub(super) fn take_framing(&mut self) -> usize {
        match &mut self.body {
            AnswerOf::Http1(lease, _) => lease.connection.take_framing(),
            AnswerOf::Http2(..) => 0, // Its frames are counted where they are read.
        }
    }

    /// Reads at most `most` bytes. If the body is longer, the rest is dropped with the connection.
    pub(super) async fn read(mut self, most: usize) -> Result<Vec<u8>, ProviderError> {
        let mut whole = Vec::new();
        loop {
            let ended = poll_fn(|cx| {
                Poll::Ready(Ok::<_, ProviderError>(match ready!(self.poll_body(cx))? {
                    Some(bytes) => {
                        let room = most.saturating_sub(whole.len());
                        whole.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
                        (bytes.len() >= room).then_some(false)
                    }
                    None => Some(true),
                }))
            });
            match ended.await? {
                None => {}
                Some(whole_read) => {
                    if whole_read {
                        self.release();
                    }
                    return Ok(whole);
                }
            }
        }
    }

    /// Discards the rest of the body. The connection serves another call once the rest has arrived.
    pub(super) fn release(self) {
        match self.body {
            AnswerOf::Http1(lease, pool) => pool.keep(*lease),
            AnswerOf::Http2(body, lease) => body.release(lease),
        }
    }
}

/// The header lines that are the same in every HTTP/1.1 request.
fn lines(dialer: &Dialer, headers: &HeaderMap) -> Vec<u8> {
    let host = dialer.server().authority().map_or("", |host| host.as_str());
    let mut lines = Vec::new();
    let mut line = |name: &str, value: &[u8]| {
        lines.extend_from_slice(name.as_bytes());
        lines.extend_from_slice(b": ");
        lines.extend_from_slice(value);
        lines.extend_from_slice(b"\r\n");
    };
    line("host", host.as_bytes());
    if let Some(auth) = dialer.forward_auth() {
        line("proxy-authorization", auth.as_bytes());
    }
    for (name, value) in headers {
        line(HeaderName::as_str(name), value.as_bytes());
    }
    lines
}

fn http1_error(error: http1::Broken) -> ProviderError {
    let message = with_sources(&error);
    match error {
        http1::Broken::Io(error) if error.kind() == io::ErrorKind::TimedOut => {
            ProviderError::Timeout { message }
        }
        http1::Broken::Io(_)
        | http1::Broken::NoAnswer
        | http1::Broken::LongHead
        | http1::Broken::Head(_)
        | http1::Broken::Body(_) => ProviderError::Connection { message },
    }
}

#[cfg(test)]
mod tests;
