//! Limits that a host configures: each test fails if its limit has no effect.

use futures_util::future::join_all;
use serde_json::json;

use super::*;
use crate::{
    host::SendError,
    ids::{Epoch, EventId, RoundId, Scope, Seq, TenantId},
    limits::Limits,
    ports::StreamKey,
    testing::{Fault, FaultPlan, FaultySessions, Reply, ScriptedModel},
};

async fn bounded(model: &Arc<ScriptedModel>, change: impl FnOnce(&mut Limits)) -> Host {
    let mut limits = Limits::default();
    change(&mut limits);
    builder(model).limits(limits).build().await.unwrap()
}

/// A model that thinks for a second.
fn slow() -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::always(
        Reply::text("ok").after(Duration::from_secs(1)),
    ))
}

#[tokio::test(start_paused = true)]
async fn a_batch_runs_as_many_tools_at_once_as_the_limit_says() {
    let running = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let (now, seen) = (running.clone(), most.clone());
    let (tool, _) = probe("look", EffectClass::Pure, move |_| {
        let (now, seen) = (now.clone(), seen.clone());
        async move {
            seen.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(1)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            Ok("seen".into())
        }
    });
    let batch = Reply::tool("look", &json!({"n": 1}))
        .and_tool("look", &json!({"n": 2}))
        .and_tool("look", &json!({"n": 3}));
    let model = Arc::new(ScriptedModel::replies([batch, Reply::text("ok")]));
    let limits = Limits {
        parallel_tools_max: 2,
        ..Limits::default()
    };
    let host = builder(&model).limits(limits).tools([tool]);
    let host = host.build().await.unwrap();

    let mut reply = conversation(&host).send("go").await.unwrap();
    reply.outcome().await.unwrap();

    assert_eq!(most.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_conversation_queues_as_many_prompts_as_the_limit_says() {
    let host = bounded(&slow(), |limits| limits.inbox_prompts_max = 1).await;

    let _runs = conversation(&host).send("one").await.unwrap();
    let _waits = conversation(&host).send("two").await.unwrap();
    let refused = conversation(&host).send("three").await;

    let Err(error) = refused else {
        panic!("there is no room for a third")
    };
    assert_eq!(error.code(), "inbox_full", "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_conversation_that_starts_holds_as_many_messages_as_the_limit_says() {
    // Reading the journal takes a second.
    let plan = FaultPlan::new().read(1, Fault::Slow(Duration::from_secs(1)));
    let limits = Limits {
        held_mail_max: 2,
        ..Limits::default()
    };
    let host = builder(&slow())
        .limits(limits)
        .shared_sessions(Arc::new(FaultySessions::new(store(), plan)))
        .build()
        .await
        .unwrap();

    let sends = (0..8).map(|n| {
        let conversation = conversation(&host);
        async move { conversation.send(format!("{n}")).await.map(|_| ()) }
    });
    let answers: Vec<Result<(), SendError>> = join_all(sends).await;

    let refused = answers.iter().filter(|answer| answer.is_err()).count();
    assert!(refused > 0 && refused < 8, "{answers:?}");
}

#[tokio::test(start_paused = true)]
async fn a_tenant_has_as_many_rounds_at_once_as_the_limit_says() {
    let host = bounded(&slow(), |limits| limits.tenant_turns_max = 1).await;
    let begun = tokio::time::Instant::now();

    let rounds = (0..3).map(|n| {
        let conversation = host.tenant("acme").conversation(format!("c-{n}").as_str());
        async move {
            let mut reply = conversation.send("go").await.unwrap();
            reply.outcome().await.unwrap();
        }
    });
    join_all(rounds).await;

    assert!(
        begun.elapsed() >= Duration::from_secs(3),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn as_many_calls_wait_for_a_permit_as_the_limit_says() {
    let host = bounded(&slow(), |limits| {
        limits.model_calls_max = 1;
        limits.model_waiting_max = 1;
    })
    .await;

    let rounds = (0..4).map(|n| {
        let conversation = host.tenant("acme").conversation(format!("c-{n}").as_str());
        async move {
            let mut reply = conversation.send("go").await.unwrap();
            reply.outcome().await.is_ok()
        }
    });
    let ends: Vec<bool> = join_all(rounds).await;

    assert_eq!(ends.iter().filter(|ok| !**ok).count(), 2, "{ends:?}");
}

#[tokio::test(start_paused = true)]
async fn as_many_bytes_of_a_conversation_wait_for_the_store_as_the_limit_says() {
    let plan = FaultPlan::new().append(2, Fault::Hang);
    let sessions = Arc::new(FaultySessions::new(store(), plan));
    let limits = Limits {
        journal_backlog_bytes: 1000,
        ..Limits::default()
    };
    let model = Arc::new(ScriptedModel::always(Reply::text("ok ".repeat(2000))));
    let host = builder(&model)
        .limits(limits)
        .shared_sessions(sessions.clone())
        .build()
        .await
        .unwrap();
    let _first = conversation(&host).send("one").await.unwrap();
    until("the answer waits for the store", || sessions.is_hanging()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;

    let refused = conversation(&host).send("two");
    let refused = tokio::time::timeout(Duration::from_secs(5), refused).await;

    let error = refused.expect("a refusal is immediate").err().unwrap();
    assert_eq!(error.code(), "overloaded", "{error}");
    sessions.release();
}

#[tokio::test(start_paused = true)]
async fn long_answers_of_a_tenant_are_written_two_at_a_time_and_short_ones_together() {
    for (words, at_once) in [(100, 6), (1_000_000, 2)] {
        let sessions = Arc::new(FaultySessions::new(store(), FaultPlan::new()));
        let model = Arc::new(ScriptedModel::always(
            Reply::text("x ".repeat(words)).after(Duration::from_secs(5)),
        ));
        let host = builder(&model).shared_sessions(sessions.clone());
        let host = host.build().await.unwrap();
        let mut rounds = Vec::new();
        for n in 0..6 {
            let talk = host.tenant("acme").conversation(format!("c-{n}"));
            rounds.push(talk.send("go").await.unwrap());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let slow = Fault::Slow(Duration::from_secs(15));
        sessions.set_plan(FaultPlan::new().append(1, slow));

        tokio::time::sleep(Duration::from_secs(9)).await;
        assert_eq!(sessions.appends(), at_once, "{words} words");

        for mut round in rounds {
            assert_eq!(round.outcome().await.unwrap().text.len(), 2 * words);
        }
    }
}

/// Stores the events of one finished round: 1000 deltas.
async fn a_round_of_events(host: &Host, n: u64) {
    let conversation = crate::ids::ConversationId::new(format!("c-{n}")).unwrap();
    let key = StreamKey {
        scope: Scope::new(TenantId::new("acme").unwrap(), conversation.clone()),
        round: RoundId::from_random(u128::from(n).to_be_bytes()),
    };
    let event = |at: u32| {
        Arc::new(StreamEvent {
            id: EventId {
                epoch: Epoch(1),
                seq: Seq(n + 1),
                n: at,
            },
            conversation_id: conversation.clone(),
            round_id: Some(key.round),
            kind: EventKind::TextDelta {
                text: "token ".into(),
            },
        })
    };
    let events = &host.ports().events;
    events
        .append(&key, (1..=1000).map(event).collect())
        .await
        .unwrap();
    events.mark_complete(&key).await.unwrap();
}

fn held(host: &Host) -> usize {
    host.ports().events.bytes(&TenantId::new("acme").unwrap())
}

#[tokio::test(start_paused = true)]
async fn events_of_a_round_are_kept_within_the_bytes_and_the_time_of_the_limits() {
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let usual = bounded(&model, |_| {}).await;
    let small = bounded(&model, |limits| limits.ring_bytes = 4096).await;
    let short = bounded(&model, |limits| {
        limits.ring_age = Duration::from_secs(2);
        limits.sweep = Duration::from_secs(1);
    })
    .await;
    for host in [&usual, &small, &short] {
        a_round_of_events(host, 1).await;
    }
    assert!(
        held(&small) * 4 < held(&usual),
        "{} {}",
        held(&small),
        held(&usual)
    );
    assert_eq!(held(&short), held(&usual));

    tokio::time::sleep(Duration::from_secs(20)).await;

    assert_eq!(held(&short), 0);
    assert!(held(&usual) > 0);
}

#[tokio::test(start_paused = true)]
async fn events_of_all_rounds_are_kept_within_the_bytes_of_the_limit() {
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let bound = 200_000;
    let host = bounded(&model, |limits| limits.events_bytes_max = bound).await;
    let usual = bounded(&model, |_| {}).await;

    for n in 0..20 {
        a_round_of_events(&host, n).await;
        a_round_of_events(&usual, n).await;
    }

    assert!(held(&usual) > 2 * bound, "{}", held(&usual));
    assert!(held(&host) <= bound, "{}", held(&host));
}

#[tokio::test(start_paused = true)]
async fn a_tenant_is_served_as_often_as_its_weight_says() {
    let model = Arc::new(ScriptedModel::always(
        Reply::text("ok").after(Duration::from_secs(1)),
    ));
    let host = bounded(&model, |limits| limits.model_calls_max = 1).await;
    let quotas = crate::tenant::Quotas {
        weight: 4,
        ..Default::default()
    };
    let heavy = TenantId::new("heavy").unwrap();
    let config = crate::host::TenantConfig::new().quotas(quotas);
    host.configure_tenant(&heavy, config).await.unwrap();
    let served = Arc::new(AtomicUsize::new(0));

    let rounds = (0..600).map(|n| {
        let tenant = ["heavy", "light"][n % 2];
        let conversation = host.tenant(tenant).conversation(format!("c-{n}").as_str());
        let served = (tenant == "heavy").then(|| served.clone());
        async move {
            let mut reply = conversation.send("go").await.unwrap();
            reply.outcome().await.unwrap();
            served.map(|served| served.fetch_add(1, Ordering::SeqCst));
        }
    });
    let all = join_all(rounds);
    let _ = tokio::time::timeout(Duration::from_millis(200_500), all).await;

    let served = served.load(Ordering::SeqCst);
    // Of 200: four fifths, less what the first turns take while the share of a turn is not known.
    assert!((145..=165).contains(&served), "{served} of 200");
}
