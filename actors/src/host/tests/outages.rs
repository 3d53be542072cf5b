//! Outages of the store: prompts are refused at once, open rounds wait, and everything resumes
//! without mail when the store is back.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::*;
use crate::{
    host::FanOut,
    ids::{ConversationId, Epoch, Scope, TenantId},
    journal::{Entry, EntryBody},
    limits::Limits,
    ports::AppendExt,
    stream::Open,
    testing::{FaultPlan, FaultySessions, Reply, ScriptedModel, TestSize},
};

type Sessions = Arc<FaultySessions<MemorySessions>>;

fn faulty() -> Sessions {
    Arc::new(FaultySessions::new(
        Arc::new(MemorySessions::new()),
        FaultPlan::new(),
    ))
}

fn scope(id: &str) -> Scope {
    Scope::new(
        TenantId::new("acme").unwrap(),
        ConversationId::new(id).unwrap(),
    )
}

async fn texts(sessions: &Sessions, id: &str) -> Vec<String> {
    let state = crate::conversation::load(&**sessions.inner(), &scope(id))
        .await
        .unwrap();
    let messages = state.history.messages().iter();
    messages.map(|message| message.text()).collect()
}

/// Waits until the stored history is `expected`, for at most `within`.
async fn stored(sessions: &Sessions, id: &str, expected: &[&str], within: Duration) {
    let began = Instant::now();
    while texts(sessions, id).await != expected {
        let now = texts(sessions, id).await;
        assert!(
            began.elapsed() <= within,
            "{id}: {now:?} instead of {expected:?}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_round_that_meets_an_outage_of_61_seconds_finishes_without_mail() {
    for read_only in [false, true] {
        let sessions = faulty();
        let model = Arc::new(ScriptedModel::replies([
            Reply::text("lost").after(Duration::from_secs(1)),
            Reply::text("back"),
        ]));
        let host = builder(&model)
            .shared_sessions(sessions.clone())
            .build()
            .await
            .unwrap();
        let mut reply = conversation(&host).send("one").await.unwrap();

        let away = |away| match read_only {
            true => sessions.set_read_only(away),
            false => sessions.set_away(away),
        };
        away(true);
        let error = reply.outcome().await.unwrap_err();
        assert_eq!(error.code(), "store_unavailable", "read only: {read_only}");
        tokio::time::sleep(Duration::from_secs(5)).await;
        away(false);

        stored(&sessions, "c-1", &["one", "back"], Duration::from_secs(1)).await;
        assert_eq!(model.counts().started, 2, "no call during the outage");
        assert_eq!(host.store_outage(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_can_be_read_but_not_written_refuses_prompts_at_once() {
    let sessions = faulty();
    let model = Arc::new(ScriptedModel::answering(|_, _| {
        Reply::text("done").after(Duration::from_secs(1))
    }));
    let host = builder(&model)
        .shared_sessions(sessions.clone())
        .build()
        .await
        .unwrap();
    let talk = |id: usize| host.tenant("acme").conversation(format!("c-{id}"));
    for id in 0..20 {
        drop(talk(id).send("go").await.unwrap());
    }

    sessions.set_read_only(true);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let appends = sessions.appends();
    for id in 0..40 {
        let began = Instant::now();
        let error = talk(id).send("more").await.unwrap_err();
        let took = began.elapsed();
        assert_eq!(error.code(), "store_unavailable");
        assert!(took < Duration::from_millis(100), "{took:?}");
        assert!(host.store_outage().is_some());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let tries = sessions.appends() - appends;
    assert!(
        tries <= 100,
        "one conversation at a time tries the store: {tries} times in 20 s"
    );

    sessions.set_read_only(false);
    for id in 0..20 {
        let id = format!("c-{id}");
        stored(&sessions, &id, &["go", "done"], Duration::from_secs(1)).await;
    }
    assert_eq!(host.store_outage(), None);
    assert_eq!(model.counts().started, 20);
    talk(30).send("again").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_limit_of_a_store_pause_is_configurable() {
    let sessions = faulty();
    let model = Arc::new(ScriptedModel::always(
        Reply::text("x").after(Duration::from_secs(1)),
    ));
    let limits = Limits {
        store_pause: Duration::from_secs(5),
        ..Limits::default()
    };
    let host = builder(&model)
        .shared_sessions(sessions.clone())
        .limits(limits)
        .build()
        .await
        .unwrap();
    let mut reply = conversation(&host).send("one").await.unwrap();
    sessions.set_away(true);
    let began = Instant::now();

    let error = reply.outcome().await.unwrap_err();

    assert_eq!(error.code(), "store_unavailable");
    let took = began.elapsed().as_secs();
    assert!((5..8).contains(&took), "{took} s");
}

#[tokio::test(start_paused = true)]
async fn an_outage_that_no_conversation_waits_for_lasts_until_a_write_succeeds() {
    let sessions = faulty();
    let model = Arc::new(ScriptedModel::always(Reply::text("x")));
    let host = builder(&model)
        .shared_sessions(sessions.clone())
        .build()
        .await
        .unwrap();
    sessions.set_read_only(true);
    let first = conversation(&host);
    let refused = tokio::spawn(async move { first.send("one").await.map(drop) });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(host.store_outage().is_some());
    conversation(&host).delete().await.unwrap();
    assert!(refused.await.unwrap().is_err());

    let appends = sessions.appends();
    for _ in 0..600 {
        let began = Instant::now();
        let error = conversation(&host).send("one").await.unwrap_err();
        assert_eq!(error.code(), "store_unavailable");
        assert!(began.elapsed() < Duration::from_millis(100));
        assert!(host.store_outage().is_some());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(sessions.appends(), appends, "no prompt tries the store");

    sessions.set_read_only(false);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(host.store_outage(), None);
    let mut reply = conversation(&host).send("two").await.unwrap();
    assert_eq!(reply.outcome().await.unwrap().text, "x");
}

#[tokio::test(start_paused = true)]
async fn an_append_of_the_own_past_that_lands_late_orphans_no_round() {
    let sessions = faulty();
    let model = Arc::new(ScriptedModel::answering(|_, _| {
        Reply::text("done").after(Duration::from_secs(1))
    }));
    let host = builder(&model)
        .shared_sessions(sessions.clone())
        .build()
        .await
        .unwrap();
    let mut reply = conversation(&host).send("go").await.unwrap();
    let head = sessions.inner().head(&scope("c-1")).await.unwrap();
    let late = Entry {
        seq: head.seq.next(),
        epoch: head.epoch,
        at: Timestamp(1_795_300_000_000),
        body: EntryBody::Injected {
            id: None,
            client_key: None,
            message: crate::chat::Message::user("and this"),
        },
    };
    assert!(head.epoch > Epoch(0));
    sessions
        .inner()
        .append_and_wait(
            &scope("c-1"),
            head,
            head.epoch,
            vec![late.encode()],
            Open::Running,
        )
        .await
        .unwrap();

    let outcome = tokio::time::timeout(Duration::from_secs(10), reply.outcome()).await;

    assert_eq!(outcome.expect("the round is resumed").unwrap().text, "done");
    assert_eq!(
        texts(&sessions, "c-1").await,
        ["go", "done", "and this", "done"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_fan_out_is_refused_at_once_during_an_outage() {
    let sessions = faulty();
    let model = Arc::new(ScriptedModel::always(Reply::text("done")));
    let host = builder(&model)
        .shared_sessions(sessions.clone())
        .build()
        .await
        .unwrap();
    let tenant = host.tenant("acme");
    drop(tenant.conversation("c-1").send("go").await.unwrap());
    sessions.set_read_only(true);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let _ = tenant.conversation("c-2").send("go").await;
    assert!(host.store_outage().is_some());

    let began = Instant::now();
    let refused = tenant.fan_out(FanOut::over(["a", "b"])).await;
    assert_eq!(
        refused.err().map(|error| error.code()),
        Some("store_unavailable")
    );
    assert!(began.elapsed() < Duration::from_millis(100));

    let run = tenant
        .fan_out(FanOut::over(["a", "b"]).ephemeral())
        .await
        .unwrap();
    let summary = run.finish().await;
    assert!(
        summary.tasks.iter().all(|task| task.outcome.is_ok()),
        "it stores nothing: {summary:?}"
    );
}

/// The appends, reads and listed rows of an outage of 30 s, beside one open round and this many
/// conversations that sleep.
async fn cost_of_an_outage(sleepers: usize) -> [u64; 3] {
    let sessions = faulty();
    let model = Arc::new(
        ScriptedModel::answering(|request, _| match request.messages.len() {
            1 => Reply::text("short"),
            _ => Reply::text("long").after(Duration::from_secs(20)),
        })
        .without_record(),
    );
    let host = builder(&model)
        .shared_sessions(sessions.clone())
        .build()
        .await
        .unwrap();
    for id in 0..sleepers {
        let talk = host.tenant("acme").conversation(format!("s-{id}"));
        let mut reply = talk.send("once").await.unwrap();
        reply.outcome().await.unwrap();
    }
    let open = conversation(&host);
    open.send("once").await.unwrap().outcome().await.unwrap();
    let mut reply = open.send("again").await.unwrap();
    // Most fall asleep when the store is away already.
    sessions.set_read_only(true);
    host.hibernate_idle();
    tokio::time::sleep(Duration::from_secs(25)).await;
    assert!(host.store_outage().is_some());
    assert_eq!(host.awake(), 1, "all others sleep");

    let spent = || [sessions.appends(), sessions.reads(), sessions.listed()];
    let before = spent();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(host.awake(), 1);
    sessions.set_read_only(false);
    assert_eq!(reply.outcome().await.unwrap().text, "long");
    assert_eq!(host.awake(), 1, "the end of the outage wakes none");
    let mut places = before.into_iter();
    spent().map(|spent| spent - places.next().unwrap())
}

#[tokio::test(start_paused = true)]
async fn sleeping_conversations_cost_nothing_during_an_outage() {
    let beside_none = cost_of_an_outage(0).await;
    let sleepers = TestSize::pick(1000, 5000, 5000);
    let beside_many = cost_of_an_outage(sleepers).await;

    assert!(beside_none[0] > 0, "the open round tries the store");
    for (many, none) in beside_many.into_iter().zip(beside_none) {
        assert!(many <= none + 5, "{beside_many:?}, {beside_none:?} alone");
    }
}
