//! A journal that counts the appends of the one behind it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use callboard::{
    ids::{Scope, Seq, TenantId},
    journal::{Head, Loaded, StoredEntry},
    ports::{Append, BoxFuture, Durability, ListQuery, SessionBackend, SessionSummary, StoreError},
    stream::Open,
    time::Timestamp,
};

/// Counts of appends and entries.
#[derive(Debug, Default)]
pub(crate) struct AppendCounts {
    /// Appends that a caller awaited.
    pub(crate) awaited: AtomicU64,
    /// Appends that no caller awaited.
    pub(crate) deferred: AtomicU64,
    /// Entries of both kinds of appends.
    pub(crate) entries: AtomicU64,
}

impl AppendCounts {
    /// Awaited appends, others, entries.
    pub(crate) fn read(&self) -> [u64; 3] {
        [&self.awaited, &self.deferred, &self.entries]
            .map(|counter| counter.load(Ordering::Relaxed))
    }
}

/// A journal that counts.
pub(crate) struct Counted {
    pub(crate) inner: Arc<dyn SessionBackend>,
    pub(crate) asked: Arc<AppendCounts>,
}

impl SessionBackend for Counted {
    fn append(&self, append: Append) {
        match append.durability {
            Durability::Awaited => self.asked.awaited.fetch_add(1, Ordering::Relaxed),
            Durability::Deferred => self.asked.deferred.fetch_add(1, Ordering::Relaxed),
        };
        self.asked
            .entries
            .fetch_add(append.entries.len() as u64, Ordering::Relaxed);
        self.inner.append(append);
    }

    fn head<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Head, StoreError>> {
        self.inner.head(scope)
    }

    fn load<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Loaded, StoreError>> {
        self.inner.load(scope)
    }

    fn entries<'a>(
        &'a self,
        scope: &'a Scope,
        after: Seq,
        count: usize,
    ) -> BoxFuture<'a, Result<Vec<StoredEntry>, StoreError>> {
        self.inner.entries(scope, after, count)
    }

    fn snapshot<'a>(
        &'a self,
        scope: &'a Scope,
        upto: Seq,
        bytes: Bytes,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.inner.snapshot(scope, upto, bytes)
    }

    fn delete<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.inner.delete(scope)
    }

    fn list<'a>(
        &'a self,
        tenant: &'a TenantId,
        query: ListQuery,
    ) -> BoxFuture<'a, Result<Vec<SessionSummary>, StoreError>> {
        self.inner.list(tenant, query)
    }

    fn count<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<u64, StoreError>> {
        self.inner.count(tenant)
    }

    fn stored_bytes<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<u64, StoreError>> {
        self.inner.stored_bytes(tenant)
    }

    fn empty<'a>(&'a self, scope: &'a Scope, upto: Seq) -> BoxFuture<'a, Result<(), StoreError>> {
        self.inner.empty(scope, upto)
    }

    fn list_open(
        &self,
        open: Open,
        due: Option<Timestamp>,
        after: Option<Scope>,
        count: usize,
    ) -> BoxFuture<'_, Result<Vec<Scope>, StoreError>> {
        self.inner.list_open(open, due, after, count)
    }

    fn mark_failed<'a>(
        &'a self,
        scope: &'a Scope,
        reason: Option<String>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.inner.mark_failed(scope, reason)
    }

    fn erase<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.inner.erase(tenant)
    }

    fn scrub(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.scrub()
    }

    fn close(&self, within: Duration) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.close(within)
    }
}
