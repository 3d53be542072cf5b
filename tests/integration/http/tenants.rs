//! Tenant isolation: another tenant's ids are answered like unknown ones.

use super::*;
use callboard_actors::{host::TenantConfig, ids::Scope, tenant::Quotas};

/// What a client sees of a refusal, except its request id and date.
async fn seen(response: Response) -> (u16, Vec<(String, String)>, String) {
    let mut fields: Vec<(String, String)> = response
        .headers()
        .iter()
        .filter(|(name, _)| !["x-request-id", "date"].contains(&name.as_str()))
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect();
    fields.sort();
    (
        response.status().as_u16(),
        fields,
        soon(response.text()).await.unwrap(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_tenants_ids_are_answered_byte_for_byte_as_ids_that_never_were() {
    let server = Server::start(ScriptedModel::always(Reply::text("secret of acme"))).await;
    let round = server.send("mine", "hello").await["round_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let owner = Scope::new(tenant("acme"), "mine".try_into().unwrap());
    let artifact = server
        .host
        .artifacts()
        .store(owner, "call".into(), "secret".into())
        .await
        .unwrap();
    let nobodys = callboard_actors::ids::ArtifactId::from_content(b"never stored");
    let json = "{}".to_owned();
    let routes: Vec<(Method, String, String)> = vec![
        (Method::GET, "/v1/conversations/ID".into(), String::new()),
        (
            Method::GET,
            "/v1/conversations/ID/messages".into(),
            String::new(),
        ),
        (Method::DELETE, "/v1/conversations/ID".into(), String::new()),
        (
            Method::POST,
            "/v1/conversations/ID/reset".into(),
            json.clone(),
        ),
        (
            Method::GET,
            "/v1/conversations/ID/events".into(),
            String::new(),
        ),
        (
            Method::GET,
            "/v1/conversations/ID/events?after=1.1.0".into(),
            String::new(),
        ),
        (
            Method::GET,
            format!("/v1/conversations/ID/events?round={round}"),
            String::new(),
        ),
        (
            Method::POST,
            "/v1/conversations/ID/interrupt".into(),
            json.clone(),
        ),
        (
            Method::POST,
            "/v1/conversations/ID/approvals/call_0_0".into(),
            r#"{"allow":true}"#.into(),
        ),
        (
            Method::POST,
            "/v1/conversations/ID/tool_results".into(),
            r#"{"results":[{"tool_call_id":"call_0_0","content":"yes"}]}"#.into(),
        ),
        (
            Method::POST,
            "/v1/conversations/ID/inject".into(),
            r#"{"text":"note"}"#.into(),
        ),
        (Method::POST, "/v1/conversations/ID/compact".into(), json),
        (
            Method::POST,
            "/v1/conversations/ID/fork".into(),
            r#"{"conversation_id":"theirs"}"#.into(),
        ),
        (
            Method::GET,
            "/v1/conversations/ID/skills".into(),
            String::new(),
        ),
        (
            Method::POST,
            "/v1/conversations/ID/skills/notes".into(),
            String::new(),
        ),
        (
            Method::DELETE,
            "/v1/conversations/ID/skills/notes".into(),
            String::new(),
        ),
        (Method::GET, "/v1/artifacts/ARTIFACT".into(), String::new()),
        (
            Method::GET,
            "/v1/artifacts/ARTIFACT?conversation=ID".into(),
            String::new(),
        ),
    ];
    for (method, path, body) in routes {
        let ask = async |conversation: &str, artifact: &str| {
            let path = path
                .replace("ID", conversation)
                .replace("ARTIFACT", artifact);
            let request = server
                .ask(method.clone(), &path, ZETA)
                .header("content-type", "application/json")
                .body(body.clone());
            seen(soon(request.send()).await.unwrap()).await
        };

        let theirs = ask("mine", artifact.as_str()).await;
        let never = ask("none", nobodys.as_str()).await;

        assert_eq!((theirs.0, &theirs), (404, &never), "{method} {path}");
        assert!(!theirs.2.contains("secret"), "{method} {path}");
    }
    let listed = soon(server.ask(Method::GET, "/v1/conversations", ZETA).send())
        .await
        .unwrap();
    assert_eq!(body(listed).await["conversations"], json!([]));
    let figures = soon(server.ask(Method::GET, "/v1/metrics", ZETA).send())
        .await
        .unwrap();
    assert!(!soon(figures.text()).await.unwrap().contains("acme"));
    assert_eq!(
        body(server.get("/v1/conversations/mine/messages").await).await["total"],
        2,
        "the conversation is unchanged"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_tenants_may_give_their_conversations_the_same_name() {
    let server = Server::start(ScriptedModel::answering(|request, _| {
        Reply::text(format!("{} messages", request.messages.len()))
    }))
    .await;
    server.send("support", "of acme").await;

    let request = with_json(
        server.ask(Method::POST, "/v1/conversations/support/messages", ZETA),
        &json!({ "content": "of zeta" }),
    );
    let answer = body(soon(request.send()).await.unwrap()).await;

    assert_eq!(answer["text"], "1 messages");
}

/// Sends a request; returns status and code of the answer. The code is empty on success.
async fn status(server: &Server, method: Method, path: &str, content: Value) -> (u16, String) {
    let response = soon(with_json(server.ask(method, path, ACME), &content).send())
        .await
        .unwrap();
    if response.status().is_success() {
        (response.status().as_u16(), String::new())
    } else {
        problem(response).await
    }
}

async fn bounded(quotas: Quotas) -> Server {
    let server = Server::start(ScriptedModel::answering(|_, _| Reply::text("An answer."))).await;
    server
        .host
        .configure_tenant(&tenant("acme"), TenantConfig::new().quotas(quotas))
        .await
        .unwrap();
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_stores_passes_the_quota_of_stored_bytes() {
    let server = bounded(Quotas {
        stored_bytes_max: Some(300_000),
        ..Quotas::default()
    })
    .await;
    let history =
        |bytes: usize| json!({"messages": [{"role": "user", "content": "x".repeat(bytes)}]});
    let full = (429, "overloaded".to_owned());
    assert_eq!(
        status(
            &server,
            Method::PUT,
            "/v1/conversations/c0",
            history(200_000)
        )
        .await
        .0,
        201
    );

    for _ in 0..20 {
        assert_eq!(
            status(
                &server,
                Method::PUT,
                "/v1/conversations/c0",
                history(200_000)
            )
            .await,
            full
        );
        assert_eq!(
            status(
                &server,
                Method::POST,
                "/v1/conversations/c0/inject",
                json!({"text": "x".repeat(150_000)})
            )
            .await,
            full
        );
    }
    assert_eq!(
        status(
            &server,
            Method::POST,
            "/v1/conversations/c0/fork",
            json!({"conversation_id": "c1"})
        )
        .await,
        full
    );
    assert_eq!(
        status(
            &server,
            Method::POST,
            "/v1/conversations/c2/messages",
            json!({"content": "x".repeat(150_000)})
        )
        .await,
        full
    );

    let text = soon(server.get("/v1/metrics").await.text()).await.unwrap();
    let figure = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap()
            .trim()
            .parse::<u64>()
            .unwrap()
    };
    assert!(
        (200_000..300_000).contains(&figure("callboard_stored_bytes ")),
        "{text}"
    );
    assert_eq!(figure("callboard_refusals_total{reason=\"stored\"} "), 42);
    let listed = body(
        soon(server.ask(Method::GET, "/v1/admin/tenants", ADMIN).send())
            .await
            .unwrap(),
    )
    .await;
    assert_eq!(
        listed["tenants"][0]["usage"]["refused"]["stored"], 42,
        "{listed}"
    );
    assert!(
        listed["tenants"][0]["usage"]["stored_bytes"]
            .as_u64()
            .unwrap()
            < 300_000
    );

    assert_eq!(
        status(
            &server,
            Method::POST,
            "/v1/conversations/c0/reset",
            json!({})
        )
        .await
        .0,
        204
    );
    assert_eq!(
        status(
            &server,
            Method::PUT,
            "/v1/conversations/c0",
            history(200_000)
        )
        .await
        .0,
        200
    );
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_write_as_much_as_a_prompt_count_against_the_rate_limit() {
    let server = bounded(Quotas::default()).await;
    let minute = Quotas {
        requests_per_minute: Some(1),
        ..Quotas::default()
    };
    let ways = [
        (Method::PUT, "/v1/conversations/c0", json!({"messages": []})),
        (
            Method::PUT,
            "/v1/conversations/c0",
            json!({"pinned": ["a", "b"]}),
        ),
        (Method::PUT, "/v1/conversations/new", json!({})),
        (
            Method::POST,
            "/v1/conversations/c0/inject",
            json!({"text": "x"}),
        ),
        (
            Method::POST,
            "/v1/conversations/c0/fork",
            json!({"conversation_id": "c0-copy"}),
        ),
        (Method::POST, "/v1/conversations/c0/compact", json!({})),
        (Method::POST, "/v1/conversations/c0/reset", json!({})),
        (Method::POST, "/v1/fanouts", json!({"tasks": ["x"]})),
        (
            Method::POST,
            "/v1/conversations/c0/messages",
            json!({"content": "x"}),
        ),
    ];
    for (method, path, content) in ways {
        // A new minute for each.
        server.host.tenant("acme").erase().await.unwrap();
        server
            .host
            .tenant("acme")
            .conversation("c0")
            .reset()
            .await
            .unwrap();
        server
            .host
            .configure_tenant(&tenant("acme"), TenantConfig::new().quotas(minute))
            .await
            .unwrap();

        let first = status(&server, method.clone(), path, content.clone()).await;
        let second = status(&server, method.clone(), path, content).await;

        assert!((200..300).contains(&first.0), "{method} {path}: {first:?}");
        assert_eq!(second, (429, "overloaded".to_owned()), "{method} {path}");
        server
            .host
            .configure_tenant(
                &tenant("acme"),
                TenantConfig::new().quotas(Quotas::default()),
            )
            .await
            .unwrap();
    }
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_tenant_writes_nothing_and_calls_no_model() {
    let model = Arc::new(ScriptedModel::always(Reply::text("An answer.")));
    let server = Server::with(model.clone(), Setting::default()).await;
    server.send("c0", "hello").await;
    server.host.tenant("acme").pause(true).unwrap();
    let stored = server
        .host
        .ports()
        .sessions
        .stored_bytes(&tenant("acme"))
        .await
        .unwrap();
    let round = "00000000-0000-4000-8000-000000000001";
    let conversation = |path: &str| format!("/v1/conversations/c0/{path}");

    for (method, path, content) in [
        (
            Method::PUT,
            "/v1/conversations/c0".to_owned(),
            json!({"pinned": ["a"]}),
        ),
        (Method::PUT, "/v1/conversations/new".to_owned(), json!({})),
        (
            Method::POST,
            conversation("messages"),
            json!({"content": "x"}),
        ),
        (Method::POST, conversation("inject"), json!({"text": "x"})),
        (
            Method::POST,
            conversation("fork"),
            json!({"conversation_id": "copy"}),
        ),
        (Method::POST, conversation("compact"), json!({})),
        (Method::POST, conversation("reset"), json!({})),
        (Method::POST, conversation("rewind"), json!({"to": round})),
        (
            Method::POST,
            conversation("approvals/call"),
            json!({"allow": true}),
        ),
        (Method::POST, conversation("skills/poet"), json!({})),
        (Method::DELETE, conversation("skills/poet"), json!({})),
        (
            Method::POST,
            "/v1/fanouts".to_owned(),
            json!({"tasks": ["x"]}),
        ),
    ] {
        let refused = status(&server, method.clone(), &path, content).await;
        assert_eq!(
            refused,
            (503, "tenant_paused".to_owned()),
            "{method} {path}"
        );
    }
    let chat = json!({"model": "default", "messages": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"},
    ]});
    let request = server
        .ask(Method::POST, "/openai/v1/chat/completions", ACME)
        .header("x-conversation-id", "new");
    let refused = soon(with_json(request, &chat).send()).await.unwrap();
    assert_eq!(refused.status(), 503);

    let now = server
        .host
        .ports()
        .sessions
        .stored_bytes(&tenant("acme"))
        .await
        .unwrap();
    assert_eq!((now, model.counts().started), (stored, 1));
    let erased = server
        .ask(Method::DELETE, "/v1/conversations/c0", ACME)
        .send();
    assert_eq!(
        soon(erased).await.unwrap().status(),
        204,
        "its data is still the tenant's"
    );
    server.end().await;
}
