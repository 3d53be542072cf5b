//! The OpenAI-compatible API (Chat Completions).

use super::*;
use callboard_actors::{
    chat::ContentBlock,
    host::TenantConfig,
    memory::MemorySessions,
    ports::ListQuery,
    tenant::Quotas,
    testing::{FaultPlan, FaultySessions},
};

async fn chat(server: &Server, conversation: Option<&str>, wanted: Value) -> Response {
    let mut request = server.ask(Method::POST, "/openai/v1/chat/completions", ACME);
    if let Some(id) = conversation {
        request = request.header("x-conversation-id", id);
    }
    soon(with_json(request, &wanted).send()).await.unwrap()
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

fn assistant(text: &str) -> Value {
    json!({ "role": "assistant", "content": text })
}

async fn stored(server: &Server) -> usize {
    server
        .host
        .tenant("acme")
        .conversations(ListQuery::default())
        .await
        .unwrap()
        .len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_without_a_conversation_is_answered_and_leaves_nothing() {
    let server = Server::start(ScriptedModel::answering(|request, _| {
        Reply::text(format!("{} known", request.messages.len()))
    }))
    .await;
    let messages = json!([{ "role": "system", "content": "Be brief." }, user("hi"), assistant("ho"), user("and?")]);

    let answer = body(
        chat(
            &server,
            None,
            json!({ "model": "default", "messages": messages }),
        )
        .await,
    )
    .await;

    assert_eq!(
        (&answer["object"], &answer["choices"][0]["finish_reason"]),
        (&json!("chat.completion"), &json!("stop"))
    );
    assert_eq!(
        answer["choices"][0]["message"],
        json!({ "role": "assistant", "content": "3 known", "refusal": null })
    );
    assert!(
        answer["usage"]["total_tokens"].as_u64() > Some(0)
            && answer["created"].as_u64() > Some(1_700_000_000),
        "{answer}"
    );
    assert_eq!(stored(&server).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_with_the_usage_and_done() {
    let server = Server::start(ScriptedModel::always(
        Reply::text("one two three").chunks(3),
    ))
    .await;
    let wanted = json!({ "model": "default", "messages": [user("go")], "stream": true, "stream_options": { "include_usage": true } });

    let response = chat(&server, None, wanted).await;

    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let text = soon(response.text()).await.unwrap();
    let data: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .collect();
    assert_eq!(*data.last().unwrap(), "[DONE]");
    let chunks: Vec<Value> = data[..data.len() - 1]
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let text: String = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(
        (text.as_str(), &chunks[0]["choices"][0]["delta"]["role"]),
        ("one two three", &json!("assistant"))
    );
    let [.., last, usage] = chunks.as_slice() else {
        panic!("{chunks:?}")
    };
    assert_eq!(
        (&last["choices"][0]["finish_reason"], &usage["choices"]),
        (&json!("stop"), &json!([]))
    );
    assert!(usage["usage"]["completion_tokens"].as_u64() > Some(0));
    soon(async { while stored(&server).await != 0 {} }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bound_call_reads_nothing_stored_while_its_history_is_the_conversations() {
    let inner = Arc::new(MemorySessions::new());
    let sessions = Arc::new(FaultySessions::new(inner, FaultPlan::new()));
    let host = Host::builder()
        .shared_provider(Arc::new(ScriptedModel::answering(|_, call| {
            Reply::text(format!("answer {call}"))
        })))
        .shared_sessions(sessions.clone())
        .build()
        .await
        .unwrap();
    let server = Server::over(host, Setting::default()).await;
    let mut messages = Vec::new();
    let mut reads = Vec::new();
    for nth in 0..6 {
        messages.push(user(&format!("question {nth}")));
        let before = sessions.reads();
        let wanted = json!({ "model": "default", "messages": messages });
        let answer = chat(&server, Some("desk"), wanted).await;
        assert_eq!(answer.status(), 200);
        reads.push(sessions.reads() - before);
        messages.push(assistant(&format!("answer {nth}")));
    }

    assert_eq!(reads[1..], [0; 5], "{reads:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bound_call_sends_only_messages_that_its_conversation_does_not_have() {
    let model = Arc::new(ScriptedModel::answering(|_, call| {
        Reply::text(format!("answer {call}"))
    }));
    let server = Server::with(model.clone(), Setting::default()).await;
    let ask = async |messages: Value| {
        chat(
            &server,
            Some("desk"),
            json!({ "model": "default", "messages": messages }),
        )
        .await
    };

    let first = body(ask(json!([user("one")])).await).await;
    let second = body(ask(json!([user("one"), assistant("answer 0"), user("two")])).await).await;
    let differs = ask(json!([
        user("one"),
        assistant("another answer"),
        user("three")
    ]))
    .await;

    assert_eq!(first["choices"][0]["message"]["content"], "answer 0");
    assert_eq!(second["choices"][0]["message"]["content"], "answer 1");
    assert_eq!(differs.status(), 409);
    assert_eq!(body(differs).await["error"]["code"], "conversation_differs");
    assert_eq!(model.last_request().unwrap().messages.len(), 3);
    assert_eq!(
        body(server.get("/v1/conversations/desk/messages").await).await["total"],
        4
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_have_the_form_of_openai() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    let tools = json!([{ "type": "web_search" }]);
    let cases = [
        (
            json!({ "model": "default", "messages": [user("a")], "tools": tools }),
            422,
            "invalid_request_error",
            json!("tools.0.type"),
        ),
        (
            json!({ "model": "gpt-none", "messages": [user("a")] }),
            404,
            "invalid_request_error",
            json!("model"),
        ),
        (
            json!({ "model": "default", "messages": [] }),
            422,
            "invalid_request_error",
            json!("messages"),
        ),
        (
            json!({ "model": "default" }),
            422,
            "invalid_request_error",
            json!(null), // A field that is missing has no place.
        ),
    ];
    for (wanted, status, kind, param) in cases {
        let response = chat(&server, None, wanted.clone()).await;

        assert_eq!(response.status(), status, "{wanted}");
        let error = body(response).await;
        assert_eq!(
            (&error["error"]["type"], &error["error"]["param"]),
            (&json!(kind), &param),
            "{wanted}: {error}"
        );
        assert!(error["error"]["message"].is_string() && error["error"]["code"].is_string());
    }
    let refused = soon(server.client.get(server.url("/openai/v1/models")).send())
        .await
        .unwrap();
    assert_eq!(refused.status(), 401);
    assert_eq!(body(refused).await["error"]["type"], "authentication_error");
    let models = body(server.get("/openai/v1/models").await).await;
    assert_eq!(
        (&models["object"], &models["data"][1]["id"]),
        (&json!("list"), &json!("default"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_cancels() {
    let model = Arc::new(ScriptedModel::always(Reply::stall()));
    let server = Server::with(
        model.clone(),
        Setting {
            drain_within: Some(Duration::ZERO),
            ..Setting::default()
        },
    )
    .await;
    for (n, bound) in [(1, None), (2, Some("desk"))] {
        for (more, stream) in [(0, false), (1, true)] {
            let mut request = server.ask(Method::POST, "/openai/v1/chat/completions", ACME);
            if let Some(id) = bound {
                request = request.header("x-conversation-id", format!("{id}-{stream}"));
            }
            let wanted = json!({ "model": "default", "messages": [user("go")], "stream": stream });
            let asked = tokio::spawn(async move {
                with_json(request, &wanted)
                    .send()
                    .await
                    .unwrap()
                    .text()
                    .await
            });
            let count = (n - 1) * 2 + more + 1;
            soon(model.until(|counts| counts.started == count)).await;

            asked.abort();

            soon(model.until(|counts| counts.dropped == count)).await;
        }
    }
    soon(async { while stored(&server).await != 2 {} }).await;
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_beyond_the_rate_stores_no_history_and_counts_once() {
    let server = Server::start(ScriptedModel::answering(|_, _| Reply::text("ok"))).await;
    let two = Quotas {
        requests_per_minute: Some(2),
        ..Quotas::default()
    };
    server
        .host
        .configure_tenant(&tenant("acme"), TenantConfig::new().quotas(two))
        .await
        .unwrap();
    let wanted = json!({ "model": "default", "messages": [user("a"), assistant("b"), user("c")] });

    let mut statuses = Vec::new();
    for id in ["one", "two", "three", "four"] {
        statuses.push(
            chat(&server, Some(id), wanted.clone())
                .await
                .status()
                .as_u16(),
        );
    }

    assert_eq!(statuses, [200, 200, 429, 429]);
    assert_eq!(stored(&server).await, 2);
}

/// A request with a tool of the client.
fn with_tool(messages: Value) -> Value {
    let parameters = json!({ "type": "object" });
    let function = json!({ "name": "mine", "description": "Mine.", "parameters": parameters });
    json!({ "model": "default", "messages": messages,
        "tools": [{ "type": "function", "function": function }] })
}

/// A model that calls `mine` for each prompt, and repeats the results.
fn calls_mine() -> ScriptedModel {
    ScriptedModel::answering(|request, _| {
        let last = request.messages.last().unwrap();
        let results: Vec<String> = last
            .blocks()
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
async fn a_call_with_tools_is_stateless_without_a_conversation() {
    let server = Server::start(calls_mine()).await;

    let first = body(chat(&server, None, with_tool(json!([user("go")]))).await).await;
    let choice = &first["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{first}");
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!((calls.len(), stored(&server).await), (2, 0));
    let result = |call: &Value, text: &str| json!({ "role": "tool", "tool_call_id": call["id"], "content": text });
    // In another order than the calls.
    let messages = json!([
        user("go"),
        choice["message"],
        result(&calls[1], "two"),
        result(&calls[0], "one")
    ]);
    let last = body(chat(&server, None, with_tool(messages)).await).await;

    assert_eq!(last["choices"][0]["message"]["content"], "one, two");
    assert_eq!(stored(&server).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_conversation_the_round_waits_for_each_result() {
    let server = Server::start(calls_mine()).await;
    let desk = Some("desk");
    let first = body(chat(&server, desk, with_tool(json!([user("go")]))).await).await;
    let message = first["choices"][0]["message"].clone();
    let calls = message["tool_calls"].as_array().unwrap();
    let standing = body(server.get("/v1/conversations/desk").await).await;
    assert_eq!(standing["state"], "parked", "{standing}");
    let result = |call: &Value, text: &str| json!({ "role": "tool", "tool_call_id": call["id"], "content": text });

    let one = json!([user("go"), message, result(&calls[1], "two")]);
    let half = body(chat(&server, desk, with_tool(one)).await).await;
    let left = half["choices"][0]["message"]["tool_calls"]
        .as_array()
        .unwrap();
    assert_eq!((left.len(), &left[0]["id"]), (1, &calls[0]["id"]));
    let stranger = json!([user("go"), message, result(&json!({ "id": "other" }), "no")]);
    let refused = chat(&server, desk, with_tool(stranger)).await;
    assert_eq!(refused.status(), 404);
    let both = json!([user("go"), message, result(&calls[0], "one")]);
    let last = body(chat(&server, desk, with_tool(both)).await).await;

    assert_eq!(last["choices"][0]["message"]["content"], "one, two");
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    let total = body(server.get("/v1/conversations/desk/messages").await).await;
    assert_eq!(total["total"], 4, "one round");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_a_clients_tools_come_whole_in_one_chunk() {
    let server = Server::start(calls_mine()).await;
    let mut wanted = with_tool(json!([user("go")]));
    wanted["stream"] = json!(true);

    let text = soon(chat(&server, None, wanted).await.text())
        .await
        .unwrap();

    let chunks: Vec<Value> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: ")?.parse().ok())
        .collect();
    let calls: Vec<&Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].get(0))
        .collect();
    let shown: Vec<_> = calls
        .iter()
        .map(|call| {
            (
                call["index"].as_u64(),
                call["function"]["arguments"].as_str(),
            )
        })
        .collect();
    assert_eq!(
        shown,
        [(Some(0), Some("{\"n\":1}")), (Some(1), Some("{\"n\":2}"))],
        "{text}"
    );
    let last = chunks.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "tool_calls");
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    assert_eq!(stored(&server).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_is_served_below_v1_too_and_a_model_has_its_window() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    let wanted = json!({ "model": "default", "messages": [user("go")] });

    let answer = body(server.post("/v1/chat/completions", wanted).await).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "yes");
    for base in ["/v1", "/openai/v1"] {
        let model = body(server.get(&format!("{base}/models/default?a=b")).await).await;
        assert!(model["context_window"].as_u64() > Some(0), "{model}");
        assert_eq!(model["meta"]["n_ctx"], model["context_window"]);
        let none = server.get(&format!("{base}/models/none")).await;
        assert_eq!(none.status(), 404);
        assert_eq!(body(none).await["error"]["code"], "model_not_found");
    }
    assert_eq!(server.get("/v1/modelsx").await.status(), 404);
}

/// A response that is created with these fields beside the usual ones.
async fn respond(server: &Server, more: Value) -> Value {
    let mut wanted = json!({ "model": "default", "input": "go" });
    let fields = more.as_object().unwrap().clone();
    wanted.as_object_mut().unwrap().extend(fields);
    body(server.post("/openai/v1/responses", wanted).await).await
}

fn at(response: &Value, rest: &str) -> String {
    format!(
        "/openai/v1/responses/{}{rest}",
        response["id"].as_str().unwrap()
    )
}

/// The numbers and the data of a stream.
fn numbered(text: &str) -> Vec<(u64, Value)> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let data = data.map(|line| serde_json::from_str::<Value>(line).unwrap());
    data.map(|event| (event["sequence_number"].as_u64().unwrap(), event))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stored_response_is_read_again_whole_and_from_anywhere() {
    let model = ScriptedModel::always(Reply::text("one two three").chunks(3));
    let server = Server::start(model).await;
    let schema = json!({ "type": "object" });
    let more = json!({
        "stream": true, "instructions": "Be brief.", "max_output_tokens": 50,
        "tools": [{ "type": "function", "name": "mine", "parameters": schema }],
    });
    let wanted = json!({ "model": "default", "input": "go" });
    let mut wanted = wanted.as_object().unwrap().clone();
    wanted.extend(more.as_object().unwrap().clone());

    let first = server.post("/openai/v1/responses", wanted.into()).await;
    let first = numbered(&soon(first.text()).await.unwrap());
    let (last, end) = first.last().unwrap();
    let response = &end["response"];

    let whole = body(server.get(&at(response, "")).await).await;
    for field in [
        "id",
        "status",
        "output",
        "usage",
        "instructions",
        "max_output_tokens",
    ] {
        assert_eq!(whole[field], response[field], "{field}");
    }
    assert_eq!(whole["tools"][0]["name"], "mine");
    for (after, _) in &first {
        let rest = format!("?stream=true&starting_after={after}");
        let rest = numbered(
            &soon(server.get(&at(response, &rest)).await.text())
                .await
                .unwrap(),
        );
        assert!(rest.iter().all(|(number, _)| number > after));
        assert_eq!(
            rest.last().map(|(number, _)| number),
            Some(last).filter(|last| after < last)
        );
        let seen = first
            .iter()
            .filter(|(number, _)| number <= after)
            .chain(&rest);
        let text: String = seen
            .filter_map(|(_, event)| event["delta"].as_str())
            .collect();
        assert_eq!(text, "one two three", "after {after}");
    }
    let items = body(server.get(&at(response, "/input_items")).await).await;
    assert_eq!(items["data"].as_array().unwrap().len(), 1, "{items}");
    assert_eq!(
        items["data"][0]["content"],
        json!([{ "type": "input_text", "text": "go" }])
    );
    assert_eq!(items["has_more"], false);
    let others = server.ask(Method::GET, &at(response, ""), ZETA);
    assert_eq!(soon(others.send()).await.unwrap().status(), 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_response_of_a_round_that_waits_for_its_client_is_read_again() {
    let server = Server::start(calls_mine()).await;
    let tool = json!([{ "type": "function", "name": "mine" }]);
    let first = respond(&server, json!({ "tools": tool })).await;
    let output = |call: &Value| json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "seen" });
    let next = async |previous: &Value, call: &Value| {
        let more = json!({ "previous_response_id": previous["id"], "input": [output(call)] });
        respond(&server, more).await
    };

    let second = next(&first, &first["output"][2]).await;
    let third = next(&second, &second["output"][0]).await;

    assert_eq!(
        third["output"][0]["content"][0]["text"], "seen, seen",
        "{third}"
    );
    for response in [&first, &second, &third] {
        let again = body(server.get(&at(response, "")).await).await;
        for field in ["id", "status", "output", "usage"] {
            assert_eq!(again[field], response[field], "{field}");
        }
    }
    let items = body(server.get(&at(&third, "/input_items?order=asc")).await).await;
    let calls: Vec<&Value> = items["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["call_id"])
        .collect();
    assert_eq!(
        calls,
        [
            &first["output"][2]["call_id"],
            &first["output"][1]["call_id"]
        ],
        "{items}"
    );
    let page = body(server.get(&at(&third, "/input_items?limit=1")).await).await;
    assert_eq!(
        (&page["has_more"], &page["data"][0]),
        (&json!(true), &items["data"][1])
    );
    let rest = format!("/input_items?after={}", page["last_id"].as_str().unwrap());
    let rest = body(server.get(&at(&third, &rest)).await).await;
    assert_eq!(
        (&rest["has_more"], &rest["data"][0]),
        (&json!(false), &items["data"][0])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_has_every_field_of_its_form_also_when_it_is_read_again() {
    let server = Server::start(ScriptedModel::always(Reply::text("done"))).await;
    let tool = json!({ "type": "function", "name": "mine" });
    let sent = respond(&server, json!({ "tools": [tool] })).await;
    let read = body(server.get(&at(&sent, "")).await).await;

    for response in [&sent, &read] {
        let is_there = |field: &&str| response.get(*field).is_some();
        let nullable = ["max_tool_calls", "safety_identifier", "prompt_cache_key"];
        assert!(nullable.iter().all(is_there), "{response}");
        assert_eq!(response["background"], false);
        assert_eq!(response["service_tier"], "default");
        for (field, value) in [
            ("temperature", 1.0),
            ("top_p", 1.0),
            ("presence_penalty", 0.0),
            ("frequency_penalty", 0.0),
            ("top_logprobs", 0.0),
        ] {
            assert_eq!(response[field].as_f64(), Some(value), "{field}");
        }
        let times = ["created_at", "completed_at"].map(|field| response[field].as_u64());
        assert!(times[0].is_some() && times[0] <= times[1], "{response}");
        let tool = response["tools"][0].as_object().unwrap();
        assert!(
            ["description", "parameters", "strict"]
                .iter()
                .all(|field| tool.contains_key(*field)),
            "{tool:?}"
        );
    }
    let ends = [&sent, &read].map(|response| response["completed_at"].as_u64().unwrap());
    assert!(ends[0].abs_diff(ends[1]) <= 1, "{ends:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_in_the_background_needs_no_client_and_is_cancelled_on_request() {
    let model = Arc::new(ScriptedModel::replies([
        Reply::text("done"),
        Reply::stall(),
        Reply::stall(),
    ]));
    let server = Server::with(model.clone(), Setting::default()).await;
    let background = || json!({ "background": true });
    let status =
        async |response: &Value| body(server.get(&at(response, "")).await).await["status"].clone();

    let first = respond(&server, background()).await;
    assert_eq!(
        (&first["status"], &first["background"]),
        (&json!("in_progress"), &json!(true))
    );
    soon(async { while status(&first).await != "completed" {} }).await;

    let second = respond(&server, background()).await;
    soon(model.until(|counts| counts.started == 2)).await;
    assert_eq!(status(&second).await, "in_progress");
    let cancelled = body(server.post(&at(&second, "/cancel"), json!({})).await).await;
    assert_eq!(cancelled["status"], "cancelled", "{cancelled}");
    let again = body(server.post(&at(&second, "/cancel"), json!({})).await).await;
    assert_eq!(
        (&again["status"], status(&second).await),
        (&json!("cancelled"), json!("cancelled"))
    );
    let over = body(server.post(&at(&first, "/cancel"), json!({})).await).await;
    assert_eq!(over["status"], "completed");

    // A stream in the background is left by its client, and read to its end by another.
    let wanted = json!({ "model": "default", "input": "go", "background": true, "stream": true });
    let mut left = server.post("/openai/v1/responses", wanted).await;
    let begun = soon(left.chunk()).await.unwrap().unwrap();
    let begun = numbered(std::str::from_utf8(&begun).unwrap());
    let third = begun[0].1["response"].clone();
    soon(model.until(|counts| counts.started == 3)).await;
    drop(left);
    let read = server.get(&at(&third, "?stream=true")).await;
    assert_eq!(status(&third).await, "in_progress");
    server.post(&at(&third, "/cancel"), json!({})).await;
    let read = numbered(&soon(read.text()).await.unwrap());
    assert_eq!(read.last().unwrap().1["response"]["status"], "cancelled");

    let refused = respond(&server, json!({ "background": true, "store": false })).await;
    assert_eq!(refused["error"]["param"], "background");
    let none = json!({ "id": "resp_00_00000000-0000-4000-8000-000000000001_0" });
    assert_eq!(server.get(&at(&none, "")).await.status(), 404);
    // The number of the first entry with a zero before it.
    let (head, number) = first["id"].as_str().unwrap().rsplit_once('_').unwrap();
    let respelled = json!({ "id": format!("{head}_0{number}") });
    assert_eq!(server.get(&at(&respelled, "")).await.status(), 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_in_the_request_reaches_the_model_by_each_compatible_api() {
    let model = Arc::new(ScriptedModel::always(Reply::text("yes")));
    let server = Server::with(model.clone(), Setting::default()).await;
    // One pixel.
    let data = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7";
    let url = format!("data:image/gif;base64,{data}");
    let source = json!({ "type": "base64", "media_type": "image/gif", "data": data });
    let of = |part: Value| json!([{ "role": "user", "content": [part] }]);
    let whole = json!({ "type": "image_url", "image_url": { "url": url, "detail": "low" } });
    let input = of(json!({ "type": "input_image", "image_url": url }));
    let block = of(json!({ "type": "image", "source": source }));
    for (path, wanted) in [
        (
            "/openai/v1/chat/completions",
            json!({ "model": "default", "messages": of(whole) }),
        ),
        (
            "/openai/v1/responses",
            json!({ "model": "default", "input": input }),
        ),
        (
            "/anthropic/v1/messages",
            json!({ "model": "default", "max_tokens": 9, "messages": block }),
        ),
    ] {
        let answer = server.post(path, wanted).await;

        assert_eq!(answer.status(), 200, "{path}");
        let answer = body(answer).await;
        let seen = model
            .last_request()
            .unwrap()
            .messages
            .last()
            .unwrap()
            .blocks();
        let seen = serde_json::to_value(&seen).unwrap();
        assert_eq!(seen[0]["source"], source, "{path}: {seen}");
        if path.ends_with("responses") {
            let items = body(server.get(&at(&answer, "/input_items")).await).await;
            assert_eq!(items["data"][0]["content"][0]["image_url"], *url, "{items}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_a_compatible_api_ends_with_its_key() {
    let model = Arc::new(ScriptedModel::always(Reply::stall()));
    let server = Server::with(model.clone(), Setting::default()).await;
    let wanted = json!({ "model": "default", "input": "go", "background": true, "stream": true });
    let mut begun = server.post("/openai/v1/responses", wanted).await;
    let first = soon(begun.chunk()).await.unwrap().unwrap();
    let response = numbered(std::str::from_utf8(&first).unwrap())[0].1["response"].clone();
    let mut again = server.get(&at(&response, "?stream=true")).await;
    soon(model.until(|counts| counts.started == 1)).await;

    server.keys.remove(&KeyHash::from_key(ACME));

    for stream in [&mut begun, &mut again] {
        soon(async { while stream.chunk().await.unwrap().is_some() {} }).await;
    }
    assert_eq!(model.counts().dropped, 0, "it is in the background");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_attachment_is_named_where_the_client_wrote_it() {
    let server = Server::start(ScriptedModel::always(Reply::text("no"))).await;
    let url = "https://pictures.example/one.png";
    let part = json!({ "type": "image_url", "image_url": { "url": url } });
    let system = json!({ "role": "system", "content": "Be brief." });
    let messages = json!([system, { "role": "user", "content": [part] }]);
    let part = json!({ "type": "input_image", "image_url": url });
    let thought = json!({ "type": "reasoning", "summary": [] });
    let input = json!([system, thought, { "role": "user", "content": [part] }]);
    for (path, wanted, param) in [
        (
            "/openai/v1/chat/completions",
            json!({ "model": "default", "messages": messages }),
            "messages.1.content.0",
        ),
        (
            "/openai/v1/responses",
            json!({ "model": "default", "input": input }),
            "input.2.content.0",
        ),
    ] {
        let refused = body(server.post(path, wanted).await).await;

        assert_eq!(refused["error"]["code"], "attachment_remote", "{refused}");
        assert_eq!(refused["error"]["param"], param, "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_cut_is_incomplete_in_its_response() {
    let cut = Reply::text("So far").stop(callboard::chat::ProviderStop::MaxTokens);
    let server = Server::start(ScriptedModel::always(cut)).await;
    let sent = respond(&server, json!({})).await;
    let read = body(server.get(&at(&sent, "")).await).await;
    let stream = server.get(&at(&sent, "?stream=true")).await;
    let events = numbered(&stream.text().await.unwrap());
    let last = &events.last().unwrap().1["response"];

    for response in [&sent, &read, last] {
        assert_eq!(response["status"], "incomplete", "{response}");
        assert_eq!(response["output"][0]["status"], "incomplete", "{response}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_format_and_effort_of_a_response_have_all_their_fields() {
    let server = Server::start(ScriptedModel::always(Reply::text("{}"))).await;
    let schema = json!({ "type": "object", "properties": {} });
    let named = json!({ "type": "json_schema", "name": "answer", "schema": schema });
    for (wanted, kind) in [
        (json!({ "text": {}, "reasoning": {} }), "text"),
        (json!({ "text": { "format": null } }), "text"),
        (
            json!({ "text": { "format": { "type": "json_object" } } }),
            "json_object",
        ),
        (json!({ "text": { "format": named } }), "json_schema"),
    ] {
        let sent = respond(&server, wanted).await;
        let read = body(server.get(&at(&sent, "")).await).await;

        for response in [&sent, &read] {
            let format = response["text"]["format"].as_object().unwrap();
            assert_eq!(format["type"], kind, "{response}");
            if kind == "json_schema" {
                assert!(format.contains_key("description"), "{response}");
                assert_eq!(format["strict"], false, "{response}");
            }
            let reasoning = response["reasoning"].as_object().unwrap();
            assert!(reasoning.contains_key("effort") && reasoning.contains_key("summary"));
            assert_eq!(response["truncation"], "auto", "the host compacts");
        }
    }
}
