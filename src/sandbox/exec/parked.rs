//! Starts commands inside their control group. Entering a group can take the kernel 20 ms when no
//! other process has done so just before. So the shell of the next command is parked: it has
//! entered its group already and waits for a script on its standard input.
//!
//! If that input closes without a script, the host is gone: the parked shell then leaves its group
//! and removes every group of that host. So a killed host leaves no group behind.

use std::{
    ffi::OsStr,
    io::Write,
    os::{
        fd::{AsFd, AsRawFd},
        unix::{ffi::OsStrExt, process::CommandExt},
    },
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use super::{
    groups::{CommandGroup, Groups},
    keys,
    launch::{CARRIED, Carried, Kind, Launch},
    program::own_file,
    start::{BASH, CLOSE, FIRST_TO_GO, SETPRIV, STILL_OURS, start, unblock},
    words::word,
};
use crate::sandbox::policy::NICENESS;

/// Script of the parked shell. `$1` is the host's process id, `$2` the prefix of the host's group
/// names, `$3` the descriptor of the host's program. Pairs follow: the host's own group and the new
/// one. `in` is set if every group was entered; otherwise no command runs. When the input ends
/// without a script, the shell removes groups for four seconds, by which time the host's commands
/// have ended.
const PARK: &str = r#"if [[ $PPID != "$1" ]]; then exit 137; fi; h=$1; n=$2; c=$3; shift 3; in=yes; for ((i = 2; i <= $#; i += 2)); do { echo 0 >"${!i}/cgroup.procs"; } 2>/dev/null || in=; done; CLOSE if IFS= read -r l && IFS= read -r -N "$l" s; then eval "$s"; exit 126; fi; for ((i = 1; i <= $#; i += 2)); do { echo 0 >"${!i}/cgroup.procs"; } 2>/dev/null; done; for ((t = 0; t < 40; t++)); do left=; for ((i = 2; i <= $#; i += 2)); do for g in "${!i%/*}/$n"*; do if [[ -d $g ]]; then rmdir "$g" 2>/dev/null || left=yes; fi; done; done; if [[ ! $left ]]; then break; fi; sleep 0.1; done"#;

/// Error of a command that could not be put into its control group; it has not started.
const NOT_ENTERED: &str = "its control group could not be entered";

/// Requested capacity of the shell's input pipe, so that a script fits without waiting for its
/// reader.
const PIPE_BYTES: usize = 1024 * 1024;

/// Delay after the start of a command before the next shell is parked: most commands are short, and
/// both would compete for a processor.
const REFILL_AFTER: Duration = Duration::from_millis(30);

/// Whether commands run in control groups ([`super::spawner::Spawner::start_with`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ControlGroups {
    /// In control groups where they can be created.
    #[default]
    Auto,
    /// Without control groups.
    Off,
}

/// State of the search for control groups, which the first command starts.
#[derive(Debug)]
enum Found {
    NotAsked,
    Groups(Groups),
    None,
}

/// A shell that waits in its group.
#[derive(Debug)]
struct Parked {
    shell: Child,
    group: CommandGroup,
}

impl Parked {
    fn become_command(mut self, launch: &Launch) -> std::io::Result<(Child, Option<CommandGroup>)> {
        match self
            .group
            .limit(&launch.limits)
            .and_then(|()| begin(&mut self.shell, launch))
        {
            Ok(()) => Ok((self.shell, Some(self.group))),
            Err(error) => {
                self.end();
                Err(error)
            }
        }
    }

    fn end(mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// Starts the commands of a spawner.
#[derive(Debug)]
pub(super) struct Starter {
    found: Found,
    parked: Option<Parked>,
    /// When to park the next shell; `None` if no command has started since the last one was parked.
    pub(super) due: Option<Instant>,
}

impl Starter {
    pub(super) fn new(groups: ControlGroups) -> Self {
        let found = match groups {
            ControlGroups::Auto => Found::NotAsked,
            ControlGroups::Off => Found::None,
        };
        Self {
            found,
            parked: None,
            due: None,
        }
    }

    /// Starts a command, in a control group where they exist. A probe runs no command of a model
    /// and gets no group.
    pub(super) fn start(
        &mut self,
        launch: &Launch,
        is_probe: bool,
    ) -> std::io::Result<(Child, Option<CommandGroup>)> {
        if is_probe {
            return start(launch).map(|child| (child, None));
        }
        if matches!(self.found, Found::NotAsked) {
            self.found = Groups::find().map_or(Found::None, Found::Groups);
        }
        let Found::Groups(groups) = &mut self.found else {
            return start(launch).map(|child| (child, None));
        };
        self.due = Some(Instant::now() + REFILL_AFTER);
        if let Some(parked) = self.parked.take()
            && let Ok(started) = parked.become_command(launch)
        {
            return Ok(started);
        }
        park(groups)?.become_command(launch)
    }

    /// Ends the parked shell. Its group is removed as a command's is.
    pub(super) fn end(&mut self) {
        if let Some(parked) = self.parked.take() {
            parked.end();
        }
    }

    /// Parks a shell for the next command if it is due.
    pub(super) fn refill(&mut self, now: Instant) {
        if self.due.is_some_and(|due| now >= due) {
            self.due = None;
            if let (Found::Groups(groups), None) = (&mut self.found, &self.parked) {
                self.parked = park(groups).ok();
            }
        }
    }
}

fn park(groups: &mut Groups) -> std::io::Result<Parked> {
    let program = rustix::io::dup(own_file()?)?;
    let group = groups.make()?;
    let own = rustix::process::getpriority_process(None).unwrap_or(0);
    let _ = keys::join_new_session();
    let shell = Command::new("/usr/bin/nice")
        .args([
            "-n",
            &(NICENESS - own).to_string(),
            BASH,
            "--norc",
            "--noprofile",
            "-c",
            &PARK.replace("CLOSE", CLOSE),
            "callboard",
        ])
        .args([
            &std::process::id().to_string(),
            groups.name(),
            &program.as_raw_fd().to_string(),
        ])
        .args(
            group
                .folders
                .iter()
                .flat_map(|(home, folder)| [home, folder]),
        )
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    if let Some(stdin) = &shell.stdin {
        let _ = rustix::pipe::fcntl_setpipe_size(stdin.as_fd(), PIPE_BYTES);
    }
    unblock(&shell)?;
    Ok(Parked { shell, group })
}

/// Turns a parked shell into the command.
fn begin(shell: &mut Child, launch: &Launch) -> std::io::Result<()> {
    let script = script(launch);
    let Some(stdin) = shell.stdin.as_mut() else {
        return Err(std::io::ErrorKind::BrokenPipe.into());
    };
    stdin.write_all(format!("{}\n", script.len()).as_bytes())?;
    stdin.write_all(&script)?;
    if launch.kind != Kind::Supervised && launch.gate.is_none() {
        drop(shell.stdin.take());
    }
    Ok(())
}

fn script(launch: &Launch) -> Vec<u8> {
    let mut script = b"if [[ ! $in ]]; then printf %s ".to_vec();
    quote(
        &mut script,
        word(&launch.nonce, "failed", NOT_ENTERED).as_ref(),
    );
    script.extend_from_slice(b" >&2; exit 125; fi; ");
    if launch.kind != Kind::Supervised {
        script.extend_from_slice(FIRST_TO_GO.as_bytes());
    }
    script.extend_from_slice(b" cd ");
    quote(&mut script, launch.folder.as_os_str());
    script.extend_from_slice(b" || exit 125; unset OLDPWD;");
    for (name, value) in &launch.environment {
        let mut pair = name.clone();
        pair.push("=");
        pair.push(value);
        script.extend_from_slice(b" export -- ");
        quote(&mut script, &pair);
        script.push(b';');
    }
    match &launch.carried {
        Some(Carried::OwnProgram(_)) => {}
        Some(Carried::Bytes(bytes)) => {
            script.extend_from_slice(format!(" exec {CARRIED}< <(builtin printf '").as_bytes());
            bytes
                .iter()
                .for_each(|byte| script.extend_from_slice(format!("\\{byte:03o}").as_bytes()));
            script.extend_from_slice(b"');");
        }
        None => script.extend_from_slice(format!(" exec {CARRIED}<&-;").as_bytes()),
    }
    script.extend_from_slice(b" exec");
    // A supervisor watches the host and ends its processes after it; every other process ends with
    // the host's thread.
    let supervised = launch.kind == Kind::Supervised;
    if !supervised && std::path::Path::new(SETPRIV).is_file() {
        let host = std::process::id().to_string();
        for part in [
            SETPRIV,
            "--pdeathsig",
            "KILL",
            "--",
            BASH,
            "--norc",
            "--noprofile",
            "-c",
            &format!("{STILL_OURS} exec \"$@\""),
            "callboard",
            &host,
        ] {
            script.push(b' ');
            quote(&mut script, part.as_ref());
        }
    }
    for part in &launch.argv {
        script.push(b' ');
        quote(&mut script, part);
    }
    if !supervised && launch.gate.is_none() {
        script.extend_from_slice(b" </dev/null");
    }
    script
}

/// Appends a text as one quoted word of a shell script.
fn quote(script: &mut Vec<u8>, text: &OsStr) {
    script.push(b'\'');
    for byte in text.as_bytes() {
        match byte {
            b'\'' => script.extend_from_slice(br"'\''"),
            byte => script.push(*byte),
        }
    }
    script.push(b'\'');
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsString, os::unix::ffi::OsStringExt};

    use super::*;

    #[test]
    fn every_byte_of_an_argument_reaches_the_command() {
        let text = OsString::from_vec((1..=255).chain(*b"'; exit 1; $(false) \\'").collect());
        let mut script = b"printf %s ".to_vec();
        quote(&mut script, &text);

        let printed = Command::new(BASH)
            .arg("-c")
            .arg(OsStr::from_bytes(&script))
            .env_clear()
            .output()
            .unwrap();

        assert_eq!(printed.stdout, text.as_bytes());
    }
}
