//! Chooses one of many rows with the arrow keys, by its number, or by typing a part of it. Only a
//! region of three rows changes.

use std::{
    fs::File,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    live::Live,
    markdown::{Line, Span, Style},
    signals::Signals,
    terminal::{Paint, err},
    typed::{self, Keys, is_readable},
    typing::read_keys,
};

/// Characters that can be typed.
const TYPED_CHARS: usize = 60;

/// Lets the person choose a row; `None` if none is wanted. Without a region that changes, the number
/// is asked for.
pub(super) async fn pick(
    rows: Vec<String>,
    is_plain: bool,
    signals: &mut Signals,
) -> Option<usize> {
    let over = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&over);
    let mut picked = tokio::task::spawn_blocking(move || {
        let is_over = || seen.load(Ordering::Relaxed);
        let live = Live::new(!is_plain);
        match live.is_on() {
            true => picked_by_keys(&rows, live, is_over),
            false => picked_by_number(rows.len(), is_over),
        }
    });
    tokio::select! {
        biased;
        () = signals.next() => {
            over.store(true, Ordering::Relaxed);
            let _ = picked.await; // The terminal has its usual modes again.
            None
        }
        row = &mut picked => row.ok().flatten(),
    }
}

fn picked_by_number(count: usize, is_over: impl Fn() -> bool) -> Option<usize> {
    err("  Which number? Enter alone for none: ");
    let number: usize = typed::line(is_over)?.trim().parse().ok()?;
    number.checked_sub(1).filter(|at| *at < count)
}

fn picked_by_keys(rows: &[String], mut live: Live, is_over: impl Fn() -> bool) -> Option<usize> {
    let mut terminal = File::open("/dev/tty").ok()?;
    let _keys = Keys::of(&terminal);
    let mut list = List::of(rows);
    loop {
        live.show(&list.shown(), Paint::stderr());
        while !is_readable(&terminal) {
            if is_over() {
                return None;
            }
            live.show(&list.shown(), Paint::stderr()); // After a change of the size.
        }
        for key in keys(&read_keys(&mut terminal)?) {
            match list.take(key) {
                Some(End::Picked(at)) => return Some(at),
                Some(End::Left) => return None,
                None => {}
            }
        }
    }
}

/// A key of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Char(char),
    Up,
    Down,
    Enter,
    Erase,
    Clear,
    /// Escape or Ctrl-D.
    Leave,
}

/// The keys that bytes of the terminal mean. Others are dropped.
fn keys(bytes: &[u8]) -> Vec<Key> {
    let text = String::from_utf8_lossy(bytes);
    let mut keys = Vec::new();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        keys.extend(match c {
            '\u{1b}' => match rest.next_if(|next| matches!(next, '[' | 'O')) {
                Some(_) => match rest.find(|c| ('@'..='~').contains(c)) {
                    Some('A') => Some(Key::Up),
                    Some('B') => Some(Key::Down),
                    _ => None,
                },
                None if rest.peek().is_none() => Some(Key::Leave),
                None => {
                    rest.next(); // A key with Alt.
                    None
                }
            },
            '\r' | '\n' => Some(Key::Enter),
            '\u{8}' | '\u{7f}' => Some(Key::Erase),
            '\u{15}' => Some(Key::Clear),
            '\u{4}' => Some(Key::Leave),
            '\u{10}' => Some(Key::Up),
            '\u{e}' => Some(Key::Down),
            c if c.is_control() => None,
            c => Some(Key::Char(c)),
        });
    }
    keys
}

/// How the choice ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Picked(usize),
    Left,
}

/// The rows, what is typed, and the row that is chosen among those that fit.
#[derive(Debug)]
struct List<'r> {
    rows: &'r [String],
    typed: String,
    at: usize,
}

impl<'r> List<'r> {
    fn of(rows: &'r [String]) -> Self {
        Self {
            rows,
            typed: String::new(),
            at: 0,
        }
    }

    /// The rows that fit what is typed: the one with this number first, then those that contain all
    /// words.
    fn found(&self) -> Vec<usize> {
        let typed = self.typed.to_lowercase();
        let numbered = typed.trim().parse::<usize>().ok();
        let numbered = numbered.and_then(|number| number.checked_sub(1));
        let numbered = numbered.filter(|at| *at < self.rows.len());
        let fits = |row: &String| {
            let row = row.to_lowercase();
            typed.split_whitespace().all(|word| row.contains(word))
        };
        let containing = self.rows.iter().enumerate();
        let containing = containing.filter(|(at, row)| Some(*at) != numbered && fits(row));
        numbered
            .into_iter()
            .chain(containing.map(|(at, _)| at))
            .collect()
    }

    fn take(&mut self, key: Key) -> Option<End> {
        let found = self.found();
        match key {
            Key::Leave => return Some(End::Left),
            Key::Enter => return found.get(self.at).map(|at| End::Picked(*at)),
            Key::Up => self.at = self.at.saturating_sub(1),
            Key::Down => self.at = (self.at + 1).min(found.len().saturating_sub(1)),
            Key::Char(c) if self.typed.chars().count() < TYPED_CHARS => {
                self.typed.push(c);
                self.at = 0;
            }
            Key::Char(_) => {}
            Key::Erase => {
                self.typed.pop();
                self.at = 0;
            }
            Key::Clear => {
                self.typed.clear();
                self.at = 0;
            }
        }
        None
    }

    /// The chosen row with the next one, and what is typed.
    fn shown(&self) -> Vec<Line> {
        let found = self.found();
        let mut shown = Vec::new();
        for (place, row) in found.iter().enumerate().skip(self.at).take(2) {
            let (mark, style) = match place == self.at {
                true => ("❯ ", Style::BOLD),
                false => ("  ", Style::DIM),
            };
            let text = self.rows.get(*row).map(String::as_str).unwrap_or_default();
            shown.push(vec![Span::new(&format!("{mark}{text}"), style)]);
        }
        let place = (self.at + 1).min(found.len());
        shown.push(vec![
            Span::new("> ", Style::BOLD),
            Span::new(&format!("{}▏", self.typed), Style::PLAIN),
            Span::new(
                &format!(
                    "  {place} of {}: ↑ ↓, a number or words; Enter, Esc",
                    found.len()
                ),
                Style::DIM,
            ),
        ]);
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::markdown::text_of;

    #[test]
    fn keys_are_distinguished() {
        use Key::{Char, Clear, Down, Enter, Erase, Leave, Up};

        assert_eq!(keys(b"\x1b[A\x1bOB\x1b[1;5Bx"), [Up, Down, Down, Char('x')]);
        assert_eq!(
            keys("é\r\u{7f}\u{15}".as_bytes()),
            [Char('é'), Enter, Erase, Clear]
        );
        assert_eq!(keys(b"\x1b"), [Leave]);
        assert_eq!(keys(b"\x04\x10\x0e"), [Leave, Up, Down]);
        assert_eq!(keys(b"\x1bx\x01\x1b[5~"), []);
    }

    #[test]
    fn a_row_is_found_by_arrows_number_and_words() {
        let rows = ["  1  red Apple", "  2  green pear", "  3  green apple"].map(str::to_owned);
        let end = |typed: &str| {
            let mut list = List::of(&rows);
            keys(typed.as_bytes())
                .into_iter()
                .find_map(|key| list.take(key))
        };

        for (typed, picked) in [
            ("\r", 0),
            ("\x1b[B\x1b[B\x1b[B\x1b[B\r", 2),
            ("\x1b[B\x1b[A\x1b[A\r", 0),
            ("2\r", 1),
            ("apple\x1b[B\r", 2),
            ("green apple\r", 2),
            ("x\u{7f}pear\r", 1),
            ("pear\u{15}\r", 0),
        ] {
            assert_eq!(end(typed), Some(End::Picked(picked)), "{typed:?}");
        }
        assert_eq!(end("nothing\r"), None);
        assert_eq!(end("pear\x1b"), Some(End::Left));
    }

    #[test]
    fn the_list_takes_three_rows_at_most() {
        let rows: Vec<String> = (1..=20).map(|number| format!("{number}")).collect();
        let mut list = List::of(&rows);
        list.take(Key::Down);

        let shown: Vec<String> = list.shown().iter().map(|row| text_of(row)).collect();
        assert_eq!(shown.len(), 3);
        assert_eq!(shown[..2], ["❯ 2", "  3"]);
        assert!(shown[2].starts_with("> ▏  2 of 20:"), "{}", shown[2]);
    }
}
