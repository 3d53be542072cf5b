//! The collector's mail.

use tokio::sync::oneshot;

use super::Report;

/// What the collector can be told.
#[derive(Debug)]
pub enum MetricsCollectorMsg {
    /// From its own ticker: read the counters.
    Tick,
    /// From anyone: tell the figures.
    Report {
        /// Who asks.
        reply: oneshot::Sender<Report>,
    },
}
