//! Brings a world to its end and checks it from outside: the answers, the journal and the published
//! events.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    rounds::judge_rounds,
    store::Fault,
    world::{Reply, World},
};
use crate::{
    chat::{ContentBlock, Message, is_reminder},
    conversation::{
        Command,
        round::{OnBusy, rules::Recovery},
    },
    ids::{Epoch, EventId, PromptId, RoundId},
    journal::{CallState, ClientKey, Durable, Entry, EntryBody, project, restore},
    limits::CLIENT_KEY_MS,
    time::Timestamp,
};

/// The most steps to an end: a world that takes more has hung.
const STEPS_MAX: usize = 3000;

impl World {
    /// Ends everything under way without further faults; users answer the approvals.
    pub(super) fn settle(&mut self) {
        for _ in 0..STEPS_MAX {
            // A draining activation goes to sleep, and another one continues with the waiting
            // prompts. An activation whose journal was taken over ends.
            let asleep = self.activations.last().is_none_or(|activation| {
                activation.over || activation.volatile.draining && activation.is_quiet()
            });
            if asleep && self.activations.len() == 1 || self.activations.is_empty() {
                self.activations.clear();
                self.activate(Recovery::Resume).expect("no cut");
            }
            let newest = self.activations.last().map(|activation| activation.number);
            let going = !self.store.queue.is_empty();
            self.activations.retain(|activation| {
                Some(activation.number) == newest
                    || !(activation.over || activation.is_quiet() && !going)
            });
            let last = &self.activations[self.activations.len() - 1];
            if last.over && self.activations.len() > 1 {
                self.activations.pop();
                continue;
            }
            let done =
                self.activations.len() == 1 && last.is_quiet() && !last.volatile.draining && !going;
            if done && last.durable.head == self.store.head.seq {
                return;
            } else if done {
                self.activations.clear(); // It was idle and did not notice that another activation wrote; the next one will.
                continue;
            }
            for index in 0..self.activations.len() {
                let is_over = self.activations[index].over;
                if !is_over && self.rng.percent(10) && self.caller_returns(index) {
                    continue;
                }
                let asked = self.activations[index]
                    .durable
                    .batch()
                    .filter(|batch| batch.is_parked())
                    .and_then(|batch| {
                        batch
                            .calls
                            .iter()
                            .find(|call| matches!(call.state, CallState::Asked { .. }))
                            .map(|call| call.tool_use.id.clone())
                    });
                if let Some(tool_call_id) =
                    asked.filter(|_| !self.activations[index].over && self.rng.percent(10))
                {
                    let waiter = self.waiter();
                    let allow = self.rng.percent(50);
                    self.command(
                        index,
                        Command::Approve {
                            round_id: None,
                            tool_call_id,
                            answer: allow.into(),
                        },
                        waiter,
                    )
                    .expect("no cut");
                }
            }
            self.go_on(0).expect("no cut");
        }
        let states: Vec<_> = self
            .activations
            .iter()
            .map(|activation| {
                (
                    activation.number,
                    activation.state(),
                    &activation.durable.round,
                    &activation.volatile.work,
                )
            })
            .collect();
        panic!("the world does not come to rest: {states:?}");
    }

    /// Checks a settled world.
    pub(super) fn judge(&mut self) {
        let activation = &self.activations[0];
        let folded = restore(&self.store.load(false))
            .expect("no snapshot")
            .expect("readable");
        assert_eq!(
            folded, activation.durable,
            "what is stored is what activations"
        );
        let snapshot = (folded.head, folded.snapshot());
        let loaded = crate::journal::Loaded {
            head: self.store.head,
            snapshot: Some(snapshot),
            entries: vec![],
        };
        assert_eq!(
            restore(&loaded),
            Some(Ok(folded.clone())),
            "a snapshot survives its encoding"
        );

        let entries: Vec<Entry> = self
            .store
            .entries
            .iter()
            .map(|stored| Entry::decode(stored).expect("readable"))
            .collect();
        self.judge_journal(&entries);
        self.judge_events(&entries);
        super::budget_laws::judge(&entries, &folded);
        judge_words(&entries, &folded);
    }

    fn judge_journal(&self, entries: &[Entry]) {
        let mut accepted: BTreeMap<PromptId, RoundId> = BTreeMap::new();
        let mut waiting = Vec::new();
        let mut withdrawn = BTreeSet::new();
        let mut started = BTreeSet::new();
        let mut finished = BTreeSet::new();
        let mut open: Option<RoundId> = None;
        let mut steered: BTreeSet<RoundId> = BTreeSet::new();
        let mut epoch = Epoch(0);
        let mut keys: BTreeMap<String, Timestamp> = BTreeMap::new();
        let mut latest = Timestamp::default();
        for entry in entries {
            if let EntryBody::Reset {} = &entry.body {
                keys.clear();
            }
            latest = latest.max(entry.at); // The clock may have gone back after keys had expired.
            let mut first_use = |key: Option<&ClientKey>, at: Timestamp| {
                let Some(key) = key else { return };
                let before = keys.insert(key.key.clone(), at);
                assert!(
                    before.is_none_or(|before| latest.ms_since(before) > CLIENT_KEY_MS),
                    "a client key leads to one round"
                );
            };
            if entry.epoch != epoch {
                assert!(
                    matches!(entry.body, EntryBody::LifeStarted { .. })
                        && entry.epoch == epoch.next(),
                    "each activation says that it began"
                );
                epoch = entry.epoch;
            }
            match &entry.body {
                EntryBody::PromptAccepted {
                    prompt_id,
                    round_id,
                    client_key,
                    ..
                } => {
                    assert_eq!(
                        accepted.insert(*prompt_id, *round_id),
                        None,
                        "a prompt is accepted once"
                    );
                    waiting.push(*prompt_id);
                    first_use(client_key.as_ref(), entry.at);
                }
                EntryBody::PromptWithdrawn { prompt_id, .. } => {
                    assert!(withdrawn.insert(*prompt_id), "a prompt is withdrawn once");
                    waiting.retain(|id| id != prompt_id);
                }
                EntryBody::RoundStarted {
                    round_id,
                    prompt_ids,
                } => {
                    assert_eq!(open.replace(*round_id), None, "one round at a time");
                    assert_eq!(
                        waiting.first(),
                        prompt_ids.first(),
                        "rounds come in the order of their prompts"
                    );
                    assert!(prompt_ids.len() == 1 && accepted[&prompt_ids[0]] == *round_id);
                    waiting.remove(0);
                    assert!(started.insert(*round_id), "a round begins once");
                }
                EntryBody::Injected { client_key, .. } => {
                    first_use(client_key.as_ref(), entry.at);
                    steered.extend(open);
                }
                EntryBody::RoundFinished { .. } => assert!(
                    finished.insert(open.take().expect("a round is open")),
                    "a round ends once"
                ),
                _ => {}
            }
        }
        assert!(open.is_none() && waiting.is_empty(), "nothing is left open");
        for (prompt, round) in &accepted {
            assert!(
                finished.contains(round) || withdrawn.contains(prompt) && !started.contains(round),
                "an accepted prompt is answered"
            );
        }
        for sent in &self.sent {
            match self.replies.get(&sent.waiter) {
                Some(Reply::Acknowledged(receipt)) if receipt.replayed => {
                    assert!(
                        sent.key.is_some() && !accepted.contains_key(&sent.id),
                        "a replay is no new prompt"
                    );
                    assert!(accepted.values().any(|round| *round == receipt.round_id));
                }
                Some(Reply::Acknowledged(receipt)) if receipt.round_id == sent.round_id => {
                    assert_eq!(
                        accepted.get(&sent.id),
                        Some(&sent.round_id),
                        "an acknowledged prompt is not lost"
                    );
                }
                Some(Reply::Acknowledged(receipt)) => {
                    assert!(
                        sent.on_busy == OnBusy::Steer
                            && steered.contains(&receipt.round_id)
                            && !accepted.contains_key(&sent.id)
                    );
                }
                Some(Reply::Refused(_)) => assert!(
                    !accepted.contains_key(&sent.id),
                    "a refused prompt is not accepted"
                ),
                Some(Reply::Answered) => panic!("a prompt is acknowledged or refused"),
                None => assert!(
                    self.crashes > 0 || self.activations_begun > 1,
                    "every caller gets an answer"
                ),
            }
        }
        judge_rounds(entries);
    }

    /// The published events are those that a later reader of the journal derives, with the same
    /// ids.
    fn judge_events(&self, entries: &[Entry]) {
        let mut state = Durable::default();
        let mut all = Vec::new();
        for entry in entries {
            let (_, kinds) = project(&"c-1".parse().unwrap(), &state, entry);
            all.extend((0..).zip(kinds).map(|(n, kind)| {
                (
                    EventId {
                        epoch: entry.epoch,
                        seq: entry.seq,
                        n,
                    },
                    kind,
                )
            }));
            state.apply(entry).expect("it was applied before");
        }
        if self.crashes == 0 && self.activations_begun == 1 {
            assert_eq!(
                self.published, all,
                "everything that happened was published"
            );
            return;
        }
        let mut seen = self.published.clone();
        seen.sort_by_key(|(id, _)| *id);
        let ids: BTreeSet<EventId> = seen.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids.len(), seen.len(), "an event is published once");
        let projected: Vec<_> = all.into_iter().filter(|(id, _)| ids.contains(id)).collect();
        assert_eq!(seen, projected, "what was seen is what is projected");
    }

    /// Stops the random events, then settles and checks the world.
    pub(super) fn end(&mut self) {
        while !self.store.queue.is_empty() && self.activations.is_empty() {
            self.store_works(Fault::None).expect("no cut");
        }
        self.settle();
        self.judge();
    }
}

/// The history neither loses nor repeats a text of a user.
fn judge_words(entries: &[Entry], state: &Durable) {
    let mut words: BTreeMap<String, i32> = BTreeMap::new();
    let mut prompts: BTreeMap<PromptId, &Message> = BTreeMap::new();
    let mut fold = Durable::default();
    for entry in entries {
        let before = fold.history.clone();
        fold.apply(entry).expect("it was applied before");
        match &entry.body {
            EntryBody::Compacted { .. } => {
                // What a compaction drops stays in the journal before it.
                for (word, count) in texts_in(before.messages().iter()) {
                    let left = texts_in(fold.history.messages().iter())
                        .get(&word)
                        .copied()
                        .unwrap_or(0);
                    assert!(
                        left <= count,
                        "a compaction says nothing in a person's name"
                    );
                    words.entry(word).and_modify(|known| *known -= count - left);
                }
                words.retain(|_, count| *count > 0);
            }
            EntryBody::Injected { message, .. }
                if message
                    .blocks()
                    .iter()
                    .all(|block| block.as_text().is_some_and(is_reminder)) => {}
            EntryBody::PromptAccepted {
                prompt_id,
                message: Some(message),
                ..
            } => {
                prompts.insert(*prompt_id, message);
                *words.entry(message.text()).or_default() += 1;
            }
            EntryBody::PromptWithdrawn { prompt_id, .. } => {
                if let Some(message) = prompts.get(prompt_id) {
                    let _ = words.remove(&message.text());
                }
            }
            body if super::budget_laws::is_reminder(body) => {}
            EntryBody::Injected { message, .. } => *words.entry(message.text()).or_default() += 1,
            EntryBody::Imported { messages, .. } => words = texts_in(messages),
            EntryBody::Reset {} => words.clear(),
            EntryBody::Rewound { .. } => {
                // A law of the entry says that the rest is the start of the former history.
                let upto = entries.iter().take_while(|other| other.seq <= entry.seq);
                let mut state = Durable::default();
                upto.for_each(|entry| state.apply(entry).expect("it was applied before"));
                words = texts_in(state.history.messages().iter());
            }
            _ => {}
        }
    }
    assert_eq!(
        texts_in(state.history.messages().iter()),
        words,
        "what people said stands in the history once"
    );
}

/// The texts of users in `messages`, each with its number of occurrences.
fn texts_in<'a>(messages: impl IntoIterator<Item = &'a Message>) -> BTreeMap<String, i32> {
    let mut counts: BTreeMap<String, i32> = BTreeMap::new();
    for message in messages {
        for block in message.blocks() {
            if let ContentBlock::Text(text) = block
                && (text.text.starts_with("prompt ") || text.text.starts_with("injected "))
            {
                *counts.entry(text.text).or_default() += 1;
            }
        }
    }
    counts
}
