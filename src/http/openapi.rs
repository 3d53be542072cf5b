//! The document of the API: what the routes say of themselves, and what is true of all of them.

use axum::body::Bytes;
use utoipa::{
    OpenApi,
    openapi::{
        Components, ContentBuilder, Ref, ResponseBuilder,
        path::Operation,
        security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme},
    },
};

use super::error::Problem;

/// The scheme of a tenant's key.
const TENANT: &str = "tenant_key";

/// The scheme of the operator's key.
const OPERATOR: &str = "admin_key";

#[derive(OpenApi)]
#[openapi(
    info(title = "Callboard", description = "The HTTP host of Callboard, a runtime for LLM agents: conversations of many tenants, their events, an OpenAI-compatible door."),
    components(schemas(Problem)),
    tags(
        (name = "conversations", description = "What is said and kept; with the tenant's key"),
        (name = "control", description = "What else can be asked of a conversation; with the tenant's key"),
        (name = "openai", description = "An OpenAI-compatible door; with the tenant's key, and errors in the form of OpenAI"),
        (name = "operator", description = "With the operator's key; to any other these routes are not there"),
        (name = "health", description = "Without a key"),
    ),
)]
struct Base;

/// The document without routes.
pub(super) fn base() -> utoipa::openapi::OpenApi {
    Base::openapi()
}

/// Adds what holds for all routes, and writes it.
pub(super) fn render(mut document: utoipa::openapi::OpenApi) -> Bytes {
    let components = document.components.get_or_insert_with(Components::new);
    for (name, what) in [(TENANT, "A key of a tenant"), (OPERATOR, "The operator's key")] {
        let mut scheme = Http::new(HttpAuthScheme::Bearer);
        scheme.description = Some(what.to_owned());
        components.add_security_scheme(name, SecurityScheme::Http(scheme));
    }
    for (path, item) in &mut document.paths.paths {
        let operations = [("get", &mut item.get), ("put", &mut item.put), ("post", &mut item.post), ("delete", &mut item.delete)];
        for (method, operation) in operations {
            let Some(operation) = operation.as_mut() else { continue };
            operation.operation_id = Some(operation_id(method, path));
            complete(operation);
        }
    }
    serde_json::to_vec(&document).unwrap_or_default().into()
}

/// A name that no other operation has, and that stays when a function of ours is named anew: `post_v1_conversations_id_messages`.
fn operation_id(method: &str, path: &str) -> String {
    let words = path.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    std::iter::once(method).chain(words).collect::<Vec<_>>().join("_")
}

fn complete(operation: &mut Operation) {
    let has_tag = |tag: &str| operation.tags.iter().flatten().any(|found| found == tag);
    let (is_health, scheme) = (has_tag("health"), if has_tag("operator") { OPERATOR } else { TENANT });
    if !is_health {
        operation.security = Some(vec![SecurityRequirement::new(scheme, Vec::<String>::new())]);
    }
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    let response = ResponseBuilder::new()
        .description("A problem (RFC 9457); `code` says which. docs/http.md lists them")
        .content("application/problem+json", content)
        .build();
    operation.responses.responses.insert("default".to_owned(), response.into());
}
