//! The only file that knows the HTTP client. It never retries and never follows a redirect: retries are the gateway's,
//! and a redirect would carry the key to another host.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use bytes::Bytes;
use callboard_actors::ports::{ModelStream, ProviderError};
use reqwest::{
    Client, Method, Request, Response, Url,
    header::{CONTENT_TYPE, HeaderMap, HeaderValue},
};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{
    assembler::{Assemble, protocol},
    body::Body,
    config::{ProviderConfigError, Timeouts},
    errors,
    reply::Reply,
    secret::Secret,
};

/// Bytes of an error body that we read: enough for any reason.
const ERROR_BYTES_MAX: usize = 64 * 1024;

/// Bytes of an answer that is no stream.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// How long we wait for the body of an error: its class is in the status already.
const ERROR_BODY_WAIT: Duration = Duration::from_secs(5);

/// A client for one provider and credential.
#[derive(Clone)]
pub(super) struct Http {
    client: Client,
    headers: HeaderMap,
    secret: Secret,
    timeouts: Timeouts,
}

impl Http {
    /// `headers` go with every request.
    pub(super) fn new(base: &Url, headers: HeaderMap, secret: Secret, timeouts: Timeouts) -> Result<Self, ProviderConfigError> {
        let builder = Client::builder()
            .user_agent(concat!("callboard/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(timeouts.connect)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .tcp_nodelay(true);
        // A proxy of the environment is no way to this machine itself.
        let builder = if is_loopback(base) { builder.no_proxy() } else { builder };
        let client = builder.build().map_err(|error| ProviderConfigError::Client { reason: chain(&error) })?;
        Ok(Self { client, headers, secret, timeouts })
    }

    /// Posts a body and gives the stream of events that `assembler` makes of the answer.
    pub(super) async fn stream(
        &self,
        url: Url,
        body: Body,
        assembler: Box<dyn Assemble>,
        cancel: CancellationToken,
    ) -> Result<ModelStream, ProviderError> {
        let deadline = Instant::now() + self.timeouts.total;
        let head = async {
            let response = self.post(url, body, deadline, "text/event-stream").await?;
            let html = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).is_some_and(|kind| kind.contains("html"));
            if html { Err(html_error()) } else { Ok(response) }
        };
        let response = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(ProviderError::Cancelled),
            response = head => response.map_err(|error| self.secret.mask_error(error))?,
        };
        Ok(Reply::new(response, assembler, cancel.clone(), self.timeouts, deadline, self.secret.clone()).into_stream())
    }

    /// Posts a body and reads the whole answer.
    pub(super) async fn ask(&self, url: Url, body: Body) -> Result<Bytes, ProviderError> {
        let deadline = Instant::now() + self.timeouts.idle.min(self.timeouts.total);
        let answer = async {
            let response = self.post(url, body, deadline, "application/json").await?;
            match timeout_at(deadline, read(response, ANSWER_BYTES_MAX)).await {
                Ok(bytes) => bytes,
                Err(_) => Err(self.idle_error()),
            }
        };
        answer.await.map_err(|error| self.secret.mask_error(error))
    }

    async fn post(&self, url: Url, body: Body, deadline: Instant, accept: &'static str) -> Result<Response, ProviderError> {
        let mut request = Request::new(Method::POST, url);
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        request.headers_mut().insert(reqwest::header::ACCEPT, HeaderValue::from_static(accept));
        *request.body_mut() = Some(reqwest::Body::wrap(body));

        let head_deadline = deadline.min(Instant::now() + self.timeouts.idle);
        let response = match timeout_at(head_deadline, self.client.execute(request)).await {
            Ok(response) => response.map_err(|error| self.failure(error))?,
            Err(_) if head_deadline == deadline => return Err(total_error(self.timeouts)),
            Err(_) => return Err(self.idle_error()),
        };
        if response.status().is_success() {
            return Ok(response);
        }
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = timeout_at(deadline.min(Instant::now() + ERROR_BODY_WAIT), read(response, ERROR_BYTES_MAX)).await;
        // Masked before it is cut to a length: half a key is one too many.
        let body = self.secret.mask(&String::from_utf8_lossy(&body.ok().and_then(Result::ok).unwrap_or_default()));
        Err(errors::of_response(status, &headers, body.as_bytes()))
    }

    fn failure(&self, error: reqwest::Error) -> ProviderError {
        if error.is_connect() && error.is_timeout() {
            return ProviderError::Timeout { message: format!("no connection within {:?}", self.timeouts.connect) };
        }
        broken(error)
    }

    fn idle_error(&self) -> ProviderError {
        idle_error(self.timeouts)
    }
}

pub(super) fn idle_error(timeouts: Timeouts) -> ProviderError {
    ProviderError::Timeout { message: format!("no bytes for {:?}", timeouts.idle) }
}

pub(super) fn total_error(timeouts: Timeouts) -> ProviderError {
    ProviderError::Timeout { message: format!("the call took longer than {:?}", timeouts.total) }
}

pub(super) fn html_error() -> ProviderError {
    protocol("the server answered with an HTML page instead of an event stream; check the base URL")
}

/// A broken connection. The URL is left out: it may hold a password.
pub(super) fn broken(error: reqwest::Error) -> ProviderError {
    let error = error.without_url();
    if error.is_timeout() {
        return ProviderError::Timeout { message: chain(&error) };
    }
    ProviderError::Connection { message: chain(&error) }
}

/// Reads at most `most` bytes; more are cut off with the connection.
async fn read(mut response: Response, most: usize) -> Result<Bytes, ProviderError> {
    let mut whole = Vec::new();
    while let Some(bytes) = response.chunk().await.map_err(broken)? {
        let room = most - whole.len();
        whole.extend_from_slice(bytes.get(..room).unwrap_or(&bytes));
        if bytes.len() >= room {
            break;
        }
    }
    Ok(whole.into())
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    errors::one_line(&text)
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost"
        || host.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback())
        || host.parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_loopback())
}
