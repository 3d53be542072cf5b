//! API keys of tenants and of the operator. The host keeps only their hashes; a new key is shown
//! once.

use std::{collections::HashMap, fmt, str::FromStr, sync::Arc};

use callboard_actors::{ids::TenantId, ports::Entropy as _};
use parking_lot::RwLock;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::sync::watch;

use crate::clock::SystemEntropy;

/// Prefix of every key that [`new_key`] generates, so that scanners for leaked secrets recognize
/// it.
const PREFIX: &str = "cb_";

/// Longest key that is hashed; a longer one cannot be a key of this host.
const KEY_BYTES_MAX: usize = 512;

/// The SHA-256 of a key, written as 64 hex digits. `Debug` shows the first eight.
///
/// A key from [`new_key`] has 256 random bits, so brute force is infeasible and a slow password
/// hash would add nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash([u8; 32]);

/// Error of [`KeyHash`]'s `FromStr`: the text is not 64 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the hash of a key is 64 hex digits, as `callboard keys new` prints it")]
pub struct NotAKeyHash;

impl KeyHash {
    /// Hashes a key.
    pub fn from_key(key: &str) -> Self {
        Self(Sha256::digest(key.as_bytes()).into())
    }

    /// Compares in constant time.
    fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(")?;
        self.0
            .iter()
            .take(4)
            .try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("…)")
    }
}

impl FromStr for KeyHash {
    type Err = NotAKeyHash;

    fn from_str(text: &str) -> Result<Self, NotAKeyHash> {
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(NotAKeyHash);
        }
        let mut hash = [0; 32];
        for (to, pair) in hash.iter_mut().zip(text.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| NotAKeyHash)?;
            *to = u8::from_str_radix(pair, 16).map_err(|_| NotAKeyHash)?;
        }
        Ok(Self(hash))
    }
}

/// Generates a key of 256 random bits: `cb_` and 64 hex digits. Show it once, keep its [`KeyHash`].
pub fn new_key() -> String {
    let entropy = SystemEntropy;
    let bytes = entropy.bytes().into_iter().chain(entropy.bytes());
    bytes.fold(PREFIX.to_owned(), |key, byte| format!("{key}{byte:02x}"))
}

/// Maps keys to tenants. Clones share one table; a change applies from the next request on.
///
/// Keys are looked up by hash. The duration of a lookup depends on the hash of the key that the
/// caller sent, which the caller can compute anyway; exploiting it would need a preimage of a
/// chosen hash. The hash that the lookup finds is compared in constant time nevertheless.
#[derive(Clone, Default)]
pub struct Keys(Arc<Table>);

#[derive(Default)]
struct Table {
    known: RwLock<Known>,
    /// Wakes those whose answers end with their key.
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct Known {
    tenants: HashMap<KeyHash, TenantId>,
    admin: Option<KeyHash>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", self.read(|known| known.tenants.len()))
    }
}

impl Keys {
    /// An empty table: every request that needs a key is refused with 401.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a key of a tenant. A tenant may have several keys; a key that belonged to another
    /// tenant moves to this one.
    pub fn put(&self, tenant: TenantId, hash: KeyHash) {
        self.write(|known| drop(known.tenants.insert(hash, tenant)));
    }

    /// Removes a key; `false` when it was not registered.
    pub fn remove(&self, hash: &KeyHash) -> bool {
        self.write(|known| known.tenants.remove(hash).is_some())
    }

    /// Removes all keys of a tenant and returns their number.
    pub fn remove_tenant(&self, tenant: &TenantId) -> usize {
        self.write(|known| {
            let before = known.tenants.len();
            known.tenants.retain(|_, owner| owner != tenant);
            before - known.tenants.len()
        })
    }

    /// Replaces the keys of all tenants atomically: no request sees a half-finished reload.
    pub fn replace(&self, keys: impl IntoIterator<Item = (TenantId, KeyHash)>) {
        let tenants = keys
            .into_iter()
            .map(|(tenant, hash)| (hash, tenant))
            .collect();
        self.write(|known| known.tenants = tenants);
    }

    /// Sets the operator's key; with `None` no key is accepted on the operator's routes.
    pub fn set_admin(&self, hash: Option<KeyHash>) {
        self.write(|known| known.admin = hash);
    }

    /// The tenant that a key belongs to; `None` for an unknown key.
    pub fn tenant_of(&self, key: &str) -> Option<TenantId> {
        let hash = hash_of(key)?;
        self.read(|known| {
            known
                .tenants
                .get_key_value(&hash)
                .filter(|(found, _)| found.is(&hash))
                .map(|(_, tenant)| tenant.clone())
        })
    }

    /// Whether a key with this hash belongs to the tenant.
    pub(super) fn opens(&self, hash: &KeyHash, tenant: &TenantId) -> bool {
        self.read(|known| known.tenants.get(hash) == Some(tenant))
    }

    /// Signals every change of the table.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.0.changed.subscribe()
    }

    /// Whether this is the operator's key.
    pub fn is_admin(&self, key: &str) -> bool {
        hash_of(key).is_some_and(|hash| self.is_admin_hash(&hash))
    }

    /// As [`Keys::is_admin`], of a key whose hash is kept.
    pub(super) fn is_admin_hash(&self, hash: &KeyHash) -> bool {
        self.read(|known| known.admin.is_some_and(|admin| admin.is(hash)))
    }

    fn read<T>(&self, look: impl FnOnce(&Known) -> T) -> T {
        look(&self.0.known.read())
    }

    fn write<T>(&self, change: impl FnOnce(&mut Known) -> T) -> T {
        let changed = change(&mut self.0.known.write());
        self.0.changed.send_replace(());
        changed
    }
}

fn hash_of(key: &str) -> Option<KeyHash> {
    (!key.is_empty() && key.len() <= KEY_BYTES_MAX).then(|| KeyHash::from_key(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(id: &str) -> TenantId {
        TenantId::new(id).unwrap()
    }

    #[test]
    fn a_hash_is_parsed_from_its_printed_form() {
        let hash = KeyHash::from_key("cb_not_a_real_key");

        assert_eq!(hash.to_string().parse(), Ok(hash));
        assert_eq!(
            KeyHash::from_key("abc").to_string(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        for bad in [
            "",
            "ba78",
            &"g".repeat(64),
            &"é".repeat(32),
            &"a".repeat(65),
        ] {
            assert_eq!(bad.parse::<KeyHash>(), Err(NotAKeyHash), "{bad}");
        }
    }

    #[test]
    fn a_key_opens_its_tenant_until_it_is_removed() {
        let keys = Keys::new();
        let a = new_key();
        let b = new_key();
        keys.put(tenant("acme"), KeyHash::from_key(&a));
        keys.put(tenant("zeta"), KeyHash::from_key(&b));

        assert_eq!(
            (keys.tenant_of(&a), keys.tenant_of(&b)),
            (Some(tenant("acme")), Some(tenant("zeta")))
        );
        assert_eq!(
            (
                keys.tenant_of(""),
                keys.tenant_of("cb_other"),
                keys.is_admin(&a)
            ),
            (None, None, false)
        );

        assert!(keys.remove(&KeyHash::from_key(&a)));
        assert_eq!(
            (
                keys.tenant_of(&a),
                keys.remove_tenant(&tenant("zeta")),
                keys.tenant_of(&b)
            ),
            (None, 1, None)
        );
    }

    #[test]
    fn the_operators_key_is_no_tenants_key() {
        let keys = Keys::new();
        assert!(!keys.is_admin(""));
        keys.set_admin(Some(KeyHash::from_key("cb_admin_not_real")));

        assert!(keys.is_admin("cb_admin_not_real"));
        assert_eq!(
            (
                keys.tenant_of("cb_admin_not_real"),
                keys.is_admin("cb_admin_not_rea")
            ),
            (None, false)
        );
    }

    #[test]
    fn no_two_keys_are_alike_and_debug_shows_none() {
        let a = new_key();
        let b = new_key();

        assert_ne!(a, b);
        assert_eq!(a.len(), 67);
        assert_eq!(
            format!("{:?}", KeyHash::from_key("abc")),
            "KeyHash(ba7816bf…)"
        );
    }
}
