//! One turn, and what was observed of it.

use std::time::{Duration, Instant};

use callboard_actors::scripted::splitmix64;

use crate::mock_model::MARK;

/// Bytes of a prompt.
const PROMPT_BYTES: usize = 200;

/// A turn to offer.
#[derive(Debug, Clone)]
pub(super) struct Turn {
    pub(super) tenant: usize,
    pub(super) conversation: String,
    /// Unique in the run; part of the prompt and of its answer.
    pub(super) id: u64,
    /// Whether the turn is interrupted at its first text.
    pub(super) cancel: bool,
}

impl Turn {
    /// The word with which the answer must begin.
    pub(super) fn mark(&self) -> String {
        format!("{MARK}{:016x}", self.id)
    }

    /// The text of the prompt.
    pub(super) fn prompt(&self) -> String {
        let mut prompt = self.mark();
        prompt.push(' ');
        prompt.extend(std::iter::repeat_n(
            'p',
            PROMPT_BYTES.saturating_sub(prompt.len()),
        ));
        prompt
    }
}

/// A number between 0 and 1, derived from an id and a seed.
pub(super) fn chance(seed: u64, id: u64) -> f64 {
    (splitmix64(seed.rotate_left(17) ^ id) >> 11) as f64 / (1u64 << 53) as f64
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// Answered to its end.
    Well,
    /// Interrupted, as requested.
    Interrupted,
    /// Accepted, then failed with this stable code.
    Failed(String),
    /// Refused with this stable code.
    Refused(String),
    /// Accepted, but its event stream closed without a final event.
    Lost,
}

/// What was observed of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) end: End,
    /// When the first text arrived.
    pub(super) first_text: Option<Instant>,
    /// Time from the interrupt to the end.
    pub(super) cancelled_in: Option<Duration>,
    /// Input and output tokens of its model calls.
    pub(super) tokens: u64,
    /// Events whose id is not greater than the id before.
    pub(super) repeated: u64,
    /// Whether the answer belongs to another prompt.
    pub(super) mismatched: bool,
    /// Whether the answer has no mark, so that it cannot be checked.
    pub(super) unmarked: bool,
}

impl Seen {
    /// A turn that ended before any event.
    pub(super) fn only(end: End) -> Self {
        Self {
            end,
            first_text: None,
            cancelled_in: None,
            tokens: 0,
            repeated: 0,
            mismatched: false,
            unmarked: false,
        }
    }
}

/// Records the events of a turn, from either kind of target.
#[derive(Debug)]
pub(super) struct Watch {
    mark: String,
    cancel: bool,
    interrupted_at: Option<Instant>,
    last: Option<[u64; 3]>,
    seen: Seen,
}

/// The end of a round, in the form that both kinds of targets share.
#[derive(Debug)]
pub(super) struct RoundOver<'a> {
    pub(super) stop_reason: &'a str,
    pub(super) error: Option<&'a str>,
    pub(super) text: &'a str,
    pub(super) tokens: u64,
}

impl Watch {
    pub(super) fn new(turn: &Turn) -> Self {
        Self {
            mark: turn.mark(),
            cancel: turn.cancel,
            interrupted_at: None,
            last: None,
            seen: Seen::only(End::Lost),
        }
    }

    /// Checks the order of an event by its id.
    pub(super) fn place(&mut self, id: [u64; 3]) {
        if self.last.is_some_and(|last| id <= last) {
            self.seen.repeated += 1;
        }
        self.last = Some(id);
    }

    /// Records a piece of text. Returns true when the turn must be interrupted now.
    pub(super) fn text(&mut self) -> bool {
        let now = Instant::now();
        self.seen.first_text.get_or_insert(now);
        let interrupt = self.cancel && self.interrupted_at.is_none();
        if interrupt {
            self.interrupted_at = Some(now);
        }
        interrupt
    }

    /// Records the end.
    pub(super) fn over(&mut self, over: &RoundOver<'_>) {
        if self.seen.end != End::Lost {
            self.seen.repeated += 1; // the round ended twice
            return;
        }
        self.seen.tokens = over.tokens;
        let marked = over.text.starts_with(MARK);
        self.seen.end = match over.stop_reason {
            "end_turn" | "max_tokens" | "stop_sequence" => {
                self.seen.unmarked = !marked;
                End::Well
            }
            "interrupted" if self.cancel => {
                self.seen.cancelled_in = self.interrupted_at.map(|at| at.elapsed());
                End::Interrupted
            }
            "error" => End::Failed(over.error.unwrap_or("error").to_owned()),
            other => End::Failed(other.to_owned()),
        };
        // The mark of an interrupted turn may have arrived in part.
        self.seen.mismatched = marked
            && self.seen.end == End::Well
            && over.text.split(' ').next() != Some(self.mark.as_str());
    }

    /// Records an error that ended the turn.
    pub(super) fn failed(&mut self, code: &str) {
        if self.seen.end == End::Lost {
            self.seen.end = End::Failed(code.to_owned());
        }
    }

    pub(super) fn seen(self) -> Seen {
        self.seen
    }
}

impl Seen {
    /// Checks by its mark whether the answer belongs to this prompt.
    pub(super) fn of_answer(turn: &Turn, over: &RoundOver<'_>) -> Self {
        let mut watch = Watch::new(turn);
        watch.over(over);
        watch.seen()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(cancel: bool) -> Turn {
        Turn {
            tenant: 0,
            conversation: "c".into(),
            id: 0xa7,
            cancel,
        }
    }

    fn over(text: &str) -> RoundOver<'_> {
        RoundOver {
            stop_reason: "end_turn",
            error: None,
            text,
            tokens: 3,
        }
    }

    #[test]
    fn an_answer_to_another_prompt_is_seen() {
        for (text, mismatched, unmarked) in [
            ("load-00000000000000a7 word", false, false),
            ("load-00000000000000a8 word", true, false),
            ("hello", false, true),
        ] {
            let mut watch = Watch::new(&turn(false));
            watch.over(&over(text));
            let seen = watch.seen();
            assert_eq!(
                (seen.end, seen.mismatched, seen.unmarked),
                (End::Well, mismatched, unmarked),
                "{text}"
            );
        }
    }

    #[test]
    fn events_that_come_twice_or_back_are_counted() {
        let mut watch = Watch::new(&turn(false));
        for id in [[1, 1, 0], [1, 1, 1], [1, 1, 1], [1, 2, 0], [1, 1, 9]] {
            watch.place(id);
        }
        watch.over(&over("x"));
        watch.over(&over("x"));

        assert_eq!(watch.seen().repeated, 3);
    }

    #[test]
    fn a_turn_without_an_end_is_lost_and_one_is_interrupted_once() {
        let mut watch = Watch::new(&turn(true));
        assert_eq!((watch.text(), watch.text()), (true, false));
        assert_eq!(watch.seen().end, End::Lost);
    }

    #[test]
    fn a_prompt_has_its_length_and_its_mark() {
        let prompt = turn(false).prompt();
        assert_eq!(
            (prompt.len(), prompt.split(' ').next()),
            (PROMPT_BYTES, Some("load-00000000000000a7"))
        );
    }
}
