//! Who is next when many wait: deficit round robin over keys by weight and cost, three classes. Pure; holds waiters of any kind.
//!
//! In each round every key that waits may use up a quantum times its weight, so that what is served, not how often, is shared. Within a round
//! keys whose first waiter is more urgent come first, one waiter each in turn; the round ends only when all have had their part, so no class
//! and no key starves. Within a key the more urgent come first, but one that was passed over [`PASSED_MAX`] times is next: a tenant's own
//! flood of prompts delays its summaries and does not end them.
//!
//! A key is served while it has something left of its part, and owes what its last waiter cost beyond that: who comes new is served at once,
//! and nobody's share is off by more than a quantum and one waiter. A key that stops waiting keeps nothing beyond the round; what it owes it
//! keeps until so many rounds have passed, or nobody waits any more. Costs are estimates; they are scaled by what a key's waiters turned out
//! to cost before, and settled when it is known.
//!
//! Pure.

use std::collections::{BTreeMap, VecDeque};

use super::CallClass;

/// Times that a waiter of a lower class is passed over by others of its key before it is next.
pub const PASSED_MAX: u32 = 8;

/// The scale of an estimate that is right.
const EVEN: u64 = 1024;

/// How far estimates are thought to be too low at most; what they are beyond it is owed afterwards.
const SCALE_MAX: u64 = 64 * EVEN;

/// Keys that do not wait and are remembered beside those that do, before the ones that owe nothing are forgotten.
const IDLE_LANES_MAX: usize = 64;

/// Waiters by key.
#[derive(Debug)]
pub struct FairQueue<K, T> {
    /// What a weight of 1 gets in a round: about what one of those that were served used, so that rounds are short.
    quantum: u64,
    quantum_max: u64,
    /// What was used of what was estimated, lately, in parts of [`EVEN`].
    scale: u64,
    lanes: BTreeMap<K, Lane<T>>,
    /// Whose turn it is in this round, by the class of its first waiter. A turn whose ticket is not the lane's own is void.
    turns: [VecDeque<Turn<K>>; 3],
    /// Who has had its part of this round.
    later: VecDeque<Turn<K>>,
    round: u64,
    last_ticket: u64,
    last_id: u64,
    len: usize,
    /// Of the keys that wait.
    weight: u64,
}

#[derive(Debug)]
struct Turn<K> {
    key: K,
    ticket: u64,
}

#[derive(Debug)]
struct Lane<T> {
    weight: u64,
    /// As [`FairQueue::scale`], of this key.
    scale: u64,
    /// What it may still use in this round; below zero it owes.
    deficit: i64,
    /// The round that the deficit is of.
    round: u64,
    place: Option<(Place, u64)>,
    waiters: [VecDeque<Waiter<T>>; 3],
    passed: [u32; 3],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Turn(CallClass),
    Later,
}

#[derive(Debug)]
struct Waiter<T> {
    id: WaiterId,
    cost: u64,
    item: T,
}

/// A waiter that is next.
#[derive(Debug, PartialEq, Eq)]
pub struct Taken<K, T> {
    /// Its key.
    pub key: K,
    /// What it is.
    pub item: T,
    /// What its key was charged; to be settled ([`FairQueue::settle`]).
    pub charged: u64,
}

/// One waiter of a queue, to find it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaiterId(u64);

fn index(class: CallClass) -> usize {
    match class {
        CallClass::Interactive => 0,
        CallClass::Subagent => 1,
        CallClass::Background => 2,
    }
}

fn signed(cost: u64) -> i64 {
    i64::try_from(cost).unwrap_or(i64::MAX)
}

impl<T> Lane<T> {
    fn of(&self, class: CallClass) -> &VecDeque<Waiter<T>> {
        let [interactive, subagent, background] = &self.waiters;
        match class {
            CallClass::Interactive => interactive,
            CallClass::Subagent => subagent,
            CallClass::Background => background,
        }
    }

    fn of_mut(&mut self, class: CallClass) -> &mut VecDeque<Waiter<T>> {
        let [interactive, subagent, background] = &mut self.waiters;
        match class {
            CallClass::Interactive => interactive,
            CallClass::Subagent => subagent,
            CallClass::Background => background,
        }
    }

    fn len(&self) -> usize {
        self.waiters.iter().map(VecDeque::len).sum()
    }

    /// The class that is served next: the most urgent one, unless another was passed over too often.
    fn next_class(&self) -> Option<CallClass> {
        let waits = |class: &&CallClass| !self.of(**class).is_empty();
        let passed = |class: &&CallClass| self.passed.get(index(**class)).is_some_and(|passed| *passed >= PASSED_MAX);
        let overdue = CallClass::ALL.iter().filter(waits).find(passed);
        overdue.or_else(|| CallClass::ALL.iter().find(waits)).copied()
    }

    fn first_cost(&self) -> Option<u64> {
        self.of(self.next_class()?).front().map(|waiter| waiter.cost)
    }

    fn take_first(&mut self, class: CallClass) -> Option<Waiter<T>> {
        let waiter = self.of_mut(class).pop_front()?;
        for other in CallClass::ALL {
            let waits = other > class && !self.of(other).is_empty();
            if let Some(passed) = self.passed.get_mut(index(other)) {
                *passed = if waits { passed.saturating_add(1) } else { 0 };
            }
        }
        Some(waiter)
    }

    fn quantum(&self, quantum: u64) -> i64 {
        signed(quantum.saturating_mul(self.weight))
    }

    /// Brings a lane where nobody waited to `round`: nothing is left of earlier rounds, and debts are paid by the rounds that passed.
    fn catch_up(&mut self, round: u64, quantum: u64) {
        let passed = signed(round.saturating_sub(self.round));
        if passed > 0 {
            let part = self.quantum(quantum);
            self.deficit = self.deficit.min(0).saturating_add(part.saturating_mul(passed)).min(part);
            self.round = round;
        }
    }
}

impl<K: Ord + Clone, T> FairQueue<K, T> {
    /// An empty queue with this quantum, in the unit of costs, to begin with; it follows what is used, up to `quantum_max`.
    pub fn new(quantum: u64, quantum_max: u64) -> Self {
        Self {
            quantum: quantum.clamp(1, quantum_max.max(1)),
            quantum_max: quantum_max.max(1),
            scale: EVEN,
            lanes: BTreeMap::new(),
            turns: Default::default(),
            later: VecDeque::new(),
            round: 0,
            last_ticket: 0,
            last_id: 0,
            len: 0,
            weight: 0,
        }
    }

    /// Number of waiters.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Waiters by key, in order of the keys.
    pub fn waiting(&self) -> impl Iterator<Item = (&K, usize)> {
        self.lanes.iter().map(|(key, lane)| (key, lane.len())).filter(|(_, len)| *len > 0)
    }

    /// Adds a waiter. A weight of 0 counts as 1.
    pub fn push(&mut self, key: &K, weight: u32, class: CallClass, cost: u64, item: T) -> WaiterId {
        self.last_id += 1;
        let (id, weight) = (WaiterId(self.last_id), u64::from(weight.max(1)));
        let (quantum, round, scale) = (self.quantum, self.round, self.scale);
        let fresh = || {
            let mut lane = Lane { weight, scale, deficit: 0, round, place: None, waiters: Default::default(), passed: [0; 3] };
            lane.deficit = lane.quantum(quantum);
            lane
        };
        let lane = self.lanes.entry(key.clone()).or_insert_with(fresh);
        let waited = lane.len() > 0;
        if !waited {
            lane.catch_up(round, quantum);
        }
        let before = if waited { lane.weight } else { 0 };
        lane.weight = weight;
        lane.of_mut(class).push_back(Waiter { id, cost, item });
        self.weight = (self.weight - before).saturating_add(weight);
        self.len += 1;
        self.place(key, false);
        id
    }

    /// Who is next, and its cost. Asking again gives the same, unless somebody more urgent came.
    pub fn peek(&mut self) -> Option<(&K, u64)> {
        let (key, _) = self.choose()?;
        let (key, lane) = self.lanes.get_key_value(&key)?;
        lane.first_cost().map(|cost| (key, cost))
    }

    /// Takes the next waiter.
    pub fn pop(&mut self) -> Option<Taken<K, T>> {
        let (key, class) = self.choose()?;
        let lane = self.lanes.get_mut(&key)?;
        let waiter = lane.take_first(class)?;
        let charged = u64::try_from(u128::from(waiter.cost) * u128::from(lane.scale) / u128::from(EVEN)).unwrap_or(u64::MAX).max(1);
        lane.deficit = lane.deficit.saturating_sub(signed(charged));
        self.left(&key);
        self.place(&key, true);
        Some(Taken { key, item: waiter.item, charged })
    }

    /// Takes a waiter out that does not wait any more. It costs nothing.
    pub fn remove(&mut self, key: &K, class: CallClass, id: WaiterId) -> Option<T> {
        let waiters = self.lanes.get_mut(key)?.of_mut(class);
        let at = waiters.binary_search_by_key(&id, |waiter| waiter.id).ok()?;
        let waiter = waiters.remove(at)?;
        self.left(key);
        self.place(key, false);
        Some(waiter.item)
    }

    /// Takes out the newest of the least urgent waiters of the key with the most of them for its weight, unless that is `comer`: somebody
    /// must go so that another may come.
    pub fn shed(&mut self, comer: &K, weight: u32) -> Option<T> {
        let per_weight = |len: usize, weight: u64| len as u128 * 1_000_000 / u128::from(weight.max(1));
        let mine = self.lanes.get(comer).map_or(0, Lane::len) + 1;
        let waiting = self.lanes.iter().map(|(key, lane)| (per_weight(lane.len(), lane.weight), key));
        let (most, key) = waiting.max_by_key(|(most, _)| *most)?;
        if key == comer || most <= per_weight(mine, u64::from(weight)) {
            return None;
        }
        let key = key.clone();
        let lane = self.lanes.get_mut(&key)?;
        let waiter = CallClass::ALL.iter().rev().find_map(|class| lane.of_mut(*class).pop_back())?;
        self.left(&key);
        self.place(&key, false);
        Some(waiter.item)
    }

    /// Corrects what a key was `charged` for a waiter that was taken: it was `estimated` to cost, and did cost `actual`.
    pub fn settle(&mut self, key: &K, estimated: u64, charged: u64, actual: u64) {
        let (round, quantum) = (self.round, self.quantum);
        let seen = (actual > 0).then(|| u128::from(actual) * u128::from(EVEN) / u128::from(estimated.max(1)));
        let seen = seen.map(|seen| u64::try_from(seen).unwrap_or(SCALE_MAX).min(SCALE_MAX));
        if let Some(seen) = seen {
            self.quantum = (self.quantum * 15).saturating_add(actual.min(self.quantum_max)).div_ceil(16).max(1);
            self.scale = (self.scale * 15 + seen) / 16;
        }
        let Some(lane) = self.lanes.get_mut(key) else { return };
        lane.scale = seen.map_or(lane.scale, |seen| (lane.scale * 3 + seen) / 4);
        if lane.len() == 0 {
            lane.catch_up(round, quantum);
        }
        // No more than two parts: what was given for a dear estimate and is given back must not become a long turn.
        let most = lane.quantum(quantum).saturating_mul(2).max(lane.deficit);
        lane.deficit = lane.deficit.saturating_add(signed(charged)).saturating_sub(signed(actual)).min(most);
        self.place(key, false);
    }

    /// How many are served until this one is, itself included; about: as if all cost the same.
    pub fn position(&self, key: &K, class: CallClass, id: WaiterId) -> Option<usize> {
        let lane = self.lanes.get(key)?;
        let at = lane.of(class).binary_search_by_key(&id, |waiter| waiter.id).ok()?;
        let before = CallClass::ALL.iter().filter(|other| **other < class).map(|other| lane.of(*other).len()).sum::<usize>() + at;
        Some(self.served_with(lane, before + 1))
    }

    /// How many are served until the last waiter of a key is; about.
    pub fn last_position(&self, key: &K) -> Option<usize> {
        self.lanes.get(key).filter(|lane| lane.len() > 0).map(|lane| self.served_with(lane, lane.len()))
    }

    /// So many of one lane, and what the others get meanwhile.
    fn served_with(&self, lane: &Lane<T>, own: usize) -> usize {
        let others = self.len - lane.len();
        let weight = self.weight.saturating_sub(lane.weight);
        let meanwhile = (own as u128 * u128::from(weight)).div_ceil(u128::from(lane.weight.max(1)));
        own + usize::try_from(meanwhile).unwrap_or(others).min(others)
    }

    /// The lane whose first waiter is next. Rounds begin here.
    fn choose(&mut self) -> Option<(K, CallClass)> {
        loop {
            let mut front = None;
            for class in CallClass::ALL {
                while let Some(turn) = self.turns.get(index(class)).and_then(VecDeque::front) {
                    let lane = self.lanes.get(&turn.key);
                    if lane.is_some_and(|lane| lane.place == Some((Place::Turn(class), turn.ticket))) {
                        front = Some(turn.key.clone());
                        break;
                    }
                    self.turns.get_mut(index(class)).and_then(VecDeque::pop_front);
                }
                if front.is_some() {
                    break;
                }
            }
            match front {
                Some(key) => {
                    let class = self.lanes.get(&key)?.next_class()?;
                    return Some((key, class));
                }
                None if !self.begin_round() => return None,
                None => {}
            }
        }
    }

    /// Gives every key that waits its part of a new round, or of as many as it takes until somebody's suffices. False if nobody waits.
    fn begin_round(&mut self) -> bool {
        let turns = std::mem::take(&mut self.later);
        let mut keys: Vec<K> = Vec::with_capacity(turns.len());
        for Turn { key, ticket } in turns {
            if self.lanes.get(&key).is_some_and(|lane| lane.place == Some((Place::Later, ticket))) {
                keys.push(key);
            }
        }
        let quantum = self.quantum;
        let missing = |lane: &Lane<T>| {
            let (missing, part) = (1i64.saturating_sub(lane.deficit).max(1), lane.quantum(quantum).max(1));
            missing.saturating_add(part - 1) / part
        };
        let Some(rounds) = keys.iter().filter_map(|key| self.lanes.get(key)).map(missing).min() else { return false };
        let rounds = rounds.max(1);
        self.round = self.round.saturating_add(rounds.unsigned_abs());
        for key in &keys {
            if let Some(lane) = self.lanes.get_mut(key) {
                let part = lane.quantum(quantum);
                lane.deficit = lane.deficit.saturating_add(part.saturating_mul(rounds));
                lane.round = self.round;
            }
            self.place(key, true); // Its turn was taken out of the list.
        }
        if self.lanes.len() > keys.len() * 2 + IDLE_LANES_MAX {
            let round = self.round;
            self.lanes.retain(|_, lane| {
                if lane.len() == 0 {
                    lane.catch_up(round, quantum);
                }
                lane.len() > 0 || lane.deficit < lane.quantum(quantum)
            });
        }
        true
    }

    /// A waiter left a lane.
    fn left(&mut self, key: &K) {
        self.len = self.len.saturating_sub(1);
        if let Some(lane) = self.lanes.get_mut(key)
            && lane.len() == 0
        {
            self.weight = self.weight.saturating_sub(lane.weight);
            (lane.place, lane.passed) = (None, [0; 3]);
            lane.round = self.round;
        }
        if self.len == 0 {
            // Nobody competes: all are even.
            *self = Self { last_id: self.last_id, scale: self.scale, ..Self::new(self.quantum, self.quantum_max) };
        }
    }

    /// Puts a lane where it belongs now; to the end of the turn if it just had one.
    fn place(&mut self, key: &K, served: bool) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        let Some(class) = lane.next_class() else { return };
        let place = if lane.deficit > 0 { Place::Turn(class) } else { Place::Later };
        if !served && lane.place.is_some_and(|(now, _)| now == place) {
            return;
        }
        self.last_ticket += 1;
        lane.place = Some((place, self.last_ticket));
        let turn = Turn { key: key.clone(), ticket: self.last_ticket };
        match place {
            Place::Turn(class) => {
                if let Some(turns) = self.turns.get_mut(index(class)) {
                    turns.push_back(turn);
                    tidy(turns, &self.lanes);
                }
            }
            Place::Later => {
                self.later.push_back(turn);
                tidy(&mut self.later, &self.lanes);
            }
        }
    }
}

/// Drops void turns once they are most: callers who come and leave while nobody is served must not cost memory.
fn tidy<K: Ord, T>(turns: &mut VecDeque<Turn<K>>, lanes: &BTreeMap<K, Lane<T>>) {
    if turns.len() > lanes.len() * 2 + IDLE_LANES_MAX {
        let is = |turn: &Turn<K>| lanes.get(&turn.key).and_then(|lane| lane.place).is_some_and(|(_, ticket)| ticket == turn.ticket);
        turns.retain(is);
    }
}

#[cfg(test)]
#[path = "fair_queue_tests.rs"]
mod tests;
