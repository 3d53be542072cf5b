//! Interprets the filter programs as the kernel does, and checks the result of single calls.

use super::*;

const ALLOWED: u32 = 0x7fff_0000;
const EPERM: u32 = 0x0005_0000 | libc::EPERM as u32;
const ENOSYS: u32 = 0x0005_0000 | libc::ENOSYS as u32;
const KILLED: u32 = 0x8000_0000;

/// The filter of a command behind bubblewrap.
const COMMAND: Behind = Behind::Namespaces(UnixSockets::Refused);
const LANDLOCK: Behind = Behind::Landlock(Outside::Writable { superuser: false });

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;

/// Runs one call through a program and returns the result.
fn run(program: &[sock_filter], arch: u32, number: u32, arguments: &[u64]) -> u32 {
    let mut data = [0_u8; 64];
    data[0..4].copy_from_slice(&number.to_ne_bytes());
    data[4..8].copy_from_slice(&arch.to_ne_bytes());
    for (n, argument) in arguments.iter().enumerate() {
        data[16 + 8 * n..24 + 8 * n].copy_from_slice(&argument.to_ne_bytes());
    }
    let mut at = 0;
    let mut value = 0_u32;
    loop {
        let sock_filter { code, jt, jf, k } = &program[at];
        at += 1;
        let mut jump = |taken: bool| at += usize::from(if taken { *jt } else { *jf });
        match code {
            0x20 => {
                value = u32::from_ne_bytes(data[*k as usize..*k as usize + 4].try_into().unwrap())
            }
            0x54 => value &= k,
            0x05 => at += *k as usize,
            0x15 => jump(value == *k),
            0x25 => jump(value > *k),
            0x35 => jump(value >= *k),
            0x45 => jump(value & k != 0),
            0x06 => return *k,
            other => panic!("instruction {other:#x}"),
        }
    }
}

fn verdict(behind: Behind, uncounted: Uncounted, call: i64, arguments: &[u64]) -> u32 {
    run(
        &program(behind, uncounted).unwrap(),
        ARCH,
        call as u32,
        arguments,
    )
}

fn every() -> [Behind; 5] {
    let landlock = [Outside::ReadOnly, Outside::Writable { superuser: true }].map(Behind::Landlock);
    [
        LANDLOCK,
        landlock[0],
        landlock[1],
        COMMAND,
        Behind::Namespaces(UnixSockets::Allowed),
    ]
}

#[test]
fn what_is_refused_behind_both_boundaries_is_refused_in_every_filter() {
    let lists = [calls::REFUSED, calls::REFUSED_HERE].concat();

    for behind in every() {
        assert_eq!(
            lists
                .iter()
                .find(|call| verdict(behind, Uncounted::Allowed, **call, &[]) != EPERM),
            None,
            "{behind:?}"
        );
        assert_eq!(
            calls::UNKNOWN
                .iter()
                .find(|call| verdict(behind, Uncounted::Allowed, **call, &[]) != ENOSYS),
            None,
            "{behind:?}"
        );
        for flag in calls::CLONE_FLAGS {
            let flags = u64::from(flag.unsigned_abs()) | 17;
            assert_eq!(
                verdict(behind, Uncounted::Allowed, libc::SYS_clone, &[flags]),
                EPERM,
                "{behind:?} {flag:#x}"
            );
        }
        for request in [0x5412, 0x541C, 0xffff_ffff_0000_5412] {
            assert_eq!(
                verdict(behind, Uncounted::Allowed, libc::SYS_ioctl, &[0, request]),
                EPERM,
                "{behind:?} {request:#x}"
            );
        }
    }
}

#[test]
fn room_on_the_disk_is_taken_by_writing_only() {
    const UNSUPPORTED: u32 = 0x0005_0000 | libc::EOPNOTSUPP as u32;
    for behind in every() {
        let with = |call, argument| verdict(behind, Uncounted::Unknown, call, &[3, argument]);
        // Plain, of the same size, filled with zeros, inserted, and no longer shared.
        for mode in [0, 1, 0x10, 0x11, 0x20, 0x40] {
            assert_eq!(with(libc::SYS_fallocate, mode), UNSUPPORTED, "{mode:#x}");
        }
        for mode in [3, 8] {
            assert_eq!(with(libc::SYS_fallocate, mode), ALLOWED, "{mode:#x}");
        }
        for request in [0x4030_5828, 0x4030_582A, 0x4030_5839] {
            assert_eq!(with(libc::SYS_ioctl, request), EPERM, "{request:#x}");
        }
    }
}

#[test]
fn threads_of_a_process_share_its_open_files() {
    let thread = libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
    let with = |flags: i32| u64::from(flags.unsigned_abs());
    for behind in every() {
        let clone = |flags| verdict(behind, Uncounted::Allowed, libc::SYS_clone, &[flags]);
        assert_eq!(clone(with(thread)), EPERM, "{behind:?}");
        assert_eq!(
            clone(with(thread | libc::CLONE_FILES)),
            ALLOWED,
            "{behind:?}"
        );
        assert_eq!(clone(17), ALLOWED, "{behind:?}: a process");

        let close = |flags| {
            let arguments = [3, 9, flags];
            verdict(
                behind,
                Uncounted::Allowed,
                libc::SYS_close_range,
                &arguments,
            )
        };
        assert_eq!(close(2), EPERM, "{behind:?}");
        assert_eq!([close(0), close(4)], [ALLOWED; 2], "{behind:?}");
    }
}

#[test]
fn the_buffers_of_a_socket_keep_their_size_and_its_other_options_are_set() {
    const PRETENDED: u32 = 0x0005_0000;
    let set = |behind, level: i32, option: i32| {
        verdict(
            behind,
            Uncounted::Unknown,
            libc::SYS_setsockopt,
            &[3, level.unsigned_abs().into(), option.unsigned_abs().into()],
        )
    };
    for behind in every() {
        for option in calls::BUFFER_SIZES {
            assert_eq!(
                set(behind, libc::SOL_SOCKET, option),
                PRETENDED,
                "{behind:?} {option}"
            );
            assert_eq!(
                set(behind, libc::IPPROTO_TCP, option),
                ALLOWED,
                "{behind:?} {option} of TCP"
            );
        }
        for option in (0..64).filter(|option| !calls::BUFFER_SIZES.contains(option)) {
            let expected = match calls::PROGRAMS.contains(&option) {
                true => EPERM,
                false => ALLOWED,
            };
            assert_eq!(
                set(behind, libc::SOL_SOCKET, option),
                expected,
                "{behind:?} {option}"
            );
        }
        assert_eq!(
            verdict(behind, Uncounted::Unknown, libc::SYS_getsockopt, &[3, 1, 7]),
            ALLOWED,
            "{behind:?}"
        );
    }
}

/// The machine has one bound for the memory of all programs of this kind.
#[test]
fn a_command_attaches_no_program_to_a_socket_and_installs_no_further_filter() {
    const EINVAL: u32 = 0x0005_0000 | libc::EINVAL as u32;
    let (option, get) = (libc::PR_SET_SECCOMP as u64, libc::PR_GET_SECCOMP as u64);
    let commands = every().into_iter();
    let beside_forwarder =
        |behind: &Behind| matches!(behind, Behind::Namespaces(UnixSockets::Allowed));
    for behind in commands.filter(|behind| !beside_forwarder(behind)) {
        let verdict = |call, first| verdict(behind, Uncounted::Unknown, call, &[first, 2]);
        let socket = [3, libc::SOL_SOCKET as u64, libc::SO_ATTACH_FILTER as u64];
        let attach = self::verdict(behind, Uncounted::Allowed, libc::SYS_setsockopt, &socket);

        assert_eq!(attach, EPERM, "{behind:?}");
        assert_eq!(verdict(libc::SYS_prctl, option), EINVAL, "{behind:?}");
        assert_eq!(verdict(libc::SYS_prctl, get), ALLOWED, "{behind:?}");
        assert_eq!(verdict(libc::SYS_seccomp, 1), EINVAL, "{behind:?}");
        assert_eq!(verdict(libc::SYS_seccomp, 2), ALLOWED, "{behind:?}");
    }
}

#[test]
fn ordinary_calls_are_allowed_in_every_filter() {
    let ordinary: [(i64, &[u64]); 14] = [
        (libc::SYS_read, &[]),
        (libc::SYS_openat, &[]),
        (libc::SYS_execve, &[]),
        (libc::SYS_clone, &[17]),
        (libc::SYS_clone, &[0x3d_0f00]),
        (libc::SYS_wait4, &[]),
        (libc::SYS_ioctl, &[0, 0x5401]),
        (libc::SYS_socketpair, &[1, 0x8_0001]),
        (libc::SYS_socketpair, &[1, 5]),
        (libc::SYS_prlimit64, &[0]),
        (libc::SYS_sched_setaffinity, &[0]),
        (libc::SYS_utimensat, &[3, 0]),
        (libc::SYS_mmap, &[]),
        (i64::from(calls::LAST), &[]),
    ];

    for behind in every() {
        for (call, arguments) in ordinary {
            assert_eq!(
                verdict(behind, Uncounted::Unknown, call, arguments),
                ALLOWED,
                "{behind:?} {call}"
            );
        }
    }
}

#[test]
fn a_command_behind_bubblewrap_makes_sockets_of_the_internet_and_no_others() {
    let made = |unix, arguments: &[u64]| {
        verdict(
            Behind::Namespaces(unix),
            Uncounted::Unknown,
            libc::SYS_socket,
            arguments,
        ) == ALLOWED
    };

    for fine in [
        [2, 1, 0],
        [2, 0x8_0801, 6],
        [2, 2, 17],
        [10, 1, 0],
        [10, 2, 0],
        [16, 3, 0],
    ] {
        assert!(made(UnixSockets::Refused, &fine), "{fine:?}");
    }
    for family in (0..64).filter(|family| ![2, 10, 16].contains(family)) {
        for kind in [1, 2] {
            assert!(
                !made(UnixSockets::Refused, &[family, kind, 0]),
                "{family} {kind}"
            );
            assert_eq!(
                made(UnixSockets::Allowed, &[family, kind, 0]),
                family == 1,
                "{family} {kind}"
            );
        }
    }
    // Raw, ICMP, SCTP twice, device packets, MPTCP, and netlink other than routes.
    for other in [
        [2, 3, 255],
        [2, 3, 6],
        [2, 2, 1],
        [2, 1, 132],
        [2, 5, 0],
        [2, 10, 3],
        [10, 1, 262],
        [10, 0x8_0003, 17],
        [16, 3, 15],
        [16, 3, 4],
    ] {
        assert!(!made(UnixSockets::Allowed, &other), "{other:?}");
    }
    // The kernel ignores the upper half of the argument, and so does the filter.
    assert!(
        !made(UnixSockets::Refused, &[1 << 32 | 1, 1, 0])
            && made(UnixSockets::Refused, &[1 << 32 | 2, 1, 0])
    );
}

#[test]
fn landlock_refuses_every_socket_and_a_superuser_more() {
    let judged = |superuser, call, arguments: &[u64]| {
        verdict(
            Behind::Landlock(Outside::Writable { superuser }),
            Uncounted::Unknown,
            call,
            arguments,
        )
    };

    for list in [calls::LANDLOCK, calls::ATTRIBUTES, calls::ATTRIBUTES_HERE] {
        assert_eq!(
            list.iter()
                .find(|call| judged(false, **call, &[2, 1, 0]) != EPERM),
            None
        );
    }
    for call in calls::ATTRIBUTES_OF_OPEN_FILES {
        assert_eq!(
            (judged(false, *call, &[]), judged(true, *call, &[])),
            (ALLOWED, EPERM)
        );
    }
    for call in calls::OF_A_PROCESS {
        assert_eq!(judged(false, *call, &[1]), EPERM);
    }
    assert_eq!(judged(false, libc::SYS_utimensat, &[3, 1 << 40]), EPERM);
    assert_eq!(judged(false, libc::SYS_inotify_init1, &[]), ENOSYS);
    assert_eq!(
        [1, 2].map(|kind| judged(false, libc::SYS_socketpair, &[1, kind])),
        [ALLOWED, EPERM]
    );
}

#[test]
fn memory_that_is_in_no_figures_is_unknown_unless_something_else_bounds_it() {
    let with = |behind, uncounted, call| verdict(behind, uncounted, call, &[]);

    for behind in every() {
        assert_eq!(
            with(behind, Uncounted::Unknown, libc::SYS_memfd_create),
            ENOSYS
        );
        assert_eq!(
            with(behind, Uncounted::Allowed, libc::SYS_memfd_create),
            ALLOWED
        );
        assert_eq!(
            with(behind, Uncounted::Allowed, libc::SYS_memfd_secret),
            ENOSYS
        );
    }
    for call in calls::NAMESPACES_UNCOUNTED {
        assert_eq!(
            [Uncounted::Unknown, Uncounted::Allowed]
                .map(|uncounted| with(COMMAND, uncounted, *call)),
            [ENOSYS, ALLOWED]
        );
        assert_eq!(
            [Uncounted::Unknown, Uncounted::Allowed]
                .map(|uncounted| with(LANDLOCK, uncounted, *call)),
            [EPERM, EPERM]
        );
    }
}

#[test]
fn calls_beyond_the_list_are_unknown_and_another_processors_calls_end_the_process() {
    for behind in every() {
        let program = program(behind, Uncounted::Unknown).unwrap();
        let judged = |arch, number| run(&program, arch, number, &[2, 1, 0]);

        // Future calls, the 32-bit calls of x86-64 (`socket` among them), and -1.
        assert_eq!(
            [calls::LAST + 1, 468, 0x4000_0000, 0x4000_0029, u32::MAX]
                .map(|number| judged(ARCH, number)),
            [ENOSYS; 5]
        );
        // On another architecture the same numbers mean other calls: 359 is `socket` on i386.
        assert_eq!(
            [5, 102, 359].map(|number| judged(0x4000_0003, number)),
            [KILLED; 3]
        );
    }
}

/// Once a user has used up the kernel's pipe allowance, new pipes hold two pages.
#[test]
fn a_filter_fits_into_the_smallest_pipe() {
    for unix in [UnixSockets::Refused, UnixSockets::Allowed] {
        let bytes = bytes(Behind::Namespaces(unix), Uncounted::Unknown).unwrap();

        println!("the filter has {} bytes", bytes.len());
        assert!(
            bytes.len() <= 8192 && bytes.len().is_multiple_of(8),
            "{}",
            bytes.len()
        );
    }
}

#[test]
fn attributes_by_path_are_refused_only_where_other_mounts_can_be_written() {
    let judged = |outside, call| {
        verdict(
            Behind::Landlock(outside),
            Uncounted::Unknown,
            call,
            &[1, 2, 0o755, 0],
        )
    };

    for call in [
        calls::ATTRIBUTES,
        calls::ATTRIBUTES_HERE,
        calls::ATTRIBUTES_OF_OPEN_FILES,
        &[libc::SYS_utimensat],
    ]
    .concat()
    {
        assert_eq!(judged(Outside::ReadOnly, call), ALLOWED, "{call}");
        assert_eq!(
            judged(Outside::Writable { superuser: true }, call),
            EPERM,
            "{call}"
        );
    }
}

#[test]
fn no_filter_lets_a_file_be_made_that_runs_with_its_owners_rights() {
    for behind in every() {
        for (call, mode, flags) in calls::MODES.iter().chain(calls::MODES_HERE) {
            let mut arguments = [0_u64; 6];
            arguments[usize::from(*mode)] = 0o104_755;
            if let Some(flags) = flags {
                assert_eq!(
                    verdict(behind, Uncounted::Unknown, *call, &arguments),
                    ALLOWED,
                    "{behind:?} {call}: it creates nothing"
                );
                arguments[usize::from(*flags)] = u64::from(libc::O_CREAT.unsigned_abs()) | 1;
            }
            assert_eq!(
                verdict(behind, Uncounted::Unknown, *call, &arguments),
                EPERM,
                "{behind:?} {call}"
            );
        }
        assert_eq!(
            verdict(behind, Uncounted::Unknown, libc::SYS_openat2, &[]),
            ENOSYS,
            "{behind:?}: its mode cannot be seen"
        );
    }
}

#[test]
fn a_command_takes_no_lease_by_which_programs_outside_would_wait() {
    for behind in every() {
        for command in calls::LEASES {
            let arguments = [3, *command, 1];
            assert_eq!(
                verdict(behind, Uncounted::Allowed, libc::SYS_fcntl, &arguments),
                EPERM,
                "{behind:?} {command}"
            );
        }
        for command in [
            libc::F_DUPFD,
            libc::F_GETFL,
            libc::F_SETLK,
            libc::F_GETLEASE,
        ] {
            let arguments = [3, u64::from(command.unsigned_abs()), 1];
            assert_eq!(
                verdict(behind, Uncounted::Allowed, libc::SYS_fcntl, &arguments),
                ALLOWED,
                "{behind:?} {command}"
            );
        }
    }
}
