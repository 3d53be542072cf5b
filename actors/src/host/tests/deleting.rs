//! Deletion of conversations in every state and during concurrent requests, and erasure of tenants.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::json;

use super::*;
use crate::{
    conversation::round::rules::ApprovalMode,
    host::{Reply as Round, TenantConfig},
    ids::{Scope, TenantId},
    journal::Durable,
    memory::MemoryArtifacts,
    ports::{Approval, ArtifactStore, FnTool, ListQuery},
    stream::Open,
    tenant::Quotas,
    testing::{FaultPlan, FaultySessions, Reply, ScriptedModel},
};

fn scope() -> Scope {
    Scope::new("acme".try_into().unwrap(), "c-1".try_into().unwrap())
}

/// Waits for the end of a watched round and returns the code of its error.
async fn end_of(mut round: Round) -> String {
    tokio::time::timeout(Duration::from_secs(20), round.outcome())
        .await
        .expect("the watcher sees the end")
        .unwrap_err()
        .code()
        .to_owned()
}

/// Asserts that nothing is stored or active, and that the id names a new conversation.
async fn is_gone(host: &Host, store: &Arc<dyn SessionBackend>) {
    assert_eq!(
        store.entries(&scope(), crate::ids::Seq(0), 10).await,
        Ok(Vec::new())
    );
    assert_eq!(host.awake(), 0);
    assert_eq!(
        conversation(host).state().await.unwrap(),
        Durable::default()
    );
}

#[tokio::test(start_paused = true)]
async fn deleting_what_is_not_there_says_so_and_what_sleeps_is_deleted_without_waking() {
    let model = Arc::new(ScriptedModel::always(Reply::text("hello")));
    let store = store();
    let host = builder(&model)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    assert_eq!(conversation(&host).delete().await, Ok(false));

    conversation(&host)
        .send("Hi")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    host.hibernate_idle();
    until("it sleeps", || host.awake() == 0).await;
    let lives = host.figures().await.total.lives;

    assert_eq!(conversation(&host).delete().await, Ok(true));
    assert_eq!(host.figures().await.total.lives, lives);
    is_gone(&host, &store).await;
    assert_eq!(conversation(&host).delete().await, Ok(false));
}

#[tokio::test(start_paused = true)]
async fn deleting_a_running_round_cancels_it_and_ends_its_watchers_and_callers() {
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        match request.messages.last().unwrap().text().as_str() {
            "new" => Reply::text("fresh"),
            _ => Reply::text("half").then_stall(),
        }
    }));
    let store = store();
    let host = builder(&model)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    let talk = conversation(&host);
    let running = talk.send("one").await.unwrap();
    let waiting = talk.send("two").await.unwrap();
    model.until(|counts| counts.started == 1).await;
    let watchers = tokio::spawn(async move { (end_of(running).await, end_of(waiting).await) });

    let deleted = talk.delete().await;

    assert_eq!(deleted, Ok(true));
    assert_eq!(
        watchers.await.unwrap(),
        ("deleted".into(), "deleted".into())
    );
    model.until(|counts| counts.dropped == 1).await;
    is_gone(&host, &store).await;
    assert_eq!(host.tenant("acme").prompts_under_way(), Ok(0));
    let mut fresh = talk.send("new").await.unwrap();
    assert_eq!(fresh.outcome().await.unwrap().text, "fresh");
    assert_eq!(
        model.last_request().unwrap().messages.len(),
        1,
        "nothing of the old one is known"
    );
}

#[tokio::test(start_paused = true)]
async fn a_deletion_gives_a_tool_the_grace_of_a_cancel_and_no_more() {
    let (listens, _) = probe("tool", EffectClass::Once, |context| async move {
        context.cancel.cancelled().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok("ended well".into())
    });
    let (deaf, _) = probe("deaf", EffectClass::Once, |_| std::future::pending());
    for (tool, name, longest) in [(listens, "tool", 1500), (deaf, "deaf", 3500)] {
        let model = Arc::new(ScriptedModel::always(Reply::tool(name, &json!({}))));
        let store = store();
        let host = builder(&model)
            .shared_sessions(store.clone())
            .tool(tool)
            .build()
            .await
            .unwrap();
        let _round = conversation(&host).send("go").await.unwrap();
        model.until(|counts| counts.started == 1).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let began = tokio::time::Instant::now();

        assert_eq!(conversation(&host).delete().await, Ok(true));

        let took = began.elapsed().as_millis();
        assert!((1000..longest).contains(&took), "{name}: {took} ms");
        is_gone(&host, &store).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_parked_round_is_deleted_awake_or_asleep() {
    for asleep in [false, true] {
        let tool = FnTool::raw(
            "tool",
            "A tool of the tests.",
            &json!({ "type": "object" }),
            |_: serde_json::Value, _| async { Ok(String::new()) },
            None,
        );
        let tool: Arc<dyn Tool> = Arc::new(tool.declare(|spec| spec.approval(Approval::ByMode)));
        let model = Arc::new(ScriptedModel::always(Reply::tool("tool", &json!({}))));
        let store = store();
        let host = builder(&model)
            .shared_sessions(store.clone())
            .tool(tool)
            .approval(ApprovalMode::Ask)
            .build()
            .await
            .unwrap();
        let mut round = conversation(&host).send("go").await.unwrap();
        while !matches!(
            round.next().await.unwrap().kind,
            EventKind::ApprovalRequired { .. }
        ) {}
        if asleep {
            tokio::time::sleep(Duration::from_millis(50)).await;
            host.hibernate_idle();
            until("it sleeps", || host.awake() == 0).await;
        }
        let watcher = tokio::spawn(end_of(round));
        tokio::task::yield_now().await;

        assert_eq!(
            conversation(&host).delete().await,
            Ok(true),
            "asleep: {asleep}"
        );

        assert_eq!(watcher.await.unwrap(), "deleted", "asleep: {asleep}");
        is_gone(&host, &store).await;
        assert_eq!(
            store.list_open(Open::Parked, None, None, 0).await,
            Ok(Vec::new())
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_conversation_that_is_loading_is_deleted_and_its_mail_refused() {
    let inner = Arc::new(MemorySessions::new());
    let model = Arc::new(ScriptedModel::always(Reply::text("hello")));
    let store = Arc::new(FaultySessions::new(inner.clone(), FaultPlan::new()));
    let host = builder(&model)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    conversation(&host)
        .send("Hi")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    host.hibernate_idle();
    until("it sleeps", || host.awake() == 0).await;
    store.set_plan(FaultPlan::new().read(1, crate::testing::Fault::Slow(Duration::from_secs(1))));
    let talk = conversation(&host);
    let prompt = tokio::spawn(async move { talk.send("Again").await.map(drop) });
    until("it loads", || store.reads() == 1).await;

    let deleted = conversation(&host).delete().await;

    assert_eq!(deleted, Ok(true));
    assert_eq!(prompt.await.unwrap().unwrap_err().code(), "deleted");
    let inner: Arc<dyn SessionBackend> = inner;
    is_gone(&host, &inner).await;
}

#[tokio::test(start_paused = true)]
async fn a_conversation_that_waits_after_a_crash_is_deleted_and_stays_so() {
    struct AlwaysPanics;
    impl crate::ports::Hook for AlwaysPanics {
        fn before_tool(&self, _: &Scope, _: &ToolSpec, _: &RawJson) -> crate::ports::Verdict {
            panic!("the hook always panics")
        }
    }
    let (tool, _) = probe("tool", EffectClass::Once, |_| async { Ok("ok".into()) });
    let model = Arc::new(ScriptedModel::always(Reply::tool("tool", &json!({}))));
    let store = store();
    let host = builder(&model)
        .shared_sessions(store.clone())
        .tools([tool])
        .hook(AlwaysPanics)
        .build()
        .await
        .unwrap();
    let round = conversation(&host).send("go").await.unwrap();
    let watcher = tokio::spawn(end_of(round));
    while host.figures().await.total.crashes == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    assert_eq!(conversation(&host).delete().await, Ok(true));

    assert_eq!(watcher.await.unwrap(), "deleted");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(host.figures().await.total.crashes, 1, "no next life begins");
    is_gone(&host, &store).await;
}

#[tokio::test(start_paused = true)]
async fn a_life_whose_store_is_away_is_ended_all_the_same() {
    let inner = Arc::new(MemorySessions::new());
    let store = Arc::new(FaultySessions::new(inner.clone(), FaultPlan::new()));
    let model = Arc::new(ScriptedModel::always(
        Reply::text("hello").after(Duration::from_secs(1)),
    ));
    let host = builder(&model)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    let _round = conversation(&host).send("Hi").await.unwrap();
    store.set_away(true);
    tokio::time::sleep(Duration::from_secs(2)).await;

    let away = conversation(&host).delete().await.unwrap_err();
    store.set_away(false);
    let deleted = conversation(&host).delete().await;

    assert_eq!((away.code(), deleted), ("store_unavailable", Ok(true)));
    let inner: Arc<dyn SessionBackend> = inner;
    is_gone(&host, &inner).await;
}

#[tokio::test(start_paused = true)]
async fn two_deletions_at_once_find_it_once_and_prompts_meanwhile_are_whole_or_refused() {
    let model = Arc::new(ScriptedModel::always(
        Reply::text("hello").after(Duration::from_millis(5)),
    ));
    for seed in 0..60u64 {
        let host = host(&model).await;
        let talk = conversation(&host);
        talk.send("first").await.unwrap();
        let one = talk.clone();
        let two = talk.clone();
        let deletions = tokio::spawn(async move { tokio::join!(one.delete(), two.delete()) });
        let mut prompts = Vec::new();
        for at in 0..8 {
            let talk = talk.clone();
            let wait = Duration::from_millis((seed * 7 + at * 3) % 23);
            prompts.push(tokio::spawn(async move {
                tokio::time::sleep(wait).await;
                talk.send(format!("prompt {at}"))
                    .client_key(format!("{at}"))
                    .await
            }));
        }

        let (one, two) = deletions.await.unwrap();
        let mut kept = 0;
        for prompt in prompts {
            match prompt.await.unwrap() {
                Ok(mut round) => match round.outcome().await {
                    Ok(_) => kept += 1,
                    // A watcher that reads after the events were dropped gets `expired`.
                    Err(error) => assert!(
                        ["deleted", "expired"].contains(&error.code()),
                        "seed {seed}: {error}"
                    ),
                },
                Err(error) => assert_eq!(error.code(), "deleted", "seed {seed}"),
            }
        }

        assert!(
            one.unwrap() | two.unwrap(),
            "seed {seed}: one of them deleted it"
        );
        let state = talk.state().await.unwrap();
        assert_eq!(
            state.history.messages().len(),
            kept * 2,
            "seed {seed}: a new conversation has what it answered, no more"
        );
        assert!(
            talk.messages()
                .await
                .unwrap()
                .iter()
                .all(|message| message.text() != "first"),
            "seed {seed}"
        );
        assert_eq!(
            host.tenant("acme").prompts_under_way(),
            Ok(0),
            "seed {seed}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_deleted_conversation_takes_its_artifacts_and_no_others() {
    let model = Arc::new(ScriptedModel::always(Reply::text("hello")));
    let artifacts: Arc<dyn ArtifactStore> = Arc::new(MemoryArtifacts::new(Arc::new(
        ManualClock::at(Timestamp(1)),
    )));
    let host = builder(&model)
        .artifacts(artifacts.clone())
        .build()
        .await
        .unwrap();
    let other = Scope::new(scope().tenant, "c-2".try_into().unwrap());
    let id = artifacts
        .store(scope(), "call".into(), Bytes::from_static(b"kept"))
        .await
        .unwrap();
    artifacts
        .store(other.clone(), "call".into(), Bytes::from_static(b"kept"))
        .await
        .unwrap();
    conversation(&host)
        .send("Hi")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    conversation(&host).delete().await.unwrap();

    assert!(artifacts.retrieve(scope(), id.clone()).await.is_err());
    assert!(artifacts.retrieve(other, id).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_erased_tenant_leaves_nothing_and_its_neighbour_everything() {
    let store = store();
    let artifacts = Arc::new(MemoryArtifacts::new(Arc::new(ManualClock::at(Timestamp(
        1,
    )))));
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        match request.messages.last().unwrap().text().as_str() {
            "hang" => Reply::stall(),
            _ => Reply::text("hello"),
        }
    }));
    let host = builder(&model)
        .shared_sessions(store.clone())
        .artifacts(artifacts.clone())
        .build()
        .await
        .unwrap();
    let acme: TenantId = "acme".try_into().unwrap();
    let other: TenantId = "acme2".try_into().unwrap();
    let quotas = Quotas {
        conversations_max: Some(100),
        ..Quotas::default()
    };
    host.configure_tenant(&acme, TenantConfig::new().quotas(quotas).model("own"))
        .await
        .unwrap();
    for tenant in [&acme, &other] {
        for n in 0..40 {
            let talk = host.tenant(tenant.clone()).conversation(format!("c-{n}"));
            talk.send("Hi").await.unwrap().outcome().await.unwrap();
            artifacts
                .store(
                    Scope::new(tenant.clone(), format!("c-{n}").try_into().unwrap()),
                    "call".into(),
                    Bytes::from(vec![n]),
                )
                .await
                .unwrap();
        }
    }
    let running = host
        .tenant("acme")
        .conversation("c-7")
        .send("hang")
        .await
        .unwrap();
    let running = tokio::spawn(end_of(running));
    let before = store.list(&other, ListQuery::default()).await;

    let erased = host.tenant("acme").erase().await.unwrap();

    assert_eq!(erased.conversations, 40);
    assert_eq!(running.await.unwrap(), "deleted");
    assert_eq!(
        (
            store.count(&acme).await,
            store.list(&other, ListQuery::default()).await
        ),
        (Ok(0), before)
    );
    let id = crate::ids::ArtifactId::from_content(&[7]);
    assert!(
        artifacts
            .retrieve(
                Scope::new(acme.clone(), "c-7".try_into().unwrap()),
                id.clone()
            )
            .await
            .is_err()
    );
    assert!(
        artifacts
            .retrieve(Scope::new(other, "c-7".try_into().unwrap()), id)
            .await
            .is_ok()
    );
    let usage = host.tenant("acme").usage().unwrap();
    assert_eq!(
        usage,
        crate::tenant::TenantUsage::default(),
        "the counters start at 0 again"
    );
    let of_tenants = host.figures().await.tenants;
    let own = of_tenants.iter().find(|(id, _)| id.as_str() == "acme");
    assert_eq!(
        own.map(|(_, figures)| figures),
        Some(&crate::metrics_collector::TenantReading::default()),
        "and so do the figures"
    );
    let mut again = host
        .tenant("acme")
        .conversation("c-7")
        .send("Hi")
        .await
        .unwrap();
    again.outcome().await.unwrap();
    let asked = model.last_request().unwrap();
    assert_eq!(
        (asked.messages.len(), &*asked.model),
        (1, "own"),
        "it is configured as it was, and knows nothing"
    );
    assert_eq!(host.0.tenants.get(&acme).quotas(), quotas);
}

#[tokio::test(start_paused = true)]
async fn prompts_and_imports_during_an_erasure_are_refused_or_erased() {
    let model = Arc::new(ScriptedModel::always(
        Reply::text("hello").after(Duration::from_millis(3)),
    ));
    for seed in 0..40u64 {
        let store = store();
        let host = builder(&model)
            .shared_sessions(store.clone())
            .build()
            .await
            .unwrap();
        for n in 0..4 {
            host.tenant("acme")
                .conversation(format!("c-{n}"))
                .send("Hi")
                .await
                .unwrap();
        }
        let erased = tokio::spawn({
            let tenant = host.tenant("acme");
            async move { tenant.erase().await }
        });
        let mut prompts = Vec::new();
        for n in 0..12u64 {
            let talk = host.tenant("acme").conversation(format!("d-{}", n % 5));
            prompts.push(tokio::spawn(async move {
                for _ in 0..(seed + n) % 9 {
                    tokio::task::yield_now().await;
                }
                talk.send("late")
                    .await
                    .map(drop)
                    .map_err(|error| error.code())
            }));
        }

        erased.await.unwrap().unwrap();
        let mut left = 0;
        for prompt in prompts {
            match prompt.await.unwrap() {
                Ok(()) => left += 1,
                Err(code) => assert!(
                    ["tenant_paused", "deleted"].contains(&code),
                    "seed {seed}: {code}"
                ),
            }
        }

        // Prompts that were admitted before the erasure are erased. A later prompt began a new
        // conversation.
        let stored = store
            .list(&"acme".try_into().unwrap(), ListQuery::default())
            .await
            .unwrap();
        assert!(
            stored
                .iter()
                .all(|summary| summary.conversation.as_str().starts_with("d-")),
            "seed {seed}: {stored:?}"
        );
        assert!(left > 0 || stored.is_empty(), "seed {seed}");
    }
}

/// A tool that records which tenants it was asked to forget.
struct Rememberer(ToolSpec, Arc<parking_lot::Mutex<Vec<TenantId>>>);

impl Tool for Rememberer {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn call(&self, _: RawJson, _: ToolContext) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async { Ok("kept".into()) })
    }

    fn forget<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<(), ToolError>> {
        Box::pin(async move {
            let mut forgotten = self.1.lock();
            forgotten.push(tenant.clone());
            if forgotten.len() == 1 {
                Err(ToolError::invalid("the disk is away"))
            } else {
                Ok(())
            }
        })
    }
}

#[tokio::test(start_paused = true)]
async fn an_erased_tenant_is_forgotten_by_its_tools_or_stays_closed() {
    let forgotten = Arc::default();
    let spec = ToolSpec::new("rememberer", "Keeps what it gets.", RawJson::empty_object());
    let tool: Arc<dyn Tool> = Arc::new(Rememberer(spec, Arc::clone(&forgotten)));
    let host = builder(&Arc::new(ScriptedModel::always(Reply::text("yes"))))
        .tool(tool)
        .build()
        .await
        .unwrap();
    host.tenant("acme")
        .conversation("c-1")
        .send("Hi")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    let failed = host.tenant("acme").erase().await;
    let refused = host
        .tenant("acme")
        .conversation("c-1")
        .send("Hi")
        .await
        .is_err();
    let erased = host.tenant("acme").erase().await;

    assert!(
        failed
            .unwrap_err()
            .to_string()
            .contains("rememberer: the disk is away")
            && refused
    );
    assert!(erased.is_ok());
    assert_eq!(*forgotten.lock(), vec![TenantId::new("acme").unwrap(); 2]);
    assert!(
        host.tenant("acme")
            .conversation("c-1")
            .send("Hi")
            .await
            .is_ok()
    );
}
