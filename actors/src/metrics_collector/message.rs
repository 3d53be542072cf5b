//! The messages of the metrics collector.

use std::fmt;

use tokio::sync::oneshot;

use super::{Posted, Totals};
use crate::ids::TenantId;

/// A message to the metrics collector.
pub(crate) enum MetricsCollectorMsg {
    /// From a sender's [`super::Tally`]: add these figures.
    Counted(Posted),
    /// From a reader: return all sums.
    Read {
        /// Receives the sums, in which every batch counts that was sent before this message.
        reply: oneshot::Sender<Box<Totals>>,
    },
    /// From the directory, after the data of a tenant were erased: its sums start at 0 again.
    Forget {
        /// The tenant.
        tenant: TenantId,
    },
}

impl fmt::Debug for MetricsCollectorMsg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counted(_) => "Counted",
            Self::Read { .. } => "Read",
            Self::Forget { .. } => "Forget",
        })
    }
}
