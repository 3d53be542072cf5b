//! Requests of the host's own HTTP API, made inside of the process with the key of the MCP client.
//! Each passes the router, so whatever that refuses is refused here: keys, rates, quotas, bounds.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    http::{Extensions, HeaderName, HeaderValue, Method, Request, StatusCode, header},
    response::Response,
};
use serde_json::Value;
use tower_service::Service as _;

use super::events::Events;
use crate::http::{
    addresses::ClientAddress,
    answer_room::ConnectionRoom,
    error::REQUEST_ID,
    sse::{ReadHere, WithoutText},
};

/// Bytes of an answer that is read whole: a page of 8 MiB, or one message of the largest prompt.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Admits changes of conversations by their id, before the request is made.
///
/// # Errors
/// Why the conversation cannot be changed, in one line.
pub(crate) type Admit = Arc<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// A request.
#[derive(Debug, Default)]
pub(super) struct Asked {
    method: Method,
    path: String,
    body: Option<Value>,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// The conversation that it changes.
    changes: Option<String>,
    skips_text: bool,
}

impl Asked {
    pub(super) fn get(path: String) -> Self {
        Self {
            path,
            ..Self::default()
        }
    }

    pub(super) fn post(path: String, body: Value) -> Self {
        Self {
            method: Method::POST,
            path,
            body: Some(body),
            ..Self::default()
        }
    }

    /// Names the conversation that the request changes.
    pub(super) fn changing(self, conversation: &str) -> Self {
        Self {
            changes: Some(conversation.to_owned()),
            ..self
        }
    }

    /// Asks for events without the text that is being written.
    pub(super) fn without_text(self) -> Self {
        Self {
            skips_text: true,
            ..self
        }
    }

    pub(super) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }
}

/// Why a request was refused, as a line for the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    /// The stable code of the problem.
    pub(super) code: String,
    /// What happened and what to do.
    pub(super) detail: String,
    /// When to retry, in milliseconds.
    pub(super) retry_after_ms: Option<u64>,
}

impl Refused {
    pub(super) fn new(code: &str, detail: impl Into<String>) -> Self {
        Self {
            code: code.to_owned(),
            detail: detail.into(),
            retry_after_ms: None,
        }
    }

    fn from_problem(status: StatusCode, body: &[u8]) -> Self {
        let problem: &Value = &serde_json::from_slice(body).unwrap_or_default();
        let text = |name: &str| problem[name].as_str().unwrap_or_default();
        let field = match text("pointer").trim_start_matches('/') {
            "content" => "prompt",
            field => field,
        };
        let detail = match (field, text("detail")) {
            (_, "") => format!("the host answered {status}"),
            ("", detail) => detail.to_owned(),
            (field, detail) => format!("{field}: {detail}"),
        };
        Self {
            code: match text("code") {
                "" => "internal".to_owned(),
                code => code.to_owned(),
            },
            detail: detail.split_whitespace().collect::<Vec<_>>().join(" "),
            retry_after_ms: problem["retry_after_ms"].as_u64(),
        }
    }

    /// The line that the caller reads.
    pub(super) fn line(&self) -> String {
        let Self { code, detail, .. } = self;
        match self.retry_after_ms {
            Some(ms) => format!("{detail} (code {code}; retry after {ms} ms)"),
            None => format!("{detail} (code {code})"),
        }
    }
}

/// The API as one caller may use it.
#[derive(Clone)]
pub(in crate::http) struct Api {
    router: Router,
    key: HeaderValue,
    /// What the server notes about the caller's connection.
    connection: Extensions,
    request_id: Option<HeaderValue>,
    admit: Option<Admit>,
}

impl Api {
    pub(in crate::http) fn new(
        router: Router,
        mut key: HeaderValue,
        connection: &Extensions,
    ) -> Self {
        key.set_sensitive(true);
        let mut kept = Extensions::new();
        kept.insert(ReadHere);
        if let Some(room) = connection.get::<ConnectionRoom>() {
            kept.insert(room.clone());
        }
        if let Some(address) = connection.get::<ClientAddress>() {
            kept.insert(*address);
        }
        Self {
            router,
            key,
            connection: kept,
            request_id: None,
            admit: None,
        }
    }

    /// Sends this id with each request, so that the log has one for the whole call.
    pub(super) fn named(self, request_id: Option<HeaderValue>) -> Self {
        Self { request_id, ..self }
    }

    /// Asks `admit` before each change of a conversation.
    #[cfg(feature = "cli")]
    pub(in crate::http) fn admitted_by(self, admit: Admit) -> Self {
        Self {
            admit: Some(admit),
            ..self
        }
    }

    /// Sends a request; returns its answer if it succeeded.
    async fn send(&self, asked: Asked) -> Result<Response, Refused> {
        if let (Some(admit), Some(conversation)) = (&self.admit, &asked.changes) {
            admit(conversation).map_err(|why| Refused::new("session_in_use", why))?;
        }
        let body = match &asked.body {
            Some(body) => Body::from(body.to_string()),
            None => Body::empty(),
        };
        let mut request = Request::builder()
            .method(asked.method)
            .uri(asked.path)
            .header(header::HOST, "callboard")
            .header(header::AUTHORIZATION, self.key.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .body(body)
            .map_err(|_| {
                Refused::new("invalid_parameter", "an id has characters that no id has")
            })?;
        request.headers_mut().extend(asked.headers);
        if let Some(id) = &self.request_id {
            request.headers_mut().insert(REQUEST_ID, id.clone());
        }
        request.extensions_mut().extend(self.connection.clone());
        if asked.skips_text {
            request.extensions_mut().insert(WithoutText);
        }
        let response = self.router.clone().call(request).await;
        let response = response.unwrap_or_else(|never| match never {});
        match response.status() {
            status if status.is_success() => Ok(response),
            status => {
                let body = read(response).await?;
                Err(Refused::from_problem(status, &body))
            }
        }
    }

    /// The answer to a request, as JSON; `null` if it has no body.
    pub(super) async fn json(&self, asked: Asked) -> Result<Value, Refused> {
        let body = read(self.send(asked).await?).await?;
        if body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&body).map_err(|_| lost())
    }

    /// The events of a request.
    pub(super) async fn events(&self, asked: Asked) -> Result<Events, Refused> {
        let asked = asked.with(
            header::ACCEPT,
            HeaderValue::from_static("text/event-stream"),
        );
        Ok(Events::new(self.send(asked).await?.into_body()))
    }
}

async fn read(response: Response) -> Result<axum::body::Bytes, Refused> {
    axum::body::to_bytes(response.into_body(), ANSWER_BYTES_MAX)
        .await
        .map_err(|_| lost())
}

fn lost() -> Refused {
    Refused::new("internal", "the answer broke off; ask again")
}

/// A value as a segment of a path or a value of a query.
pub(super) fn escaped(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes())
        .collect::<String>()
        .replace('+', "%20")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_one_line_with_its_field_and_its_code() {
        let problem = br#"{"status":422,"code":"invalid_field","detail":"must be\n 1 to 9","pointer":"/deadline_ms"}"#;

        let refused = Refused::from_problem(StatusCode::UNPROCESSABLE_ENTITY, problem);

        assert_eq!(
            refused.line(),
            "deadline_ms: must be 1 to 9 (code invalid_field)"
        );
        let later = br#"{"code":"overloaded","detail":"too many prompts","retry_after_ms":1500}"#;
        assert_eq!(
            Refused::from_problem(StatusCode::TOO_MANY_REQUESTS, later).line(),
            "too many prompts (code overloaded; retry after 1500 ms)"
        );
        assert_eq!(
            Refused::from_problem(StatusCode::BAD_GATEWAY, b"<html>").line(),
            "the host answered 502 Bad Gateway (code internal)"
        );
    }

    #[test]
    fn an_id_cannot_leave_its_segment_of_the_path() {
        assert_eq!(escaped("../a b?c#d/e"), "..%2Fa%20b%3Fc%23d%2Fe");
        assert_eq!(escaped("support-42"), "support-42");
    }
}
