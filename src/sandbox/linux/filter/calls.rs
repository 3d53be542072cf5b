//! The lists of system calls that each boundary refuses. Data only; [`super`] compiles filter
//! programs from the lists.

/// Numbers of `fchmodat2`, `statmount` and `listmount`, which libc does not define on every
/// processor. Calls this new have the same number everywhere.
const SYS_FCHMODAT2: i64 = 452;
const SYS_STATMOUNT: i64 = 457;
const SYS_LISTMOUNT: i64 = 458;

/// The last system call that was reviewed (`mseal`). Later calls, and the second number range of
/// x86-64, fail as unknown.
pub(super) const LAST: u32 = 462;

/// Refused with "not permitted" behind both boundaries, whatever the arguments.
pub(super) const REFUSED: &[i64] = &[
    // A ring makes system calls that no filter sees.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // The machine has one number of such requests for all users.
    libc::SYS_io_setup,
    // Kernel keyrings: a command would find the keys of the host's session, and could leave data
    // for the next command.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // A changed view of the file system, to which the boundary would not apply.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    // Large parts of the kernel that no program in a sandbox needs.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_lookup_dcookie,
    // Administration of the machine.
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
];

#[cfg(target_arch = "x86_64")]
pub(super) const REFUSED_HERE: &[i64] = &[
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const REFUSED_HERE: &[i64] = &[];

/// Also refused behind Landlock, which restricts files only and has no network, process or IPC
/// namespaces.
pub(super) const LANDLOCK: &[i64] = &[
    // The network, and every other way to talk to a process outside.
    libc::SYS_socket,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    // Access to other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
];

/// Change modes, owners, attributes and times by path. Refused where files outside the workspace
/// could be changed.
pub(super) const ATTRIBUTES: &[i64] = &[
    libc::SYS_fchmodat,
    SYS_FCHMODAT2,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
];

/// The same calls under their older names.
#[cfg(target_arch = "x86_64")]
pub(super) const ATTRIBUTES_HERE: &[i64] = &[
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const ATTRIBUTES_HERE: &[i64] = &[];

/// Change an open file, even one opened for reading only. Refused to a superuser, who owns the
/// system's files.
pub(super) const ATTRIBUTES_OF_OPEN_FILES: &[i64] = &[
    libc::SYS_fchmod,
    libc::SYS_fchown,
    libc::SYS_fsetxattr,
    libc::SYS_fremovexattr,
];

/// Calls that set a file's mode: the call, the index of the mode argument, and the index of the
/// flags argument if there is one. A mode with the set-user-ID bit is refused: where the host runs
/// as root, the file would give root's rights to every user of the machine.
pub(super) const MODES: &[(i64, u8, Option<u8>)] = &[
    (libc::SYS_fchmod, 1, None),
    (libc::SYS_fchmodat, 2, None),
    (SYS_FCHMODAT2, 2, None),
    (libc::SYS_openat, 3, Some(2)),
    (libc::SYS_mknodat, 2, None),
];

/// The same calls under their older names.
#[cfg(target_arch = "x86_64")]
pub(super) const MODES_HERE: &[(i64, u8, Option<u8>)] = &[
    (libc::SYS_chmod, 1, None),
    (libc::SYS_open, 2, Some(1)),
    (libc::SYS_creat, 1, None),
    (libc::SYS_mknod, 1, None),
];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const MODES_HERE: &[(i64, u8, Option<u8>)] = &[];

/// Reported as unknown behind both boundaries, so that programs fall back to older calls. `clone3`
/// and `openat2` pass their flags in memory, where no filter reads them; secret memory appears in
/// no process's figures; `statmount` and `listmount` list the mounts of the host.
pub(super) const UNKNOWN: &[i64] = &[
    libc::SYS_clone3,
    libc::SYS_openat2,
    libc::SYS_memfd_secret,
    SYS_STATMOUNT,
    SYS_LISTMOUNT,
];

/// Also unknown behind Landlock: watching a folder reveals the names in it, inside or outside the
/// workspace.
#[cfg(target_arch = "x86_64")]
pub(super) const LANDLOCK_UNKNOWN: &[i64] = &[libc::SYS_inotify_init1, libc::SYS_inotify_init];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const LANDLOCK_UNKNOWN: &[i64] = &[libc::SYS_inotify_init1];

/// Creates memory that appears in no process's figures while it is not mapped; see
/// [`super::Uncounted`].
pub(super) const UNCOUNTED: &[i64] = &[libc::SYS_memfd_create];

/// The same for System V IPC in an IPC namespace. Behind Landlock these calls are refused.
pub(super) const NAMESPACES_UNCOUNTED: &[i64] =
    &[libc::SYS_shmget, libc::SYS_semget, libc::SYS_msgget];

/// `setsockopt`, in the width that the filter compares, and the options that set the size of a
/// socket's buffers.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers of calls are small"
)]
pub(super) const SET_OPTION: u32 = libc::SYS_setsockopt as u32;
pub(super) const BUFFER_SIZES: [i32; 4] = [
    libc::SO_SNDBUF,
    libc::SO_RCVBUF,
    libc::SO_SNDBUFFORCE,
    libc::SO_RCVBUFFORCE,
];

/// Options that attach a program to a socket. The machine has one bound for the memory of all such
/// programs, those of system calls included: beyond it no command could get its filter.
pub(super) const PROGRAMS: [i32; 4] = [
    libc::SO_ATTACH_FILTER,
    libc::SO_ATTACH_BPF,
    libc::SO_ATTACH_REUSEPORT_CBPF,
    libc::SO_ATTACH_REUSEPORT_EBPF,
];

/// The calls that install a further filter of system calls, in the width that the filter compares,
/// each with the first argument that does.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers of calls are small"
)]
pub(super) const FILTERS: [(u32, u32); 2] = [
    (libc::SYS_prctl as u32, libc::PR_SET_SECCOMP as u32),
    (libc::SYS_seccomp as u32, libc::SECCOMP_SET_MODE_FILTER),
];

/// Flags of `clone` and `unshare` that create namespaces.
pub(super) const CLONE_FLAGS: &[i32] = &[
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// Flags of `clone` of a thread, and those that a thread must have with it: the watch over a command
/// counts the files of a process, which are those of all its threads only if they share them.
pub(super) const THREAD: u64 = libc::CLONE_THREAD as u64;
pub(super) const SHARES_FILES: u64 = libc::CLONE_FILES as u64;

/// Flag of `close_range` that gives the calling thread open files of its own.
pub(super) const CLOSE_UNSHARED: u64 = libc::CLOSE_RANGE_UNSHARE as u64;

/// `ioctl` requests that put input into a terminal, and the older forms of [`RESERVE`] (reserve, the
/// same for large files, fill with zeros, and two of XFS).
pub(super) const CONTROLS: &[u64] = &[
    0x5412,
    0x541C,
    0x4030_5828,
    0x4030_582A,
    0x4030_5839,
    0x4030_580A,
    0x4030_5824,
];

/// `fallocate` takes room on the disk without a byte written, which the kernel counts for no
/// process. It fails as on a file system that cannot do it, so that programs write instead. The modes
/// that take nothing, a hole or a range that collapses, are left.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers of calls are small"
)]
pub(super) const RESERVE: u32 = libc::SYS_fallocate as u32;
pub(super) const TAKES_NOTHING: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_COLLAPSE_RANGE;

/// `ioctl` requests that change the attribute flags of a file. Its owner may call them on any open
/// file, and behind Landlock that file may lie outside the workspace.
pub(super) const LANDLOCK_CONTROLS: &[u64] = &[0x4008_6602, 0x4004_6602, 0x401C_5820];

/// Commands of `fcntl` that make another program wait when it opens a file, up to 45 s each, or fail:
/// a lease, notices about a folder, and a delegation. A lease needs no right to write.
pub(super) const LEASES: &[u64] = &[1024, 1026, 1040];

/// Socket types allowed for socket pairs: streams and packets, whose ends stay connected to each
/// other. A datagram socket can send to any address.
pub(super) const PAIRS: [u64; 2] = [libc::SOCK_STREAM as u64, libc::SOCK_SEQPACKET as u64];

/// Internet protocols that stay allowed: the default of each type (0), TCP and UDP. Every other one
/// exposes another part of the kernel.
pub(super) const PROTOCOLS: [u64; 3] = [0, libc::IPPROTO_TCP as u64, libc::IPPROTO_UDP as u64];

/// Socket types that are neither TCP nor UDP: raw, reliably delivered messages, sequenced packets,
/// DCCP, and the obsolete packet type.
pub(super) const OTHER_KINDS: &[u64] = &[3, 4, 5, 6, 10];

/// Calls whose first argument is a process id, 0 for the caller: limits, scheduling and affinity.
pub(super) const OF_A_PROCESS: &[i64] = &[
    libc::SYS_prlimit64,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setattr,
];
