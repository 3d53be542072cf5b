//! The shell script around a command: sets the limits, starts the forwarder if there is one, and
//! reports the final folder and the number of processes left running as control words
//! ([`super::words`]).

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::PathBuf,
};

use callboard_actors::ports::ExecLimits;

use super::{
    launch::{BEGIN, CARRIED},
    program::{ASK, ASKED},
    words::COVERED,
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

/// What a mount over a name of the workspace must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sandbox) enum Cover {
    /// The file or folder itself.
    Itself,
    /// The same, read-only.
    ReadOnly,
    /// Another file or folder.
    Other,
}

/// A name that mounts cover: where, how many of them show what is there, what the last one is, and
/// whether it was a mount point before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::sandbox) struct Covered {
    pub(in crate::sandbox) place: PathBuf,
    pub(in crate::sandbox) binds: u8,
    pub(in crate::sandbox) last: Cover,
    pub(in crate::sandbox) was_mount: bool,
}

impl Covered {
    /// Its argument of [`CHECK`], with the place as the kernel's list of mounts writes it.
    fn to_argument(&self) -> OsString {
        let last = match self.last {
            Cover::Itself => 'i',
            Cover::ReadOnly => 'r',
            Cover::Other => 'o',
        };
        let was_mount = if self.was_mount { 'm' } else { '-' };
        let mut argument = format!("{}{last}{was_mount}", self.binds).into_bytes();
        for byte in self.place.as_os_str().as_bytes() {
            match byte {
                b' ' | b'\t' | b'\n' | b'\\' => {
                    argument.extend_from_slice(format!("\\{byte:03o}").as_bytes());
                }
                byte => argument.push(*byte),
            }
        }
        OsString::from_vec(argument)
    }
}

/// Script that compares the mounts with what they must be, then becomes the rest of its arguments.
/// Another command can exchange a name for a link while the mounts are made, and a mount that follows
/// the link shows a folder of the machine, or covers another name. Each mount must therefore show, at
/// its own place, the file of this place in the mount around it; nothing else has the same device and
/// path. Then it says so and waits until it may go on (`launch::AtGate`). Arguments: the number of covered
/// names, then each, then the rest.
const CHECK: &str = r#"LC_ALL=C; set -f; N=$'\n'; declare -A a o; mapfile -t l </proc/self/mountinfo
for e in "${l[@]}"; do f=($e); p=${f[4]}; a["$p"]+="${f[2]} ${f[3]}$N"; o["$p"]=${f[5]}; done
for ((n = $1; n > 0; n--)); do shift; b=${1:0:1}; k=${1:1:1}; p=${1:3}; u=${p%/*}; x=${a["$p"]}; e=
until [[ $u == /workspace || ${a["$u"]} ]]; do u=${u%/*}; done
w=${a["$u"]%$N}; w=${w##*$N}; r=${w#* }; w="${w%% *} ${r%/}${p#"$u"}"
if [[ ${1:2:1} == m ]]; then w=${x%%$N*}; e=$w$N; fi
for ((; b > 0; b--)); do e+=$w$N; done; s=${x#"$e"}
case $k in i) [[ $x == "$e" ]];; r) [[ $x == "$e" && ${o["$p"]} == ro* ]];; *) s=${s%$N}; [[ $x == "$e"?* && ${s##*$N} != "$w" ]];; esac ||
{ printf '\036%s:failed:CHANGED\036' "$0" >&2; exit 125; }
done; shift; printf '\036%s:COVERED:\036' "$0" >&2; read -r -n 1 g; if [[ $g != "BEGIN" ]]; then exit 125; fi; exec "$@" </dev/null"#;

/// Why a command did not begin: what its mounts had to cover was elsewhere when they were made.
pub(in crate::sandbox) const CHANGED: &str =
    "another command changed a protected name while this one began: run it again";

/// Arguments that run `argv` if every covered name is covered as it must be, and when the gate is
/// opened.
pub(in crate::sandbox) fn behind_covers(
    covered: &[Covered],
    nonce: &str,
    argv: Vec<OsString>,
) -> Vec<OsString> {
    let count = covered.len().to_string();
    let check = CHECK
        .replace("CHANGED", CHANGED)
        .replace("COVERED", COVERED)
        .replace("BEGIN", &char::from(BEGIN).to_string());
    [
        "/bin/bash",
        "--norc",
        "--noprofile",
        "-c",
        &check,
        nonce,
        &count,
    ]
    .map(OsString::from)
    .into_iter()
    .chain(covered.iter().map(Covered::to_argument))
    .chain(argv)
    .collect()
}

/// Signals and timers of a command that may be pending at a time, and bytes of its message queues.
const SIGNALS_MAX: u32 = 1024;
const MESSAGE_BYTES_MAX: u32 = 200 * 1024;

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
    // The kernel counts pending signals, timers and messages for the user namespace of the command,
    // and for that of the host: none is needed in numbers, and who had them all would leave none to
    // others.
    let limits = format!(
        "{{ ulimit -c 0; ulimit -i {SIGNALS_MAX}; ulimit -q {MESSAGE_BYTES_MAX}; ulimit -n {open_files}; ulimit -u {processes}; ulimit -t {cpu_seconds}; ulimit -d {}; ulimit -f {}; }} 2>/dev/null",
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

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_command_begins_only_behind_the_covers_that_it_must_have() {
        let answered = |covered: &[Covered], answer: u8| {
            let argv = behind_covers(covered, "nonce", vec!["/bin/echo".into(), "began".into()]);
            let (program, arguments) = argv.split_first().unwrap();
            let mut child = std::process::Command::new(program)
                .args(arguments)
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            // A command that does not begin has not read it.
            let _ = child.stdin.take().unwrap().write_all(&[answer]);
            let output = child.wait_with_output().unwrap();
            (output.stdout, output.stderr)
        };
        let run = |covered: &[Covered]| answered(covered, BEGIN);
        let absent = |last| Covered {
            place: "/workspace/a b\\/$(echo)\"]".into(),
            binds: u8::from(last != Cover::Other),
            last,
            was_mount: false,
        };

        let said = b"\x1enonce:covered:\x1e".to_vec();
        assert_eq!(run(&[]), (b"began\n".to_vec(), said.clone()));
        assert_eq!(answered(&[], b'r'), (Vec::new(), said));
        for last in [Cover::Itself, Cover::ReadOnly, Cover::Other] {
            let (stdout, stderr) = run(&[absent(last)]);
            assert!(stdout.is_empty(), "{last:?}");
            assert!(
                stderr.starts_with(b"\x1enonce:failed:another command"),
                "{last:?}"
            );
        }
        assert_eq!(
            absent(Cover::Itself).to_argument(),
            "1i-/workspace/a\\040b\\134/$(echo)\"]"
        );
    }
}
