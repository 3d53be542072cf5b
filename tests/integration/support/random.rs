//! Seeded randomness: a printed seed replays a failure.

/// A small random number generator (splitmix64).
pub struct SplitMix(pub u64);

impl SplitMix {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).unwrap()
    }
}

/// The seed of a property test: `CALLBOARD_SEED`, or else the time. Printed, so that a failing test
/// shows it.
pub fn seed(name: &str) -> u64 {
    let now = || {
        u64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() & u128::from(u64::MAX))
            .unwrap()
    };
    let seed = std::env::var("CALLBOARD_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(now);
    println!("{name}: CALLBOARD_SEED={seed}");
    seed
}

/// Splits bytes into pieces of 1 to 200.
pub fn random_splits<'a>(bytes: &'a [u8], random: &mut SplitMix) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let most = if random.below(4) == 0 { 3 } else { 200 };
        let (piece, after) = rest.split_at((1 + random.below(most)).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces
}
