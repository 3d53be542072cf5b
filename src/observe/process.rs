//! Reads figures of a process from `/proc`. `None` on systems without it.

/// Page size in bytes, for `statm`, which counts pages; right for the supported targets.
const PAGE: u64 = 4096;

/// Reads a file below `/proc/<pid>`; `None` means this process.
pub(crate) fn read(pid: Option<u32>, file: &str) -> Option<String> {
    let who = pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    std::fs::read_to_string(format!("/proc/{who}/{file}")).ok()
}

/// Resident memory of a process, in bytes; `None` means this process.
pub(crate) fn resident_bytes(pid: Option<u32>) -> Option<u64> {
    let status = read(pid, "status");
    let in_kib = status
        .as_deref()
        .and_then(|text| text.lines().find_map(|line| line.strip_prefix("VmRSS:")));
    if let Some(kib) = in_kib
        .and_then(|text| text.trim().strip_suffix("kB"))
        .and_then(|text| text.trim().parse::<u64>().ok())
    {
        return Some(kib * 1024);
    }
    Some(
        read(pid, "statm")?
            .split_whitespace()
            .nth(1)?
            .parse::<u64>()
            .ok()?
            * PAGE,
    )
}
