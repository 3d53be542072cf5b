//! The messages of the metrics collector.

use tokio::sync::oneshot;

use super::Report;

/// A message to the metrics collector.
#[derive(Debug)]
pub(crate) enum MetricsCollectorMsg {
    /// From its own ticker: read the counters.
    Tick,
    /// From `MetricsCollectorRef::report`: return the figures.
    Report {
        /// Receives the figures.
        reply: oneshot::Sender<Report>,
    },
}
