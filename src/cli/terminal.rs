//! What standard input, output and error are, and writing to them: never a panic when a reader went away.

use std::{
    borrow::Cow,
    io::{self, IsTerminal, Write},
};

use crate::tools::visible::{escaped_json, visible};

/// The sequences that [`Paint`] writes; no other one reaches a terminal.
const PAINTED: [&str; 5] = ["\u{1b}[0m", "\u{1b}[1m", "\u{1b}[2m", "\u{1b}[32m", "\u{1b}[1;31m"];

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

/// Writes a text to standard output, invisible characters shown. When its reader went away the program ends quietly, as `head` expects.
pub(super) fn out(text: &str) {
    out_shown(&shown(text));
}

/// Writes a line to standard output, invisible characters shown.
pub(super) fn out_line(text: &str) {
    out(&format!("{text}\n"));
}

/// Writes JSON and a line end to standard output: the same value, without a character that a terminal obeys.
pub(super) fn out_json(json: &str) {
    out_shown(&format!("{}\n", escaped_json(json.trim_end_matches('\n'))));
}

/// Writes what another program reads to standard output: byte for byte into a pipe or a file, with invisible characters shown at a
/// terminal.
pub(super) fn out_data(text: &str) {
    if io::stdout().is_terminal() { out(text) } else { out_shown(text) }
}

/// Writes to standard output what [`visible`] was asked for already.
pub(super) fn out_shown(text: &str) {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    if written.is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        std::process::exit(141); // What a shell shows for a process that SIGPIPE ended.
    }
}

/// Writes a text to standard error, invisible characters shown; lost if there is no reader.
pub(super) fn err(text: &str) {
    err_shown(&shown(text));
}

/// Writes a line to standard error, invisible characters shown.
pub(super) fn err_line(text: &str) {
    err(&format!("{text}\n"));
}

/// Writes to standard error what [`visible`] was asked for already.
pub(super) fn err_shown(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// A text of others, safe at a terminal: what is invisible is shown. Whoever paints a text of others calls it first; all other texts
/// are made visible where they are written.
pub(super) fn tame(text: &str) -> String {
    visible(text)
}

/// The text as it is written: our own colors, everything else made visible.
fn shown(text: &str) -> Cow<'_, str> {
    if !text.contains(crate::tools::visible::is_invisible) {
        return Cow::Borrowed(text);
    }
    let (mut shown, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((plain, escape)) = rest.find('\u{1b}').map(|at| rest.split_at(at)) {
        let color = PAINTED.iter().find(|color| escape.starts_with(**color));
        let length = color.map_or(1, |color| color.len());
        let (sequence, after) = escape.split_at(length);
        shown.push_str(&visible(plain));
        shown.push_str(&if color.is_some() { sequence.to_owned() } else { visible(sequence) });
        rest = after;
    }
    shown.push_str(&visible(rest));
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_holds_our_colors_and_no_other_sequence() {
        let paint = Paint(true);
        let painted = [paint.red("a"), paint.green("b"), paint.bold("c"), paint.dim("d")].concat();

        assert_eq!(shown(&painted), painted);
        assert_eq!(
            shown(&format!("{painted}\u{1b}]0;title\u{7}\u{9b}2J\u{202e}")),
            format!("{painted}\\u{{1b}}]0;title\\u{{7}}\\u{{9b}}2J\\u{{202e}}")
        );
        assert_eq!(shown("\u{1b}"), "\\u{1b}");
    }
}
