//! Errors in Anthropic's form.

use axum::{
    Json,
    http::{HeaderName, HeaderValue, StatusCode},
    response::{IntoResponse as _, Response},
};

use super::wire::{ErrorBody, ErrorDetails, ErrorShown};
use crate::http::{
    auth::API_KEY_PREFIX,
    error::{Problem, SHOULD_RETRY},
};

/// The status of Anthropic's API for a host that takes no more requests at this moment.
const OVERLOADED: u16 = 529;

/// The id of the request, by the name that Anthropic's clients read.
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// A problem document as a status and an error of Anthropic's API. Its clients choose by the status
/// whether they try again.
pub(super) fn in_their_form(problem: Problem, request_id: Option<String>) -> (u16, ErrorShown) {
    let (status, kind) = match (problem.status, problem.code.as_str()) {
        // The same request would be refused again; their clients repeat what is 429.
        (429, "insufficient_quota") => (402, "billing_error"),
        (400 | 422, _) => (400, "invalid_request_error"),
        (401, _) => (401, "authentication_error"),
        (403, _) => (403, "permission_error"),
        (404, _) => (404, "not_found_error"),
        (408 | 504, _) => (problem.status, "timeout_error"),
        (409, _) => (409, "conflict_error"),
        (413, _) => (413, "request_too_large"),
        (429, _) => (429, "rate_limit_error"),
        (503, _) => (OVERLOADED, "overloaded_error"),
        (400..500, _) => (problem.status, "invalid_request_error"),
        _ => (problem.status, "api_error"),
    };
    let message = match (problem.code.as_str(), &problem.pointer) {
        // The words by which clients know that they must shorten the history.
        ("context_length_exceeded", _) => format!("prompt is too long: {}", problem.detail),
        (_, Some(pointer)) => format!("{}: {}", dotted(pointer), problem.detail),
        (_, None) => problem.detail,
    };
    let shown = ErrorShown {
        kind: "error",
        error: ErrorBody {
            kind,
            message,
            details: ErrorDetails {
                error_code: problem.code,
                pointer: problem.pointer,
            },
        },
        request_id,
    };
    (status, shown)
}

/// A pointer as Anthropic's messages name fields: `messages.0.content`.
fn dotted(pointer: &str) -> String {
    pointer.trim_start_matches('/').replace('/', ".")
}

/// Rewrites error responses of this API into Anthropic's form; other responses pass unchanged.
/// `request_id` is that of the request.
pub(in crate::http) fn translate(
    path: &str,
    request_id: Option<&HeaderValue>,
    mut response: Response,
) -> Response {
    if !path.starts_with(API_KEY_PREFIX) {
        return response;
    }
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        let id = request_id.and_then(|id| id.to_str().ok());
        let (status, shown) = in_their_form(problem, id.map(str::to_owned));
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut translated = (status, Json(shown)).into_response();
        for name in [
            "retry-after",
            "www-authenticate",
            "allow",
            "connection",
            SHOULD_RETRY,
        ] {
            if let Some(value) = response.headers().get(name) {
                let name = HeaderName::from_static(name);
                translated.headers_mut().insert(name, value.clone());
            }
        }
        response = translated;
    }
    if let Some(id) = request_id {
        response.headers_mut().insert(REQUEST_ID, id.clone());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_the_status_and_type_that_anthropics_clients_act_on() {
        let shown = |status: u16, code: &str| {
            let status = StatusCode::from_u16(status).unwrap();
            let (status, shown) = in_their_form(Problem::new(status, code, "why"), None);
            (status, shown.error.kind)
        };
        for (status, code, expected) in [
            (400, "malformed_json", (400, "invalid_request_error")),
            (422, "invalid_field", (400, "invalid_request_error")),
            (401, "unauthorized", (401, "authentication_error")),
            (403, "tenant_key_needed", (403, "permission_error")),
            (404, "model_not_found", (404, "not_found_error")),
            (405, "method_not_allowed", (405, "invalid_request_error")),
            (408, "body_too_slow", (408, "timeout_error")),
            (409, "conversation_busy", (409, "conflict_error")),
            (413, "too_large", (413, "request_too_large")),
            (429, "too_many_requests", (429, "rate_limit_error")),
            (429, "insufficient_quota", (402, "billing_error")),
            (500, "internal", (500, "api_error")),
            (502, "provider_auth", (502, "api_error")),
            (503, "draining", (529, "overloaded_error")),
            (504, "deadline", (504, "timeout_error")),
        ] {
            assert_eq!(shown(status, code), expected, "{status} {code}");
        }
    }

    #[test]
    fn a_message_names_the_field_and_a_long_prompt_is_known_by_its_words() {
        let problem = Problem::invalid("/messages/0/role", "is wrong");
        let (_, shown) = in_their_form(problem, None);
        assert_eq!(shown.error.message, "messages.0.role: is wrong");
        assert_eq!(
            shown.error.details.pointer.as_deref(),
            Some("/messages/0/role")
        );

        let long = Problem::new(StatusCode::BAD_REQUEST, "context_length_exceeded", "9 > 8");
        let (_, shown) = in_their_form(long.at("/messages"), None);
        assert_eq!(shown.error.message, "prompt is too long: 9 > 8");
    }
}
