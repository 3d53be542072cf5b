//! CPU time and memory of this process, from `/proc`.
#![allow(dead_code, reason = "each bench needs some of it")]

use std::time::Duration;

/// CPU time of this process, ended threads included, in steps of 10 ms.
pub(crate) fn cpu() -> Duration {
    cpu_of(std::process::id())
}

/// CPU time of a process, ended threads included, in steps of 10 ms.
pub(crate) fn cpu_of(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

/// CPU time of the live threads, in nanoseconds, for phases in which no thread ends.
pub(crate) fn cpu_of_threads() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let spent =
        tasks.filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok());
    Duration::from_nanos(
        spent
            .filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok())
            .sum(),
    )
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
