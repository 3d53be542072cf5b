//! Faults: providers that refuse, stall or break the connection, and a store that becomes
//! unavailable.

use std::{sync::Arc, time::Duration};

use serde_json::json;

use super::*;
use crate::{
    ports::{ProviderError, StreamKey, StreamStatus},
    testing::{FaultPlan, FaultySessions, Reply, ScriptedModel},
};

fn limited(retry_after: Option<Duration>) -> ProviderError {
    ProviderError::RateLimited {
        retry_after,
        message: "slow down".into(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_waits_as_asked_is_shown_and_repeats_no_text() {
    let refused = Reply::error(limited(Some(Duration::from_secs(7))));
    let model = Arc::new(ScriptedModel::replies([refused, Reply::text("now")]));
    let host = host(&model).await;
    let began = tokio::time::Instant::now();

    let mut reply = conversation(&host).send("Hi").await.unwrap();
    let mut events = Vec::new();
    while let Some(event) = reply.next().await {
        events.push(event);
    }

    assert!(began.elapsed() >= Duration::from_secs(7));
    assert_eq!(
        kinds(&events),
        [
            "round_started",
            "retry",
            "text_delta",
            "usage",
            "message",
            "round_finished"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_of_an_hour_fails_at_once_and_says_so() {
    let model = Arc::new(ScriptedModel::always(Reply::error(limited(Some(
        Duration::from_secs(3600),
    )))));
    let host = host(&model).await;
    let began = tokio::time::Instant::now();

    let error = conversation(&host)
        .send("Hi")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap_err();

    assert!(began.elapsed() < Duration::from_secs(1));
    let crate::host::OutcomeError::Failed { end } = error else {
        panic!("{error}")
    };
    assert_eq!(end.error.unwrap().retry_after_ms, Some(3_600_000));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_breaks_keeps_its_text_and_runs_no_tool() {
    let broken = ProviderError::Connection {
        message: "reset".into(),
    };
    let (tool, starts) = probe("tool", EffectClass::Pure, |_| async { Ok("ok".into()) });
    let reply = Reply::text("half")
        .and_tool("tool", &json!({}))
        .then_fail(broken);
    let model = Arc::new(ScriptedModel::replies([reply, Reply::text("whole")]));
    let host = builder(&model).tools([tool]).build().await.unwrap();
    let conversation = conversation(&host);

    let error = conversation
        .send("Hi")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap_err();
    conversation
        .send("Again")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    assert_eq!(
        (error.code(), starts.load(Ordering::SeqCst)),
        ("provider_connection", 0)
    );
    let texts: Vec<String> = conversation
        .messages()
        .await
        .unwrap()
        .iter()
        .map(|m| m.text())
        .collect();
    assert_eq!(texts, ["Hi", "half", "Again", "whole"]);
    assert_eq!(model.last_request().unwrap().messages.first_fault(), None);
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_and_one_without_end_become_errors() {
    for (reply, code) in [
        (Reply::text("x").then_stall(), "provider_timeout"),
        (Reply::text("x").then_cut(), "provider_protocol"),
        (Reply::panic(), "provider_protocol"),
    ] {
        let model = Arc::new(ScriptedModel::always(reply));
        let host = host(&model).await;

        let error = conversation(&host)
            .send("Hi")
            .await
            .unwrap()
            .outcome()
            .await
            .unwrap_err();

        assert_eq!(error.code(), code);
    }
}

#[tokio::test(start_paused = true)]
async fn an_endless_answer_ends_at_its_bound_and_leaves_little_in_the_history() {
    let endless = Arc::new(ScriptedModel::replies([
        Reply::endless("x".repeat(64 * 1024)),
        Reply::text("well"),
    ]));
    let host = host(&endless).await;
    let talk = conversation(&host);

    let error = talk.send("Hi").await.unwrap().outcome().await.unwrap_err();

    assert_eq!(error.code(), "provider_protocol");
    assert!(error.to_string().contains("says more than"), "{error}");
    let partial = talk.messages().await.unwrap()[1].text();
    assert_eq!(partial.len(), crate::limits::PARTIAL_ANSWER_BYTES_MAX);
    let next = talk.send("Again").await.unwrap().outcome().await.unwrap();
    assert_eq!(next.text, "well");
}

#[tokio::test(start_paused = true)]
async fn control_characters_of_an_answer_count_as_many_bytes_as_a_history_keeps_of_them() {
    let answer = |text: &str| Reply::text(text.repeat(4 * 1024 * 1024 / text.len()));
    let model = Arc::new(ScriptedModel::replies([answer("\u{1}"), answer("x\n")]));
    let host = host(&model).await;
    let talk = conversation(&host);

    let error = talk.send("Hi").await.unwrap().outcome().await.unwrap_err();

    assert_eq!(error.code(), "provider_protocol");
    assert!(error.to_string().contains("says more than"), "{error}");
    let lines = talk.send("Again").await.unwrap().outcome().await.unwrap();
    assert_eq!(lines.text.trim_end().len(), 4 * 1024 * 1024 - 1);
}

#[tokio::test(start_paused = true)]
async fn a_failing_provider_gets_at_most_ten_percent_extra_calls() {
    let model = Arc::new(ScriptedModel::always(Reply::error(limited(None))));
    let host = host(&model).await;

    for index in 0..1000 {
        let talk = host.tenant("acme").conversation(format!("c-{index}"));
        assert!(talk.send("Hi").await.unwrap().outcome().await.is_err());
    }

    let calls = model.counts().started;
    assert!((1000..=1110).contains(&calls), "{calls}");
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_refuses_at_once_and_probes_with_one_call() {
    let down = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let is_down = down.clone();
    let model = Arc::new(ScriptedModel::answering(move |_, _| {
        let error = ProviderError::Server {
            status: 500,
            retry_after: None,
            message: "down".into(),
        };
        if is_down.load(Ordering::SeqCst) {
            Reply::error(error)
        } else {
            Reply::text("up")
        }
    }));
    let host = host(&model).await;
    let ask = |n: usize| {
        let talk = host.tenant("acme").conversation(format!("c-{n}"));
        async move { talk.send("Hi").await.unwrap().outcome().await }
    };
    let mut n = 0;
    while ask(n).await.unwrap_err().code() != "provider_breaker_open" {
        n += 1;
        assert!(n < 20, "the breaker never opened");
    }
    let calls = model.counts().started;

    assert_eq!(ask(100).await.unwrap_err().code(), "provider_breaker_open");
    assert_eq!(model.counts().started, calls);
    down.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(ask(101).await.unwrap().text, "up");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_goes_away_pauses_the_turn_and_loses_nothing() {
    let sessions = Arc::new(FaultySessions::new(
        Arc::new(crate::memory::MemorySessions::new()),
        FaultPlan::new(),
    ));
    let (tool, starts) = probe("tool", EffectClass::Once, |_| async { Ok("ok".into()) });
    let replies = [
        Reply::tool("tool", &json!({})).after(Duration::from_secs(1)),
        Reply::text("done"),
    ];
    let model = Arc::new(ScriptedModel::replies(replies));
    let host = builder(&model)
        .shared_sessions(sessions.clone())
        .tools([tool])
        .build()
        .await
        .unwrap();
    let mut reply = conversation(&host).send("go").await.unwrap();

    sessions.set_away(true);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(
        starts.load(Ordering::SeqCst),
        0,
        "a once tool waits for its entry"
    );
    sessions.set_away(false);
    let outcome = reply.outcome().await.unwrap();

    assert_eq!(
        (outcome.text.as_str(), starts.load(Ordering::SeqCst)),
        ("done", 1)
    );
    assert_eq!(conversation(&host).messages().await.unwrap().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_stays_away_ends_the_life_with_a_typed_error() {
    let sessions = Arc::new(FaultySessions::new(
        Arc::new(crate::memory::MemorySessions::new()),
        FaultPlan::new(),
    ));
    let replies = [
        Reply::text("late").after(Duration::from_secs(1)),
        Reply::text("back"),
        Reply::text("second"),
    ];
    let model = Arc::new(ScriptedModel::replies(replies));
    let host = builder(&model)
        .shared_sessions(sessions.clone())
        .build()
        .await
        .unwrap();
    let conversation = conversation(&host);
    let mut reply = conversation.send("one").await.unwrap();

    sessions.set_away(true);
    let error = reply.outcome().await.unwrap_err();
    assert_eq!(error.code(), "store_unavailable");
    sessions.set_away(false);
    while host.store_outage().is_some() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut next = conversation.send("two").await.unwrap();

    // The first prompt was accepted, so its round is resumed before the second prompt.
    assert_eq!(next.outcome().await.unwrap().text, "second");
    let texts: Vec<String> = conversation
        .messages()
        .await
        .unwrap()
        .iter()
        .map(|m| m.text())
        .collect();
    assert_eq!(texts, ["one", "back", "two", "second"]);
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_was_cancelled_while_the_store_was_away_never_begins() {
    let sessions = Arc::new(FaultySessions::new(
        Arc::new(crate::memory::MemorySessions::new()),
        FaultPlan::new(),
    ));
    let (tool, starts) = probe("tool", EffectClass::Once, |_| async { Ok("ok".into()) });
    let replies = [
        Reply::tool("tool", &json!({})).after(Duration::from_secs(1)),
        Reply::text("next"),
    ];
    let model = Arc::new(ScriptedModel::replies(replies));
    let host = builder(&model)
        .shared_sessions(sessions.clone())
        .tools([tool])
        .build()
        .await
        .unwrap();
    let conversation = conversation(&host);
    let mut reply = conversation.send("go").await.unwrap();

    sessions.set_away(true);
    tokio::time::sleep(Duration::from_secs(5)).await;
    reply.interrupt();
    tokio::time::sleep(Duration::from_secs(5)).await;
    sessions.set_away(false);
    let outcome = reply.outcome().await.unwrap();
    let next = conversation
        .send("and now?")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    assert_eq!(
        (outcome.stop_reason, next.text.as_str()),
        (crate::stream::StopReason::Interrupted, "next")
    );
    assert_eq!(starts.load(Ordering::SeqCst), 0);
    assert_eq!(model.last_request().unwrap().messages.first_fault(), None);
}

#[tokio::test(start_paused = true)]
async fn the_stream_of_a_round_ends_as_complete_or_as_failed() {
    let model =
        ScriptedModel::replies([Reply::error(ProviderError::Overloaded), Reply::text("ok")]);
    let host = host(&Arc::new(model)).await;
    let conversation = conversation(&host);
    for _ in 0..2 {
        let _ = conversation.send("Hi").await.unwrap().outcome().await;
    }

    let rounds = conversation.rounds().await.unwrap();
    let mut ends = Vec::new();
    for round in rounds {
        let stream = StreamKey {
            scope: conversation.scope().unwrap(),
            round: round.round_id,
        };
        ends.push(host.ports().events.get_status(&stream).await.unwrap());
    }

    assert_eq!(
        ends,
        [Some(StreamStatus::Failed), Some(StreamStatus::Complete)]
    );
}
