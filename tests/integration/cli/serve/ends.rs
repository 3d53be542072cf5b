//! Shutdown: a drain, a second signal, and rounds that the next start resumes.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::{Method, StatusCode};
use serde_json::json;

use super::{Home, Key, Served, configure, wait_for};
use crate::support::model_server::{ModelServer, Reply, Step, anthropic_call, anthropic_text, sse};

/// Number of conversations with an open round.
const BUSY: usize = 200;

/// A host with one tenant and a scripted model.
fn over(home: &Home, model: &ModelServer) -> Key {
    let acme = Key::new(home);
    std::fs::write(home.work().join("key"), "sk-test-not-a-real-key").unwrap();
    configure(
        home,
        &format!(
            "[[provider]]\nname = \"slow\"\nkind = \"anthropic\"\nbase_url = \"{}\"\napi_key_file = \"key\"\n[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\n",
            model.url(),
            acme.hash
        ),
    );
    acme
}

async fn prompt(served: &Served, key: &str, number: usize) -> String {
    let path = format!("/v1/conversations/c{number}/messages");
    let answer = served
        .ask_with(
            Method::POST,
            &path,
            key,
            Some(json!({"content": "Go."})),
            &[("prefer", "respond-async")],
        )
        .await;
    assert_eq!(answer.status, StatusCode::ACCEPTED, "{answer:?}");
    answer.body["round_id"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_term_with_busy_conversations_ends_well_and_the_next_start_takes_the_rest_up() {
    let home = Home::new();
    let begun: String = sse(anthropic_text("So far").iter().take(3));
    let ends = || Reply::events(anthropic_text("In time."));
    let stalls = || Reply::stream().send(begun.clone()).then(Step::Stall);
    let model = ModelServer::start((0..BUSY).map(|n| {
        if n % 2 == 0 {
            ends().delay(Duration::from_millis(500))
        } else {
            stalls()
        }
    }))
    .await;
    let acme = over(&home, &model);
    let served = Served::start(&home, &["--grace", "3"]);
    let rounds = join_all((0..BUSY).map(|number| prompt(&served, &acme.key, number))).await;
    model.requests_came(BUSY).await;

    let first = served.stop();

    assert_eq!(first.code, Some(0), "{}", first.err);
    model.script((0..BUSY).map(|_| Reply::events(anthropic_text("Taken up."))));
    let again = Served::start(&home, &[]);
    again.wait_for_log("interrupted rounds resumed: ");
    let path = |number: usize| format!("/v1/conversations/c{number}/messages");
    let mut ends = [0, 0];
    for (number, round) in rounds.iter().enumerate() {
        let watched = again
            .client
            .get(format!(
                "{}/v1/conversations/c{number}/events?round={round}",
                again.url
            ))
            .bearer_auth(&acme.key);
        let watched = watched.send().await.unwrap().text().await.unwrap();
        assert!(
            watched.contains("event: round_finished"),
            "{number} {watched}"
        );
        let history = again.get(&path(number), &acme.key).await.body.to_string();
        assert!(
            history.contains("In time.") || history.contains("Taken up."),
            "{number} {history}"
        );
        ends[usize::from(history.contains("Taken up."))] += 1;
    }
    assert_eq!(ends, [BUSY / 2, BUSY / 2], "{}", again.err());
    assert_eq!(again.stop().code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_it_at_once_and_loses_nothing() {
    let home = Home::new();
    let stalls = || {
        Reply::stream()
            .send(sse(anthropic_text("So far").iter().take(3)))
            .then(Step::Stall)
    };
    let model = ModelServer::start([stalls(), stalls()]).await;
    let acme = over(&home, &model);
    let served = Served::start(&home, &["--grace", "60"]);
    prompt(&served, &acme.key, 0).await;
    model.requests_came(1).await;

    // A client that waits for another round.
    let waits = served
        .client
        .post(format!("{}/v1/conversations/c1/messages", served.url))
        .bearer_auth(&acme.key)
        .header("content-type", "application/json")
        .body(json!({"content": "Go."}).to_string());
    let waits = tokio::spawn(waits.send());
    model.requests_came(2).await;

    served.signal("TERM");
    served.wait_for_log("another signal stops at once");
    served.signal("TERM");
    let ended = served.end();

    assert_eq!(ended.code, Some(130), "{}", ended.err);
    let answer = waits.await.unwrap().unwrap();
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    let problem: serde_json::Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    assert_eq!(problem["code"], "draining", "{problem}");
    let detail = problem["detail"].as_str().unwrap();
    assert!(
        detail.contains("/v1/conversations/c1/events?round="),
        "{detail}"
    );
    model.script((0..2).map(|_| Reply::events(anthropic_text("Taken up."))));
    let again = Served::start(&home, &[]);
    again.wait_for_log("interrupted rounds resumed: 2");
    model.requests_came(4).await;
    assert_eq!(again.stop().code, Some(0));
}

/// A tool that runs when its host is killed may be what killed it, so a round is given up after
/// three such ends. A stop in order is none.
#[tokio::test(flavor = "multi_thread")]
async fn a_round_goes_on_after_any_number_of_orderly_stops_while_its_tool_runs() {
    const STOPS: usize = 4;
    let home = Home::new();
    let calls = (0..STOPS).map(|n| {
        let runs = json!({"command": format!("touch began-{n}; sleep 60")});
        Reply::events(anthropic_call(&format!("t{n}"), "bash", &runs))
    });
    let answer = Reply::events(anthropic_text("Still here."));
    let model = ModelServer::start(calls.chain([answer])).await;
    let acme = over(&home, &model);
    let workspace = home.work().join("of-acme");
    std::fs::create_dir(&workspace).unwrap();
    let file = home.work().join("callboard.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let tools = "workspace = \"of-acme\"\napprove = \"auto\"\ntools = [\"bash\"]\n";
    std::fs::write(&file, text + tools).unwrap();
    let mut served = Served::start(&home, &["--grace", "0.2"]);
    let round = prompt(&served, &acme.key, 0).await;

    for n in 0..STOPS {
        let began = workspace.join(format!("began-{n}"));
        wait_for("the command", || began.exists());
        assert_eq!(served.stop().code, Some(0));
        served = Served::start(&home, &["--grace", "0.2"]);
    }

    let events = format!("/v1/conversations/c0/events?round={round}");
    let watched = served
        .client
        .get(format!("{}{events}", served.url))
        .bearer_auth(&acme.key);
    let watched = watched.send().await.unwrap().text().await.unwrap();
    assert!(watched.contains("Still here."), "{watched}");
    assert_eq!(served.stop().code, Some(0));
}
