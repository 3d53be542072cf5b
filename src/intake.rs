//! Bounds what is read of streams that strangers write. Empty lines, comments and events that are
//! no message cost processor time and reach no bound of messages.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Bytes that the end of a line counts as.
const LINE_BYTES: u64 = 128;

/// What reading these bytes counts as.
pub(crate) fn cost(bytes: &[u8]) -> u64 {
    let lines = bytes.iter().filter(|byte| matches!(byte, b'\n' | b'\r'));
    bytes.len() as u64 + lines.count() as u64 * LINE_BYTES
}

/// An account of bytes: a rate per second, and a burst after a pause.
#[derive(Debug)]
pub(crate) struct Intake {
    per_second: u64,
    /// What may be read at once, as time.
    burst: Duration,
    /// Until when what was read is paid for.
    paid: Mutex<Instant>,
}

impl Intake {
    /// An account with its burst unused.
    pub(crate) fn new(per_second: u64, burst: Duration) -> Self {
        Self {
            per_second,
            burst,
            paid: Mutex::new(Instant::now()),
        }
    }

    /// Counts what was read, and returns when reading may go on.
    pub(crate) fn count(&self, cost: u64) -> Instant {
        let cost = Duration::from_micros(cost.saturating_mul(1_000_000) / self.per_second);
        let now = Instant::now();
        let mut paid = self.paid.lock();
        *paid = (*paid).max(now) + cost;
        paid.checked_sub(self.burst).unwrap_or(now)
    }
}
