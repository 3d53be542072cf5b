//! The operator's pages.

use super::{super::matrix::Obliging, *};

async fn operated() -> Server {
    let setting = Setting {
        operator: Some(Arc::new(Obliging)),
        ..Setting::default()
    };
    let model = ScriptedModel::answering(|_, _| Reply::text("yes"));
    Server::with(Arc::new(model), setting).await
}

#[tokio::test]
async fn the_operator_reads_figures_and_rules_tenants_by_forms() {
    let server = operated().await;
    server.send("c", "a secret of acme").await;
    let mut operator = Browser::with(&server, ADMIN).await;

    assert_eq!(
        operator.get("/console").await.location.as_deref(),
        Some("/console/host")
    );
    let host = operator.get("/console/host").await.text;
    assert!(host.contains("data-plot=\"rounds\"") && host.contains("Durations since the start"));
    assert!(
        !host.contains("secret"),
        "the operator reads no conversation"
    );
    assert_eq!(operator.get("/console/c/c").await.status, 303);
    let tenants = operator.get("/console/host/tenants").await.text;
    assert!(tenants.contains("id=\"t-acme\""), "{tenants}");

    let of = |what: &str| format!("/console/host/tenants/acme/{what}");
    operator.form(&of("pause"), &[("paused", "true")]).await;
    let refused = server
        .post("/v1/conversations/c/messages", json!({ "content": "x" }))
        .await;
    assert_eq!(problem(refused).await.1, "tenant_paused");
    operator.form(&of("pause"), &[("paused", "false")]).await;
    server.send("c", "again").await;

    let made = operator.form(&of("key"), &[("replace", "1")]).await;
    assert!(
        made.status == 200 && made.text.contains("cb_"),
        "{}",
        made.text
    );
    for (path, fields, expected) in [
        (of("quota"), vec![("quota", "{\"turns_max\": 3}")], 303),
        (of("quota"), vec![("quota", "{turns")], 422),
        (
            "/console/host/tenants/new".into(),
            vec![("id", "beta"), ("config", "{}")],
            303,
        ),
        (
            "/console/host/tenants/none/pause".into(),
            vec![("paused", "true")],
            404,
        ),
        ("/console/host/reload".into(), vec![], 200),
        (of("erase"), vec![], 303),
        (of("remove"), vec![], 303),
    ] {
        let seen = operator.form(&path, &fields).await;
        assert_eq!(seen.status, expected, "{path} {fields:?}: {}", seen.text);
    }
    assert_eq!(
        server.get("/v1/conversations/c").await.status(),
        404,
        "its data was erased"
    );
    server.end().await;
}

#[tokio::test]
async fn to_a_tenant_the_operators_forms_are_not_there() {
    let server = operated().await;
    let mut tenant = Browser::with(&server, ACME).await;

    for path in [
        "/console/host/reload",
        "/console/host/drain",
        "/console/host/tenants/new",
        "/console/host/tenants/acme/pause",
        "/console/host/tenants/acme/key",
        "/console/host/tenants/acme/quota",
        "/console/host/tenants/acme/erase",
        "/console/host/tenants/acme/remove",
    ] {
        let fields = [
            ("id", "acme"),
            ("config", "{}"),
            ("quota", "{}"),
            ("paused", "true"),
        ];
        assert_eq!(tenant.form(path, &fields).await.status, 404, "{path}");
    }
    assert_eq!(tenant.get("/console/host/live").await.status, 404);
    assert!(!server.host.is_awake(&callboard_actors::ids::Scope::new(
        tenant_id("acme"),
        callboard_actors::ids::ConversationId::new("c").unwrap()
    )));
    server.end().await;
}

fn tenant_id(id: &str) -> TenantId {
    super::super::tenant(id)
}

#[tokio::test]
async fn figures_are_sent_while_the_operators_session_lasts() {
    let server = operated().await;
    server.send("c", "hello").await;
    let operator = Browser::with(&server, ADMIN).await;
    let cookie = format!(
        "callboard_session={}",
        operator.cookies["callboard_session"]
    );
    let live = operator.client.get(server.url("/console/host/live"));
    let mut live = soon(live.header("cookie", cookie).send()).await.unwrap();

    let first = soon(live.chunk()).await.unwrap().unwrap();
    let first = String::from_utf8(first.to_vec()).unwrap();
    assert!(
        first.starts_with("event: figures\ndata: {") && first.contains("\"rounds\":1"),
        "{first}"
    );

    server.keys.set_admin(None);
    soon(async { while let Ok(Some(_)) = live.chunk().await {} }).await;
    server.end().await;
}

#[tokio::test]
async fn draining_by_a_form_ends_the_host() {
    let server = operated().await;
    let mut operator = Browser::with(&server, ADMIN).await;

    let seen = operator.form("/console/host/drain", &[]).await;

    assert_eq!(seen.status, 200);
    soon(server.served).await.unwrap();
}
