//! Errors of the HTTP API as problem documents (RFC 9457). Each has a stable `code`.

use std::time::Duration;

use axum::{
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use callboard_actors::{
    conversation::{ConversationError, round::Refusal},
    host::{OutcomeError, SendError},
    limits::PROMPT_BYTES_MAX,
    ports::{ArtifactError, StoreError},
};
use serde::Serialize;
use utoipa::ToSchema;

use super::OperatorError;

/// Header with the request id, which appears in the logs of client and host.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// `Retry-After` for conditions whose end is unknown.
const RETRY_AFTER_MS: u64 = 1000;

/// `Retry-After` while the operator has paused a tenant: a person ends a pause, so it is longer.
const PAUSED_RETRY_MS: u64 = 30_000;

/// Most bytes of a text of an error, as it is sent.
const TEXT_BYTES_MAX: usize = 4 * 1024;

/// Most bytes of a text before keys in it are masked: a key that this cuts is not sent.
const RAW_BYTES_MAX: usize = 4 * TEXT_BYTES_MAX;

/// Most characters of a caller's text that are quoted.
const QUOTED_CHARS_MAX: usize = 64;

/// The beginning of a caller's text, quoted.
pub(super) fn quoted(text: &str) -> String {
    let start: String = text.chars().take(QUOTED_CHARS_MAX).collect();
    let more = if start.len() < text.len() { "…" } else { "" };
    format!("{start:?}{more}")
}

/// Cuts a text to `bytes_max`.
fn cut(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max));
        text.shrink_to_fit();
        text.push('…');
    }
    text
}

/// An error (RFC 9457, `application/problem+json`). Its `type` is `about:blank`; `code` identifies
/// the problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Problem {
    /// The HTTP status.
    pub(super) status: u16,
    /// The standard phrase of the status.
    pub(super) title: &'static str,
    /// Stable identifier of the problem, for programs.
    pub(super) code: String,
    /// What happened and what to do, for people. Contains no path and no key.
    pub(super) detail: String,
    /// The invalid field of the body, as a JSON pointer (RFC 6901).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pointer: Option<String>,
    /// When to retry, in milliseconds from now; `Retry-After` has it in seconds, rounded up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retry_after_ms: Option<u64>,
    /// Whether the prompt of the request is stored: sent again, it would run twice.
    #[serde(skip)]
    pub(super) is_stored: bool,
}

impl Problem {
    pub(super) fn new(
        status: StatusCode,
        code: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        let title = status.canonical_reason().unwrap_or("Error");
        Self {
            status: status.as_u16(),
            title,
            code: code.into(),
            detail: cut(detail.into(), RAW_BYTES_MAX),
            pointer: None,
            retry_after_ms: None,
            is_stored: false,
        }
    }

    pub(super) fn at(self, pointer: impl Into<String>) -> Self {
        Self {
            pointer: Some(cut(pointer.into(), RAW_BYTES_MAX)),
            ..self
        }
    }

    pub(super) fn after(self, retry_after_ms: Option<u64>) -> Self {
        Self {
            retry_after_ms,
            ..self
        }
    }

    /// The problem of a request whose prompt is stored.
    pub(super) fn of_stored(self) -> Self {
        Self {
            is_stored: true,
            ..self
        }
    }

    /// Applies `mask` to every text of the problem, and cuts long ones.
    pub(super) fn masked(self, mask: impl Fn(&str) -> String) -> Self {
        let mask = |text: &str| cut(mask(text), TEXT_BYTES_MAX);
        Self {
            code: mask(&self.code),
            detail: mask(&self.detail),
            pointer: self.pointer.as_deref().map(mask),
            ..self
        }
    }

    /// A 404. Another tenant's id gets exactly the same text as an unknown id.
    pub(super) fn not_found(what: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "not_found",
            format!("there is no such {what}"),
        )
    }

    /// A 422 for a field of the body.
    pub(super) fn invalid(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_field", detail).at(pointer)
    }

    /// A 422 for a parameter of the path, the query or a header.
    pub(super) fn bad_parameter(name: &str, detail: impl std::fmt::Display) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid_parameter",
            format!("{name}: {detail}"),
        )
    }

    pub(super) fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "internal error; the host's log names this request's X-Request-Id",
        )
    }

    pub(super) fn draining() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "draining",
            "the host is shutting down",
        )
        .after(Some(RETRY_AFTER_MS))
    }

    /// The answer while the host that owns a conversation cannot be reached. If it is gone, another
    /// one takes its conversations within seconds.
    pub(super) fn owner_away() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "owner_unreachable",
            "the host that owns this conversation does not answer; retry in a moment",
        )
        .after(Some(RETRY_AFTER_MS))
    }

    /// The answer for a request that met an owner that changed at this moment. Nothing was done.
    pub(super) fn owner_changed() -> Self {
        let detail = "the conversation moves to another host at this moment; retry in a moment";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "owned_elsewhere", detail)
            .after(Some(RETRY_AFTER_MS))
    }

    /// Whether another host has taken the conversation.
    pub(super) fn is_taken(&self) -> bool {
        ["owned_elsewhere", "session_in_use"].contains(&&*self.code)
    }

    pub(super) fn too_many(code: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, code, detail).after(Some(RETRY_AFTER_MS))
    }
}

/// Seconds for `Retry-After`, rounded up so that a client that obeys it is never early.
fn seconds(ms: u64) -> u64 {
    Duration::from_millis(ms).as_secs() + u64::from(!ms.is_multiple_of(1000))
}

/// Whether clients of the compatible APIs send a request again; they decide by its status otherwise.
pub(super) const SHOULD_RETRY: &str = "x-should-retry";

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(ms) = self.retry_after_ms {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds(ms)));
        }
        if self.is_stored && self.is_taken() {
            // The clients of OpenAI and Anthropic send other failures again by themselves: the round
            // would run twice.
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static("Bearer realm=\"callboard\""),
            );
        }
        // The OpenAI-compatible routes read the problem from here and write it in OpenAI's form.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotFound => Self::not_found("conversation"),
            error if error.is_retryable() => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                error.code(),
                error.to_string(),
            )
            .after(Some(RETRY_AFTER_MS)),
            error => Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                error.code(),
                error.to_string(),
            ),
        }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let code = refusal.code();
        let detail = refusal.to_string();
        match refusal {
            Refusal::Busy
            | Refusal::RoundOpen
            | Refusal::NotEmpty
            | Refusal::AlreadyAnswered(_)
            | Refusal::NothingToAnswer => Self::new(StatusCode::CONFLICT, code, detail),
            Refusal::InboxFull => Self::too_many(code, detail),
            Refusal::Draining => Self::draining(),
            Refusal::NoSuch(_) => Self::new(StatusCode::NOT_FOUND, code, detail),
            Refusal::InvalidMessage => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail).at("/content")
            }
            // A reused idempotency key, too many pinned texts, a context that cannot shrink, an
            // unknown skill.
            _ => Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail),
        }
    }
}

impl From<SendError> for Problem {
    fn from(error: SendError) -> Self {
        let code = error.code();
        let detail = error.to_string();
        match error {
            SendError::BadPrompt(bytes) if bytes > PROMPT_BYTES_MAX => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, code, detail)
            }
            SendError::BadPrompt(_) | SendError::Attachment(_) => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail).at("/content")
            }
            SendError::Parameter(fault) => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail)
                    .at(format!("/{}", fault.field))
            }
            SendError::NoThinking(_) => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail).at("/thinking")
            }
            SendError::ClientTool(fault) => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail)
                    .at(format!("/tools/{}/{}", fault.index, fault.field))
            }
            SendError::ClientResult { .. } => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, code, detail).at("/results")
            }
            SendError::InvalidHistory(fault) => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail)
                    .at(format!("/messages{}", fault.pointer()))
            }
            SendError::FanOutRuns { .. } | SendError::FanOutDiffers { .. } => {
                Self::new(StatusCode::CONFLICT, code, detail)
            }
            SendError::Conversation(ConversationError::Refused(refusal)) => refusal.into(),
            SendError::Conversation(ConversationError::Overloaded { retry_after_ms, .. }) => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, code, detail).after(Some(retry_after_ms))
            }
            SendError::Conversation(ConversationError::Store(error)) => error.into(),
            SendError::Conversation(
                ConversationError::InUse
                | ConversationError::Failed { .. }
                | ConversationError::NeedsNewerVersion { .. },
            ) => Self::new(StatusCode::CONFLICT, code, detail),
            SendError::Conversation(ConversationError::TenantPaused) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, code, detail)
                    .after(Some(PAUSED_RETRY_MS))
            }
            SendError::Conversation(ConversationError::TenantRemoved) => {
                Self::new(StatusCode::FORBIDDEN, code, detail)
            }
            SendError::Conversation(ConversationError::Deleted) => {
                Self::new(StatusCode::CONFLICT, code, detail)
            }
            SendError::Conversation(ConversationError::Gone) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, code, detail).after(Some(RETRY_AFTER_MS))
            }
            error if error.is_retryable() => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, code, detail).after(Some(RETRY_AFTER_MS))
            }
            _ => Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail),
        }
    }
}

/// Only for prompts that never started a round. A prompt whose round ran gets a 200 with the
/// round's status, even if the round failed.
impl From<OutcomeError> for Problem {
    fn from(error: OutcomeError) -> Self {
        let code = error.code().to_owned();
        let detail = error.to_string();
        match error {
            OutcomeError::Ended { failure } => {
                let status = match failure.code.as_str() {
                    "deadline" => StatusCode::GATEWAY_TIMEOUT,
                    "provider_auth" => StatusCode::BAD_GATEWAY,
                    "interrupted" | "withdrawn" | "deleted" => StatusCode::CONFLICT,
                    _ => StatusCode::SERVICE_UNAVAILABLE,
                };
                Self::new(status, code, detail)
                    .after(failure.retry_after_ms)
                    .of_stored()
            }
            OutcomeError::Expired => Self::new(StatusCode::GONE, code, detail),
            _ => Self::new(StatusCode::BAD_GATEWAY, code, detail),
        }
    }
}

impl From<ArtifactError> for Problem {
    fn from(error: ArtifactError) -> Self {
        match error {
            ArtifactError::NotFound(_) => Self::not_found("artifact"),
            error if error.is_retryable() => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                error.code(),
                error.to_string(),
            )
            .after(Some(RETRY_AFTER_MS)),
            error => Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                error.code(),
                error.to_string(),
            ),
        }
    }
}

impl From<OperatorError> for Problem {
    fn from(error: OperatorError) -> Self {
        let detail = error.to_string();
        match error {
            OperatorError::UnknownTenant => Self::not_found("tenant"),
            OperatorError::Invalid { pointer, .. } => {
                let problem = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_field", detail);
                Self { pointer, ..problem }
            }
            OperatorError::Unsupported(_) => {
                Self::new(StatusCode::NOT_IMPLEMENTED, "unsupported", detail)
            }
            OperatorError::Unavailable(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
                    .after(Some(RETRY_AFTER_MS))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_rounded_up_to_seconds() {
        for (ms, expected) in [(0, 0), (1, 1), (1000, 1), (1001, 2), (59_999, 60)] {
            assert_eq!(seconds(ms), expected, "{ms}");
        }
    }

    #[test]
    fn every_refusal_has_its_status() {
        let status = |refusal: Refusal| Problem::from(refusal).status;

        assert_eq!(status(Refusal::Busy), 409);
        assert_eq!(status(Refusal::InboxFull), 429);
        assert_eq!(status(Refusal::Draining), 503);
        assert_eq!(status(Refusal::KeyReused), 422);
        assert_eq!(status(Refusal::NoSuch("call")), 404);
        assert_eq!(
            Problem::from(SendError::BadPrompt(PROMPT_BYTES_MAX + 1)).status,
            413
        );
        assert_eq!(
            Problem::from(SendError::BadPrompt(0)).pointer.as_deref(),
            Some("/content")
        );
    }

    #[test]
    fn a_refusal_under_overload_names_the_time_to_retry() {
        let error = SendError::from(ConversationError::Overloaded {
            what: "prompts of this tenant",
            retry_after_ms: 1500,
        });

        let response = Problem::from(error).into_response();

        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[header::RETRY_AFTER], "2");
        assert_eq!(
            response.headers()[header::CONTENT_TYPE],
            "application/problem+json"
        );
    }
}
