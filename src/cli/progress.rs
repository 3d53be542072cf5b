//! A progress bar on standard error; nothing if that is no terminal.

use std::{
    io::IsTerminal as _,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{
    live::Live,
    markdown::{Span, Style},
    terminal::Paint,
};

/// Shortest time between two drawings.
const DRAWN_EVERY: Duration = Duration::from_millis(50);

/// Characters of the bar.
const CELLS: u64 = 30;

/// How far a piece of work is.
pub(super) struct Bar(Mutex<State>);

struct State {
    live: Live,
    begun: Instant,
    drawn: Option<Instant>,
    /// Replaces the time that has passed.
    head: Option<String>,
    done: u64,
    total: u64,
    message: String,
}

impl Bar {
    /// A bar for `total` pieces of work, which is seen if `is_shown`.
    pub(super) fn new(total: u64, is_shown: bool) -> Self {
        let live = Live::new(is_shown && std::io::stderr().is_terminal());
        let bar = Self(Mutex::new(State {
            live,
            begun: Instant::now(),
            drawn: None,
            head: None,
            done: 0,
            total,
            message: String::new(),
        }));
        bar.0.lock().draw();
        bar
    }

    /// One more piece is done.
    pub(super) fn step(&self, message: String) {
        let mut state = self.0.lock();
        state.done += 1;
        state.message = message;
        state.soon();
    }

    /// Sets everything that the bar shows; `head` replaces the time.
    pub(super) fn set(&self, head: Option<&str>, done: u64, message: String) {
        let mut state = self.0.lock();
        state.head = head.map(str::to_owned);
        state.done = done;
        state.message = message;
        state.soon();
    }

    /// Prints something above the bar.
    pub(super) fn suspend(&self, print: impl FnOnce()) {
        let mut state = self.0.lock();
        state.live.clear();
        print();
        state.draw();
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        self.0.lock().live.clear();
    }
}

impl State {
    fn soon(&mut self) {
        let is_due = self.drawn.is_none_or(|at| at.elapsed() >= DRAWN_EVERY);
        if is_due || self.done == self.total {
            self.draw();
        }
    }

    fn draw(&mut self) {
        if self.live.is_on() {
            let row = Span::new(&self.text(), Style::PLAIN);
            self.live.show(&[vec![row]], Paint::stderr());
            self.drawn = Some(Instant::now());
        }
    }

    fn text(&self) -> String {
        let full = match self.total {
            0 => 0,
            total => (CELLS * self.done.min(total)) / total,
        };
        let bar: String = (0..CELLS)
            .map(|cell| if cell < full { '█' } else { '░' })
            .collect();
        let message = &self.message;
        match &self.head {
            Some(head) => {
                let percent = self.done.saturating_mul(100) / self.total.max(1);
                format!("{head:>16} [{bar}] {percent:>3} %  {message}")
            }
            None => {
                let seconds = self.begun.elapsed().as_secs();
                let time = match seconds {
                    0..60 => format!("{seconds}s"),
                    _ => format!("{}m{:02}s", seconds / 60, seconds % 60),
                };
                format!("{time:>6} [{bar}] {}/{}  {message}", self.done, self.total)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_says_how_far_the_work_is() {
        let bar = Bar::new(200, false);
        let text = || bar.0.lock().text();

        assert_eq!(text(), format!("    0s [{}] 0/200  ", "░".repeat(30)));

        bar.set(None, 99, "1 failed".to_owned());
        bar.step("2 failed".to_owned());
        let half = "█".repeat(15) + &"░".repeat(15);
        assert_eq!(text(), format!("    0s [{half}] 100/200  2 failed"));

        bar.set(Some("warming up"), 200, String::new());
        assert!(text().starts_with("      warming up [█"), "{}", text());
        assert!(text().contains("] 100 %"), "{}", text());
    }
}
