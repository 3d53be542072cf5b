//! The quota of stored bytes: requests that exceed it are refused before anything is stored, a
//! running round ends, and deletion and reset make room. A reset leaves no text of the conversation
//! in the store.

use std::sync::Arc;

use super::*;
use crate::{
    chat::Message,
    conversation::ConversationError,
    host::{FanOut, SendError, TaskFailure, TenantConfig},
    ids::{Scope, Seq, TenantId},
    journal::{Entry, EntryBody},
    ports::ListQuery,
    tenant::Quotas,
    testing::{Reply, ScriptedModel},
};

fn acme() -> TenantId {
    "acme".try_into().unwrap()
}

async fn bound(host: &Host, bytes: u64) {
    let quotas = Quotas {
        stored_bytes_max: Some(bytes),
        ..Quotas::default()
    };
    host.configure_tenant(&acme(), TenantConfig::new().quotas(quotas))
        .await
        .unwrap();
}

fn model() -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::answering(|_, _| Reply::text("An answer.")))
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, SendError>) {
    match result {
        Err(SendError::Conversation(ConversationError::Overloaded {
            what: "stored bytes of this tenant",
            retry_after_ms: 60_000,
        })) => {}
        other => panic!("not refused for what is stored: {other:?}"),
    }
}

async fn stored(store: &dyn SessionBackend) -> u64 {
    store.stored_bytes(&acme()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn no_way_of_storing_passes_the_quota_and_a_restart_keeps_it() {
    let store = store();
    let host = builder(&model())
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    bound(&host, 100_000).await;
    let one = host.tenant("acme").conversation("one");
    one.import(vec![Message::user("x".repeat(60_000))])
        .await
        .unwrap();

    // More than what is left of the quota.
    let large = "y".repeat(50_000);
    refused(one.import(vec![Message::user(large.clone())]).await);
    refused(one.inject(None, large.clone()).await);
    refused(one.send(large.clone()).await.map(drop));
    refused(one.fork("copy", None).await.map(drop));
    refused(
        host.tenant("acme")
            .conversation("new")
            .import(vec![Message::user(large.clone())])
            .await,
    );
    assert!(stored(&*store).await < 61_000, "a refusal stores nothing");
    one.inject(None, "z".repeat(39_000)).await.unwrap();
    host.tenant("other")
        .conversation("one")
        .import(vec![Message::user(large)])
        .await
        .unwrap();

    // With the quota used up, not one byte more is stored.
    bound(&host, stored(&*store).await).await;
    for _ in 0..2 {
        refused(one.inject(None, "x").await);
        refused(one.pin("x").await);
        refused(one.compact().await);
        refused(one.send("x").await.map(drop));
    }
    stop(&host, Duration::from_secs(1)).await;
    let next = builder(&model())
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    bound(&next, stored(&*store).await).await;
    refused(
        next.tenant("acme")
            .conversation("one")
            .inject(None, "x")
            .await,
    );
    assert!(next.tenant("acme").usage().unwrap().stored_bytes > 99_000);

    // A reset and a deletion make room.
    next.tenant("acme")
        .conversation("one")
        .reset()
        .await
        .unwrap();
    assert!(stored(&*store).await < 1000, "{}", stored(&*store).await);
    next.tenant("acme")
        .conversation("one")
        .inject(None, "x".repeat(50_000))
        .await
        .unwrap();
    next.tenant("acme")
        .conversation("one")
        .delete()
        .await
        .unwrap();
    assert_eq!(stored(&*store).await, 0);
    assert_eq!(
        next.tenant("acme")
            .conversation("two")
            .send("Hi")
            .await
            .unwrap()
            .outcome()
            .await
            .unwrap()
            .text,
        "An answer."
    );
}

#[tokio::test(start_paused = true)]
async fn many_at_once_do_not_pass_the_quota_together() {
    let store = store();
    let host = builder(&model())
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    bound(&host, 100_000).await;

    let imports = (0..50).map(|n| {
        let conversation = host.tenant("acme").conversation(format!("c-{n}").as_str());
        async move {
            conversation
                .import(vec![Message::user("x".repeat(10_000))])
                .await
                .is_ok()
        }
    });
    let taken = futures_util::future::join_all(imports)
        .await
        .into_iter()
        .filter(|taken| *taken)
        .count();

    assert!(
        (5..=9).contains(&taken) && stored(&*store).await <= 100_000,
        "{taken}, {}",
        stored(&*store).await
    );
}

/// A model that answers all calls late, so that all rounds that may run do so at once.
fn slow_model() -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::answering(|_, _| {
        Reply::text("An answer. ".repeat(100)).after(Duration::from_secs(1))
    }))
}

#[tokio::test(start_paused = true)]
async fn rounds_at_once_do_not_pass_the_quota_together() {
    const QUOTA: u64 = 300_000;
    let store = store();
    let host = builder(&slow_model())
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    bound(&host, QUOTA).await;

    let rounds = (0..400).map(|n| {
        let conversation = host.tenant("acme").conversation(format!("c-{n}").as_str());
        async move {
            let mut reply = conversation.send("Hi").await?;
            reply.outcome().await.unwrap();
            Ok::<_, SendError>(())
        }
    });
    let ended = futures_util::future::join_all(rounds).await;
    let answered = ended.iter().filter(|end| end.is_ok()).count();

    assert!((20..=40).contains(&answered), "{answered}");
    assert!(stored(&*store).await <= QUOTA, "{}", stored(&*store).await);
    let refusals: Vec<_> = ended.into_iter().filter(Result::is_err).collect();
    refusals.into_iter().for_each(refused);
}

#[tokio::test(start_paused = true)]
async fn tasks_of_fan_outs_wait_for_room_and_do_not_pass_the_quota_together() {
    const QUOTA: u64 = 300_000;
    let store = store();
    let host = builder(&slow_model())
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    bound(&host, QUOTA).await;

    let runs = (0..4).map(|_| {
        let host = &host;
        async move {
            let tasks = (0..100).map(|n| format!("Task {n}"));
            let run = host
                .tenant("acme")
                .fan_out(FanOut::over(tasks))
                .await
                .unwrap();
            run.finish().await.tasks
        }
    });
    let ends = futures_util::future::join_all(runs).await;
    let ends: Vec<_> = ends.iter().flatten().collect();
    let answered = ends.iter().filter(|end| end.outcome.is_ok()).count();

    // More than fit at once, and all that fit after one another; the last one alone takes what is left.
    assert_eq!(ends.len(), 400);
    assert!((60..=200).contains(&answered), "{answered}");
    let used = stored(&*store).await;
    assert!((QUOTA - 10_000..QUOTA + 5_000).contains(&used), "{used}");
    assert!(ends.iter().all(|end| match &end.outcome {
        Ok(_) => true,
        Err(TaskFailure { failure, .. }) => failure.code == "overloaded",
    }));
}

#[tokio::test(start_paused = true)]
async fn a_running_round_ends_before_its_next_model_call_when_the_quota_is_used_up() {
    let model = Arc::new(ScriptedModel::answering(|_, _| {
        Reply::tool("fill", &serde_json::json!({}))
    }));
    let (fill, starts) = probe("fill", EffectClass::Once, |_| async {
        Ok("x".repeat(20_000).into())
    });
    let store = store();
    let limits = crate::limits::Limits {
        tenant_stored_bytes_max: 50_000,
        ..Default::default()
    };
    let host = builder(&model)
        .shared_sessions(store.clone())
        .tool(fill)
        .limits(limits)
        .build()
        .await
        .unwrap();

    let mut round = conversation(&host).send("Fill it.").await.unwrap();
    let outcome = round.outcome().await;

    assert!(
        (2..=4).contains(&starts.load(Ordering::SeqCst)),
        "{outcome:?}"
    );
    let state = conversation(&host).state().await.unwrap();
    assert!(state.round.is_none(), "the round is over: {outcome:?}");
    let entries = store
        .entries(
            &Scope::new(acme(), "c-1".parse().unwrap()),
            Seq(0),
            usize::MAX,
        )
        .await
        .unwrap();
    match Entry::decode(entries.last().unwrap()).unwrap().body {
        EntryBody::RoundFinished {
            error: Some(failure),
            ..
        } => assert_eq!(failure.code, "stored_bytes"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_reset_no_earlier_message_is_stored_and_the_conversation_goes_on() {
    const CANARY: &str = "CANARY-OF-A-PROMPT";
    let store = store();
    let model = Arc::new(ScriptedModel::answering(|_, _| {
        Reply::text("CANARY-OF-AN-ANSWER")
    }));
    let host = builder(&model)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    let scope = Scope::new(acme(), "c-1".parse().unwrap());
    conversation(&host)
        .send(CANARY)
        .client_key("k")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    let before = store.head(&scope).await.unwrap();

    conversation(&host).reset().await.unwrap();

    let entries = store.entries(&scope, Seq(0), usize::MAX).await.unwrap();
    let text: Vec<u8> = entries
        .iter()
        .flat_map(|entry| entry.bytes.to_vec())
        .collect();
    assert!(
        !String::from_utf8(text).unwrap().contains("CANARY"),
        "{entries:?}"
    );
    assert_eq!(
        store.head(&scope).await.unwrap().seq,
        before.seq.next(),
        "the journal only grows"
    );

    // The conversation continues in this activation and in the next one, and its state contains
    // only what followed the reset.
    conversation(&host)
        .send("Again.")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    stop(&host, Duration::from_secs(1)).await;
    let next = builder(&model)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    let state = conversation(&next).state().await.unwrap();
    assert_eq!(
        (state.history.messages().len(), state.metrics.rounds),
        (2, 1)
    );
    conversation(&next)
        .send("And again.")
        .client_key("k")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    assert_eq!(conversation(&next).rounds().await.unwrap().len(), 2);
    let fork = conversation(&next).fork("copy", None).await.unwrap();
    assert_eq!(fork.messages().await.unwrap().len(), 4);
    conversation(&next).reset().await.unwrap();
    assert_eq!(conversation(&next).messages().await.unwrap(), []);
    assert_eq!(
        next.tenant("acme")
            .conversations(ListQuery::default())
            .await
            .unwrap()
            .len(),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn a_journal_of_a_newer_program_is_refused_by_name_and_not_marked_as_damaged() {
    let store = store();
    let host = builder(&model())
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    let scope = Scope::new(acme(), "c-1".try_into().unwrap());
    let entry = |seq, kind: &str, body: &str| crate::journal::StoredEntry {
        seq: Seq(seq),
        bytes: format!(r#"{{"v":1,"kind":"{kind}","epoch":1,"at":0,"body":{body}}}"#).into(),
    };
    let entries = vec![
        entry(1, "life_started", r#"{"nonce":1}"#),
        entry(2, "of_a_later_version", "{}"),
    ];
    crate::ports::AppendExt::append_and_wait(
        &*store,
        &scope,
        crate::journal::Head::default(),
        crate::ids::Epoch(1),
        entries,
        crate::stream::Open::None,
    )
    .await
    .unwrap();
    let talk = conversation(&host);

    let sent = talk.send("Hi").await.unwrap_err();
    let again = talk.send("Hi").await.unwrap_err();
    let read = talk.messages().await.unwrap_err();

    for error in [&sent, &again, &read] {
        assert_eq!(error.code(), "needs_newer_version", "{error}");
        assert!(error.to_string().contains("of_a_later_version"), "{error}");
    }
    let rows = store.list(&acme(), ListQuery::default()).await.unwrap();
    assert_eq!((rows.len(), &rows[0].failed), (1, &None));
}
