//! Random choices from a seed.

use crate::{ports::Entropy, scripted::splitmix64, testing::SeededEntropy};

/// A source of choices. Each part of the world has its own, so that a change in one part does not
/// shift the choices of the others.
pub(super) struct Dice(SeededEntropy);

impl Dice {
    pub(super) fn new(seed: u64, part: u64) -> Self {
        Self(SeededEntropy::new(
            splitmix64(seed) ^ splitmix64(part << 32),
        ))
    }

    pub(super) fn next(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0.bytes();
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// A number below `n`; 0 for `n` = 0.
    pub(super) fn below(&self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// A number in `from..=upto`.
    pub(super) fn between(&self, from: u64, upto: u64) -> u64 {
        from + self.below(upto - from + 1)
    }

    pub(super) fn percent(&self, p: u64) -> bool {
        self.below(100) < p
    }

    pub(super) fn pick<T: Copy>(&self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}
