//! Thousands of random interleavings. The laws hold after each step, the verdict at each end, and
//! every pair of state and input occurs.

use std::{collections::BTreeMap, fmt::Write as _, io::Write as _, time::Instant};

use crate::testing::TestSize;

use super::{
    Rng, Seed,
    people::{self, Weather},
    world::{Coverage, INPUTS, STATES, World},
};

/// Interleavings in the gate; a tenth in a usual run, ten times as many in a long one.
const INTERLEAVINGS: u64 = 10_000;

/// How often each pair must occur, in a usual run and in a larger one.
const PAIR_MIN: [u64; 2] = [1, 20];

/// Pairs that cannot occur, each with the reason.
const IMPOSSIBLE: [(&str, &str, &str); 2] = [
    (
        "starting",
        "*",
        "the shell hands `Recovered` to an activation before any mail",
    ),
    (
        "*",
        "Recovered",
        "the shell hands it out once, when the fold is complete",
    ),
];

fn play(seed: u64, trace: bool) -> Coverage {
    let _seed = Seed(seed);
    let mut rng = Rng::new(seed ^ 0x5eed);
    let rules = people::rules(&mut rng);
    let mut world = World::new(seed, rules);
    world.trace = trace;
    let weather = Weather::of(seed);
    for _ in 0..15 + rng.below(45) {
        world.happen(weather).expect("nothing is cut here");
    }
    world.end();
    world.coverage
}

fn impossible(state: &str, input: &str) -> Option<&'static str> {
    let found = IMPOSSIBLE
        .iter()
        .find(|(s, i, _)| (*s == "*" || *s == state) && (*i == "*" || *i == input));
    found
        .filter(|_| !(state == "starting" && input == "Recovered"))
        .map(|(_, _, why)| *why)
}

fn table(coverage: &Coverage) -> String {
    let mut text = format!("{:16}", "");
    STATES.iter().for_each(|state| {
        let _ = write!(text, "{state:>11}");
    });
    for input in INPUTS {
        let _ = write!(text, "\n{input:16}");
        for state in STATES {
            let cell = coverage
                .get(&(state, input))
                .map_or("-".into(), u64::to_string);
            let _ = write!(text, "{cell:>11}");
        }
    }
    text
}

#[test]
fn random_interleavings_keep_every_law() {
    if let Some(seed) = std::env::var("CALLBOARD_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
    {
        play(seed, true);
        return;
    }
    let count = TestSize::pick(INTERLEAVINGS / 10, INTERLEAVINGS, INTERLEAVINGS * 10);
    let [usual, all] = PAIR_MIN;
    let pair_min = TestSize::pick(usual, all, all);
    let begun = Instant::now();
    let mut coverage = Coverage::new();

    for seed in 0..count {
        for (pair, met) in play(seed, false) {
            *coverage.entry(pair).or_default() += met;
        }
    }

    let steps: u64 = coverage.values().sum();
    let mut out = std::io::stderr();
    let _ = writeln!(
        out,
        "{count} interleavings, {steps} steps, {:?}; how often each state met each input:",
        begun.elapsed()
    );
    let _ = writeln!(out, "{}", table(&coverage));
    let _ = IMPOSSIBLE
        .iter()
        .try_for_each(|(state, input, why)| writeln!(out, "never {state} x {input}: {why}"));
    let mut missing: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for state in STATES {
        for input in INPUTS {
            let met = coverage.get(&(state, input)).copied().unwrap_or(0);
            match impossible(state, input) {
                Some(why) => assert_eq!(met, 0, "{state} met {input}, but {why}"),
                None if met < pair_min => drop(missing.insert((state, input), met)),
                None => {}
            }
        }
    }
    assert!(
        missing.is_empty(),
        "pairs met fewer than {pair_min} times: {missing:?}"
    );
}
