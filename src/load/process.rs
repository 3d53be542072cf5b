//! What a process costs, read from `/proc`. Elsewhere there are no figures.

use std::time::Duration;

/// A process: this one, or another by its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process(Option<u32>);

/// `/proc` counts in hundredths of a second on every Linux that runs this.
const TICK: Duration = Duration::from_millis(10);

/// Bytes of a page on the machines that this is built for, where `/proc` does not say.
const PAGE: u64 = 4096;

impl Process {
    pub(super) fn this() -> Self {
        Self(None)
    }

    pub(super) fn other(pid: u32) -> Self {
        Self(Some(pid))
    }

    fn read(self, file: &str) -> Option<String> {
        let who = self.0.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
        std::fs::read_to_string(format!("/proc/{who}/{file}")).ok()
    }

    /// CPU time so far, of all threads.
    pub(super) fn cpu(self) -> Option<Duration> {
        let stat = self.read("stat")?;
        // The second field is a name in parentheses that may hold anything.
        let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(11);
        let ticks: u32 = fields.next()?.parse::<u32>().ok()?.checked_add(fields.next()?.parse().ok()?)?;
        Some(TICK * ticks)
    }

    /// Resident bytes.
    pub(super) fn resident(self) -> Option<u64> {
        let status = self.read("status");
        let in_kib = status.as_deref().and_then(|text| text.lines().find_map(|line| line.strip_prefix("VmRSS:")));
        if let Some(kib) = in_kib.and_then(|text| text.trim().strip_suffix("kB")).and_then(|text| text.trim().parse::<u64>().ok()) {
            return Some(kib * 1024);
        }
        Some(self.read("statm")?.split_whitespace().nth(1)?.parse::<u64>().ok()? * PAGE)
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
