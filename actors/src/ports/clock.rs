//! Wall time, for timestamps that people read and for deadlines that outlive a process. Intervals
//! are measured with `tokio::time` instead.

use crate::time::Timestamp;

/// The only source of wall time in the kernel.
pub trait Clock: Send + Sync + 'static {
    /// Returns the current time.
    fn now(&self) -> Timestamp;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_dyn_compatible() {
        fn takes(_: &dyn Clock) {}
        let _ = takes;
    }
}
