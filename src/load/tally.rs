//! Counts and latencies of turns, and how evenly tenants were served. Pure: callers pass
//! timestamps.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use serde::Serialize;

use super::{
    LoadError,
    turn::{End, Seen},
};

/// Longest latency that is recorded exactly: an hour, in microseconds.
const LATENCY_MAX_US: u64 = 3_600_000_000;

/// A histogram of latencies in microseconds, with three significant digits.
#[derive(Debug, Clone)]
pub(super) struct Latencies(Histogram<u64>);

/// Quantiles of latencies, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Quantiles {
    pub(crate) count: u64,
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
}

impl Latencies {
    pub(super) fn new() -> Result<Self, LoadError> {
        Ok(Self(Histogram::new_with_bounds(1, LATENCY_MAX_US, 3)?))
    }

    pub(super) fn record(&mut self, latency: Duration) {
        self.0.saturating_record(
            u64::try_from(latency.as_micros())
                .unwrap_or(LATENCY_MAX_US)
                .clamp(1, LATENCY_MAX_US),
        );
    }

    fn ms(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1000.0
    }

    fn absorb(&mut self, other: &Self) {
        // Both histograms have the same bounds, so adding cannot fail.
        let _ = self.0.add(&other.0);
    }

    /// Returns the quantiles; `None` when there are no latencies.
    pub(super) fn quantiles(&self) -> Option<Quantiles> {
        (!self.0.is_empty()).then(|| Quantiles {
            count: self.0.len(),
            mean: self.0.mean().round() / 1000.0,
            p50: self.ms(0.5),
            p90: self.ms(0.9),
            p99: self.ms(0.99),
            p999: self.ms(0.999),
            max: self.0.max() as f64 / 1000.0,
        })
    }

    /// Returns the points of the percentile curve: quantile and milliseconds. Each further nine has
    /// as many points as the last, as long as there are enough turns to resolve it.
    pub(super) fn curve(&self) -> Vec<(f64, f64)> {
        const POINTS_A_NINE: u32 = 20;
        let nines = (self.0.len().max(1) as f64).log10().min(6.0);
        let steps = (nines * f64::from(POINTS_A_NINE)) as u32;
        (0..=steps)
            .map(|step| 1.0 - 10f64.powf(-f64::from(step) / f64::from(POINTS_A_NINE)))
            .map(|quantile| (quantile, self.ms(quantile)))
            .collect()
    }
}

/// Counts and latencies of a group of tenants.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    pub(super) offered: u64,
    pub(super) served: u64,
    pub(super) interrupted: u64,
    pub(super) failed: u64,
    pub(super) refused: u64,
    /// Turns that were accepted but not answered within the drain time.
    pub(super) unfinished: u64,
    pub(super) lost: u64,
    pub(super) mismatched: u64,
    pub(super) repeated: u64,
    pub(super) unmarked: u64,
    pub(super) errors: BTreeMap<String, u64>,
    /// Latencies of served turns, and the waiting times of unfinished ones.
    pub(super) latency: Latencies,
    pub(super) first_text: Latencies,
    pub(super) refusal: Latencies,
    pub(super) cancel: Latencies,
    /// Tokens served, by tenant.
    pub(super) tokens: Vec<u64>,
    /// Turns that succeeded in each second.
    pub(super) seconds: Vec<u64>,
    /// Turns that did not succeed in each second.
    pub(super) bad_seconds: Vec<u64>,
}

/// When a turn was due and when it ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) due: Instant,
    pub(super) over: Instant,
}

impl Tally {
    pub(super) fn new(tenants: usize) -> Result<Self, LoadError> {
        Ok(Self {
            offered: 0,
            served: 0,
            interrupted: 0,
            failed: 0,
            refused: 0,
            unfinished: 0,
            lost: 0,
            mismatched: 0,
            repeated: 0,
            unmarked: 0,
            errors: BTreeMap::new(),
            latency: Latencies::new()?,
            first_text: Latencies::new()?,
            refusal: Latencies::new()?,
            cancel: Latencies::new()?,
            tokens: vec![0; tenants],
            seconds: Vec::new(),
            bad_seconds: Vec::new(),
        })
    }

    /// Records a turn that was due after `from`, the end of the warm-up.
    pub(super) fn take(&mut self, tenant: usize, span: Span, from: Instant, seen: Seen) {
        let Span { due, over } = span;
        let latency = over.saturating_duration_since(due);
        self.offered += 1;
        self.mismatched += u64::from(seen.mismatched);
        self.unmarked += u64::from(seen.unmarked);
        self.repeated += seen.repeated;
        if let Some(tokens) = self.tokens.get_mut(tenant) {
            *tokens += seen.tokens;
        }
        if let Some(at) = seen.first_text {
            self.first_text.record(at.saturating_duration_since(due));
        }
        if let Some(within) = seen.cancelled_in {
            self.cancel.record(within);
        }
        let well = matches!(seen.end, End::Well | End::Interrupted);
        let code = match seen.end {
            End::Well => {
                self.served += 1;
                self.latency.record(latency);
                None
            }
            End::Interrupted => {
                self.interrupted += 1;
                None
            }
            End::Failed(code) => {
                self.failed += 1;
                Some(code)
            }
            End::Refused(code) => {
                self.refused += 1;
                self.refusal.record(latency);
                Some(code)
            }
            End::Lost => {
                self.lost += 1;
                Some("lost".to_owned())
            }
        };
        if let Some(code) = code {
            *self.errors.entry(code).or_default() += 1;
        }
        let second =
            usize::try_from(over.saturating_duration_since(from).as_secs()).unwrap_or(usize::MAX);
        count(
            if well {
                &mut self.seconds
            } else {
                &mut self.bad_seconds
            },
            second,
            1,
        );
    }

    /// Adds a tally that began `later` than this one.
    pub(super) fn absorb(&mut self, other: &Self, later: Duration) {
        self.offered += other.offered;
        self.served += other.served;
        self.interrupted += other.interrupted;
        self.failed += other.failed;
        self.refused += other.refused;
        self.unfinished += other.unfinished;
        self.lost += other.lost;
        self.mismatched += other.mismatched;
        self.repeated += other.repeated;
        self.unmarked += other.unmarked;
        for (code, n) in &other.errors {
            *self.errors.entry(code.clone()).or_default() += n;
        }
        self.latency.absorb(&other.latency);
        self.first_text.absorb(&other.first_text);
        self.refusal.absorb(&other.refusal);
        self.cancel.absorb(&other.cancel);
        self.tokens
            .iter_mut()
            .zip(&other.tokens)
            .for_each(|(sum, more)| *sum += more);
        let later = usize::try_from(later.as_secs()).unwrap_or(usize::MAX);
        for (mine, theirs) in [
            (&mut self.seconds, &other.seconds),
            (&mut self.bad_seconds, &other.bad_seconds),
        ] {
            theirs
                .iter()
                .enumerate()
                .for_each(|(second, n)| count(mine, later.saturating_add(second), *n));
        }
    }

    /// Records a turn without an answer. Its waiting time is a lower bound of its latency.
    pub(super) fn take_unfinished(&mut self, span: Span) {
        self.offered += 1;
        self.unfinished += 1;
        self.latency
            .record(span.over.saturating_duration_since(span.due));
        *self.errors.entry("unfinished".to_owned()).or_default() += 1;
    }

    /// Records a turn that was due but not sent, because too many were open.
    pub(super) fn take_unsent(&mut self) {
        self.offered += 1;
        self.refused += 1;
        *self.errors.entry("generator_full".to_owned()).or_default() += 1;
    }
}

/// Longest run whose seconds are recorded.
const SECONDS_MAX: usize = 24 * 3600;

fn count(seconds: &mut Vec<u64>, second: usize, turns: u64) {
    let second = second.min(SECONDS_MAX);
    if seconds.len() <= second {
        seconds.resize(second + 1, 0);
    }
    if let Some(count) = seconds.get_mut(second) {
        *count += turns;
    }
}

/// Jain's fairness index: 1 when all shares are equal, 1/n when one has everything.
pub(super) fn jain(shares: &[u64]) -> Option<f64> {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_one_for_equals_and_a_share_for_one_that_has_all() {
        assert_eq!(jain(&[5, 5, 5, 5]), Some(1.0));
        assert_eq!(jain(&[9, 0, 0]), Some(1.0 / 3.0));
        assert_eq!(jain(&[0, 0]), None);
        assert_eq!(jain(&[]), None);
        assert!((jain(&[1, 2, 3]).unwrap() - 36.0 / 42.0).abs() < 1e-12);
    }

    #[test]
    fn latencies_keep_three_digits_and_their_ends() {
        let mut latencies = Latencies::new().unwrap();
        for ms in 1..=1000 {
            latencies.record(Duration::from_millis(ms));
        }
        latencies.record(Duration::from_secs(9999));

        let quantiles = latencies.quantiles().unwrap();

        assert_eq!(quantiles.count, 1001);
        for (got, expected) in [
            (quantiles.p50, 501.0),
            (quantiles.p90, 901.0),
            (quantiles.p99, 991.0),
        ] {
            assert!((got - expected).abs() / expected < 0.002, "{quantiles:?}");
        }
        assert!(quantiles.max >= 3_600_000.0, "{quantiles:?}");
        assert_eq!(Latencies::new().unwrap().quantiles(), None);
    }

    #[test]
    fn the_curve_rises_and_ends_where_turns_can_be_distinguished() {
        let mut latencies = Latencies::new().unwrap();
        (1..=1000).for_each(|ms| latencies.record(Duration::from_millis(ms)));

        let curve = latencies.curve();

        assert!(
            curve
                .windows(2)
                .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1),
            "{curve:?}"
        );
        assert!((curve.last().unwrap().0 - 0.999).abs() < 1e-9);
    }

    #[test]
    fn latency_counts_from_the_moment_a_turn_was_due() {
        let mut tally = Tally::new(1).unwrap();
        let due = Instant::now();
        let span = Span {
            due,
            over: due + Duration::from_secs(3),
        };

        tally.take(0, span, due, Seen::only(End::Well));
        tally.take_unfinished(Span {
            due,
            over: due + Duration::from_secs(9),
        });

        let quantiles = tally.latency.quantiles().unwrap();
        assert!(
            quantiles.p50 >= 2_990.0 && quantiles.max >= 8_990.0,
            "{quantiles:?}"
        );
        assert_eq!((tally.offered, tally.served, tally.unfinished), (2, 1, 1));
        assert_eq!(tally.seconds, [0, 0, 0, 1]);
    }

    #[test]
    fn each_end_is_counted_under_its_code() {
        let mut tally = Tally::new(2).unwrap();
        let now = Instant::now();
        let span = Span {
            due: now,
            over: now,
        };
        let ends = [
            End::Refused("overloaded".into()),
            End::Failed("provider_timeout".into()),
            End::Lost,
            End::Refused("overloaded".into()),
        ];
        for end in ends {
            tally.take(0, span, now, Seen::only(end));
        }
        tally.take(
            1,
            span,
            now,
            Seen {
                tokens: 7,
                ..Seen::only(End::Interrupted)
            },
        );
        tally.take_unsent();

        let errors: Vec<_> = tally
            .errors
            .iter()
            .map(|(code, n)| (code.as_str(), *n))
            .collect();
        assert_eq!(
            errors,
            [
                ("generator_full", 1),
                ("lost", 1),
                ("overloaded", 2),
                ("provider_timeout", 1)
            ]
        );
        assert_eq!(
            (
                tally.offered,
                tally.refused,
                tally.failed,
                tally.lost,
                tally.interrupted
            ),
            (6, 3, 1, 1, 1)
        );
        assert_eq!(tally.tokens, [0, 7]);
    }
}
