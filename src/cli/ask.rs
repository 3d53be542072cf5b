//! Asks the person at the terminal whether a call may run. One question at a time; the answer comes from the terminal itself, not
//! from what is piped in.

use std::{
    collections::VecDeque,
    fs::File,
    io::{BufRead, BufReader},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::oneshot;

use super::terminal::{Paint, err, tame};

/// A call that waits for a yes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Question {
    /// The call.
    pub(super) tool_call_id: String,
    /// Its tool.
    pub(super) name: String,
    /// Its arguments as JSON.
    pub(super) input: String,
    /// Why somebody is asked.
    pub(super) reason: String,
}

/// What a person said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    No,
    Yes,
    /// And to every later call that is the same in what matters.
    Always,
}

impl Answer {
    /// Reads a line; no for anything that is not a yes.
    fn of(line: &str) -> Self {
        match line.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => Self::Yes,
            "a" | "always" => Self::Always,
            _ => Self::No,
        }
    }

    /// Whether the call may run.
    pub(super) fn allows(self) -> bool {
        self != Self::No
    }
}

/// The questions of a round.
pub(super) struct Asker {
    paint: Paint,
    queue: VecDeque<Question>,
    open: Option<Open>,
}

struct Open {
    question: Question,
    answer: oneshot::Receiver<Answer>,
    /// Tells the reading thread to leave the keyboard alone.
    over: Arc<AtomicBool>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

impl Asker {
    pub(super) fn new(paint: Paint) -> Self {
        Self { paint, queue: VecDeque::new(), open: None }
    }

    /// Takes a question, and shows it when it is its turn.
    pub(super) fn ask(&mut self, question: Question) {
        self.queue.push_back(question);
        self.show_next();
    }

    /// Whether a question stands on the screen.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Drops all questions: the round is being ended.
    pub(super) fn forget(&mut self) {
        self.queue.clear();
        self.open = None;
    }

    /// Waits for the next answer; for ever without a question.
    ///
    /// # Cancel safety
    /// No answer is lost when the future is dropped.
    pub(super) async fn answered(&mut self) -> (Question, Answer) {
        let Some(open) = &mut self.open else { return std::future::pending().await };
        let answer = (&mut open.answer).await.unwrap_or(Answer::No);
        let question = open.question.clone();
        self.open = None;
        self.show_next();
        (question, answer)
    }

    fn show_next(&mut self) {
        if self.open.is_some() {
            return;
        }
        let Some(question) = self.queue.pop_front() else { return };
        err(&format!(
            "{} {} {}\n  {}. Allow it? [y]es, [a]lways, [N]o ",
            self.paint.bold("?"),
            self.paint.bold(&tame(&question.name)),
            tame(&question.input),
            tame(question.reason.trim_end_matches('.')),
        ));
        let (tell, answer) = oneshot::channel();
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        // A thread of its own: a read of the keyboard cannot be cancelled, and must not keep the runtime.
        std::thread::spawn(move || {
            let _ = tell.send(read_answer(&seen));
        });
        self.open = Some(Open { question, answer, over });
    }
}

/// Reads a line from the terminal.
fn read_answer(over: &AtomicBool) -> Answer {
    let Ok(terminal) = File::open("/dev/tty") else { return Answer::No };
    while !is_readable(&terminal) {
        if over.load(Ordering::Relaxed) {
            return Answer::No;
        }
    }
    let mut line = String::new();
    let _ = BufReader::new(terminal).read_line(&mut line);
    Answer::of(&line)
}

/// Waits up to 100 ms for a line.
fn is_readable(terminal: &File) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(terminal, PollFlags::IN)];
    let wait = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    poll(&mut fds, Some(&wait)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_is_a_yes() {
        assert_eq!(["y", " YES ", "a", "Always", "", "n", "yep", "all"].map(Answer::of), {
            use Answer::{Always, No, Yes};
            [Yes, Yes, Always, Always, No, No, No, No]
        });
    }
}
