//! The live region: up to three rows below everything that was printed, such as the unfinished line
//! of an answer. Only these rows are ever rewritten.
//!
//! A terminal that becomes narrower wraps the rows of the region, or cuts them, and says so late. So
//! nothing here counts the rows that they take: while the region stands, the cursor is at the
//! beginning of its first row, and terminals move it with the text. What is above is never touched.
//! After a change of the size the region is one short row for a while, which no size wraps: the rows
//! of a region that is taller than the screen would stay above it.

use std::{
    fmt::Write as _,
    io::IsTerminal as _,
    time::{Duration, Instant},
};

use super::{
    markdown::{Line, cut},
    terminal::{Paint, err_shown, is_dumb, out_shown, size},
};

/// Most rows of the region.
pub(super) const ROWS_MAX: usize = 3;

/// How long the region stays short after the terminal has changed its size.
const SETTLES: Duration = Duration::from_millis(800);

/// Columns of the short row.
const SHORT: usize = 18;

/// Rows at the bottom of the terminal that can change.
#[derive(Debug)]
pub(super) struct Live {
    is_on: bool,
    to_stdout: bool,
    /// What is on the screen, to write nothing twice; `None` if nothing is.
    shown: Option<String>,
    /// Columns and rows of the terminal at the last drawing.
    size: (usize, usize),
    changed_at: Option<Instant>,
}

impl Live {
    /// A region that shows nothing if `is_on` is false or the terminal obeys no sequences.
    pub(super) fn new(is_on: bool) -> Self {
        let to_stdout = std::io::stdout().is_terminal();
        Self {
            is_on: is_on && !is_dumb() && (to_stdout || std::io::stderr().is_terminal()),
            to_stdout,
            shown: None,
            size: size(),
            changed_at: None,
        }
    }

    /// Whether rows are shown at all.
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Shows rows in place of the earlier ones; those that do not fit are left out or cut.
    pub(super) fn show(&mut self, rows: &[Line], paint: Paint) {
        if !self.is_on {
            return;
        }
        let now = self.size_now();
        let (width, height) = now;
        let settles = self.changed_at.is_some_and(|at| at.elapsed() < SETTLES);
        let (most, widest) = match settles {
            true => (1, SHORT),
            false => (ROWS_MAX, usize::MAX),
        };
        let widest = width.saturating_sub(1).min(widest);
        let most = most.min(height.saturating_sub(1));
        let rows: Vec<Line> = rows
            .get(rows.len().saturating_sub(most)..)
            .unwrap_or_default()
            .iter()
            .map(|row| cut(row, widest))
            .collect();
        let text = rows.iter().map(|row| paint.spans(row)).collect::<Vec<_>>();
        let text = drawing(&text, now != self.size);
        let same = self.shown.as_deref() == Some(&text);
        self.size = now;
        if !same {
            self.write(&text);
            self.shown = Some(text);
        }
    }

    /// Removes the rows, so that something can be printed in their place.
    pub(super) fn clear(&mut self) {
        if self.shown.take().is_some() {
            self.write(CLEAR);
        }
    }

    /// The size of the terminal; notes when it has changed.
    fn size_now(&mut self) -> (usize, usize) {
        let now = size();
        if now != self.size {
            self.changed_at = Some(Instant::now());
        }
        now
    }

    fn write(&self, text: &str) {
        match self.to_stdout {
            true => out_shown(text),
            false => err_shown(text),
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Clears from the first row on. tmux keeps what is cleared from the upper left corner on, so that
/// the corner is cleared by itself.
const CLEAR: &str = "\r \u{1b}[J\r\u{1b}[K";

/// What draws rows over the earlier ones, and leaves the cursor where it was: at the first of them.
fn drawing(rows: &[String], has_wrapped: bool) -> String {
    let clear = if has_wrapped { CLEAR } else { "" };
    // Without wrapping, a row is one row even if the terminal has become narrower by now.
    let rows_shown = rows.join("\u{1b}[K\r\n");
    let mut text = format!("{clear}\r\u{1b}[?7l{rows_shown}\u{1b}[J\u{1b}[?7h\r");
    if let up @ 1.. = rows.len().saturating_sub(1) {
        let _ = write!(text, "\u{1b}[{up}A");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cursor_stays_at_the_first_row_that_changes() {
        let rows = |rows: &[&str]| rows.iter().map(|row| row.to_string()).collect::<Vec<_>>();
        assert_eq!(
            drawing(&rows(&["one"]), false),
            "\r\u{1b}[?7lone\u{1b}[J\u{1b}[?7h\r"
        );
        assert_eq!(
            drawing(&rows(&["one", "two", "three"]), false),
            "\r\u{1b}[?7lone\u{1b}[K\r\ntwo\u{1b}[K\r\nthree\u{1b}[J\u{1b}[?7h\r\u{1b}[2A"
        );
    }
}
