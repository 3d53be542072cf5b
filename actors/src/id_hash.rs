//! A hasher for maps that are keyed by ids and read in every round. Hashing takes a few
//! multiplications. Each map has a random seed, so a client that chooses ids cannot make them
//! collide.
//!
//! Pure.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Builds the hashers of one map.
#[derive(Debug, Clone)]
pub(crate) struct IdHash {
    seed: u64,
}

impl Default for IdHash {
    fn default() -> Self {
        // The standard library's random keys, which differ from map to map.
        Self {
            seed: RandomState::new().hash_one(0u8) | 1,
        }
    }
}

impl BuildHasher for IdHash {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher {
            hash: self.seed,
            key: self.seed.rotate_left(32) ^ 0xa076_1d64_78bd_642f,
        }
    }
}

/// The state of one hash computation.
#[derive(Debug)]
pub(crate) struct IdHasher {
    hash: u64,
    key: u64,
}

impl IdHasher {
    /// Mixes in a word. XOR of both halves of the product lets every input bit reach every bit of
    /// the hash.
    fn mix(&mut self, word: u64) {
        let product = u128::from(self.hash ^ word).wrapping_mul(u128::from(self.key));
        self.hash = (product as u64) ^ ((product >> 64) as u64) ^ self.key.rotate_right(17);
        self.key = self.key.wrapping_add(0x9e37_79b9_7f4a_7c15) | 1;
    }
}

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            self.mix(word.try_into().map_or(0, u64::from_le_bytes));
        }
        let rest = words
            .remainder()
            .iter()
            .fold(1, |sum, byte| (sum << 8) | u64::from(*byte));
        self.mix(rest ^ (bytes.len() as u64) << 56);
    }

    fn write_u8(&mut self, byte: u8) {
        self.mix(byte.into()); // The terminator of a text.
    }

    fn finish(&self) -> u64 {
        let product = u128::from(self.hash).wrapping_mul(u128::from(self.key));
        (product as u64) ^ ((product >> 64) as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::ids::{ConversationId, Scope, TenantId};

    #[test]
    fn ids_that_differ_in_little_fall_into_all_shards_and_do_not_collide() {
        let hash = IdHash::default();
        let mut seen = HashSet::new();
        let mut shards = [0u32; 64];

        for tenant in 0..100 {
            for conversation in 0..1000 {
                let scope = Scope::new(
                    TenantId::new(format!("t-{tenant}")).unwrap(),
                    ConversationId::new(format!("conversation-{conversation}")).unwrap(),
                );
                let hashed = hash.hash_one(&scope);
                seen.insert(hashed);
                shards[(hashed >> 51) as usize % 64] += 1; // As dashmap chooses them.
            }
        }

        assert_eq!(seen.len(), 100_000);
        assert!(
            shards.iter().all(|count| (1300..1850).contains(count)),
            "{shards:?}"
        );
    }

    #[test]
    fn maps_do_not_hash_alike() {
        let scope = TenantId::new("a").unwrap();

        let hashes: HashSet<u64> = (0..8).map(|_| IdHash::default().hash_one(&scope)).collect();

        assert_eq!(hashes.len(), 8);
    }

    #[test]
    fn where_one_id_ends_and_the_next_begins_is_part_of_the_hash() {
        let hash = IdHash::default();
        let scope = |tenant: &str, conversation: &str| {
            Scope::new(
                TenantId::new(tenant).unwrap(),
                ConversationId::new(conversation).unwrap(),
            )
        };

        assert_ne!(
            hash.hash_one(scope("ab", "c")),
            hash.hash_one(scope("a", "bc"))
        );
    }
}
