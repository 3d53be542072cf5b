//! The text of `/metrics` and `/v1/metrics`, in the format that every Prometheus reads (text, version 0.0.4).

use callboard_actors::{host::Host, ids::TenantId};

/// The media type of [`prometheus_text`].
pub const PROMETHEUS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Whose figures are shown.
#[derive(Debug, Clone, Copy)]
pub enum View<'a> {
    /// The whole host's, and each tenant's beside it: for the operator.
    Operator,
    /// One tenant's and nothing else.
    Tenant(&'a TenantId),
}

/// Writes the figures of a host. Reads atomics only: it wakes nobody and waits for nobody.
pub fn prometheus_text(host: &Host, view: View<'_>) -> String {
    let figures = host.figures();
    match view {
        View::Operator => format!("callboard_conversations_awake {}\n", figures.awake),
        View::Tenant(_) => String::new(),
    }
}
