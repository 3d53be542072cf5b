//! The OpenAPI document: it describes exactly the routes that are served.

use std::collections::BTreeSet;

use super::*;

/// The served routes of the public API.
const ROUTES: &[&str] = &[
    "DELETE /openai/v1/responses/{response_id}",
    "DELETE /v1/admin/tenants/{tenant}",
    "DELETE /v1/admin/tenants/{tenant}/data",
    "DELETE /v1/conversations/{id}",
    "DELETE /v1/conversations/{id}/skills/{name}",
    "DELETE /v1/fanouts/{name}",
    "DELETE /v1/responses/{response_id}",
    "GET /anthropic/v1/models",
    "GET /anthropic/v1/models/{model_id}",
    "GET /healthz",
    "GET /metrics",
    "GET /openai/v1/models",
    "GET /openai/v1/models/{model_id}",
    "GET /openai/v1/responses/{response_id}",
    "GET /openai/v1/responses/{response_id}/input_items",
    "GET /openapi.json",
    "GET /readyz",
    "GET /v1/admin/tenants",
    "GET /v1/artifacts/{artifact_id}",
    "GET /v1/conversations",
    "GET /v1/conversations/{id}",
    "GET /v1/conversations/{id}/events",
    "GET /v1/conversations/{id}/messages",
    "GET /v1/conversations/{id}/report",
    "GET /v1/conversations/{id}/rounds",
    "GET /v1/conversations/{id}/skills",
    "GET /v1/fanouts",
    "GET /v1/fanouts/{name}",
    "GET /v1/metrics",
    "GET /v1/models",
    "GET /v1/models/{model_id}",
    "GET /v1/responses/{response_id}",
    "GET /v1/responses/{response_id}/input_items",
    "POST /anthropic/v1/messages",
    "POST /anthropic/v1/messages/count_tokens",
    "POST /mcp",
    "POST /openai/v1/chat/completions",
    "POST /openai/v1/responses",
    "POST /openai/v1/responses/{response_id}/cancel",
    "POST /v1/admin/drain",
    "POST /v1/admin/reload",
    "POST /v1/admin/tenants/{tenant}/keys",
    "POST /v1/admin/tenants/{tenant}/pause",
    "POST /v1/chat/completions",
    "POST /v1/conversations/{id}/approvals/{tool_call_id}",
    "POST /v1/conversations/{id}/compact",
    "POST /v1/conversations/{id}/fork",
    "POST /v1/conversations/{id}/inject",
    "POST /v1/conversations/{id}/interrupt",
    "POST /v1/conversations/{id}/messages",
    "POST /v1/conversations/{id}/reset",
    "POST /v1/conversations/{id}/rewind",
    "POST /v1/conversations/{id}/skills/{name}",
    "POST /v1/conversations/{id}/tool_results",
    "POST /v1/fanouts",
    "POST /v1/fanouts/{name}/cancel",
    "POST /v1/responses",
    "POST /v1/responses/{response_id}/cancel",
    "PUT /v1/admin/tenants/{tenant}",
    "PUT /v1/admin/tenants/{tenant}/quota",
    "PUT /v1/conversations/{id}",
];

async fn document(server: &Server) -> Value {
    body(
        soon(server.client.get(server.url("/openapi.json")).send())
            .await
            .unwrap(),
    )
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_is_documented_and_every_documented_route_is_served() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    let document = document(&server).await;
    assert!(
        document["openapi"].as_str().unwrap().starts_with("3.1"),
        "{}",
        document["openapi"]
    );
    let mut documented = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            documented.insert(format!("{} {path}", method.to_uppercase()));
        }
    }

    assert_eq!(
        documented.iter().map(String::as_str).collect::<Vec<_>>(),
        ROUTES
    );
    let docs = include_str!("../../../docs/http.md");
    for route in documented {
        let (method, path) = route.split_once(' ').unwrap();
        assert!(docs.contains(path), "docs/http.md does not name {path}");
        if path == "/v1/admin/drain" {
            continue;
        }
        // An unknown key: a route that exists answers 401, or needs no key.
        let path = path.replace(['{', '}'], "");
        let status = soon(
            server
                .client
                .request(method.parse().unwrap(), server.url(&path))
                .send(),
        )
        .await
        .unwrap()
        .status();
        assert!([200, 401].contains(&status.as_u16()), "{route}: {status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_and_every_field_is_described() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    let document = document(&server).await;

    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            assert!(
                operation["summary"]
                    .as_str()
                    .is_some_and(|text| text.ends_with('.')),
                "{method} {path}: {operation}"
            );
            assert!(
                operation["responses"]["default"].is_object(),
                "{method} {path}"
            );
            let needs_key = operation["tags"][0] != "health";
            assert_eq!(
                operation.get("security").is_some(),
                needs_key,
                "{method} {path}"
            );
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                assert!(
                    parameter["description"].is_string(),
                    "{method} {path}: {parameter}"
                );
            }
        }
    }
    let schemas = document["components"]["schemas"].as_object().unwrap();
    assert!(schemas.len() > 20, "{}", schemas.len());
    for (name, schema) in schemas {
        assert!(
            schema["description"].is_string() || schema["allOf"].is_array(),
            "{name} has no description"
        );
        for (field, property) in schema["properties"].as_object().into_iter().flatten() {
            assert!(
                property["description"].is_string()
                    || property.get("$ref").is_some()
                    || property["oneOf"].is_array(),
                "{name}.{field}: {property}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_reference_of_the_document_leads_somewhere() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    let document = document(&server).await;
    let mut references = Vec::new();
    collect(&document, &mut references);

    assert!(references.len() > 20);
    for reference in references {
        assert!(
            document
                .pointer(reference.trim_start_matches('#'))
                .is_some(),
            "{reference}"
        );
    }
}

fn collect(value: &Value, references: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            references.extend(
                fields
                    .get("$ref")
                    .and_then(Value::as_str)
                    .map(str::to_owned),
            );
            fields.values().for_each(|value| collect(value, references));
        }
        Value::Array(items) => items.iter().for_each(|value| collect(value, references)),
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_document_names_every_event() {
    let source = include_str!("../../../actors/src/stream.rs");
    let (_, names) = source.split_once("pub fn name(&self)").unwrap();
    let (names, _) = names.split_once("\n    }\n").unwrap();
    let written: BTreeSet<&str> = names.split('"').skip(1).step_by(2).collect();
    assert!(written.contains("round_finished"), "{written:?}");
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;

    let document = document(&server).await;

    let kind = &document["components"]["schemas"]["Event"]["properties"]["type"];
    let text = kind["description"].as_str().unwrap();
    let documented: BTreeSet<&str> = text.split('`').skip(1).step_by(2).collect();
    assert_eq!(documented, written);
}
