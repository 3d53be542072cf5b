//! A cache of finished summaries. Writer and reader use the same [`summary_key`] and the same
//! [`crate::chat::span_hash`]. Callers pass a monotonic time.
//!
//! Pure.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{
    ids::{ConversationId, Scope, TenantId},
    policy::{TtlCache, TtlCacheConfig},
};

use super::CompactionSettings;

/// Most summaries that are kept.
const SUMMARIES_MAX: usize = 1000;

/// Most bytes that are kept: twice 4000 characters of three bytes for each summary.
const SUMMARIES_BYTES_MAX: usize = 24 * 1024 * 1024;

/// The key of a span's summary: `{tenant}/{conversation_id}:{hash}`. It keeps tenants and
/// conversations apart.
pub(crate) fn summary_key(scope: &Scope, span_hash: &str) -> String {
    format!("{}/{}:{span_hash}", scope.tenant, scope.conversation)
}

/// The common prefix of the keys of a conversation's summaries, or of all summaries of a tenant.
pub(super) fn summaries_of(tenant: &TenantId, conversation: Option<&ConversationId>) -> String {
    conversation.map_or_else(
        || format!("{tenant}/"),
        |conversation| format!("{tenant}/{conversation}:"),
    )
}

/// Summaries by key, each kept for the configured time.
#[derive(Debug, Clone)]
pub(crate) struct SummaryCache {
    entries: TtlCache<String, Arc<str>>,
}

impl SummaryCache {
    /// An empty cache. `summary_cache_ttl` of the settings sets the time to live.
    pub(crate) fn new(settings: &CompactionSettings) -> Self {
        let config = TtlCacheConfig {
            ttl: settings.summary_ttl(),
            entries_max: SUMMARIES_MAX,
            bytes_max: SUMMARIES_BYTES_MAX,
        };
        Self {
            entries: TtlCache::new(config),
        }
    }

    /// The summary of exactly these messages, if it is cached and not expired. `now` is a monotonic
    /// time since any fixed instant.
    pub(crate) fn get(&mut self, key: &str, now: Duration) -> Option<&Arc<str>> {
        self.entries.get(&key.to_owned(), now)
    }

    /// The summaries of a conversation that have not expired, by the hash of their messages.
    pub(crate) fn of(&mut self, scope: &Scope, now: Duration) -> BTreeMap<String, Arc<str>> {
        self.entries.expire(now);
        let prefix = summaries_of(&scope.tenant, Some(&scope.conversation));
        self.entries
            .iter()
            .filter_map(|(key, summary)| {
                let hash = key.strip_prefix(&prefix)?;
                Some((hash.to_owned(), summary.clone()))
            })
            .collect()
    }

    /// Stores a summary. A full cache removes its oldest one.
    pub(crate) fn put(&mut self, key: String, summary: Arc<str>, now: Duration) {
        let bytes = key.len() + summary.len();
        self.entries.set(key, summary, bytes, None, now);
    }

    /// Removes the summaries whose keys begin with `prefix`.
    pub(crate) fn forget(&mut self, prefix: &str) {
        self.entries.retain(|key| !key.starts_with(prefix));
    }

    /// Number of stored summaries, including expired ones.
    #[cfg(test)]
    pub(crate) fn size(&self) -> usize {
        self.entries.size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::{Message, span_hash};

    fn scope(tenant: &str, conversation: &str) -> Scope {
        Scope::new(tenant.parse().unwrap(), conversation.parse().unwrap())
    }

    #[test]
    fn a_summary_is_found_by_identical_messages_of_the_same_conversation_alone() {
        let mut cache = SummaryCache::new(&CompactionSettings::default());
        let span = [Message::user("a"), Message::assistant("b")];
        let key = summary_key(&scope("t", "c"), &span_hash(&span));

        cache.put(key.clone(), "ab".into(), Duration::ZERO);

        assert!(
            key.starts_with("t/c:") && key.len() == "t/c:".len() + 16,
            "{key}"
        );
        assert_eq!(
            cache.get(
                &summary_key(&scope("t", "c"), &span_hash(&span.clone())),
                Duration::ZERO
            ),
            Some(&"ab".into())
        );
        for other in [
            summary_key(&scope("u", "c"), &span_hash(&span)),
            summary_key(&scope("t", "d"), &span_hash(&span)),
            summary_key(&scope("t", "c"), &span_hash(&span[..1])),
        ] {
            assert_eq!(cache.get(&other, Duration::ZERO), None);
        }
    }

    #[test]
    fn a_conversation_and_a_tenant_are_forgotten_alone() {
        let mut cache = SummaryCache::new(&CompactionSettings::default());
        let keys = [
            scope("a", "same"),
            scope("a", "other"),
            scope("b", "same"),
            scope("ab", "same"),
        ]
        .map(|scope| summary_key(&scope, "hash"));
        keys.iter()
            .for_each(|key| cache.put(key.clone(), "x".into(), Duration::ZERO));
        let kept = |cache: &mut SummaryCache| {
            keys.each_ref()
                .map(|key| cache.get(key, Duration::ZERO).is_some())
        };
        let of = scope("a", "same");

        cache.forget(&summaries_of(&of.tenant, Some(&of.conversation)));
        assert_eq!(kept(&mut cache), [false, true, true, true]);
        cache.forget(&summaries_of(&of.tenant, None));
        assert_eq!(kept(&mut cache), [false, false, true, true]);
    }

    #[test]
    fn the_setting_governs_how_long_and_the_oldest_of_too_many_goes() {
        let mut cache = SummaryCache::new(&CompactionSettings {
            summary_cache_ttl: 2,
            ..CompactionSettings::default()
        });
        let two_hours = Duration::from_secs(7200);

        for index in 0..=SUMMARIES_MAX {
            cache.put(format!("k{index}"), "x".into(), Duration::ZERO);
        }

        assert_eq!(cache.size(), 1000);
        assert_eq!(cache.get("k0", Duration::ZERO), None);
        assert!(
            cache
                .get("k1", two_hours - Duration::from_millis(1))
                .is_some()
        );
        assert_eq!(
            cache.get("k1", two_hours),
            None,
            "an age of exactly the time to live is over"
        );
    }
}
