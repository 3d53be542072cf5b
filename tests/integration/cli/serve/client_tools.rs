//! Tools that a client brings: a call of one waits for the client while `serve` is killed and
//! started again.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{Home, Key, Served, configure};
use crate::support::model_server::{ModelServer, Reply, anthropic_text, anthropic_tool};

#[tokio::test(flavor = "multi_thread")]
async fn a_call_at_its_client_survives_a_kill_and_its_result_continues_the_round() {
    let model = ModelServer::start([
        Reply::events(anthropic_tool("weather", &json!({ "city": "Oslo" }))),
        Reply::events(anthropic_text("Take an umbrella.")),
    ])
    .await;
    let home = Home::new();
    std::fs::write(home.work().join("key"), "sk-test-not-a-real-key").unwrap();
    let acme = Key::new(&home);
    let config = format!(
        "[sandbox]\nmode = \"none\"\n[[provider]]\nname = \"p\"\nkind = \"anthropic\"\nbase_url = \"{}\"\napi_key_file = \"key\"\n\
         [[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\n",
        model.url(),
        acme.hash
    );
    configure(&home, &config);
    let mut served = Served::start(&home, &[]);
    let prompt = json!({
        "content": "Do I need an umbrella?",
        "tools": [{ "name": "weather", "description": "The weather of a city.",
            "input_schema": { "type": "object", "properties": { "city": { "type": "string" } } } }],
        "tool_choice": "any",
    });
    let path = "/v1/conversations/c/messages";
    let sent = served
        .ask_with(
            Method::POST,
            path,
            &acme.key,
            Some(prompt),
            &[("prefer", "respond-async")],
        )
        .await;
    assert_eq!(sent.status, StatusCode::ACCEPTED, "{sent:?}");
    let round = sent.body["round_id"].as_str().unwrap().to_owned();
    waits_for_client(&served, &acme).await;
    served.signal("KILL");
    served.wait_for_end();
    drop(served);

    let served = Served::start(&home, &[]);
    let standing = served.get("/v1/conversations/c", &acme.key).await.body;
    assert_eq!(standing["state"], "parked", "{standing}");
    assert_eq!(standing["waits_for"]["tool_call_ids"], json!(["t1"]));
    let result = async |content: &str| {
        let body = json!({ "results": [{ "tool_call_id": "t1", "content": content }] });
        let path = "/v1/conversations/c/tool_results";
        let answer = served.ask(Method::POST, path, &acme.key, Some(body)).await;
        answer.status
    };
    assert_eq!(result("rain").await, StatusCode::NO_CONTENT);
    assert_eq!(result("rain").await, StatusCode::NO_CONTENT, "sent again");
    assert_eq!(result("sun").await, StatusCode::CONFLICT, "another result");
    let events = served
        .text(
            Method::GET,
            &format!("/v1/conversations/c/events?round={round}&after=0.0.0"),
            &acme.key,
            None,
            &[],
        )
        .await;

    let order = [
        "event: client_tool_call",
        "event: turn_restarted",
        "event: tool_result",
        "event: round_finished",
    ]
    .map(|event| events.find(event));
    assert!(
        order.iter().all(Option::is_some) && order.is_sorted(),
        "{events}"
    );
    assert!(events.contains("Take an umbrella."), "{events}");
    let requests = model.requests();
    let first: Value = serde_json::from_slice(&requests[0].body).unwrap();
    assert_eq!(first["tool_choice"]["type"], "any", "{first}");
    let last: Value = serde_json::from_slice(&requests[1].body).unwrap();
    let answered = last["messages"][2]["content"][0].clone();
    assert_eq!(
        (&answered["tool_use_id"], &answered["content"]),
        (&json!("t1"), &json!("rain")),
        "{last}"
    );
    assert!(
        last.get("tool_choice")
            .is_none_or(|choice| choice["type"] == "auto")
    );
}

async fn waits_for_client(served: &Served, key: &Key) {
    let waits = async {
        loop {
            let standing = served.get("/v1/conversations/c", &key.key).await.body;
            if standing["waits_for"]["kind"] == "client" {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    let waits = tokio::time::timeout(Duration::from_secs(60), waits).await;
    waits.expect("the round waits for its client");
}
