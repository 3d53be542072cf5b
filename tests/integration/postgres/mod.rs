//! Sessions in PostgreSQL: the real server, killed, behind a pooler, and shared by two stores.

mod artifacts;
mod away;
mod control;
mod hosts;
mod manifests;
mod notes;
mod rates;
pub mod server;

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use callboard::{
    ids::{ConversationId, Epoch, Scope, Seq, TenantId},
    journal::{Head, StoredEntry},
    ports::{AppendError, AppendExt as _, BoxFuture, SessionBackend, StoreError},
    storage::{Postgres, PostgresOptions},
    stream::Open,
};
use callboard_actors::testing::TestSize;

use callboard_actors::testing::contract;
pub use server::own_server;
use server::{newest_server, pooler, server};

/// A name for tables that no other test uses.
fn schema() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("t{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

async fn open(url: &str, schema: &str) -> Postgres {
    let options = PostgresOptions {
        schema: schema.to_owned(),
        writers: 2,
        readers: 2,
        ..PostgresOptions::default()
    };
    Postgres::open_with(url, options).await.unwrap()
}

fn scope(name: &str) -> Scope {
    Scope::new(
        TenantId::new("t").unwrap(),
        ConversationId::new(name).unwrap(),
    )
}

fn head(epoch: u64, seq: u64) -> Head {
    Head {
        epoch: Epoch(epoch),
        seq: Seq(seq),
    }
}

fn entries(first: u64, last: u64) -> Vec<StoredEntry> {
    (first..=last)
        .map(|seq| StoredEntry {
            seq: Seq(seq),
            bytes: format!("{{\"n\":{seq}}}").into(),
        })
        .collect()
}

async fn write(
    store: &Postgres,
    scope: &Scope,
    expected: Head,
    epoch: u64,
    last: u64,
) -> Result<(), AppendError> {
    let entries = entries(expected.seq.0 + 1, last);
    store
        .append_and_wait(scope, expected, Epoch(epoch), entries, Open::Running)
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_keeps_the_contract_of_a_session_backend() {
    let Some(server) = server("postgres_keeps_the_contract_of_a_session_backend") else {
        return;
    };

    contract::session_backend(async || {
        Arc::new(open(&server.url(), &schema()).await) as Arc<dyn SessionBackend>
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_on_postgres_keep_the_contract_of_owners() {
    let Some(server) = server("hosts_on_postgres_keep_the_contract_of_owners") else {
        return;
    };

    contract::session_owners(async || two_hosts(server.url(), &server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_18_keeps_the_contracts_of_sessions_and_of_owners() {
    let Some(server) = newest_server("postgres_18_keeps_the_contracts_of_sessions_and_of_owners")
    else {
        return;
    };
    let server = Arc::new(server);
    assert!(server.execute("SHOW server_version").starts_with("18."));

    contract::session_backend(async || {
        Arc::new(open(&server.url(), &schema()).await) as Arc<dyn SessionBackend>
    })
    .await;
    contract::session_owners(async || two_hosts(server.url(), &server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_hosts_keep_the_contract_of_owners_too() {
    let test = "behind_a_pooler_hosts_keep_the_contract_of_owners_too";
    let Some(server) = server(test) else {
        return;
    };
    let Some(pooler) = pooler(test, &server) else {
        return;
    };

    contract::session_owners(async || two_hosts(pooler.url(), &server).await).await;
}

/// What PostgreSQL does in some thousands of orders, as the journals in memory do in more of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_order_of_two_hosts_breaks_the_fence_on_postgres() {
    let Some(server) = server("no_order_of_two_hosts_breaks_the_fence_on_postgres") else {
        return;
    };
    // Thousands of orders of statements take minutes; the journals in memory take them always.
    if !TestSize::is_long() {
        return;
    }
    let reaches = [(1, 1, 0), (2, 1, 0), (1, 1, 1)];
    for (entries, in_flight, deletions) in reaches {
        let hosts = fence_hosts(&server).await;
        let bounds = contract::FenceBounds {
            entries,
            in_flight,
            deletions,
        };

        let states = contract::explore_fence(&hosts, bounds).await.unwrap();

        assert!(states > 100, "{states} states are not all");
    }
}

/// Two hosts on a new schema that beat only as the explorer says. One writer each: their changes
/// take effect in order over all conversations.
async fn fence_hosts(server: &server::Server) -> contract::FenceHosts {
    let schema = schema();
    let mut hosts: Vec<Arc<dyn SessionBackend>> = Vec::new();
    for n in 0..2 {
        let options = PostgresOptions {
            schema: schema.clone(),
            writers: 1,
            readers: 1,
            ..PostgresOptions::default()
        };
        let store = Postgres::open_with(&server.url(), options).await.unwrap();
        let address = format!("http://{n}.example");
        drop(store.serving_lease(Some(&address)).await.unwrap().unwrap());
        hosts.push(Arc::new(store));
    }
    let (client, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(async move { drop(connection.await) });
    let client = Arc::new(client);
    let set_alive = move |host: usize, alive: bool| {
        let beat = if alive {
            "now() + interval '1 hour'"
        } else {
            "now() - interval '16 seconds'"
        };
        let sql = format!(
            "UPDATE {schema}.host SET beat_at = {beat} WHERE address = 'http://{host}.example'"
        );
        let client = Arc::clone(&client);
        Box::pin(async move { client.batch_execute(&sql).await.unwrap() }) as BoxFuture<'static, ()>
    };
    for host in [0, 1] {
        set_alive(host, true).await;
    }
    contract::FenceHosts {
        hosts: hosts.try_into().ok().unwrap(),
        set_alive: Box::new(set_alive),
        name: "f".into(),
    }
}

/// Two hosts with addresses on a new schema. `server` ends the first one's time.
async fn two_hosts(url: String, server: &Arc<server::Server>) -> contract::TwoHosts {
    let schema = schema();
    let first = Arc::new(open(&url, &schema).await);
    let second = Arc::new(open(&url, &schema).await);
    let address = "http://first.example:8080";
    let lease = first.serving_lease(Some(address)).await.unwrap().unwrap();
    let other = second.serving_lease(Some("http://second.example:8080"));
    // Beats until the runtime of the test ends.
    std::mem::forget(other.await.unwrap().unwrap());
    let server = Arc::clone(server);
    contract::TwoHosts {
        first,
        second,
        first_address: address.to_owned(),
        expire_first: Box::pin(async move {
            drop(lease);
            let age = format!(
                "UPDATE {schema}.host SET beat_at = now() - interval '16 seconds' WHERE address = '{address}'"
            );
            let aged = tokio::task::spawn_blocking(move || server.execute(&age));
            aged.await.unwrap();
        }),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_postgres_keeps_the_contract_too() {
    let test = "behind_a_pooler_postgres_keeps_the_contract_too";
    let Some(server) = server(test) else {
        return;
    };
    let Some(pooler) = pooler(test, &server) else {
        return;
    };

    contract::session_backend(async || {
        Arc::new(open(&pooler.url(), &schema()).await) as Arc<dyn SessionBackend>
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_stores_that_write_one_journal_one_wins_each_place() {
    let Some(server) = server("of_two_stores_that_write_one_journal_one_wins_each_place") else {
        return;
    };
    let schema = schema();
    // They also create the tables at the same time.
    let url = server.url();
    let (one, two) = tokio::join!(open(&url, &schema), open(&url, &schema));
    let names: Vec<Scope> = (0..20).map(|n| scope(&format!("c{n}"))).collect();

    for epoch in 1..=10 {
        let expected = head(epoch - 1, epoch - 1);
        let contest = names.iter().map(|scope| {
            let (one, two) = (&one, &two);
            async move {
                tokio::join!(
                    write(one, scope, expected, epoch, epoch),
                    write(two, scope, expected, epoch, epoch)
                )
            }
        });
        for (scope, results) in names
            .iter()
            .zip(futures_util::future::join_all(contest).await)
        {
            let lost = Err(AppendError::Conflict {
                scope: scope.clone(),
                found: head(epoch, epoch),
            });
            assert!(
                results == (Ok(()), lost.clone()) || results == (lost, Ok(())),
                "{results:?}"
            );
        }
    }

    for scope in &names {
        assert_eq!(one.load(scope).await.unwrap().entries, entries(1, 10));
        assert_eq!(two.load(scope).await.unwrap().head, head(10, 10));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_server_was_away_everything_goes_on_by_itself() {
    let test = "after_the_server_was_away_everything_goes_on_by_itself";
    let Some(server) = own_server(test) else {
        return;
    };
    let store = open(&server.url(), "callboard").await;
    let scope = scope("c");
    write(&store, &scope, Head::default(), 1, 3).await.unwrap();
    assert_eq!(store.load(&scope).await.unwrap().entries, entries(1, 3));

    server.crash();
    let refused = write(&store, &scope, head(1, 3), 1, 4).await;
    let unread = store.load(&scope).await;

    assert!(
        matches!(refused, Err(AppendError::Unavailable { .. })),
        "{refused:?}"
    );
    assert!(
        matches!(unread, Err(StoreError::Unavailable { .. })),
        "{unread:?}"
    );
    assert!(store.try_write().await.is_err());

    server.start();
    store.try_write().await.unwrap();
    let loaded = store.load(&scope).await.unwrap();

    assert_eq!(
        loaded.entries,
        entries(1, 3),
        "what was acknowledged is there"
    );
    write(&store, &scope, head(1, 3), 1, 4).await.unwrap();
    assert_eq!(store.load(&scope).await.unwrap().entries, entries(1, 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_are_not_what_was_stored_are_found_and_named() {
    let Some(server) = server("rows_that_are_not_what_was_stored_are_found_and_named") else {
        return;
    };
    let schema = schema();
    let store = open(&server.url(), &schema).await;
    let damages = [
        (
            "changed",
            "UPDATE {s}.journal SET body = 'x' WHERE seq = 2",
            2,
        ),
        ("gone", "DELETE FROM {s}.journal WHERE seq = 2", 2),
        ("short", "DELETE FROM {s}.journal WHERE seq = 5", 5),
        ("moved", "UPDATE {s}.journal SET seq = 9 WHERE seq = 5", 5),
    ];
    for (name, ..) in damages {
        write(&store, &scope(name), Head::default(), 1, 5)
            .await
            .unwrap();
    }

    for (name, sql, seq) in damages {
        let conv =
            format!(" AND conv = (SELECT conv FROM {schema}.conversation WHERE id = '{name}')");
        server.execute(&(sql.replace("{s}", &schema) + &conv));

        let loaded = store.load(&scope(name)).await;
        let page = store.entries(&scope(name), Seq(0), 100).await;
        let rows = store.salvage(&scope(name), Seq(0), 100).await.unwrap();

        assert!(
            matches!(&loaded, Err(StoreError::Damaged { message, .. }) if message.contains(&format!("entry {seq}"))),
            "{name}: {loaded:?}"
        );
        assert_eq!(page, Ok(entries(1, seq - 1)), "{name}");
        let intact = rows.iter().take_while(|row| row.fault.is_none()).count();
        assert_eq!(intact as u64, seq - 1, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_snapshot_is_left_out() {
    let Some(server) = server("a_damaged_snapshot_is_left_out") else {
        return;
    };
    let schema = schema();
    let store = open(&server.url(), &schema).await;
    let scope = scope("c");
    write(&store, &scope, Head::default(), 1, 5).await.unwrap();
    store
        .snapshot(&scope, Seq(4), "state".into())
        .await
        .unwrap();
    assert!(store.load(&scope).await.unwrap().snapshot.is_some());

    server.execute(&format!("UPDATE {schema}.snapshot SET body = 'stale'"));

    let loaded = store.load(&scope).await.unwrap();
    assert_eq!((loaded.snapshot, loaded.entries), (None, entries(1, 5)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_a_newer_program_is_refused() {
    let Some(server) = server("a_store_of_a_newer_program_is_refused") else {
        return;
    };
    let schema = schema();
    open(&server.url(), &schema).await;
    server.execute(&format!("UPDATE {schema}.version SET version = 99"));

    let options = PostgresOptions {
        schema,
        ..PostgresOptions::default()
    };
    let refused = Postgres::open_with(&server.url(), options).await;

    assert!(
        matches!(refused, Err(StoreError::NewerSchema { found: 99, .. })),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_does_not_work_is_one_line_without_the_password() {
    let Some(server) = server("an_address_that_does_not_work_is_one_line_without_the_password")
    else {
        return;
    };
    let port = server.port();
    for (address, says) in [
        (
            "postgres://ann:not-real@127.0.0.1:1/x".to_owned(),
            "connection refused",
        ),
        (
            format!("postgres://ann:not-real@127.0.0.1:{port}/nothing"),
            "user or password",
        ),
        (
            format!("postgres://callboard:not-real@127.0.0.1:{port}/nothing"),
            "does not exist",
        ),
        (
            "postgres://ann:not-real@127.0.0.1:x/y".to_owned(),
            "cannot be read",
        ),
        (
            format!("postgres://ann:not-real@127.0.0.1:{port}/x?sslmode=require"),
            "TLS",
        ),
    ] {
        let error = Postgres::open(&address).await.unwrap_err().to_string();
        assert!(
            error.to_lowercase().contains(&says.to_lowercase()),
            "{error}"
        );
        assert!(
            !error.contains("not-real") && !error.contains('\n'),
            "{error}"
        );
    }
}
