//! The shell script around a command: sets the limits, starts the forwarder if there is one, and
//! reports the final folder and the number of processes left running as control words
//! ([`super::words`]).

use std::ffi::OsString;

use callboard_actors::ports::ExecLimits;

use super::{
    launch::CARRIED,
    program::{ASK, ASKED},
};
use crate::sandbox::policy::{FORWARDER, PROXY_VARIABLES};

/// What the shell does after it has set the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sandbox) enum Then {
    /// Wait for the command. As first process of a namespace, the shell ends the namespace when it
    /// exits, and the command is an ordinary process with ordinary signals.
    Wait,
    /// Like [`Then::Wait`], with a forwarder beside the command that ends with it.
    WaitBesideForwarder,
    /// Replace itself with the command.
    Become,
}

/// Greeting of a forwarder that listens.
pub(in crate::sandbox) fn forwards(nonce: &str) -> String {
    format!("callboard forwards {nonce}")
}

/// Script that starts the forwarder and waits until it listens; `$f` is its process id. If it
/// fails, the command runs without it and [`NO_FORWARDER`] is printed.
fn forwarder(nonce: &str) -> String {
    let variables = PROXY_VARIABLES.join(" ");
    let said = forwards(nonce);
    format!(
        r#"exec {{r}}< <({ASKED}=1 exec {FORWARDER} {ASK} forward {nonce} 2>/dev/null); f=$!; read -r -t 5 l <&$r; exec {{r}}<&-; if [[ $l != "{said}" ]]; then kill -9 $f 2>/dev/null; unset {variables} no_proxy NO_PROXY; echo "{NO_FORWARDER}" >&2; fi; "#
    )
}

/// Message to a command whose forwarder did not start.
pub(in crate::sandbox) const NO_FORWARDER: &str =
    "[network: no host can be reached, the forwarder did not start]";

/// Script that applies the second filter, which refuses the command what the forwarder needs, then
/// runs the script `$3`.
fn confined() -> String {
    format!(
        r#"{ASKED}=1 exec {FORWARDER} {ASK} confine /bin/bash --norc --noprofile -c "$3" bash "$1" "$2" "$f""#
    )
}

/// Script that runs `$1` and reports at exit. The trap writes only if standard error is still the
/// original pipe, so a log file of the user gets no control words.
fn reporting(nonce: &str) -> String {
    format!(
        r#"trap 'if [ -p /dev/fd/2 ]; then builtin cd -P . 2>/dev/null; builtin printf "\036{nonce}:folder:%s\036" "$PWD" >&2; fi' EXIT; eval "shift; $1""#
    )
}

/// Arguments that run the command alone, for a helper that has set the limits. Closes the
/// descriptor through which the helper was started.
pub(in crate::sandbox) fn command(command: &str, nonce: &str) -> [OsString; 7] {
    let script = format!("exec {CARRIED}<&-; {}", reporting(nonce));
    [
        "/bin/bash",
        "--norc",
        "--noprofile",
        "-c",
        &script,
        "bash",
        command,
    ]
    .map(OsString::from)
}

/// Arguments that set hard limits inside the jail and run the command. The command is an argument,
/// never part of a script. The limit is on data, not on address space, since runtimes reserve
/// addresses that they never use.
pub(in crate::sandbox) fn limited_command(
    command: &str,
    limits: &ExecLimits,
    nonce: &str,
    then: Then,
) -> Vec<OsString> {
    let ExecLimits {
        processes,
        memory_bytes,
        file_bytes,
        cpu_seconds,
        open_files,
        ..
    } = limits;
    let limits = format!(
        "{{ ulimit -c 0; ulimit -n {open_files}; ulimit -u {processes}; ulimit -t {cpu_seconds}; ulimit -d {}; ulimit -f {}; }} 2>/dev/null",
        memory_bytes / 1024,
        file_bytes / 1024,
    );
    let run = r#"/bin/bash --norc --noprofile -c "$1" bash "$2""#;
    // `$3` is the forwarder's process id, if there is one. Only shell builtins count, since another
    // process would count itself. Zombies are not counted as running.
    let wait = format!(
        r#"f=$3; {run}; s=$?; n=-1; for p in /proc/[0-9]*/stat; do if [[ $p != "/proc/$f/stat" ]] && read -r l 2>/dev/null <"$p" && [[ $l != *") Z "* ]]; then n=$((n + 1)); fi; done; printf '\036{nonce}:left:%d\036' "$n" >&2; exit $s"#
    );
    let argv = |script: &str| {
        [
            "/bin/bash",
            "--norc",
            "--noprofile",
            "-c",
            script,
            "bash",
            &reporting(nonce),
            command,
        ]
        .map(OsString::from)
        .to_vec()
    };
    match then {
        Then::Become => argv(&format!("{limits}; exec {run}")),
        Then::Wait => argv(&format!("{limits}; {wait}")),
        Then::WaitBesideForwarder => {
            let mut argv = argv(&format!("{limits}; {}{}", forwarder(nonce), confined()));
            argv.push(wait.into());
            argv
        }
    }
}
