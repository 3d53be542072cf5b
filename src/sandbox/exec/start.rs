//! Starts processes: the only functions that do, beside the shells that [`super::parked`] parks. A
//! process inherits no environment and no descriptor beyond those that its launch names.

use std::{
    ffi::{OsStr, OsString},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    process::{Command, Stdio},
};

use super::{
    keys,
    launch::{Carried, Kind, Launch, Namespace},
    program::Program,
};
use crate::sandbox::policy::NICENESS;

/// Program that binds a process to the thread that started it.
pub(super) const SETPRIV: &str = "/usr/bin/setpriv";

/// Program that starts another in new namespaces.
pub(in crate::sandbox) const UNSHARE: &str = "/usr/bin/unshare";

pub(super) const BASH: &str = "/bin/bash";

/// Script that exits if the host (`$1`) was gone before the command was bound to it, since nothing
/// would end the command then.
pub(super) const STILL_OURS: &str = r#"if [[ $PPID != "$1" ]]; then exit 137; fi; shift;"#;

/// Script that closes inherited descriptors without close-on-exec, except `$c`, which becomes
/// [`CARRIED`]. The loop itself is not redirected: bash would keep the original under a higher
/// number, and the loop would close that.
pub(super) const CLOSE: &str = r#"for d in /proc/self/fd/*; do d=${d##*/}; if (( d > 2 )) && [[ $d != "$c" ]]; then eval "exec $d>&-"; fi; done; if [[ -n $c && $c != 3 ]]; then eval "exec 3<&$c $c<&-"; fi; unset c d;"#;

/// Script that makes a process and its children the first to be killed when the machine runs out of
/// memory, before the host and the supervisors of other commands.
pub(super) const FIRST_TO_GO: &str = "{ echo 500 >/proc/self/oom_score_adj; } 2>/dev/null;";

/// Script that makes a process ignore the signals that ask a program to end.
const OUTLIVES: &str = "trap '' HUP INT QUIT TERM;";

/// The role of a process, which decides when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A command of a model. It ends with the thread that started it.
    Command,
    /// A supervisor. It outlives its host to end the command, and raises the command's
    /// out-of-memory score.
    Supervisor,
    /// A server beside the host. It ends with the thread that started it.
    Server,
    /// The watchdog. It outlives its host, and what ends the host's terminal, service or process group
    /// does not end it. It leaves that group for a session of its own.
    Watchdog,
}

/// A command that inherits only `carried`: no environment, no other descriptor and no input, in a
/// new process group unless it is the watchdog.
pub(super) fn clean_command(argv: &[OsString], role: Role, carried: Option<&OwnedFd>) -> Command {
    command_of(std::process::id(), argv, role, carried)
}

/// Duplicates a descriptor for a child, without close-on-exec, for the moment of the start. A child
/// that another thread starts in that moment inherits it too; it holds nothing secret.
pub(super) fn handed(carried: Option<&Carried>) -> std::io::Result<Option<OwnedFd>> {
    Ok(match carried {
        None => None,
        Some(Carried::OwnProgram(fd)) => Some(rustix::io::dup(fd)?),
        Some(Carried::Bytes(bytes)) => {
            let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK)?;
            rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::empty())?;
            if rustix::io::write(&writer, bytes)? < bytes.len() {
                return Err(std::io::ErrorKind::WouldBlock.into());
            }
            Some(reader)
        }
    })
}

fn command_of(host: u32, argv: &[OsString], role: Role, carried: Option<&OwnedFd>) -> Command {
    use std::os::unix::process::CommandExt;
    let own = rustix::process::getpriority_process(None).unwrap_or(0);
    let outlives_host = matches!(role, Role::Supervisor | Role::Watchdog);
    let mut command = if outlives_host || !std::path::Path::new(SETPRIV).is_file() {
        Command::new("/usr/bin/nice")
    } else {
        let mut command = Command::new(SETPRIV);
        command.args(["--pdeathsig", "KILL", "--", "/usr/bin/nice"]);
        command
    };
    let first = match role {
        Role::Command => FIRST_TO_GO,
        Role::Watchdog => OUTLIVES,
        Role::Supervisor | Role::Server => "",
    };
    command
        .args(["-n", &(NICENESS - own).to_string(), BASH])
        .args([
            "--norc",
            "--noprofile",
            "-c",
            &format!("{STILL_OURS} c=$1; shift; {first} {CLOSE} exec \"$@\""),
            "callboard",
            &host.to_string(),
        ])
        .arg(carried.map_or_else(String::new, |fd| fd.as_raw_fd().to_string()))
        .args(argv)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if role != Role::Watchdog {
        command.process_group(0);
    }
    command
}

pub(super) fn start(launch: &Launch) -> std::io::Result<std::process::Child> {
    // On failure the seccomp filter still refuses commands all access to keyrings.
    let _ = keys::join_new_session();
    let carried = handed(launch.carried.as_ref())?;
    let role = if launch.kind == Kind::Supervised {
        Role::Supervisor
    } else {
        Role::Command
    };
    let child = clean_command(&launch.argv, role, carried.as_ref())
        .envs(launch.environment.iter().map(|(name, value)| (name, value)))
        .current_dir(&launch.folder)
        .stdin(
            if launch.kind == Kind::Supervised || launch.gate.is_some() {
                Stdio::piped()
            } else {
                Stdio::null()
            },
        )
        .spawn()?;
    unblock(&child)?;
    Ok(child)
}

/// Sets the child's output streams to non-blocking.
pub(super) fn unblock(child: &std::process::Child) -> std::io::Result<()> {
    for fd in [
        child.stdout.as_ref().map(AsFd::as_fd),
        child.stderr.as_ref().map(AsFd::as_fd),
    ]
    .into_iter()
    .flatten()
    {
        rustix::fs::fcntl_setfl(fd, rustix::fs::OFlags::NONBLOCK)?;
    }
    Ok(())
}

/// Starts a watchdog. It ends when its standard input closes, even if this process has ended
/// already.
pub(super) fn start_watchdog(
    program: &Program,
    arguments: impl IntoIterator<Item = OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> std::io::Result<std::process::Child> {
    let argv: Vec<OsString> = std::iter::once(program.path()).chain(arguments).collect();
    let carried = handed(program.carried().as_ref())?;
    let mut command = clean_command(&argv, Role::Watchdog, carried.as_ref());
    command
        .envs(environment)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
}

/// Starts this program again as the helper's next stage, in a namespace if given. The stage
/// inherits the output streams.
pub(in crate::sandbox) fn start_helper<'a>(
    namespace: Option<Namespace>,
    arguments: impl IntoIterator<Item = &'a OsStr>,
) -> std::io::Result<u32> {
    const SELF: &str = "/proc/self/exe";
    let mut command = match namespace {
        None => {
            let mut command = Command::new(SELF);
            command.stdin(Stdio::null());
            command
        }
        Some(namespace) => {
            // There `/proc/self/exe` is `unshare`, and from another user namespace a path through
            // our own process id does not resolve. So the program travels as standard input, which
            // `become_command` closes. It is opened for reading, because the standard library
            // treats a descriptor that cannot be read as missing and opens another in its place.
            let program = std::fs::File::open(SELF)?;
            let mut command = Command::new(UNSHARE);
            command
                .args(namespace.arguments())
                .arg("/proc/self/fd/0")
                .stdin(Stdio::from(program));
            command
        }
    };
    command
        .args(arguments)
        .env_clear()
        .spawn()
        .map(|child| child.id())
}

/// Replaces this process with a program without input. Returns only on failure.
pub(in crate::sandbox) fn become_command<N: AsRef<OsStr>, V: AsRef<OsStr>>(
    argv: &[OsString],
    environment: impl IntoIterator<Item = (N, V)>,
) -> std::io::Error {
    use std::os::unix::process::CommandExt;
    let Some((program, arguments)) = argv.split_first() else {
        return std::io::ErrorKind::InvalidInput.into();
    };
    Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(environment)
        .stdin(Stdio::null())
        .exec()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_command_whose_host_is_gone_before_it_begins_does_nothing() {
        let argv = ["/bin/echo", "begun"].map(OsString::from);
        for role in [
            Role::Command,
            Role::Supervisor,
            Role::Server,
            Role::Watchdog,
        ] {
            let ours = command_of(std::process::id(), &argv, role, None)
                .output()
                .unwrap();
            let orphan = command_of(1, &argv, role, None).output().unwrap();

            assert_eq!(
                (ours.status.code(), ours.stdout),
                (Some(0), b"begun\n".to_vec())
            );
            assert_eq!(
                (orphan.status.code(), orphan.stdout),
                (Some(137), Vec::new())
            );
        }
    }

    #[test]
    fn a_program_finds_what_it_is_handed_and_no_other_descriptor() {
        let file = std::fs::File::open("/usr/bin/env").unwrap();
        let inherited = rustix::io::dup(&file).unwrap(); // without close-on-exec, as a careless embedding program might have it
        let carried = Carried::OwnProgram(Arc::new(OwnedFd::from(file)));
        let argv = [
            "/bin/bash",
            "-c",
            "for d in {3..40}; do [ -e /proc/self/fd/$d ] && echo $d $(readlink /proc/self/fd/$d); done; exit 0",
        ];
        for carried in [None, Some(&carried)] {
            let handed = handed(carried).unwrap();

            let output = command_of(
                std::process::id(),
                &argv.map(OsString::from),
                Role::Server,
                handed.as_ref(),
            )
            .output()
            .unwrap();

            let expected = if carried.is_some() {
                format!(
                    "3 {}\n",
                    std::fs::canonicalize("/usr/bin/env").unwrap().display()
                )
            } else {
                String::new()
            };
            assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
        }
        drop(inherited);
    }
}
