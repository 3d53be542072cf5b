//! The Anthropic-compatible API (Messages).

use super::*;
use callboard_actors::{chat::ContentBlock, host::TenantConfig, ports::ListQuery, tenant::Quotas};

const MESSAGES: &str = "/anthropic/v1/messages";

/// A request with the key in `x-api-key`, as Anthropic's clients send it.
async fn ask(server: &Server, path: &str, wanted: Value) -> Response {
    let request = server
        .client
        .post(server.url(path))
        .header("x-api-key", ACME)
        .header("anthropic-version", "2023-06-01");
    soon(with_json(request, &wanted).send()).await.unwrap()
}

/// A request for a message, with these fields beside the usual ones.
fn wanted(messages: Value, more: Value) -> Value {
    let mut wanted = json!({ "model": "default", "max_tokens": 100, "messages": messages });
    let fields = more.as_object().unwrap().clone();
    wanted.as_object_mut().unwrap().extend(fields);
    wanted
}

fn user(content: impl Into<Value>) -> Value {
    json!({ "role": "user", "content": content.into() })
}

async fn stored(server: &Server) -> usize {
    let all = server.host.tenant("acme");
    all.conversations(ListQuery::default()).await.unwrap().len()
}

/// The events of a stream, in order.
fn events(text: &str) -> Vec<Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// A model that calls `mine` twice for each prompt, and repeats the results.
fn calls_mine() -> ScriptedModel {
    ScriptedModel::answering(|request, _| {
        let last = request.messages.last().unwrap().blocks();
        let results: Vec<String> = last
            .iter()
            .filter_map(|block| match block {
                ContentBlock::ToolResult(result) => Some(result.content.text().into_owned()),
                _ => None,
            })
            .collect();
        match results.is_empty() {
            true => Reply::text("Let me see.")
                .and_tool("mine", &json!({ "n": 1 }))
                .and_tool("mine", &json!({ "n": 2 })),
            false => Reply::text(results.join(", ")),
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_answered_and_leaves_nothing() {
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        Reply::text(format!("{} known", request.messages.len()))
    }));
    let server = Server::with(model.clone(), Setting::default()).await;
    let messages = json!([
        user("hi"),
        { "role": "assistant", "content": [{ "type": "text", "text": "ho" }] },
        user("and?"),
    ]);
    let more = json!({ "system": [{ "type": "text", "text": "Be brief." }], "stop_sequences": ["END"], "metadata": { "user_id": "u" } });

    let answer = ask(&server, MESSAGES, wanted(messages, more)).await;

    assert!(answer.headers().contains_key("request-id"));
    let answer = body(answer).await;
    assert_eq!(
        (&answer["type"], &answer["role"], &answer["stop_reason"]),
        (&json!("message"), &json!("assistant"), &json!("end_turn"))
    );
    assert_eq!(
        answer["content"],
        json!([{ "type": "text", "text": "3 known" }])
    );
    assert!(answer["usage"]["output_tokens"].as_u64() > Some(0));
    let asked = model.last_request().unwrap();
    assert_eq!((asked.max_tokens, &asked.stop[0]), (100, &"END".to_owned()));
    assert!(asked.messages.get(0).unwrap().text().contains("Be brief."));
    assert_eq!(stored(&server).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_has_the_events_of_a_message_in_order() {
    let server = Server::start(ScriptedModel::always(
        Reply::text("one two three").chunks(3),
    ))
    .await;

    let more = json!({ "stream": true });
    let response = ask(&server, MESSAGES, wanted(json!([user("go")]), more)).await;

    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let events = events(&soon(response.text()).await.unwrap());
    let mut kinds: Vec<&str> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    kinds.dedup();
    assert_eq!(
        kinds,
        [
            "message_start",
            "ping",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    let text: String = events
        .iter()
        .filter_map(|event| event["delta"]["text"].as_str())
        .collect();
    assert_eq!(text, "one two three");
    let end = &events[events.len() - 2];
    assert_eq!(end["delta"]["stop_reason"], "end_turn");
    assert!(end["usage"]["output_tokens"].as_u64() > Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_the_clients_tools_come_back_with_the_whole_history() {
    let server = Server::start(calls_mine()).await;
    let tools = json!({ "tools": [{ "name": "mine", "input_schema": { "type": "object" } }] });

    let first = body(
        ask(
            &server,
            MESSAGES,
            wanted(json!([user("go")]), tools.clone()),
        )
        .await,
    )
    .await;

    assert_eq!(first["stop_reason"], "tool_use", "{first}");
    let content = first["content"].as_array().unwrap();
    assert_eq!(content[1]["input"], json!({ "n": 1 }));
    let result = |call: &Value, text: &str| json!({ "type": "tool_result", "tool_use_id": call["id"], "content": text });
    // In another order than the calls, with a word of the user behind them.
    let results = json!([result(&content[2], "two"), result(&content[1], "one")]);
    let said = json!({ "role": "assistant", "content": content });
    let messages = json!([user("go"), said, user(results)]);
    let last = body(ask(&server, MESSAGES, wanted(messages, tools)).await).await;
    assert_eq!(last["content"][0]["text"], "one, two");
    assert_eq!(stored(&server).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thoughts_are_answered_and_taken_back() {
    let model = ScriptedModel::always(Reply::thinking("Hm, yes.").and_text("Yes."));
    let model = Arc::new(model);
    let server = Server::with(model.clone(), Setting::default()).await;

    let first = body(ask(&server, MESSAGES, wanted(json!([user("go")]), json!({}))).await).await;

    let thought = json!({ "type": "thinking", "thinking": "Hm, yes.", "signature": "" });
    let text = json!({ "type": "text", "text": "Yes." });
    assert_eq!(first["content"], json!([thought, text]));
    let said = json!({ "role": "assistant", "content": first["content"] });
    let more = json!({ "stream": true });
    let messages = json!([user("go"), said, user("and?")]);
    let streamed = ask(&server, MESSAGES, wanted(messages, more)).await;
    let events = events(&soon(streamed.text()).await.unwrap());
    let written = |field: &str| -> String {
        let pieces = events
            .iter()
            .filter_map(|event| event["delta"][field].as_str());
        pieces.collect()
    };
    assert_eq!(
        (written("thinking"), written("text")),
        ("Hm, yes.".into(), "Yes.".into())
    );
    let taken = model
        .last_request()
        .unwrap()
        .messages
        .get(1)
        .unwrap()
        .blocks();
    let ContentBlock::Thinking(taken) = &taken[0] else {
        panic!("{taken:?}")
    };
    assert_eq!((&*taken.thinking, &taken.signature), ("Hm, yes.", &None));
    for asked in ["adaptive", "disabled"] {
        let asked = wanted(
            json!([user("go")]),
            json!({ "thinking": { "type": asked } }),
        );
        let answer = ask(&server, MESSAGES, asked).await;
        assert_eq!(answer.status(), 200, "this provider has no such setting");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_have_the_form_of_anthropic() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    let hi = || json!([user("hi")]);
    let odd = json!([{ "type": "web_search_20250305", "name": "web_search" }]);
    let image = json!([{ "type": "image", "source": { "type": "url", "url": "https://example.com/a.png" } }]);
    let prefilled = json!([user("hi"), { "role": "assistant", "content": "The" }]);
    for (wanted, status, pointer) in [
        (
            wanted(hi(), json!({ "model": "claude-none" })),
            404,
            json!("/model"),
        ),
        (
            json!({ "model": "default", "messages": hi() }),
            400,
            json!(""),
        ),
        (
            wanted(hi(), json!({ "tools": odd })),
            400,
            json!("/tools/0/type"),
        ),
        (wanted(prefilled, json!({})), 400, json!("/messages")),
        (
            wanted(json!([user(image)]), json!({})),
            400,
            json!("/messages/0/content/0"),
        ),
        (
            wanted(hi(), json!({ "thinking": { "type": "enabled" } })),
            400,
            json!("/thinking/budget_tokens"),
        ),
        (
            wanted(hi(), json!({ "container": "c" })),
            400,
            json!("/container"),
        ),
        (
            wanted(hi(), json!({ "max_tokens": 0 })),
            400,
            json!("/max_tokens"),
        ),
    ] {
        let response = ask(&server, MESSAGES, wanted.clone()).await;

        assert_eq!(response.status(), status, "{wanted}");
        let id = response.headers()["request-id"]
            .to_str()
            .unwrap()
            .to_owned();
        let error = body(response).await;
        assert_eq!(
            (&error["type"], &error["error"]["details"]["pointer"]),
            (&json!("error"), &pointer),
            "{wanted}: {error}"
        );
        assert_eq!(error["request_id"], *id);
        assert!(error["error"]["message"].is_string() && error["error"]["type"].is_string());
    }
    assert_eq!(stored(&server).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_is_sent_in_either_header_and_only_this_api_reads_x_api_key() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    let status = async |path: &str, fields: &[(&str, String)]| {
        let request = server.client.get(server.url(path));
        let request = fields.iter().fold(request, |request, (name, value)| {
            request.header(*name, value)
        });
        soon(request.send()).await.unwrap().status().as_u16()
    };
    let models = "/anthropic/v1/models";
    let bearer = ("authorization", format!("Bearer {ACME}"));
    let key = ("x-api-key", ACME.to_owned());
    let both = [key, bearer];

    assert_eq!(status(models, &both[..1]).await, 200);
    assert_eq!(status(models, &both[1..]).await, 200);
    assert_eq!(status(models, &both).await, 401, "which of the two?");
    assert_eq!(
        status(models, &[("x-api-key", "cb_no".to_owned())]).await,
        401
    );
    assert_eq!(status(models, &[("x-api-key", String::new())]).await, 401);
    assert_eq!(status("/openai/v1/models", &both[..1]).await, 401);
    assert_eq!(status("/v1/conversations", &both[..1]).await, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_counted_without_a_model_call() {
    let model = Arc::new(ScriptedModel::always(Reply::text("yes")));
    let server = Server::with(model.clone(), Setting::default()).await;
    let count = async |text: &str, more: Value| {
        let wanted = wanted(json!([user(text)]), more);
        let counted = body(ask(&server, "/anthropic/v1/messages/count_tokens", wanted).await).await;
        counted["input_tokens"].as_u64().unwrap()
    };

    let short = count("hello", json!({})).await;
    let long = count(&"hello ".repeat(500), json!({})).await;
    let tool = json!({ "name": "mine", "description": "Does what I want.", "input_schema": { "type": "object" } });
    let with_tool = count("hello", json!({ "tools": [tool] })).await;

    assert!(short > 0 && long > short + 400, "{short} {long}");
    assert!(with_tool > short, "{short} {with_tool}");
    assert_eq!(model.counts().started, 0);
    assert_eq!(stored(&server).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bounds_of_a_tenant_hold_here_too() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    let two = Quotas {
        requests_per_minute: Some(2),
        ..Quotas::default()
    };
    let acme = tenant("acme");
    let config = TenantConfig::new().quotas(two);
    server.host.configure_tenant(&acme, config).await.unwrap();
    let history = json!([user("a"), { "role": "assistant", "content": "b" }, user("c")]);
    let count = "/anthropic/v1/messages/count_tokens";
    let refused = async |path: &str| {
        let answer = ask(&server, path, wanted(history.clone(), json!({}))).await;
        let status = answer.status().as_u16();
        let has_time = answer.headers().contains_key("retry-after");
        let kind = body(answer).await["error"]["type"].clone();
        (status, has_time, kind)
    };

    assert_eq!(refused(MESSAGES).await.0, 200);
    assert_eq!(refused(count).await.0, 200);
    let rate = (429, true, json!("rate_limit_error"));
    assert_eq!(refused(MESSAGES).await, rate);
    assert_eq!(refused(count).await, rate);
    server.host.tenant("acme").pause(true).unwrap();
    let paused = (529, true, json!("overloaded_error"));
    assert_eq!(refused(MESSAGES).await, paused);
    assert_eq!(refused(count).await, paused);
    assert_eq!(stored(&server).await, 0);
    let many = format!("[{}0]", "0,".repeat(1_000_001));
    let wide = format!("{{\"model\":\"default\",\"max_tokens\":1,\"messages\":{many}}}");
    let request = server.client.post(server.url(MESSAGES));
    let request = request
        .header("x-api-key", ACME)
        .header("content-type", "application/json");
    let wide = soon(request.body(wide).send()).await.unwrap();
    assert_eq!(wide.status(), 413);
    assert_eq!(body(wide).await["error"]["type"], "request_too_large");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_cancels_its_message() {
    let model = Arc::new(ScriptedModel::always(Reply::stall()));
    let server = Server::with(model.clone(), Setting::default()).await;
    for (count, stream) in [(1, false), (2, true)] {
        let wanted = wanted(json!([user("go")]), json!({ "stream": stream }));
        let request = with_json(server.ask(Method::POST, MESSAGES, ACME), &wanted);
        let asked = tokio::spawn(async move { request.send().await.unwrap().text().await });
        soon(model.until(|counts| counts.started == count)).await;

        asked.abort();

        soon(model.until(|counts| counts.dropped == count)).await;
    }
    soon(async { while stored(&server).await != 0 {} }).await;
}
