//! Draws thousands of runs whose truth is known, and counts how often the intervals hold it.
//!
//! `CALLBOARD_SEED=n` gives other draws, `CALLBOARD_LONG=1` ten times as many.

use super::*;

/// The suite that the statistics are made for: 13 tasks, 5 trials of each.
const TASKS: usize = 13;
const TRIALS: u32 = 5;

/// SplitMix64.
struct Chance(u64);

impl Chance {
    fn seeded(of: u64) -> Self {
        let seed = std::env::var("CALLBOARD_SEED").ok();
        Self(seed.and_then(|seed| seed.parse().ok()).unwrap_or(20) ^ (of << 32))
    }

    #[allow(clippy::cast_precision_loss)]
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn passes(&mut self, rate: f64, trials: u32) -> u32 {
        (0..trials).map(|_| u32::from(self.unit() < rate)).sum()
    }

    /// A draw of the beta distribution with whole parameters: the a-th smallest of a + b - 1 draws.
    fn beta(&mut self, a: usize, b: usize) -> f64 {
        let mut draws: Vec<f64> = (0..a + b - 1).map(|_| self.unit()).collect();
        draws.sort_by(f64::total_cmp);
        draws[a - 1]
    }
}

/// Numbers of draws: always, and in the long form.
fn draws(short: u32) -> u32 {
    callboard_actors::testing::TestSize::pick(short, short, short * 10)
}

/// Difficulties of suites: parameters of the beta distribution that tasks are drawn from.
const SUITES: [(usize, usize); 6] = [(1, 1), (2, 2), (5, 2), (2, 6), (8, 2), (1, 3)];

/// The probability of `passed` of `trials`, each with the probability `rate`.
fn binomial(passed: u32, trials: u32, rate: f64) -> f64 {
    let choose: f64 = (0..passed)
        .map(|k| (f64::from(trials - k) / f64::from(passed - k)).ln())
        .sum();
    let failed = f64::from(trials - passed);
    (choose + f64::from(passed) * rate.ln() + failed * (1.0 - rate).ln()).exp()
}

#[test]
fn wilson_intervals_hold_the_truth_in_93_to_97_percent_of_runs() {
    let trials = TRIALS * u32::try_from(TASKS).unwrap();
    for percent in 10..=90 {
        let rate = f64::from(percent) / 100.0;

        // Exact: the sum over all outcomes whose interval holds the rate.
        let share: f64 = (0..=trials)
            .filter(|passed| wilson(*passed, trials).holds(rate))
            .map(|passed| binomial(passed, trials, rate))
            .sum();

        assert!((0.93..=0.97).contains(&share), "rate {rate}: {share}");
    }
}

#[test]
fn intervals_of_tasks_hold_the_truth_in_93_to_97_percent_of_runs() {
    let mut chance = Chance::seeded(1);
    for (a, b) in SUITES {
        let truth = a as f64 / (a + b) as f64;
        let draws = draws(3_000);
        let (mut held, mut naive) = (0u32, 0u32);

        for _ in 0..draws {
            let passed: Vec<u32> = (0..TASKS)
                .map(|_| {
                    let rate = chance.beta(a, b);
                    chance.passes(rate, TRIALS)
                })
                .collect();
            let means: Vec<f64> = passed
                .iter()
                .map(|passed| f64::from(*passed) / f64::from(TRIALS))
                .collect();
            let trials = TASKS * TRIALS as usize;
            held += u32::from(clustered(&means, trials).unwrap().holds(truth));
            let all = passed.iter().sum();
            naive += u32::from(wilson(all, u32::try_from(trials).unwrap()).holds(truth));
        }

        let share = f64::from(held) / f64::from(draws);
        assert!((0.93..=0.97).contains(&share), "beta({a}, {b}): {share}");
        let naive = f64::from(naive) / f64::from(draws);
        assert!(
            naive < share,
            "trials of a task resemble each other: {naive}"
        );
    }
}

#[test]
fn runs_that_do_not_differ_are_found_to_differ_in_3_to_7_percent() {
    let mut chance = Chance::seeded(2);
    for (a, b) in SUITES {
        let draws = draws(2_000);

        let found = (0..draws)
            .filter(|_| {
                let tasks: Vec<Vec<(f64, f64)>> = (0..TASKS)
                    .map(|_| {
                        let rate = chance.beta(a, b);
                        let mut one = || f64::from(chance.passes(rate, 1));
                        (0..TRIALS).map(|_| (one(), one())).collect()
                    })
                    .collect();
                paired(&tasks).is_significant()
            })
            .count();

        let share = found as f64 / f64::from(draws);
        assert!((0.03..=0.07).contains(&share), "beta({a}, {b}): {share}");
    }
}

#[test]
fn a_difference_of_the_smallest_visible_size_is_found_in_about_80_percent() {
    let mut chance = Chance::seeded(3);
    let mut pair = |gain: f64| -> Vec<Vec<(f64, f64)>> {
        (0..TASKS)
            .map(|_| {
                let rate = 0.35 + 0.3 * chance.unit();
                let mut one = |rate| f64::from(chance.passes(rate, 1));
                (0..TRIALS)
                    .map(|_| (one(rate - gain / 2.0), one(rate + gain / 2.0)))
                    .collect()
            })
            .collect()
    };
    let sizes: Vec<f64> = (0..draws(400))
        .filter_map(|_| paired(&pair(0.0)).smallest)
        .collect();
    let smallest = mean(&sizes);

    let draws = draws(1_000);
    let found = (0..draws)
        .filter(|_| paired(&pair(smallest)).is_significant())
        .count();

    let share = found as f64 / f64::from(draws);
    assert!((0.72..=0.88).contains(&share), "{smallest}: {share}");
}

#[test]
fn intervals_are_ordered_within_0_to_1_and_hold_their_rate() {
    let mut chance = Chance::seeded(4);
    for _ in 0..draws(2_000) {
        let tasks: Vec<f64> = (0..2 + chance.passes(0.5, 12))
            .map(|_| f64::from(chance.passes(0.5, 4)) / 4.0)
            .collect();

        let interval = clustered(&tasks, tasks.len() * 4).unwrap();

        assert!(0.0 <= interval.low && interval.low <= interval.high && interval.high <= 1.0);
        assert!(interval.holds(mean(&tasks)), "{interval:?} {tasks:?}");
        let found = paired(&[tasks.iter().map(|score| (*score, 1.0 - score)).collect()]);
        assert_eq!(found.pairs, tasks.len());
    }
}
