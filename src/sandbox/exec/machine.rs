//! Measures the memory that the machine loses and that no process shows: memory files and shared
//! memory that are not mapped, buffers of sockets and pipes, kernel tables. Used for commands
//! without a control group.
//!
//! A command is ended when two sums exceed its bound together: what it visibly holds, and what the
//! machine has lost unseen since the command began. The command must also have the means to hold
//! that much: memory files, shared addresses, sockets or pipes. Memory that other programs hold
//! visibly, and file caches, appear in the machine's own counts, so they are never blamed on a
//! command. A command without the means is never blamed. Among several, the one that can hold most
//! of the loss is ended first.

use std::fs;

/// Error of the machine's own counts, in bytes.
const TOLERANCE: u64 = 24 * 1024 * 1024;

/// How far below its bound a command without a control group is ended: what it can fill before this
/// thread gets a processor, plus what pausing it takes. Half of a small bound.
const RESERVE: u64 = 256 * 1024 * 1024;

/// Memory at which a command without a control group is ended, by the memory that it may use, in
/// bytes. It fills gigabytes a second, so it holds more by the time that it has ended.
pub(super) fn watched_bound(memory_bytes: u64) -> u64 {
    memory_bytes - RESERVE.min(memory_bytes / 2)
}

/// Most bytes that one socket can hold: its buffers at their default size, which the seccomp filter
/// lets no command change.
pub(super) const SOCKET_BYTES: u64 = 512 * 1024;

/// Bytes that an open socket counts as, for a command without a control group, whether it holds them
/// or not: what a writer can leave in it. The number of sockets is known at any time, and what they
/// hold is not: another program that ends meanwhile returns memory, and the machine seems to have
/// lost nothing.
pub(super) fn charged_socket_bytes() -> u64 {
    let text = fs::read_to_string("/proc/sys/net/core/wmem_default").unwrap_or_default();
    text.trim()
        .parse()
        .unwrap_or(SOCKET_BYTES)
        .min(SOCKET_BYTES)
}

/// Sockets that may be in transit between processes and open in none. The kernel allows a user as
/// many as one process may have open.
const ON_THEIR_WAY: u64 = 1024;

/// Most bytes that one pipe can hold, what one user's pipes can hold before the kernel makes new
/// ones small, and the size of a small one.
const PIPE_BYTES: u64 = 1024 * 1024;
const PIPES_BYTES: u64 = 64 * 1024 * 1024;
const SMALL_PIPE_BYTES: u64 = 8 * 1024;

/// Kernel memory of one mapping, the smallest range of addresses that a mapping needs, and the most
/// mappings of a process.
const AREA_BYTES: u64 = 256;
const AREA_ADDRESSES: u64 = 4096;
const AREAS_MAX: u64 = 65_530;

/// Memory that programs do not show, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Machine {
    /// Kernel memory that cannot be dropped: neither free, nor anonymous, nor a file's.
    pub(super) kernel: u64,
    /// Shared memory, memory files and `tmpfs`.
    pub(super) shared: u64,
}

/// A command without a control group, as seen in one check. All values except `before` are bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Suspect {
    /// The machine when the command began.
    pub(super) before: Machine,
    pub(super) bound: u64,
    /// Visible private memory of its processes, page tables included.
    pub(super) private: u64,
    /// The part of `private` that is page tables.
    pub(super) tables: u64,
    /// Visible shared memory and `tmpfs`.
    pub(super) shared: u64,
    /// Most shared memory that it may hold unseen.
    pub(super) shared_means: u64,
    /// Most kernel memory that it may hold.
    pub(super) kernel_means: u64,
}

impl Machine {
    /// Reads the values from `/proc`.
    pub(super) fn read() -> Option<Self> {
        let zones = fs::read_to_string("/proc/zoneinfo").unwrap_or_default();
        Self::of(&fs::read_to_string("/proc/meminfo").ok()?, &zones)
    }

    fn of(meminfo: &str, zones: &str) -> Option<Self> {
        let known = [
            "MemFree",
            "AnonPages",
            "Cached",
            "Buffers",
            "SwapCached",
            "SReclaimable",
        ];
        let at_hand = at_hand(zones, row(meminfo, "MemFree")?);
        let known = known
            .into_iter()
            .try_fold(at_hand, |sum, name| sum.checked_add(row(meminfo, name)?))?;
        Some(Self {
            kernel: row(meminfo, "MemTotal")?.saturating_sub(known),
            shared: row(meminfo, "Shmem")?,
        })
    }

    /// Most memory that commands can hold unseen since `before`.
    pub(super) fn lost_since(self, before: Self) -> u64 {
        let kernel = self.kernel.saturating_sub(before.kernel);
        kernel.saturating_add(self.shared.saturating_sub(before.shared))
    }
}

/// Bytes that programs can still allocate; cheap to read. Includes the pages in per-processor
/// lists, which `MemAvailable` leaves out: a program can take hundreds of mebibytes from these
/// before `MemAvailable` changes.
pub(super) fn available() -> Option<u64> {
    let zones = fs::read_to_string("/proc/zoneinfo").unwrap_or_default();
    available_of(&fs::read_to_string("/proc/meminfo").ok()?, &zones)
}

fn available_of(meminfo: &str, zones: &str) -> Option<u64> {
    row(meminfo, "MemAvailable")?.checked_add(at_hand(zones, row(meminfo, "MemFree")?))
}

/// A row of `/proc/meminfo`, in bytes.
fn row(text: &str, name: &str) -> Option<u64> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value
        .trim()
        .strip_suffix(" kB")?
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

/// Bytes in per-processor page lists. These pages are free but not counted as free, gigabytes of
/// them after a large program has ended. The page size follows from the free pages, which are
/// reported both as a count and in bytes.
fn at_hand(zones: &str, free: u64) -> u64 {
    let count = |name: &str| -> u64 {
        zones
            .lines()
            .filter_map(|line| {
                line.trim_start()
                    .strip_prefix(name)?
                    .trim()
                    .parse::<u64>()
                    .ok()
            })
            .sum()
    };
    // Both counts change between the two reads, so the quotient is rounded up to a power of two.
    let at_hand = count("count:");
    let free_pages = count("pages free");
    let page = (free / 4 * 3)
        .checked_div(free_pages)
        .map_or(0, u64::next_power_of_two);
    at_hand.saturating_mul(page)
}

/// Most kernel memory that processes may hold, by their number of open sockets and pipes and their
/// used addresses.
pub(super) fn kernel_means(sockets: u64, pipes: u64, addresses: u64, processes: u64) -> u64 {
    let areas = (addresses / AREA_ADDRESSES)
        .min(processes.saturating_mul(AREAS_MAX))
        .saturating_mul(AREA_BYTES);
    let on_their_way = if sockets > 0 { ON_THEIR_WAY } else { 0 };
    let sockets = sockets
        .saturating_add(on_their_way)
        .saturating_mul(SOCKET_BYTES);
    let pipes = pipes
        .saturating_mul(PIPE_BYTES)
        .min(PIPES_BYTES.saturating_add(pipes.saturating_mul(SMALL_PIPE_BYTES)));
    sockets.saturating_add(pipes).saturating_add(areas)
}

/// Index of the command that must end, by the rule above; `None` if all may continue.
pub(super) fn over(now: Machine, suspects: &[Suspect]) -> Option<usize> {
    let shared: u64 = suspects.iter().map(|suspect| suspect.shared).sum();
    let tables: u64 = suspects.iter().map(|suspect| suspect.tables).sum();
    let over = suspects.iter().enumerate().filter_map(|(at, suspect)| {
        let grown = now.shared.saturating_sub(suspect.before.shared);
        let unseen_shared = grown.saturating_sub(shared).min(suspect.shared_means);
        let kernel = now
            .kernel
            .saturating_sub(suspect.before.kernel)
            .saturating_sub(tables)
            .saturating_sub(TOLERANCE);
        let unseen = unseen_shared.saturating_add(kernel.min(suspect.kernel_means));
        let held = suspect
            .private
            .saturating_add(suspect.shared)
            .saturating_add(unseen);
        (unseen > 0 && held > suspect.bound).then_some((at, unseen))
    });
    over.max_by_key(|(_, unseen)| *unseen).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn machine(kernel: u64, shared: u64) -> Machine {
        Machine {
            kernel: kernel * MIB,
            shared: shared * MIB,
        }
    }

    /// A command with a bound of 256 MiB that visibly holds 20 MiB.
    fn command() -> Suspect {
        Suspect {
            before: machine(300, 100),
            bound: 256 * MIB,
            private: 20 * MIB,
            tables: MIB,
            ..Suspect::default()
        }
    }

    fn with_sockets(count: u64) -> Suspect {
        Suspect {
            kernel_means: kernel_means(count, 4, 10 * MIB, 3),
            ..command()
        }
    }

    #[test]
    fn a_watched_command_ends_below_its_bound_by_a_reserve_or_half() {
        let ended = [0, 1, 96, 512, 4096].map(|mib| watched_bound(mib * MIB) / MIB);

        assert_eq!(ended, [0, 0, 48, 256, 3840]);
    }

    #[test]
    fn a_command_without_the_means_is_never_blamed() {
        let now = machine(1300, 1100);

        assert_eq!(over(now, &[command(), with_sockets(0)]), None);
        assert_eq!(
            over(
                machine(320, 100),
                &[Suspect {
                    private: 250 * MIB,
                    ..with_sockets(3000)
                }]
            ),
            None,
            "what the counts are wrong by"
        );
        assert_eq!(
            over(machine(100, 0), &[with_sockets(3000)]),
            None,
            "others ended"
        );
    }

    #[test]
    fn buffers_of_sockets_are_blamed_on_the_command_that_has_the_sockets() {
        let now = machine(700, 100);

        assert_eq!(over(now, &[command(), with_sockets(3000)]), Some(1));
        assert_eq!(over(now, &[with_sockets(3000), command()]), Some(0));
        assert_eq!(
            over(machine(500, 100), &[with_sockets(3000)]),
            None,
            "within its bound"
        );
        assert_eq!(
            over(
                machine(500, 100),
                &[Suspect {
                    private: 100 * MIB,
                    ..with_sockets(3000)
                }]
            ),
            Some(0),
            "with what it shows"
        );
    }

    #[test]
    fn shared_memory_is_blamed_on_the_command_that_can_hold_it_unless_commands_show_it() {
        let now = machine(300, 480);
        let holds = Suspect {
            shared_means: 400 * MIB,
            ..command()
        };
        let shows = Suspect {
            bound: 1024 * MIB,
            shared: 380 * MIB,
            shared_means: 400 * MIB,
            ..command()
        };

        assert_eq!(over(now, &[command(), holds]), Some(1));
        assert_eq!(
            over(now, &[holds, shows]),
            None,
            "another command shows what the machine lost"
        );
        assert_eq!(
            over(
                now,
                &[
                    command(),
                    Suspect {
                        shared_means: 100 * MIB,
                        ..command()
                    }
                ]
            ),
            None
        );
    }

    #[test]
    fn the_memory_of_a_machine_is_read() {
        let text = "MemTotal:  1000 kB\nMemFree: 100 kB\nMemAvailable:     500 kB\nBuffers: 1 kB\nCached: 200 kB\nSwapCached: 0 kB\n\
                    AnonPages:  300 kB\nShmem:    7 kB\nShmemHugePages: 0 kB\nSReclaimable: 50 kB\n";
        let zones = "Node 0, zone Normal\n  pages free     24\n    cpu: 0\n              count:    3\n              high: 9\n    cpu: 1\n              count: 4\n";

        assert_eq!(
            Machine::of(text, zones),
            Some(Machine {
                kernel: (349 - 7 * 4) * 1024,
                shared: 7 * 1024
            })
        );
        assert_eq!(
            (
                at_hand(zones, 100 * 1024),
                at_hand("", 1),
                available_of(text, zones)
            ),
            (7 * 4096, 0, Some((500 + 7 * 4) * 1024))
        );
        assert!(Machine::read().is_some() && available().is_some());
    }
}
