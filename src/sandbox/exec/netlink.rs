//! Memory of netlink. The kernel answers each request for addresses and routes at once and keeps the
//! answer until it is read, in memory that no control group counts: some 200 KiB for each socket.

use std::fs;

use super::hidden_memory::sockets_in_use;

/// Bytes of unread answers that one command may have. Programs read each answer before they ask
/// again.
pub(super) const UNREAD_MAX: u64 = 16 * 1024 * 1024;

/// Most bytes that a socket keeps unread: the size of its buffer, and the last answer.
const SOCKET_BYTES_MAX: u64 = 256 * 1024;

/// Whether a command with a network namespace of its own has too much unread. The sockets are listed
/// only if there are enough for that; those in messages on their way are among them.
pub(super) fn is_much(tree: &[i32]) -> bool {
    let sockets = sockets_in_use(tree).unwrap_or(0);
    if sockets.saturating_mul(SOCKET_BYTES_MAX) <= UNREAD_MAX {
        return false;
    }
    let table = tree
        .get(1)
        .and_then(|pid| fs::read_to_string(format!("/proc/{pid}/net/netlink")).ok());
    table.is_some_and(|table| unread_in(&table) > UNREAD_MAX)
}

/// Unread bytes of the sockets in the kernel's table.
fn unread_in(table: &str) -> u64 {
    let of = |line: &str| line.split_ascii_whitespace().nth(4)?.parse::<u64>().ok();
    table.lines().filter_map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_of_netlink_is_read() {
        let line = |unread| {
            format!(
                "0000000012345678 0   12     00000000 {unread}        0        0     2        0        77\n"
            )
        };
        let table = [
            "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n",
            &line(0),
            &line(212_000),
            &line(768),
        ];

        assert_eq!(unread_in(&table.concat()), 212_768);
        let own = fs::read_to_string("/proc/self/net/netlink").unwrap();
        assert!(own.starts_with("sk ") && own.contains("Rmem"), "{own}");
    }
}
