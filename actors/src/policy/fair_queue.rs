//! A queue that is fair between keys: weighted deficit round robin with three classes of urgency.
//! It holds waiters of any type.
//!
//! In each round every waiting key may use up a quantum times its weight, so keys share the cost of
//! what is served, not the number of waiters. Within a round, keys whose first waiter is more
//! urgent come first, one waiter each in turn. A round ends only when every key has had its part,
//! so no class and no key starves. Within a key the more urgent waiter comes first, but a waiter
//! that was passed over [`PASSED_MAX`] times is next: a tenant's own flood of prompts delays its
//! summaries and does not stop them.
//!
//! A key is served while any of its part is left, and owes whatever its last waiter cost beyond
//! that. So a new key is served at once, and the share of a key is off by at most one quantum and
//! one waiter. A key that stops waiting loses the rest of its part at the end of the round. Its
//! debt is paid by the rounds that pass, and is cancelled when the queue is empty. Costs are
//! estimates: they are scaled by what earlier waiters of the key really cost, and settled when the
//! real cost is known.
//!
//! Pure.

use std::collections::{BTreeMap, VecDeque};

use super::CallClass;

/// How often waiters of the same key may pass over one of a lower class before it is next.
pub(crate) const PASSED_MAX: u32 = 8;

/// The scale at which an estimate equals the real cost.
const EVEN: u64 = 1024;

/// Upper bound of the scale. Cost beyond it is settled as debt.
const SCALE_MAX: u64 = 64 * EVEN;

/// How many idle keys are remembered, beyond as many as there are waiting ones, before idle keys
/// without debt are removed.
const IDLE_LANES_MAX: usize = 64;

/// Waiters by key, served in a fair order.
#[derive(Debug)]
pub(crate) struct FairQueue<K, T> {
    /// What a weight of 1 gets in a round. It follows the average cost of served waiters, so that
    /// rounds stay short.
    quantum: u64,
    quantum_max: u64,
    /// Moving average of real cost over estimated cost, in parts of [`EVEN`].
    scale: u64,
    lanes: BTreeMap<K, Lane<T>>,
    /// Keys that may still be served in this round, by the class of their first waiter. An entry
    /// whose ticket is not the lane's current one is void.
    now: [VecDeque<QueueEntry<K>>; 3],
    /// Keys that have used up their part of this round.
    later: VecDeque<QueueEntry<K>>,
    round: u64,
    last_ticket: u64,
    last_id: u64,
    len: usize,
    /// Total weight of the waiting keys.
    weight: u64,
}

#[derive(Debug)]
struct QueueEntry<K> {
    key: K,
    ticket: u64,
}

#[derive(Debug)]
struct Lane<T> {
    weight: u64,
    /// As [`FairQueue::scale`], for this key only.
    scale: u64,
    /// What the key may still use in this round; negative while it owes.
    deficit: i64,
    /// The round that `deficit` belongs to.
    round: u64,
    position: Option<(Position, u64)>,
    waiters: [VecDeque<Waiter<T>>; 3],
    passed: [u32; 3],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    Now(CallClass),
    Later,
}

#[derive(Debug)]
struct Waiter<T> {
    id: WaiterId,
    cost: u64,
    item: T,
}

/// A waiter that was taken from the queue.
#[derive(Debug, PartialEq, Eq)]
pub struct Taken<K, T> {
    /// The key that it waited under.
    pub key: K,
    /// The item that was pushed.
    pub item: T,
    /// What the key was charged for it; pass it to `FairQueue::settle`.
    pub charged: u64,
}

/// Identifies a waiter in its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaiterId(u64);

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

    /// The class that is served next: an overdue one, else the most urgent one.
    fn next_class(&self) -> Option<CallClass> {
        let waits = |class: &&CallClass| !self.of(**class).is_empty();
        let passed = |class: &&CallClass| {
            self.passed
                .get(index(**class))
                .is_some_and(|passed| *passed >= PASSED_MAX)
        };
        let overdue = CallClass::ALL.iter().filter(waits).find(passed);
        overdue
            .or_else(|| CallClass::ALL.iter().find(waits))
            .copied()
    }

    fn first_cost(&self) -> Option<u64> {
        self.of(self.next_class()?)
            .front()
            .map(|waiter| waiter.cost)
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

    /// Brings an idle lane to `round`: unused parts of earlier rounds expire, and the rounds that
    /// passed pay off its debt.
    fn catch_up(&mut self, round: u64, quantum: u64) {
        let passed = signed(round.saturating_sub(self.round));
        if passed > 0 {
            let part = self.quantum(quantum);
            self.deficit = self
                .deficit
                .min(0)
                .saturating_add(part.saturating_mul(passed))
                .min(part);
            self.round = round;
        }
    }
}

impl<K: Ord + Clone, T> FairQueue<K, T> {
    /// An empty queue. `quantum` is the initial part of a key of weight 1, in the unit of costs; it
    /// follows the real costs, up to `quantum_max`.
    pub(crate) fn new(quantum: u64, quantum_max: u64) -> Self {
        Self {
            quantum: quantum.clamp(1, quantum_max.max(1)),
            quantum_max: quantum_max.max(1),
            scale: EVEN,
            lanes: BTreeMap::new(),
            now: Default::default(),
            later: VecDeque::new(),
            round: 0,
            last_ticket: 0,
            last_id: 0,
            len: 0,
            weight: 0,
        }
    }

    /// Number of waiters, of all keys.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether the queue has no waiter.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of waiters by key, in key order; only keys with waiters.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (&K, usize)> {
        self.lanes
            .iter()
            .map(|(key, lane)| (key, lane.len()))
            .filter(|(_, len)| *len > 0)
    }

    /// Adds a waiter. A weight of 0 counts as 1.
    pub(crate) fn push(
        &mut self,
        key: &K,
        weight: u32,
        class: CallClass,
        cost: u64,
        item: T,
    ) -> WaiterId {
        self.last_id += 1;
        let id = WaiterId(self.last_id);
        let weight = u64::from(weight.max(1));
        let quantum = self.quantum;
        let round = self.round;
        let scale = self.scale;
        let fresh = || {
            let mut lane = Lane {
                weight,
                scale,
                deficit: 0,
                round,
                position: None,
                waiters: Default::default(),
                passed: [0; 3],
            };
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
        self.enqueue(key, false);
        id
    }

    /// The next key and the estimated cost of its waiter. Repeated calls return the same key until
    /// a more urgent waiter arrives.
    pub(crate) fn peek(&mut self) -> Option<(&K, u64)> {
        let (key, _) = self.choose()?;
        let (key, lane) = self.lanes.get_key_value(&key)?;
        lane.first_cost().map(|cost| (key, cost))
    }

    /// Takes the next waiter.
    pub(crate) fn pop(&mut self) -> Option<Taken<K, T>> {
        let (key, class) = self.choose()?;
        let lane = self.lanes.get_mut(&key)?;
        let waiter = lane.take_first(class)?;
        let charged =
            u64::try_from(u128::from(waiter.cost) * u128::from(lane.scale) / u128::from(EVEN))
                .unwrap_or(u64::MAX)
                .max(1);
        lane.deficit = lane.deficit.saturating_sub(signed(charged));
        self.left(&key);
        self.enqueue(&key, true);
        Some(Taken {
            key,
            item: waiter.item,
            charged,
        })
    }

    /// Removes a waiter that gave up. Its key is charged nothing.
    pub(crate) fn remove(&mut self, key: &K, class: CallClass, id: WaiterId) -> Option<T> {
        let waiters = self.lanes.get_mut(key)?.of_mut(class);
        let at = waiters.binary_search_by_key(&id, |waiter| waiter.id).ok()?;
        let waiter = waiters.remove(at)?;
        self.left(key);
        self.enqueue(key, false);
        Some(waiter.item)
    }

    /// Makes room for `comer`: takes the newest of the least urgent waiters of the key with the
    /// most waiters for its weight. `None` if `comer` is that key, or would itself have the most.
    pub(crate) fn shed(&mut self, comer: &K, weight: u32) -> Option<T> {
        let per_weight =
            |len: usize, weight: u64| len as u128 * 1_000_000 / u128::from(weight.max(1));
        let mine = self.lanes.get(comer).map_or(0, Lane::len) + 1;
        let waiting = self
            .lanes
            .iter()
            .map(|(key, lane)| (per_weight(lane.len(), lane.weight), key));
        let (most, key) = waiting.max_by_key(|(most, _)| *most)?;
        if key == comer || most <= per_weight(mine, u64::from(weight)) {
            return None;
        }
        let key = key.clone();
        let lane = self.lanes.get_mut(&key)?;
        let waiter = CallClass::ALL
            .iter()
            .rev()
            .find_map(|class| lane.of_mut(*class).pop_back())?;
        self.left(&key);
        self.enqueue(&key, false);
        Some(waiter.item)
    }

    /// Corrects what a key was `charged` for a waiter with the cost `estimated`, now that it is
    /// known to be `actual`.
    pub(crate) fn settle(&mut self, key: &K, estimated: u64, charged: u64, actual: u64) {
        let round = self.round;
        let quantum = self.quantum;
        let seen = (actual > 0)
            .then(|| u128::from(actual) * u128::from(EVEN) / u128::from(estimated.max(1)));
        let seen = seen.map(|seen| u64::try_from(seen).unwrap_or(SCALE_MAX).min(SCALE_MAX));
        if let Some(seen) = seen {
            self.quantum = (self.quantum * 15)
                .saturating_add(actual.min(self.quantum_max))
                .div_ceil(16)
                .max(1);
            self.scale = (self.scale * 15 + seen) / 16;
        }
        let Some(lane) = self.lanes.get_mut(key) else {
            return;
        };
        lane.scale = seen.map_or(lane.scale, |seen| (lane.scale * 3 + seen) / 4);
        if lane.len() == 0 {
            lane.catch_up(round, quantum);
        }
        // Capped at two parts: a refund for an estimate that was too high must not become a long
        // run of calls.
        let most = lane.quantum(quantum).saturating_mul(2).max(lane.deficit);
        lane.deficit = lane
            .deficit
            .saturating_add(signed(charged))
            .saturating_sub(signed(actual))
            .min(most);
        self.enqueue(key, false);
    }

    /// About how many waiters are served up to and including this one, assuming equal costs.
    pub(crate) fn position(&self, key: &K, class: CallClass, id: WaiterId) -> Option<usize> {
        let lane = self.lanes.get(key)?;
        let at = lane
            .of(class)
            .binary_search_by_key(&id, |waiter| waiter.id)
            .ok()?;
        let before = CallClass::ALL
            .iter()
            .filter(|other| **other < class)
            .map(|other| lane.of(*other).len())
            .sum::<usize>()
            + at;
        Some(self.served_with(lane, before + 1))
    }

    /// About how many waiters are served up to and including the last one of a key.
    pub(crate) fn last_position(&self, key: &K) -> Option<usize> {
        self.lanes
            .get(key)
            .filter(|lane| lane.len() > 0)
            .map(|lane| self.served_with(lane, lane.len()))
    }

    /// `own` waiters of one lane, plus what the other lanes are served meanwhile.
    fn served_with(&self, lane: &Lane<T>, own: usize) -> usize {
        let others = self.len - lane.len();
        let weight = self.weight.saturating_sub(lane.weight);
        let meanwhile = (own as u128 * u128::from(weight)).div_ceil(u128::from(lane.weight.max(1)));
        own + usize::try_from(meanwhile).unwrap_or(others).min(others)
    }

    /// The lane that is served next. Begins a round when all lanes have had their part.
    fn choose(&mut self) -> Option<(K, CallClass)> {
        // A lane that moves gets another ticket, and its old entry stays in `now`. Such a void
        // entry is dropped here when it comes to the front, or by `tidy` when there are too many.
        loop {
            let mut front = None;
            for class in CallClass::ALL {
                while let Some(entry) = self.now.get(index(class)).and_then(VecDeque::front) {
                    let lane = self.lanes.get(&entry.key);
                    if lane.is_some_and(|lane| {
                        lane.position == Some((Position::Now(class), entry.ticket))
                    }) {
                        front = Some(entry.key.clone());
                        break;
                    }
                    self.now.get_mut(index(class)).and_then(VecDeque::pop_front);
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

    /// Gives every waiting key its part of a new round, or of as many rounds as the least indebted
    /// key needs until it may be served. Returns false if no key waits.
    fn begin_round(&mut self) -> bool {
        let entries = std::mem::take(&mut self.later);
        let mut keys: Vec<K> = Vec::with_capacity(entries.len());
        for QueueEntry { key, ticket } in entries {
            if self
                .lanes
                .get(&key)
                .is_some_and(|lane| lane.position == Some((Position::Later, ticket)))
            {
                keys.push(key);
            }
        }
        let quantum = self.quantum;
        let missing = |lane: &Lane<T>| {
            let missing = 1i64.saturating_sub(lane.deficit).max(1);
            let part = lane.quantum(quantum).max(1);
            missing.saturating_add(part - 1) / part
        };
        let Some(rounds) = keys
            .iter()
            .filter_map(|key| self.lanes.get(key))
            .map(missing)
            .min()
        else {
            return false;
        };
        let rounds = rounds.max(1);
        self.round = self.round.saturating_add(rounds.unsigned_abs());
        for key in &keys {
            if let Some(lane) = self.lanes.get_mut(key) {
                let part = lane.quantum(quantum);
                lane.deficit = lane.deficit.saturating_add(part.saturating_mul(rounds));
                lane.round = self.round;
            }
            self.enqueue(key, true); // Its entry was taken out of `later`.
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

    /// Updates the counts after a waiter was removed from a lane.
    fn left(&mut self, key: &K) {
        self.len = self.len.saturating_sub(1);
        if let Some(lane) = self.lanes.get_mut(key)
            && lane.len() == 0
        {
            self.weight = self.weight.saturating_sub(lane.weight);
            (lane.position, lane.passed) = (None, [0; 3]);
            lane.round = self.round;
        }
        if self.len == 0 {
            // No competition is left: all debts are cancelled.
            *self = Self {
                last_id: self.last_id,
                scale: self.scale,
                ..Self::new(self.quantum, self.quantum_max)
            };
        }
    }

    /// Queues a lane where it belongs now: at the end of its class if it was just `served`, or if
    /// its position changed.
    fn enqueue(&mut self, key: &K, served: bool) {
        let Some(lane) = self.lanes.get_mut(key) else {
            return;
        };
        let Some(class) = lane.next_class() else {
            return;
        };
        let position = if lane.deficit > 0 {
            Position::Now(class)
        } else {
            Position::Later
        };
        if !served && lane.position.is_some_and(|(now, _)| now == position) {
            return;
        }
        self.last_ticket += 1;
        lane.position = Some((position, self.last_ticket));
        let entry = QueueEntry {
            key: key.clone(),
            ticket: self.last_ticket,
        };
        match position {
            Position::Now(class) => {
                if let Some(entries) = self.now.get_mut(index(class)) {
                    entries.push_back(entry);
                    tidy(entries, &self.lanes);
                }
            }
            Position::Later => {
                self.later.push_back(entry);
                tidy(&mut self.later, &self.lanes);
            }
        }
    }
}

/// Removes void entries once they are the majority. Otherwise waiters that come and leave while
/// none is served would use ever more memory.
fn tidy<K: Ord, T>(entries: &mut VecDeque<QueueEntry<K>>, lanes: &BTreeMap<K, Lane<T>>) {
    if entries.len() > lanes.len() * 2 + IDLE_LANES_MAX {
        let is = |entry: &QueueEntry<K>| {
            lanes
                .get(&entry.key)
                .and_then(|lane| lane.position)
                .is_some_and(|(_, ticket)| ticket == entry.ticket)
        };
        entries.retain(is);
    }
}

#[cfg(test)]
#[path = "fair_queue_tests.rs"]
mod tests;
