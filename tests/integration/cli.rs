//! Runs the binary as people and scripts do: exit codes, output streams, and sessions that survive
//! Ctrl-C and `kill -9`.

mod bad_input;
mod budgets;
mod damaged;
mod doctor;
mod earlier;
mod editors;
mod expectations;
mod fanout;
mod first_token;
mod help;
mod interrupts;
mod load;
mod mcp_serve;
mod parameters;
mod person;
mod quickstart;
mod runs;
mod screen;
pub mod serve;
mod stored;
mod tokens;
mod tool_calls;

use std::{
    io::Write,
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

/// A temporary home with a workspace that contains one file; no keys.
pub struct Home {
    folder: tempfile::TempDir,
    /// Additional environment variables of its commands.
    pub variables: Vec<(&'static str, String)>,
}

/// Time limit of any command in these tests.
const PATIENCE: Duration = Duration::from_secs(60);

impl Home {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("work/src")).unwrap();
        std::fs::create_dir_all(folder.path().join("home")).unwrap();
        let source = "//! Retries.\n\n/// Longest delay, in milliseconds.\npub const RETRY_CAP_MS: u64 = 10_000;\n";
        std::fs::write(folder.path().join("work/src/retry.rs"), source).unwrap();
        Self {
            folder,
            variables: Vec::new(),
        }
    }

    pub fn work(&self) -> std::path::PathBuf {
        self.folder.path().join("work")
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Removes the settings of the machine's user: keys, configuration, proxies.
    pub fn dress<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        for (name, _) in std::env::vars_os() {
            let name_text = name.to_string_lossy().to_ascii_uppercase();
            let ours = ["CALLBOARD_", "ANTHROPIC_", "OPENAI_", "XDG_"]
                .iter()
                .any(|start| name_text.starts_with(start));
            if ours || name_text.ends_with("_PROXY") {
                command.env_remove(&name);
            }
        }
        command.envs(self.variables.iter().cloned());
        command
            .env("HOME", self.folder.path().join("home"))
            .stdin(Stdio::null())
    }

    /// A command in the workspace. A `callboard.toml` there is named with `--config`, as its owner
    /// would do.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.command_in(&self.work(), args);
        if self.work().join("callboard.toml").is_file() {
            command.env("CALLBOARD_CONFIG", "callboard.toml");
        }
        command
    }

    /// A command in a folder whose files are neither named nor trusted.
    pub fn command_in(&self, folder: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_callboard"));
        command
            .args(args)
            .current_dir(folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        self.dress(&mut command);
        command
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        Ran::of(args, self.command(args).spawn().unwrap())
    }

    pub fn run_with_input(&self, args: &[&str], input: &str) -> Ran {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(input.as_bytes())
            .unwrap();
        Ran::of(args, child)
    }
}

/// The result of a command.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// Waits for the end, with a time limit.
    pub fn of(args: &[&str], child: Child) -> Self {
        Self::within(PATIENCE, args, child)
    }

    /// As [`Ran::of`], with another time limit.
    pub fn within(most: Duration, args: &[&str], child: Child) -> Self {
        let pid = child.id();
        let began = Instant::now();
        let waiting = std::thread::spawn(move || child.wait_with_output().unwrap());
        while !waiting.is_finished() {
            if began.elapsed() > most {
                kill(pid, "KILL");
                panic!("{args:?} did not end");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let Output {
            status,
            stdout,
            stderr,
        } = waiting.join().unwrap();
        Self {
            code: status.code(),
            out: String::from_utf8(stdout).unwrap(),
            err: String::from_utf8(stderr).unwrap(),
        }
    }

    #[track_caller]
    pub fn well(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The events that `--json` printed.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        self.out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// The one line that reports the error.
    #[track_caller]
    pub fn error(&self) -> &str {
        let lines: Vec<&str> = self
            .err
            .lines()
            .filter(|line| line.starts_with("error:"))
            .collect();
        assert_eq!(lines.len(), 1, "{self:?}");
        lines[0]
    }
}

/// Sends a signal to a process that a test started.
pub fn kill(pid: u32, signal: &str) {
    Command::new("kill")
        .arg(format!("-{signal}"))
        .arg(pid.to_string())
        .status()
        .unwrap();
}

/// Waits for a condition, with a time limit.
#[track_caller]
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what} did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}
