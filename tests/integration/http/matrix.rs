//! Access control: every route, with each of its methods and one that it does not have, for every
//! kind of key. `matrix.txt` holds the expected statuses; a route without a line there fails this
//! test, and so does a changed status.

use std::collections::BTreeMap;

use callboard::http::{MadeKey, OperatorError, Reloaded, TenantPut};
use callboard_actors::ports::BoxFuture;
use expect_test::expect_file;

use super::*;

/// The key of the tenant `rest`, which is paused.
const REST: &str = "cb_test_rest_not_a_real_key";

/// A key that was removed.
const REVOKED: &str = "cb_test_gone_not_a_real_key";

/// A program that accepts every request.
pub(super) struct Obliging;

impl Operator for Obliging {
    fn reload(&self) -> BoxFuture<'_, Result<Reloaded, OperatorError>> {
        Box::pin(std::future::ready(Ok(Reloaded::default())))
    }

    fn put_tenant(&self, _: TenantId, _: Value) -> BoxFuture<'_, Result<TenantPut, OperatorError>> {
        Box::pin(std::future::ready(Ok(TenantPut::Changed)))
    }

    fn put_quota(&self, _: TenantId, _: Value) -> BoxFuture<'_, Result<(), OperatorError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn quotas(&self) -> BoxFuture<'_, BTreeMap<TenantId, Value>> {
        let set = TenantId::new("acme").map(|id| (id, json!({ "turns_max": 3 })));
        Box::pin(std::future::ready(set.into_iter().collect()))
    }

    fn new_key(&self, _: TenantId, _: bool) -> BoxFuture<'_, Result<MadeKey, OperatorError>> {
        let key = callboard::http::new_key();
        let hash = KeyHash::from_key(&key);
        Box::pin(std::future::ready(Ok(MadeKey { key, hash })))
    }

    fn remove_tenant(&self, _: TenantId) -> BoxFuture<'_, Result<(), OperatorError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// A kind of caller: its name, and its header with a key.
const CALLERS: [(&str, Option<(&str, &str)>); 10] = [
    ("none", None),
    (
        "malformed",
        Some((BEARER, "Basic cb_test_acme_not_a_real_key")),
    ),
    (
        "wrong",
        Some((BEARER, "Bearer cb_test_wrong_not_a_real_key")),
    ),
    ("own", Some((BEARER, "Bearer cb_test_acme_not_a_real_key"))),
    (
        "other",
        Some((BEARER, "Bearer cb_test_zeta_not_a_real_key")),
    ),
    (
        "paused",
        Some((BEARER, "Bearer cb_test_rest_not_a_real_key")),
    ),
    (
        "revoked",
        Some((BEARER, "Bearer cb_test_gone_not_a_real_key")),
    ),
    (
        "operator",
        Some((BEARER, "Bearer cb_test_admin_not_a_real_key")),
    ),
    (
        "own in x-api-key",
        Some((API_KEY, "cb_test_acme_not_a_real_key")),
    ),
    (
        "operator in x-api-key",
        Some((API_KEY, "cb_test_admin_not_a_real_key")),
    ),
];

const BEARER: &str = "authorization";
const API_KEY: &str = "x-api-key";

async fn start() -> Server {
    let model = Arc::new(ScriptedModel::answering(|_, _| Reply::text("yes")));
    let server = Server::with(
        model,
        Setting {
            operator: Some(Arc::new(Obliging)),
            ..Setting::default()
        },
    )
    .await;
    server.keys.put(tenant("rest"), KeyHash::from_key(REST));
    server.keys.put(tenant("gone"), KeyHash::from_key(REVOKED));
    server.keys.remove_tenant(&tenant("gone"));
    server
}

/// Creates what the routes refer to: a conversation of `acme`, and one of the paused tenant.
async fn prepare(server: &Server) {
    for owner in ["acme", "rest"] {
        server
            .host
            .tenant(owner)
            .conversation("mine")
            .reset()
            .await
            .unwrap();
    }
    server.host.tenant("rest").pause(true).unwrap();
    // The operator's row of the table has paused it.
    server.host.tenant("acme").pause(false).unwrap();
}

/// A valid body for each route.
fn content(path: &str, turn: usize) -> Value {
    let message = json!([{"role": "user", "content": "hello"}]);
    match path.rsplit('/').next().unwrap() {
        "messages" if path.starts_with("/anthropic") => {
            json!({"model": "default", "max_tokens": 9, "messages": message})
        }
        "count_tokens" => json!({"model": "default", "messages": message}),
        "messages" => json!({"content": "hello"}),
        "mcp" => json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
        "{tool_call_id}" => json!({"allow": true}),
        "fanouts" => json!({"tasks": ["hello"]}),
        "inject" => json!({"text": "hello"}),
        "tool_results" => json!({"results": [{"tool_call_id": "call", "content": "yes"}]}),
        "rewind" => json!({"to": "00000000-0000-4000-8000-000000000001"}),
        "fork" => json!({"conversation_id": format!("copy-{turn}")}),
        "responses" => json!({"model": "default", "input": "hello", "store": false}),
        "completions" => {
            json!({"model": "default", "messages": message})
        }
        _ => json!({}),
    }
}

async fn status(
    server: &Server,
    method: &str,
    path: &str,
    key: Option<(&str, &str)>,
    turn: usize,
) -> u16 {
    let place = path
        .replace("{id}", "mine")
        .replace("{tenant}", "acme")
        .replace("{tool_call_id}", "call")
        .replace("{response_id}", "resp_none")
        .replace("{model_id}", "default")
        .replace("{name}", "skill")
        .replace("{artifact_id}", &"a".repeat(64));
    assert!(
        !place.contains('{'),
        "{place}: give the new part of the path a value"
    );
    let request = server
        .client
        .request(method.parse().unwrap(), server.url(&place));
    let request = key
        .into_iter()
        .fold(request, |request, (name, key)| request.header(name, key));
    let request = match path {
        "/mcp" => request.header("accept", "application/json, text/event-stream"),
        _ => request,
    };
    let request = if method == "GET" {
        request
    } else {
        with_json(request, &content(path, turn))
    };
    soon(request.send()).await.unwrap().status().as_u16()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_answers_every_kind_of_key_as_in_the_table() {
    let server = start().await;
    let document = body(
        soon(server.client.get(server.url("/openapi.json")).send())
            .await
            .unwrap(),
    )
    .await;
    let names: Vec<&str> = CALLERS.iter().map(|(name, _)| *name).collect();
    let mut table = format!("# route: status for {}\n", names.join(", "));
    let mut turn = 0;

    for (path, methods) in document["paths"].as_object().unwrap() {
        let mut methods: Vec<String> = methods
            .as_object()
            .unwrap()
            .keys()
            .map(|method| method.to_uppercase())
            .collect();
        methods.sort();
        methods.push("PATCH".into());
        for method in methods {
            let mut row = Vec::new();
            for (name, key) in CALLERS {
                turn += 1;
                // Drain ends the host, so it gets a host for itself.
                let drains = path.ends_with("/drain") && name == "operator" && method == "POST";
                let other = if drains { Some(start().await) } else { None };
                let asked = other.as_ref().unwrap_or(&server);
                prepare(asked).await;
                row.push(status(asked, &method, path, key, turn).await.to_string());
                if let Some(other) = other {
                    other.end().await;
                }
            }
            table += &format!("{method} {path}: {}\n", row.join(" "));
        }
    }

    expect_file!["./matrix.txt"].assert_eq(&table);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_method_of_an_operators_route_is_answered_like_an_unknown_path() {
    let server = start().await;
    let seen = async |method: &str, path: &str| {
        let request = server
            .client
            .request(method.parse().unwrap(), server.url(path))
            .bearer_auth(ACME);
        let response = soon(request.send()).await.unwrap();
        let named = |name: &str| !["x-request-id", "date"].contains(&name);
        let mut fields: Vec<(String, String)> = response
            .headers()
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect();
        fields.retain(|(name, _)| named(name));
        fields.sort();
        (
            response.status().as_u16(),
            fields,
            soon(response.text()).await.unwrap(),
        )
    };

    for path in [
        "/v1/admin/tenants",
        "/v1/admin/tenants/acme",
        "/v1/admin/tenants/acme/keys",
        "/v1/admin/drain",
        "/metrics",
    ] {
        for method in ["PATCH", "OPTIONS", "DELETE", "GET", "PUT", "POST", "TRACE"] {
            assert_eq!(
                seen(method, path).await,
                seen(method, "/v1/admin/nothing").await,
                "{method} {path}"
            );
        }
    }
    server.end().await;
}
