//! Wall time, for timestamps that people read and for deadlines that outlive a process. Intervals use `tokio::time`.

use crate::time::Timestamp;

/// The only source of wall time.
pub trait Clock: Send + Sync + 'static {
    /// Now.
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
