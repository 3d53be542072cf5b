//! CPU time and memory of this process, from its clock and `/proc`.
#![allow(dead_code, reason = "each bench needs some of it")]

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time of this process, ended threads included, in nanoseconds.
pub(crate) fn cpu() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

/// Resident bytes of this process.
pub(crate) fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<usize>()
        .unwrap()
        * 4096
}

/// Anonymous memory of this process. Pages of the program file are excluded, because they depend on
/// the system's page cache.
pub(crate) fn anonymous() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: Vec<usize> = statm
        .split_whitespace()
        .map(|pages| pages.parse().unwrap())
        .collect();
    (pages[1] - pages[2]) * 4096
}

/// The load average of the last minute.
pub(crate) fn load() -> String {
    std::fs::read_to_string("/proc/loadavg")
        .unwrap()
        .split_whitespace()
        .next()
        .unwrap()
        .to_owned()
}
