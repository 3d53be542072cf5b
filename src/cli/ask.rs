//! Asks the person at the terminal whether a tool call may run, one question at a time.

mod answer;

use std::{
    collections::VecDeque,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use serde::Deserialize;
use tokio::sync::oneshot;

pub(super) use answer::Answer;
use answer::Offer;

use super::{
    change::change,
    terminal::{Paint, counted, err, err_line, err_shown},
    view::seconds,
    wrap::for_stderr,
};
use crate::visible::{escaped_json, visible_strict};

/// Characters of arguments that a person sees at once on every screen. Of longer ones the beginning
/// may have left it.
const CHARS_AT_ONCE: usize = 1000;

/// Lines of a diff that a person sees at once on most screens.
const LINES_AT_ONCE: usize = 20;

/// Characters of what is asked for that the last line of a question repeats.
const REPEATED_CHARS: usize = 60;

/// A tool call that waits for approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Question {
    /// Id of the call.
    pub(super) tool_call_id: String,
    /// Name of its tool.
    pub(super) name: String,
    /// Its arguments as JSON.
    pub(super) input: String,
    /// Why the call needs approval.
    pub(super) reason: String,
}

/// The arguments of `bash`. With any other argument the call is shown as JSON: nothing that a person
/// decides on is left out.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bash {
    command: String,
    folder: Option<String>,
    timeout_ms: Option<u64>,
}

/// The open questions of a round.
pub(super) struct Asker {
    paint: Paint,
    offer: Offer,
    queue: VecDeque<Question>,
    open: Option<Open>,
}

struct Open {
    question: Question,
    answer: oneshot::Receiver<Answer>,
    /// Set when the question is dropped, so that the reading thread stops taking keys.
    over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // The terminal has its usual modes again once the thread has ended, within half a second.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Asker {
    pub(super) fn new(paint: Paint) -> Self {
        Self {
            paint,
            offer: Offer::default(),
            queue: VecDeque::new(),
            open: None,
        }
    }

    /// A model reads the answers: a no can have words, and with `folder`, one of this user,
    /// arguments can be changed in an editor.
    pub(super) fn of_model(mut self, folder: Option<&Path>) -> Self {
        self.offer = Offer {
            words: true,
            edits_in: folder.map(Path::to_owned),
        };
        self
    }

    /// Whether a question may wait beside the others: they are at most `count`, of `bytes` together.
    pub(super) fn has_room(&self, question: &Question, count: usize, bytes: usize) -> bool {
        let waiting = self.queue.iter().chain([question]);
        self.queue.len() < count && waiting.map(Question::bytes).sum::<usize>() <= bytes
    }

    /// Queues a question; shows it once no other is open.
    pub(super) fn ask(&mut self, question: Question) {
        self.queue.push_back(question);
        self.show_next();
    }

    /// Whether a question is on the screen.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Drops the question about a call that has a result: it was decided elsewhere, or too late.
    pub(super) fn settled(&mut self, tool_call_id: &str) {
        self.queue
            .retain(|question| question.tool_call_id != tool_call_id);
        let is_shown = |open: &Open| open.question.tool_call_id == tool_call_id;
        if self.open.as_ref().is_some_and(is_shown) {
            self.open = None;
            err_line("decided without you");
            self.show_next();
        }
    }

    /// Drops all questions, because the round is being cancelled.
    pub(super) fn forget(&mut self) {
        self.queue.clear();
        self.open = None;
    }

    /// Waits for the next answer. Never returns if no question is open.
    ///
    /// # Cancel safety
    /// Cancel safe: an answer that arrives while no future waits is returned by the next call.
    pub(super) async fn answered(&mut self) -> (Question, Answer) {
        let Some(open) = &mut self.open else {
            return std::future::pending().await;
        };
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
        let Some(question) = self.queue.pop_front() else {
            return;
        };
        question.show(self.paint, &self.offer.keys(false));
        let (sender, answer) = oneshot::channel();
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        let (offer, asked) = (self.offer.clone(), question.clone());
        // Keyboard reads cannot be cancelled, so they run on a plain thread, which does not delay
        // the runtime's shutdown.
        let thread = std::thread::spawn(move || {
            let answer = offer.read(asked, &|| seen.load(Ordering::Relaxed));
            let _ = sender.send(answer);
        });
        self.open = Some(Open {
            question,
            answer,
            over,
            thread: Some(thread),
        });
    }
}

impl Question {
    fn bytes(&self) -> usize {
        [&self.tool_call_id, &self.name, &self.input, &self.reason]
            .iter()
            .map(|text| text.len())
            .sum()
    }

    /// Prints the question, with the keys that answer it.
    fn show(&self, paint: Paint, keys: &str) {
        let special = self
            .as_change(paint, keys)
            .or_else(|| self.as_command(paint, keys));
        let shown = special
            .as_deref()
            .map_or_else(|| self.shown(paint, keys), str::to_owned);
        // The keys are words too, and are not cut at the edge.
        let shown = match shown.rsplit_once('\n') {
            Some((what, asks)) => format!("{what}\n{}", for_stderr(asks)),
            None => shown,
        };
        match special {
            Some(_) => err_shown(&shown),
            None => err(&shown),
        }
    }

    /// Formats a command as the lines that run, each behind the mark of a shell, which no line of the
    /// question itself has; `None` for any other call. All lines are shown.
    fn as_command(&self, paint: Paint, keys: &str) -> Option<String> {
        if self.name != "bash" {
            return None;
        }
        let bash: Bash = serde_json::from_str(&self.input).ok()?;
        let mut shown = format!("{} {}", paint.bold("?"), paint.bold("bash"));
        if let Some(folder) = &bash.folder {
            shown.push_str(&format!(
                " in {}",
                visible_strict(folder).replace('\n', "\\n")
            ));
        }
        if let Some(ms) = bash.timeout_ms {
            shown.push_str(&format!(", at most {}", seconds(ms)));
        }
        shown.push('\n');
        let command = visible_strict(&bash.command);
        let lines = command.split('\n').count();
        for (at, line) in command.split('\n').enumerate() {
            let mark = if at == 0 { "$" } else { ">" };
            shown.push_str(&format!("  {mark} {line}\n"));
        }
        if lines > LINES_AT_ONCE || shown.chars().count() > CHARS_AT_ONCE {
            shown.push_str(&format!(
                "  {}: scroll up and read from the beginning.\n",
                counted(lines, "line")
            ));
        }
        Some(shown + &self.asks("bash", keys))
    }

    /// Formats a change of a file as a diff; `None` for any other call. All lines are shown.
    fn as_change(&self, paint: Paint, keys: &str) -> Option<String> {
        let (path, lines) = change(&self.name, &self.input)?;
        let mut shown = format!("{} {} {path}\n", paint.bold("?"), paint.bold("file_edit"));
        for line in &lines {
            shown.push_str(&paint.spans(line));
            shown.push('\n');
        }
        // A single long line fills a screen as well, and could end in the picture of another question.
        if lines.len() > LINES_AT_ONCE || shown.chars().count() > CHARS_AT_ONCE {
            let count = lines.len();
            shown.push_str(&format!(
                "  {count} lines to {path}: scroll up and read from the beginning.\n"
            ));
        }
        Some(shown + &self.asks(&format!("{} of {path}", self.name), keys))
    }

    /// The last line of a question, with the end of what it asks for: the beginning of a long
    /// question may have left the screen.
    fn asks(&self, what: &str, keys: &str) -> String {
        let reason = visible_strict(self.reason.trim_end_matches('.'));
        let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
        let cut = what.chars().count().saturating_sub(REPEATED_CHARS);
        let what: String = what.chars().skip(cut).collect();
        let more = if cut > 0 { "…" } else { "" };
        format!("  {reason}. Allow {more}{what}? {keys} ")
    }

    /// Formats the question on two lines, and a third for a long one. Invisible characters and
    /// characters that reorder text are escaped, so that the person sees exactly what would run.
    fn shown(&self, paint: Paint, keys: &str) -> String {
        let line = |text: &str| {
            visible_strict(text)
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        };
        // JSON has raw line ends only between tokens. They are removed, because blank lines could
        // push the rest off the screen.
        let input: String = escaped_json(&self.input)
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let chars = input.trim().chars().count();
        let length = if chars > CHARS_AT_ONCE {
            format!("\n  {chars} characters: scroll up and read from the beginning.")
        } else {
            String::new()
        };
        format!(
            "{} {} {}{length}\n{}",
            paint.bold("?"),
            paint.bold(&line(&self.name)),
            input.trim(),
            self.asks(&line(&self.name), keys),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &str = "[y]es, [a]lways, [N]o";

    #[test]
    fn the_questions_that_wait_are_bounded_in_number_and_in_bytes() {
        let question = |length: usize| Question {
            tool_call_id: "t1".into(),
            name: "bash".into(),
            input: "x".repeat(length),
            reason: "why".into(),
        };
        let mut asker = Asker::new(Paint::plain());
        assert!(asker.has_room(&question(991), 2, 1000));
        assert!(!asker.has_room(&question(992), 2, 1000));

        asker.queue.extend([question(491)]);
        assert!(asker.has_room(&question(480), 2, 1000));
        assert!(!asker.has_room(&question(500), 2, 1000));
        asker.queue.extend([question(0)]);
        assert!(!asker.has_room(&question(0), 2, 1000));
    }

    #[test]
    fn a_question_holds_no_character_that_hides_or_turns_what_it_asks() {
        let question = Question {
            tool_call_id: "t1".into(),
            name: "ba\u{200b}sh\n".into(),
            input: "{\"command\":\n\n\"ls \u{202e}hcuot\u{202c} \u{2066}# \u{e0041}\u{9b}2J مرحبا 👩\u{200d}💻\"}\n".into(),
            reason: "of \u{1b}[2Ka \u{200f}file.".into(),
        };

        let expected = "? ba\\u{200b}sh {\"command\":  \"ls \\u202ehcuot\\u202c \\u2066# \\udb40\\udc41\\u009b2J مرحبا 👩\\u200d💻\"}\n  of \\u{1b}[2Ka \\u{200f}file. Allow ba\\u{200b}sh? [y]es, [a]lways, [N]o ";
        assert_eq!(question.shown(Paint::plain(), KEYS), expected);
    }

    #[test]
    fn a_question_that_may_not_fit_the_screen_says_how_long_it_is() {
        let shown = |length: usize| {
            Question {
                tool_call_id: "t1".into(),
                name: "bash".into(),
                input: "x".repeat(length),
                reason: "why".into(),
            }
            .shown(Paint::plain(), KEYS)
        };

        assert!(!shown(1000).contains("characters"));
        assert!(shown(1001).ends_with(
            "x\n  1001 characters: scroll up and read from the beginning.\n  why. Allow bash? [y]es, [a]lways, [N]o "
        ));
    }

    #[test]
    fn a_command_is_asked_as_the_lines_that_run() {
        let asked = |input: serde_json::Value| {
            Question {
                tool_call_id: "t1".into(),
                name: "bash".into(),
                input: input.to_string(),
                reason: "why.".into(),
            }
            .as_command(Paint::plain(), KEYS)
        };
        let end = "  why. Allow bash? [y]es, [a]lways, [N]o ";

        let two = serde_json::json!({"command": "set -e\necho \u{1b}[2Jone\r\n\u{202e}x"});
        assert_eq!(
            asked(two).unwrap(),
            format!(
                "? bash\n  $ set -e\n  > echo \\u{{1b}}[2Jone\\u{{d}}\n  > \\u{{202e}}x\n{end}"
            )
        );
        let more = serde_json::json!({"command": "ls", "folder": "a\nb", "timeout_ms": 5000});
        assert_eq!(
            asked(more).unwrap(),
            format!("? bash in a\\nb, at most 5.0 s\n  $ ls\n{end}")
        );
        let long = asked(serde_json::json!({"command": "x\n".repeat(30)})).unwrap();
        assert!(long.contains("  31 lines: scroll up and read from the beginning.\n  why."));
        assert_eq!(
            asked(serde_json::json!({"command": "ls", "env": "x"})),
            None
        );
    }

    #[test]
    fn a_change_of_a_file_is_asked_as_a_diff() {
        let question = Question {
            tool_call_id: "t1".into(),
            name: "file_edit".into(),
            input: r#"{"path":"a.txt","old_text":"one","new_text":"two"}"#.into(),
            reason: "this tool changes something.".into(),
        };

        assert_eq!(
            question.as_change(Paint::plain(), KEYS).unwrap(),
            "? file_edit a.txt\n  - one\n  + two\n  this tool changes something. Allow file_edit of a.txt? [y]es, [a]lways, [N]o "
        );
    }
}
