//! A store of your own: implement `SessionBackend`. This one records every append in front of
//! another store; one for a database has the same methods. `cargo run --example own_store`
//!
//! `callboard_actors::testing::contract::session_backend` holds every store to the same promises:
//! run it in your tests.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use callboard::{
    Host,
    ids::{Scope, Seq, TenantId},
    journal::{Head, Loaded, StoredEntry},
    policy::Amount,
    ports::{Append, BoxFuture, ListQuery, SessionBackend, SessionSummary, StoreError},
    storage::MemorySessions,
    stream::Open,
    time::Timestamp,
};
use callboard_actors::testing::{Reply, ScriptedModel};

type Read<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

#[derive(Default)]
struct Counted {
    store: MemorySessions,
    entries: AtomicUsize,
}

#[rustfmt::skip]
impl SessionBackend for Counted {
    // Returns at once; `append.done` is called when the entries are durable, or with the error.
    // `Append::check` is the rule that keeps an old activation from writing.
    fn append(&self, append: Append) {
        self.entries.fetch_add(append.entries.len(), Relaxed);
        self.store.append(append);
    }
    fn head<'a>(&'a self, scope: &'a Scope) -> Read<'a, Head> { self.store.head(scope) }
    fn load<'a>(&'a self, scope: &'a Scope) -> Read<'a, Loaded> { self.store.load(scope) }
    fn entries<'a>(&'a self, scope: &'a Scope, after: Seq, count: usize) -> Read<'a, Vec<StoredEntry>> { self.store.entries(scope, after, count) }
    fn snapshot<'a>(&'a self, scope: &'a Scope, upto: Seq, bytes: Bytes) -> Read<'a, ()> { self.store.snapshot(scope, upto, bytes) }
    fn empty<'a>(&'a self, scope: &'a Scope, upto: Seq) -> Read<'a, ()> { self.store.empty(scope, upto) }
    fn delete<'a>(&'a self, scope: &'a Scope) -> Read<'a, bool> { self.store.delete(scope) }
    fn list<'a>(&'a self, tenant: &'a TenantId, query: ListQuery) -> Read<'a, Vec<SessionSummary>> { self.store.list(tenant, query) }
    fn count<'a>(&'a self, tenant: &'a TenantId) -> Read<'a, u64> { self.store.count(tenant) }
    fn stored_bytes<'a>(&'a self, tenant: &'a TenantId) -> Read<'a, u64> { self.store.stored_bytes(tenant) }
    fn spend<'a>(&'a self, tenant: &'a TenantId, amount: Amount) -> Read<'a, Option<Amount>> { self.store.spend(tenant, amount) }
    fn list_open(&self, open: Open, due: Option<Timestamp>, after: Option<Scope>, count: usize) -> Read<'_, Vec<Scope>> { self.store.list_open(open, due, after, count) }
    fn close(&self, within: std::time::Duration) -> Read<'_, ()> { self.store.close(within) }
    fn mark_failed<'a>(&'a self, scope: &'a Scope, reason: Option<String>) -> Read<'a, ()> { self.store.mark_failed(scope, reason) }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = std::sync::Arc::new(Counted::default());
    let model = ScriptedModel::always(Reply::text("Noted."));
    let host = Host::builder()
        .provider(model)
        .shared_sessions(store.clone())
        .build()
        .await?;
    host.tenant("acme")
        .conversation("notes")
        .send("Remember this.")
        .await?
        .outcome()
        .await?;
    println!(
        "a round of one model call is {} journal entries",
        store.entries.load(Relaxed)
    );
    Ok(())
}
