//! The operator's routes: what they request from the program, and that other callers get 404 or
//! 401.

use parking_lot::Mutex;

use callboard::http::{MadeKey, OperatorError, Reloaded, TenantPut, new_key};
use callboard_actors::ports::BoxFuture;

use super::*;

/// A program that records the requests it gets.
#[derive(Default)]
struct Program {
    asked: Mutex<Vec<String>>,
    keys: Mutex<Option<Keys>>,
}

impl Program {
    fn note<T: Send + 'static>(
        &self,
        what: String,
        answer: Result<T, OperatorError>,
    ) -> BoxFuture<'_, Result<T, OperatorError>> {
        self.asked.lock().push(what);
        Box::pin(std::future::ready(answer))
    }
}

impl Operator for Program {
    fn reload(&self) -> BoxFuture<'_, Result<Reloaded, OperatorError>> {
        self.note(
            "reload".into(),
            Ok(Reloaded {
                added: vec!["new".into()],
                ..Reloaded::default()
            }),
        )
    }

    fn put_tenant(
        &self,
        id: TenantId,
        config: Value,
    ) -> BoxFuture<'_, Result<TenantPut, OperatorError>> {
        let wrong = || OperatorError::Invalid {
            pointer: Some("/wieght".into()),
            message: "no such key; `weight`?".into(),
        };
        let answer = if config.get("wieght").is_some() {
            Err(wrong())
        } else {
            Ok(TenantPut::Created)
        };
        self.note(format!("put {id} {config}"), answer)
    }

    fn put_quota(&self, id: TenantId, quota: Value) -> BoxFuture<'_, Result<(), OperatorError>> {
        self.note(format!("quota {id} {quota}"), Ok(()))
    }

    fn new_key(
        &self,
        id: TenantId,
        replace: bool,
    ) -> BoxFuture<'_, Result<MadeKey, OperatorError>> {
        let key = new_key();
        let hash = KeyHash::from_key(&key);
        let keys = self.keys.lock().clone().unwrap();
        if replace {
            keys.remove_tenant(&id);
        }
        keys.put(id.clone(), hash);
        self.note(format!("key {id} {replace}"), Ok(MadeKey { key, hash }))
    }

    fn remove_tenant(&self, id: TenantId) -> BoxFuture<'_, Result<(), OperatorError>> {
        self.note(format!("remove {id}"), Ok(()))
    }
}

async fn start() -> (Server, Arc<Program>) {
    let program = Arc::new(Program::default());
    let model = Arc::new(ScriptedModel::always(Reply::text("yes")));
    let server = Server::with(
        model,
        Setting {
            operator: Some(program.clone()),
            ..Setting::default()
        },
    )
    .await;
    *program.keys.lock() = Some(server.keys.clone());
    server.send("c", "hello").await;
    (server, program)
}

async fn admin(server: &Server, method: Method, path: &str, body: &str) -> Response {
    let request = server
        .ask(method, path, ADMIN)
        .header("content-type", "application/json")
        .body(body.to_owned());
    soon(request.send()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operator_sets_up_pauses_rekeys_and_erases_tenants() {
    let (server, program) = start().await;

    let listed = body(admin(&server, Method::GET, "/v1/admin/tenants", "").await).await;
    assert_eq!(
        (
            &listed["tenants"][0]["id"],
            &listed["tenants"][0]["usage"]["prompts_admitted"]
        ),
        (&json!("acme"), &json!(1))
    );
    assert_eq!(
        admin(
            &server,
            Method::PUT,
            "/v1/admin/tenants/new",
            r#"{"weight":2}"#
        )
        .await
        .status(),
        201
    );
    let wrong = body(
        admin(
            &server,
            Method::PUT,
            "/v1/admin/tenants/new",
            r#"{"wieght":2}"#,
        )
        .await,
    )
    .await;
    assert_eq!(
        (&wrong["status"], &wrong["pointer"]),
        (&json!(422), &json!("/wieght"))
    );
    assert_eq!(
        admin(
            &server,
            Method::PUT,
            "/v1/admin/tenants/acme/quota",
            r#"{"weight":3}"#
        )
        .await
        .status(),
        204
    );

    assert_eq!(
        admin(&server, Method::POST, "/v1/admin/tenants/acme/pause", "")
            .await
            .status(),
        204
    );
    let paused = server
        .post("/v1/conversations/c/messages", json!({ "content": "a" }))
        .await;
    assert_eq!(problem(paused).await, (503, "tenant_paused".into()));
    assert_eq!(
        admin(
            &server,
            Method::POST,
            "/v1/admin/tenants/acme/pause",
            r#"{"paused":false}"#
        )
        .await
        .status(),
        204
    );
    assert_eq!(server.send("c", "again").await["text"], "yes");

    let made = body(
        admin(
            &server,
            Method::POST,
            "/v1/admin/tenants/acme/keys",
            r#"{"replace":true}"#,
        )
        .await,
    )
    .await;
    assert_eq!(
        server.get("/v1/conversations").await.status(),
        401,
        "the old key is no longer valid"
    );
    let key = made["key"].as_str().unwrap();
    assert_eq!(made["key_sha256"], KeyHash::from_key(key).to_string());
    let mine = soon(server.ask(Method::GET, "/v1/conversations/c", key).send())
        .await
        .unwrap();
    assert_eq!(mine.status(), 200);

    let erased =
        body(admin(&server, Method::DELETE, "/v1/admin/tenants/acme/data", "").await).await;
    assert_eq!(erased["conversations"], 1);
    let gone = soon(server.ask(Method::GET, "/v1/conversations/c", key).send())
        .await
        .unwrap();
    assert_eq!(gone.status(), 404);
    assert_eq!(
        body(admin(&server, Method::POST, "/v1/admin/reload", "").await).await["added"],
        json!(["new"])
    );
    assert_eq!(
        problem(admin(&server, Method::POST, "/v1/admin/tenants/unknown/pause", "").await).await,
        (404, "not_found".into())
    );
    assert_eq!(
        *program.asked.lock(),
        [
            r#"put new {"weight":2}"#,
            r#"put new {"wieght":2}"#,
            r#"quota acme {"weight":3}"#,
            "key acme true",
            "reload"
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn to_a_tenant_the_operators_routes_are_not_there() {
    let (server, program) = start().await;
    let routes = [
        (Method::GET, "/metrics"),
        (Method::GET, "/v1/admin/tenants"),
        (Method::PUT, "/v1/admin/tenants/acme"),
        (Method::DELETE, "/v1/admin/tenants/acme"),
        (Method::PUT, "/v1/admin/tenants/acme/quota"),
        (Method::POST, "/v1/admin/tenants/acme/pause"),
        (Method::POST, "/v1/admin/tenants/acme/keys"),
        (Method::DELETE, "/v1/admin/tenants/acme/data"),
        (Method::POST, "/v1/admin/reload"),
        (Method::POST, "/v1/admin/drain"),
    ];
    for (method, path) in routes {
        let theirs = soon(with_json(server.ask(method.clone(), path, ACME), &json!({})).send())
            .await
            .unwrap();
        assert_eq!(
            problem(theirs).await,
            (404, "not_found".into()),
            "{method} {path}"
        );
        let anonymous = soon(
            server
                .client
                .request(method.clone(), server.url(path))
                .send(),
        )
        .await
        .unwrap();
        assert_eq!(anonymous.status(), 401, "{method} {path}");
    }
    assert!(program.asked.lock().is_empty());
    let figures = admin(&server, Method::GET, "/metrics", "").await;
    assert!(soon(figures.text()).await.unwrap().contains("callboard_"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_array_is_no_body_and_sets_nothing() {
    let (server, program) = start().await;
    for (method, path) in [
        (Method::PUT, "/v1/admin/tenants/acme/quota"),
        (Method::POST, "/v1/admin/tenants/acme/pause"),
        (Method::POST, "/v1/admin/tenants/acme/keys"),
    ] {
        for body in ["[]", " [null]"] {
            assert_eq!(
                problem(admin(&server, method.clone(), path, body).await).await,
                (422, "invalid_field".into()),
                "{method} {path} {body}"
            );
        }
    }
    assert!(program.asked.lock().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_routes_of_a_program_without_support_are_501() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;

    assert_eq!(
        problem(admin(&server, Method::POST, "/v1/admin/reload", "").await).await,
        (501, "unsupported".into())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_that_are_disabled_answer_404() {
    let model = Arc::new(ScriptedModel::always(Reply::text("yes")));
    let server = Server::with(
        model,
        Setting {
            no_metrics: true,
            ..Setting::default()
        },
    )
    .await;

    for (path, key) in [("/metrics", ADMIN), ("/v1/metrics", ACME)] {
        let refused = problem(
            soon(server.ask(Method::GET, path, key).send())
                .await
                .unwrap(),
        )
        .await;
        assert_eq!(refused, (404, "not_found".into()), "{path}");
    }
    let unknown = problem(
        soon(server.ask(Method::GET, "/metrics", "no key").send())
            .await
            .unwrap(),
    )
    .await;
    assert_eq!(
        unknown.0, 401,
        "without a key the answer does not reveal that metrics are disabled"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creating_a_conversation_by_put_counts_against_the_quota() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    let quotas = callboard_actors::tenant::Quotas {
        conversations_max: Some(1),
        ..Default::default()
    };
    server
        .host
        .configure_tenant(
            &tenant("acme"),
            callboard_actors::host::TenantConfig::new().quotas(quotas),
        )
        .await
        .unwrap();
    let put = async |id: &str, body: Value| {
        let request = server.ask(Method::PUT, &format!("/v1/conversations/{id}"), ACME);
        soon(with_json(request, &body).send()).await.unwrap()
    };
    let history =
        json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": "hi" }] }] });

    assert_eq!(put("one", json!({})).await.status(), StatusCode::CREATED);
    assert_eq!(problem(put("two", json!({})).await).await.0, 429);
    assert_eq!(problem(put("two", history).await).await.0, 429);
    assert_eq!(
        put("one", json!({})).await.status(),
        StatusCode::OK,
        "an existing conversation can still be configured"
    );
}
