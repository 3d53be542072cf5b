//! Sends requests and maps refusals to errors. It never retries, because retries belong to the
//! gateway, and never follows a redirect, which would carry the key to another host.

use std::{
    borrow::Cow,
    future::{Future, poll_fn},
    net::{Ipv4Addr, Ipv6Addr},
    pin::pin,
    task::Poll,
    time::Duration,
};

use callboard_actors::ports::{ModelStream, ProviderError};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use reqwest::Url;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{
    assembler::Assemble,
    body::Body,
    config::{ProviderConfigError, Timeouts},
    errors::{self, first_byte_error, html_error},
    gunzip::Gunzip,
    network::Network,
    pace::SharedIntake,
    reply::Reply,
    secret::Secret,
    timer::{CallTimer, Phase},
    transport::{Answer, Transport, TransportConfig},
};

/// Bytes of an error body that are read: enough for any reason.
const ERROR_BYTES_MAX: usize = 64 * 1024;

/// Bytes of an answer that is not a stream.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// Longest wait for the body of an error. The status alone already decides its class.
const ERROR_BODY_WAIT: Duration = Duration::from_secs(5);

/// A client for one provider and credential.
#[derive(Clone)]
pub(super) struct Http {
    transport: Transport,
    secret: Secret,
    timeouts: Timeouts,
    /// What its answers share.
    shared: SharedIntake,
}

impl Http {
    /// Creates a client that adds `headers` to every request.
    pub(super) fn new(
        base: &Url,
        mut headers: HeaderMap,
        secret: Secret,
        timeouts: Timeouts,
        network: &Network,
    ) -> Result<Self, ProviderConfigError> {
        headers.insert(
            USER_AGENT,
            HeaderValue::from_static(concat!("callboard/", env!("CARGO_PKG_VERSION"))),
        );
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let config = TransportConfig {
            tls: network.tls()?,
            connect: timeouts.connect,
            connections_max: network.connections_max,
        };
        let transport = Transport::new(base, is_loopback(base), headers, config)?;
        Ok(Self {
            transport,
            secret,
            timeouts,
            shared: SharedIntake::new(),
        })
    }

    /// Calls that the connections carry at the same time.
    pub(super) fn calls_max(&self) -> usize {
        self.transport.calls_max()
    }

    /// Posts a body and returns the events that `assembler` decodes from the answer.
    pub(super) async fn stream(
        &self,
        url: &Url,
        body: Body,
        assembler: Box<dyn Assemble>,
        cancel: CancellationToken,
    ) -> Result<ModelStream, ProviderError> {
        let mut timer = CallTimer::new(cancel.clone(), self.timeouts);
        let connected = guarded(&mut timer, Phase::Connecting, self.transport.connect());
        let connected = connected
            .await
            .map_err(|error| self.secret.mask_error(error))?;
        timer.reset_idle();
        let target = target(url);
        let head = connected.post(&target, "text/event-stream", body);
        let answer = guarded(&mut timer, Phase::Answer, head)
            .await
            .map_err(|error| self.secret.mask_error(error))?;
        timer.reset_idle();
        if !is_success(answer.status()) {
            return Err(tokio::select! {
                biased;
                () = cancel.cancelled() => ProviderError::Cancelled,
                error = self.refusal(answer, timer.deadline()) => self.secret.mask_error(error),
            });
        }
        let gunzip = Gunzip::of(answer.headers())?;
        if answer
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok())
            .is_some_and(|kind| kind.contains("html"))
        {
            return Err(html_error());
        }
        Ok(Box::pin(Reply::new(
            answer,
            gunzip,
            assembler,
            timer,
            self.secret.clone(),
            self.shared.clone(),
        )))
    }

    /// Posts a body and reads the whole answer, up to [`ANSWER_BYTES_MAX`].
    pub(super) async fn ask(&self, url: &Url, body: Body) -> Result<Vec<u8>, ProviderError> {
        let deadline = Instant::now() + self.timeouts.first_byte.min(self.timeouts.total);
        let answer = async {
            let connected = self.transport.connect().await?;
            let answer = connected
                .post(&target(url), "application/json", body)
                .await?;
            if is_success(answer.status()) {
                let gunzip = Gunzip::of(answer.headers())?;
                let body = answer.read(ANSWER_BYTES_MAX).await?;
                Ok(match gunzip {
                    Some(gunzip) => gunzip.whole(&body, ANSWER_BYTES_MAX, &self.shared).await,
                    None => body,
                })
            } else {
                Err(self.refusal(answer, deadline).await)
            }
        };
        let answer = timeout_at(deadline, answer)
            .await
            .unwrap_or_else(|_| Err(first_byte_error(self.timeouts)));
        answer.map_err(|error| self.secret.mask_error(error))
    }

    /// Maps an answer without a 2xx status to its error.
    async fn refusal(&self, answer: Answer, deadline: Instant) -> ProviderError {
        let status = answer.status();
        let headers = answer.headers().clone();
        let body = timeout_at(
            deadline.min(Instant::now() + ERROR_BODY_WAIT),
            answer.read(ERROR_BYTES_MAX),
        )
        .await;
        let body = body.ok().and_then(Result::ok).unwrap_or_default();
        let body = match Gunzip::of(&headers) {
            Ok(Some(gunzip)) => {
                let whole = gunzip.whole(&body, ERROR_BYTES_MAX, &self.shared);
                let until = deadline.min(Instant::now() + ERROR_BODY_WAIT);
                timeout_at(until, whole).await.unwrap_or_default()
            }
            // The status alone decides the class of an error whose text cannot be read.
            Ok(None) | Err(_) => body,
        };
        // Mask first, then shorten: a key that was cut in half would not be recognized.
        let body = self.secret.mask(&String::from_utf8_lossy(&body));
        errors::of_response(status, &headers, body.as_bytes())
    }
}

/// Waits for a part of a call under its limits.
async fn guarded<T>(
    timer: &mut CallTimer,
    phase: Phase,
    part: impl Future<Output = Result<T, ProviderError>>,
) -> Result<T, ProviderError> {
    let mut part = pin!(part);
    poll_fn(|cx| {
        timer.check()?;
        match part.as_mut().poll(cx) {
            Poll::Ready(result) => Poll::Ready(result),
            Poll::Pending => timer.poll(cx, phase).map(Err),
        }
    })
    .await
}

/// The path of an address, with its query.
fn target(url: &Url) -> Cow<'_, str> {
    match url.query() {
        Some(query) => Cow::Owned(format!("{}?{query}", url.path())),
        None => Cow::Borrowed(url.path()),
    }
}

fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost"
        || host.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback())
        || host.parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_loopback())
}
