//! The live region: up to three rows below everything that was printed, such as the unfinished line
//! of an answer. Only these rows are ever rewritten.
//!
//! A terminal that becomes narrower wraps the rows of the region, or cuts them, depending on the
//! terminal. The region counts the rows that they take now before it clears them. Terminals report
//! a series of sizes late, so after a change the region waits for the last one before it counts,
//! and is then one short row for a while, which no size wraps.

use std::{
    fmt::Write as _,
    io::IsTerminal as _,
    time::{Duration, Instant},
};

use super::{
    markdown::{Line, cut, line_columns},
    terminal::{Paint, err_shown, is_dumb, out_shown, size},
};

/// Most rows of the region.
pub(super) const ROWS_MAX: usize = 3;

/// How long the region stays short after the terminal has changed its size.
const SETTLES: Duration = Duration::from_millis(800);

/// How long a size has to stay the same to be the last one of a series. tmux reports within 250 ms.
const STABLE: Duration = Duration::from_millis(300);

/// Longest wait for that.
const WAITS_MAX: Duration = Duration::from_secs(5);

/// Columns of the short row.
const SHORT: usize = 18;

/// Rows at the bottom of the terminal that can change.
#[derive(Debug)]
pub(super) struct Live {
    is_on: bool,
    to_stdout: bool,
    reflows: bool,
    /// Columns of each row that is on the screen.
    drawn: Vec<usize>,
    /// What is on the screen, to write nothing twice.
    shown: String,
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
            reflows: reflows(),
            drawn: Vec::new(),
            shown: String::new(),
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
        let shown = rows
            .iter()
            .map(|row| paint.spans(row))
            .collect::<Vec<_>>()
            .join("\u{1b}[K\r\n");
        if shown == self.shown && now == self.size {
            return;
        }
        let mut text = self.back(width);
        // Without wrapping, a row is one row even if the terminal has become narrower by now.
        let _ = write!(text, "\u{1b}[?7l{shown}\u{1b}[J\u{1b}[?7h\r");
        self.size = now;
        self.drawn = rows.iter().map(|row| line_columns(row)).collect();
        self.shown = shown;
        self.write(&text);
    }

    /// Removes the rows, so that something can be printed in their place.
    pub(super) fn clear(&mut self) {
        if self.drawn.is_empty() {
            return;
        }
        let now = self.size_now();
        let text = self.back(now.0) + "\u{1b}[J";
        self.size = now;
        self.drawn.clear();
        self.shown.clear();
        self.write(&text);
    }

    /// The size of the terminal. If it has changed since several rows were drawn, waits until it is
    /// certain how many rows they take now: clearing too many would lose what was printed.
    fn size_now(&mut self) -> (usize, usize) {
        let mut now = size();
        if now == self.size {
            return now;
        }
        let noticed = Instant::now();
        let mut since = noticed;
        while self.drawn.len() > 1 && since.elapsed() < STABLE && noticed.elapsed() < WAITS_MAX {
            std::thread::sleep(Duration::from_millis(10));
            let next = size();
            if next != now {
                (now, since) = (next, Instant::now());
            }
        }
        self.changed_at = Some(Instant::now());
        now
    }

    /// Moves to the first row of the region. The cursor is at the beginning of its last one.
    fn back(&self, width: usize) -> String {
        let Some((_, above)) = self.drawn.split_last() else {
            return "\r".to_owned();
        };
        let rows = |columns: &usize| match self.reflows {
            true => columns.div_ceil(width.max(1)).max(1),
            false => 1,
        };
        match above.iter().map(rows).sum::<usize>() {
            0 => "\r".to_owned(),
            up => format!("\r\u{1b}[{up}A"),
        }
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

/// Whether the terminal wraps its rows again when it becomes narrower. Most do; these cut them.
fn reflows() -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let term = std::env::var("TERM").unwrap_or_default();
    let cuts = set("XTERM_VERSION")
        || term == "linux"
        || term.starts_with("rxvt")
        || (term.starts_with("screen") && !set("TMUX"));
    !cuts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(drawn: &[usize], reflows: bool) -> Live {
        Live {
            is_on: true,
            to_stdout: true,
            reflows,
            drawn: drawn.to_vec(),
            shown: String::new(),
            size: (80, 24),
            changed_at: None,
        }
    }

    #[test]
    fn the_rows_above_the_cursor_are_counted_as_they_are_now() {
        for (drawn, reflows, width, expected) in [
            (&[][..], true, 80, "\r"),
            (&[79], true, 40, "\r"),
            (&[79, 10], true, 80, "\r\u{1b}[1A"),
            (&[79, 10], true, 40, "\r\u{1b}[2A"),
            (&[79, 79, 79], true, 20, "\r\u{1b}[8A"),
            (&[79, 0, 5], true, 40, "\r\u{1b}[3A"),
            (&[79, 79, 79], false, 20, "\r\u{1b}[2A"),
        ] {
            let mut live = region(drawn, reflows);
            assert_eq!(live.back(width), expected, "{drawn:?} at {width}");
            live.drawn.clear();
        }
    }
}
