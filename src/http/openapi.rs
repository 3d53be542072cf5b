//! Builds the OpenAPI document: the routes' own descriptions, completed by what holds for all of
//! them (security, error responses, operation ids).

use axum::body::Bytes;
use utoipa::{
    OpenApi,
    openapi::{
        Components, ContentBuilder, Ref, ResponseBuilder,
        path::Operation,
        security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme},
    },
};

use super::{anthropic, api::Event, error::Problem, openai};

/// The scheme of a tenant's key.
const TENANT: &str = "tenant_key";

/// The scheme of the operator's key.
const OPERATOR: &str = "admin_key";

#[derive(OpenApi)]
#[openapi(
    info(title = "Callboard", description = "The HTTP host of Callboard, a runtime for LLM agents: conversations of many tenants, event streams and an OpenAI-compatible API."),
    components(schemas(Problem, Event, openai::ChatError, anthropic::ErrorShown)),
    tags(
        (name = "conversations", description = "Messages, events and stored conversations; needs a tenant's key"),
        (name = "control", description = "Interrupt, approve, steer, compact and fork conversations; needs a tenant's key"),
        (name = "fan-outs", description = "Many tasks at once, a subagent each; needs a tenant's key"),
        (name = "openai", description = "OpenAI-compatible API; needs a tenant's key; errors have OpenAI's form"),
        (name = "anthropic", description = "Anthropic-compatible API; needs a tenant's key, also in `x-api-key`; errors have Anthropic's form"),
        (name = "mcp", description = "The Model Context Protocol; needs a tenant's key"),
        (name = "operator", description = "Administration; needs the operator's key. With any other key these routes answer 404"),
        (name = "health", description = "Liveness, readiness and this document; no key needed"),
    ),
)]
struct Base;

/// The document without routes.
pub(super) fn base() -> utoipa::openapi::OpenApi {
    Base::openapi()
}

/// Adds what holds for all routes, and serializes the document.
pub(super) fn render(mut document: utoipa::openapi::OpenApi) -> Bytes {
    let components = document.components.get_or_insert_with(Components::new);
    for (name, what) in [
        (TENANT, "API key of a tenant"),
        (OPERATOR, "API key of the operator"),
    ] {
        let mut scheme = Http::new(HttpAuthScheme::Bearer);
        scheme.description = Some(what.to_owned());
        components.add_security_scheme(name, SecurityScheme::Http(scheme));
    }
    let routes = &mut document.paths.paths;
    let second: Vec<_> = routes
        .iter()
        .filter_map(|(path, item)| Some((openai::second_path(path)?, item.clone())))
        .collect();
    routes.extend(second);
    for (path, item) in routes {
        let operations = [
            ("get", &mut item.get),
            ("put", &mut item.put),
            ("post", &mut item.post),
            ("delete", &mut item.delete),
        ];
        for (method, operation) in operations {
            let Some(operation) = operation.as_mut() else {
                continue;
            };
            operation.operation_id = Some(operation_id(method, path));
            complete(operation);
        }
    }
    serde_json::to_vec(&document).unwrap_or_default().into()
}

/// An operation id derived from method and path, so that it is unique and survives a rename of the
/// handler: `post_v1_conversations_id_messages`.
fn operation_id(method: &str, path: &str) -> String {
    let words = path
        .split(|letter: char| !letter.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty());
    std::iter::once(method)
        .chain(words)
        .collect::<Vec<_>>()
        .join("_")
}

fn complete(operation: &mut Operation) {
    let has_tag = |tag: &str| operation.tags.iter().flatten().any(|found| found == tag);
    let is_health = has_tag("health");
    let scheme = if has_tag("operator") {
        OPERATOR
    } else {
        TENANT
    };
    if !is_health {
        operation.security = Some(vec![SecurityRequirement::new(scheme, Vec::<String>::new())]);
    }
    let (schema, media, what) = if has_tag("openai") {
        ("ChatError", "application/json", "An error in OpenAI's form")
    } else if has_tag("anthropic") {
        let what = "An error in Anthropic's form";
        ("ErrorShown", "application/json", what)
    } else {
        let what = "A problem (RFC 9457), identified by `code`; docs/http.md lists the codes";
        ("Problem", "application/problem+json", what)
    };
    let content = ContentBuilder::new()
        .schema(Some(Ref::from_schema_name(schema)))
        .build();
    let response = ResponseBuilder::new()
        .description(what)
        .content(media, content)
        .build();
    operation
        .responses
        .responses
        .insert("default".to_owned(), response.into());
}
