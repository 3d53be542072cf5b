//! Whole rounds: their marks, and what a rewind or a fork leaves, at every round of generated
//! conversations.

use std::{collections::BTreeSet, io::Write as _};

use super::{
    Rng, Seed,
    people::{self, Weather},
    world::{Cut, World},
};
use crate::testing::TestSize;
use crate::{
    chat::{History, Message, Role},
    conversation::{
        Command, Copied,
        round::{self, Effect, Input, rules::Recovery, volatile::Volatile},
    },
    ids::{ConversationId, RoundId, WaiterId},
    journal::{
        ConversationRound, Durable, Entry, EntryBody, Fork, ForkReader, Head, Loaded, RoundMarks,
        RoundsReader, StoredEntry, restore, rounds,
    },
    stream::RoundStatus,
    time::Timestamp,
};

/// Conversations in the gate; a quarter in a usual run, ten times as many in a long one.
const CONVERSATIONS: u64 = 200;

fn name() -> ConversationId {
    ConversationId::new("generated").unwrap()
}

fn record(id: RoundId, start: Option<u32>) -> ConversationRound {
    let text = format!(
        r#"{{"round_id":"{id}","conversation_id":"elsewhere","user_message":"prompt","thoughts":[],"tool_calls":[],"tool_observations":[],
        "final_answer":null,"tokens_used":0,"usage":{{"input_uncached":0,"cache_read":0,"cache_write":0,"output":0}},"latency_ms":0,
        "status":"completed","stop_reason":"end_turn"}}"#
    );
    ConversationRound {
        start,
        ..serde_json::from_str(&text).unwrap()
    }
}

impl World {
    pub(super) fn rewind(&mut self, index: usize, waiter: WaiterId) -> Result<(), Cut> {
        let marks: Vec<RoundId> = self.activations[index]
            .durable
            .rounds
            .as_slice()
            .iter()
            .map(|mark| mark.id)
            .collect();
        let round_id = if marks.is_empty() || self.rng.percent(10) {
            RoundId::from_random(self.rng.bytes())
        } else {
            *self.rng.pick(&marks)
        };
        self.command(index, Command::Rewind { round_id }, waiter)
    }

    pub(super) fn fork(&mut self, index: usize, waiter: WaiterId) -> Result<(), Cut> {
        let texts = (0..self.rng.below(4)).map(|_| format!("prompt {}", self.number()));
        let messages: Vec<Message> = texts
            .collect::<Vec<_>>()
            .into_iter()
            .flat_map(|text| [Message::user(text), Message::assistant("yes")])
            .collect();
        let starts = (0..messages.len()).step_by(2);
        let rounds = starts
            .map(|start| record(RoundId::from_random(self.rng.bytes()), Some(start as u32)))
            .collect();
        let in_doubt = if self.rng.percent(30) {
            vec![self.rng.next()]
        } else {
            vec![]
        };
        let fork = Fork {
            upto: crate::ids::Seq(9),
            messages,
            rounds,
            in_doubt,
        };
        self.command(
            index,
            Command::Fork {
                copied: Box::new(Copied { from: name(), fork }),
            },
            waiter,
        )
    }

    /// Records for an import; a few do not fit it.
    pub(super) fn records(&mut self, messages: &[Message]) -> Vec<ConversationRound> {
        if self.rng.percent(60) {
            return vec![];
        }
        let mut start = 0;
        let mut records = Vec::new();
        for message in messages {
            if message.tool_result_ids().is_empty() && self.rng.percent(60) || self.rng.percent(5) {
                let kept = (!self.rng.percent(10)).then_some(start);
                records.push(record(RoundId::from_random(self.rng.bytes()), kept));
            }
            start += u32::from(!self.rng.percent(2));
        }
        records
    }
}

/// Whether records of rounds fit a history, stated independently of the code under test.
pub(super) fn fits(records: &[ConversationRound], messages: &[Message]) -> bool {
    let ids: BTreeSet<RoundId> = records.iter().map(|record| record.round_id).collect();
    let starts: Vec<usize> = records
        .iter()
        .filter_map(|record| record.start)
        .map(|start| start as usize)
        .collect();
    let begins = |start: &usize| {
        messages
            .get(*start)
            .is_some_and(|message| message.tool_result_ids().is_empty())
    };
    ids.len() == records.len() && starts.is_sorted_by(|a, b| a < b) && starts.iter().all(begins)
}

/// The marks rise, lie within the history, split no call from its result, and the last one belongs
/// to the open round.
pub(super) fn marks_hold(state: &Durable) {
    let marks = state.rounds.as_slice();
    let messages: Vec<&Message> = state.history.messages().iter().collect();
    assert!(marks.is_sorted_by(|a, b| a.start < b.start), "{marks:?}");
    assert_eq!(
        marks
            .iter()
            .map(|mark| mark.id)
            .collect::<BTreeSet<_>>()
            .len(),
        marks.len(),
        "a round begins once"
    );
    for mark in marks {
        let Some(first) = messages.get(mark.start as usize) else {
            let is_open = state
                .round
                .as_ref()
                .is_some_and(|round| round.id == mark.id);
            let is_next = mark.start as usize == messages.len();
            assert!(is_open && is_next, "a round begins within the history");
            continue;
        };
        assert!(
            first.tool_result_ids().is_empty(),
            "no round begins between a call and its result"
        );
    }
    if let Some(round) = &state.round {
        let mark = marks.last().expect("an open round has a mark");
        assert_eq!(mark.id, round.id);
        let begins = mark.start as usize;
        let answers = begins > 0 && messages[begins - 1].role() == Role::User;
        let prompt = messages.get(begins);
        assert!(
            answers || prompt.is_some_and(|first| first.role() == Role::User),
            "an open round begins with its prompt, or answers the message before it"
        );
    }
}

/// What an entry does to the rounds of a history.
pub(super) fn after_rounds(state: &Durable, history: &History, marks: &RoundMarks, entry: &Entry) {
    let was = marks.as_slice();
    let is = state.rounds.as_slice();
    match &entry.body {
        EntryBody::RoundStarted { round_id, .. } => {
            assert_eq!(
                is.split_last()
                    .map(|(last, rest)| (last.id, last.start as usize, rest)),
                Some((*round_id, history.messages().len(), was))
            );
        }
        EntryBody::PromptWithdrawn { .. } => {
            let (before, after) = (history.messages().len(), state.history.messages().len());
            let had_none = was.last().is_some_and(|mark| mark.start as usize == before);
            let gone = was.len() - is.len();
            assert!(was.starts_with(is));
            assert!(gone == before - after || had_none && (gone, after) == (1, before));
        }
        EntryBody::Rewound { round_id, keep } => {
            let place = was
                .iter()
                .position(|mark| mark.id == *round_id)
                .expect("the round was there");
            assert_eq!(
                (is, was[place].start),
                (&was[..place], *keep),
                "later rounds go too"
            );
            assert!(
                state
                    .history
                    .messages()
                    .iter()
                    .eq(history.messages().iter().take(*keep as usize)),
                "what is left is what was before"
            );
            assert_eq!(
                state.last_usage.input(),
                0,
                "what is left was never counted"
            );
        }
        EntryBody::Imported { messages, rounds } => {
            assert!(state.history.messages().iter().eq(messages));
            let carried: Vec<_> = rounds
                .iter()
                .filter_map(|round| Some((round.round_id, round.start?)))
                .collect();
            if rounds.is_empty() {
                let plain = |message: &Message| {
                    message.role() == Role::User && message.tool_result_ids().is_empty()
                };
                let starts = messages
                    .iter()
                    .enumerate()
                    .filter(|(_, message)| plain(message))
                    .map(|(index, _)| index as u32);
                assert!(
                    is.iter().map(|mark| mark.start).eq(starts),
                    "a round begins with each message of a person"
                );
            } else {
                assert_eq!(
                    is.iter()
                        .map(|mark| (mark.id, mark.start))
                        .collect::<Vec<_>>(),
                    carried
                );
            }
        }
        EntryBody::Compacted { .. } => {
            // A round keeps its id while one of its messages is left; it then starts at its first
            // message that is left.
            let mut rest = was.iter();
            assert!(
                is.iter().all(|mark| rest.any(|old| old.id == mark.id)),
                "{was:?} became {is:?}"
            );
            assert_eq!(
                is.last().map(|mark| mark.id),
                was.last().map(|mark| mark.id),
                "the last round is there"
            );
            for mark in is {
                let messages = state.history.messages();
                let Some(first) = messages.get(mark.start as usize) else {
                    assert!(mark.start as usize == messages.len() && state.round.is_some());
                    continue;
                };
                assert!(
                    history.messages().iter().any(|old| old == first)
                        || first.tool_result_ids().is_empty()
                );
            }
        }
        EntryBody::Reset {} => assert!(is.is_empty()),
        EntryBody::RoundFinished { .. } => {
            let len = state.history.messages().len();
            let left = was.iter().filter(|mark| (mark.start as usize) < len);
            assert!(left.eq(is), "a round without a message leaves no mark");
        }
        _ => assert_eq!(is, was, "{} leaves the rounds alone", entry.body.kind()),
    }
}

/// The rounds read from a journal are those that started and were not taken back, each with its
/// cost.
pub(super) fn judge_rounds(entries: &[Entry]) {
    let mut expected: Vec<RoundId> = Vec::new();
    let mut state = Durable::default();
    for entry in entries {
        state.apply(entry).expect("it was applied before");
        match &entry.body {
            EntryBody::RoundStarted { round_id, .. } => expected.push(*round_id),
            EntryBody::Rewound { round_id, .. } => expected.truncate(
                expected
                    .iter()
                    .position(|id| id == round_id)
                    .expect("it was there"),
            ),
            EntryBody::Imported { rounds, .. } if !rounds.is_empty() => {
                expected = rounds.iter().map(|round| round.round_id).collect()
            }
            EntryBody::Imported { .. } => {
                expected = state.rounds.as_slice().iter().map(|mark| mark.id).collect()
            }
            EntryBody::Reset {} => expected.clear(),
            _ => {}
        }
    }
    let found = rounds(&name(), entries);
    assert_eq!(
        found.iter().map(|round| round.round_id).collect::<Vec<_>>(),
        expected,
        "rounds are read from the journal"
    );
    assert!(
        found.iter().all(ConversationRound::is_over),
        "nothing is left open"
    );
    for round in &found {
        assert_eq!(
            round.start,
            state.rounds.start(round.round_id),
            "a record knows its place"
        );
        assert_eq!(round.tokens_used, round.usage.input() + round.usage.output);
    }
}

/// A status moves from pending to in progress, then to completed or error, and in no other way.
fn judge_statuses(entries: &[Entry]) {
    let mut reader = RoundsReader::new(name());
    let mut before: Vec<ConversationRound> = Vec::new();
    for entry in entries {
        reader.take(entry).unwrap();
        let (now, _) = reader.clone().into_rounds();
        for round in &now {
            let was = before
                .iter()
                .find(|was| was.round_id == round.round_id)
                .map(|was| was.status);
            let may = match round.status {
                RoundStatus::Pending => was.is_none_or(|was| was == RoundStatus::Pending),
                RoundStatus::InProgress => {
                    matches!(was, Some(RoundStatus::Pending | RoundStatus::InProgress))
                }
                RoundStatus::Completed | RoundStatus::Error => {
                    was.is_none() && matches!(entry.body, EntryBody::Imported { .. })
                        || was == Some(round.status)
                        || was == Some(RoundStatus::InProgress)
                }
            };
            assert!(
                may,
                "{was:?} became {:?} by {}",
                round.status,
                entry.body.kind()
            );
        }
        before = now;
    }
}

/// Gives an input to a new activation on this state. Returns its entries, the state after it, and
/// its effects.
pub(super) fn ask(state: &Durable, input: Input) -> (Vec<StoredEntry>, Durable, Vec<Effect>) {
    let mut durable = state.clone();
    let mut volatile = Volatile::new(state.epoch.next(), 7, people::rules(&mut Rng::new(1)));
    volatile.recovered = true;
    let outcome =
        round::apply_input(&mut durable, &mut volatile, Timestamp(1), input, |_, _| {}).unwrap();
    (
        outcome.entries.iter().map(Entry::encode).collect(),
        durable,
        outcome.effects,
    )
}

/// A new activation restores the state from the store, without and with a snapshot.
pub(super) fn reload(stored: Vec<StoredEntry>, state: &Durable) {
    let head = Head {
        epoch: state.epoch,
        seq: state.head,
    };
    assert_eq!(
        restore(&Loaded {
            head,
            snapshot: None,
            entries: stored
        }),
        Some(Ok(state.clone())),
        "the journal replays to the same"
    );
    let snapshot = Loaded {
        head,
        snapshot: Some((state.head, state.snapshot())),
        entries: vec![],
    };
    assert_eq!(
        restore(&snapshot),
        Some(Ok(state.clone())),
        "and so does a snapshot"
    );
}

fn fork_at(entries: &[Entry], at: Option<RoundId>) -> Option<Fork> {
    let mut reader = ForkReader::new(name(), at);
    entries.iter().for_each(|entry| reader.take(entry).unwrap());
    reader.finish()
}

fn check_fork(fork: Fork) -> Durable {
    let expected = fork.clone();
    let (stored, state, effects) = ask(
        &Durable::default(),
        Input::Command {
            command: Command::Fork {
                copied: Box::new(Copied { from: name(), fork }),
            },
            waiter: WaiterId(1),
        },
    );
    assert_eq!(
        effects,
        [Effect::Answer {
            waiter: WaiterId(1)
        }]
    );
    assert!(
        state.history.messages().iter().eq(&expected.messages),
        "a fork has the messages"
    );
    assert_eq!(
        state.history.messages().first_fault(),
        None,
        "a fork is valid"
    );
    assert_eq!(state.in_doubt, expected.in_doubt);
    marks_hold(&state);
    let entries: Vec<Entry> = stored
        .iter()
        .map(|stored| Entry::decode(stored).unwrap())
        .collect();
    if !expected.rounds.is_empty() {
        assert_eq!(
            rounds(&name(), &entries),
            expected.rounds,
            "a fork has the rounds, figures and places included"
        );
    }
    reload(stored, &state);
    state
}

/// The seeds of the test, or the one to replay.
fn seeds(count: u64) -> std::ops::Range<u64> {
    match std::env::var("CALLBOARD_SEED")
        .ok()
        .and_then(|seed| seed.parse::<u64>().ok())
    {
        Some(seed) => seed..seed + 1,
        None => 0..count,
    }
}

#[test]
fn every_rewind_and_every_fork_of_a_conversation_is_valid_and_reloads_to_the_same() {
    let count = TestSize::pick(CONVERSATIONS / 4, CONVERSATIONS, CONVERSATIONS * 10);
    let mut rewinds = 0;
    let mut forks = 0;
    let mut open = 0;
    for seed in seeds(count) {
        let _seed = Seed(seed);
        let mut rng = Rng::new(seed ^ 0xf02c);
        let rules = people::rules(&mut rng);
        let mut world = World::new(seed, rules);
        for _ in 0..20 + rng.below(60) {
            world
                .happen(Weather::of(seed))
                .expect("nothing is cut here");
        }
        let entries = |world: &World| -> Vec<Entry> {
            world
                .store
                .entries
                .iter()
                .map(|stored| Entry::decode(stored).unwrap())
                .collect()
        };

        // A fork may be requested at any time.
        let now = entries(&world);
        let mut state = Durable::default();
        now.iter().for_each(|entry| state.apply(entry).unwrap());
        let fork = fork_at(&now, None).expect("there is always a last border");
        let border = state
            .round
            .as_ref()
            .map_or(state.history.messages().len(), |round| {
                state.rounds.start(round.id).unwrap() as usize
            });
        assert!(
            state
                .history
                .messages()
                .iter()
                .take(border)
                .eq(&fork.messages),
            "nothing of an open round is taken"
        );
        assert!(fork.rounds.iter().all(ConversationRound::is_over));
        if let Some(round) = &state.round {
            assert_eq!(
                fork_at(&now, Some(round.id)),
                None,
                "a round that is open has no end to begin at"
            );
            open += 1;
        }
        check_fork(fork);

        world.end();
        let now = entries(&world);
        judge_statuses(&now);
        let whole = world.activations[0].durable.clone();
        let len = whole.history.messages().len();
        for mark in whole.rounds.as_slice() {
            let (stored, state, effects) = ask(
                &whole,
                Input::Command {
                    command: Command::Rewind { round_id: mark.id },
                    waiter: WaiterId(1),
                },
            );
            assert_eq!(
                effects,
                [Effect::Answer {
                    waiter: WaiterId(1)
                }]
            );
            assert!(
                whole
                    .history
                    .messages()
                    .iter()
                    .take(mark.start as usize)
                    .eq(state.history.messages().iter())
            );
            assert_eq!(state.history.messages().first_fault(), None);
            assert_eq!(state.rounds.start(mark.id), None);
            assert_eq!(
                state.metrics.api_calls, whole.metrics.api_calls,
                "what was spent stays spent"
            );
            marks_hold(&state);
            let mut both = world.store.entries.clone();
            both.extend(stored);
            let decoded: Vec<Entry> = both
                .iter()
                .map(|stored| Entry::decode(stored).unwrap())
                .collect();
            let again =
                fork_at(&decoded, Some(mark.id)).expect("what was taken back can be forked");
            reload(both, &state);
            rewinds += 1;

            let fork = fork_at(&now, Some(mark.id)).expect("a round that is over can be forked");
            assert_eq!(
                fork.messages, again.messages,
                "a rewind is undone by a fork"
            );
            let end = whole.rounds.end(mark.id, len as u32).unwrap() as usize;
            // Messages injected between two rounds come after the end of the first one.
            let until: Vec<_> = whole.history.messages().iter().take(end).collect();
            // What was compacted since then is complete in the fork.
            let compacted = now.iter().any(|entry| {
                entry.seq > fork.upto && matches!(entry.body, EntryBody::Compacted { .. })
            });
            let begins = until.iter().zip(&fork.messages).all(|(a, b)| **a == *b)
                && fork.messages.len() <= end;
            assert!(
                begins || compacted,
                "a fork is the beginning: {until:?} {:?}",
                fork.messages
            );
            assert_eq!(
                fork.rounds.last().map(|round| round.round_id),
                Some(mark.id)
            );
            check_fork(fork);
            forks += 1;
        }
    }
    let _ = writeln!(
        std::io::stderr(),
        "{count} conversations, {rewinds} rewinds, {forks} forks, {open} of them of an open round"
    );
    if seeds(count) == (0..count) {
        assert!(rewinds > count / 2 && open > count / 10);
    }
}

#[test]
fn a_fork_enters_only_where_nothing_is() {
    let fork = Fork {
        upto: crate::ids::Seq(1),
        messages: vec![Message::user("a")],
        rounds: vec![],
        in_doubt: vec![],
    };
    let input = || Input::Command {
        command: Command::Fork {
            copied: Box::new(Copied {
                from: name(),
                fork: fork.clone(),
            }),
        },
        waiter: WaiterId(1),
    };

    let (_, forked, _) = ask(&Durable::default(), input());
    let (stored, after, effects) = ask(&forked, input());

    assert_eq!((stored.len(), after), (0, forked));
    assert!(
        matches!(effects.as_slice(), [Effect::Refuse { refusal, .. }] if refusal.code() == "conversation_exists")
    );
}

#[test]
fn a_closed_activation_forks_what_it_closed() {
    let mut world = World::new(3, people::rules(&mut Rng::new(3)));
    world.activate(Recovery::Resume).unwrap();
    world
        .prompt(
            0,
            None,
            crate::conversation::round::OnBusy::Queue,
            "b",
            None,
        )
        .unwrap();
    world.crash(9);
    world.activate(Recovery::Close).unwrap();

    world.end();
    let entries: Vec<Entry> = world
        .store
        .entries
        .iter()
        .map(|stored| Entry::decode(stored).unwrap())
        .collect();
    let fork = fork_at(&entries, None).unwrap();

    let said = fork
        .messages
        .iter()
        .filter(|message| !message.is_reminders());
    assert_eq!((said.count(), fork.rounds.len()), (1, 1));
    assert_eq!(fork.rounds[0].status, RoundStatus::Completed);
}
