//! The system's time and chance, for hosts. Tests use the manual and the seeded ones of the kernel.

use std::{
    cell::RefCell,
    hash::{BuildHasher, RandomState},
    time::{SystemTime, UNIX_EPOCH},
};

use callboard_actors::{
    ports::{Clock, Entropy},
    time::Timestamp,
};

/// Wall time of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

/// Random bytes of the operating system, fetched 4 KiB at a time for each thread: an id costs no system call.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemEntropy;

/// Bytes of a draw.
const DRAW: usize = 16;

/// Bytes a thread fetches at once: 256 draws a system call; more would only be kept in memory longer.
const POOL_BYTES: usize = 4096;

struct Pool {
    bytes: Box<[u8]>,
    used: usize,
}

thread_local! {
    static POOL: RefCell<Pool> = RefCell::new(Pool { bytes: Box::default(), used: 0 });
}

impl Entropy for SystemEntropy {
    fn bytes(&self) -> [u8; DRAW] {
        POOL.try_with(|pool| pool.try_borrow_mut().ok().and_then(|mut pool| pool.draw()))
            .ok()
            .flatten()
            .unwrap_or_else(unpooled)
    }
}

impl Pool {
    fn draw(&mut self) -> Option<[u8; DRAW]> {
        if self.used >= self.bytes.len() {
            let mut bytes = vec![0; POOL_BYTES].into_boxed_slice();
            getrandom::fill(&mut bytes).ok()?;
            (self.bytes, self.used) = (bytes, 0);
        }
        let drawn = self.bytes.get_mut(self.used..self.used + DRAW)?;
        let bytes = <[u8; DRAW]>::try_from(&*drawn).ok()?;
        // What was handed out is not kept: a later reader of this memory learns no id.
        drawn.fill(0);
        self.used += DRAW;
        Some(bytes)
    }
}

/// A draw of its own, for a thread that is ending and for a system that refuses.
fn unpooled() -> [u8; DRAW] {
    let mut bytes = [0; DRAW];
    if getrandom::fill(&mut bytes).is_err() {
        // The standard library seeds its hash maps with its own random keys and changes them at each use: unique, if not secret.
        let hash = |salt: u8| {
            RandomState::new().hash_one((salt, SystemClock.now(), std::thread::current().id()))
        };
        bytes = ((u128::from(hash(0)) << 64) | u128::from(hash(1))).to_le_bytes();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn draws_differ_across_pools_and_threads() {
        let draw = || (0..600).map(|_| SystemEntropy.bytes()).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(draw)).collect();

        let mut drawn: Vec<_> = threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect();
        drawn.extend((0..4).map(|_| unpooled()));

        assert_eq!(drawn.iter().collect::<HashSet<_>>().len(), 2404);
    }

    #[test]
    fn the_clock_shows_this_century() {
        assert!(SystemClock.now() > Timestamp(1_700_000_000_000));
    }
}
