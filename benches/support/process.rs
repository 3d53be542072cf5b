//! What this process costs, read from `/proc`.
#![allow(dead_code, reason = "each bench needs some of it")]

use std::time::Duration;

/// CPU time of this process, in hundredths of a second: threads that ended count.
pub(crate) fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

/// CPU time of the threads that live, in nanoseconds: for phases in which none ends.
pub(crate) fn cpu_of_threads() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let spent = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok());
    Duration::from_nanos(spent.filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok()).sum())
}

/// Resident bytes of this process.
pub(crate) fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Bytes that this process holds for itself. Pages of the program's own file, which come and go with what else the machine reads, are not
/// among them.
pub(crate) fn anonymous() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: Vec<usize> = statm.split_whitespace().map(|pages| pages.parse().unwrap()).collect();
    (pages[1] - pages[2]) * 4096
}

/// The machine's load over the last minute.
pub(crate) fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap().split_whitespace().next().unwrap().to_owned()
}
