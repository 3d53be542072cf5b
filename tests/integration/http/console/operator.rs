//! The operator's pages.

use callboard_actors::{
    chat::Usage,
    policy::{Price, Prices},
};

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
async fn a_new_key_is_shown_once_and_loading_its_page_again_makes_no_other() {
    let server = operated().await;
    server.send("c", "hello").await;
    let mut operator = Browser::with(&server, ADMIN).await;
    let path = "/console/host/tenants/acme/key";

    let made = operator.form(path, &[("replace", "1")]).await;
    let first = operator.get(path).await;
    let again = operator.get(path).await;

    assert_eq!((made.status, made.location.as_deref()), (303, Some(path)));
    let shown = "id=\"key\">cb_";
    assert!(!made.text.contains("cb_") && first.text.contains(shown));
    assert!(!again.text.contains(shown) && again.text.contains("A key is shown once"));
    operator.form(path, &[]).await;
    let other = operator.get("/console/host/tenants/zeta/key").await;
    assert!(!other.text.contains(shown), "{}", other.text);
    server.end().await;
}

#[tokio::test]
async fn the_form_of_quotas_shows_those_that_are_set_and_says_when_it_has_set_others() {
    let server = operated().await;
    server.send("c", "hello").await;
    let mut operator = Browser::with(&server, ADMIN).await;

    let before = operator.get("/console/host/tenants").await.text;
    let fields = [("quota", "{\"turns_max\": 4}")];
    let set = operator
        .form("/console/host/tenants/acme/quota", &fields)
        .await;
    let to = set.location.unwrap();
    let after = operator.get(to.split('#').next().unwrap()).await.text;

    let shown = "{&quot;turns_max&quot;:3}</textarea>";
    assert!(before.contains(shown), "{before}");
    assert!(before.contains("a quota that is left out is removed"));
    assert!(!before.contains("The quotas are set.") && after.contains("The quotas are set."));
    server.end().await;
}

#[tokio::test]
async fn the_cost_of_a_tenant_is_shown_without_a_budget_too() {
    let price = Price::per_million(0.0, 100.0).unwrap();
    let usage = Usage {
        input_uncached: 1,
        output: 20_000,
        ..Usage::default()
    };
    let host = Host::builder()
        .shared_provider(Arc::new(ScriptedModel::always(
            Reply::text("yes").usage(usage),
        )))
        .model("scripted-1")
        .prices(Prices::default().with("scripted*", price))
        .build()
        .await
        .unwrap();
    let server = Server::over(host, Setting::default()).await;
    server.send("c", "hello").await;
    let mut operator = Browser::with(&server, ADMIN).await;

    let tenants = operator.until("/console/host/tenants", "$2.00").await;
    let host = operator.get("/console/host").await.text;

    assert!(host.contains("$2.00"), "{host}");
    assert!(!tenants.contains("of its budget"), "{tenants}");
    server.end().await;
}

#[tokio::test]
async fn whoever_is_logged_in_keeps_the_links_on_the_page_of_an_error() {
    let server = operated().await;
    let mut operator = Browser::with(&server, ADMIN).await;
    let mut tenant = Browser::with(&server, ACME).await;
    let mut stranger = Browser::new(&server);

    let fields = [("quota", "{turns")];
    let refused = operator
        .form("/console/host/tenants/acme/quota", &fields)
        .await;
    let unknown = tenant.get("/console/c/unknown").await;
    let none = stranger.get("/console/nowhere").await;

    assert_eq!(
        (refused.status, unknown.status, none.status),
        (422, 404, 404)
    );
    assert!(refused.text.contains("href=\"/console/host/tenants\""));
    assert!(refused.text.contains("leads to the form"));
    assert!(unknown.text.contains("href=\"/console/fanouts\""));
    assert!(!none.text.contains("Log out"));
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
