//! Sessions of people who opened the console with a key. The browser holds a random id, never the
//! key; the host holds hashes of both.

use std::{collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

use axum::http::StatusCode;
use callboard_actors::ids::TenantId;
use parking_lot::Mutex;
use subtle::ConstantTimeEq as _;
use tokio::time::Instant;

use super::{KeyHash, Keys, MadeKey, error::Problem, keys::new_key};

/// How long a session lasts, used or not.
pub(super) const LASTS: Duration = Duration::from_secs(12 * 60 * 60);

/// Sessions of all people; beyond it the oldest ends.
const OPEN_MAX: usize = 10_000;

/// Sessions that one key may have open; beyond it the oldest of them ends.
const OPEN_PER_KEY_MAX: usize = 64;

/// Wrong keys of one client address within [`FAILURES_WITHIN`]; further ones are refused unread.
const FAILURES_MAX: u32 = 20;

/// The time in which wrong keys are counted.
const FAILURES_WITHIN: Duration = Duration::from_secs(60);

/// Client addresses whose wrong keys are counted; beyond it the oldest is forgotten.
const ADDRESSES_MAX: usize = 10_000;

/// Whose key opened a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Who {
    /// A tenant.
    Tenant(TenantId),
    /// The operator.
    Operator,
}

impl Who {
    /// Whom a key belongs to.
    fn of(keys: &Keys, key: &str) -> Option<Self> {
        match keys.tenant_of(key) {
            Some(tenant) => Some(Self::Tenant(tenant)),
            None => keys.is_admin(key).then_some(Self::Operator),
        }
    }
}

/// An open session, as a request sees it.
#[derive(Debug, Clone)]
pub(super) struct Session {
    pub(super) who: Who,
    /// What every form of the session carries.
    pub(super) csrf: Arc<str>,
    /// The key that opened it.
    pub(super) key: KeyHash,
    /// Hash of the id in the cookie.
    id: KeyHash,
    opened: Instant,
    /// A key that the operator made and has not seen yet, with its tenant.
    unseen_key: Arc<Mutex<Option<(String, MadeKey)>>>,
}

impl Session {
    /// Whether the key still opens what it opened, and the session is not too old.
    fn is_valid(&self, keys: &Keys) -> bool {
        self.opened.elapsed() < LASTS
            && match &self.who {
                Who::Tenant(tenant) => keys.opens(&self.key, tenant),
                Who::Operator => keys.is_admin_hash(&self.key),
            }
    }

    /// Keeps a key of a tenant for the page that shows it.
    pub(super) fn keep_key(&self, tenant: String, key: MadeKey) {
        *self.unseen_key.lock() = Some((tenant, key));
    }

    /// Takes the key of a tenant that was kept; `None` once it was taken.
    pub(super) fn take_key(&self, tenant: &str) -> Option<MadeKey> {
        let mut unseen = self.unseen_key.lock();
        unseen.take_if(|(of, _)| of == tenant).map(|(_, key)| key)
    }

    /// Whether a form was made for this session.
    pub(super) fn made(&self, token: &str) -> bool {
        self.csrf.as_bytes().ct_eq(token.as_bytes()).into()
    }
}

/// The open sessions, and the wrong keys of the last minute. In memory: a restart ends them.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    open: HashMap<KeyHash, Session>,
    failures: HashMap<IpAddr, Failures>,
}

#[derive(Debug, Clone, Copy)]
struct Failures {
    since: Instant,
    count: u32,
}

impl Sessions {
    /// Opens a session for a key. Returns it with the id for the cookie.
    ///
    /// # Errors
    /// 429 after too many wrong keys of this address; 401 for a wrong key.
    pub(super) fn log_in(
        &self,
        keys: &Keys,
        client: IpAddr,
        key: &str,
    ) -> Result<(String, Session), Problem> {
        let mut table = self.0.lock();
        let now = Instant::now();
        let failed = table.failures.get(&client).copied();
        let failed = failed.filter(|failed| now - failed.since < FAILURES_WITHIN);
        if let Some(failed) = failed.filter(|failed| failed.count >= FAILURES_MAX) {
            let left = FAILURES_WITHIN.saturating_sub(now - failed.since);
            let problem = Problem::too_many(
                "too_many_logins",
                "too many wrong keys from this address; wait a minute",
            );
            return Err(problem.after(u64::try_from(left.as_millis()).ok()));
        }
        let Some(who) = Who::of(keys, key) else {
            let mut failed = failed.unwrap_or(Failures {
                since: now,
                count: 0,
            });
            failed.count += 1;
            table.note_failure(client, failed);
            return Err(Problem::new(
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "this key is not known here",
            ));
        };
        let id = new_key();
        let session = Session {
            who,
            csrf: new_key().into(),
            key: KeyHash::from_key(key),
            id: KeyHash::from_key(&id),
            opened: now,
            unseen_key: Arc::default(),
        };
        table.add(session.clone(), keys);
        Ok((id, session))
    }

    /// Ends a session.
    pub(super) fn log_out(&self, session: &Session) {
        self.0.lock().open.remove(&session.id);
    }

    /// The session of a cookie, if it is open and its key is still valid.
    pub(super) fn find(&self, keys: &Keys, id: &str) -> Option<Session> {
        let id = KeyHash::from_key(id);
        let mut table = self.0.lock();
        let session = table.open.get(&id)?;
        if session.is_valid(keys) {
            return Some(session.clone());
        }
        table.open.remove(&id);
        None
    }
}

impl Table {
    fn add(&mut self, session: Session, keys: &Keys) {
        let of_key = |open: &HashMap<KeyHash, Session>| {
            open.values().filter(|held| held.key == session.key).count()
        };
        if self.open.len() >= OPEN_MAX {
            self.open.retain(|_, held| held.is_valid(keys));
        }
        if of_key(&self.open) >= OPEN_PER_KEY_MAX {
            self.end_oldest(|held| held.key == session.key);
        }
        if self.open.len() >= OPEN_MAX {
            self.end_oldest(|_| true);
        }
        self.open.insert(session.id, session);
    }

    fn end_oldest(&mut self, among: impl Fn(&Session) -> bool) {
        let oldest = self.open.values().filter(|held| among(held));
        let oldest = oldest.min_by_key(|held| held.opened).map(|held| held.id);
        if let Some(id) = oldest {
            self.open.remove(&id);
        }
    }

    fn note_failure(&mut self, client: IpAddr, failed: Failures) {
        if self.failures.len() >= ADDRESSES_MAX && !self.failures.contains_key(&client) {
            let oldest = self.failures.iter().min_by_key(|(_, failed)| failed.since);
            if let Some(address) = oldest.map(|(address, _)| *address) {
                self.failures.remove(&address);
            }
        }
        self.failures.insert(client, failed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn keys() -> Keys {
        let keys = Keys::new();
        keys.put(
            TenantId::new("acme").unwrap(),
            KeyHash::from_key("cb_not_a_real_key"),
        );
        keys.set_admin(Some(KeyHash::from_key("cb_not_a_real_admin")));
        keys
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_with_its_key_its_time_and_its_person() {
        let keys = keys();
        let sessions = Sessions::default();
        let log_in = || sessions.log_in(&keys, HERE, "cb_not_a_real_key").unwrap();

        let (id, session) = log_in();
        assert!(sessions.find(&keys, &id).is_some() && sessions.find(&keys, "other").is_none());
        sessions.log_out(&session);
        assert!(sessions.find(&keys, &id).is_none());

        let (id, _) = log_in();
        tokio::time::advance(LASTS).await;
        assert!(sessions.find(&keys, &id).is_none(), "it is too old");

        let (id, _) = log_in();
        let (admin, _) = sessions.log_in(&keys, HERE, "cb_not_a_real_admin").unwrap();
        keys.remove(&KeyHash::from_key("cb_not_a_real_key"));
        keys.set_admin(None);
        assert!(sessions.find(&keys, &id).is_none() && sessions.find(&keys, &admin).is_none());
        assert!(sessions.0.lock().open.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_of_a_key_are_bounded_and_the_oldest_ends_first() {
        let keys = keys();
        let sessions = Sessions::default();
        let mut ids = Vec::new();
        for _ in 0..=OPEN_PER_KEY_MAX {
            ids.push(sessions.log_in(&keys, HERE, "cb_not_a_real_key").unwrap().0);
            tokio::time::advance(Duration::from_secs(1)).await;
        }

        assert_eq!(sessions.0.lock().open.len(), OPEN_PER_KEY_MAX);
        assert!(sessions.find(&keys, &ids[0]).is_none());
        assert!(sessions.find(&keys, &ids[1]).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn wrong_keys_of_an_address_are_bounded_and_forgotten_after_a_minute() {
        let keys = keys();
        let sessions = Sessions::default();
        let log_in = |client, key| {
            let tried = sessions.log_in(&keys, client, key);
            tried.map_or_else(|problem| problem.status, |_| 200)
        };
        for _ in 0..FAILURES_MAX {
            assert_eq!(log_in(HERE, "cb_wrong"), 401);
        }

        let other = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
        assert_eq!(log_in(HERE, "cb_not_a_real_key"), 429);
        assert_eq!(log_in(other, "cb_not_a_real_key"), 200);
        tokio::time::advance(FAILURES_WITHIN).await;
        assert_eq!(log_in(HERE, "cb_not_a_real_key"), 200);
    }
}
