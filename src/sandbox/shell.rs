//! The shell script around a command, and the control words with which the script reports the final
//! folder and the number of processes left running.
//!
//! The words travel on standard error, between two control characters and a nonce, so that no
//! descriptor above 2 is needed. They are removed before anything reads the output. A command could
//! forge a word and would gain nothing: the folder is resolved inside the root, and the number is
//! informational.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use callboard_actors::ports::{BoxFuture, ExecLimits, ExecResult, SandboxError};
use tokio_util::sync::CancellationToken;

use super::{
    PathError, Root,
    guard::Unguarded,
    helper::{ASK, ASKED},
    policy::{FORWARDER, PROXY_VARIABLES},
    spawner::CARRIED,
};

/// First and last character of a control word; it does not occur in text files.
const MARK: char = '\x1e';

/// What the shell does after it has set the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// Wait for the command. As first process of a namespace, the shell ends the namespace when it
    /// exits, and the command is an ordinary process with ordinary signals.
    Wait,
    /// Like [`Then::Wait`], with a forwarder beside the command that ends with it.
    WaitBesideForwarder,
    /// Replace itself with the command.
    Become,
}

/// Greeting of a forwarder that listens.
pub(super) fn forwards(nonce: &str) -> String {
    format!("callboard forwards {nonce}")
}

/// Script that starts the forwarder and waits until it listens; `$f` is its process id. If it
/// fails, the command runs without it and [`NO_FORWARDER`] is printed.
fn forwarder(nonce: &str) -> String {
    let (variables, said) = (PROXY_VARIABLES.join(" "), forwards(nonce));
    format!(
        r#"exec {{r}}< <({ASKED}=1 exec {FORWARDER} {ASK} forward {nonce} 2>/dev/null); f=$!; read -r -t 5 l <&$r; exec {{r}}<&-; if [[ $l != "{said}" ]]; then kill -9 $f 2>/dev/null; unset {variables} no_proxy NO_PROXY; echo "{NO_FORWARDER}" >&2; fi; "#
    )
}

/// Message to a command whose forwarder did not start.
pub(super) const NO_FORWARDER: &str = "[network: no host can be reached, the forwarder did not start]";

/// Script that applies the second filter, which refuses the command what the forwarder needs, then
/// runs the script `$3`.
fn confined() -> String {
    format!(r#"{ASKED}=1 exec {FORWARDER} {ASK} confine /bin/bash --norc --noprofile -c "$3" bash "$1" "$2" "$f""#)
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
pub(super) fn command(command: &str, nonce: &str) -> [OsString; 7] {
    let script = format!("exec {CARRIED}<&-; {}", reporting(nonce));
    ["/bin/bash", "--norc", "--noprofile", "-c", &script, "bash", command].map(OsString::from)
}

/// Arguments that set hard limits inside the jail and run the command. The command is an argument,
/// never part of a script. The limit is on data, not on address space, since runtimes reserve
/// addresses that they never use.
pub(super) fn limited_command(command: &str, limits: &ExecLimits, nonce: &str, then: Then) -> Vec<OsString> {
    let ExecLimits { processes, memory_bytes, file_bytes, cpu_seconds, open_files, .. } = limits;
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
        ["/bin/bash", "--norc", "--noprofile", "-c", script, "bash", &reporting(nonce), command].map(OsString::from).to_vec()
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

/// A control word, written by a helper.
pub(super) fn word(nonce: &str, kind: &str, value: &str) -> String {
    format!("{MARK}{nonce}:{kind}:{value}{MARK}")
}

/// Contents of the control words of one job.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Words {
    /// Final folder, as the command saw it.
    pub(super) folder: Option<PathBuf>,
    /// Processes left running.
    pub(super) left: u32,
    /// Why the jail could not be built. No command ran then.
    pub(super) failed: Option<String>,
    /// Length of the words in bytes, to be subtracted from the output.
    pub(super) bytes: u64,
}

impl Words {
    /// Removes the control words from a text and parses them.
    pub(super) fn take(text: &mut String, nonce: &str) -> Self {
        let (mut words, begin) = (Self::default(), format!("{MARK}{nonce}:"));
        while let Some(at) = text.find(&begin) {
            let Some(len) = text.get(at + begin.len()..).and_then(|rest| rest.find(MARK)) else {
                words.bytes += (text.len() - at) as u64;
                text.truncate(at);
                break;
            };
            let end = at + begin.len() + len;
            let said = text.get(at + begin.len()..end).and_then(|word| word.split_once(':')).map(|(k, v)| (k.to_owned(), v.to_owned()));
            match said {
                Some((kind, value)) if kind == "folder" => words.folder = Some(PathBuf::from(value)),
                Some((kind, value)) if kind == "left" => words.left = value.parse().unwrap_or(0),
                Some((kind, value)) if kind == "failed" => words.failed = Some(value),
                _ => {}
            }
            text.replace_range(at..=end, "");
            words.bytes += (end + 1 - at) as u64;
        }
        words
    }
}

/// Replaces a folder of the host by `name`, wherever it occurs as a path or as the beginning of
/// one, so that a model does not see the host's path.
pub(super) fn rename(text: &str, folder: &Path, name: &str) -> String {
    let (Some(folder), mut out, mut rest) = (folder.to_str().filter(|folder| folder.len() > 1), String::new(), text) else {
        return text.to_owned();
    };
    let in_name = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_');
    while let Some(at) = rest.find(folder) {
        let (before, after) = (rest.get(..at).unwrap_or_default(), rest.get(at + folder.len()..).unwrap_or_default());
        let is_path = !before.ends_with(|c| in_name(c) || c == '/') && !after.starts_with(in_name);
        out.push_str(before);
        out.push_str(if is_path { name } else { folder });
        rest = after;
    }
    out + rest
}

/// Start folder of a command, relative to the root. A folder outside the root or a missing one is
/// refused.
pub(super) fn working_dir(root: &Root, folder: Option<&Path>) -> Result<PathBuf, SandboxError> {
    let Some(folder) = folder else { return Ok(PathBuf::new()) };
    root.open_folder(&folder.to_string_lossy()).map(|(_, relative)| relative).map_err(denied)
}

/// Resolves the command's final folder inside the root; clears it if it lies elsewhere or is gone.
pub(super) fn resolve_folder(root: &Root, result: &mut ExecResult) {
    let said = result.working_dir.take().filter(|folder| folder.is_absolute());
    result.working_dir = said.and_then(|folder| root.open_folder(&folder.to_string_lossy()).ok()).map(|(_, relative)| relative);
}

pub(super) fn denied(error: PathError) -> SandboxError {
    SandboxError::Denied(error.to_string())
}

/// Converts the reason why a workspace cannot be guarded, so no command runs in it.
pub(super) fn unguarded(why: Unguarded) -> SandboxError {
    SandboxError::Failed(why.to_string())
}

/// A random, unique name that marks a job.
pub(super) fn nonce() -> Result<String, SandboxError> {
    getrandom::u64().map(|chance| format!("{chance:016x}")).map_err(|_| SandboxError::Failed("no randomness".to_owned()))
}

/// Runs file system work on the blocking pool.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SandboxError> + Send + 'static,
) -> Result<T, SandboxError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(SandboxError::Failed("the file work did not end".to_owned())))
}

/// Appends lines of the sandbox to the output of a command.
pub(super) fn add_lines(text: &mut String, lines: &[String]) {
    for line in lines {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(line);
    }
}

/// Runs a command in a separate task. A dropped caller cancels the command, but the work after it,
/// such as the sweep, still runs.
pub(super) fn in_a_task<F: Future<Output = Result<ExecResult, SandboxError>> + Send + 'static>(
    cancel: CancellationToken,
    run: impl FnOnce(CancellationToken) -> F + Send + 'static,
) -> BoxFuture<'static, Result<ExecResult, SandboxError>> {
    Box::pin(async move {
        // A drop of this future cancels the child token through the guard, while the spawned task
        // continues to the end of its clean-up.
        let cancel = cancel.child_token();
        let _ends_with_the_caller = cancel.clone().drop_guard();
        match tokio::spawn(run(cancel)).await {
            Ok(result) => result,
            Err(error) => {
                Err(SandboxError::Failed(if error.is_panic() { "it panicked" } else { "the runtime is shutting down" }.to_owned()))
            }
        }
    })
}

/// Longest wait for a probe at start.
pub(super) const PROBE_TIME_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_taken_out_of_the_output_and_foreign_ones_stay() {
        let mut text = format!("one\n{}two{}\x1eother:left:9\x1e", word("n", "folder", "/workspace/a:b"), word("n", "left", "3"));
        let mut cut = format!("one{}", word("n", "left", "3").trim_end_matches(MARK));

        let words = Words::take(&mut text, "n");

        assert_eq!(text, "one\ntwo\x1eother:left:9\x1e");
        assert_eq!((words.folder, words.left, words.bytes), (Some(PathBuf::from("/workspace/a:b")), 3, 35));
        assert_eq!((Words::take(&mut cut, "n").left, cut.as_str()), (0, "one"));
    }

    #[test]
    fn a_folder_of_the_host_is_named_and_its_neighbours_are_not() {
        let shown = |text: &str| rename(text, Path::new("/srv/job"), "$WORKSPACE");

        assert_eq!(shown("/srv/job/a: not found in /srv/job"), "$WORKSPACE/a: not found in $WORKSPACE");
        assert_eq!(shown("/srv/jobs /x/srv/job \"/srv/job\""), "/srv/jobs /x/srv/job \"$WORKSPACE\"");
        assert_eq!(rename("/a", Path::new("/"), "$WORKSPACE"), "/a");
    }
}
