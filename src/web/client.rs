//! The HTTP client of web tools: one request, redirects checked one by one, a body up to a cap.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use reqwest::{
    Client, Method, Request, Response,
    header::{
        ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap,
        HeaderName, HeaderValue, LOCATION, RETRY_AFTER,
    },
    redirect::Policy,
};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{
    apart::{Apart, execute},
    body::BodyReader,
    dns::{Resolver, SystemResolver, guarded},
    error::WebError,
    policy::{Denied, REDIRECTS_MAX, UrlPolicy},
};

/// Most header fields of a response; the HTTP library limits its head to a few hundred KiB as well.
const HEADERS_MAX: usize = 100;

/// Settings of a [`WebClient`].
pub struct WebClientBuilder {
    policy: UrlPolicy,
    resolver: Arc<dyn Resolver>,
    user_agent: String,
    limits: Limits,
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    body_bytes: usize,
    total: Duration,
    idle: Duration,
    connect: Duration,
}

impl fmt::Debug for WebClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebClientBuilder")
            .field("policy", &self.policy)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Default for WebClientBuilder {
    fn default() -> Self {
        Self {
            policy: UrlPolicy::public(),
            resolver: Arc::new(SystemResolver),
            user_agent: concat!("callboard/", env!("CARGO_PKG_VERSION")).to_owned(),
            limits: Limits {
                body_bytes: 4 * 1024 * 1024,
                total: Duration::from_secs(30),
                idle: Duration::from_secs(10),
                connect: Duration::from_secs(10),
            },
        }
    }
}

impl WebClientBuilder {
    /// Sets which addresses may be reached; by default the public internet.
    #[must_use]
    pub fn policy(mut self, policy: UrlPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the resolver of host names; by default the operating system's.
    #[must_use]
    pub fn resolver(mut self, resolver: impl Resolver) -> Self {
        self.resolver = Arc::new(resolver);
        self
    }

    /// Sets the `User-Agent` header; by default `callboard/VERSION`.
    #[must_use]
    pub fn user_agent(mut self, user_agent: impl Into<String>) -> Self {
        self.user_agent = user_agent.into();
        self
    }

    /// Sets how many bytes of a body are kept, counted after decompression; 4 MiB by default.
    #[must_use]
    pub fn body_bytes_max(mut self, bytes: usize) -> Self {
        self.limits.body_bytes = bytes;
        self
    }

    /// Sets the timeout from the request to the last byte, redirects included; 30 s by default.
    #[must_use]
    pub fn total(mut self, total: Duration) -> Self {
        self.limits.total = total;
        self
    }

    /// Sets the timeout for a response's head, and for each further chunk of its body; 10 s by
    /// default.
    #[must_use]
    pub fn idle(mut self, idle: Duration) -> Self {
        self.limits.idle = idle;
        self
    }

    /// Sets the timeout for connecting, TLS included; 10 s by default.
    #[must_use]
    pub fn connect(mut self, connect: Duration) -> Self {
        self.limits.connect = connect;
        self
    }

    /// Builds the client.
    ///
    /// # Errors
    /// [`WebError::Request`] if TLS cannot be set up or the user agent is not a valid header value.
    pub fn build(self) -> Result<WebClient, WebError> {
        let policy = Arc::new(self.policy);
        let http = guarded(policy.clone(), self.resolver)
            .redirect(Policy::none())
            .user_agent(self.user_agent)
            .connect_timeout(self.limits.connect)
            .http1_max_headers(HEADERS_MAX)
            .build()
            .map_err(|_| WebError::Request("the client cannot be built"))?;
        Ok(WebClient {
            http,
            policy,
            limits: self.limits,
        })
    }
}

/// An HTTP client that reaches only the public internet and what its policy permits. Cheap to
/// clone.
///
/// Connections are not reused between requests, so every request's address is checked.
#[derive(Clone)]
pub struct WebClient {
    http: Client,
    policy: Arc<UrlPolicy>,
    limits: Limits,
}

impl fmt::Debug for WebClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebClient")
            .field("policy", &self.policy)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// A request to send.
pub struct WebRequest {
    method: Method,
    url: String,
    headers: HeaderMap,
    body: Option<Bytes>,
    /// Whether the request carries a body or a secret that no other server may see.
    own: bool,
    wrong: Option<WebError>,
}

impl fmt::Debug for WebRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebRequest")
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}

impl WebRequest {
    /// A GET request; follows redirects.
    pub fn get(url: impl Into<String>) -> Self {
        Self {
            method: Method::GET,
            url: url.into(),
            headers: HeaderMap::new(),
            body: None,
            own: false,
            wrong: None,
        }
    }

    /// A POST request with a JSON body; follows no redirects.
    pub fn post_json(url: impl Into<String>, json: impl Into<Bytes>) -> Self {
        let mut request = Self {
            method: Method::POST,
            body: Some(json.into()),
            own: true,
            ..Self::get(url)
        };
        request
            .headers
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        request
    }

    /// Sets the `Accept` header.
    #[must_use]
    pub fn accept(mut self, kinds: &'static str) -> Self {
        self.headers.insert(ACCEPT, HeaderValue::from_static(kinds));
        self
    }

    /// Adds a header whose value may be a secret; the request then follows no redirects.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        match (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            (Ok(name), Ok(mut value)) => {
                value.set_sensitive(true);
                self.headers.insert(name, value);
            }
            _ => self.wrong = Some(WebError::Request("a header contains invalid characters")),
        }
        self.own = true;
        self
    }

    /// Adds an `Authorization: Bearer` header; the request then follows no redirects.
    #[must_use]
    pub fn bearer(self, key: &str) -> Self {
        self.header(AUTHORIZATION.as_str(), &format!("Bearer {key}"))
    }
}

/// The head of a response; its body is read by [`WebAnswer::read`].
pub struct WebAnswer {
    response: Response,
    apart: Apart,
    url: Url,
    redirects: usize,
    deadline: Instant,
    limits: Limits,
}

impl fmt::Debug for WebAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebAnswer")
            .field("status", &self.status())
            .field("redirects", &self.redirects)
            .finish_non_exhaustive()
    }
}

/// The body of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebBody {
    /// The decompressed bytes; only the first ones if `more` is set.
    pub bytes: Bytes,
    /// Whether the body was longer than the cap.
    pub more: bool,
    /// The announced `Content-Length`; `None` if it is missing or the body is compressed.
    pub declared: Option<u64>,
}

impl WebClient {
    /// A builder with default settings.
    pub fn builder() -> WebClientBuilder {
        WebClientBuilder::default()
    }

    /// The policy that decides what may be reached.
    pub fn policy(&self) -> &UrlPolicy {
        &self.policy
    }

    /// Sends a request and returns the head of the response, whatever its status, after at most ten
    /// redirects.
    ///
    /// # Errors
    /// [`WebError`], for example when the policy denies a URL.
    ///
    /// # Cancel safety
    /// Dropping the future or cancelling the token closes the connection.
    pub async fn open(
        &self,
        request: WebRequest,
        cancel: &CancellationToken,
    ) -> Result<WebAnswer, WebError> {
        let deadline = Instant::now() + self.limits.total;
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(WebError::Cancelled),
            answer = timeout_at(deadline, self.follow(request, deadline)) => answer.unwrap_or_else(|_| Err(self.limits.total_over())),
        }
    }

    async fn follow(&self, request: WebRequest, deadline: Instant) -> Result<WebAnswer, WebError> {
        if let Some(wrong) = request.wrong {
            return Err(wrong);
        }
        let mut url = self.policy.check_url(&request.url)?;
        let mut redirects = 0;
        loop {
            let mut out = Request::new(request.method.clone(), url.clone());
            *out.headers_mut() = request.headers.clone();
            out.headers_mut()
                .insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
            *out.body_mut() = request.body.clone().map(Into::into);
            // The wait for the head includes connecting.
            let wait = self.limits.connect + self.limits.idle;
            let (response, apart) = match timeout(wait, execute(&self.http, out)).await {
                Ok(Some((response, apart))) => {
                    let failed = |error| WebError::from_reqwest(&error, self.limits.connect);
                    (response.map_err(failed)?, apart)
                }
                Ok(None) => return Err(TOO_MUCH_WORK),
                Err(_) => {
                    return Err(WebError::Timeout {
                        what: "the response's head",
                        limit: wait,
                    });
                }
            };
            let Some(location) = location(&response) else {
                return Ok(WebAnswer {
                    response,
                    apart,
                    url,
                    redirects,
                    deadline,
                    limits: self.limits,
                });
            };
            if request.own {
                return Err(WebError::Redirected);
            }
            if redirects == REDIRECTS_MAX {
                return Err(Denied::Redirects.into());
            }
            let next = location.to_str().ok().and_then(|text| url.join(text).ok());
            let mut next = next.ok_or(WebError::Broken("it redirects to an invalid URL"))?;
            next.set_fragment(None);
            self.policy.check_redirect(&url, &next)?;
            url = next;
            redirects += 1;
        }
    }
}

const TOO_MUCH_WORK: WebError = WebError::Broken("it makes too much work");

fn location(response: &Response) -> Option<&HeaderValue> {
    match response.status().as_u16() {
        301 | 302 | 303 | 307 | 308 => response.headers().get(LOCATION),
        _ => None,
    }
}

impl Limits {
    fn total_over(self) -> WebError {
        WebError::Timeout {
            what: "the whole request",
            limit: self.total,
        }
    }
}

impl WebAnswer {
    /// The HTTP status code.
    pub fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// The URL that answered, after redirects.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// The number of redirects that were followed.
    pub fn redirects(&self) -> usize {
        self.redirects
    }

    /// The `Content-Type` header, for example `text/html; charset=utf-8`.
    pub fn content_type(&self) -> Option<&str> {
        self.response.headers().get(CONTENT_TYPE)?.to_str().ok()
    }

    /// The `Retry-After` header as a duration from now.
    pub fn retry_after(&self) -> Option<Duration> {
        let text = self
            .response
            .headers()
            .get(RETRY_AFTER)?
            .to_str()
            .ok()?
            .trim();
        match text.parse() {
            Ok(seconds) => Some(Duration::from_secs(seconds)),
            Err(_) => Some(
                httpdate::parse_http_date(text)
                    .ok()?
                    .duration_since(SystemTime::now())
                    .unwrap_or_default(),
            ),
        }
    }

    /// Reads the body up to the cap.
    ///
    /// # Errors
    /// [`WebError`], for example when the server stops sending.
    ///
    /// # Cancel safety
    /// Dropping the future or cancelling the token closes the connection.
    pub async fn read(mut self, cancel: &CancellationToken) -> Result<WebBody, WebError> {
        let deadline = self.deadline;
        let limits = self.limits;
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(WebError::Cancelled),
            body = timeout_at(deadline, self.body()) => body.unwrap_or_else(|_| Err(limits.total_over())),
        }
    }

    async fn body(&mut self) -> Result<WebBody, WebError> {
        // Several `Content-Encoding` lines would mean several encodings.
        let mut encodings = self.response.headers().get_all(CONTENT_ENCODING).iter();
        let encoding = match (encodings.next(), encodings.next()) {
            (Some(encoding), None) => Some(encoding.to_str().map_err(|_| WebError::Encoding)?),
            (None, _) => None,
            (Some(_), Some(_)) => return Err(WebError::Encoding),
        };
        let declared = self
            .response
            .content_length()
            .filter(|_| encoding.is_none());
        let mut reader = BodyReader::new(encoding, self.limits.body_bytes)?;
        let over = loop {
            let chunk = timeout(self.limits.idle, self.response.chunk()).await;
            let chunk = chunk.map_err(|_| WebError::Timeout {
                what: "waiting for the next part of the body",
                limit: self.limits.idle,
            })?;
            match chunk.map_err(|error| WebError::from_reqwest(&error, self.limits.connect))? {
                None => break true,
                Some(bytes) if reader.is_plain() => {
                    if !reader.take(&bytes)? {
                        break false;
                    }
                }
                Some(bytes) => {
                    let decode = move || {
                        let taken = reader.take(&bytes);
                        (reader, taken)
                    };
                    let decoded = self.apart.run(decode).await;
                    let taken;
                    (reader, taken) = decoded.ok_or(TOO_MUCH_WORK)?;
                    if !taken? {
                        break false;
                    }
                }
            }
        };
        let (bytes, more) = reader.finish(over)?;
        Ok(WebBody {
            bytes,
            more,
            declared,
        })
    }
}
