//! How long a thread has run, as the kernel counts it. Unlike passed time it does not grow while other
//! threads have the processor.

use std::{fs, time::Duration};

/// The times of the calling thread so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ThreadTimes {
    pub(crate) has_run: Duration,
    /// How long it was ready to run and had no processor.
    #[cfg_attr(
        not(all(feature = "sandbox-linux", target_os = "linux")),
        allow(dead_code, reason = "asked by the commands of a sandbox")
    )]
    pub(crate) was_ready: Duration,
}

impl ThreadTimes {
    /// `None` where the system does not say.
    pub(crate) fn read() -> Option<Self> {
        // Read as a file: a clock of this thread through the vDSO is not there under every emulator.
        let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        let mut nanos = text.split_ascii_whitespace().map(str::parse);
        Some(Self {
            has_run: Duration::from_nanos(nanos.next()?.ok()?),
            was_ready: Duration::from_nanos(nanos.next()?.ok()?),
        })
    }
}
