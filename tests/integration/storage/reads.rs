//! What one tenant's reads of a long conversation cost another tenant, on SQLite.

use std::time::{Duration, Instant};

use callboard::{Host, storage::Sqlite};
use callboard_actors::testing::TestSize;
use callboard_actors::{
    host::ConversationHandle,
    ids::{ConversationId, Epoch, Scope, Seq, TenantId},
    journal::{Head, StoredEntry},
    ports::{AppendExt as _, SessionBackend as _},
    stream::Open,
    testing::{Reply, ScriptedModel},
};
use futures_util::{StreamExt, stream};

const READS_A_SECOND: u32 = 50;
const WAKES_A_SECOND: u32 = 20;

/// What is allowed beside the factor: the wake-ups that are compared take about a millisecond.
const NOISE: Duration = Duration::from_millis(10);

async fn talk(conversation: &ConversationHandle) {
    let mut reply = conversation.send("Hello").await.unwrap();
    reply.outcome().await.unwrap();
}

/// Wakes conversations of the other tenant one after another; returns the 99th percentile.
async fn wake(host: &Host, numbers: std::ops::Range<u32>) -> Duration {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / WAKES_A_SECOND);
    let mut took = Vec::new();
    for number in numbers {
        ticks.tick().await;
        let sleeper = host.tenant("b").conversation(format!("b-{number}"));
        let began = Instant::now();
        sleeper.resume().await.unwrap();
        took.push(began.elapsed());
    }
    took.sort();
    took[(took.len() * 99).div_ceil(100) - 1]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_polls_a_long_conversation_delays_no_wake_up_of_another() {
    let is_long = TestSize::is_long();
    let (entries, seconds) = if is_long { (20_000, 20) } else { (4_000, 2) };
    let wakes = seconds * WAKES_A_SECOND;
    let folder = crate::support::scratch();
    let host = Host::builder()
        .provider(ScriptedModel::always(Reply::text("An answer. ".repeat(20))))
        .sessions(Sqlite::open(folder.path().join("s.db")).await.unwrap())
        .build()
        .await
        .unwrap();
    stream::iter(0..6 * wakes)
        .for_each_concurrent(16, |number| {
            let sleeper = host.tenant("b").conversation(format!("b-{number}"));
            async move { talk(&sleeper).await }
        })
        .await;
    while host.awake() > 0 {
        host.hibernate_idle();
        tokio::task::yield_now().await;
    }
    let long = host.tenant("a").conversation("long");
    while long.state().await.unwrap().head.0 < entries {
        for _ in 0..50 {
            talk(&long).await;
        }
    }

    // What else the machine does in one of the two times must not decide.
    for number in 0..3 {
        let first = 2 * wakes * number;
        let (alone, beside) = measure(&host, &long, first, wakes, seconds).await;
        println!("{entries} entries: wake-up p99 {alone:?} alone, {beside:?} beside the reads");
        if beside <= alone.mul_f64(1.5) + NOISE {
            return;
        }
        assert!(number < 2, "{alone:?} alone, {beside:?} beside");
    }
}

/// The p99 of wake-ups from conversation `first` on: alone, and beside reads of a long conversation.
async fn measure(
    host: &Host,
    long: &ConversationHandle,
    first: u32,
    wakes: u32,
    seconds: u32,
) -> (Duration, Duration) {
    let alone = wake(host, first..first + wakes).await;
    let polls = tokio::spawn({
        let long = long.clone();
        async move {
            let mut ticks = tokio::time::interval(Duration::from_secs(1) / READS_A_SECOND);
            let mut reads = tokio::task::JoinSet::new();
            for number in 0..READS_A_SECOND * seconds {
                ticks.tick().await;
                let long = long.clone();
                reads.spawn(async move {
                    match number % 2 {
                        0 => drop(long.messages().await.unwrap()),
                        _ => drop(long.status().await.unwrap()),
                    }
                });
            }
            reads.join_all().await.len()
        }
    });
    let beside = wake(host, first + wakes..first + 2 * wakes).await;
    assert!(polls.await.unwrap() > 0);
    (alone, beside)
}

#[tokio::test]
async fn a_page_of_large_entries_ends_before_it_fills_the_memory() {
    const ENTRY: usize = 3 * 1024 * 1024;
    let folder = crate::support::scratch();
    let store = Sqlite::open(folder.path().join("s.db")).await.unwrap();
    let scope = Scope::new(
        TenantId::new("a").unwrap(),
        ConversationId::new("c").unwrap(),
    );
    let large = |seq| StoredEntry {
        seq: Seq(seq),
        bytes: vec![b'x'; ENTRY].into(),
    };
    store
        .append_and_wait(
            &scope,
            Head::default(),
            Epoch(1),
            (1..=12).map(large).collect(),
            Open::None,
        )
        .await
        .unwrap();

    for (after, left) in [(0, 12), (3, 9), (10, 2), (11, 1)] {
        let page = store.entries(&scope, Seq(after), 1000).await.unwrap();
        assert_eq!(page.len(), left.min(3), "after {after}");
        let rows = store.salvage(&scope, Seq(after), 1000).await.unwrap();
        assert_eq!(rows.len(), left.min(3), "after {after}");
    }
}
