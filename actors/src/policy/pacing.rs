//! Staggers calls that a key starts above its fair share, so that slots free up one at a time and a
//! newcomer waits for one slot, not for a whole batch.
//!
//! Calls of equal length that start together also end together. When such a batch holds all slots,
//! every newcomer waits until the batch ends. A key that already has its fair share therefore
//! starts further calls about as fast as evenly spread slots would free up, and fills all slots
//! within [`RAMP_MAX`] at the latest. A key without competitors is never delayed.
//!
//! Pure.

use std::{collections::HashMap, hash::Hash, time::Duration};

/// Longest time in which a key without waiting competitors fills all slots. Longer calls drift
/// apart without pacing.
pub(crate) const RAMP_MAX: Duration = Duration::from_millis(250);

/// How long after its last call a key still counts as a competitor.
pub(crate) const SHARES_FOR: Duration = Duration::from_secs(10);

/// How far a key may fall behind its schedule and still catch up. Timers have about this
/// resolution.
const BEHIND_MAX: Duration = Duration::from_millis(4);

/// How often keys that no longer compete are removed.
const SUMMED_EVERY: Duration = Duration::from_millis(100);

/// Running calls by key, and when the next call above a fair share may start.
#[derive(Debug)]
pub(crate) struct Pacing<K> {
    keys: HashMap<K, Key>,
    /// Total weight of all competing keys.
    weight: u64,
    summed_at: Duration,
    /// Moving average of the length of a call; `None` before the first call has ended.
    mean: Option<Duration>,
    /// Earliest start of the next call above a fair share.
    next: Duration,
}

#[derive(Debug)]
struct Key {
    weight: u64,
    running: usize,
    seen: Duration,
}

impl<K> Default for Pacing<K> {
    fn default() -> Self {
        Self {
            keys: HashMap::default(),
            weight: 0,
            summed_at: Duration::ZERO,
            mean: None,
            next: Duration::ZERO,
        }
    }
}

impl<K: Eq + Hash + Clone> Pacing<K> {
    /// Records that a key asks for a slot. A weight of 0 counts as 1.
    pub(crate) fn asks(&mut self, key: &K, weight: u32, now: Duration) {
        let weight = u64::from(weight.max(1));
        match self.keys.get_mut(key) {
            Some(known) => {
                self.weight = (self.weight - known.weight).saturating_add(weight);
                (known.weight, known.seen) = (weight, now);
            }
            None => {
                self.weight = self.weight.saturating_add(weight);
                self.keys.insert(
                    key.clone(),
                    Key {
                        weight,
                        running: 0,
                        seen: now,
                    },
                );
            }
        }
        if now.saturating_sub(self.summed_at) >= SUMMED_EVERY {
            self.summed_at = now;
            self.keys
                .retain(|_, key| key.running > 0 || now.saturating_sub(key.seen) < SHARES_FOR);
            self.weight = self
                .keys
                .values()
                .map(|key| key.weight)
                .fold(0, u64::saturating_add);
        }
    }

    /// When a key may start another call, out of `places` slots; `None` if it may start now.
    pub(crate) fn holds(&self, key: &K, places: usize, now: Duration) -> Option<Duration> {
        (self.next > now && self.is_beyond(key, places)).then_some(self.next)
    }

    /// Records that a key starts a call.
    pub(crate) fn begins(&mut self, key: &K, places: usize, now: Duration) {
        if self.is_beyond(key, places) {
            // Slightly faster than slots free up: calls that are spread stay spread, and no slot
            // stays empty.
            let ramp = self
                .mean
                .map_or(RAMP_MAX, |mean| (mean / 8).saturating_mul(7).min(RAMP_MAX));
            let step = ramp / u32::try_from(places.max(1)).unwrap_or(u32::MAX);
            self.next = self.next.max(now.saturating_sub(BEHIND_MAX)) + step;
        }
        if let Some(key) = self.keys.get_mut(key) {
            key.running += 1;
        }
    }

    /// Records that a call of a key ended after `took`.
    pub(crate) fn ends(&mut self, key: &K, took: Duration, now: Duration) {
        self.mean = Some(self.mean.map_or(took, |mean| (mean * 15 + took) / 16));
        if let Some(key) = self.keys.get_mut(key) {
            key.running = key.running.saturating_sub(1);
            key.seen = now;
        }
    }

    /// Whether a key with competitors has its fair share of the slots.
    fn is_beyond(&self, key: &K, places: usize) -> bool {
        let Some(key) = self.keys.get(key).filter(|key| key.weight < self.weight) else {
            return false;
        };
        key.running as u128 * u128::from(self.weight) >= places as u128 * u128::from(key.weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: Duration = Duration::from_millis(100);
    const PLACES: usize = 64;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// When each of `calls` that all wait at the start begins, if only pacing delays them.
    fn begun(pacing: &mut Pacing<&'static str>, key: &'static str, calls: usize) -> Vec<Duration> {
        let mut now = SHARES_FOR;
        let begin = |_| {
            pacing.asks(&key, 1, now);
            now = pacing.holds(&key, PLACES, now).unwrap_or(now);
            pacing.begins(&key, PLACES, now);
            now
        };
        (0..calls).map(begin).collect()
    }

    #[test]
    fn a_key_that_is_alone_begins_all_its_calls_at_once() {
        let mut pacing = Pacing::default();

        let begun = begun(&mut pacing, "alone", 64);

        assert!(begun.iter().all(|at| *at == SHARES_FOR), "{begun:?}");
    }

    #[test]
    fn a_share_begins_at_once_and_the_rest_no_faster_than_places_come_free() {
        let mut pacing = Pacing::default();
        pacing.asks(&"other", 1, SHARES_FOR);
        pacing.begins(&"other", PLACES, SHARES_FOR);
        pacing.ends(&"other", CALL, SHARES_FOR);

        let begun = begun(&mut pacing, "greedy", 64);

        let at_once = begun.iter().filter(|at| **at == SHARES_FOR).count();
        let last = begun.last().unwrap().saturating_sub(SHARES_FOR);
        assert!((32..=36).contains(&at_once), "{at_once} at once");
        assert!(last > ms(30) && last < ms(50), "the last after {last:?}");
    }

    #[test]
    fn permits_without_competition_are_granted_soon_however_long_the_calls() {
        let mut pacing = Pacing::default();
        pacing.asks(&"other", 1, SHARES_FOR);
        pacing.begins(&"other", PLACES, SHARES_FOR);
        pacing.ends(&"other", Duration::from_secs(60), SHARES_FOR);

        let begun = begun(&mut pacing, "greedy", 64);

        assert!(begun.last().unwrap().saturating_sub(SHARES_FOR) <= RAMP_MAX);
    }

    #[test]
    fn a_key_with_nothing_to_do_for_long_does_not_share() {
        let mut pacing = Pacing::default();
        pacing.asks(&"other", 1, Duration::ZERO);
        pacing.begins(&"other", PLACES, Duration::ZERO);
        pacing.ends(&"other", CALL, Duration::ZERO);

        let begun = begun(&mut pacing, "alone", 64);

        assert!(begun.iter().all(|at| *at == SHARES_FOR), "{begun:?}");
    }

    #[test]
    fn the_heavier_key_has_the_larger_share() {
        let mut pacing = Pacing::default();
        pacing.asks(&"light", 1, ms(1));
        pacing.asks(&"heavy", 3, ms(1));

        let mut free = |key, weight| {
            (0..PLACES)
                .take_while(|_| {
                    pacing.asks(&key, weight, ms(1));
                    let beyond = pacing.is_beyond(&key, PLACES);
                    pacing.begins(&key, PLACES, ms(1));
                    !beyond
                })
                .count()
        };

        assert_eq!((free("heavy", 3), free("light", 1)), (48, 16));
    }
}
