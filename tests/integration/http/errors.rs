//! Every refusal is a problem document (RFC 9457) with a status and a stable code.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_without_a_valid_key_are_refused_and_no_key_is_echoed() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    let bad: [Option<&str>; 5] = [
        None,
        Some("Bearer "),
        Some("Bearer cb_wrong_not_a_real_key"),
        Some("Basic dGVzdA=="),
        Some("cb_test_acme_not_a_real_key"),
    ];
    for given in bad {
        let mut request = server.client.get(server.url("/v1/conversations"));
        if let Some(given) = given {
            request = request.header("authorization", given);
        }

        let response = soon(request.send()).await.unwrap();

        assert_eq!(
            response.headers()["www-authenticate"],
            "Bearer realm=\"callboard\""
        );
        let text = soon(response.text()).await.unwrap();
        assert!(
            text.contains("\"code\":\"unauthorized\"") && !text.contains("cb_"),
            "{text}"
        );
    }
    let admin = soon(server.ask(Method::GET, "/v1/conversations", ADMIN).send())
        .await
        .unwrap();
    assert_eq!(problem(admin).await, (403, "tenant_key_needed".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_without_a_key_says_what_to_send_and_has_each_header_once() {
    let server = Server::start(ScriptedModel::always(Reply::text("ok"))).await;
    for key in [None, Some("cb_not_bearer"), Some("Bearer"), Some("Bearer ")] {
        let request = server.client.get(server.url("/v1/conversations"));
        let request = key
            .into_iter()
            .fold(request, |request, key| request.header("authorization", key));
        let response = soon(request.send()).await.unwrap();

        for name in ["content-type", "cache-control", "www-authenticate"] {
            assert_eq!(response.headers().get_all(name).iter().count(), 1, "{name}");
        }
        let detail = body(response).await["detail"].as_str().unwrap().to_owned();
        assert!(
            detail.contains("`Bearer`") && !detail.contains("masked"),
            "{detail}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_block_is_refused_before_it_is_stored() {
    let server = Server::start(ScriptedModel::always(Reply::text("ok"))).await;

    for block in [
        json!({ "type": "img" }),
        json!({ "type": "tool_use", "id": "t", "name": "bash", "input": {} }),
        json!({ "type": "thinking", "thinking": "so", "signature": "s" }),
    ] {
        let refused = server
            .post(
                "/v1/conversations/c/messages",
                json!({ "content": [block] }),
            )
            .await;

        assert_eq!(refused.status(), 422);
        let problem = body(refused).await;
        assert_eq!(problem["pointer"], "/content");
        assert_eq!(
            problem["detail"],
            format!(
                "a block of type {} is broken: a prompt has blocks of type `text`, `image` and `document`",
                block["type"].as_str().unwrap()
            )
        );
    }
    let nothing = server.get("/v1/conversations/c").await;
    assert_eq!(nothing.status(), 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_value_is_refused_in_the_words_of_json() {
    let server = Server::start(ScriptedModel::always(Reply::text("ok"))).await;
    let say = async |text: &'static str| {
        let request = server
            .client
            .post(server.url("/v1/conversations/c/messages"));
        let request = request
            .bearer_auth(ACME)
            .header("content-type", "application/json")
            .body(text);
        let problem = body(soon(request.send()).await.unwrap()).await;
        (problem["pointer"].clone(), problem["detail"].clone())
    };

    assert_eq!(
        say("").await,
        (json!(null), json!("the body is empty; send a JSON object"))
    );
    assert_eq!(
        say("{").await,
        (
            json!(null),
            json!("the JSON of the body ends too early, at line 1, column 1")
        )
    );
    assert_eq!(
        say(r#"{"content":"a","wait_ms":"b"}"#).await,
        (
            json!("/wait_ms"),
            json!(r#"send a whole number of 0 or more, not the string "b""#)
        )
    );
    let listed = body(server.get("/v1/conversations?limit=abc").await).await;
    assert_eq!(
        listed["detail"],
        "limit: must be a whole number of 0 or more"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_without_skills_has_an_empty_list_of_them() {
    let server = Server::start(ScriptedModel::always(Reply::text("ok"))).await;
    let say = json!({ "content": "hi" });
    assert_eq!(
        server
            .post("/v1/conversations/c/messages", say)
            .await
            .status(),
        200
    );

    let listed = server.get("/v1/conversations/c/skills").await;
    assert_eq!(listed.status(), 200);
    assert_eq!(body(listed).await, json!({ "skills": [] }));
    let activated = server
        .post("/v1/conversations/c/skills/none", json!({}))
        .await;
    assert_eq!(activated.status(), 422);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_with_the_wrong_base_url_reads_the_right_one() {
    let server = Server::start(ScriptedModel::always(Reply::text("ok"))).await;

    for (path, base) in [
        ("/chat/completions", "/openai/v1"),
        ("/v1/messages", "/anthropic"),
    ] {
        let answer = server.post(path, json!({})).await;

        assert_eq!(answer.status(), 404);
        let problem = body(answer).await;
        assert!(problem["detail"].as_str().unwrap().contains(base));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_key_is_refused() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    assert_eq!(server.get("/v1/conversations").await.status(), 200);

    server.keys.remove(&KeyHash::from_key(ACME));

    assert_eq!(
        problem(server.get("/v1/conversations").await).await,
        (401, "unauthorized".into())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_invalid_field_of_a_request_is_named() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    server.send("c", "hello").await;
    let say = "/v1/conversations/c/messages";
    let bodies = [
        (json!({}), 422, "invalid_field", json!("")),
        (
            json!({ "content": 7 }),
            422,
            "invalid_field",
            json!("/content"),
        ),
        (
            json!({ "content": [{ "type": "text", "text": "a" }, { "type": "text" }] }),
            422,
            "invalid_field",
            json!("/content/1"),
        ),
        (
            json!({ "content": "a", "on_busy": "maybe" }),
            422,
            "invalid_field",
            json!("/on_busy"),
        ),
        (
            json!({ "content": "a", "deadline_ms": 0 }),
            422,
            "invalid_field",
            json!("/deadline_ms"),
        ),
        (
            json!({ "content": "a", "deadline_ms": u64::MAX }),
            422,
            "invalid_field",
            json!("/deadline_ms"),
        ),
        (
            json!({ "content": "a", "contents": "b" }),
            422,
            "invalid_field",
            json!("/contents"),
        ),
        (
            json!({ "content": " " }),
            422,
            "invalid_prompt",
            json!("/content"),
        ),
        (
            json!({ "content": [{ "type": "tool_result", "tool_use_id": "x" }] }),
            422,
            "invalid_message",
            json!("/content"),
        ),
    ];
    for (wrong, status, code, pointer) in bodies {
        let problem = body(server.post(say, wrong.clone()).await).await;

        assert_eq!(
            (&problem["status"], &problem["code"], &problem["pointer"]),
            (&json!(status), &json!(code), &pointer),
            "{wrong}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_class_of_refusal_has_its_status_and_code() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    server.send("c", "hello").await;
    let say = "/v1/conversations/c/messages";
    let send = async |method: Method, path: &str, fields: &[(&str, &str)], body: &'static str| {
        let request = fields
            .iter()
            .fold(server.ask(method, path, ACME), |request, (name, value)| {
                request.header(*name, *value)
            });
        problem(soon(request.body(body).send()).await.unwrap()).await
    };
    let json = ("content-type", "application/json");
    let refused = |status: u16, code: &str| (status, code.to_owned());

    assert_eq!(
        send(Method::GET, "/v1/nothing", &[], "").await,
        refused(404, "not_found")
    );
    assert_eq!(
        send(Method::PATCH, say, &[], "").await,
        refused(405, "method_not_allowed")
    );
    assert_eq!(
        send(
            Method::POST,
            say,
            &[json, ("accept", "text/html")],
            r#"{"content":"a"}"#
        )
        .await,
        refused(406, "not_acceptable")
    );
    assert_eq!(
        send(
            Method::POST,
            say,
            &[("content-type", "text/plain")],
            "hello"
        )
        .await,
        refused(415, "not_json")
    );
    assert_eq!(
        send(Method::POST, say, &[json], "{\"content\":").await,
        refused(400, "malformed_json")
    );
    assert_eq!(
        send(
            Method::POST,
            "/v1/conversations/.hidden/messages",
            &[json],
            r#"{"content":"a"}"#
        )
        .await,
        refused(422, "invalid_id")
    );
    assert_eq!(
        send(Method::GET, "/v1/conversations/c/events?after=1.2", &[], "").await,
        refused(422, "invalid_parameter")
    );
    assert_eq!(
        send(
            Method::GET,
            "/v1/conversations/c/events",
            &[("last-event-id", "x")],
            ""
        )
        .await,
        refused(422, "invalid_parameter")
    );
    assert_eq!(
        send(Method::GET, "/v1/conversations/c/events?round=7", &[], "").await,
        refused(422, "invalid_parameter")
    );
    assert_eq!(
        send(Method::GET, "/v1/conversations?limit=0", &[], "").await,
        refused(422, "invalid_parameter")
    );
    assert_eq!(
        send(Method::POST, "/v1/conversations/c/interrupt", &[], "").await,
        refused(404, "not_found")
    );
    assert_eq!(
        send(
            Method::POST,
            "/v1/conversations/c/approvals/x",
            &[json],
            r#"{"allow":true}"#
        )
        .await,
        refused(404, "not_found")
    );
    assert_eq!(
        send(
            Method::POST,
            "/v1/conversations/c/fork",
            &[json],
            r#"{"conversation_id":"c"}"#
        )
        .await,
        refused(409, "conversation_exists")
    );
    assert_eq!(
        send(Method::GET, "/v1/artifacts/..%2F..%2Fetc%2Fpasswd", &[], "").await,
        refused(404, "not_found")
    );
    assert_eq!(
        send(
            Method::POST,
            say,
            &[json, ("idempotency-key", "")],
            r#"{"content":"a"}"#
        )
        .await,
        refused(422, "invalid_parameter")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenants_limit_is_429_with_retry_after() {
    let model = Arc::new(ScriptedModel::always(Reply::stall()));
    let limits = callboard_actors::limits::Limits {
        tenant_seats_max: 1,
        ..Default::default()
    };
    let host = Host::builder()
        .shared_provider(model.clone())
        .limits(limits)
        .build()
        .await
        .unwrap();
    let server = Server::over(
        host,
        Setting {
            drain_within: Some(Duration::ZERO),
            ..Setting::default()
        },
    )
    .await;
    let first = server
        .ask(Method::POST, "/v1/conversations/a/messages", ACME)
        .header("prefer", "respond-async");
    soon(with_json(first, &json!({ "content": "go" })).send())
        .await
        .unwrap();

    let refused = server
        .post("/v1/conversations/b/messages", json!({ "content": "me" }))
        .await;

    let after: u64 = refused.headers()["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(after >= 1);
    assert_eq!(problem(refused).await, (429, "overloaded".into()));
    let other = with_json(
        server
            .ask(Method::POST, "/v1/conversations/b/messages", ZETA)
            .header("prefer", "respond-async"),
        &json!({ "content": "me" }),
    );
    assert_eq!(
        soon(other.send()).await.unwrap().status(),
        202,
        "another tenant has its own limit"
    );
    server.end().await;
}

/// A program that panics when it gets a request.
struct Panics;

impl callboard::http::Operator for Panics {
    fn reload(
        &self,
    ) -> callboard_actors::ports::BoxFuture<
        '_,
        Result<callboard::http::Reloaded, callboard::http::OperatorError>,
    > {
        panic!("a test's panic")
    }

    fn put_tenant(
        &self,
        _: TenantId,
        _: Value,
    ) -> callboard_actors::ports::BoxFuture<
        '_,
        Result<callboard::http::TenantPut, callboard::http::OperatorError>,
    > {
        panic!("a test's panic")
    }

    fn put_quota(
        &self,
        _: TenantId,
        _: Value,
    ) -> callboard_actors::ports::BoxFuture<'_, Result<(), callboard::http::OperatorError>> {
        panic!("a test's panic")
    }

    fn new_key(
        &self,
        _: TenantId,
        _: bool,
    ) -> callboard_actors::ports::BoxFuture<
        '_,
        Result<callboard::http::MadeKey, callboard::http::OperatorError>,
    > {
        panic!("a test's panic")
    }

    fn remove_tenant(
        &self,
        _: TenantId,
    ) -> callboard_actors::ports::BoxFuture<'_, Result<(), callboard::http::OperatorError>> {
        panic!("a test's panic")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_fails_only_its_own_request() {
    let model = Arc::new(ScriptedModel::always(Reply::text("yes")));
    let server = Server::with(
        model,
        Setting {
            operator: Some(Arc::new(Panics)),
            ..Setting::default()
        },
    )
    .await;

    let response = soon(server.ask(Method::POST, "/v1/admin/reload", ADMIN).send())
        .await
        .unwrap();

    assert_eq!(problem(response).await, (500, "internal".into()));
    assert_eq!(server.send("c", "still there?").await["text"], "yes");
}

#[cfg(unix)]
#[tokio::test]
async fn a_host_whose_database_was_deleted_is_not_ready_says_why_and_acknowledges_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sessions.db");
    let host = Host::builder()
        .shared_provider(Arc::new(ScriptedModel::always(Reply::text("Hello"))))
        .sessions(callboard::storage::Sqlite::open(&file).await.unwrap())
        .build()
        .await
        .unwrap();
    let server = Server::over(host, Setting::default()).await;
    let prompt = json!({ "content": "Hello" });
    let answered = server.post("/v1/conversations/a/messages", prompt.clone());
    assert_eq!(answered.await.status(), 200);
    assert_eq!(server.get("/readyz").await.status(), 200);

    std::fs::remove_file(&file).unwrap();

    let unready = soon(async {
        loop {
            let response = server.get("/readyz").await;
            if response.status() != 200 {
                return response;
            }
        }
    });
    let body: Value = unready.await.json().await.unwrap();
    assert_eq!(body["code"], "store_unavailable");
    assert!(
        body["detail"]
            .to_string()
            .contains("sessions.db was deleted"),
        "{body}"
    );
    let refused = server.post("/v1/conversations/b/messages", prompt).await;
    assert_eq!(
        problem(refused).await,
        (503, "store_unavailable".to_owned())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attachment_that_the_provider_would_fetch_is_refused_unless_the_operator_lets_it() {
    let by_url =
        json!({"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}});
    let by_id = json!({"type": "document", "source": {"type": "file", "file_id": "file_1"}});
    let part = json!({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}});
    let input = json!({"type": "input_image", "image_url": "https://example.com/a.png"});
    let text = json!({"type": "text", "text": "What is this?"});
    let conversation = |id: &str, rest: &str| format!("/v1/conversations/{id}{rest}");
    let ways = [
        (
            Method::POST,
            conversation("a", "/messages"),
            json!({"content": [text, by_url]}),
        ),
        (
            Method::POST,
            conversation("b", "/messages"),
            json!({"content": [by_id]}),
        ),
        (
            Method::PUT,
            conversation("c", ""),
            json!({"messages": [{"role": "user", "content": [by_url]}]}),
        ),
        (
            Method::POST,
            "/openai/v1/chat/completions".to_owned(),
            json!({"model": "default", "messages": [{"role": "user", "content": [part]}]}),
        ),
        (
            Method::POST,
            "/openai/v1/responses".to_owned(),
            json!({"model": "default", "input": [{"role": "user", "content": [input]}]}),
        ),
        (
            Method::POST,
            "/anthropic/v1/messages".to_owned(),
            json!({"model": "default", "max_tokens": 9, "messages": [{"role": "user", "content": [by_url]}]}),
        ),
    ];

    for allowed in [false, true] {
        let model = Arc::new(ScriptedModel::always(Reply::text("yes")));
        let mut bounds = HttpBounds::default();
        bounds.remote_attachments = allowed;
        let server = Server::with(
            model.clone(),
            Setting {
                bounds,
                ..Setting::default()
            },
        )
        .await;
        for (method, path, content) in &ways {
            let request = with_json(server.ask(method.clone(), path, ACME), content);
            let response = soon(request.send()).await.unwrap();

            let status = response.status();
            assert_eq!(status.is_success(), allowed, "{path}: {status}");
            if !allowed {
                let text = body(response).await.to_string();
                assert!(text.contains("attachment_remote"), "{text}");
            }
        }
        assert_eq!(model.counts().started > 0, allowed);
    }
}

/// Quoted whole, such a text would be seven times as long, and written over again on its way out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_says_little_of_a_long_text_that_a_caller_sent() {
    let model = Arc::new(ScriptedModel::always(Reply::text("yes")));
    let server = Server::with(model, Setting::default()).await;
    let long = "\u{7f}".repeat(300_000);
    let chat = |field: &str, value: Value| {
        let messages = json!([{"role": "user", "content": "hi"}]);
        let mut body = json!({"model": "default", "max_tokens": 9, "messages": messages});
        body[field] = value;
        body
    };
    let named = json!({"type": "function", "function": {"name": long}});
    let asked = [
        (
            "/openai/v1/chat/completions",
            chat("tools", json!([{"type": long}])),
        ),
        (
            "/openai/v1/chat/completions",
            chat("modalities", json!([long])),
        ),
        ("/openai/v1/chat/completions", chat("tool_choice", named)),
        (
            "/anthropic/v1/messages",
            chat("tools", json!([{"type": long, "name": "x"}])),
        ),
        (
            "/anthropic/v1/messages",
            chat("tool_choice", json!({"type": "tool", "name": long})),
        ),
        (
            "/openai/v1/responses",
            json!({
                "model": "default", "input": "hi",
                "tool_choice": {"type": "function", "name": long}
            }),
        ),
        (
            "/v1/conversations/c/messages",
            json!({"content": "hi", "tool_choice": {"name": long}}),
        ),
        (
            "/v1/conversations/c/messages",
            json!({"content": "hi", "on_busy": long}),
        ),
        (
            "/v1/conversations/c/messages",
            json!({"content": "hi", long.as_str(): 1}),
        ),
        (
            "/v1/conversations/c/messages",
            json!({"content": [{"type": long}]}),
        ),
    ];
    for (nth, (path, body)) in asked.into_iter().enumerate() {
        let answer = with_json(server.ask(Method::POST, path, ACME), &body);
        let answer = soon(answer.send()).await.unwrap();

        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        let start: String = text.chars().take(200).collect();
        assert!(
            matches!(status, 400 | 422),
            "{nth} {path}: {status} {start}"
        );
        assert!(text.len() < 10_000, "{nth} {path}: {} {start}", text.len());
    }
}
