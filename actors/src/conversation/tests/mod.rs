//! Tests of the pure round in a simulated world without a runtime: an in-memory store with faults,
//! a minimal shell, random models, tools, users and crashes, and rival activations of one
//! conversation. A seed determines everything.
//!
//! `CALLBOARD_SEED=n` replays one interleaving and prints its steps. A usual run tries a share of what
//! the gate tries (`CALLBOARD_GATE=1`); `CALLBOARD_LONG=1` runs ten times as many as the gate.

mod broken;
mod budget_laws;
mod call_laws;
mod cast;
mod client_laws;
mod crashes;
mod entry_laws;
mod interleavings;
mod laws;
mod people;
mod skill_laws;
mod rounds;
mod store;
mod verdict;
mod world;

/// The random number generator splitmix64.
#[derive(Debug, Clone)]
struct Rng(u64);

impl Rng {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x9e37_79b9_7f4a_7c15)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn percent(&mut self, p: usize) -> bool {
        self.below(100) < p
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    fn bytes(&mut self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.next().to_le_bytes());
        bytes[8..].copy_from_slice(&self.next().to_le_bytes());
        bytes
    }
}

/// Prints the seed when a test that holds it fails.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "failed with seed {0}; replay it with CALLBOARD_SEED={0}",
                self.0
            );
        }
    }
}
