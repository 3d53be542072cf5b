//! Each route behaves as the OpenAPI document says.

use super::*;
use callboard::skills::SkillFolder;
use callboard_actors::{ids::Scope, ports::ListQuery};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_is_answered_and_kept() {
    let server = Server::start(ScriptedModel::replies([
        Reply::text("Hello back."),
        Reply::text("Again."),
    ]))
    .await;

    let answer = server.send("support-42", "Hello").await;
    server.send("support-42", "Once more").await;

    assert_eq!(
        (
            &answer["status"],
            &answer["stop_reason"],
            &answer["text"],
            &answer["full_text"],
            &answer["conversation_id"]
        ),
        (
            &json!("completed"),
            &json!("end_turn"),
            &json!("Hello back."),
            &json!("Hello back."),
            &json!("support-42")
        )
    );
    assert!(
        answer["round_id"].is_string()
            && answer["latency_ms"].is_u64()
            && answer["usage"]["output"].is_u64(),
        "{answer}"
    );

    let history = body(
        server
            .get("/v1/conversations/support-42/messages?limit=3")
            .await,
    )
    .await;
    assert_eq!(
        (history["total"].as_u64(), history["next"].as_u64()),
        (Some(4), Some(2))
    );
    assert_eq!(
        history["messages"][1]["message"]["content"][0]["text"],
        "Hello back."
    );
    let rest = body(
        server
            .get("/v1/conversations/support-42/messages?after=2")
            .await,
    )
    .await;
    assert_eq!(
        (
            rest["messages"].as_array().unwrap().len(),
            &rest["messages"][0]["index"],
            rest.get("next")
        ),
        (1, &json!(3), None)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_blocks_are_stored_unchanged() {
    let server = Server::start(ScriptedModel::always(Reply::text("ok"))).await;
    let content = json!([{ "type": "text", "text": "one" }, { "type": "text", "text": "two" }]);

    let response = server
        .post(
            "/v1/conversations/c/messages",
            json!({ "content": content }),
        )
        .await;

    assert_eq!(response.status(), 200);
    let history = body(server.get("/v1/conversations/c/messages").await).await;
    assert_eq!(history["messages"][0]["message"]["content"], content);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_that_fails_is_an_answer_with_its_status() {
    let refused = callboard_actors::ports::ProviderError::InvalidRequest {
        status: 400,
        message: "no".into(),
    };
    let server = Server::start(ScriptedModel::always(Reply::error(refused))).await;

    let answer = server.send("c", "Hello").await;

    assert_eq!(
        (&answer["status"], &answer["stop_reason"]),
        (&json!("error"), &json!("error"))
    );
    assert!(
        answer["error"]["code"].is_string() && answer["error"]["message"].is_string(),
        "{answer}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_contains_the_round_and_ends_with_it() {
    let server = Server::start(ScriptedModel::always(
        Reply::text("one two three").chunks(3),
    ))
    .await;

    let request = server
        .ask(Method::POST, "/v1/conversations/c/messages", ACME)
        .header("accept", "text/event-stream");
    let response = soon(with_json(request, &json!({ "content": "count" })).send())
        .await
        .unwrap();
    let events = Sse::of(response).rest().await;

    let text: String = events
        .iter()
        .filter(|event| event.event == "text_delta")
        .map(|event| event.data["text"].as_str().unwrap())
        .collect();
    assert_eq!(text, "one two three");
    assert_eq!(
        (
            events[0].event.as_str(),
            events.last().unwrap().event.as_str()
        ),
        ("round_started", "round_finished")
    );
    assert!(
        events
            .iter()
            .all(|event| event.data["id"] == event.id && event.data["type"] == event.event)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_of_http_2_carries_prompts_beside_an_open_stream_of_events() {
    let mut bounds = HttpBounds::default();
    bounds.connections_max = 2; // One to create the conversation, and this one.
    let server = Server::with(
        Arc::new(ScriptedModel::always(Reply::text("yes"))),
        Setting {
            bounds,
            ..Setting::default()
        },
    )
    .await;
    server.send("c", "first").await;
    let client = callboard::tls::client_builder()
        .unwrap()
        .no_proxy()
        .http2_prior_knowledge()
        .build()
        .unwrap();
    let watch = client
        .get(server.url("/v1/conversations/c/events?after=0.0.0"))
        .bearer_auth(ACME);
    let watched = soon(watch.send()).await.unwrap();
    assert_eq!(
        (watched.version(), watched.status()),
        (reqwest::Version::HTTP_2, StatusCode::OK)
    );

    let prompt = client
        .post(server.url("/v1/conversations/c/messages"))
        .bearer_auth(ACME);
    let response = soon(with_json(prompt, &json!({ "content": "second" })).send())
        .await
        .unwrap();

    assert_eq!(
        (response.version(), response.status()),
        (reqwest::Version::HTTP_2, StatusCode::OK)
    );
    assert_eq!(body(response).await["text"], "yes");
    let mut events = Sse::of(watched);
    let mut ends = 0;
    while ends < 2 {
        ends += usize::from(
            soon(events.next()).await.expect("the stream goes on").event == "round_finished",
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn respond_async_answers_at_once_with_the_place_of_the_events() {
    let model = Arc::new(ScriptedModel::always(Reply::text("later")));
    let server = Server::with(model, Setting::default()).await;

    let request = server
        .ask(Method::POST, "/v1/conversations/c/messages", ACME)
        .header("prefer", "respond-async");
    let response = soon(with_json(request, &json!({ "content": "go", "stream": true })).send())
        .await
        .unwrap();

    assert_eq!(
        (response.status(), &response.headers()["preference-applied"]),
        (StatusCode::ACCEPTED, &"respond-async".parse().unwrap())
    );
    let location = response.headers()["location"].to_str().unwrap().to_owned();
    let accepted = body(response).await;
    assert_eq!(
        (&accepted["stream_id"], &accepted["events"]),
        (&accepted["round_id"], &json!(location))
    );
    let events = Sse::of(server.get(&location).await).rest().await;
    assert_eq!(events.last().unwrap().data["text"], "later");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_idempotency_key_is_one_round() {
    let model = Arc::new(ScriptedModel::always(Reply::text("once")));
    let server = Server::with(model.clone(), Setting::default()).await;
    let send = async |content: &str| {
        let request = server
            .ask(Method::POST, "/v1/conversations/c/messages", ACME)
            .header("idempotency-key", "order-7");
        soon(with_json(request, &json!({ "content": content })).send())
            .await
            .unwrap()
    };

    let first = send("buy").await;
    let again = send("buy").await;
    let other = send("sell").await;

    assert!(first.headers().get("idempotency-replayed").is_none());
    assert_eq!(again.headers()["idempotency-replayed"], "true");
    assert_eq!(body(first).await["round_id"], body(again).await["round_id"]);
    assert_eq!(problem(other).await, (422, "idempotency_key_reused".into()));
    assert_eq!(model.counts().started, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_cancels_nothing() {
    let model = Arc::new(ScriptedModel::answering(|_, call| match call {
        0 => Reply::text("a long answer").after(Duration::from_millis(300)),
        _ => Reply::text("next"),
    }));
    let server = Server::with(model.clone(), Setting::default()).await;
    let leaving = with_json(
        server.ask(Method::POST, "/v1/conversations/c/messages", ACME),
        &json!({ "content": "go" }),
    )
    .send();
    let leaving = tokio::spawn(leaving);
    soon(model.until(|counts| counts.started == 1)).await;

    leaving.abort();
    let next = server.send("c", "and then?").await;

    assert_eq!(next["text"], "next");
    let history = body(server.get("/v1/conversations/c/messages").await).await;
    assert_eq!(
        history["messages"][1]["message"]["content"][0]["text"],
        "a long answer"
    );
    assert_eq!(model.counts().dropped, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_busy_and_interrupt_reach_the_open_round() {
    let model = Arc::new(ScriptedModel::answering(|_, call| {
        if call == 0 {
            Reply::stall()
        } else {
            Reply::text("free")
        }
    }));
    let server = Server::with(model.clone(), Setting::default()).await;
    let request = server
        .ask(Method::POST, "/v1/conversations/c/messages", ACME)
        .header("prefer", "respond-async");
    soon(with_json(request, &json!({ "content": "go" })).send())
        .await
        .unwrap();
    soon(model.until(|counts| counts.started == 1)).await;

    let refused = server
        .post(
            "/v1/conversations/c/messages",
            json!({ "content": "me too", "on_busy": "reject" }),
        )
        .await;
    let standing = body(server.get("/v1/conversations/c").await).await;
    let reset = server.post("/v1/conversations/c/reset", json!({})).await;
    let interrupted = server
        .post("/v1/conversations/c/interrupt", json!({}))
        .await;

    assert_eq!(problem(refused).await, (409, "conversation_busy".into()));
    assert_eq!(
        (&standing["state"], &standing["conversation_id"]),
        (&json!("running"), &json!("c"))
    );
    assert_eq!(problem(reset).await, (409, "round_open".into()));
    assert_eq!(interrupted.status(), 202);
    assert_eq!(server.send("c", "now").await["text"], "free");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversations_are_made_listed_copied_emptied_and_erased() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    let put = async |id: &str, wanted: Value| {
        soon(
            with_json(
                server.ask(Method::PUT, &format!("/v1/conversations/{id}"), ACME),
                &wanted,
            )
            .send(),
        )
        .await
        .unwrap()
        .status()
    };
    let messages =
        json!([{ "role": "user", "content": "hi" }, { "role": "assistant", "content": "ho" }]);

    assert_eq!(
        put(
            "a",
            json!({ "messages": messages, "pinned": ["Speak Dutch."] })
        )
        .await,
        201
    );
    assert_eq!(put("a", json!({ "pinned": ["Speak Dutch."] })).await, 200);
    assert_eq!(put("b", json!({})).await, 201);
    server.send("a", "go on").await;
    let fork = server
        .post(
            "/v1/conversations/a/fork",
            json!({ "conversation_id": "copy" }),
        )
        .await;
    assert_eq!(
        (fork.status(), fork.headers()["location"].to_str().unwrap()),
        (StatusCode::CREATED, "/v1/conversations/copy")
    );
    let of = async |id: &str| body(server.get(&format!("/v1/conversations/{id}")).await).await;
    let (original, copy) = (of("a").await, of("copy").await);
    assert_eq!(
        (&copy["rounds"], &copy["messages"]),
        (&json!(2), &original["messages"]),
        "a fork counts the rounds of its history"
    );
    assert_eq!(
        server
            .post(
                "/v1/conversations/a/inject",
                json!({ "id": "n-1", "text": "note" })
            )
            .await
            .status(),
        202
    );
    assert_eq!(
        body(server.post("/v1/conversations/a/compact", json!({})).await).await["compacted"],
        false
    );

    let listed = body(server.get("/v1/conversations?limit=2").await).await;
    let ids: Vec<&Value> = listed["conversations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["conversation_id"])
        .collect();
    assert_eq!(
        (ids, &listed["next"]),
        (vec![&json!("a"), &json!("b")], &json!("b"))
    );
    let rest = body(server.get("/v1/conversations?after=b").await).await;
    assert_eq!(
        (
            &rest["conversations"][0]["conversation_id"],
            rest.get("next")
        ),
        (&json!("copy"), None)
    );
    assert!(
        body(server.get("/v1/conversations/copy/messages").await).await["total"].as_u64()
            >= Some(4)
    );

    assert_eq!(
        server
            .post("/v1/conversations/copy/reset", json!({}))
            .await
            .status(),
        204
    );
    assert_eq!(
        body(server.get("/v1/conversations/copy/messages").await).await["total"],
        0
    );
    let deleted = soon(
        server
            .ask(Method::DELETE, "/v1/conversations/copy", ACME)
            .send(),
    )
    .await
    .unwrap();
    assert_eq!(deleted.status(), 204);
    assert_eq!(
        problem(server.get("/v1/conversations/copy").await).await,
        (404, "not_found".into())
    );
    assert_eq!(
        server
            .host
            .tenant("acme")
            .conversations(ListQuery::default())
            .await
            .unwrap()
            .len(),
        2
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_artifact_is_read_whole_and_by_ranges() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    server.send("c", "hello").await;
    let owner = Scope::new(tenant("acme"), "c".try_into().unwrap());
    let id = server
        .host
        .artifacts()
        .store(owner, "call".into(), "0123456789".into())
        .await
        .unwrap();
    let path = format!("/v1/artifacts/{id}");
    let ranged = async |range: &str| {
        soon(
            server
                .ask(Method::GET, &path, ACME)
                .header("range", range)
                .send(),
        )
        .await
        .unwrap()
    };

    let whole = server.get(&path).await;
    assert_eq!(
        (whole.status(), &whole.headers()["x-content-type-options"]),
        (StatusCode::OK, &"nosniff".parse().unwrap())
    );
    assert_eq!(soon(whole.text()).await.unwrap(), "0123456789");
    let part = ranged("bytes=2-4").await;
    assert_eq!(
        (
            part.status(),
            part.headers()["content-range"].to_str().unwrap()
        ),
        (StatusCode::PARTIAL_CONTENT, "bytes 2-4/10")
    );
    assert_eq!(soon(part.text()).await.unwrap(), "234");
    let named = server.get(&format!("{path}?conversation=c")).await;
    assert_eq!(soon(named.text()).await.unwrap(), "0123456789");

    let behind = ranged("bytes=10-").await;
    assert_eq!(behind.headers()["content-range"], "bytes */10");
    assert_eq!(problem(behind).await, (416, "range_not_satisfiable".into()));
    let other = soon(server.ask(Method::GET, &path, ZETA).send())
        .await
        .unwrap();
    assert_eq!(problem(other).await, (404, "not_found".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_needs_no_key_and_requests_keep_their_names() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    for path in ["/healthz", "/readyz", "/openapi.json"] {
        let response = soon(
            server
                .client
                .get(server.url(path))
                .header("x-request-id", "req-1")
                .send(),
        )
        .await
        .unwrap();

        assert_eq!(
            (response.status(), &response.headers()["x-request-id"]),
            (StatusCode::OK, &"req-1".parse().unwrap()),
            "{path}"
        );
    }

    let made = soon(
        server
            .client
            .get(server.url("/healthz"))
            .header("x-request-id", "no spaces")
            .send(),
    )
    .await
    .unwrap();

    assert_eq!(made.headers()["x-request-id"].len(), 32);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_artifact_of_one_of_many_conversations_needs_its_name() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    for index in 0..257 {
        let conversation = server.host.tenant(tenant("acme"));
        let conversation = conversation.conversation(format!("c{index}"));
        soon(conversation.reset()).await.unwrap();
    }
    let owner = Scope::new(tenant("acme"), "c7".try_into().unwrap());
    let stored = server.host.artifacts();
    let stored = stored.store(owner, "call".into(), "0123456789".into());
    let path = format!("/v1/artifacts/{}", stored.await.unwrap());

    let searched = server.get(&path).await;
    let named = server.get(&format!("{path}?conversation=c7")).await;

    assert_eq!(problem(searched).await, (422, "invalid_parameter".into()));
    assert_eq!(soon(named.text()).await.unwrap(), "0123456789");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_skill_is_loaded_at_the_level_that_the_query_names_and_at_2_without_one() {
    let host = Host::builder()
        .provider(ScriptedModel::always(Reply::text("yes")))
        .skills(SkillFolder::open(skills()).unwrap())
        .build()
        .await
        .unwrap();
    let server = Server::over(host, Setting::default()).await;
    let path = "/v1/conversations/c/skills/csv-tables";
    server.send("c", "hello").await;
    let load = async |query: &str| {
        let loaded = body(server.post(&format!("{path}{query}"), json!({})).await).await;
        soon(server.ask(Method::DELETE, path, ACME).send())
            .await
            .unwrap();
        let has = |text: &str| loaded["messages"].to_string().contains(text);
        let files = "Its files: assets/head.csv, ";
        let parts = ["csv-tables is active", "Name the columns", files].map(has);
        (loaded["level"].clone(), parts)
    };

    assert_eq!(load("?level=1").await, (json!(1), [true, false, false]));
    assert_eq!(load("?level=2").await, (json!(2), [true, true, false]));
    assert_eq!(load("").await, (json!(2), [true, true, false]));
    assert_eq!(load("?level=3").await, (json!(3), [true, true, true]));
    let refused = server.post(&format!("{path}?level=4"), json!({})).await;
    assert_eq!(problem(refused).await.0, 422);
}
