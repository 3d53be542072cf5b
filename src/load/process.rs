//! CPU time and memory of a process, from `/proc`. On other systems there are no figures.

use std::time::Duration;

use crate::observe::process::{read, resident_bytes};

/// This process (`None`), or another by its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process(Option<u32>);

/// The unit of CPU time in `/proc`: 10 ms on every Linux that runs this.
const TICK: Duration = Duration::from_millis(10);

impl Process {
    pub(super) fn this() -> Self {
        Self(None)
    }

    pub(super) fn other(pid: u32) -> Self {
        Self(Some(pid))
    }

    /// Total CPU time of all threads.
    pub(super) fn cpu(self) -> Option<Duration> {
        let stat = read(self.0, "stat")?;
        // The second field is a name in parentheses that may hold any character.
        let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(11);
        let ticks: u32 = fields
            .next()?
            .parse::<u32>()
            .ok()?
            .checked_add(fields.next()?.parse().ok()?)?;
        Some(TICK * ticks)
    }

    /// Resident memory in bytes.
    pub(super) fn resident(self) -> Option<u64> {
        resident_bytes(self.0)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_time_and_one_that_is_gone_has_none() {
        assert!(Process::this().resident().unwrap() > 100_000);
        assert!(Process::this().cpu().is_some());
        assert!(Process::other(std::process::id()).cpu().is_some());
        assert_eq!(Process::other(u32::MAX).resident(), None);
    }
}
