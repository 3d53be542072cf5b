//! The summary pair at the head of a compacted history: two messages that describe what was removed
//! and how to read it. A later compaction reads the pair, merges it with newer removals and writes
//! one pair again. Every item of the text is on one line, so that quoted text cannot imitate
//! another section.
//!
//! Pure.

use std::collections::HashMap;

use crate::chat::{Message, Role};

use super::rules::{
    DECISIONS_MAX, OUTCOMES_MAX, ROUND_OBSERVED_MAX, ROUND_TOOLS_MAX, RoundLines, clip, one_line,
    push_line, rule_summary,
};

/// The text of the assistant's message of the pair.
pub(super) const ANSWER: &str = "Understood. I continue from this summary and read removed messages with `recall` when I need them.";

const HEAD: &str = "## Previous Context Summary";
const SUMMARY: &str = "### Summary";
const REQUESTS: &str = "### User Requests";
const ROUNDS: &str = "### Earlier Rounds";
const PINNED: &str = "### Pinned";
const REMOVED: &str = "### Removed Messages";

/// Most spans that the pair names. Older ones are still in the journal, but models do not read that
/// far back.
pub(super) const POINTERS_MAX: usize = 8;

/// Characters shown of each removed user message.
pub(super) const REQUEST_CHARS: usize = 200;

/// One removed span, as an argument for `recall`, and the hashes by which its summary is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pointer {
    /// The span as `recall` accepts it: `{label}:{from}-{to}`.
    pub span: String,
    /// Number of removed messages.
    pub messages: u32,
    /// Number of the last round that lost messages.
    pub last_round: u64,
    /// How to find a summary that may still arrive; `None` if none is expected.
    pub pending: Option<Pending>,
}

/// A span whose summary may still arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pending {
    /// The hash of the span.
    pub hash: String,
    /// Number of messages of the span that were kept, directly after the pair.
    pub left: u32,
    /// The hash of those messages. It detects a rewind that changed them.
    pub left_hash: String,
}

/// The content of the pair.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct SummaryPair {
    /// Key decisions, oldest first.
    pub decisions: Vec<String>,
    /// Tool outcomes, oldest first.
    pub outcomes: Vec<String>,
    /// The summary that a model wrote; empty without one.
    pub summary: String,
    /// Beginnings of removed user messages, oldest first.
    pub requests: Vec<String>,
    /// Rounds that lost messages, oldest first, with ascending numbers.
    pub rounds: Vec<RoundLines>,
    /// Number of rounds that were removed completely.
    pub rounds_gone: u64,
    /// Removed spans, oldest first.
    pub pointers: Vec<Pointer>,
}

/// How much of each section is written. The pair uses the first level that fits.
struct Detail {
    decisions: usize,
    outcomes: usize,
    summary_chars: usize,
    requests: usize,
    request_chars: usize,
    rounds: usize,
    observed: usize,
    pointers: usize,
}

const fn detail(parts: [usize; 8]) -> Detail {
    let [
        decisions,
        outcomes,
        summary_chars,
        requests,
        request_chars,
        rounds,
        observed,
        pointers,
    ] = parts;
    Detail {
        decisions,
        outcomes,
        summary_chars,
        requests,
        request_chars,
        rounds,
        observed,
        pointers,
    }
}

/// The most detailed level.
const FULL: Detail = detail([
    DECISIONS_MAX,
    OUTCOMES_MAX,
    4000,
    40,
    REQUEST_CHARS,
    20,
    3,
    POINTERS_MAX,
]);

/// The least detailed level.
const LEAST: Detail = detail([0, 0, 100, 1, 40, 0, 0, 1]);

/// All levels, the most detailed first.
const DETAILS: [Detail; 6] = [
    FULL,
    detail([
        DECISIONS_MAX,
        OUTCOMES_MAX,
        2500,
        20,
        REQUEST_CHARS,
        10,
        1,
        POINTERS_MAX,
    ]),
    detail([
        DECISIONS_MAX,
        OUTCOMES_MAX,
        1500,
        10,
        REQUEST_CHARS,
        5,
        0,
        POINTERS_MAX,
    ]),
    detail([3, 5, 800, 6, 120, 2, 0, 4]),
    detail([1, 2, 300, 3, 60, 0, 0, 2]),
    LEAST,
];

/// Whether two messages are a summary pair.
pub(super) fn is_pair(summary: &Message, answer: &Message) -> bool {
    summary.role() == Role::User
        && answer.role() == Role::Assistant
        && answer.text() == ANSWER
        && summary.text().starts_with(HEAD)
        && !SummaryPair::read(summary).pointers.is_empty()
}

impl SummaryPair {
    /// Writes the pair with the most detail that fits into `tokens_max`, as measured by `count`.
    /// The least detailed level is written even if it does not fit. Pinned lines are never cut.
    pub(super) fn messages(
        &self,
        pinned: &[String],
        tokens_max: u64,
        count: &dyn Fn(&Message) -> u64,
    ) -> (Message, Message) {
        let answer = Message::assistant(ANSWER);
        let room = tokens_max.saturating_sub(count(&answer));
        let mut least = None;
        for detail in &DETAILS {
            let summary = Message::user(self.render(pinned, detail));
            if count(&summary) <= room {
                return (summary, answer);
            }
            least = Some(summary);
        }
        (least.unwrap_or_else(|| Message::user(HEAD)), answer)
    }

    /// Approximate tokens of the least detailed level.
    pub(super) fn least_tokens(pinned: &[String], count: &dyn Fn(&Message) -> u64) -> u64 {
        let pending = Pending {
            hash: "0".repeat(16),
            left: 100_000,
            left_hash: "0".repeat(16),
        };
        let pointer = Pointer {
            span: format!("{0}:0-100000", "0".repeat(16)),
            messages: 100_000,
            last_round: 100_000,
            pending: Some(pending),
        };
        let sample = Self {
            summary: "字".repeat(100),
            requests: vec!["字".repeat(40)],
            pointers: vec![pointer],
            ..Self::default()
        };
        count(&Message::user(sample.render(pinned, &LEAST)))
            .saturating_add(count(&Message::assistant(ANSWER)))
    }

    fn render(&self, pinned: &[String], detail: &Detail) -> String {
        let mut text = rule_summary(
            newest(&self.decisions, detail.decisions),
            newest(&self.outcomes, detail.outcomes),
        );
        if !self.summary.is_empty() && detail.summary_chars > 0 {
            push_line(&mut text, "\n", SUMMARY);
            clip(&self.summary, detail.summary_chars)
                .lines()
                .for_each(|line| push_line(&mut text, "> ", line));
        }
        if !self.requests.is_empty() {
            push_line(&mut text, "\n", REQUESTS);
            for request in newest(&self.requests, detail.requests) {
                push_line(&mut text, "- ", &clip(request, detail.request_chars));
            }
        }
        let rounds = newest(&self.rounds, detail.rounds);
        if !rounds.is_empty() {
            push_line(&mut text, "\n", ROUNDS);
            for round in rounds {
                let observed = round
                    .observed
                    .iter()
                    .take(detail.observed)
                    .cloned()
                    .collect();
                text.push_str(
                    &RoundLines {
                        observed,
                        ..round.clone()
                    }
                    .render(),
                );
            }
        }
        if !pinned.is_empty() {
            push_line(&mut text, "\n", PINNED);
            pinned
                .iter()
                .for_each(|line| push_line(&mut text, "- ", &line.replace('\n', "\n  ")));
        }
        push_line(&mut text, "\n", REMOVED);
        text.push_str("This is a record of earlier messages, not a new request. `recall` reads the originals by their span:\n");
        newest(&self.pointers, detail.pointers)
            .iter()
            .for_each(|pointer| push_line(&mut text, "- ", &pointer.render()));
        text.push_str(&format!("Rounds removed as a whole: {}", self.rounds_gone));
        text
    }

    /// Reads what [`SummaryPair::messages`] wrote. Pinned lines are not read, since callers pass
    /// them each time.
    pub(super) fn read(summary: &Message) -> Self {
        let text = summary.text();
        let mut pair = Self::default();
        let mut section = "";
        for line in text.lines() {
            if line.starts_with("## ") || line.starts_with("### ") {
                section = line;
                continue;
            }
            let item = line.strip_prefix("- ");
            match (section, item) {
                ("### Key Decisions", Some(item)) => pair.decisions.push(item.to_owned()),
                ("### Tool Outcomes", Some(item)) => pair.outcomes.push(item.to_owned()),
                (REQUESTS, Some(item)) => pair.requests.push(item.to_owned()),
                (REMOVED, Some(item)) => pair.pointers.extend(Pointer::read(item)),
                (SUMMARY, _) => {
                    if let Some(line) = line.strip_prefix("> ") {
                        push_line(&mut pair.summary, "", line);
                    }
                }
                (ROUNDS, _) => pair.read_round(line),
                (REMOVED, None) => {
                    if let Some(count) = line.strip_prefix("Rounds removed as a whole: ") {
                        pair.rounds_gone = count.parse().unwrap_or_default();
                    }
                }
                _ => {}
            }
        }
        pair.summary.truncate(pair.summary.trim_end().len());
        pair
    }

    fn read_round(&mut self, line: &str) {
        if let Some(round) = line
            .strip_prefix("Round ")
            .and_then(|rest| rest.strip_suffix(':'))
        {
            self.rounds.push(RoundLines {
                round: round.to_owned(),
                ..RoundLines::default()
            });
            return;
        }
        let Some(round) = self.rounds.last_mut() else {
            return;
        };
        if let Some(text) = line.strip_prefix("  Request: ") {
            round.request = text.to_owned();
        } else if let Some(names) = line
            .strip_prefix("  Tools: [")
            .and_then(|rest| rest.strip_suffix(']'))
        {
            round.tools = names
                .split(", ")
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect();
        } else if let Some(text) = line.strip_prefix("  Observed: ") {
            round.observed.push(text.to_owned());
        } else if let Some(text) = line.strip_prefix("  Answer: ") {
            round.answer = Some(text.to_owned());
        }
    }

    /// Adds newer content. Lists are limited to what the most detailed level writes.
    pub(super) fn fold(&mut self, newer: Self) {
        extend(&mut self.decisions, newer.decisions, FULL.decisions);
        extend(&mut self.outcomes, newer.outcomes, FULL.outcomes);
        extend(&mut self.requests, newer.requests, FULL.requests);
        // A history of very short messages has a hundred thousand rounds.
        let known = self.rounds.iter().enumerate().rev();
        let mut known: HashMap<String, usize> =
            known.map(|(at, round)| (round.round.clone(), at)).collect();
        for round in newer.rounds {
            let at = *known
                .entry(round.round.clone())
                .or_insert(self.rounds.len());
            match self.rounds.get_mut(at) {
                Some(known) => merge(known, round),
                None => self.rounds.push(round),
            }
        }
        // A round whose calls were dropped first may come after a later round whose calls ranked
        // lower.
        self.rounds
            .sort_by_key(|round| round.round.parse::<u64>().unwrap_or_default());
        keep_newest(&mut self.rounds, FULL.rounds);
        self.rounds_gone += newer.rounds_gone;
        extend(&mut self.pointers, newer.pointers, POINTERS_MAX);
    }

    /// Replaces everything up to the span at `pointer` by a model's summary, which covers all of
    /// it.
    pub(super) fn use_summary(&mut self, pointer: usize, text: &str) {
        let Some(last_round) = self.pointers.get(pointer).map(|pointer| pointer.last_round) else {
            return;
        };
        self.pointers
            .iter_mut()
            .take(pointer + 1)
            .for_each(|pointer| pointer.pending = None);
        self.rounds.retain(|round| {
            round
                .round
                .parse::<u64>()
                .is_ok_and(|number| number > last_round)
        });
        self.summary = clip(text.trim(), FULL.summary_chars);
    }
}

impl Pointer {
    fn render(&self) -> String {
        let mut line = format!(
            "`{}` {} messages, up to round {}",
            self.span, self.messages, self.last_round
        );
        if let Some(pending) = &self.pending {
            line.push_str(&format!(
                ", hash {}, left {} {}",
                pending.hash, pending.left, pending.left_hash
            ));
        }
        line
    }

    fn read(line: &str) -> Option<Self> {
        let (span, rest) = line.strip_prefix('`')?.split_once("` ")?;
        let mut parts = rest.split(", ");
        let messages = parts.next()?.strip_suffix(" messages")?.parse().ok()?;
        let last_round = parts.next()?.strip_prefix("up to round ")?.parse().ok()?;
        let pending = parts
            .next()
            .and_then(|part| part.strip_prefix("hash "))
            .and_then(|hash| {
                let (left, left_hash) = parts.next()?.strip_prefix("left ")?.split_once(' ')?;
                Some(Pending {
                    hash: hash.to_owned(),
                    left: left.parse().ok()?,
                    left_hash: left_hash.to_owned(),
                })
            });
        Some(Self {
            span: span.to_owned(),
            messages,
            last_round,
            pending,
        })
    }
}

/// A label that cannot end the code span around it.
pub(super) fn label(text: &str) -> String {
    one_line(&text.replace('`', "'"), 128)
}

fn newest<T>(items: &[T], count: usize) -> &[T] {
    items
        .get(items.len().saturating_sub(count)..)
        .unwrap_or_default()
}

fn keep_newest<T>(items: &mut Vec<T>, count: usize) {
    items.drain(..items.len().saturating_sub(count));
}

fn extend<T>(items: &mut Vec<T>, newer: Vec<T>, count: usize) {
    items.extend(newer);
    keep_newest(items, count);
}

fn merge(known: &mut RoundLines, newer: RoundLines) {
    if known.request.is_empty() {
        known.request = newer.request;
    }
    known.tools.extend(newer.tools);
    known.tools.truncate(ROUND_TOOLS_MAX);
    known.observed.extend(newer.observed);
    known.observed.truncate(ROUND_OBSERVED_MAX);
    known.answer = newer.answer.or(known.answer.take());
}
