//! Cached results of tool calls, one cache per tenant, bounded in entries and bytes.
//!
//! The cache holds what the tool returned, not the observation: each call formats the result at its
//! own output level and under its own id.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::ToolInvocationRequest;
use crate::{
    limits::{TOOL_CACHE_BYTES_MAX, TOOL_CACHE_ENTRIES_MAX, TOOL_CACHED_RESULT_BYTES_MAX},
    policy::{TtlCache, TtlCacheConfig},
    ports::{CACHE_TTL, ToolOutput},
};

/// Results by idempotency key.
#[derive(Debug)]
pub(crate) struct IdempotencyCache {
    cache: Mutex<TtlCache<String, Arc<ToolOutput>>>,
    since: Instant,
}

impl Default for IdempotencyCache {
    fn default() -> Self {
        Self::new(TtlCacheConfig {
            ttl: CACHE_TTL,
            entries_max: TOOL_CACHE_ENTRIES_MAX,
            bytes_max: TOOL_CACHE_BYTES_MAX,
        })
    }
}

impl IdempotencyCache {
    /// An empty cache with the given limits.
    pub(crate) fn new(config: TtlCacheConfig) -> Self {
        Self {
            cache: Mutex::new(TtlCache::new(config)),
            since: Instant::now(),
        }
    }

    /// The cached result for a request whose key is `key`; `None` also if the request's policy
    /// forbids caching.
    pub(crate) fn answer(
        &self,
        request: &ToolInvocationRequest,
        key: &str,
    ) -> Option<Arc<ToolOutput>> {
        request.cache_policy.ttl()?;
        self.get_cached_result(key)
    }

    /// Caches the result of a request for as long as its policy says. Returns whether it was
    /// stored. Failed calls have no output, so only successes are cached.
    pub(crate) fn note(
        &self,
        request: &ToolInvocationRequest,
        key: &str,
        output: &Arc<ToolOutput>,
    ) -> bool {
        request
            .cache_policy
            .ttl()
            .is_some_and(|ttl| self.put(key, output, Some(ttl)))
    }

    /// The cached result of a key.
    pub(crate) fn get_cached_result(&self, key: &str) -> Option<Arc<ToolOutput>> {
        let now = self.now();
        self.cache.lock().get(&key.to_owned(), now).cloned()
    }

    /// Removes all results.
    pub(crate) fn clear(&self) {
        self.cache.lock().clear();
    }

    fn put(&self, key: &str, output: &Arc<ToolOutput>, ttl: Option<Duration>) -> bool {
        let bytes = size(output);
        if bytes > TOOL_CACHED_RESULT_BYTES_MAX {
            return false;
        }
        let now = self.now();
        let weight = bytes + key.len() * 2 + size_of::<ToolOutput>();
        self.cache
            .lock()
            .set(key.to_owned(), output.clone(), weight, ttl, now)
    }

    fn now(&self) -> Duration {
        self.since.elapsed()
    }
}

/// Bytes of a result; data counts as JSON text.
fn size(output: &ToolOutput) -> usize {
    match output {
        ToolOutput::Text(text) => text.len(),
        ToolOutput::Data(data) => {
            let mut counted = Counted(0);
            serde_json::to_writer(&mut counted, data).map_or(usize::MAX, |()| counted.0)
        }
        // An activation and what is shown belong to their call.
        ToolOutput::Shown { .. } | ToolOutput::Activation(_) => usize::MAX,
    }
}

/// A writer that counts bytes.
struct Counted(usize);

impl std::io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{chat::RawJson, ports::CachePolicy};

    fn request(call: &str, policy: CachePolicy) -> ToolInvocationRequest {
        let request = ToolInvocationRequest::new(call, "search", RawJson::empty_object(), "c");
        ToolInvocationRequest {
            cache_policy: policy,
            ..request
        }
    }

    fn text(text: &str) -> Arc<ToolOutput> {
        Arc::new(text.into())
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_call_is_answered_until_the_policys_time_is_over() {
        let cache = IdempotencyCache::default();
        let first = request("toolu_1", CachePolicy::TtlShort);
        let later = request("toolu_2", CachePolicy::TtlShort);
        assert!(cache.note(&first, &first.idempotency_key(), &text("found")));

        let key = later.idempotency_key();
        assert_eq!(cache.answer(&later, &key), Some(text("found")));
        tokio::time::advance(Duration::from_millis(299_999)).await;
        assert!(cache.answer(&later, &key).is_some());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(cache.answer(&later, &key), None);

        let hour = request("toolu_3", CachePolicy::Cacheable);
        assert!(cache.note(&hour, &key, &text("kept")));
        tokio::time::advance(Duration::from_millis(3_599_999)).await;
        assert!(cache.answer(&hour, &key).is_some());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(cache.answer(&hour, &key), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_of_more_than_ten_thousand_results_goes() {
        let cache = IdempotencyCache::default();
        let hour = request("1", CachePolicy::Cacheable);

        for index in 0..=10_000 {
            assert!(cache.note(&hour, &index.to_string(), &text("x")));
        }

        let kept = |index: u32| cache.answer(&hour, &index.to_string()).is_some();
        assert_eq!([kept(0), kept(1), kept(10_000)], [false, true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_policy_the_cache_is_neither_read_nor_written() {
        let cache = IdempotencyCache::default();
        let never = request("1", CachePolicy::NoCache);
        let hour = request("2", CachePolicy::Cacheable);
        let key = hour.idempotency_key();

        assert!(!cache.note(&never, &key, &text("x")));
        assert_eq!(cache.answer(&hour, &key), None);
        assert!(cache.note(&hour, &key, &text("y")));
        assert_eq!(cache.answer(&never, &key), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_plain_key_lives_an_hour_and_what_is_too_large_is_not_kept() {
        let cache = IdempotencyCache::default();

        assert!(!cache.put(
            "k",
            &text(&"x".repeat(TOOL_CACHED_RESULT_BYTES_MAX + 1)),
            None
        ));
        assert!(cache.put("k", &text("y"), None));
        tokio::time::advance(Duration::from_secs(3599)).await;
        assert!(cache.get_cached_result("k").is_some());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(cache.get_cached_result("k"), None);
    }
}
