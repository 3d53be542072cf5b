//! What standard input, output and error are, and writing to them: never a panic when a reader went away.

use std::io::{self, IsTerminal, Write};

/// Colors, or none: standard error is no terminal, or `NO_COLOR` is set, or the terminal is dumb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Paint(bool);

impl Paint {
    /// As standard error wants it.
    pub(super) fn stderr() -> Self {
        let unset = |name: &str| std::env::var_os(name).is_none_or(|value| value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self(io::stderr().is_terminal() && unset("NO_COLOR") && !dumb)
    }

    /// No colors, for what programs read.
    pub(super) fn none() -> Self {
        Self(false)
    }

    /// No colors.
    #[cfg(test)]
    pub(super) fn plain() -> Self {
        Self(false)
    }

    /// Whether there are any.
    pub(super) fn is_on(self) -> bool {
        self.0
    }

    pub(super) fn red(self, text: &str) -> String {
        self.wrap("1;31", text)
    }

    pub(super) fn green(self, text: &str) -> String {
        self.wrap("32", text)
    }

    pub(super) fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    pub(super) fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.0 { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// Which of the three are terminals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Terminals {
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
}

impl Terminals {
    pub(super) fn look() -> Self {
        Self { stdin: io::stdin().is_terminal(), stdout: io::stdout().is_terminal(), stderr: io::stderr().is_terminal() }
    }

    /// Whether a person can be asked.
    pub(super) fn has_person(self) -> bool {
        self.stdin && self.stderr
    }
}

/// Writes to standard output. When nobody reads it any more the program ends quietly, as `head` expects.
pub(super) fn out(text: &str) {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    if written.is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        std::process::exit(141); // What a shell shows for a process that SIGPIPE ended.
    }
}

/// Writes a line to standard output.
pub(super) fn out_line(text: &str) {
    out(&format!("{text}\n"));
}

/// Writes to standard error; lost if nobody reads.
pub(super) fn err(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// Writes a line to standard error.
pub(super) fn err_line(text: &str) {
    err(&format!("{text}\n"));
}

/// A text of others, safe at a terminal: no escape sequences, no control characters but line ends and tabs.
pub(super) fn tame(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}
