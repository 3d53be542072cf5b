//! Sends requests and maps refusals to errors. It never retries, because retries belong to the
//! gateway, and never follows a redirect, which would carry the key to another host.

use std::{
    future::poll_fn,
    net::{Ipv4Addr, Ipv6Addr},
    pin::pin,
    task::Poll,
    time::Duration,
};

use callboard_actors::ports::{ModelStream, ProviderError};
use reqwest::{
    Client, Method, Request, Url,
    header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT},
};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{
    answer::Answer,
    assembler::Assemble,
    body::Body,
    config::{ProviderConfigError, Timeouts},
    errors::{self, html_error, idle_error, transport_error, with_sources},
    http1::Http1Client,
    reply::Reply,
    secret::Secret,
    timer::CallTimer,
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
}

/// The client that reaches the server.
#[derive(Clone)]
enum Transport {
    /// Plain HTTP/1.1 without a proxy.
    Http1(Http1Client),
    /// reqwest: TLS, HTTP/2 and proxies.
    Reqwest(Client, HeaderMap),
}

impl Http {
    /// Creates a client that adds `headers` to every request.
    pub(super) fn new(
        base: &Url,
        mut headers: HeaderMap,
        secret: Secret,
        timeouts: Timeouts,
    ) -> Result<Self, ProviderConfigError> {
        headers.insert(
            USER_AGENT,
            HeaderValue::from_static(concat!("callboard/", env!("CARGO_PKG_VERSION"))),
        );
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let transport = match Http1Client::new(base, is_loopback(base), &headers, timeouts.connect)
        {
            Some(client) => Transport::Http1(client),
            None => Transport::Reqwest(reqwest_client(base, timeouts)?, headers),
        };
        Ok(Self {
            transport,
            secret,
            timeouts,
        })
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
        let mut head = pin!(self.post(url, body, "text/event-stream"));
        let answer = poll_fn(|cx| {
            timer.check()?;
            match head.as_mut().poll(cx) {
                Poll::Ready(answer) => Poll::Ready(answer),
                Poll::Pending => timer.poll(cx).map(Err),
            }
        });
        let answer = answer
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
            assembler,
            timer,
            self.secret.clone(),
        )))
    }

    /// Posts a body and reads the whole answer, up to [`ANSWER_BYTES_MAX`].
    pub(super) async fn ask(&self, url: &Url, body: Body) -> Result<Vec<u8>, ProviderError> {
        let deadline = Instant::now() + self.timeouts.idle.min(self.timeouts.total);
        let answer = async {
            let answer = self.post(url, body, "application/json").await?;
            if is_success(answer.status()) {
                answer.read(ANSWER_BYTES_MAX).await
            } else {
                Err(self.refusal(answer, deadline).await)
            }
        };
        let answer = timeout_at(deadline, answer)
            .await
            .unwrap_or_else(|_| Err(idle_error(self.timeouts)));
        answer.map_err(|error| self.secret.mask_error(error))
    }

    async fn post(
        &self,
        url: &Url,
        body: Body,
        accept: &'static str,
    ) -> Result<Answer, ProviderError> {
        match &self.transport {
            Transport::Http1(client) => client.post(url, accept, body).await.map(Answer::Http1),
            Transport::Reqwest(client, headers) => {
                let mut request = Request::new(Method::POST, url.clone());
                request.headers_mut().clone_from(headers);
                request
                    .headers_mut()
                    .insert(ACCEPT, HeaderValue::from_static(accept));
                *request.body_mut() = Some(reqwest::Body::wrap(body));
                client
                    .execute(request)
                    .await
                    .map(Answer::from_reqwest)
                    .map_err(|error| self.failure(error))
            }
        }
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
        // Mask first, then shorten: a key that was cut in half would not be recognized.
        let body = self.secret.mask(&String::from_utf8_lossy(
            &body.ok().and_then(Result::ok).unwrap_or_default(),
        ));
        errors::of_response(status, &headers, body.as_bytes())
    }

    fn failure(&self, error: reqwest::Error) -> ProviderError {
        if error.is_connect() && error.is_timeout() {
            return ProviderError::Timeout {
                message: format!("no connection within {:?}", self.timeouts.connect),
            };
        }
        transport_error(error)
    }
}

/// Builds the reqwest client, for servers that plain HTTP does not reach.
fn reqwest_client(base: &Url, timeouts: Timeouts) -> Result<Client, ProviderConfigError> {
    let builder = crate::tls::client_builder().map_err(|error| ProviderConfigError::Client {
        reason: with_sources(&error),
    })?;
    let builder = builder
        .connect_timeout(timeouts.connect)
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .tcp_nodelay(true);
    // A proxy of the environment does not apply to this machine itself.
    let builder = if is_loopback(base) {
        builder.no_proxy()
    } else {
        builder
    };
    builder
        .build()
        .map_err(|error| ProviderConfigError::Client {
            reason: with_sources(&error),
        })
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
