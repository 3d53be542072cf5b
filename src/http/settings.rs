//! How the HTTP host is set up, and its bounds.

use std::{fmt, sync::Arc, time::Duration};

use super::{Keys, Operator};
use crate::observe::Redactor;

/// What [`super::serve`] needs beside a host.
#[derive(Clone)]
#[non_exhaustive]
pub struct HttpConfig {
    /// Who is let in. Keep a clone to change it while serving.
    pub keys: Keys,
    /// The program behind the operator's routes; without it those that need it answer 501.
    pub operator: Option<Arc<dyn Operator>>,
    /// Bounds.
    pub bounds: HttpBounds,
    /// How long open rounds may go on once the end was asked for; then they are interrupted.
    pub drain_within: Duration,
    /// Whether `/metrics` and `/v1/metrics` show figures; if not, they answer 404 (REQUIREMENTS X-12).
    pub metrics: bool,
    /// Masks the keys of the program in refusals (FAULTS F8). Share the one that masks its logs.
    pub redactor: Redactor,
}

impl HttpConfig {
    /// With the usual bounds, 10 s to drain, figures shown, no operator, and a redactor that knows shapes of keys alone.
    pub fn new(keys: Keys) -> Self {
        let (bounds, drain_within) = (HttpBounds::default(), Duration::from_secs(10));
        Self { keys, operator: None, bounds, drain_within, metrics: true, redactor: Redactor::default() }
    }

    /// Whether figures are shown.
    #[must_use]
    pub fn metrics(mut self, shown: bool) -> Self {
        self.metrics = shown;
        self
    }

    /// What masks keys in refusals.
    #[must_use]
    pub fn redactor(mut self, redactor: Redactor) -> Self {
        self.redactor = redactor;
        self
    }

    /// The program behind the operator's routes.
    #[must_use]
    pub fn operator(mut self, operator: Arc<dyn Operator>) -> Self {
        self.operator = Some(operator);
        self
    }

    /// Other bounds.
    #[must_use]
    pub fn bounds(mut self, bounds: HttpBounds) -> Self {
        self.bounds = bounds;
        self
    }

    /// How long open rounds may go on once the end was asked for.
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
            .field("metrics", &self.metrics)
            .field("redactor", &self.redactor)
            .finish()
    }
}

/// The bounds of the HTTP host. Beyond each of them a request is refused at once, with a code that says which it was.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpBounds {
    /// Connections at once, of all clients; a further one gets 503 and is closed. A connection costs up to 100 KiB.
    pub connections_max: usize,
    /// Connections at once of one client address, an IPv6 network of 64 bits counting as one; a further one gets 503 and is closed.
    /// `None`: 1,000, and for addresses of this machine no bound, since a proxy there brings all clients.
    pub connections_per_address_max: Option<usize>,
    /// Event streams at once of one tenant, so that one tenant's watchers leave connections to the others.
    pub streams_per_tenant_max: usize,
    /// Header fields of a request.
    pub headers_max: usize,
    /// Bytes of a request's line and header fields together.
    pub header_bytes_max: usize,
    /// Bytes of a body that carries no messages.
    pub body_bytes_max: usize,
    /// How long a client may take for a request's header fields, and leave a connection unused.
    pub header_within: Duration,
    /// How long a client may pause within a body.
    pub body_pause_max: Duration,
    /// How long a client may take for a whole body.
    pub body_within: Duration,
    /// How long a client may read nothing of an answer that waits for it; then it is cut.
    pub write_pause_max: Duration,
    /// Silence of an event stream after which a comment is sent, so that what is between does not close it.
    pub comment_every: Duration,
    /// How long connections may go on after the host has ended.
    pub close_within: Duration,
}

impl Default for HttpBounds {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            connections_per_address_max: None,
            streams_per_tenant_max: 1_000,
            headers_max: 64,
            header_bytes_max: 32 * 1024,
            body_bytes_max: 1024 * 1024,
            header_within: Duration::from_secs(15),
            body_pause_max: Duration::from_secs(15),
            body_within: Duration::from_secs(120),
            write_pause_max: Duration::from_secs(60),
            comment_every: Duration::from_secs(15),
            close_within: Duration::from_secs(5),
        }
    }
}
