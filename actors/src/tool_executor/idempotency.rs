//! Results that answer later calls (REQUIREMENTS T-16..T-21). Bounded in entries and in bytes; one for a host, shared.
//!
//! A result in it has no call id: whoever takes one out shows it under the current call's (T-20).

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::ToolInvocationRequest;
use crate::{
    journal::ToolExecutionResult,
    policy::{TtlCache, TtlCacheConfig},
    ports::CACHE_TTL,
};

/// Entries of the cache (T-19).
const ENTRIES_MAX: usize = 10_000;

/// Results by idempotency key.
#[derive(Debug)]
pub struct IdempotencyCache {
    cache: Mutex<TtlCache<String, ToolExecutionResult>>,
    since: Instant,
}

impl Default for IdempotencyCache {
    fn default() -> Self {
        Self::new(TtlCacheConfig { ttl: CACHE_TTL, entries_max: ENTRIES_MAX, ..TtlCacheConfig::default() })
    }
}

impl IdempotencyCache {
    /// An empty cache with bounds of one's own.
    pub fn new(config: TtlCacheConfig) -> Self {
        Self { cache: Mutex::new(TtlCache::new(config)), since: Instant::now() }
    }

    /// What answers a request: nothing unless its policy allows that (T-18).
    pub fn answer(&self, request: &ToolInvocationRequest) -> Option<ToolExecutionResult> {
        request.cache_policy.ttl()?;
        self.get_cached_result(&request.idempotency_key())
    }

    /// Keeps the result of a request for as long as its policy says. Failures are not kept (T-21). Returns whether it is kept.
    pub fn note(&self, request: &ToolInvocationRequest, result: &ToolExecutionResult) -> bool {
        match request.cache_policy.ttl() {
            Some(ttl) => self.put(&request.idempotency_key(), result, Some(ttl)),
            None => false,
        }
    }

    /// The result of a key (T-19).
    pub fn get_cached_result(&self, key: &str) -> Option<ToolExecutionResult> {
        let now = self.now();
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).get(&key.to_owned(), now).cloned()
    }

    /// Keeps the result of a key for an hour, unless it is a failure (T-19, T-21). Returns whether it is kept.
    pub fn cache_result(&self, key: &str, result: &ToolExecutionResult) -> bool {
        self.put(key, result, None)
    }

    fn put(&self, key: &str, result: &ToolExecutionResult, ttl: Option<Duration>) -> bool {
        if result.is_error {
            return false;
        }
        // Retries and time were those of the run, not of whoever is answered later.
        let kept = ToolExecutionResult { retry_count: 0, last_error: None, duration_ms: 0, ..result.clone() };
        let texts = [&kept.data_hash, &kept.data_summary, &kept.artifact_id].into_iter().flatten().map(String::len).sum::<usize>();
        let bytes = key.len() * 2 + kept.observation.len() + texts + size_of::<ToolExecutionResult>();
        let now = self.now();
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).set(key.to_owned(), kept, bytes, ttl, now)
    }

    fn now(&self) -> Duration {
        self.since.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        chat::RawJson,
        ports::{CachePolicy, ToolError},
    };

    fn request(call: &str, policy: CachePolicy) -> ToolInvocationRequest {
        ToolInvocationRequest::new(call, "search", RawJson::empty_object(), "c").cache_policy(policy)
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_call_is_answered_under_its_own_id_until_the_policys_time_is_over() {
        let cache = IdempotencyCache::default();
        let run =
            ToolExecutionResult { duration_ms: 900, retry_count: 2, last_error: Some("e".into()), ..ToolExecutionResult::ok("found") };
        assert!(cache.note(&request("toolu_1", CachePolicy::TtlShort), &run));

        let later = request("toolu_2", CachePolicy::TtlShort);
        let answer = cache.answer(&later).unwrap();
        assert_eq!(answer.to_tool_message(&later.tool_call_id).tool_use_id, "toolu_2");
        assert_eq!(answer, ToolExecutionResult::ok("found"));

        tokio::time::advance(Duration::from_millis(299_999)).await;
        assert!(cache.answer(&later).is_some());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(cache.answer(&later), None);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_policy_the_cache_is_neither_read_nor_written() {
        let cache = IdempotencyCache::default();
        let (never, hour) = (request("1", CachePolicy::NoCache), request("2", CachePolicy::Cacheable));

        assert!(!cache.note(&never, &ToolExecutionResult::ok("x")));
        assert_eq!(cache.answer(&hour), None);
        assert!(cache.note(&hour, &ToolExecutionResult::ok("y")));
        assert_eq!(cache.answer(&never), None);
        assert!(cache.get_cached_result(&hour.idempotency_key()).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_not_kept_and_a_plain_key_lives_an_hour() {
        let cache = IdempotencyCache::default();
        let failed = ToolExecutionResult::error(&ToolError::failed("x"), "t");

        assert!(!cache.cache_result("k", &failed));
        assert!(cache.cache_result("k", &ToolExecutionResult::ok("y")));
        tokio::time::advance(Duration::from_secs(3599)).await;
        assert!(cache.get_cached_result("k").is_some());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(cache.get_cached_result("k"), None);
    }
}
