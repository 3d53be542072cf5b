//! Memory of TCP. The machine has one bound for it, whatever the network namespace: beyond it all
//! connections are slow, those of the host as well. A command behind bubblewrap has a loopback of its
//! own, on which it can send what it does not read.

use std::{collections::BTreeSet, fs, path::PathBuf, sync::LazyLock};

/// The kernel slows a command beyond an eighth of what the machine has before it frees some.
const COMMAND_SHARE: u64 = 8;

/// Where the machine has more than half of that, the command with most ends if it has a sixteenth.
const SUM_SHARE: u64 = 2;
const BLAMED_SHARE: u64 = 16;

/// Network namespaces of one command that are looked at.
const NAMESPACES_MAX: usize = 16;

/// What a socket with unread bytes counts as at least: the kernel shows bytes, and not what keeps them.
const SOCKET_BYTES: u64 = 64 * 1024;

/// A page of most machines. Where pages are larger, commands have less.
const PAGE_BYTES: u64 = 4096;

/// Bytes from which on the machine frees memory of TCP; `None` where it does not say.
static FREED_FROM: LazyLock<Option<u64>> = LazyLock::new(|| {
    let text = fs::read_to_string("/proc/sys/net/ipv4/tcp_mem").ok()?;
    let pages: u64 = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages.saturating_mul(PAGE_BYTES))
});

/// Bytes of TCP beyond which the kernel slows a command, where it counts them for each.
pub(super) fn of_command() -> Option<u64> {
    FREED_FROM.map(|bytes| bytes / COMMAND_SHARE)
}

/// Whether the machine has more memory in TCP than commands may have together. Datagrams count with it:
/// the kernel bounds both of a command together.
pub(super) fn is_much() -> bool {
    let used = fs::read_to_string("/proc/net/sockstat").ok();
    let used = used.as_deref().and_then(used_in);
    used.zip(*FREED_FROM)
        .is_some_and(|(used, from)| used > from / SUM_SHARE)
}

/// Whether a command with this many bytes is to be blamed for that.
pub(super) fn is_blamed(bytes: u64) -> bool {
    FREED_FROM.is_some_and(|from| bytes > from / BLAMED_SHARE)
}

/// Bytes of TCP and UDP of all network namespaces.
fn used_in(sockstat: &str) -> Option<u64> {
    let pages_of = |protocol: &str| -> Option<u64> {
        let mut lines = sockstat.lines();
        let line = lines.find_map(|line| line.strip_prefix(protocol))?;
        let mut words = line.split_ascii_whitespace();
        words.find(|word| *word == "mem")?;
        words.next()?.parse().ok()
    };
    let pages = pages_of("TCP:")?.saturating_add(pages_of("UDP:").unwrap_or(0));
    Some(pages.saturating_mul(PAGE_BYTES))
}

/// About how many bytes these processes have in connections of their own network namespaces.
pub(super) fn held_by(tree: &[i32]) -> u64 {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let own = namespace("self");
    let mut seen = BTreeSet::<PathBuf>::new();
    let mut held = 0;
    for pid in tree {
        let Some(theirs) = namespace(&pid.to_string()) else {
            continue;
        };
        if Some(&theirs) == own.as_ref() || seen.len() == NAMESPACES_MAX || !seen.insert(theirs) {
            continue;
        }
        for table in ["tcp", "tcp6", "udp", "udp6"] {
            let table = fs::read_to_string(format!("/proc/{pid}/net/{table}"));
            held += table.map_or(0, |table| queued_in(&table));
        }
    }
    held
}

/// Unread bytes of the sockets in a table of the kernel.
fn queued_in(table: &str) -> u64 {
    let of = |line: &str| {
        let queues = line.split_ascii_whitespace().nth(4)?;
        let (sent, received) = queues.split_once(':')?;
        let bytes = |queue| u64::from_str_radix(queue, 16).ok();
        Some(bytes(sent)? + bytes(received)?)
    };
    let queued = table.lines().filter_map(of).filter(|bytes| *bytes > 0);
    queued.map(|bytes| bytes.max(SOCKET_BYTES)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lines_about_tcp_are_read() {
        let sockstat =
            "sockets: used 11\nTCP: inuse 2 orphan 0 tw 0 alloc 2 mem 77\nUDP: inuse 0 mem 9\n";
        let line = |queues| format!("   0: 0100007F:A 0100007F:B 01 {queues} 00:0 0 0 0 1\n");
        let table = [
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt\n",
            &line("00000000:00000000"),
            &line("00100000:00000010"),
            &line("00000000:00000001"),
        ];

        assert_eq!(used_in(sockstat), Some((77 + 9) * PAGE_BYTES));
        assert_eq!(used_in("sockets: used 1\n"), None);
        assert_eq!(queued_in(&table.concat()), (1 << 20) + 16 + SOCKET_BYTES);
        assert_eq!(held_by(&[i32::try_from(std::process::id()).unwrap()]), 0);
    }
}
