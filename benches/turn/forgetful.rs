//! A journal that accepts every append at once and stores nothing.

use std::{future::ready, time::Duration};

use bytes::Bytes;
use callboard::{
    ids::{Scope, Seq, TenantId},
    journal::{Head, Loaded, StoredEntry},
    ports::{Append, BoxFuture, ListQuery, SessionBackend, SessionSummary, StoreError},
    stream::Open,
    time::Timestamp,
};

/// A journal that stores nothing.
pub(crate) struct Forgetful;

impl SessionBackend for Forgetful {
    fn append(&self, append: Append) {
        (append.done)(Ok(()));
    }

    fn head<'a>(&'a self, _: &'a Scope) -> BoxFuture<'a, Result<Head, StoreError>> {
        Box::pin(ready(Ok(Head::default())))
    }

    fn load<'a>(&'a self, _: &'a Scope) -> BoxFuture<'a, Result<Loaded, StoreError>> {
        Box::pin(ready(Ok(Loaded::default())))
    }

    fn entries<'a>(
        &'a self,
        _: &'a Scope,
        _: Seq,
        _: usize,
    ) -> BoxFuture<'a, Result<Vec<StoredEntry>, StoreError>> {
        Box::pin(ready(Ok(Vec::new())))
    }

    fn snapshot<'a>(
        &'a self,
        _: &'a Scope,
        _: Seq,
        _: Bytes,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(ready(Ok(())))
    }

    fn delete<'a>(&'a self, _: &'a Scope) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(ready(Ok(false)))
    }

    fn list<'a>(
        &'a self,
        _: &'a TenantId,
        _: ListQuery,
    ) -> BoxFuture<'a, Result<Vec<SessionSummary>, StoreError>> {
        Box::pin(ready(Ok(Vec::new())))
    }

    fn count<'a>(&'a self, _: &'a TenantId) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(ready(Ok(0)))
    }

    fn stored_bytes<'a>(&'a self, _: &'a TenantId) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(ready(Ok(0)))
    }

    fn empty<'a>(&'a self, _: &'a Scope, _: Seq) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(ready(Ok(())))
    }

    fn list_open(
        &self,
        _: Open,
        _: Option<Timestamp>,
        _: Option<Scope>,
        _: usize,
    ) -> BoxFuture<'_, Result<Vec<Scope>, StoreError>> {
        Box::pin(ready(Ok(Vec::new())))
    }

    fn mark_failed<'a>(
        &'a self,
        _: &'a Scope,
        _: Option<String>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(ready(Ok(())))
    }

    fn close(&self, _: Duration) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(ready(Ok(())))
    }
}
