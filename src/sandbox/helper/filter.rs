//! System calls that a command is refused, because Landlock does not look at them: every socket, other processes, what makes names
//! of the machine outside of the workspace change, and what only an administrator needs.
//!
//! Refused whole, since a filter sees numbers and no paths: `chmod` and `chown` by path, times and attributes by path. What can be
//! done to an open file stays, but for a superuser, who owns the system's files and could change the mode of one that it may read.
//!
//! **What stays possible, stated:** to ask whether a path outside exists, and its size, owner and times (`stat`), where a link
//! leads, to be in a folder outside without listing it; for a superuser to set the times of a system file to now.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition, SeccompFilter, SeccompRule, sock_filter,
};

/// Refused whatever the arguments: "not permitted".
const REFUSED: &[i64] = &[
    // The network, with every other way to talk to somebody: UDP, raw, netlink, vsock, and sockets of this machine.
    libc::SYS_socket,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
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
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_perf_event_open,
    // Another view of the files, where rules would not hold.
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
    // Modes, owners, attributes and times by path.
    libc::SYS_fchmodat,
    libc::SYS_fchmodat2,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    // The machine.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_kexec_load,
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
    libc::SYS_lookup_dcookie,
];

/// The same under their older names.
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[i64] = &[
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_kexec_file_load,
    libc::SYS_uselib,
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[i64] = &[];

/// Refused to a superuser alone: the system's files are its own.
const REFUSED_TO_SUPERUSER: &[i64] = &[libc::SYS_fchmod, libc::SYS_fchown, libc::SYS_fsetxattr, libc::SYS_fremovexattr];

/// As if the kernel did not know them: programs then take another way. `clone3` hides its flags from a filter; watching a folder
/// tells the names in it, inside or out.
const UNKNOWN: &[i64] = &[libc::SYS_clone3, libc::SYS_inotify_init1];
#[cfg(target_arch = "x86_64")]
const UNKNOWN_HERE: &[i64] = &[libc::SYS_inotify_init];
#[cfg(not(target_arch = "x86_64"))]
const UNKNOWN_HERE: &[i64] = &[];

/// The last system call that was judged (`mseal`). Later ones, and the second set of numbers that x86-64 may have, are unknown.
const LAST: u32 = 462;

/// New namespaces.
const NAMESPACES: &[i32] = &[
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// Typing into a terminal, and the flags of a file that its owner may set.
const CONTROLS: &[u64] = &[0x5412, 0x541C, 0x4008_6602, 0x4004_6602, 0x401C_5820];

/// Kinds of socket pairs that cannot be pointed at somebody else: streams and packets.
const PAIRS: [u64; 2] = [libc::SOCK_STREAM as u64, libc::SOCK_SEQPACKET as u64];

/// Puts the filters over this process and all that come of it.
pub(super) fn install(superuser: bool) -> Result<(), String> {
    let said = |error: seccompiler::Error| format!("the filter of system calls: {error}");
    for program in [known(), filter(unknown_calls(), libc::ENOSYS)?, filter(refused(superuser)?, libc::EPERM)?] {
        seccompiler::apply_filter(&program).map_err(said)?;
    }
    Ok(())
}

/// All that a parser of bytes needs: to read and write what is open, memory, and an end.
#[cfg(feature = "pdf")]
const OF_A_PARSER: &[i64] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Puts the filter over this process that leaves it nothing but its open files and its memory.
#[cfg(feature = "pdf")]
pub(super) fn install_for_parser() -> Result<(), String> {
    let said = |error: seccompiler::BackendError| format!("the filter of system calls: {error}");
    let arch = std::env::consts::ARCH.try_into().map_err(|_| "no filter of system calls for this processor".to_owned())?;
    let rules: Rules = OF_A_PARSER.iter().map(|call| (*call, Vec::new())).collect();
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let program = SeccompFilter::new(rules, refused, SeccompAction::Allow, arch).and_then(BpfProgram::try_from).map_err(said)?;
    seccompiler::apply_filter(&program).map_err(|error| format!("the filter of system calls: {error}"))
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn filter(rules: Rules, errno: i32) -> Result<BpfProgram, String> {
    let arch = std::env::consts::ARCH.try_into().map_err(|_| "no filter of system calls for this processor".to_owned())?;
    SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno.unsigned_abs()), arch)
        .and_then(BpfProgram::try_from)
        .map_err(|error| format!("the filter of system calls: {error}"))
}

/// Four steps: load the number; beyond the last one known, "no such call".
fn known() -> BpfProgram {
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    vec![
        step(0x20, 0, 0, 0),
        step(0x25, 0, 1, LAST),
        step(0x06, 0, 0, 0x0005_0000 | libc::ENOSYS.unsigned_abs()),
        step(0x06, 0, 0, 0x7fff_0000),
    ]
}

fn unknown_calls() -> Rules {
    UNKNOWN.iter().chain(UNKNOWN_HERE).map(|call| (*call, Vec::new())).collect()
}

fn refused(superuser: bool) -> Result<Rules, String> {
    let mut rules: Rules = REFUSED.iter().chain(REFUSED_HERE).map(|call| (*call, Vec::new())).collect();
    if superuser {
        rules.extend(REFUSED_TO_SUPERUSER.iter().map(|call| (*call, Vec::new())));
    }
    let is = |argument, op, value| {
        SeccompCondition::new(argument, Len::Dword, op, value)
            .and_then(|condition| SeccompRule::new(vec![condition]))
            .map_err(|error| format!("the filter of system calls: {error}"))
    };
    let all = |rules: Vec<Result<SeccompRule, String>>| rules.into_iter().collect::<Result<Vec<_>, _>>();
    let flags = NAMESPACES.iter().map(|flag| u64::from(flag.unsigned_abs()));
    rules.insert(libc::SYS_clone, all(flags.map(|flag| is(0, Op::MaskedEq(flag), flag)).collect())?);
    rules.insert(libc::SYS_ioctl, all(CONTROLS.iter().map(|request| is(1, Op::Eq, *request)).collect())?);
    let kinds = (0..16).filter(|kind| !PAIRS.contains(kind)).map(|kind| is(1, Op::MaskedEq(0xf), kind));
    let pairs = std::iter::once(is(0, Op::Ne, u64::from(libc::AF_UNIX.unsigned_abs()))).chain(kinds);
    rules.insert(libc::SYS_socketpair, all(pairs.collect())?);
    // Limits, turns and places of other processes: the first argument names them, 0 is the caller.
    for call in
        [libc::SYS_prlimit64, libc::SYS_sched_setaffinity, libc::SYS_sched_setscheduler, libc::SYS_sched_setparam, libc::SYS_sched_setattr]
    {
        rules.insert(call, all(vec![is(0, Op::Ne, 0)])?);
    }
    rules.insert(libc::SYS_setpriority, all(vec![is(0, Op::Ne, 0), is(1, Op::Ne, 0)])?);
    rules.insert(libc::SYS_ioprio_set, all(vec![is(0, Op::Ne, 1), is(1, Op::Ne, 0)])?);
    // Times of an open file have no path. Both halves of the pointer count.
    let path = SeccompCondition::new(1, Len::Qword, Op::Ne, 0).and_then(|condition| SeccompRule::new(vec![condition]));
    rules.insert(libc::SYS_utimensat, vec![path.map_err(|error| format!("the filter of system calls: {error}"))?]);
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_compile_and_refuse_a_superuser_more() {
        let (user, superuser) = (refused(false).unwrap(), refused(true).unwrap());

        assert!(filter(user.clone(), libc::EPERM).is_ok() && filter(unknown_calls(), libc::ENOSYS).is_ok());
        assert_eq!(superuser.len() - user.len(), REFUSED_TO_SUPERUSER.len());
        let known = [UNKNOWN, UNKNOWN_HERE, REFUSED, REFUSED_HERE].concat();
        assert!(known.iter().all(|call| *call <= i64::from(LAST)));
    }

    #[cfg(feature = "pdf")]
    #[test]
    fn a_parser_can_open_reach_and_start_nothing() {
        use std::{fs::File, net::TcpStream, process::Command};
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();

        // A filter holds for the thread that put it on.
        let tried = std::thread::spawn(move || {
            install_for_parser().unwrap();
            let refused = |result: std::io::Result<()>| result.map_err(|error| error.raw_os_error());
            [
                refused(File::open("/etc/hostname").map(drop)),
                refused(File::create("/tmp/callboard-never").map(drop)),
                refused(std::fs::metadata("/etc").map(drop)),
                refused(TcpStream::connect(address).map(drop)),
                refused(Command::new("/bin/true").spawn().map(drop)),
                refused(std::thread::Builder::new().spawn(|| ()).map(drop)),
                refused(std::os::unix::net::UnixStream::pair().map(drop)),
            ]
        });

        assert_eq!(tried.join().unwrap(), [Err(Some(libc::EPERM)); 7]);
    }
}
