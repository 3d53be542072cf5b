//! When idle conversations leave memory.

use super::*;
use crate::{
    limits::Limits,
    scripted::{Reply, ScriptedModel},
};

/// Runs a round in a conversation.
async fn talk(host: &Host, conversation: &str) {
    let conversation = host.tenant("acme").conversation(conversation);
    let mut round = conversation.send("hello").await.unwrap();
    round.outcome().await.unwrap();
}

/// The names of the conversations that are awake, sorted.
fn awake(host: &Host) -> Vec<String> {
    let tenant = crate::ids::TenantId::new("acme").unwrap();
    let scopes = host.0.directory.awake_of(&tenant);
    let mut names: Vec<_> = scopes
        .iter()
        .map(|scope| scope.conversation.as_str().to_owned())
        .collect();
    names.sort();
    names
}

/// Lets the messages of a sweep be handled.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_conversation_sleeps_after_idle_s() {
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let limits = Limits {
        idle: Duration::from_secs(20),
        sweep: Duration::from_secs(1),
        ..Limits::default()
    };
    let host = builder(&model).limits(limits).build().await.unwrap();
    talk(&host, "c-1").await;

    tokio::time::sleep(Duration::from_secs(18)).await;
    assert_eq!(host.awake(), 1, "before its time");
    tokio::time::sleep(Duration::from_secs(4)).await;

    assert_eq!(host.awake(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_idle_conversation_sleeps_after_minutes_by_default() {
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let host = host(&model).await;
    talk(&host, "c-1").await;

    tokio::time::sleep(Duration::from_secs(4 * 60)).await;
    assert_eq!(host.awake(), 1);
    tokio::time::sleep(Duration::from_secs(3 * 60)).await;

    assert_eq!(host.awake(), 0);
}

#[tokio::test(start_paused = true)]
async fn idle_conversations_with_too_many_bytes_sleep_the_oldest_first() {
    let model = Arc::new(ScriptedModel::always(Reply::text("x".repeat(100_000))));
    let limits = Limits {
        idle_bytes_max: 500_000,
        ..Limits::default()
    };
    let host = builder(&model).limits(limits).build().await.unwrap();
    for n in 0..4 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        talk(&host, &format!("c-{n}")).await;
    }
    settle().await;
    assert_eq!(awake(&host).len(), 4, "440,000 bytes are within the bound");

    for n in 4..6 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        talk(&host, &format!("c-{n}")).await;
    }
    tokio::time::sleep(Duration::from_secs(120)).await; // The sweep.
    settle().await;

    assert_eq!(
        awake(&host),
        ["c-2", "c-3", "c-4", "c-5"],
        "the excess, and a quarter of the bound"
    );
    talk(&host, "c-0").await;
}

#[tokio::test(start_paused = true)]
async fn too_many_idle_conversations_sleep_the_oldest_first() {
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        let text = request.messages.last().map(|message| message.text());
        match text.as_deref() {
            Some("wait") => Reply::stall(),
            Some(_) | None => Reply::text("ok"),
        }
    }));
    let limits = Limits {
        idle_conversations_max: 8,
        ..Limits::default()
    };
    let host = builder(&model).limits(limits).build().await.unwrap();
    let working = host.tenant("acme").conversation("working");
    let round = working.send("wait").await.unwrap();
    for n in 0..8 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        talk(&host, &format!("c-{n}")).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    talk(&host, "c-0").await; // Used again: no longer the oldest.
    settle().await;
    assert_eq!(awake(&host).len(), 9, "the bound is not exceeded");

    for n in 8..10 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        talk(&host, &format!("c-{n}")).await;
    }
    settle().await;

    assert_eq!(
        awake(&host),
        ["c-0", "c-4", "c-5", "c-6", "c-7", "c-8", "c-9", "working"],
        "one over the bound, and a quarter of it"
    );
    talk(&host, "c-1").await;
    round.interrupt();
}

#[tokio::test(start_paused = true)]
async fn histories_that_become_idle_together_leave_within_seconds() {
    let model = Arc::new(ScriptedModel::always(
        Reply::text("x ".repeat(50_000)).after(Duration::from_secs(5)),
    ));
    let limits = Limits {
        idle_bytes_max: 400_000,
        ..Limits::default()
    };
    let host = builder(&model).limits(limits).build().await.unwrap();
    let mut rounds = Vec::new();
    for n in 0..12 {
        let conversation = host.tenant("acme").conversation(format!("c-{n}"));
        rounds.push(conversation.send("hello").await.unwrap());
    }
    for round in &mut rounds {
        round.outcome().await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(3)).await;

    // Of more than 100,000 bytes each.
    let awake = awake(&host).len();
    assert!(awake <= 3, "{awake}");
}

#[tokio::test(start_paused = true)]
async fn conversations_that_start_within_a_second_do_not_exceed_the_bound_for_its_length() {
    let model = Arc::new(ScriptedModel::answering(|_, _| Reply::text("ok")));
    let limits = Limits {
        idle_conversations_max: 8,
        ..Limits::default()
    };
    let host = builder(&model).limits(limits).build().await.unwrap();
    let began = tokio::time::Instant::now();
    for n in 0..100 {
        talk(&host, &format!("c-{n}")).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        let awake = awake(&host).len();
        assert!(awake <= 12, "{awake} of at most 8 idle ones, after {n}");
    }
    assert!(began.elapsed() < Duration::from_secs(1), "no second passed");
}
