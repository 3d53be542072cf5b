//! `[[provider]]`: which server is asked, with which key, how often and how many at once.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::json;

use super::{Home, Ran, answers, home, home_with, provider};
use crate::support::model_server::{
    ModelServer, Reply, Step, anthropic_text, anthropic_tool, openai_text,
};

fn run(home: &Home, more: &[&str]) -> Ran {
    home.run(&[&["run", "--no-tools", "Hello"], more].concat())
}

/// Runs three subagents at once.
fn fan_out(home: &Home) -> Ran {
    std::fs::write(home.work().join("lines"), "a\nb\nc\n").unwrap();
    home.run(&["fanout", "Say {}", "--over", "lines", "--no-tools"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_is_asked_at_its_address_in_its_kind_with_its_key_and_model() {
    let claude = answers("of claude").await;
    let other = ModelServer::start([Reply::events(openai_text("of other"))]).await;
    let mut home = home(&format!(
        "{}model = \"claude-own\"\n\
         [[provider]]\nname = \"other\"\nkind = \"openai\"\nbase_url = \"{}\"\nmodel = \"own\"\napi_key_env = \"OTHER_KEY\"\n",
        provider("p", &claude),
        other.url_v1(),
    ));
    std::fs::write(home.work().join("key"), "sk-test-not-a-real-key").unwrap();
    home.variables
        .push(("OTHER_KEY", "sk-other-not-a-real-key".to_owned()));

    let first = run(&home, &[]).well().out;
    let second = run(&home, &["--provider", "other"]).well().out;

    assert_eq!(
        (first.as_str(), second.as_str()),
        ("of claude\n", "of other\n")
    );
    let asked = claude.requests().pop().unwrap();
    assert_eq!(
        (
            asked.line.as_str(),
            asked.header("x-api-key"),
            &asked.json()["model"]
        ),
        (
            "POST /v1/messages",
            Some("sk-test-not-a-real-key"),
            &json!("claude-own")
        )
    );
    let asked = other.requests().pop().unwrap();
    assert_eq!(
        (
            asked.line.as_str(),
            asked.header("authorization"),
            &asked.json()["model"]
        ),
        (
            "POST /v1/chat/completions",
            Some("Bearer sk-other-not-a-real-key"),
            &json!("own")
        )
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_call_is_made_again_as_often_as_the_provider_says() {
    let failing = ModelServer::start([Reply::status(500)]).await;
    let home = home_with(&failing, "retries_max = 1\nretry_delay_s = 0.01");

    let ran = run(&home, &[]);

    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(failing.requests().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fallback_is_asked_for_the_model_that_its_section_names() {
    let failing = ModelServer::start([Reply::status(500)]).await;
    let spare = answers("of the spare one").await;
    let home = home_with(
        &failing,
        &format!(
            "retries_max = 0\n[provider.fallback]\nprovider = \"spare\"\nmodel = \"claude-spare\"\n{}model = \"claude-usual\"\n",
            provider("spare", &spare)
        ),
    );

    assert_eq!(run(&home, &[]).well().out, "of the spare one\n");

    let asked = spare.requests().pop().unwrap().json();
    assert_eq!(asked["model"], "claude-spare");
}

/// Answers after a while, and keeps when each request came.
async fn slow() -> (ModelServer, Arc<Mutex<Vec<Instant>>>) {
    let came = Arc::new(Mutex::new(Vec::new()));
    let keep = came.clone();
    let server = ModelServer::answering(move |_| {
        keep.lock().push(Instant::now());
        Reply::events(anthropic_text("ok")).delay(Duration::from_millis(600))
    })
    .await;
    (server, came)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_gets_as_many_calls_at_once_as_its_section_says() {
    let (server, came) = slow().await;

    fan_out(&home_with(&server, "concurrency = 1")).well();

    let came = came.lock().clone();
    assert_eq!(came.len(), 3);
    assert!(came[2] - came[0] > Duration::from_millis(1100), "{came:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_gets_as_many_connections_as_its_section_says() {
    let (server, came) = slow().await;

    fan_out(&home_with(&server, "connections_max = 1")).well();

    let came = came.lock().clone();
    assert_eq!(came.len(), 3);
    assert!(came[2] - came[0] > Duration::from_millis(1100), "{came:?}");
}

/// The first answer asks for a tool, so the round needs a second call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_gets_as_many_requests_and_tokens_a_minute_as_its_section_says() {
    for (limit, calls) in [("rpm = 1", 1), ("tpm = 1", 1), ("", 2)] {
        let think = anthropic_tool("think", &json!({"thought": "hm"}));
        let server =
            ModelServer::start([Reply::events(think), Reply::events(anthropic_text("ok"))]).await;
        let home = home_with(&server, &format!("max_tokens = 100\n{limit}"));

        home.run(&["run", "--tools", "think", "--timeout", "3", "Hello"]);

        assert_eq!(server.requests().len(), calls, "{limit}");
    }
}

/// The stream never pauses long, and ends after a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_takes_no_longer_than_model_total_s() {
    let drips = (0..300).fold(Reply::stream(), |reply, _| {
        reply
            .send(": wait\n\n")
            .then(Step::Pause(Duration::from_millis(200)))
    });
    let server = ModelServer::start([drips]).await;
    let home = home_with(&server, "retries_max = 0\n[limits]\nmodel_total_s = 1");
    let begun = Instant::now();

    let ran = run(&home, &[]);

    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{ran:?}");
}
