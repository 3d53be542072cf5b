//! Summaries that are ready (REQUIREMENTS C-37..C-39, F-10; BUG-28): writer and reader use [`summary_key`] and the one
//! [`crate::chat::span_hash`]. Pure: the time comes in.
//!
//! Pure.

use std::time::Duration;

use crate::{
    chat::RawJson,
    ids::{ConversationId, Scope, TenantId},
    policy::{TtlCache, TtlCacheConfig},
    time::Timestamp,
};

use super::CompactionSettings;

/// Summaries kept (C-37).
const SUMMARIES_MAX: usize = 1000;

/// Their bytes: 4,000 characters of three bytes each, and as much again for the maps.
const SUMMARIES_BYTES_MAX: usize = 24 * 1024 * 1024;

/// A summary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedSummary {
    /// The text.
    pub summary: String,
    /// When it was made; shown in ISO 8601.
    pub timestamp: Timestamp,
    /// What else is to be known of it, a JSON object.
    pub metadata: RawJson,
}

/// The key of a span's summary: `{tenant}/{conversation_id}:{hash}` (C-38). No tenant and no conversation sees another's.
pub fn summary_key(scope: &Scope, span_hash: &str) -> String {
    format!("{}/{}:{span_hash}", scope.tenant, scope.conversation)
}

/// What the keys of a conversation's summaries begin with, or without one those of a tenant.
pub(super) fn summaries_of(tenant: &TenantId, conversation: Option<&ConversationId>) -> String {
    conversation.map_or_else(|| format!("{tenant}/"), |conversation| format!("{tenant}/{conversation}:"))
}

/// Summaries by their keys, each for as long as the settings say.
#[derive(Debug, Clone)]
pub struct SummaryCache {
    entries: TtlCache<String, CachedSummary>,
}

impl SummaryCache {
    /// An empty cache; `summary_cache_ttl` of the settings governs it (F-10).
    pub fn new(settings: &CompactionSettings) -> Self {
        let config = TtlCacheConfig { ttl: settings.summary_ttl(), entries_max: SUMMARIES_MAX, bytes_max: SUMMARIES_BYTES_MAX };
        Self { entries: TtlCache::new(config) }
    }

    /// The summary of exactly these messages, if it is there and not too old; `now` is monotonic, since any fixed instant.
    pub fn get(&mut self, key: &str, now: Duration) -> Option<&CachedSummary> {
        self.entries.get(&key.to_owned(), now)
    }

    /// Keeps a summary. Of a full cache the oldest goes.
    pub fn put(&mut self, key: String, summary: CachedSummary, now: Duration) {
        let bytes = key.len() + summary.summary.len() + summary.metadata.as_str().len();
        self.entries.set(key, summary, bytes, None, now);
    }

    /// Forgets the summaries whose keys begin so.
    pub fn forget(&mut self, prefix: &str) {
        self.entries.retain(|key| !key.starts_with(prefix));
    }

    /// Summaries that are held.
    pub fn size(&self) -> usize {
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

    fn summary(text: &str) -> CachedSummary {
        CachedSummary { summary: text.into(), timestamp: Timestamp(0), metadata: RawJson::empty_object() }
    }

    #[test]
    fn a_summary_is_found_by_identical_messages_of_the_same_conversation_alone() {
        let mut cache = SummaryCache::new(&CompactionSettings::default());
        let span = [Message::user("a"), Message::assistant("b")];
        let key = summary_key(&scope("t", "c"), &span_hash(&span));

        cache.put(key.clone(), summary("ab"), Duration::ZERO);

        assert!(key.starts_with("t/c:") && key.len() == "t/c:".len() + 16, "{key}");
        assert_eq!(cache.get(&summary_key(&scope("t", "c"), &span_hash(&span.clone())), Duration::ZERO), Some(&summary("ab")));
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
        let keys =
            [scope("a", "same"), scope("a", "other"), scope("b", "same"), scope("ab", "same")].map(|scope| summary_key(&scope, "hash"));
        keys.iter().for_each(|key| cache.put(key.clone(), summary("x"), Duration::ZERO));
        let kept = |cache: &mut SummaryCache| keys.each_ref().map(|key| cache.get(key, Duration::ZERO).is_some());
        let of = scope("a", "same");

        cache.forget(&summaries_of(&of.tenant, Some(&of.conversation)));
        assert_eq!(kept(&mut cache), [false, true, true, true]);
        cache.forget(&summaries_of(&of.tenant, None));
        assert_eq!(kept(&mut cache), [false, false, true, true]);
    }

    #[test]
    fn the_setting_governs_how_long_and_the_oldest_of_too_many_goes() {
        let mut cache = SummaryCache::new(&CompactionSettings { summary_cache_ttl: 2, ..CompactionSettings::default() });
        let two_hours = Duration::from_secs(7200);

        for index in 0..=SUMMARIES_MAX {
            cache.put(format!("k{index}"), summary("x"), Duration::ZERO);
        }

        assert_eq!(cache.size(), 1000);
        assert_eq!(cache.get("k0", Duration::ZERO), None);
        assert!(cache.get("k1", two_hours - Duration::from_millis(1)).is_some());
        assert_eq!(cache.get("k1", two_hours), None, "an age of exactly the time to live is over");
    }
}
