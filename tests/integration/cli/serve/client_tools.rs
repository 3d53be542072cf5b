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
    let acme = Key::new(&home);
    serve_for(&home, &model, &acme);
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

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_response_is_read_again_after_a_kill_of_the_host() {
    let model = ModelServer::start([
        Reply::events(anthropic_tool("weather", &json!({ "city": "Oslo" }))),
        Reply::events(anthropic_text("Take an umbrella.")),
    ])
    .await;
    let home = Home::new();
    let acme = Key::new(&home);
    serve_for(&home, &model, &acme);
    let mut served = Served::start(&home, &[]);
    let responses = "/openai/v1/responses";
    let ask = async |served: &Served, more: Value| {
        let mut wanted = json!({ "model": "default" });
        wanted
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let sent = served
            .ask(Method::POST, responses, &acme.key, Some(wanted))
            .await;
        assert_eq!(sent.status, StatusCode::OK, "{sent:?}");
        sent.body
    };
    let tool = json!([{ "type": "function", "name": "weather" }]);
    let more = json!({ "input": "Do I need an umbrella?", "instructions": "Be brief.", "tools": tool, "background": true });
    let first = ask(&served, more).await;
    let first = format!("{responses}/{}", first["id"].as_str().unwrap());
    let at_client = served
        .text(
            Method::GET,
            &format!("{first}?stream=true"),
            &acme.key,
            None,
            &[],
        )
        .await;
    served.signal("KILL");
    served.wait_for_end();
    drop(served);

    let served = Served::start(&home, &[]);
    let again = served.get(&first, &acme.key).await.body;
    assert_eq!(
        (&again["status"], &again["instructions"]),
        (&json!("completed"), &json!("Be brief."))
    );
    let call = &again["output"][0];
    assert_eq!(
        (&call["type"], &call["call_id"]),
        (&json!("function_call"), &json!("t1"))
    );
    let replayed = served
        .text(
            Method::GET,
            &format!("{first}?stream=true"),
            &acme.key,
            None,
            &[],
        )
        .await;
    assert_eq!(
        kinds(&replayed),
        kinds(&at_client),
        "the same events with the same numbers"
    );
    let output = json!([{ "type": "function_call_output", "call_id": "t1", "output": "rain" }]);
    let second = ask(
        &served,
        json!({ "previous_response_id": again["id"], "input": output }),
    )
    .await;
    assert_eq!(
        second["output"][0]["content"][0]["text"], "Take an umbrella.",
        "{second}"
    );
    let cancelled = format!("{first}/cancel");
    let cancelled = served.ask(Method::POST, &cancelled, &acme.key, None).await;
    assert_eq!(
        cancelled.body["output"], again["output"],
        "it had ended: {cancelled:?}"
    );
}

/// The kinds and numbers of the events of a response.
fn kinds(events: &str) -> Vec<(Value, Value)> {
    let data = events
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    let data = data.map(|line| serde_json::from_str::<Value>(line).unwrap());
    data.map(|event| (event["type"].clone(), event["sequence_number"].clone()))
        .collect()
}

/// Configures a host with one tenant and this model.
fn serve_for(home: &Home, model: &ModelServer, key: &Key) {
    std::fs::write(home.work().join("key"), "sk-test-not-a-real-key").unwrap();
    let config = format!(
        "[sandbox]\nmode = \"none\"\n[[provider]]\nname = \"p\"\nkind = \"anthropic\"\nbase_url = \"{}\"\napi_key_file = \"key\"\n\
         [[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\n",
        model.url(),
        key.hash
    );
    configure(home, &config);
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
