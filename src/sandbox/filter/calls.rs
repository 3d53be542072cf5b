//! The lists: which system calls are refused behind which boundary. Data only; [`super`] makes programs of it.

/// `fchmodat2`, `statmount` and `listmount`: libc does not name them on every processor. Calls this new have one number everywhere.
const SYS_FCHMODAT2: i64 = 452;
const SYS_STATMOUNT: i64 = 457;
const SYS_LISTMOUNT: i64 = 458;

/// The last system call that was judged (`mseal`). Later ones, and the second set of numbers that x86-64 may have, are unknown.
pub(super) const LAST: u32 = 462;

/// Refused behind both boundaries, whatever the arguments: "not permitted".
pub(super) const REFUSED: &[i64] = &[
    // A ring makes system calls that no filter sees.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // The keyrings of the kernel: a command would find the keys of the host's session, and could leave data for the next command.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // Another view of the files, where the boundary would not hold.
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
    // Large parts of the kernel that programs in a sandbox have no use for.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_lookup_dcookie,
    // The machine.
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
pub(super) const REFUSED_HERE: &[i64] = &[libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt, libc::SYS_uselib];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const REFUSED_HERE: &[i64] = &[];

/// Refused behind Landlock besides: it knows files alone, and has no namespaces of network, processes and IPC.
pub(super) const LANDLOCK: &[i64] = &[
    // The network, with every other way to talk to a process outside.
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
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
];

/// Modes, owners, attributes and times by path: refused where other files than the workspace's could be changed.
pub(super) const ATTRIBUTES: &[i64] = &[
    libc::SYS_fchmodat,
    SYS_FCHMODAT2,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
];

/// The same under their older names.
#[cfg(target_arch = "x86_64")]
pub(super) const ATTRIBUTES_HERE: &[i64] =
    &[libc::SYS_chmod, libc::SYS_chown, libc::SYS_lchown, libc::SYS_utime, libc::SYS_utimes, libc::SYS_futimesat];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const ATTRIBUTES_HERE: &[i64] = &[];

/// What could be changed of an open file that may only be read. A superuser owns the system's files.
pub(super) const ATTRIBUTES_OF_OPEN_FILES: &[i64] = &[libc::SYS_fchmod, libc::SYS_fchown, libc::SYS_fsetxattr, libc::SYS_fremovexattr];

/// What sets a file's mode: the argument that holds it, and the one that holds flags. Refused to make a file that runs with its
/// owner's rights: on a host that is the superuser it would be a way up for every user of the machine.
pub(super) const MODES: &[(i64, u8, Option<u8>)] = &[
    (libc::SYS_fchmod, 1, None),
    (libc::SYS_fchmodat, 2, None),
    (SYS_FCHMODAT2, 2, None),
    (libc::SYS_openat, 3, Some(2)),
    (libc::SYS_mknodat, 2, None),
];

/// The same under their older names.
#[cfg(target_arch = "x86_64")]
pub(super) const MODES_HERE: &[(i64, u8, Option<u8>)] =
    &[(libc::SYS_chmod, 1, None), (libc::SYS_open, 2, Some(1)), (libc::SYS_creat, 1, None), (libc::SYS_mknod, 1, None)];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const MODES_HERE: &[(i64, u8, Option<u8>)] = &[];

/// Behind both boundaries as if the kernel did not know them: programs then take another way. `clone3` and `openat2` hide their flags,
/// secret memory is in no process's figures, the other two list the mounts of the host.
pub(super) const UNKNOWN: &[i64] = &[libc::SYS_clone3, libc::SYS_openat2, libc::SYS_memfd_secret, SYS_STATMOUNT, SYS_LISTMOUNT];

/// The same behind Landlock: watching a folder gives the names in it, inside or out.
#[cfg(target_arch = "x86_64")]
pub(super) const LANDLOCK_UNKNOWN: &[i64] = &[libc::SYS_inotify_init1, libc::SYS_inotify_init];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const LANDLOCK_UNKNOWN: &[i64] = &[libc::SYS_inotify_init1];

/// What makes memory that no process's figures show while it is not mapped, see [`super::Uncounted`].
pub(super) const UNCOUNTED: &[i64] = &[libc::SYS_memfd_create];

/// The same where IPC has a namespace. Behind Landlock these are refused whole.
pub(super) const NAMESPACES_UNCOUNTED: &[i64] = &[libc::SYS_shmget, libc::SYS_semget, libc::SYS_msgget];

/// `setsockopt`, as the filter reads it, and the options that set how much a socket's buffers may hold.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "numbers of calls are small")]
pub(super) const SET_OPTION: u32 = libc::SYS_setsockopt as u32;
pub(super) const BUFFER_SIZES: [i32; 4] = [libc::SO_SNDBUF, libc::SO_RCVBUF, libc::SO_SNDBUFFORCE, libc::SO_RCVBUFFORCE];

/// New namespaces.
pub(super) const CLONE_FLAGS: &[i32] = &[
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// Typing into a terminal.
pub(super) const CONTROLS: &[u64] = &[0x5412, 0x541C];

/// The flags of a file that its owner may set: behind Landlock the file may lie outside.
pub(super) const LANDLOCK_CONTROLS: &[u64] = &[0x4008_6602, 0x4004_6602, 0x401C_5820];

/// Kinds of socket pairs that stay connected to each other: streams and packets. A datagram socket can be sent to any name.
pub(super) const PAIRS: [u64; 2] = [libc::SOCK_STREAM as u64, libc::SOCK_SEQPACKET as u64];

/// Protocols of the internet that are left: the default of each kind (0), TCP, UDP. Each other one exposes another part of the kernel.
pub(super) const PROTOCOLS: [u64; 3] = [0, libc::IPPROTO_TCP as u64, libc::IPPROTO_UDP as u64];

/// Kinds of socket that neither TCP nor UDP is of: raw, reliably delivered, packets in order, DCCP, and the old name of packets of a
/// device.
pub(super) const OTHER_KINDS: &[u64] = &[3, 4, 5, 6, 10];

/// Calls whose first argument names a process, 0 the caller: limits, turns and places.
pub(super) const OF_A_PROCESS: &[i64] =
    &[libc::SYS_prlimit64, libc::SYS_sched_setaffinity, libc::SYS_sched_setscheduler, libc::SYS_sched_setparam, libc::SYS_sched_setattr];
