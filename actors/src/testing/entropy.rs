//! Randomness that a seed reproduces.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{ports::Entropy, scripted::splitmix64};

/// Random bytes from a seed (splitmix64). The same seed and the same order of calls give the same
/// bytes.
#[derive(Debug)]
pub struct SeededEntropy(AtomicU64);

impl SeededEntropy {
    /// A source with this seed.
    pub fn new(seed: u64) -> Self {
        // The seed is mixed, so that neighboring seeds do not give overlapping sequences.
        Self(AtomicU64::new(splitmix64(seed)))
    }
}

impl Entropy for SeededEntropy {
    fn bytes(&self) -> [u8; 16] {
        let at = self.0.fetch_add(2, Ordering::Relaxed);
        let high = splitmix64(at);
        let low = splitmix64(at.wrapping_add(1));
        ((u128::from(high) << 64) | u128::from(low)).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_seed_replays_and_another_differs() {
        let draw = |seed| {
            let entropy = SeededEntropy::new(seed);
            (0..1000).map(|_| entropy.bytes()).collect::<Vec<_>>()
        };

        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert_eq!(
            draw(7)
                .into_iter()
                .chain(draw(8))
                .collect::<HashSet<_>>()
                .len(),
            2000
        );
    }
}
