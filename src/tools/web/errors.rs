//! Errors of the web client as errors for the model.

use std::time::Duration;

use callboard_actors::tool::{ToolError, ToolErrorType};

use crate::{
    tools::cancelled,
    web::{Denied, WebError},
};

/// Maps a URL or address that the policy refuses.
pub(super) fn refused(denied: &Denied) -> ToolError {
    match denied {
        Denied::Invalid(_) => ToolError::invalid(denied.to_string()),
        _ => ToolError::denied(denied.to_string()).code("URL_REFUSED"),
    }
}

/// Maps an error of the web client for the model.
pub(super) fn web_error(error: WebError) -> ToolError {
    let message = error.to_string();
    match error {
        WebError::Denied(denied) => refused(&denied),
        WebError::NoSuchHost => ToolError::not_found(message).code("HOST_NOT_FOUND"),
        WebError::Connect => {
            ToolError::new(ToolErrorType::TransientError, message).code("NO_CONNECTION")
        }
        WebError::Timeout { .. } => ToolError::new(ToolErrorType::Timeout, message),
        WebError::Cancelled => cancelled(),
        WebError::Broken(_) | WebError::Encoding | WebError::Redirected => {
            ToolError::new(ToolErrorType::DependencyError, message)
        }
        WebError::Request(_) => ToolError::invalid(message),
    }
}

/// Maps a status that is not a success.
pub(super) fn status_error(who: &str, status: u16, retry_after: Option<Duration>) -> ToolError {
    let wait = retry_after.map_or(String::new(), |wait| {
        format!("; try again in {} s", wait.as_secs())
    });
    let (kind, what) = match status {
        404 | 410 => (ToolErrorType::NotFound, "there is no such document"),
        401 | 403 | 407 | 451 => (ToolErrorType::PermissionDenied, "it is not for everybody"),
        429 => (ToolErrorType::RateLimit, "too many requests"),
        408 | 425 | 500..=599 => (ToolErrorType::TransientError, "the server is in trouble"),
        300..=399 => (
            ToolErrorType::DependencyError,
            "a redirect that leads nowhere",
        ),
        _ => (ToolErrorType::ExecutionError, "the request was not served"),
    };
    ToolError::new(
        kind,
        format!("{who} answered with HTTP status {status}: {what}{wait}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_becomes_a_class_and_a_code() {
        let of = |status| {
            let error = status_error("the server", status, Some(Duration::from_secs(7)));
            (error.kind, error.code, error.message)
        };

        assert_eq!(
            of(429),
            (
                ToolErrorType::RateLimit,
                "RATE_LIMIT".to_owned(),
                "the server answered with HTTP status 429: too many requests; try again in 7 s"
                    .to_owned()
            )
        );
        assert_eq!(
            (of(404).0, of(410).1.as_str()),
            (ToolErrorType::NotFound, "NOT_FOUND")
        );
        assert_eq!(
            (of(403).0, of(503).0, of(418).0),
            (
                ToolErrorType::PermissionDenied,
                ToolErrorType::TransientError,
                ToolErrorType::ExecutionError
            )
        );
    }
}
