//! What this process costs, read from `/proc`.
#![allow(dead_code, reason = "each bench needs some of it")]

use std::time::Duration;

/// CPU time of this process.
pub(crate) fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

/// Resident bytes of this process.
pub(crate) fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// The machine's load over the last minute.
pub(crate) fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap().split_whitespace().next().unwrap().to_owned()
}
