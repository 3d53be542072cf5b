//! MCP clients of the host that are hostile or broken, and the limits that hold for all. What a real
//! client does is in `tests/clients/mcp_client.py`.

use super::*;

/// A message, as a client of an older version sends it.
fn message(server: &Server, key: &str, body: String) -> RequestBuilder {
    server
        .ask(Method::POST, "/mcp", key)
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .body(body)
}

async fn sent(server: &Server, body: impl Into<String>) -> Response {
    soon(message(server, ACME, body.into()).send())
        .await
        .unwrap()
}

/// A call of a tool.
fn tool(name: &str, arguments: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}).to_string()
}

/// What each message of the newest version says about its client.
fn newer_meta(capabilities: &Value) -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": capabilities,
    })
}

/// A call of a tool, as a client of the newest version sends it.
pub(super) fn newer_call(name: &str, arguments: &Value) -> Value {
    let meta = newer_meta(&json!({}));
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments, "_meta": meta}})
}

/// A message of the newest version, of a client with these capabilities.
fn newer(
    server: &Server,
    key: &str,
    method: &'static str,
    mut params: Value,
    capabilities: &Value,
) -> RequestBuilder {
    params["_meta"] = newer_meta(capabilities);
    let name = params["name"].as_str().or(params["taskId"].as_str());
    let name = name.unwrap_or_default().to_owned();
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    message(server, key, body.to_string())
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", method)
        .header("mcp-name", name)
}

/// The answer in an event stream, or the document that an answer is.
async fn answer(response: Response) -> Value {
    let text = soon(response.text()).await.unwrap();
    let data = text.lines().find_map(|line| line.strip_prefix("data: {"));
    let json = data.map_or(text.clone(), |data| format!("{{{data}"));
    serde_json::from_str(&json).unwrap_or_else(|_| panic!("{text}"))
}

/// The line of a failed call.
async fn refusal(response: Response) -> String {
    let answer = answer(response).await;
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    answer["result"]["content"][0]["text"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn stalls() -> ScriptedModel {
    ScriptedModel::always(Reply::text("Half of it").then_stall())
}

/// Waits until the conversation has an open round.
async fn is_running(server: &Server, conversation: &str) {
    let path = format!("/v1/conversations/{conversation}");
    let running = async {
        loop {
            let state = body(server.get(&path).await).await;
            if state["round_id"].is_string() && state["waits_for"]["kind"] == "model" {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    soon(running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_message_is_refused_with_the_code_of_json_rpc() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let deep_params = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"send_prompt","arguments":{deep}}}}}"#
    );
    let ping = r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#;
    for (body, code, id) in [
        ("{", -32700, Value::Null),
        ("", -32700, Value::Null),
        (deep.as_str(), -32700, Value::Null),
        (deep_params.as_str(), -32700, Value::Null),
        ("7", -32600, Value::Null),
        (&format!("[{ping},{ping}]"), -32600, Value::Null),
        (r#"{"id":7,"method":"ping"}"#, -32600, json!(7)),
        (
            r#"{"jsonrpc":"1.0","id":"a","method":"ping"}"#,
            -32600,
            json!("a"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":7,"result":{}}"#,
            -32600,
            Value::Null,
        ),
        (
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/list","params":"x"}"#,
            -32600,
            json!(7),
        ),
    ] {
        let response = sent(&server, body).await;
        let status = response.status();
        let media = response.headers()["content-type"].clone();
        let answer = answer(response).await;

        let short: String = body.chars().take(80).collect();
        assert_eq!(status, 400, "{short}: {answer}");
        assert_eq!(media, "application/json");
        assert_eq!(answer["error"]["code"], code, "{short}: {answer}");
        assert!(answer["id"] == id || answer["id"].is_null(), "{answer}");
        let line = answer["error"]["message"].as_str().unwrap();
        assert!(!line.contains('\n') && line.len() < 300, "{line}");
    }
    let unknown = r#"{"jsonrpc":"2.0","id":7,"method":"tenants/delete"}"#;
    let unknown = answer(sent(&server, unknown).await).await;
    assert_eq!(unknown["error"]["code"], -32601, "{unknown}");
    let note = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    assert_eq!(sent(&server, note).await.status(), 202);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_in_a_browser_is_refused_whatever_name_led_it_here() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    let prompt = tool(
        "send_prompt",
        &json!({"prompt": "Hi", "conversation_id": "c"}),
    );

    let own = format!("http://{}", server.address);
    for origin in ["http://evil.example", "null", "http://localhost:3000", &own] {
        let request = message(&server, ACME, prompt.clone())
            .header("origin", origin)
            .header("host", "evil.example");
        let refused = soon(request.send()).await.unwrap();

        assert_eq!(problem(refused).await, (403, "origin_refused".into()));
    }
    let state = server.get("/v1/conversations/c").await;
    assert_eq!(state.status(), 404, "nothing was stored");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_needs_the_key_of_a_tenant() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#.to_owned();

    let unknown = soon(message(&server, "cb_unknown", list.clone()).send()).await;
    let operators = soon(message(&server, ADMIN, list.clone()).send()).await;
    let none = server.client.post(server.url("/mcp")).body(list);
    let none = soon(none.send()).await;

    let unauthorized = (401, "unauthorized".to_owned());
    assert_eq!(problem(unknown.unwrap()).await, unauthorized);
    assert_eq!(problem(none.unwrap()).await, unauthorized);
    let operators = problem(operators.unwrap()).await;
    assert_eq!(operators, (403, "tenant_key_needed".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_beyond_the_bound_of_bodies_is_413_and_other_methods_are_405() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    let giant = tool("send_prompt", &json!({"prompt": "x".repeat(2_000_000)}));

    let refused = sent(&server, giant).await;

    assert_eq!(problem(refused).await, (413, "too_large".into()));
    for method in [Method::GET, Method::DELETE] {
        let refused = soon(server.ask(method, "/mcp", ACME).send()).await.unwrap();
        assert_eq!(refused.headers()["allow"], "POST");
        assert_eq!(problem(refused).await, (405, "method_not_allowed".into()));
    }
    let one = message(&server, ACME, tool("list_conversations", &json!({})));
    let one = soon(one.header("accept", "application/json").send()).await;
    assert_eq!(one.unwrap().status(), 200, "the second `Accept` adds to it");
    let plain = server
        .ask(Method::POST, "/mcp", ACME)
        .header("content-type", "application/json")
        .header("accept", "application/json")
        .body(tool("list_conversations", &json!({})));
    let plain = soon(plain.send()).await.unwrap();
    assert_eq!(problem(plain).await, (406, "not_acceptable".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_progress_token_is_refused_because_every_notification_repeats_it() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    for (bytes, is_refused) in [(256, false), (257, true)] {
        let arguments = json!({"prompt": "hello"});
        let mut call: Value = serde_json::from_str(&tool("send_prompt", &arguments)).unwrap();
        call["params"]["_meta"] = json!({"progressToken": "t".repeat(bytes)});
        let answered = answer(sent(&server, call.to_string()).await).await;
        let code = is_refused.then_some(-32602);
        assert_eq!(answered["error"]["code"].as_i64(), code, "{bytes}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_tenants_conversation_is_an_unknown_one() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    server.send("private", "hello").await;

    for (name, id) in [
        ("read_conversation", "private"),
        ("read_conversation", "never-was"),
        ("cancel_round", "private"),
        ("get_round", "private"),
        ("read_conversation", "..%2f..%2facme/private"),
        ("read_conversation", "private/../private"),
        ("read_conversation", ""),
    ] {
        let call = tool(name, &json!({"conversation_id": id}));
        let refused = soon(message(&server, ZETA, call).send()).await.unwrap();
        let line = refusal(refused).await;

        match id {
            "private" | "never-was" => {
                assert_eq!(line, "there is no such conversation (code not_found)");
            }
            _ => assert!(!line.contains("yes"), "{line}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_one_open_request_and_one_event_stream_of_its_tenant() {
    let mut bounds = HttpBounds::default();
    bounds.requests_per_tenant_max = 1;
    let setting = Setting {
        bounds,
        ..Setting::default()
    };
    let server = Server::with(Arc::new(stalls()), setting).await;
    let prompt = tool(
        "send_prompt",
        &json!({"prompt": "Hi", "conversation_id": "c"}),
    );

    let held = sent(&server, prompt.clone()).await;
    let second = sent(&server, tool("list_conversations", &json!({}))).await;

    assert_eq!(problem(second).await, (429, "too_many_requests".into()));
    let of_zeta = message(&server, ZETA, tool("list_conversations", &json!({})));
    assert_eq!(soon(of_zeta.send()).await.unwrap().status(), 200);
    drop(held);

    let mut bounds = HttpBounds::default();
    bounds.streams_per_tenant_max = 1;
    let setting = Setting {
        bounds,
        ..Setting::default()
    };
    let server = Server::with(Arc::new(stalls()), setting).await;
    let _held = sent(&server, prompt).await;
    is_running(&server, "c").await;
    let second = tool("send_prompt", &json!({"prompt": "Hi"}));
    let line = refusal(sent(&server, second).await).await;
    assert!(line.contains("(code too_many_streams"), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_very_many_values_is_refused() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    let numbers = "1,".repeat(30_000);
    let ping = format!(
        r#"{{"jsonrpc":"2.0","id":7,"method":"ping","params":{{"_meta":{{"a":[{numbers}1]}}}}}}"#
    );

    let refused = sent(&server, ping).await;
    // No time goes into parsing it first: then its end would be missed.
    let unread = sent(&server, "[".repeat(30_000)).await;

    assert_eq!(problem(refused).await, (413, "too_large".into()));
    assert_eq!(problem(unread).await, (413, "too_large".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_key_ends_the_call_that_it_began() {
    let server = Server::start(stalls()).await;
    let prompt = tool(
        "send_prompt",
        &json!({"prompt": "Hi", "conversation_id": "c"}),
    );
    let call = sent(&server, prompt).await;
    is_running(&server, "c").await;

    server.keys.remove(&KeyHash::from_key(ACME));

    let line = refusal(call).await;
    assert!(line.contains("unknown key"), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_the_newer_version_that_leaves_ends_its_round_and_an_older_one_does_not() {
    let server = Server::start(stalls()).await;
    let call =
        json!({"name": "send_prompt", "arguments": {"prompt": "Hi", "conversation_id": "newer"}});
    let newer = newer(&server, ACME, "tools/call", call, &json!({}));
    let older = tool(
        "send_prompt",
        &json!({"prompt": "Hi", "conversation_id": "older"}),
    );
    let older = message(&server, ACME, older);

    let calls = [newer, older].map(|call| tokio::spawn(call.send()));
    for id in ["newer", "older"] {
        is_running(&server, id).await;
    }
    for call in calls {
        call.abort();
        drop(call.await);
    }

    let ended = async {
        loop {
            let state = body(server.get("/v1/conversations/newer").await).await;
            if state["round_id"].is_null() {
                return state["rounds"].clone();
            }
            tokio::task::yield_now().await;
        }
    };
    assert_eq!(soon(ended).await, 1);
    let state = body(server.get("/v1/conversations/older").await).await;
    assert!(state["round_id"].is_string(), "{state}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_ends_with_the_host_and_says_where_the_round_is() {
    let setting = Setting {
        drain_within: Some(Duration::from_millis(100)),
        ..Setting::default()
    };
    let server = Server::with(Arc::new(stalls()), setting).await;
    let prompt = tool(
        "send_prompt",
        &json!({"prompt": "Hi", "conversation_id": "c"}),
    );
    let call = sent(&server, prompt).await;
    is_running(&server, "c").await;

    let (answer, _) = tokio::join!(answer(call), server.end());

    let shown = &answer["result"]["structuredContent"];
    assert_eq!(shown["stop_reason"], "interrupted", "{answer}");
    assert_eq!(shown["text"], "Half of it");
}

/// The capabilities of a client that knows tasks, and whose user can be asked.
fn knows_tasks() -> Value {
    json!({"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}})
}

/// The result of a message of a client that knows tasks.
async fn of_task(server: &Server, key: &str, method: &'static str, params: Value) -> Value {
    let sent = newer(server, key, method, params, &knows_tasks()).send();
    answer(soon(sent).await.unwrap()).await
}

/// Starts a round as a task, and returns its id.
async fn task(server: &Server, conversation: &str) -> Value {
    task_of(server, conversation, "Hi").await
}

async fn task_of(server: &Server, conversation: &str, prompt: &str) -> Value {
    let call = json!({"name": "send_prompt", "arguments": {"prompt": prompt, "conversation_id": conversation}});
    let begun = of_task(server, ACME, "tools/call", call).await;
    let task = &begun["result"];
    assert_eq!(
        (&task["resultType"], &task["status"], &task["ttlMs"]),
        (&json!("task"), &json!("working"), &Value::Null),
        "{begun}"
    );
    task["taskId"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_knows_tasks_gets_one_and_reads_its_end_from_the_journal() {
    let server = Server::start(ScriptedModel::always(Reply::text("Sunny."))).await;

    let id = task(&server, "c").await;
    let ended = async {
        loop {
            let task = of_task(&server, ACME, "tasks/get", json!({"taskId": id})).await;
            if task["result"]["status"] != "working" {
                return task;
            }
        }
    };
    let ended = soon(ended).await;

    assert_eq!(ended["result"]["status"], "completed", "{ended}");
    let result = &ended["result"]["result"];
    assert_eq!(result["structuredContent"]["text"], "Sunny.", "{ended}");
    let again = of_task(&server, ACME, "tasks/cancel", json!({"taskId": id})).await;
    assert_eq!(again["result"]["resultType"], "complete", "{again}");
    for (key, id) in [
        (ZETA, id.clone()),
        (ACME, json!("c/never/1")),
        (ACME, json!("x")),
    ] {
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let params = json!({"taskId": id, "inputResponses": {}});
            let refused = of_task(&server, key, method, params).await;
            let is_own = key == ACME && id == "c/never/1";
            let is_refused = refused["error"]["code"] == -32602;
            // A round that is over, or never was, is cancelled and has no questions.
            assert!(is_refused || is_own && method != "tasks/get", "{refused}");
        }
    }
    let without = json!({"taskId": id});
    let without = newer(&server, ACME, "tasks/get", without, &json!({}));
    let without = answer(soon(without.send()).await.unwrap()).await;
    assert!(without["error"]["code"].is_number(), "{without}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_of_an_old_task_allows_no_call_of_another_round() {
    let server = super::console::asking().await;
    let asks = async || {
        loop {
            let asked = server.ask(Method::GET, "/v1/conversations/c", ACME);
            let state: Value = soon(asked.send()).await.unwrap().json().await.unwrap();
            if let Some(call) = state["waits_for"]["tool_call_ids"][0].as_str() {
                return call.to_owned();
            }
            tokio::task::yield_now().await;
        }
    };
    let old = task_of(&server, "c", "use it").await;
    let call = soon(asks()).await;
    of_task(&server, ACME, "tasks/cancel", json!({ "taskId": old })).await;
    let reset = async {
        let reset = || server.ask(Method::POST, "/v1/conversations/c/reset", ACME);
        while !reset().send().await.unwrap().status().is_success() {}
    };
    soon(reset).await;
    let new = task_of(&server, "c", "use it").await;
    assert_eq!(soon(asks()).await, call, "the model uses its ids again");
    let allow = async |task: &Value| {
        let yes = json!({"action": "accept", "content": {"decision": "allow"}});
        let answers = json!({"taskId": task, "inputResponses": { call.clone(): yes }});
        of_task(&server, ACME, "tasks/update", answers).await;
        let params = json!({ "taskId": new });
        of_task(&server, ACME, "tasks/get", params).await["result"]["status"].clone()
    };

    assert_eq!(allow(&old).await, "input_required");
    while allow(&new).await == "input_required" {}
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_cancelled_with_its_round() {
    let server = Server::start(stalls()).await;
    let id = task(&server, "c").await;
    is_running(&server, "c").await;

    let working = of_task(&server, ACME, "tasks/get", json!({"taskId": id})).await;
    let others = of_task(&server, ZETA, "tasks/cancel", json!({"taskId": id})).await;
    let still = of_task(&server, ACME, "tasks/get", json!({"taskId": id})).await;
    let taken = of_task(&server, ACME, "tasks/cancel", json!({"taskId": id})).await;
    let ended = async {
        loop {
            let task = of_task(&server, ACME, "tasks/get", json!({"taskId": id})).await;
            if task["result"]["status"] != "working" {
                return task["result"]["status"].clone();
            }
        }
    };

    assert_eq!(soon(ended).await, "cancelled");
    assert_eq!(working["result"]["status"], "working", "{working}");
    assert_eq!(others["error"]["code"], -32602, "{others}");
    assert_eq!(still["result"]["status"], "working", "{still}");
    assert_eq!(taken["result"]["resultType"], "complete", "{taken}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_a_round_does_not_end_it() {
    let server = Server::start(stalls()).await;
    let prompt = json!({"prompt": "Hi", "conversation_id": "c", "background": true});
    let started = answer(sent(&server, tool("send_prompt", &prompt)).await).await;
    is_running(&server, "c").await;

    let read =
        json!({"name": "get_round", "arguments": {"conversation_id": "c", "wait_ms": 600_000}});
    let read = tokio::spawn(newer(&server, ACME, "tools/call", read, &json!({})).send());
    let again = json!({"conversation_id": "c", "wait_ms": 0});
    answer(sent(&server, tool("get_round", &again)).await).await;
    read.abort();
    drop(read.await);

    let after = answer(sent(&server, tool("get_round", &again)).await).await;
    let shown = &after["result"]["structuredContent"];
    assert_eq!(shown["status"], "running", "{after}");
    assert_eq!(
        shown["round_id"],
        started["result"]["structuredContent"]["round_id"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_tenant_calls_no_model_and_starts_no_fan_out() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    server.host.tenant("acme").pause(true).unwrap();

    for call in [
        tool("send_prompt", &json!({"prompt": "Hi"})),
        tool("send_prompt", &json!({"prompt": "Hi", "background": true})),
        tool("start_fan_out", &json!({"tasks": ["a", "b"]})),
    ] {
        let line = refusal(sent(&server, call).await).await;
        assert!(
            line.contains("retry after") && line.contains("paused"),
            "{line}"
        );
    }
}
