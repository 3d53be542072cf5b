//! The seccomp filter of every command, behind both boundaries. A boundary consists of files and
//! namespaces; the filter closes what neither of them covers.
//!
//! # Layout
//! `calls` holds the lists · this file compiles a list to one program, which a helper applies
//! ([`install`]) or bubblewrap receives ([`bytes`]) · `parser` is the filter of the PDF reader, an
//! allow-list · `tests` interpret the programs as the kernel does, call by call.
//!
//! Both boundaries refuse keyrings, io_uring, mounts, namespaces, file handles, leases, administration,
//! calls newer than the list, and every type of socket except internet sockets and unnamed pairs.
//! Landlock has no namespaces, so behind it the filter also refuses internet sockets, other
//! processes and System V IPC. A filter sees numbers, not paths. So where other mounts are writable
//! ([`Outside`]), it refuses every `chmod`, `chown` and change of times or attributes by path.
//! Operations on an open file stay allowed, except for a superuser, who owns the system's files and
//! could change the mode of one that it may read.
//!
//! **Still possible behind Landlock:** to learn with `stat` whether a path outside exists, and its
//! size, owner and times; to read where a link leads; to enter a folder outside without listing it;
//! and, as a superuser, to set the times of a system file to now.

mod calls;
#[cfg(feature = "pdf")]
mod parser;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, sock_filter,
};
use serde::{Deserialize, Serialize};

#[cfg(feature = "pdf")]
pub(super) use self::parser::install_for_parser;

/// The boundary that a filter completes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behind {
    /// Landlock restricts files and signals only.
    Landlock(Outside),
    /// Bubblewrap gives the command separate network, process, IPC and user namespaces.
    Namespaces(UnixSockets),
}

/// Whether modes, owners, attributes and times of files outside the workspace could be changed
/// without a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outside {
    /// All other mounts are read-only.
    ReadOnly,
    /// Other mounts are writable. Changes by path are refused; to a superuser, who owns the
    /// system's files, changes of open files as well.
    Writable {
        /// Whether the command keeps the superuser's user id.
        superuser: bool,
    },
}

/// Whether a command behind bubblewrap may create Unix sockets other than pairs. No filter sees the
/// path that a socket connects to, and the workspace may hold the socket of one of the user's
/// servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnixSockets {
    /// The filter of every command.
    Refused,
    /// The filter of the forwarder, which starts before the command.
    Allowed,
}

/// What happens to calls that create memory which appears in no process's figures, for example a
/// memory file that was written and is not mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Uncounted {
    /// The calls fail as unknown. Programs then use a file in `/tmp` or `/dev/shm`, whose size is
    /// bounded.
    Unknown,
    /// The calls are left to the filter installed before this one.
    Allowed,
}

/// Applies the filter to this process and all its future children.
pub(super) fn install(behind: Behind, uncounted: Uncounted) -> Result<(), String> {
    seccompiler::apply_filter(&program(behind, uncounted)?).map_err(failed)
}

/// The filter in the format of bubblewrap's `--seccomp`: the instructions in the kernel's memory
/// layout.
pub(super) fn bytes(behind: Behind, uncounted: Uncounted) -> Result<Vec<u8>, String> {
    let instruction = |step: sock_filter| {
        let mut bytes = step.code.to_ne_bytes().to_vec();
        bytes.extend([step.jt, step.jf]);
        bytes.extend(step.k.to_ne_bytes());
        bytes
    };
    Ok(program(behind, uncounted)?
        .into_iter()
        .flat_map(instruction)
        .collect())
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn failed(error: impl std::fmt::Display) -> String {
    format!("the filter of system calls: {error}")
}

fn arch() -> Result<TargetArch, String> {
    std::env::consts::ARCH
        .try_into()
        .map_err(|_| "no filter of system calls for this processor".to_owned())
}

/// Builds one program of six parts: calls beyond the list, unknown calls, pretended calls, room on
/// the disk, further filters, refused calls. A call that a part does not name falls through to the
/// next part.
fn program(behind: Behind, uncounted: Uncounted) -> Result<BpfProgram, String> {
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    // Load the call's number; above the last reviewed one, return "no such call".
    let mut program = vec![
        step(0x20, 0, 0, 0),
        step(0x25, 0, 1, calls::LAST),
        step(0x06, 0, 0, 0x0005_0000 | libc::ENOSYS.unsigned_abs()),
    ];
    program.extend(part(unknown(behind, uncounted), libc::ENOSYS)?);
    // The last step of a part allows every call that the part does not name; dropping it lets those
    // calls fall through. These rules check no arguments, so no other step allows a call.
    program.pop();
    program.extend(pretended());
    program.extend(reserves_nothing());
    // Beside a forwarder the command gets its own filter, behind this one.
    if !matches!(behind, Behind::Namespaces(UnixSockets::Allowed)) {
        program.extend(calls::FILTERS.into_iter().flat_map(has_no_filters));
    }
    program.extend(part(refused(behind)?, libc::EPERM)?);
    Ok(program)
}

/// Reserving room on the disk is not supported.
fn reserves_nothing() -> [sock_filter; 5] {
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let mode = 24 + if cfg!(target_endian = "big") { 4 } else { 0 };
    [
        step(0x20, 0, 0, 0),
        step(0x15, 0, 3, calls::RESERVE),
        step(0x20, 0, 0, mode),
        step(0x45, 1, 0, calls::TAKES_NOTHING.unsigned_abs()),
        step(0x06, 0, 0, 0x0005_0000 | libc::EOPNOTSUPP.unsigned_abs()),
    ]
}

/// A call that installs a filter of system calls fails as where the kernel has none: programs then go
/// on without.
fn has_no_filters((call, installs): (u32, u32)) -> [sock_filter; 5] {
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let first = 16 + if cfg!(target_endian = "big") { 4 } else { 0 };
    [
        step(0x20, 0, 0, 0),
        step(0x15, 0, 3, call),
        step(0x20, 0, 0, first),
        step(0x15, 0, 1, installs),
        step(0x06, 0, 0, 0x0005_0000 | libc::EINVAL.unsigned_abs()),
    ]
}

/// Setting the size of a socket's buffers succeeds without effect, as where the machine's limit is
/// smaller. The number of sockets then bounds the memory that a command holds in them
/// (`exec::machine`).
fn pretended() -> Vec<sock_filter> {
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let argument = |n: u32| {
        step(
            0x20,
            0,
            0,
            16 + 8 * n + if cfg!(target_endian = "big") { 4 } else { 0 },
        )
    };
    let is_not = |k: i32, past| step(0x15, 0, past, k.unsigned_abs());
    let options = calls::BUFFER_SIZES;
    let past = u8::try_from(options.len()).unwrap_or(u8::MAX);
    let mut steps = vec![
        step(0x20, 0, 0, 0),
        step(0x15, 0, past + 5, calls::SET_OPTION),
        argument(1),
        is_not(libc::SOL_SOCKET, past + 3),
    ];
    steps.push(argument(2));
    steps.extend(
        options
            .iter()
            .zip((1..=past).rev())
            .map(|(option, left)| step(0x15, left, 0, option.unsigned_abs())),
    );
    // No match: jump over the answer.
    steps.extend([step(0x05, 0, 0, 1), step(0x06, 0, 0, 0x0005_0000)]);
    steps
}

fn part(rules: Rules, errno: i32) -> Result<BpfProgram, String> {
    SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(errno.unsigned_abs()),
        arch()?,
    )
    .and_then(BpfProgram::try_from)
    .map_err(failed)
}

fn whole<'a>(lists: impl IntoIterator<Item = &'a [i64]>) -> Rules {
    lists
        .into_iter()
        .flatten()
        .map(|call| (*call, Vec::new()))
        .collect()
}

fn unknown(behind: Behind, uncounted: Uncounted) -> Rules {
    let mut lists = vec![calls::UNKNOWN];
    if uncounted == Uncounted::Unknown {
        lists.push(calls::UNCOUNTED);
    }
    match (behind, uncounted) {
        (Behind::Landlock(_), _) => lists.push(calls::LANDLOCK_UNKNOWN),
        (Behind::Namespaces(_), Uncounted::Unknown) => lists.push(calls::NAMESPACES_UNCOUNTED),
        (Behind::Namespaces(_), Uncounted::Allowed) => {}
    }
    whole(lists)
}

fn refused(behind: Behind) -> Result<Rules, String> {
    let mut rules = whole([calls::REFUSED, calls::REFUSED_HERE]);
    let flags = calls::CLONE_FLAGS
        .iter()
        .map(|flag| u64::from(flag.unsigned_abs()));
    let namespaces = flags.map(|flag| rule([is(0, Op::MaskedEq(flag), flag)]));
    let files_apart = is(
        0,
        Op::MaskedEq(calls::THREAD | calls::SHARES_FILES),
        calls::THREAD,
    );
    let clones = namespaces.chain([rule([files_apart])]);
    rules.insert(libc::SYS_clone, clones.collect::<Result<_, _>>()?);
    let unshared = is(
        2,
        Op::MaskedEq(calls::CLOSE_UNSHARED),
        calls::CLOSE_UNSHARED,
    );
    rules.insert(libc::SYS_close_range, vec![rule([unshared])?]);
    let kinds = (0..16)
        .filter(|kind| !calls::PAIRS.contains(kind))
        .map(|kind| rule([is(1, Op::MaskedEq(0xf), kind)]));
    let pairs = std::iter::once(rule([is(0, Op::Ne, family(libc::AF_UNIX))])).chain(kinds);
    rules.insert(libc::SYS_socketpair, pairs.collect::<Result<_, _>>()?);
    let programs = calls::PROGRAMS.iter().map(|option| {
        let of_sockets = is(1, Op::Eq, u64::from(libc::SOL_SOCKET.unsigned_abs()));
        rule([of_sockets, is(2, Op::Eq, u64::from(option.unsigned_abs()))])
    });
    rules.insert(libc::SYS_setsockopt, programs.collect::<Result<_, _>>()?);
    let mut controls = calls::CONTROLS.to_vec();
    match behind {
        Behind::Landlock(outside) => {
            rules.extend(landlock(outside)?);
            controls.extend(calls::LANDLOCK_CONTROLS);
        }
        Behind::Namespaces(unix) => {
            rules.insert(libc::SYS_socket, sockets(unix)?);
        }
    }
    for (call, mode, flags) in calls::MODES.iter().chain(calls::MODES_HERE) {
        if !rules.contains_key(call) {
            rules.insert(*call, owners_rights(*mode, *flags)?);
        }
    }
    for (call, second) in [
        (libc::SYS_ioctl, controls.as_slice()),
        (libc::SYS_fcntl, calls::LEASES),
    ] {
        let each = second.iter().map(|value| rule([is(1, Op::Eq, *value)]));
        rules.insert(call, each.collect::<Result<_, _>>()?);
    }
    Ok(rules)
}

/// Rules that Landlock needs beyond those of both boundaries.
fn landlock(outside: Outside) -> Result<Rules, String> {
    let mut rules = whole([calls::LANDLOCK]);
    if let Outside::Writable { superuser } = outside {
        rules.extend(whole([calls::ATTRIBUTES, calls::ATTRIBUTES_HERE]));
        if superuser {
            rules.extend(whole([calls::ATTRIBUTES_OF_OPEN_FILES]));
        }
        // Setting the times of an open file passes a null path. The pointer has two halves, and
        // both are compared.
        rules.insert(
            libc::SYS_utimensat,
            vec![rule([SeccompCondition::new(1, Len::Qword, Op::Ne, 0)])?],
        );
    }
    for call in calls::OF_A_PROCESS {
        rules.insert(*call, vec![rule([is(0, Op::Ne, 0)])?]);
    }
    rules.insert(
        libc::SYS_setpriority,
        vec![rule([is(0, Op::Ne, 0)])?, rule([is(1, Op::Ne, 0)])?],
    );
    rules.insert(
        libc::SYS_ioprio_set,
        vec![rule([is(0, Op::Ne, 1)])?, rule([is(1, Op::Ne, 0)])?],
    );
    Ok(rules)
}

/// Refuses a mode with the set-user-ID bit. With `flags`, the index of an argument, refuses it only
/// if those flags create a file.
fn owners_rights(mode: u8, flags: Option<u8>) -> Result<Vec<SeccompRule>, String> {
    let all_of = |argument, bits: i32| {
        is(
            argument,
            Op::MaskedEq(u64::from(bits.unsigned_abs())),
            u64::from(bits.unsigned_abs()),
        )
    };
    let set_user_id = || {
        is(
            mode,
            Op::MaskedEq(u64::from(libc::S_ISUID)),
            u64::from(libc::S_ISUID),
        )
    };
    match flags {
        None => Ok(vec![rule([set_user_id()])?]),
        Some(flags) => [libc::O_CREAT, libc::O_TMPFILE & !libc::O_DIRECTORY]
            .into_iter()
            .map(|creates| rule([all_of(flags, creates), set_user_id()]))
            .collect(),
    }
}

/// Sockets that a command may create in its separate network namespace: internet sockets, and
/// netlink for routes, with which programs list addresses. Families such as vsock belong to the
/// whole machine and ignore the namespace.
fn sockets(unix: UnixSockets) -> Result<Vec<SeccompRule>, String> {
    let mut families = vec![
        family(libc::AF_INET),
        family(libc::AF_INET6),
        family(libc::AF_NETLINK),
    ];
    if unix == UnixSockets::Allowed {
        families.push(family(libc::AF_UNIX));
    }
    let netlink = family(libc::AF_NETLINK);
    let mut rules = vec![
        rule(families.into_iter().map(|family| is(0, Op::Ne, family)))?,
        rule([
            is(0, Op::Eq, netlink),
            is(2, Op::Ne, libc::NETLINK_ROUTE as u64),
        ])?,
        rule(
            std::iter::once(is(0, Op::Ne, netlink)).chain(
                calls::PROTOCOLS
                    .iter()
                    .map(|protocol| is(2, Op::Ne, *protocol)),
            ),
        )?,
    ];
    for kind in calls::OTHER_KINDS {
        rules.push(rule([
            is(0, Op::Ne, netlink),
            is(1, Op::MaskedEq(0xf), *kind),
        ])?);
    }
    Ok(rules)
}

fn family(family: i32) -> u64 {
    u64::from(family.unsigned_abs())
}

type Condition = Result<SeccompCondition, seccompiler::BackendError>;

fn is(argument: u8, op: Op, value: u64) -> Condition {
    SeccompCondition::new(argument, Len::Dword, op, value)
}

/// A rule that matches if all its conditions do.
fn rule(conditions: impl IntoIterator<Item = Condition>) -> Result<SeccompRule, String> {
    conditions
        .into_iter()
        .collect::<Result<Vec<_>, _>>()
        .and_then(SeccompRule::new)
        .map_err(failed)
}
