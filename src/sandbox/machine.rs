//! What the machine loses to memory that no process shows: memory files and shared memory that are not mapped, buffers of sockets and
//! pipes, tables of the kernel. Needed where a command has no control group.
//!
//! The rule: a command is ended when what it visibly holds, and what the machine lost unseen since that command began, are together
//! more than its bound, and the command has the means to hold that much: memory files, shared addresses, sockets, pipes. Memory that
//! other programs take for themselves, and memory of files, is counted by the machine, so it is never blamed on a command. A command
//! without the means is never blamed either. Of several, the one that can hold most of it goes first.

use std::fs;

/// What the machine's own counts are wrong by.
const TOLERANCE: u64 = 24 * 1024 * 1024;

/// The most that a socket stands for: its buffers of the default size. The filter of system calls lets no command change it.
pub(super) const SOCKET_BYTES: u64 = 512 * 1024;

/// Sockets that may be on their way from one process to another, open in none: the kernel allows a user as many as one process may have
/// open.
const ON_THEIR_WAY: u64 = 1024;

/// The most that a pipe stands for, and what the kernel allows a user in all before pipes become small.
const PIPE_BYTES: u64 = 1024 * 1024;
const PIPES_BYTES: u64 = 64 * 1024 * 1024;
const SMALL_PIPE_BYTES: u64 = 8 * 1024;

/// What an area of addresses costs the kernel, and the least addresses that it needs; the most areas of a process.
const AREA_BYTES: u64 = 256;
const AREA_ADDRESSES: u64 = 4096;
const AREAS_MAX: u64 = 65_530;

/// What the machine's memory is taken by, in bytes, as far as programs do not show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Machine {
    /// The kernel's own memory that it cannot drop: what is neither free nor anonymous nor of files.
    pub(super) kernel: u64,
    /// Shared memory, memory files and `tmpfs`.
    pub(super) shared: u64,
}

/// What is known of a command that has no control group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Suspect {
    /// The machine when it began.
    pub(super) before: Machine,
    pub(super) bound: u64,
    /// What its processes visibly hold for themselves, tables among it.
    pub(super) private: u64,
    /// Tables of that.
    pub(super) tables: u64,
    /// Shared memory and `tmpfs` that it visibly holds.
    pub(super) shared: u64,
    /// Shared memory that it may hold unseen.
    pub(super) shared_means: u64,
    /// Memory of the kernel that it may hold.
    pub(super) kernel_means: u64,
}

impl Machine {
    /// Reads it from `/proc`.
    pub(super) fn read() -> Option<Self> {
        let zones = fs::read_to_string("/proc/zoneinfo").unwrap_or_default();
        Self::of(&fs::read_to_string("/proc/meminfo").ok()?, &zones)
    }

    fn of(meminfo: &str, zones: &str) -> Option<Self> {
        let known = ["MemFree", "AnonPages", "Cached", "Buffers", "SwapCached", "SReclaimable"];
        let at_hand = at_hand(zones, row(meminfo, "MemFree")?);
        let known = known.into_iter().try_fold(at_hand, |sum, name| sum.checked_add(row(meminfo, name)?))?;
        Some(Self { kernel: row(meminfo, "MemTotal")?.saturating_sub(known), shared: row(meminfo, "Shmem")? })
    }

    /// The most that commands can hold unseen since `before`.
    pub(super) fn lost_since(self, before: Self) -> u64 {
        let kernel = self.kernel.saturating_sub(before.kernel);
        kernel.saturating_add(self.shared.saturating_sub(before.shared))
    }
}

/// Bytes that programs could still get: a cheap look. With the pages that processors keep at hand, which `MemAvailable` leaves out: what
/// takes those takes hundreds of mebibytes before it shows anything.
pub(super) fn available() -> Option<u64> {
    let zones = fs::read_to_string("/proc/zoneinfo").unwrap_or_default();
    available_of(&fs::read_to_string("/proc/meminfo").ok()?, &zones)
}

fn available_of(meminfo: &str, zones: &str) -> Option<u64> {
    row(meminfo, "MemAvailable")?.checked_add(at_hand(zones, row(meminfo, "MemFree")?))
}

/// A row of `/proc/meminfo`, in bytes.
fn row(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes of pages that processors keep at hand. They are free, though not counted so: gigabytes after a large program has ended. How
/// large a page is follows from the free ones, counted in both ways.
fn at_hand(zones: &str, free: u64) -> u64 {
    let count =
        |name: &str| -> u64 { zones.lines().filter_map(|line| line.trim_start().strip_prefix(name)?.trim().parse::<u64>().ok()).sum() };
    // Both counts move meanwhile: pages have a power of two.
    let (at_hand, free_pages) = (count("count:"), count("pages free"));
    let page = (free / 4 * 3).checked_div(free_pages).map_or(0, u64::next_power_of_two);
    at_hand.saturating_mul(page)
}

/// The most that processes may hold of the kernel's memory, by their open sockets and pipes and the addresses that they use.
pub(super) fn kernel_means(sockets: u64, pipes: u64, addresses: u64, processes: u64) -> u64 {
    let areas = (addresses / AREA_ADDRESSES).min(processes.saturating_mul(AREAS_MAX)).saturating_mul(AREA_BYTES);
    let on_their_way = if sockets > 0 { ON_THEIR_WAY } else { 0 };
    let sockets = sockets.saturating_add(on_their_way).saturating_mul(SOCKET_BYTES);
    let pipes = pipes.saturating_mul(PIPE_BYTES).min(PIPES_BYTES.saturating_add(pipes.saturating_mul(SMALL_PIPE_BYTES)));
    sockets.saturating_add(pipes).saturating_add(areas)
}

/// Which of the commands must end, by the rule above.
pub(super) fn over(now: Machine, suspects: &[Suspect]) -> Option<usize> {
    let shared: u64 = suspects.iter().map(|suspect| suspect.shared).sum();
    let tables: u64 = suspects.iter().map(|suspect| suspect.tables).sum();
    let over = suspects.iter().enumerate().filter_map(|(at, suspect)| {
        let grown = now.shared.saturating_sub(suspect.before.shared);
        let unseen_shared = grown.saturating_sub(shared).min(suspect.shared_means);
        let kernel = now.kernel.saturating_sub(suspect.before.kernel).saturating_sub(tables).saturating_sub(TOLERANCE);
        let unseen = unseen_shared.saturating_add(kernel.min(suspect.kernel_means));
        let held = suspect.private.saturating_add(suspect.shared).saturating_add(unseen);
        (unseen > 0 && held > suspect.bound).then_some((at, unseen))
    });
    over.max_by_key(|(_, unseen)| *unseen).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn machine(kernel: u64, shared: u64) -> Machine {
        Machine { kernel: kernel * MIB, shared: shared * MIB }
    }

    /// A command with a bound of 256 MiB that visibly holds 20 MiB.
    fn command() -> Suspect {
        Suspect { before: machine(300, 100), bound: 256 * MIB, private: 20 * MIB, tables: MIB, ..Suspect::default() }
    }

    fn with_sockets(count: u64) -> Suspect {
        Suspect { kernel_means: kernel_means(count, 4, 10 * MIB, 3), ..command() }
    }

    #[test]
    fn a_command_without_the_means_is_never_blamed() {
        let now = machine(1300, 1100);

        assert_eq!(over(now, &[command(), with_sockets(0)]), None);
        assert_eq!(over(machine(320, 100), &[Suspect { private: 250 * MIB, ..with_sockets(3000) }]), None, "what the counts are wrong by");
        assert_eq!(over(machine(100, 0), &[with_sockets(3000)]), None, "others ended");
    }

    #[test]
    fn buffers_of_sockets_are_blamed_on_the_command_that_has_the_sockets() {
        let now = machine(700, 100);

        assert_eq!(over(now, &[command(), with_sockets(3000)]), Some(1));
        assert_eq!(over(now, &[with_sockets(3000), command()]), Some(0));
        assert_eq!(over(machine(500, 100), &[with_sockets(3000)]), None, "within its bound");
        assert_eq!(over(machine(500, 100), &[Suspect { private: 100 * MIB, ..with_sockets(3000) }]), Some(0), "with what it shows");
    }

    #[test]
    fn shared_memory_is_blamed_on_the_command_that_can_hold_it_unless_commands_show_it() {
        let now = machine(300, 480);
        let holds = Suspect { shared_means: 400 * MIB, ..command() };
        let shows = Suspect { bound: 1024 * MIB, shared: 380 * MIB, shared_means: 400 * MIB, ..command() };

        assert_eq!(over(now, &[command(), holds]), Some(1));
        assert_eq!(over(now, &[holds, shows]), None, "another command shows what the machine lost");
        assert_eq!(over(now, &[command(), Suspect { shared_means: 100 * MIB, ..command() }]), None);
    }

    #[test]
    fn the_memory_of_a_machine_is_read() {
        let text = "MemTotal:  1000 kB\nMemFree: 100 kB\nMemAvailable:     500 kB\nBuffers: 1 kB\nCached: 200 kB\nSwapCached: 0 kB\n\
                    AnonPages:  300 kB\nShmem:    7 kB\nShmemHugePages: 0 kB\nSReclaimable: 50 kB\n";
        let zones = "Node 0, zone Normal\n  pages free     24\n    cpu: 0\n              count:    3\n              high: 9\n    cpu: 1\n              count: 4\n";

        assert_eq!(Machine::of(text, zones), Some(Machine { kernel: (349 - 7 * 4) * 1024, shared: 7 * 1024 }));
        assert_eq!((at_hand(zones, 100 * 1024), at_hand("", 1), available_of(text, zones)), (7 * 4096, 0, Some((500 + 7 * 4) * 1024)));
        assert!(Machine::read().is_some() && available().is_some());
    }
}
