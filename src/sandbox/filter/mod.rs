//! The filter of system calls that every command runs under, behind both boundaries. A boundary is made of files and namespaces; the
//! filter closes what neither of them looks at.
//!
//! # Layout
//! `calls` the lists · this file makes one program of them, to be put on by a helper ([`install`]) or handed to bubblewrap
//! ([`bytes`]) · `parser` the filter of the reader of PDFs, which allows by list instead · `tests` run the programs as the kernel
//! does, call by call.
//!
//! Behind both: keyrings, rings of io, mounts, namespaces, handles of files, administration, calls newer than the list, and every
//! kind of socket but those of the internet and unnamed pairs. Behind Landlock, which has no namespaces, also the sockets of the
//! internet, other processes, System V IPC, and, where other mounts could be written ([`Outside`]), `chmod`, `chown`, times and
//! attributes by path: a filter sees numbers and no paths.
//! What can be done to an open file stays, but for a superuser, who owns the system's files and could change the mode of one that it
//! may read.
//!
//! **Stays possible behind Landlock:** asking whether a path outside exists, and its size, owner and times (`stat`), where a link
//! leads, being in a folder outside without listing it; for a superuser, setting the times of a system file to now.

mod calls;
#[cfg(feature = "pdf")]
mod parser;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
    sock_filter,
};
use serde::{Deserialize, Serialize};

#[cfg(feature = "pdf")]
pub(super) use self::parser::install_for_parser;

/// The boundary that a filter completes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behind {
    /// Landlock knows files and signals, nothing else.
    Landlock(Outside),
    /// Bubblewrap: the command has its own network, processes, IPC and users.
    Namespaces(UnixSockets),
}

/// Whether modes, owners, attributes and times of files outside of the workspace could be changed, if no filter refused it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outside {
    /// All other mounts are read-only.
    ReadOnly,
    /// Changes by path are refused; to a superuser, who owns the system's files, also those of open files.
    Writable {
        /// Whether the command keeps the number of the superuser.
        superuser: bool,
    },
}

/// Whether a command behind bubblewrap may make a Unix socket that is not one of a pair. No filter sees the path that a socket is
/// connected to, and the workspace may hold the socket of one of the user's servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnixSockets {
    /// For every command.
    Refused,
    /// For the forwarder, which is started before the command.
    Allowed,
}

/// Memory that no process's figures show, for example a file in memory that was written and is not mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Uncounted {
    /// As if the kernel did not know the calls: programs then use a file in `/tmp` or `/dev/shm`, which is bounded.
    Unknown,
    /// Left to the filter below this one.
    Allowed,
}

/// Puts the filter over this process and all that come of it.
pub(super) fn install(behind: Behind, uncounted: Uncounted) -> Result<(), String> {
    seccompiler::apply_filter(&program(behind, uncounted)?).map_err(failed)
}

/// The filter as bubblewrap reads it (`--seccomp`): the instructions as they lie in the kernel's memory.
pub(super) fn bytes(behind: Behind, uncounted: Uncounted) -> Result<Vec<u8>, String> {
    let instruction = |step: sock_filter| {
        let mut bytes = step.code.to_ne_bytes().to_vec();
        bytes.extend([step.jt, step.jf]);
        bytes.extend(step.k.to_ne_bytes());
        bytes
    };
    Ok(program(behind, uncounted)?.into_iter().flat_map(instruction).collect())
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn failed(error: impl std::fmt::Display) -> String {
    format!("the filter of system calls: {error}")
}

fn arch() -> Result<TargetArch, String> {
    std::env::consts::ARCH.try_into().map_err(|_| "no filter of system calls for this processor".to_owned())
}

/// One program of four parts: calls beyond the list, unknown ones, pretended ones, refused ones. A call that one part does not name goes to the next.
fn program(behind: Behind, uncounted: Uncounted) -> Result<BpfProgram, String> {
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    // Load the number; beyond the last one known, "no such call".
    let mut program = vec![step(0x20, 0, 0, 0), step(0x25, 0, 1, calls::LAST), step(0x06, 0, 0, 0x0005_0000 | libc::ENOSYS.unsigned_abs())];
    program.extend(part(unknown(behind, uncounted), libc::ENOSYS)?);
    // The last step of a part allows what it does not name. These rules look at no argument, so no other step of it does.
    program.pop();
    program.extend(pretended());
    program.extend(part(refused(behind)?, libc::EPERM)?);
    Ok(program)
}

/// Setting the size of a socket's buffers comes back as if it was done, as it does where the machine's bound is smaller. What a command
/// can hold in sockets is then known by their number ([`super::machine`]).
fn pretended() -> Vec<sock_filter> {
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let argument = |n: u32| step(0x20, 0, 0, 16 + 8 * n + if cfg!(target_endian = "big") { 4 } else { 0 });
    let is_not = |k: i32, past| step(0x15, 0, past, k.unsigned_abs());
    let options = calls::BUFFER_SIZES;
    let past = u8::try_from(options.len()).unwrap_or(u8::MAX);
    let mut steps = vec![step(0x20, 0, 0, 0), step(0x15, 0, past + 5, calls::SET_OPTION), argument(1), is_not(libc::SOL_SOCKET, past + 3)];
    steps.push(argument(2));
    steps.extend(options.iter().zip((1..=past).rev()).map(|(option, left)| step(0x15, left, 0, option.unsigned_abs())));
    // None of them: past the answer.
    steps.extend([step(0x05, 0, 0, 1), step(0x06, 0, 0, 0x0005_0000)]);
    steps
}

fn part(rules: Rules, errno: i32) -> Result<BpfProgram, String> {
    SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno.unsigned_abs()), arch()?)
        .and_then(BpfProgram::try_from)
        .map_err(failed)
}

fn whole<'a>(lists: impl IntoIterator<Item = &'a [i64]>) -> Rules {
    lists.into_iter().flatten().map(|call| (*call, Vec::new())).collect()
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
    let flags = calls::CLONE_FLAGS.iter().map(|flag| u64::from(flag.unsigned_abs()));
    rules.insert(libc::SYS_clone, flags.map(|flag| rule([is(0, Op::MaskedEq(flag), flag)])).collect::<Result<_, _>>()?);
    let kinds = (0..16).filter(|kind| !calls::PAIRS.contains(kind)).map(|kind| rule([is(1, Op::MaskedEq(0xf), kind)]));
    let pairs = std::iter::once(rule([is(0, Op::Ne, family(libc::AF_UNIX))])).chain(kinds);
    rules.insert(libc::SYS_socketpair, pairs.collect::<Result<_, _>>()?);
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
    rules.insert(libc::SYS_ioctl, controls.into_iter().map(|request| rule([is(1, Op::Eq, request)])).collect::<Result<_, _>>()?);
    Ok(rules)
}

/// What Landlock needs besides.
fn landlock(outside: Outside) -> Result<Rules, String> {
    let mut rules = whole([calls::LANDLOCK]);
    if let Outside::Writable { superuser } = outside {
        rules.extend(whole([calls::ATTRIBUTES, calls::ATTRIBUTES_HERE]));
        if superuser {
            rules.extend(whole([calls::ATTRIBUTES_OF_OPEN_FILES]));
        }
        // Times of an open file have no path. Both halves of the pointer count.
        rules.insert(libc::SYS_utimensat, vec![rule([SeccompCondition::new(1, Len::Qword, Op::Ne, 0)])?]);
    }
    for call in calls::OF_A_PROCESS {
        rules.insert(*call, vec![rule([is(0, Op::Ne, 0)])?]);
    }
    rules.insert(libc::SYS_setpriority, vec![rule([is(0, Op::Ne, 0)])?, rule([is(1, Op::Ne, 0)])?]);
    rules.insert(libc::SYS_ioprio_set, vec![rule([is(0, Op::Ne, 1)])?, rule([is(1, Op::Ne, 0)])?]);
    Ok(rules)
}

/// Refuses a mode that lets a file run with its owner's rights; with `flags`, only where these create a file.
fn owners_rights(mode: u8, flags: Option<u8>) -> Result<Vec<SeccompRule>, String> {
    let all_of = |argument, bits: i32| is(argument, Op::MaskedEq(u64::from(bits.unsigned_abs())), u64::from(bits.unsigned_abs()));
    let set_user_id = || is(mode, Op::MaskedEq(u64::from(libc::S_ISUID)), u64::from(libc::S_ISUID));
    match flags {
        None => Ok(vec![rule([set_user_id()])?]),
        Some(flags) => [libc::O_CREAT, libc::O_TMPFILE & !libc::O_DIRECTORY]
            .into_iter()
            .map(|creates| rule([all_of(flags, creates), set_user_id()]))
            .collect(),
    }
}

/// Which sockets a command may have in its own network namespace: the internet's, and netlink's for routes, by which programs list
/// addresses. Families such as vsock belong to the whole machine, whatever the namespace.
fn sockets(unix: UnixSockets) -> Result<Vec<SeccompRule>, String> {
    let mut families = vec![family(libc::AF_INET), family(libc::AF_INET6), family(libc::AF_NETLINK)];
    if unix == UnixSockets::Allowed {
        families.push(family(libc::AF_UNIX));
    }
    let netlink = family(libc::AF_NETLINK);
    let mut rules = vec![
        rule(families.into_iter().map(|family| is(0, Op::Ne, family)))?,
        rule([is(0, Op::Eq, netlink), is(2, Op::Ne, libc::NETLINK_ROUTE as u64)])?,
        rule(std::iter::once(is(0, Op::Ne, netlink)).chain(calls::PROTOCOLS.iter().map(|protocol| is(2, Op::Ne, *protocol))))?,
    ];
    for kind in calls::OTHER_KINDS {
        rules.push(rule([is(0, Op::Ne, netlink), is(1, Op::MaskedEq(0xf), *kind)])?);
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

/// Holds when all its conditions do.
fn rule(conditions: impl IntoIterator<Item = Condition>) -> Result<SeccompRule, String> {
    conditions.into_iter().collect::<Result<Vec<_>, _>>().and_then(SeccompRule::new).map_err(failed)
}
