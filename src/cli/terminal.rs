//! Detects terminals, and writes to standard output and error without panicking when the reader is
//! gone.

use std::{
    borrow::Cow,
    fmt::Display,
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

use super::markdown::{Span, Style};
use crate::visible::{escaped_json, visible};

/// The escape sequences that [`Paint`] writes. All others are made visible.
const PAINTED: [&str; 5] = [
    "\u{1b}[0m",
    "\u{1b}[1m",
    "\u{1b}[2m",
    "\u{1b}[32m",
    "\u{1b}[1;31m",
];

/// Colors; off if standard error is not a terminal, `NO_COLOR` is set, or the terminal is dumb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Paint(bool);

impl Paint {
    /// Colors as standard error supports them.
    pub(super) fn stderr() -> Self {
        Self::at(io::stderr().is_terminal())
    }

    /// Colors as standard output supports them.
    pub(super) fn stdout() -> Self {
        Self::at(io::stdout().is_terminal())
    }

    fn at(is_terminal: bool) -> Self {
        let unset = |name: &str| std::env::var_os(name).is_none_or(|value| value.is_empty());
        Self(is_terminal && unset("NO_COLOR") && !is_dumb())
    }

    /// No colors, for output that programs read.
    pub(super) fn none() -> Self {
        Self(false)
    }

    /// No colors, for tests.
    #[cfg(test)]
    pub(super) fn plain() -> Self {
        Self(false)
    }

    /// Whether colors are on.
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

    /// The text of spans, with the sequences of their styles. It has passed through [`visible`].
    /// Links lead to the text that they show.
    pub(super) fn spans(self, line: &[Span]) -> String {
        line.iter().map(|span| self.span(span)).collect()
    }

    fn span(self, span: &Span) -> String {
        let text = visible(&span.text);
        let text = match span.style {
            Style::PLAIN => text,
            style => self.wrap(&style.codes(), &text),
        };
        match &span.link {
            Some(link) if self.0 => {
                format!(
                    "\u{1b}]8;;{}\u{1b}\\{text}\u{1b}]8;;\u{1b}\\",
                    visible(link)
                )
            }
            _ => text,
        }
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.0 {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }
}

/// A round that takes longer rings the bell at its end, and where it asks: the person may look
/// elsewhere.
const LONG: Duration = Duration::from_secs(10);

/// Rings the bell and shows a desktop notification (OSC 9), where the terminal does that.
fn ring(what: &'static str) {
    if io::stderr().is_terminal() && !is_dumb() {
        err_shown(&format!("\u{1b}]9;callboard: {what}\u{7}\u{7}"));
    }
}

/// Rings after a long round.
pub(super) fn ring_after(begun: Instant) {
    if begun.elapsed() >= LONG {
        ring("the answer is ready");
    }
}

/// Rings at a question of a round that has taken long.
pub(super) fn ring_at_question(begun: Instant) {
    if begun.elapsed() >= LONG {
        ring("a question waits for you");
    }
}

/// Whether the terminal obeys no sequences.
pub(super) fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

/// Columns and rows of the terminal; 80 and 24 if they are unknown.
pub(super) fn size() -> (usize, usize) {
    let of = |size: rustix::io::Result<rustix::termios::Winsize>| {
        size.ok()
            .map(|size| (usize::from(size.ws_col), usize::from(size.ws_row)))
            .filter(|(columns, rows)| *columns > 0 && *rows > 0)
    };
    of(rustix::termios::tcgetwinsize(io::stdout()))
        .or_else(|| of(rustix::termios::tcgetwinsize(io::stderr())))
        .unwrap_or((80, 24))
}

/// Which of the standard streams are terminals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Terminals {
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
}

impl Terminals {
    pub(super) fn detect() -> Self {
        Self {
            stdin: io::stdin().is_terminal(),
            stdout: io::stdout().is_terminal(),
            stderr: io::stderr().is_terminal(),
        }
    }

    /// Whether a person can answer questions.
    pub(super) fn has_person(self) -> bool {
        self.stdin && self.stderr
    }
}

/// Writes text to standard output with invisible characters escaped. If the reader is gone, the
/// process exits quietly, as `head` expects.
pub(super) fn out(text: &str) {
    out_shown(&shown(text));
}

/// Writes a line to standard output with invisible characters escaped.
pub(super) fn out_line(text: &str) {
    out(&format!("{text}\n"));
}

/// Writes JSON and a line end to standard output. Control characters are escaped, which does not
/// change the value.
pub(super) fn out_json(json: &str) {
    out_shown(&format!("{}\n", escaped_json(json.trim_end_matches('\n'))));
}

/// Writes output for another program to standard output: unchanged into a pipe or a file, with
/// invisible characters escaped at a terminal.
pub(super) fn out_data(text: &str) {
    if io::stdout().is_terminal() {
        out(text)
    } else {
        out_shown(text)
    }
}

/// Writes text to standard output that has already passed through [`visible`].
pub(super) fn out_shown(text: &str) {
    let mut stdout = io::stdout().lock();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    if written.is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        std::process::exit(141); // The status that a shell reports for a process ended by SIGPIPE.
    }
}

/// Writes text to standard error with invisible characters escaped. The text is lost if the reader
/// is gone.
pub(super) fn err(text: &str) {
    err_shown(&shown(text));
}

/// Writes a line to standard error with invisible characters escaped.
pub(super) fn err_line(text: &str) {
    err(&format!("{text}\n"));
}

/// Writes text to standard error that has already passed through [`visible`].
pub(super) fn err_shown(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr
        .write_all(text.as_bytes())
        .and_then(|()| stderr.flush());
}

/// Escapes invisible characters in foreign text. Call this before painting foreign text; all other
/// text is escaped when it is written.
pub(super) fn sanitize(text: &str) -> String {
    visible(text)
}

/// A count with its noun: `1 tenant`, `2 tenants`.
pub(super) fn counted<N: PartialEq + From<u8> + Display>(count: N, noun: &str) -> String {
    let plural = if count == N::from(1) { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Escapes everything but our own color sequences.
fn shown(text: &str) -> Cow<'_, str> {
    if !text.contains(crate::visible::is_invisible) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((plain, escape)) = rest.find('\u{1b}').map(|at| rest.split_at(at)) {
        let color = PAINTED.iter().find(|color| escape.starts_with(**color));
        let length = color.map_or(1, |color| color.len());
        let (sequence, after) = escape.split_at(length);
        shown.push_str(&visible(plain));
        shown.push_str(&if color.is_some() {
            sequence.to_owned()
        } else {
            visible(sequence)
        });
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
        let painted = [
            paint.red("a"),
            paint.green("b"),
            paint.bold("c"),
            paint.dim("d"),
        ]
        .concat();

        assert_eq!(shown(&painted), painted);
        assert_eq!(
            shown(&format!("{painted}\u{1b}]0;title\u{7}\u{9b}2J\u{202e}")),
            format!("{painted}\\u{{1b}}]0;title\\u{{7}}\\u{{9b}}2J\\u{{202e}}")
        );
        assert_eq!(shown("\u{1b}"), "\\u{1b}");
    }
}
