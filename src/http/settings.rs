//! Configuration of the HTTP host and its limits.

use std::{fmt, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{Keys, Operator, Peers};
use crate::observe::Redactor;

/// Configuration of [`super::serve`].
#[derive(Clone)]
#[non_exhaustive]
pub struct HttpConfig {
    /// The accepted keys. Keep a clone to change them while serving.
    pub keys: Keys,
    /// The program behind the operator's routes; without it, routes that need it answer 501.
    pub operator: Option<Arc<dyn Operator>>,
    /// Limits of connections, requests and streams.
    pub bounds: HttpBounds,
    /// How long open rounds may continue after shutdown was requested; then they are interrupted.
    pub drain_within: Duration,
    /// Cancelled by a program that exits and leaves rounds open, for its next start to resume.
    /// Whoever waits for a round then gets 503 `draining` with the round's id, event streams end,
    /// and connections close.
    pub leaving: CancellationToken,
    /// Whether `/metrics` and `/v1/metrics` are served; if not, they answer 404.
    pub metrics: bool,
    /// Whether the pages for people at `/console` are served, and `/` leads there.
    pub console: bool,
    /// Whether MCP clients are served at `/mcp` (feature `mcp-server`).
    pub mcp: bool,
    /// Origins of web pages that may call the API from a browser, such as `https://app.example`; `*`
    /// for all.
    pub cors_origins: Vec<String>,
    /// The file of results whose evaluations the operator reads in the console (feature `evals`).
    #[cfg(feature = "evals")]
    pub eval_results: Option<std::path::PathBuf>,
    /// The other hosts on the same store; `None` for a host that is alone.
    pub peers: Option<Arc<dyn Peers>>,
    /// Masks the program's secrets in error responses. Share the instance that masks its logs.
    pub redactor: Redactor,
}

impl HttpConfig {
    /// Default limits, 10 s to drain, metrics on, no operator, and a redactor that knows only the
    /// shapes of common keys.
    pub fn new(keys: Keys) -> Self {
        let bounds = HttpBounds::default();
        let drain_within = Duration::from_secs(10);
        Self {
            keys,
            operator: None,
            bounds,
            drain_within,
            leaving: CancellationToken::new(),
            metrics: true,
            console: true,
            mcp: true,
            cors_origins: Vec::new(),
            #[cfg(feature = "evals")]
            eval_results: None,
            peers: None,
            redactor: Redactor::default(),
        }
    }

    /// Sets whether metrics are served.
    #[must_use]
    pub fn metrics(mut self, shown: bool) -> Self {
        self.metrics = shown;
        self
    }

    /// Sets whether the pages for people are served.
    #[must_use]
    pub fn console(mut self, served: bool) -> Self {
        self.console = served;
        self
    }

    /// Sets whether MCP clients are served at `/mcp`.
    #[must_use]
    pub fn mcp(mut self, served: bool) -> Self {
        self.mcp = served;
        self
    }

    /// Sets the origins of web pages that may call the API from a browser.
    #[must_use]
    pub fn cors_origins(mut self, origins: Vec<String>) -> Self {
        self.cors_origins = origins;
        self
    }

    /// Sets the other hosts on the same store.
    #[must_use]
    pub fn peers(mut self, peers: Option<Arc<dyn Peers>>) -> Self {
        self.peers = peers;
        self
    }

    /// Sets the redactor of error responses.
    #[must_use]
    pub fn redactor(mut self, redactor: Redactor) -> Self {
        self.redactor = redactor;
        self
    }

    /// Sets the program behind the operator's routes.
    #[must_use]
    pub fn operator(mut self, operator: Arc<dyn Operator>) -> Self {
        self.operator = Some(operator);
        self
    }

    /// Replaces the limits.
    #[must_use]
    pub fn bounds(mut self, bounds: HttpBounds) -> Self {
        self.bounds = bounds;
        self
    }

    /// Sets the token with which the program announces that it exits with rounds open.
    #[must_use]
    pub fn leaving(mut self, leaving: CancellationToken) -> Self {
        self.leaving = leaving;
        self
    }

    /// Sets how long open rounds may continue after shutdown was requested.
    #[must_use]
    pub fn drain_within(mut self, within: Duration) -> Self {
        self.drain_within = within;
        self
    }
}

impl fmt::Debug for HttpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpConfig")
            .field("keys", &self.keys)
            .field("operator", &self.operator.is_some())
            .field("bounds", &self.bounds)
            .field("drain_within", &self.drain_within)
            .field("leaving", &self.leaving.is_cancelled())
            .field("metrics", &self.metrics)
            .field("console", &self.console)
            .field("mcp", &self.mcp)
            .field("cors_origins", &self.cors_origins)
            .field("peers", &self.peers.is_some())
            .field("redactor", &self.redactor)
            .finish()
    }
}

/// Limits of the HTTP host. A request beyond a limit is refused at once, with a code that names the
/// limit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpBounds {
    /// Open connections of all clients; a further one gets 503 and is closed. A connection costs up
    /// to 100 KiB.
    pub connections_max: usize,
    /// Open connections of one client address (for IPv6, of one /64 network); a further one gets
    /// 503 and is closed. `None`: 1,000, and no limit for loopback addresses, since a local proxy
    /// carries all clients.
    pub connections_per_address_max: Option<usize>,
    /// Open requests of one tenant, its event streams and the prompts that wait for an answer
    /// included; a further one gets 429. A waiting request costs some 15 KB.
    pub requests_per_tenant_max: usize,
    /// Open event streams of one tenant, so that a tenant's watchers leave connections to the
    /// others.
    pub streams_per_tenant_max: usize,
    /// Number of header fields of a request.
    pub headers_max: usize,
    /// Bytes of the request line and header fields together.
    pub header_bytes_max: usize,
    /// Bytes of a body that carries no messages.
    pub body_bytes_max: usize,
    /// Bytes of histories and artifacts that clients of one tenant have requested and not read yet;
    /// beyond it a request waits a short time and then gets 429.
    pub tenant_answer_bytes_max: usize,
    /// The same bound for one connection, so that one client leaves room to the tenant's others.
    pub connection_answer_bytes_max: usize,
    /// The same bound for all tenants together.
    pub answer_bytes_max: usize,
    /// Longest time for the header fields of a request, and longest time of a connection without a
    /// request, whatever else its client sends.
    pub header_within: Duration,
    /// Longest pause between two parts of a request body.
    pub body_pause_max: Duration,
    /// Longest time for a whole request body.
    pub body_within: Duration,
    /// How long a client may read nothing of a response that is ready; then the connection is cut.
    pub write_pause_max: Duration,
    /// Whether prompts and histories may refer to what the provider fetches: a URL, or a file of the
    /// operator's account there. Otherwise such a block is 422 `attachment_remote`.
    pub remote_attachments: bool,
    /// Silence on an event stream after which a comment is sent, so that proxies do not close the
    /// connection.
    pub comment_every: Duration,
    /// How long connections may finish their responses after the host has shut down.
    pub close_within: Duration,
}

impl Default for HttpBounds {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            connections_per_address_max: None,
            requests_per_tenant_max: 10_000,
            streams_per_tenant_max: 1_000,
            headers_max: 64,
            header_bytes_max: 32 * 1024,
            body_bytes_max: 1024 * 1024,
            tenant_answer_bytes_max: 64 * 1024 * 1024,
            connection_answer_bytes_max: 32 * 1024 * 1024,
            answer_bytes_max: 256 * 1024 * 1024,
            header_within: Duration::from_secs(15),
            body_pause_max: Duration::from_secs(15),
            body_within: Duration::from_secs(120),
            write_pause_max: Duration::from_secs(60),
            remote_attachments: false,
            comment_every: Duration::from_secs(15),
            close_within: Duration::from_secs(5),
        }
    }
}
