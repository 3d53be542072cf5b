//! The contract suites of clocks and sources of randomness.

use std::{collections::HashSet, sync::Arc};

use crate::{
    ports::{Clock, Entropy},
    time::Timestamp,
};

/// Checks a wall clock: it shows a time of this century, and two readings are close together.
pub fn clock(clock: &Arc<dyn Clock>) {
    let first = clock.now();
    let second = clock.now();

    assert!(
        first > Timestamp(946_684_800_000),
        "after the year 2000: {first}"
    );
    assert!(second.0.abs_diff(first.0) < 60_000, "{first} then {second}");
}

/// Checks a source of randomness: ids do not repeat, also between threads, and fractions lie in
/// `0.0..1.0`, on both sides of 0.5.
pub fn entropy(entropy: &Arc<dyn Entropy>) {
    let draw = |entropy: &Arc<dyn Entropy>| (0..1000).map(|_| entropy.bytes()).collect::<Vec<_>>();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let entropy = entropy.clone();
            std::thread::spawn(move || draw(&entropy))
        })
        .collect();
    let drawn: Vec<[u8; 16]> = threads
        .into_iter()
        .flat_map(|thread| thread.join().unwrap())
        .collect();
    assert_eq!(
        drawn.iter().collect::<HashSet<_>>().len(),
        drawn.len(),
        "ids repeat"
    );

    let fractions: Vec<f64> = (0..1000).map(|_| entropy.fraction()).collect();
    assert!(
        fractions
            .iter()
            .all(|fraction| (0.0..1.0).contains(fraction))
    );
    assert!(
        fractions.iter().any(|fraction| *fraction < 0.5)
            && fractions.iter().any(|fraction| *fraction > 0.5)
    );
}
