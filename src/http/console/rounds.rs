//! The rounds of a journal as the comparison of two conversations shows them, and which of them
//! belong together.
//!
//! Pure.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use callboard_actors::{
    chat::Usage,
    ids::{PromptId, RoundId},
    journal::{Entry, EntryBody},
    stream::{Failure, StopReason},
    time::Timestamp,
};
use similar::{Algorithm, DiffOp, capture_diff_slices};

/// Bytes of the prompts of a round that are kept.
const PROMPT_MAX: usize = 2 * 1024;

/// Bytes of an answer that are kept.
const ANSWER_MAX: usize = 16 * 1024;

/// Names of tools and models that a round keeps; calls of others count as calls of `OTHERS`.
const NAMES_MAX: usize = 20;

/// Bytes of a name that are kept.
const NAME_MAX: usize = 60;

/// The name of the tools beyond [`NAMES_MAX`].
const OTHERS: &str = "others";

/// The beginning of a text, and a digest of the whole.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Text {
    pub(super) start: String,
    /// Bytes of the whole text.
    pub(super) bytes: usize,
    digest: u64,
}

impl Text {
    fn new(whole: &str, most: usize) -> Self {
        let mut hasher = DefaultHasher::new();
        whole.hash(&mut hasher);
        Self {
            start: clipped(whole, most),
            bytes: whole.len(),
            digest: hasher.finish(),
        }
    }

    /// Adds a further text, with an empty line between them.
    fn add(&mut self, other: &Self, most: usize) {
        if self.bytes == 0 {
            *self = other.clone();
            return;
        }
        let mut hasher = DefaultHasher::new();
        (self.digest, other.digest).hash(&mut hasher);
        self.digest = hasher.finish();
        self.start = clipped(&format!("{}\n\n{}", self.start, other.start), most);
        self.bytes += other.bytes + 2;
    }

    /// Bytes that are not kept.
    pub(super) fn left(&self) -> usize {
        self.bytes.saturating_sub(self.start.len())
    }
}

fn clipped(whole: &str, most: usize) -> String {
    let end = whole.floor_char_boundary(most);
    whole.get(..end).unwrap_or_default().to_owned()
}

/// Calls of a tool in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Calls {
    pub(super) count: u64,
    pub(super) failed: u64,
}

/// A round.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Round {
    id: RoundId,
    /// The entry that began it.
    pub(super) first: u64,
    /// Its last entry.
    pub(super) last: u64,
    /// What it was asked, with what was added to it while it ran.
    pub(super) prompt: Text,
    /// The last text of the model.
    pub(super) answer: Text,
    pub(super) tools: BTreeMap<String, Calls>,
    pub(super) model_calls: u64,
    pub(super) usage: Usage,
    pub(super) cost_micro_usd: u64,
    /// Time between the first prompt and the begin of the round.
    pub(super) waited_ms: u64,
    /// From its begin to its end; `None` while it runs.
    pub(super) took_ms: Option<u64>,
    pub(super) stop: Option<StopReason>,
    pub(super) error: Option<Failure>,
    /// Models that the journal names: those of fallbacks and of skills.
    pub(super) models: Vec<String>,
}

impl Round {
    pub(super) fn is_over(&self) -> bool {
        self.took_ms.is_some()
    }

    fn name_model(&mut self, model: &str) {
        let model = clipped(model, NAME_MAX);
        if self.models.len() < NAMES_MAX && !self.models.contains(&model) {
            self.models.push(model);
        }
    }

    fn count_tool(&mut self, name: &str, is_error: bool) {
        let name = clipped(name, NAME_MAX);
        let has_room = self.tools.len() < NAMES_MAX || self.tools.contains_key(&name);
        let name = if has_room { name } else { OTHERS.to_owned() };
        let calls = self.tools.entry(name).or_default();
        calls.count += 1;
        calls.failed += u64::from(is_error);
    }
}

/// Reads the rounds that begin behind an entry.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// Rounds that began up to here were shown before.
    after: u64,
    pub(super) rounds: Vec<Round>,
    /// Rounds that were taken back, or emptied away.
    pub(super) taken_back: usize,
    waiting: Vec<(PromptId, Timestamp, Text)>,
    is_open: bool,
}

/// Prompts that are kept until their round begins.
const WAITING_MAX: usize = 64;

impl Reader {
    pub(super) fn new(after: u64) -> Self {
        Self {
            after,
            ..Self::default()
        }
    }

    /// Whether enough rounds have ended, or their texts have as many bytes.
    pub(super) fn fills(&self, rounds: usize, bytes: usize) -> bool {
        let ended = || self.rounds.iter().filter(|round| round.is_over());
        let kept = ended().map(|round| round.prompt.start.len() + round.answer.start.len());
        ended().count() >= rounds || kept.sum::<usize>() >= bytes
    }

    pub(super) fn take(&mut self, entry: &Entry) {
        match &entry.body {
            EntryBody::PromptAccepted {
                prompt_id, message, ..
            } => {
                let text = message.as_ref().map(|message| message.text());
                let text = Text::new(&text.unwrap_or_default(), PROMPT_MAX);
                if self.waiting.len() < WAITING_MAX {
                    self.waiting.push((*prompt_id, entry.at, text));
                }
            }
            EntryBody::PromptWithdrawn { prompt_id, .. } => {
                self.waiting.retain(|(id, ..)| id != prompt_id);
            }
            EntryBody::RoundStarted {
                round_id,
                prompt_ids,
            } => self.begin(entry, *round_id, prompt_ids),
            EntryBody::Rewound { round_id, .. } => {
                let first = self.rounds.iter().position(|round| round.id == *round_id);
                // A round of an earlier part: all of this part came later.
                self.take_back(first.unwrap_or_default());
            }
            EntryBody::Reset {} | EntryBody::Emptied {} => self.take_back(0),
            body => {
                if let Some(round) = self.rounds.last_mut().filter(|_| self.is_open) {
                    round.last = entry.seq.0;
                    self.is_open = add(round, body);
                }
            }
        }
    }

    fn begin(&mut self, entry: &Entry, id: RoundId, prompt_ids: &[PromptId]) {
        let is_mine = |(id, ..): &mut (PromptId, Timestamp, Text)| prompt_ids.contains(id);
        let mine: Vec<_> = self.waiting.extract_if(.., is_mine).collect();
        self.is_open = entry.seq.0 > self.after;
        if !self.is_open {
            return;
        }
        let first = mine.iter().map(|(_, at, _)| *at).min();
        let mut prompt = Text::default();
        mine.iter()
            .for_each(|(.., text)| prompt.add(text, PROMPT_MAX));
        self.rounds.push(Round {
            id,
            first: entry.seq.0,
            last: entry.seq.0,
            prompt,
            answer: Text::default(),
            tools: BTreeMap::new(),
            model_calls: 0,
            usage: Usage::default(),
            cost_micro_usd: 0,
            waited_ms: entry.at.ms_since(first.unwrap_or(entry.at)),
            took_ms: None,
            stop: None,
            error: None,
            models: Vec::new(),
        });
    }

    fn take_back(&mut self, first: usize) {
        self.taken_back += self.rounds.len() - first;
        self.rounds.truncate(first);
        self.is_open = false;
    }
}

/// Adds an entry to the open round. `false` if the entry ends it.
fn add(round: &mut Round, body: &EntryBody) -> bool {
    match body {
        EntryBody::Assistant {
            message,
            usage,
            failed_usage,
            cost_micro_usd,
            ..
        } => {
            round.model_calls += 1;
            round.usage = round.usage.plus(usage).plus(failed_usage);
            spend(round, cost_micro_usd.unwrap_or_default());
            let text = message.as_ref().map(|message| message.text());
            if let Some(text) = text.filter(|text| !text.is_empty()) {
                round.answer = Text::new(&text, ANSWER_MAX);
            }
        }
        EntryBody::FellBack {
            model,
            failed_usage,
            cost_micro_usd,
            ..
        } => {
            round.usage = round.usage.plus(failed_usage);
            spend(round, cost_micro_usd.unwrap_or_default());
            round.name_model(model);
        }
        EntryBody::SummaryBilled { cost_micro_usd, .. } => spend(round, *cost_micro_usd),
        EntryBody::SkillActivated { modifier, .. } => {
            if let Some(model) = &modifier.model {
                round.name_model(model);
            }
        }
        EntryBody::ToolFinished { name, outcome, .. } => round.count_tool(name, outcome.is_error),
        EntryBody::Injected { message, .. } => {
            let text = Text::new(&message.text(), PROMPT_MAX);
            round.prompt.add(&text, PROMPT_MAX);
        }
        EntryBody::RoundFinished {
            stop_reason,
            latency_ms,
            error,
        } => {
            round.took_ms = Some(*latency_ms);
            round.stop = Some(*stop_reason);
            round.error = error.clone();
            return false;
        }
        _ => {}
    }
    true
}

fn spend(round: &mut Round, micro_usd: u64) {
    round.cost_micro_usd = round.cost_micro_usd.saturating_add(micro_usd);
}

/// The rounds of one conversation that were read.
#[derive(Debug, Default)]
pub(super) struct Side {
    pub(super) rounds: Vec<Round>,
    pub(super) taken_back: usize,
    /// The last entry that was read.
    pub(super) at: u64,
    /// Whether the journal ends there.
    pub(super) is_end: bool,
    /// Whether a round was read that begins but does not end in this part.
    is_cut: bool,
}

impl Side {
    pub(super) fn new(reader: Reader, at: u64, is_end: bool) -> Self {
        let Reader {
            mut rounds,
            taken_back,
            ..
        } = reader;
        // The next part has it whole. A round that is longer than a part is shown as far as it goes.
        let cut = |round: &Round| !is_end && !round.is_over();
        let is_cut = rounds.len() > 1 && rounds.last().is_some_and(cut);
        if is_cut {
            rounds.pop();
        }
        Self {
            rounds,
            taken_back,
            at,
            is_end,
            is_cut,
        }
    }

    /// The entry behind which the next part begins, if `shown` rounds of this one are shown.
    pub(super) fn next(&self, shown: usize, after: u64) -> u64 {
        if shown == self.rounds.len() && !self.is_cut {
            return self.at.max(after);
        }
        let last = shown.checked_sub(1).and_then(|last| self.rounds.get(last));
        last.map_or(after, |round| round.last)
    }
}

/// Positions of two rounds that belong together, or of one that the other side lacks.
pub(super) type Pair = (Option<usize>, Option<usize>);

/// Puts the rounds of two conversations beside each other: those with the same prompts first, and
/// between them one after another.
pub(super) fn pairs(a: &Side, b: &Side) -> Vec<Pair> {
    let prompts = |side: &Side| -> Vec<(usize, u64)> {
        let rounds = side.rounds.iter();
        let prompts = rounds.map(|round| (round.prompt.bytes, round.prompt.digest));
        prompts.collect()
    };
    let mut pairs = Vec::new();
    for op in capture_diff_slices(Algorithm::Myers, &prompts(a), &prompts(b)) {
        let (old, new) = (op.old_range(), op.new_range());
        match op {
            DiffOp::Insert { .. } => pairs.extend(new.map(|b| (None, Some(b)))),
            DiffOp::Delete { .. } => pairs.extend(old.map(|a| (Some(a), None))),
            DiffOp::Equal { .. } | DiffOp::Replace { .. } => {
                for n in 0..old.len().max(new.len()) {
                    pairs.push((old.clone().nth(n), new.clone().nth(n)));
                }
            }
        }
    }
    // What may belong to a round of the next part waits for it.
    while pairs.last().is_some_and(|pair| match pair {
        (Some(_), None) => !b.is_end,
        (None, Some(_)) => !a.is_end,
        _ => false,
    }) {
        pairs.pop();
    }
    pairs
}

#[cfg(test)]
mod tests {
    use callboard_actors::{
        chat::{Message, ProviderStop},
        ids::{Epoch, Seq},
        journal::ToolExecutionResult,
    };

    use super::*;

    fn round_id(n: u8) -> RoundId {
        RoundId::from_random([n; 16])
    }

    fn prompt(n: u8, text: &str) -> EntryBody {
        EntryBody::PromptAccepted {
            prompt_id: PromptId::from_random([n; 16]),
            round_id: round_id(n),
            client_key: None,
            message: Some(Message::user(text)),
            client_tools: None,
            output_schema: None,
            deadline_at: None,
            wait_until: None,
            parameters: None,
        }
    }

    fn started(n: u8) -> EntryBody {
        EntryBody::RoundStarted {
            round_id: round_id(n),
            prompt_ids: vec![PromptId::from_random([n; 16])],
        }
    }

    fn answer(text: &str) -> EntryBody {
        EntryBody::Assistant {
            step: 1,
            message: Some(Message::assistant(text)),
            stop: ProviderStop::EndTurn,
            raw_stop: None,
            usage: Usage {
                input_uncached: 10,
                cache_read: 30,
                output: 2,
                ..Usage::default()
            },
            failed_usage: Usage::default(),
            cost_micro_usd: Some(7),
            partial: false,
        }
    }

    fn tool(name: &str, is_error: bool) -> EntryBody {
        EntryBody::ToolFinished {
            call: 0,
            tool_call_id: "t".into(),
            name: name.into(),
            outcome: ToolExecutionResult {
                is_error,
                ..ToolExecutionResult::default()
            },
        }
    }

    fn ended() -> EntryBody {
        EntryBody::RoundFinished {
            stop_reason: StopReason::EndTurn,
            latency_ms: 40,
            error: None,
        }
    }

    fn whole(n: u8, text: &str) -> Vec<EntryBody> {
        vec![prompt(n, text), started(n), answer("yes"), ended()]
    }

    fn read(after: u64, bodies: impl IntoIterator<Item = EntryBody>) -> Reader {
        let mut reader = Reader::new(after);
        for (body, n) in bodies.into_iter().zip(1..) {
            reader.take(&Entry {
                seq: Seq(n),
                epoch: Epoch(1),
                at: Timestamp(n * 1000),
                body,
            });
        }
        reader
    }

    fn side(prompts: &[&str], is_end: bool) -> Side {
        let numbered = prompts.iter().zip(1..);
        let bodies = numbered.flat_map(|(text, n)| whole(n, text));
        Side::new(read(0, bodies), prompts.len() as u64 * 4, is_end)
    }

    #[test]
    fn rounds_are_read_until_their_texts_or_their_number_fill_a_page() {
        let read_of = |answer_bytes: usize| {
            let mut reader = Reader::new(0);
            let bodies = (1..=60).flat_map(|n| {
                let text = "x".repeat(answer_bytes);
                [prompt(n, "go"), started(n), answer(&text), ended()]
            });
            let mut taken = 0;
            for (body, n) in bodies.zip(1..) {
                if reader.fills(50, 128 * 1024) {
                    break;
                }
                let (seq, epoch, at) = (Seq(n), Epoch(1), Timestamp(n * 1000));
                reader.take(&Entry {
                    seq,
                    epoch,
                    at,
                    body,
                });
                taken = n;
            }
            taken
        };

        assert_eq!(read_of(10), 50 * 4);
        assert_eq!(read_of(4 * 1024), 32 * 4, "two bytes of each prompt count");
        // What is kept of an answer counts, however long it is.
        assert_eq!(read_of(16 * 1024), 8 * 4);
        assert_eq!(read_of(100 * 1024), 8 * 4);
    }

    #[test]
    fn a_round_has_its_prompts_its_last_answer_and_its_figures() {
        let reader = read(
            0,
            [
                prompt(1, "go"),
                started(1),
                prompt(2, "later"),
                answer("I look."),
                tool("bash", false),
                tool("bash", true),
                answer("Done."),
                ended(),
                started(2),
            ],
        );

        let [first, second] = reader.rounds.as_slice() else {
            panic!("{reader:?}");
        };
        let texts = [&first.prompt, &first.answer, &second.prompt].map(|text| text.start.as_str());
        assert_eq!(texts, ["go", "Done.", "later"]);
        let bash = Calls {
            count: 2,
            failed: 1,
        };
        assert_eq!(first.tools, BTreeMap::from([("bash".to_owned(), bash)]));
        let figures = (first.model_calls, first.usage.input(), first.cost_micro_usd);
        assert_eq!(figures, (2, 80, 14));
        assert_eq!((first.took_ms, first.waited_ms), (Some(40), 1000));
        assert_eq!((second.is_over(), second.waited_ms), (false, 6000));
    }

    #[test]
    fn rounds_that_were_taken_back_are_left_out() {
        let rewound = EntryBody::Rewound {
            round_id: round_id(2),
            keep: 1,
        };
        let rounds = [whole(1, "a"), whole(2, "b"), whole(3, "c")].concat();
        let reader = read(0, rounds.into_iter().chain([rewound]).chain(whole(4, "d")));

        let prompts = reader.rounds.iter().map(|round| &*round.prompt.start);
        assert_eq!(prompts.collect::<Vec<_>>(), ["a", "d"]);
        assert_eq!(reader.taken_back, 2);
    }

    #[test]
    fn a_part_begins_behind_the_rounds_that_were_shown() {
        let rounds = [whole(1, "a"), whole(2, "b")].concat();
        let reader = read(4, rounds);

        let prompts = reader.rounds.iter().map(|round| &*round.prompt.start);
        assert_eq!(prompts.collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn rounds_with_the_same_prompt_stand_beside_each_other() {
        let a = side(&["one", "two", "three"], true);
        let b = side(&["one", "new", "another", "three", "four"], true);

        let expected = vec![
            (Some(0), Some(0)),
            (Some(1), Some(1)),
            (None, Some(2)),
            (Some(2), Some(3)),
            (None, Some(4)),
        ];
        assert_eq!(pairs(&a, &b), expected);
    }

    #[test]
    fn a_round_whose_other_may_follow_waits_for_the_next_part() {
        let (a, b) = (side(&["one"], false), side(&["one", "two"], true));

        assert_eq!(pairs(&a, &b), [(Some(0), Some(0))]);
        assert_eq!((a.next(1, 0), b.next(1, 0)), (4, 4));
    }

    #[test]
    fn a_round_that_is_cut_off_is_read_whole_in_the_next_part() {
        let open = [whole(1, "a"), vec![prompt(2, "b"), started(2)]].concat();
        let cut = Side::new(read(0, open.clone()), 6, false);
        let runs = Side::new(read(0, open), 6, true);

        assert_eq!((cut.rounds.len(), cut.next(1, 0)), (1, 4));
        assert_eq!((runs.rounds.len(), runs.next(2, 0)), (2, 6));
        let long = Side::new(read(0, [prompt(1, "a"), started(1)]), 2, false);
        assert_eq!((long.rounds.len(), long.next(1, 0)), (1, 2));
    }
}
