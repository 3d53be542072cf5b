//! Isolation of tenants: every request about another tenant's data gets the same answer as a
//! request about data that does not exist.

use std::{fmt::Debug, sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::json;

use super::*;
use crate::{
    conversation::Consent,
    host::ConversationHandle,
    ids::{ArtifactId, RoundId, Scope},
    memory::MemoryArtifacts,
    ports::{ArtifactStore, ListQuery},
    testing::{Reply, ScriptedModel},
};

/// The answer of a method as text, as a caller could print it.
fn summary<T: Debug, E: Debug + std::fmt::Display>(answer: Result<T, E>) -> String {
    match answer {
        Ok(value) => format!("ok {value:?}"),
        Err(error) => format!("error {error:?} {error}"),
    }
}

/// Calls every method that names existing data, in an order in which no call creates what a later
/// one looks for.
async fn ask_everything(talk: &ConversationHandle, round: RoundId) -> Vec<String> {
    let mut answers = vec![
        summary(talk.state().await),
        summary(talk.messages().await),
        summary(talk.rounds().await),
        summary(talk.interrupt().await),
        summary(talk.approve("toolu_1", true).await),
        summary(talk.approve("toolu_1", Consent::Always).await),
        summary(talk.rewind(round).await),
        summary(talk.fork("a-copy", None).await.map(drop)),
        summary(talk.fork("a-copy", Some(round)).await.map(drop)),
        summary(talk.resume().await.map(|round| round.is_some())),
        summary(talk.skills().await.map(drop)),
        summary(talk.activate_skill("a-skill").await),
        summary(talk.deactivate_skill("a-skill").await),
        summary(talk.compact().await),
    ];
    let mut watched = talk.watch(round).unwrap();
    let first = tokio::time::timeout(Duration::from_secs(5), watched.next()).await;
    answers.push(format!("{:?}", first.map(|event| event.is_some())));
    answers.push(summary(
        tokio::time::timeout(Duration::from_secs(5), watched.outcome())
            .await
            .unwrap_or(Err(crate::host::OutcomeError::Expired)),
    ));
    answers.push(summary(talk.delete().await));
    answers
}

#[tokio::test(start_paused = true)]
async fn no_tenant_sees_anothers_history_cache_artifacts_or_metrics() {
    let (tool, starts) = probe("tool", EffectClass::Once, |_| std::future::pending());
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        match request.messages.last().unwrap().text().as_str() {
            "hang" => Reply::tool("tool", &json!({})),
            _ => Reply::text("an answer for the first tenant"),
        }
    }));
    let artifacts = Arc::new(MemoryArtifacts::new(Arc::new(ManualClock::at(Timestamp(
        1,
    )))));
    let host = builder(&model)
        .tools([tool])
        .artifacts(artifacts.clone())
        .build()
        .await
        .unwrap();
    let owner = host.tenant("a").conversation("same");
    let mut finished = owner
        .send("a secret of the first tenant")
        .client_key("k")
        .await
        .unwrap();
    finished.outcome().await.unwrap();
    let running = owner.send("hang").await.unwrap();
    until("the tool runs", || starts.load(Ordering::SeqCst) == 1).await;
    let scope = |tenant: &str| Scope::new(tenant.try_into().unwrap(), "same".try_into().unwrap());
    let artifact = artifacts
        .store(
            scope("a"),
            "call".into(),
            Bytes::from_static(b"an artifact"),
        )
        .await
        .unwrap();
    let before = owner.state().await.unwrap();

    // Another tenant asks the same questions: about the first tenant's data, and about data that
    // does not exist.
    for round in [finished.round_id(), running.round_id()] {
        let there = ask_everything(&host.tenant("b").conversation("same"), round).await;
        let nowhere = ask_everything(
            &host.tenant("b").conversation("none"),
            RoundId::from_random([9; 16]),
        )
        .await;
        let nowhere: Vec<String> = nowhere
            .iter()
            .map(|answer| {
                answer.replace(
                    &RoundId::from_random([9; 16]).to_string(),
                    &round.to_string(),
                )
            })
            .collect();
        assert_eq!(there, nowhere);
    }
    let unknown = artifacts
        .retrieve(scope("b"), ArtifactId::from_content(b"nothing"))
        .await
        .unwrap_err()
        .to_string();
    let known = artifacts
        .retrieve(scope("b"), artifact.clone())
        .await
        .unwrap_err()
        .to_string();
    assert_eq!(
        known.replace(artifact.as_str(), "X"),
        unknown.replace(ArtifactId::from_content(b"nothing").as_str(), "X")
    );
    assert_eq!(
        host.tenant("b").conversations(ListQuery::default()).await,
        Ok(Vec::new())
    );

    // The same ids in another tenant are independent of the first tenant's.
    let own = host
        .tenant("b")
        .conversation("same")
        .send("a secret of the first tenant")
        .client_key("k")
        .await
        .unwrap();
    assert!(!own.is_replayed(), "a client key is its tenant's");
    assert_eq!(model.last_request().unwrap().messages.len(), 1);
    let usage = host.tenant("b").usage().unwrap();
    assert_eq!(
        (usage.prompts_admitted, usage.refused.total()),
        (1, 0),
        "its figures are its own"
    );
    assert_eq!(
        host.tenant("c").usage().unwrap(),
        crate::tenant::TenantUsage::default()
    );
    let erased = host.tenant("b").erase().await.unwrap();
    assert_eq!(erased.conversations, 1);
    assert_eq!(
        owner.state().await.unwrap(),
        before,
        "nothing that a stranger did is felt"
    );
    assert!(artifacts.retrieve(scope("a"), artifact).await.is_ok());
    running.interrupt();
}

#[tokio::test(start_paused = true)]
async fn no_tenant_is_answered_from_anothers_cache_or_joins_its_run() {
    let (pure, starts) = probe("pure", EffectClass::Pure, |_| async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok("a result".into())
    });
    let pure = cached(pure);
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        match request.messages.len() % 4 {
            1 => Reply::tool("pure", &json!({})),
            _ => Reply::text("done"),
        }
    }));
    let host = builder(&model).tools([pure]).build().await.unwrap();
    let talk = |tenant: &str| host.tenant(tenant.to_owned()).conversation("same");

    // Two tenants concurrently, and a third one later.
    let mut a = talk("a").send("go").await.unwrap();
    let mut b = talk("b").send("go").await.unwrap();
    a.outcome().await.unwrap();
    b.outcome().await.unwrap();
    talk("c").send("go").await.unwrap().outcome().await.unwrap();
    assert_eq!(starts.load(Ordering::SeqCst), 3, "one run a tenant");

    talk("a").send("go").await.unwrap().outcome().await.unwrap();
    assert_eq!(starts.load(Ordering::SeqCst), 3, "its own result answers");
    talk("a").delete().await.unwrap();
    talk("a").send("go").await.unwrap().outcome().await.unwrap();
    assert_eq!(
        starts.load(Ordering::SeqCst),
        4,
        "a deleted conversation's result does not"
    );
}

#[tokio::test(start_paused = true)]
async fn recall_answers_a_stranger_as_if_nothing_were_there() {
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        match request.messages.last().unwrap().text().as_str() {
            "recall" => Reply::tool("recall", &json!({ "span": "8:0-1" })),
            _ => Reply::text("noted"),
        }
    }));
    let (tool, _) = probe("tool", EffectClass::Pure, |_| async { Ok("ok".into()) });
    let host = builder(&model).tools([tool]).build().await.unwrap();
    for n in 0..3 {
        host.tenant("a")
            .conversation("same")
            .send(format!("secret {n}"))
            .await
            .unwrap()
            .outcome()
            .await
            .unwrap();
    }

    let mut results = Vec::new();
    for (tenant, conversation) in [("a", "same"), ("b", "same"), ("b", "none")] {
        host.tenant(tenant)
            .conversation(conversation)
            .send("recall")
            .await
            .unwrap()
            .outcome()
            .await
            .unwrap();
        results.push(
            model
                .last_request()
                .unwrap()
                .messages
                .last()
                .unwrap()
                .wire_str()
                .to_owned(),
        );
    }

    let body = |result: &str| result.split_once("\"content\":").unwrap().1.to_owned();
    assert!(
        results[0].contains("secret 0"),
        "its own is recalled: {}",
        results[0]
    );
    assert!(!results[1].contains("secret"), "{}", results[1]);
    assert_eq!(
        without_ids(&body(&results[1])),
        without_ids(&body(&results[2]))
    );
}

/// The text without tool call ids, which differ from call to call.
fn without_ids(text: &str) -> String {
    text.split('"')
        .filter(|part| !part.contains("toolu"))
        .collect()
}
