//! How many appends a server carries beside its own bench tool running the same statement, and what
//! many appends leave behind.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use callboard::{
    ids::Epoch,
    journal::Head,
    ports::{AppendExt as _, SessionBackend as _},
    storage::Postgres,
    stream::Open,
};
use callboard_actors::testing::TestSize;
use futures_util::future::join_all;

use super::{head, hosts::database, scope, server::own_server};

/// Appends one entry after the other to a conversation until `end`, or `most`; returns how many.
async fn appends(store: &Postgres, name: String, most: u64, end: Instant) -> u64 {
    let scope = scope(&name);
    let mut at = Head::default();
    while at.seq.0 < most && Instant::now() < end {
        let entries = super::entries(at.seq.0 + 1, at.seq.0 + 1);
        let stored = store.append_and_wait(&scope, at, Epoch(1), entries, Open::Running);
        stored.await.unwrap();
        at = head(1, at.seq.0 + 1);
    }
    at.seq.0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_change_no_index_and_journal_ends_take_no_more_room() {
    let test = "appends_change_no_index_and_journal_ends_take_no_more_room";
    let Some(server) = own_server(test) else {
        return;
    };
    let store = Arc::new(Postgres::open(&database(&server, "room")).await.unwrap());
    let far = Instant::now() + Duration::from_secs(3600);
    let each: u64 = if TestSize::is_long() { 3000 } else { 150 };

    let first = join_all((0..32).map(|n| appends(&store, format!("c{n}"), 5, far)));
    first.await;
    // A quarter of what the updates would take if none of them used the room of an older row. While the
    // server itself reads an older state, such as to collect statistics, no row gives its room back.
    let each_row = 112;
    let (mut updates, mut grown, mut is_reused) = (0, Vec::new(), false);
    for batch in 0..3 {
        let before = store.info().await.unwrap().head.bytes;
        let names = (0..32).map(|n| format!("d{batch}-{n}"));
        let all = join_all(names.map(|name| appends(&store, name, each, far))).await;
        let done = all.iter().sum::<u64>() - 32;
        let bytes = store
            .info()
            .await
            .unwrap()
            .head
            .bytes
            .saturating_sub(before);
        updates += done;
        grown.push(bytes);
        is_reused = bytes <= done * each_row / 4;
        if is_reused {
            break;
        }
    }

    // The server counts what each connection did a while later.
    let start = Instant::now();
    let table = loop {
        let table = store.info().await.unwrap().head;
        if table.updates >= updates || start.elapsed() > Duration::from_secs(30) {
            break table;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert!(table.updates >= updates, "{table:?}");
    assert!(table.hot * 100 >= table.updates * 95, "{table:?}");
    assert!(is_reused, "{grown:?} {table:?}");
    println!("{table:?}");
}

/// The statement of an append of one entry, with the variables of a client of pgbench.
fn script(schema: &str) -> String {
    let statement = include_str!("../../../src/storage/postgres/sql/append.sql");
    let statement = statement.replace("callboard.", &format!("{schema}."));
    let lines = statement.lines().filter(|line| !line.starts_with("--"));
    let mut statement = lines.collect::<Vec<_>>().join(" ");
    let values = [
        "'{bench}'",
        "array['p' || :client_id]",
        "array[:epoch]",
        "array[:seq]",
        "array[1]",
        "array[:seq + 1]",
        "array[1]",
        "array[null]::int8[]",
        "array[7]",
        "1",
        "array[1]",
        "array[:seq + 1]",
        "array['{\"n\":1}'::bytea]",
        "array['0123456789abcdef'::bytea]",
        "null::text",
        "array[]",
        "array[]",
        "array[]",
        "array[]",
    ];
    for (n, value) in values.into_iter().enumerate().rev() {
        statement = statement.replace(&format!("${}", n + 1), value);
    }
    format!("{statement};\n\\set epoch 1\n\\set seq :seq + 1\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_keep_up_with_the_servers_own_bench_of_the_same_statement() {
    let test = "appends_keep_up_with_the_servers_own_bench_of_the_same_statement";
    let Some(server) = own_server(test) else {
        return;
    };
    let is_long = TestSize::is_long();
    let (seconds, rounds) = if is_long { (5, 3) } else { (1, 1) };
    let url = database(&server, "rates");
    let store = Arc::new(Postgres::open(&url).await.unwrap());
    let mut ratios = Vec::new();
    for writers in [1, 64_usize] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            let end = Instant::now() + Duration::from_secs(seconds);
            let tasks = (0..writers).map(|n| {
                let store = Arc::clone(&store);
                let name = format!("c{writers}-{round}-{n}");
                tokio::spawn(async move { appends(&store, name, u64::MAX, end).await })
            });
            let done = join_all(tasks)
                .await
                .into_iter()
                .map(Result::unwrap)
                .sum::<u64>();
            ours.push(done as f64 / seconds as f64);
            server.execute_in(
                &url,
                "DELETE FROM callboard.conversation WHERE tenant = 'bench'",
            );
            theirs.push(server.bench(&url, &script("callboard"), writers, seconds));
        }
        ours.sort_by(f64::total_cmp);
        theirs.sort_by(f64::total_cmp);
        let (ours, theirs) = (ours[rounds / 2], theirs[rounds / 2]);
        println!("{writers} writers: {ours:.0} appends/s, pgbench {theirs:.0}");
        ratios.push(ours / theirs);
    }
    // One commit for many appends, so more than the bench that commits each alone. A single writer
    // pays for this program's debug build and for every test that runs beside it, so a second of
    // it says nothing.
    assert!(ratios[1] >= 0.8, "{ratios:?}");
    assert!(!is_long || ratios[0] >= 0.4, "{ratios:?}");
    store.close(Duration::from_secs(5)).await.unwrap();
}
