//! Reads of conversations, and large histories that are written: who answers them, and what they cost
//! others.

use std::sync::atomic::{AtomicBool, AtomicU64};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::{sync::Semaphore, time::Instant};

use super::*;
use crate::{
    chat::Message,
    compactor::{CompactionSettings, CompactorRef},
    host::EventsFrom,
    ids::{Epoch, EventId, Scope, Seq},
    limits::{
        AWAKE_SNAPSHOT_ENTRIES, Limits, TENANT_LOADS_MAX, TENANT_MEASUREMENTS_MAX, TENANT_READS_MAX,
    },
    metrics_collector::MetricsCollectorRef,
    policy::Budget,
    ports::Clock,
    testing::{Fault, FaultPlan, FaultySessions, Reply, ScriptedModel, TestSize},
};

type Sessions = Arc<FaultySessions<MemorySessions>>;

fn faulty() -> Sessions {
    let inner = Arc::new(MemorySessions::new());
    Arc::new(FaultySessions::new(inner, FaultPlan::new()))
}

fn scope() -> Scope {
    Scope::new("acme".parse().unwrap(), "c-1".parse().unwrap())
}

async fn host_on(sessions: &Sessions, limits: Limits) -> Host {
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let builder = builder(&model)
        .shared_sessions(sessions.clone())
        .subagents()
        .budget(Budget::default().with_tokens(1_000_000_000));
    builder.limits(limits).build().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_conversation_that_is_awake_answers_reads_from_its_own_state() {
    let sessions = faulty();
    let host = host_on(&sessions, Limits::default()).await;
    let conversation = conversation(&host);
    let mut reply = conversation.send("Hi").await.unwrap();
    reply.outcome().await.unwrap();
    let expected = crate::conversation::load(&**sessions.inner(), &scope())
        .await
        .unwrap();
    let before = sessions.reads();

    assert_eq!(conversation.state().await.unwrap(), expected);
    assert_eq!(conversation.messages().await.unwrap().len(), 2);
    assert_eq!(conversation.status().await.unwrap().rounds, 1);
    assert_eq!(sessions.reads(), before + 3, "three heads, and no journal");

    host.hibernate_idle();
    until("it sleeps", || host.awake() == 0).await;
    assert_eq!(conversation.state().await.unwrap(), expected);
    assert_eq!(sessions.reads(), before + 5, "a head and a journal");
    assert_eq!(host.awake(), 0, "a read wakes no conversation");
}

#[tokio::test(start_paused = true)]
async fn a_read_shows_nothing_before_it_is_stored() {
    let sessions = faulty();
    let host = host_on(&sessions, Limits::default()).await;
    let conversation = conversation(&host);
    let mut reply = conversation.send("first").await.unwrap();
    reply.outcome().await.unwrap();
    let before = conversation.state().await.unwrap();

    sessions.set_plan(FaultPlan::new().append(1, Fault::Hang));
    let second = tokio::spawn({
        let conversation = conversation.clone();
        async move { conversation.send("second").await }
    });
    until("the append hangs", || sessions.is_hanging()).await;
    let meanwhile = conversation.state().await.unwrap();
    assert_eq!(meanwhile, before, "the store answers");

    sessions.release();
    let mut reply = second.await.unwrap().unwrap();
    reply.outcome().await.unwrap();
    assert_eq!(conversation.messages().await.unwrap().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn reads_do_not_keep_a_conversation_awake() {
    let limits = Limits {
        idle: Duration::from_secs(20),
        sweep: Duration::from_secs(1),
        ..Limits::default()
    };
    let host = host_on(&faulty(), limits).await;
    let conversation = conversation(&host);
    let mut reply = conversation.send("Hi").await.unwrap();
    reply.outcome().await.unwrap();

    for _ in 0..30 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        conversation.status().await.unwrap();
    }

    assert_eq!(host.awake(), 0);
}

#[tokio::test(start_paused = true)]
async fn entries_are_read_by_page_and_wake_no_conversation() {
    let sessions = faulty();
    let host = host_on(&sessions, Limits::default()).await;
    let conversation = conversation(&host);
    let mut reply = conversation.send("Hi").await.unwrap();
    reply.outcome().await.unwrap();
    host.hibernate_idle();
    until("it sleeps", || host.awake() == 0).await;

    let all = conversation.entries(Seq(0), 100).await.unwrap();
    let mut paged = Vec::new();
    loop {
        let after = Seq(paged.len() as u64);
        let page = conversation.entries(after, 2).await.unwrap();
        assert!(page.len() <= 2);
        if page.is_empty() {
            break;
        }
        paged.extend(page);
    }

    assert_eq!(all, paged);
    assert!(all.len() >= 5 && all.iter().zip(1..).all(|(entry, n)| entry.seq == Seq(n)));
    assert_eq!(host.awake(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_conversation_that_never_sleeps_has_a_snapshot() {
    let sessions = faulty();
    let host = host_on(&sessions, Limits::default()).await;
    let conversation = conversation(&host);
    let head = async || conversation.state().await.unwrap().head.0;
    let snapshot = async || {
        let loaded = sessions.inner().load(&scope()).await.unwrap();
        loaded.snapshot.map(|(upto, _)| upto.0)
    };

    let mut reply = conversation.send("Hi").await.unwrap();
    reply.outcome().await.unwrap();
    assert_eq!(snapshot().await, None, "not after each round");
    while head().await < AWAKE_SNAPSHOT_ENTRIES + 16 {
        let mut reply = conversation.send("Hi").await.unwrap();
        reply.outcome().await.unwrap();
    }

    let upto = snapshot().await.unwrap();
    assert!(upto >= AWAKE_SNAPSHOT_ENTRIES, "{upto}");
    assert_eq!(host.figures().await.total.hibernations, 0);
}

#[tokio::test(start_paused = true)]
async fn a_wake_up_looks_at_one_row_to_see_that_there_are_no_subagents() {
    let sessions = faulty();
    let host = host_on(&sessions, Limits::default()).await;
    for number in 0..50 {
        let other = host.tenant("acme").conversation(format!("z-{number}"));
        other.send("Hi").await.unwrap().outcome().await.unwrap();
    }
    let conversation = conversation(&host);
    let mut reply = conversation.send("Hi").await.unwrap();
    reply.outcome().await.unwrap();
    host.hibernate_idle();
    until("all sleep", || host.awake() == 0).await;
    let before = sessions.listed();

    let mut reply = conversation.send("again").await.unwrap();
    reply.outcome().await.unwrap();

    let rows = sessions.listed() - before;
    assert_eq!(rows, 1);
}

#[tokio::test(start_paused = true)]
async fn all_reads_of_a_tenants_journals_together_are_a_few_at_a_time() {
    let sessions = faulty();
    let host = host_on(&sessions, Limits::default()).await;
    let conversation = conversation(&host);
    let mut reply = conversation.send("Hi").await.unwrap();
    reply.outcome().await.unwrap();
    let round = reply.round_id();
    host.hibernate_idle();
    until("it sleeps", || host.awake() == 0).await;
    let invalid = EventId {
        epoch: Epoch(1),
        ..EventId::default()
    };
    let mut watchers = Vec::new();
    for _ in 0..20 {
        let from = EventsFrom::After(invalid);
        watchers.push(conversation.events(from).await.unwrap());
    }
    let hang = |plan: FaultPlan, nth| plan.read(nth, Fault::Hang);
    sessions.set_plan((1..=200).fold(FaultPlan::new(), hang));

    let mut tasks = tokio::task::JoinSet::new();
    for mut events in watchers {
        tasks.spawn(async move { drop(events.next().await) });
    }
    for _ in 0..5 {
        let c = || conversation.clone();
        tasks.spawn({
            let c = c();
            async move { drop(c.rounds().await) }
        });
        tasks.spawn({
            let c = c();
            async move { drop(c.multi_round(drop).await) }
        });
        tasks.spawn({
            let c = c();
            async move { drop(c.transcript().await) }
        });
        tasks.spawn({
            let c = c();
            async move { drop(c.debug_messages().await) }
        });
        tasks.spawn({
            let c = c();
            async move { drop(c.title().await) }
        });
        let mut watch = conversation.watch(round).unwrap().after(invalid);
        tasks.spawn(async move { drop(watch.next().await) });
    }
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }

    assert_eq!(sessions.reads(), TENANT_READS_MAX as u64);
    sessions.set_plan(FaultPlan::new());
    sessions.release();
    tokio::time::timeout(Duration::from_secs(60), tasks.join_all())
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn conversations_of_one_tenant_that_load_leave_room_in_memory_and_for_other_tenants() {
    let sessions = faulty();
    let host = host_on(&sessions, Limits::default()).await;
    let hang = |plan: FaultPlan, nth| plan.read(nth, Fault::Hang);
    sessions.set_plan((1..=200).fold(FaultPlan::new(), hang));
    let before = sessions.reads();

    let mut tasks = tokio::task::JoinSet::new();
    let mut interrupt = |tenant: &str, conversation: String| {
        let conversation = host.tenant(tenant).conversation(conversation.as_str());
        tasks.spawn(async move { drop(conversation.interrupt().await) });
    };
    (0..20).for_each(|n| interrupt("acme", format!("c-{n}")));
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    // The host itself reads once, what is due.
    let of_acme = sessions.reads();
    assert_eq!(of_acme - before, TENANT_LOADS_MAX as u64 + 1);
    interrupt("zeta", "c".to_owned());
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(sessions.reads() - of_acme, 1);

    sessions.set_plan(FaultPlan::new());
    sessions.release();
    tokio::time::timeout(Duration::from_secs(60), tasks.join_all())
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_watcher_of_a_conversation_that_does_nothing_reads_no_journal() {
    let sessions = faulty();
    let host = host_on(&sessions, Limits::default()).await;
    let conversation = conversation(&host);
    let mut reply = conversation.send("Hi").await.unwrap();
    reply.outcome().await.unwrap();
    host.hibernate_idle();
    until("it sleeps", || host.awake() == 0).await;
    let head = sessions.inner().head(&scope()).await.unwrap();
    let last = EventId {
        epoch: head.epoch,
        seq: head.seq,
        n: u32::MAX,
    };
    let mut events = conversation.events(EventsFrom::After(last)).await.unwrap();
    let before = sessions.reads();

    let waiting = tokio::spawn(async move { drop(events.next().await) });
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }

    assert!(!waiting.is_finished());
    assert_eq!(sessions.reads(), before + 1, "the head");
    waiting.abort();
}

#[tokio::test(start_paused = true)]
async fn a_conversation_whose_history_was_replaced_reads_back_little_more_than_its_history() {
    let sessions = faulty();
    let host = host_on(&sessions, Limits::default()).await;
    let conversation = conversation(&host);
    let large = || vec![Message::user("x".repeat(3 * 1024 * 1024))];
    let after_snapshot = async || {
        host.hibernate_idle();
        until("it sleeps", || host.awake() == 0).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let loaded = sessions.inner().load(&scope()).await.unwrap();
        let bytes: usize = loaded.entries.iter().map(|entry| entry.bytes.len()).sum();
        bytes
    };

    // What is written exceeds the bound either way.
    let replaced = TestSize::pick(5, 10, 10);
    for _ in 0..replaced {
        conversation.import(large()).await.unwrap();
    }
    assert!(
        after_snapshot().await < 10 * 1024 * 1024,
        "while it was awake"
    );
    for _ in 0..replaced {
        conversation.import(large()).await.unwrap();
        after_snapshot().await;
    }
    assert!(
        after_snapshot().await < 10 * 1024 * 1024,
        "over many activations"
    );
}

/// A runtime with one thread, and one beside it for what takes long.
fn one_blocking_thread() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1);
    runtime.build().unwrap()
}

#[test]
fn what_a_large_journal_holds_is_decoded_off_the_threads_of_the_runtime() {
    one_blocking_thread().block_on(large_journals_are_decoded_elsewhere());
}

async fn large_journals_are_decoded_elsewhere() {
    let sessions = faulty();
    let host = host_on(&sessions, Limits::default()).await;
    for (id, length, is_large) in [("small", 10, false), ("large", 300 * 1024, true)] {
        let conversation = host.tenant("acme").conversation(id);
        let asked = Message::user("x".repeat(length));
        conversation.import(vec![asked]).await.unwrap();
        let scope = Scope::new("acme".parse().unwrap(), id.parse().unwrap());
        let store = &**sessions.inner();
        let fork = crate::conversation::read_fork(store, &scope, &None, None);
        // No event has this cursor, so the whole journal is folded into a snapshot.
        let invalid = EventId {
            epoch: Epoch(1),
            ..EventId::default()
        };
        let events = crate::host::projection::read_after(store, &scope, &None, invalid, None);
        let reads: [(&str, BoxFuture<'_, bool>); 8] = [
            (
                "title",
                conversation.title().map(|read| read.is_ok()).boxed(),
            ),
            (
                "entries",
                conversation
                    .entries(Seq(0), 9)
                    .map(|read| read.is_ok())
                    .boxed(),
            ),
            (
                "rounds",
                conversation.rounds().map(|read| read.is_ok()).boxed(),
            ),
            (
                "multi_round",
                conversation
                    .multi_round(drop)
                    .map(|read| read.is_ok())
                    .boxed(),
            ),
            (
                "debug",
                conversation
                    .debug_messages()
                    .map(|read| read.is_ok())
                    .boxed(),
            ),
            (
                "transcript",
                conversation.transcript().map(|read| read.is_ok()).boxed(),
            ),
            ("fork", fork.map(|read| read.is_ok()).boxed()),
            ("events", events.map(|read| read.is_ok()).boxed()),
        ];

        for (name, mut read) in reads {
            // Nothing runs elsewhere meanwhile.
            let (open, gate) = std::sync::mpsc::channel::<()>();
            let waits = tokio::task::spawn_blocking(move || gate.recv());
            let at_once = (&mut read).now_or_never();
            drop(open);
            assert!(waits.await.unwrap().is_err());
            assert_eq!(at_once.is_none(), is_large, "{name} of {id}");
            assert!(at_once.unwrap_or(true), "{name} of {id}");
            assert!(at_once.is_some() || read.await, "{name} of {id}");
        }
    }
}

#[test]
fn a_reader_that_leaves_keeps_its_place_until_its_thread_is_done() {
    one_blocking_thread().block_on(async {
        let host = host_on(&faulty(), Limits::default()).await;
        let conversation = conversation(&host);
        let asked = Message::user("x".repeat(300 * 1024));
        conversation.import(vec![asked]).await.unwrap();
        let reads = host.0.tenants.get(&scope().tenant).reads().clone();
        let (open, gate) = std::sync::mpsc::channel::<()>();
        let waits = tokio::task::spawn_blocking(move || gate.recv());

        let left = Box::pin(conversation.rounds()).now_or_never();
        assert!(left.is_none(), "it was asked for, and its reader leaves");
        assert_eq!(reads.available_permits(), TENANT_READS_MAX - 1);

        drop(open);
        waits.await.unwrap().unwrap_err();
        until("its thread is done", || {
            reads.available_permits() == TENANT_READS_MAX
        })
        .await;
    });
}

/// A clock that looks, whenever a worker thread reads it, whether other tasks go on meanwhile.
#[derive(Default)]
struct Meanwhile {
    /// How long to look; zero does not look.
    wait_ms: AtomicU64,
    /// The turns of another task.
    turns: AtomicU64,
    /// Whether other tasks went on at some time.
    went_on: AtomicBool,
}

impl Clock for Arc<Meanwhile> {
    fn now(&self) -> Timestamp {
        let turns = || self.turns.load(Ordering::Relaxed);
        let before = turns();
        let until = Instant::now() + Duration::from_millis(self.wait_ms.load(Ordering::Relaxed));
        let is_worker = std::thread::current().name() == Some("worker");
        while is_worker && Instant::now() < until {
            if turns() > before + 1 {
                self.went_on.store(true, Ordering::Relaxed);
                break;
            }
            std::thread::yield_now();
        }
        Timestamp(1_795_300_000_000)
    }
}

#[test]
fn a_large_history_that_is_imported_or_copied_stops_no_other_conversation() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).thread_name("worker");
    let runtime = runtime.enable_all().build().unwrap();
    let clock = Arc::new(Meanwhile::default());
    let others = clock.clone();
    runtime.spawn(async move {
        loop {
            others.turns.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    runtime.block_on(async {
        let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
        let builder = HostBuilder::new(clock.clone(), SeededEntropy::new(7), |host| host);
        let host = builder.shared_provider(model).build().await.unwrap();
        for (length, is_large) in [(10, false), (300 * 1024, true)] {
            let tenant = host.tenant("acme");
            let original = tenant.conversation(format!("original-{length}"));
            let copy = format!("copy-{length}");
            for awake in [&original, &tenant.conversation(copy.as_str())] {
                awake.resume().await.unwrap();
            }
            let message = Message::user("x".repeat(length));
            // One thread that goes on needs no long look; one that is stopped is not seen to go on
            // however long that is.
            let wait_ms = if is_large { 20_000 } else { 20 };
            clock.wait_ms.store(wait_ms, Ordering::Relaxed);

            original.import(vec![message]).await.unwrap();
            assert_eq!(clock.went_on.swap(false, Ordering::Relaxed), is_large);
            original.fork(copy.as_str(), None).await.unwrap();
            assert_eq!(clock.went_on.swap(false, Ordering::Relaxed), is_large);

            clock.wait_ms.store(0, Ordering::Relaxed);
        }
    });
    runtime.shutdown_background();
}

#[tokio::test]
async fn large_histories_of_a_tenant_are_in_no_other_tenants_way_and_keep_their_places() {
    let host = host_on(&faulty(), Limits::default()).await;
    let compactor = CompactorRef::new(
        CompactionSettings::default(),
        MetricsCollectorRef::default(),
    );
    let [flood, calm] = ["flood", "calm"].map(|id| host.0.tenants.get(&id.parse().unwrap()));
    let mut gates = Vec::new();
    let mut floods = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (open, gate) = std::sync::mpsc::channel::<()>();
        let (compactor, flood) = (compactor.clone(), flood.clone());
        gates.push(open);
        floods.spawn(async move { compactor.on_pool(&flood, move || gate.recv()).await });
    }
    let free = || flood.measurements().available_permits();
    until("its places are taken", || free() == 0).await;

    assert_eq!(
        compactor.on_pool(&calm, || "counted").await,
        Some("counted")
    );

    // What has begun runs on when its caller has left, and counts for as long.
    floods.shutdown().await;
    assert_eq!(free(), 0);
    drop(gates);
    until("its places are free", || free() == TENANT_MEASUREMENTS_MAX).await;
}

/// A conversation that has a history, and the places of its tenant's reads.
async fn with_places(host: &Host) -> (ConversationHandle, Arc<Semaphore>) {
    let conversation = conversation(host);
    conversation.import(vec![Message::user("a")]).await.unwrap();
    let reads = host.0.tenants.get(&scope().tenant).reads().clone();
    (conversation, reads)
}

/// Imports a large history, whose caller leaves once it has `begun`. The place that the history
/// has is kept until the store goes on.
async fn keeps_its_place(
    sessions: &Sessions,
    (conversation, reads): (ConversationHandle, Arc<Semaphore>),
    begun: impl Fn() -> bool,
) {
    let import = tokio::spawn(async move {
        let large = Message::user("x".repeat(300 * 1024));
        conversation.import(vec![large]).await
    });
    until("it has begun", begun).await;
    import.abort();
    assert!(import.await.unwrap_err().is_cancelled());
    assert_eq!(reads.available_permits(), TENANT_READS_MAX - 1);

    sessions.release();
    until("its place is free again", || {
        reads.available_permits() == TENANT_READS_MAX
    })
    .await;
}

#[tokio::test]
async fn a_history_whose_caller_leaves_keeps_its_place_until_it_is_handled() {
    let sessions = faulty();
    let host = host_on(&sessions, Limits::default()).await;
    let asked = with_places(&host).await;
    host.hibernate_idle();
    until("it sleeps", || host.awake() == 0).await;
    // The host looks for open rounds when it starts: that read must not be the one that hangs.
    until("it has looked", || sessions.reads() >= 2).await;
    sessions.set_plan(FaultPlan::new().read(1, Fault::Hang));
    let before = sessions.reads();
    keeps_its_place(&sessions, asked, || sessions.reads() > before).await;
}

#[tokio::test]
async fn a_large_history_keeps_its_place_until_it_is_stored() {
    let sessions = faulty();
    let host = host_on(&sessions, Limits::default()).await;
    let asked = with_places(&host).await;
    sessions.set_plan(FaultPlan::new().append(1, Fault::Hang));
    let before = sessions.appends();
    keeps_its_place(&sessions, asked, || sessions.appends() > before).await;
}
