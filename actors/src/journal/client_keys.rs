//! Client keys and injected ids of the last 24 hours: the newest as they came, the older ones as
//! digests. In a snapshot the digests are one text, 68 characters a key.
//!
//! Pure.

use std::{collections::VecDeque, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use sha2::{Digest as _, Sha256};

use crate::{ids::RoundId, limits::CLIENT_KEY_MS, time::Timestamp};

/// Bytes of one key in a snapshot.
const STORED_BYTES: usize = 16 + 8 + 1 + 16 + 8;

/// A client key or injected id that the conversation has seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownKey {
    /// The key or id.
    pub key: String,
    /// Digest of the body that came with the key.
    pub digest: u64,
    /// The round of the prompt; `None` for injected messages.
    pub round_id: Option<RoundId>,
    /// When the key was recorded.
    pub at: Timestamp,
}

/// The digests, oldest first. A clone shares them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OlderKeys(Arc<VecDeque<OlderKey>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OlderKey {
    key: [u8; 16],
    body: u64,
    /// `None` for injected ids.
    round_id: Option<RoundId>,
    at: Timestamp,
}

fn digest(key: &str) -> [u8; 16] {
    let whole = Sha256::digest(key.as_bytes());
    whole.first_chunk().copied().unwrap_or_default()
}

impl OlderKeys {
    /// Returns the number of keys.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no key.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a key and drops the oldest ones beyond `max`, and those that are older than a day at
    /// `now`.
    pub(super) fn push(&mut self, known: &KnownKey, max: usize, now: Timestamp) {
        let keys = Arc::make_mut(&mut self.0);
        keys.push_back(OlderKey {
            key: digest(&known.key),
            body: known.digest,
            round_id: known.round_id,
            at: known.at,
        });
        while keys.len() > max
            || keys
                .front()
                .is_some_and(|first| now.ms_since(first.at) > CLIENT_KEY_MS)
        {
            keys.pop_front();
        }
    }

    /// Looks up a client key. Returns the digest of its body, and its round.
    pub(super) fn prompt(&self, key: &str) -> Option<(u64, RoundId)> {
        if self.is_empty() {
            return None;
        }
        let key = digest(key);
        let mut found = self.0.iter().rev().filter(|older| older.key == key);
        found.find_map(|older| Some((older.body, older.round_id?)))
    }

    /// Whether a message with this id was injected.
    pub(super) fn knows_injected(&self, id: &str) -> bool {
        if self.is_empty() {
            return false;
        }
        let key = digest(id);
        let mut keys = self.0.iter();
        keys.any(|older| older.key == key && older.round_id.is_none())
    }
}

impl Serialize for OlderKeys {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::with_capacity(self.len() * STORED_BYTES);
        for older in self.0.iter() {
            bytes.extend_from_slice(&older.key);
            bytes.extend_from_slice(&older.body.to_le_bytes());
            bytes.push(u8::from(older.round_id.is_some()));
            bytes.extend_from_slice(&older.round_id.map_or([0; 16], RoundId::to_bytes));
            bytes.extend_from_slice(&older.at.0.to_le_bytes());
        }
        serializer.serialize_str(&STANDARD.encode(bytes))
    }
}

impl<'de> Deserialize<'de> for OlderKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = STANDARD.decode(text).map_err(D::Error::custom)?;
        let (keys, []) = bytes.as_chunks::<STORED_BYTES>() else {
            return Err(D::Error::custom("the digests of client keys are cut short"));
        };
        Ok(Self(Arc::new(keys.iter().filter_map(read).collect())))
    }
}

fn read(stored: &[u8; STORED_BYTES]) -> Option<OlderKey> {
    let (key, rest) = stored.split_first_chunk::<16>()?;
    let (body, rest) = rest.split_first_chunk::<8>()?;
    let ([has_round], rest) = rest.split_first_chunk::<1>()?;
    let (round, rest) = rest.split_first_chunk::<16>()?;
    let (at, _) = rest.split_first_chunk::<8>()?;
    Some(OlderKey {
        key: *key,
        body: u64::from_le_bytes(*body),
        round_id: (*has_round == 1).then(|| RoundId::from_bytes(*round)),
        at: Timestamp(u64::from_le_bytes(*at)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(n: u64, at: u64) -> KnownKey {
        KnownKey {
            key: format!("k{n}"),
            digest: n,
            round_id: n
                .is_multiple_of(2)
                .then(|| RoundId::from_bytes(u128::from(n).to_le_bytes())),
            at: Timestamp(at),
        }
    }

    #[test]
    fn keys_are_found_by_their_digests_and_survive_a_snapshot() {
        let mut keys = OlderKeys::default();
        (0..100).for_each(|n| keys.push(&known(n, n), 90, Timestamp(n)));

        let text = serde_json::to_string(&keys).unwrap();
        let read: OlderKeys = serde_json::from_str(&text).unwrap();

        assert_eq!(read, keys);
        assert_eq!(
            (keys.len(), text.len()),
            (90, 2 + 90_usize.div_ceil(3) * 3 * 49 / 3 * 4)
        );
        assert_eq!(
            read.prompt("k98"),
            Some((98, known(98, 0).round_id.unwrap()))
        );
        assert_eq!(
            (read.prompt("k8"), read.prompt("k99"), read.prompt("x")),
            (None, None, None)
        );
        assert!(read.knows_injected("k99") && !read.knows_injected("k98"));
        assert!(serde_json::from_str::<OlderKeys>("\"AAAA\"").is_err());
    }

    #[test]
    fn keys_are_forgotten_after_a_day() {
        let mut keys = OlderKeys::default();
        keys.push(&known(0, 0), 9, Timestamp(0));
        keys.push(&known(2, 1), 9, Timestamp(CLIENT_KEY_MS));
        assert_eq!(keys.len(), 2);

        keys.push(&known(4, 2), 9, Timestamp(CLIENT_KEY_MS + 1));

        assert_eq!((keys.len(), keys.prompt("k0")), (2, None));
    }

    /// Every order of five pushes and passages of time, with room for two keys.
    #[test]
    fn in_every_order_a_key_is_known_for_a_day_and_no_other_is() {
        const MAX: usize = 2;
        for number in 0..8_u64.pow(5) {
            let (mut keys, mut now) = (OlderKeys::default(), 10 * CLIENT_KEY_MS);
            let mut pushed: Vec<KnownKey> = Vec::new();
            for place in 0..5 {
                match number / 8_u64.pow(place) % 8 {
                    6 => now += CLIENT_KEY_MS / 2,
                    7 => now -= CLIENT_KEY_MS / 4, // The clock was set back.
                    n => {
                        let mut key = known(n, now);
                        key.key = format!("k{}", n / 2); // The same key with two bodies.
                        keys.push(&key, MAX, Timestamp(now));
                        pushed.push(key);
                    }
                }
                let recent: Vec<&KnownKey> = pushed.iter().rev().take(MAX).collect();
                for n in 0..3 {
                    let key = format!("k{n}");
                    let young = |known: &&&KnownKey| {
                        known.key == key && Timestamp(now).ms_since(known.at) <= CLIENT_KEY_MS
                    };
                    let mut of_prompts = recent.iter().filter(|known| known.round_id.is_some());
                    let found = keys.prompt(&key);
                    if let Some(known) = of_prompts.find(young) {
                        let expected = known.round_id.map(|round| (known.digest, round));
                        assert_eq!(found, expected, "{pushed:?}");
                    }
                    let is_known = |(body, round): (u64, RoundId)| {
                        recent
                            .iter()
                            .any(|k| (k.digest, k.round_id, &k.key) == (body, Some(round), &key))
                    };
                    assert!(found.is_none_or(is_known), "{found:?} of {pushed:?}");
                }
                assert!(keys.len() <= MAX);
            }
        }
    }
}
