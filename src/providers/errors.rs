//! The errors of a model call: maps a provider's refusal, a broken connection or a passed limit to a
//! [`ProviderError`]. Pure, except for the wall clock that an
//! HTTP-date needs.
//!
//! Classes: 401 and 403, and 400 with Google's code for a wrong key, are `Auth`; 402, and 429 with a quota code, are `QuotaExhausted`; 429 is
//! `RateLimited`; 408, 409 and 5xx are `Server`; every other 4xx is `InvalidRequest`. A retryable
//! status with `x-should-retry: false` becomes an `InvalidRequest` with that status: the only class
//! with a status that is never retried.

use std::time::{Duration, SystemTime};

use callboard_actors::ports::ProviderError;
use reqwest::header::{DATE, HeaderMap, LOCATION, RETRY_AFTER};
use serde_json::Value;

use super::{config::Timeouts, limits};

/// Characters of a provider's message that are passed on. Longer ones are usually HTML pages.
const MESSAGE_CHARS_MAX: usize = 500;

/// The fields of a provider's error, from whichever place the provider put them.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct ErrorFields {
    /// The values of `type` and `code`, where present.
    kinds: Vec<String>,
    status: Option<u16>,
    message: String,
    /// The wait that the error itself asks for.
    retry_after: Option<Duration>,
    /// Whether a quota of a whole day is spent.
    no_quota_today: bool,
}

/// Bytes of an error that is read as JSON; of a longer one the beginning is shown as text. Parsed, one
/// of very many small values takes a hundred times its bytes.
const JSON_BYTES_MAX: usize = 16 * 1024;

impl ErrorFields {
    /// Reads an error body or event: `{"error": {…}}`, `{"error": "…"}`, `{"message": …}`, `{"detail": …}` or plain text.
    pub(super) fn read(body: &[u8]) -> Self {
        let short = Some(body).filter(|body| body.len() <= JSON_BYTES_MAX);
        let value = short.and_then(|body| serde_json::from_slice::<Value>(body).ok());
        let Some(value) = value else {
            return Self {
                message: plain(body),
                ..Self::default()
            };
        };
        // Google's servers may wrap an error into a list.
        let value = value.get(0).unwrap_or(&value);
        let error = value
            .get("error")
            .filter(|error| !error.is_null())
            .unwrap_or(value);
        let mut fields = Self::default();
        for key in ["type", "code", "status"] {
            match error.get(key) {
                Some(Value::String(kind)) => fields.kinds.push(kind.to_ascii_lowercase()),
                Some(Value::Number(number)) => {
                    fields.status = fields.status.or(number
                        .as_u64()
                        .and_then(|number| u16::try_from(number).ok()));
                }
                _ => {}
            }
        }
        let message = [
            Some(error),
            error.get("message"),
            error.get("detail"),
            error.get("msg"),
        ];
        fields.message = message
            .into_iter()
            .flatten()
            .find_map(Value::as_str)
            .map_or_else(|| plain(body), one_line);
        fields.read_details(error.get("details"));
        fields
    }

    /// Reads Google's details: the reason of a refusal, the wait it asks for and the quota it is
    /// about.
    fn read_details(&mut self, details: Option<&Value>) {
        let text = |value: &Value, name: &str| value.get(name)?.as_str().map(str::to_owned);
        for detail in details.and_then(Value::as_array).into_iter().flatten() {
            self.kinds
                .extend(text(detail, "reason").map(|reason| reason.to_ascii_lowercase()));
            let delay = text(detail, "retryDelay").and_then(|delay| limits::duration(&delay));
            self.retry_after = self.retry_after.or(delay);
            let violations = detail.get("violations").and_then(Value::as_array);
            self.no_quota_today |= violations.into_iter().flatten().any(|violation| {
                text(violation, "quotaId").is_some_and(|quota| quota.contains("PerDay"))
            });
        }
    }

    fn is(&self, kinds: &[&str]) -> bool {
        self.kinds.iter().any(|kind| kinds.contains(&kind.as_str()))
    }

    fn no_quota(&self) -> bool {
        self.is(&[
            "insufficient_quota",
            "billing_error",
            "billing_hard_limit_reached",
            "quota_exceeded",
            "exceeded_current_quota_error",
        ]) || (self.no_quota_today && self.retry_after.is_none())
    }

    fn bad_key(&self) -> bool {
        self.is(&["api_key_invalid", "invalid_api_key"])
    }
}

/// Returns the error of an answer without a 2xx status.
pub(super) fn of_response(status: u16, headers: &HeaderMap, body: &[u8]) -> ProviderError {
    let fields = ErrorFields::read(body);
    let quota = fields.no_quota();
    let bad_key = fields.bad_key();
    let asked = fields.retry_after;
    let message = fields.message;
    let hopeless = headers
        .get("x-should-retry")
        .is_some_and(|value| value == "false");
    let location = headers.get(LOCATION).and_then(|to| to.to_str().ok());
    if let (300..=399, Some(to)) = (status, location) {
        return ProviderError::InvalidRequest {
            status,
            message: format!(
                "redirected to {to}; redirects are not followed, set the base URL to it"
            ),
        };
    }
    match status {
        401 | 403 => ProviderError::Auth { message },
        // Google's answer to a wrong key.
        400 if bad_key => ProviderError::Auth { message },
        402 => ProviderError::QuotaExhausted { message },
        429 if quota => ProviderError::QuotaExhausted { message },
        429 | 408 | 409 | 500..=599 if hopeless => {
            ProviderError::InvalidRequest { status, message }
        }
        429 => {
            let retry_after = retry_after(headers)
                .or(asked)
                .or_else(|| limits::wait(&limits::read(headers)));
            ProviderError::RateLimited {
                retry_after,
                message,
            }
        }
        408 | 409 | 500..=599 => ProviderError::Server {
            status,
            retry_after: retry_after(headers).or(asked),
            message,
        },
        400..=499 => ProviderError::InvalidRequest { status, message },
        _ => ProviderError::Protocol {
            message: format!("unexpected HTTP status {status}"),
        },
    }
}

/// Returns the error of an event inside a stream whose HTTP status was 200.
pub(super) fn of_event(body: &[u8]) -> ProviderError {
    let fields = ErrorFields::read(body);
    let refused = |status| ProviderError::InvalidRequest {
        status,
        message: fields.message.clone(),
    };
    if fields.no_quota() {
        return ProviderError::QuotaExhausted {
            message: fields.message,
        };
    }
    if fields.bad_key() || fields.is(&["authentication_error", "permission_error"]) {
        return ProviderError::Auth {
            message: fields.message,
        };
    }
    if fields.is(&["rate_limit_exceeded", "resource_exhausted"]) {
        return ProviderError::RateLimited {
            retry_after: fields
                .retry_after
                .or_else(|| wait_in_words(&fields.message)),
            message: fields.message,
        };
    }
    match fields.status {
        Some(401 | 403) => ProviderError::Auth {
            message: fields.message,
        },
        Some(402) => ProviderError::QuotaExhausted {
            message: fields.message,
        },
        Some(408 | 409 | 429) => ProviderError::Server {
            status: 0,
            retry_after: None,
            message: fields.message,
        },
        Some(status @ 400..=499) => refused(status),
        _ if fields.is(&[
            "invalid_request_error",
            "invalid_prompt",
            "context_length_exceeded",
        ]) =>
        {
            refused(400)
        }
        _ if fields.is(&["not_found_error"]) => refused(404),
        _ if fields.is(&["request_too_large"]) => refused(413),
        _ => ProviderError::Server {
            status: 0,
            retry_after: None,
            message: fields.message,
        },
    }
}

/// Reads the wait in OpenAI's words: `Please try again in 1.898s.`
fn wait_in_words(message: &str) -> Option<Duration> {
    let (_, rest) = message.split_once("try again in ")?;
    let word = rest.split_whitespace().next()?;
    limits::duration(word.trim_end_matches('.'))
}

/// The error of a call that received no bytes within the idle limit.
pub(super) fn idle_error(timeouts: Timeouts) -> ProviderError {
    ProviderError::Timeout {
        message: format!("no bytes for {:?}", timeouts.idle),
    }
}

/// The error of a server that did not begin its answer in time.
pub(super) fn first_byte_error(timeouts: Timeouts) -> ProviderError {
    ProviderError::Timeout {
        message: format!("no answer within {:?}", timeouts.first_byte),
    }
}

/// The error of a call that exceeded its total limit.
pub(super) fn total_error(timeouts: Timeouts) -> ProviderError {
    ProviderError::Timeout {
        message: format!("the call took longer than {:?}", timeouts.total),
    }
}

/// The error of an answer that breaks the wire's protocol.
pub(super) fn protocol(what: impl std::fmt::Display) -> ProviderError {
    ProviderError::Protocol {
        message: what.to_string(),
    }
}

/// The error of an answer that ended cleanly, but too early.
pub(super) fn incomplete(what: &str) -> ProviderError {
    ProviderError::Incomplete {
        message: what.to_owned(),
    }
}

/// The error of a web page in place of an event stream.
pub(super) fn html_error() -> ProviderError {
    protocol("the server answered with an HTML page instead of an event stream; check the base URL")
}

/// An error and its sources in one line.
pub(super) fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    one_line(&text)
}

/// Reads `retry-after-ms`, else `retry-after` in seconds or as a date. A date is compared with the
/// server's own `date` header where there is one.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .map(str::trim)
    };
    let seconds = |number: f64| Duration::try_from_secs_f64(number).ok();
    if let Some(ms) = text("retry-after-ms").and_then(|ms| ms.parse::<f64>().ok()) {
        return seconds(ms / 1000.0);
    }
    let value = text(RETRY_AFTER.as_str())?;
    if let Ok(number) = value.parse::<f64>() {
        return seconds(number);
    }
    let then = httpdate::parse_http_date(value).ok()?;
    let now = text(DATE.as_str())
        .and_then(|date| httpdate::parse_http_date(date).ok())
        .unwrap_or_else(SystemTime::now);
    Some(then.duration_since(now).unwrap_or_default())
}

fn plain(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body.get(..16 * 1024).unwrap_or(body));
    if text.trim_start().starts_with('<') {
        let lower = text.to_ascii_lowercase();
        let title = lower
            .find("<title>")
            .map(|at| at + "<title>".len())
            .zip(lower.find("</title>"));
        let title = title
            .and_then(|(from, to)| text.get(from..to))
            .unwrap_or_default();
        return one_line(&format!("an HTML page {title}"));
    }
    if text.trim().is_empty() {
        "no reason given".to_owned()
    } else {
        one_line(&text)
    }
}

/// Joins the text into one line and cuts it to a readable length.
pub(super) fn one_line(text: &str) -> String {
    let clean: String = text
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .chars()
        .filter(|c| !c.is_control())
        .collect();
    match clean.char_indices().nth(MESSAGE_CHARS_MAX) {
        Some((at, _)) => format!("{}…", clean.get(..at).unwrap_or_default()),
        None => clean,
    }
}

#[cfg(test)]
mod tests {
    use reqwest::header::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn only_a_short_error_is_read_as_json() {
        let error = |items: usize| {
            let items = vec![r#"{"":0}"#; items].join(",");
            let text = format!(r#"{{"error":{{"type":"overloaded","x":[{items}]}}}}"#);
            ErrorFields::read(text.as_bytes())
        };

        assert_eq!(error(1000).kinds, ["overloaded"]);
        let long = error(100_000);
        assert_eq!(long.kinds, Vec::<String>::new());
        assert!(!long.message.is_empty() && long.message.len() < 16 * 1024);
    }

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        list.iter()
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .collect()
    }

    fn refused(status: u16, head: &[(&'static str, &'static str)], body: &str) -> ProviderError {
        of_response(status, &headers(head), body.as_bytes())
    }

    #[test]
    fn each_status_has_its_class() {
        let body = r#"{"type":"error","error":{"type":"x_error","message":"why"}}"#;
        let message = || "why".to_owned();
        let server = |status| ProviderError::Server {
            status,
            retry_after: None,
            message: message(),
        };
        let invalid = |status| ProviderError::InvalidRequest {
            status,
            message: message(),
        };

        for (status, expected) in [
            (
                304,
                ProviderError::Protocol {
                    message: "unexpected HTTP status 304".into(),
                },
            ),
            (400, invalid(400)),
            (401, ProviderError::Auth { message: message() }),
            (402, ProviderError::QuotaExhausted { message: message() }),
            (403, ProviderError::Auth { message: message() }),
            (404, invalid(404)),
            (408, server(408)),
            (409, server(409)),
            (413, invalid(413)),
            (422, invalid(422)),
            (
                429,
                ProviderError::RateLimited {
                    retry_after: None,
                    message: message(),
                },
            ),
            (500, server(500)),
            (529, server(529)),
        ] {
            let error = refused(status, &[], body);
            assert_eq!(error, expected);
            let is_retried = matches!(status, 408 | 409 | 429 | 500..);
            assert_eq!(error.is_retryable(), is_retried, "{status}");
        }
        for without_status in [
            ProviderError::Connection { message: message() },
            ProviderError::Timeout { message: message() },
        ] {
            assert!(without_status.is_retryable(), "{without_status:?}");
        }
    }

    #[test]
    fn a_spent_quota_is_no_rate_limit() {
        let body = r#"{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}"#;

        assert_eq!(
            refused(429, &[], body),
            ProviderError::QuotaExhausted {
                message: "You exceeded your current quota".into()
            }
        );
    }

    #[test]
    fn a_server_that_says_so_is_not_asked_again() {
        for status in [429, 503] {
            let error = refused(
                status,
                &[("x-should-retry", "false"), ("retry-after", "1")],
                "no",
            );
            assert_eq!(
                error,
                ProviderError::InvalidRequest {
                    status,
                    message: "no".into()
                }
            );
            assert!(!error.is_retryable());
        }
    }

    #[test]
    fn retry_after_is_read_in_every_form() {
        let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        for (head, expected) in [
            (vec![("retry-after", "7")], Some(Duration::from_secs(7))),
            (
                vec![("retry-after", "0.5")],
                Some(Duration::from_millis(500)),
            ),
            (
                vec![("retry-after", "7"), ("retry-after-ms", "250")],
                Some(Duration::from_millis(250)),
            ),
            (
                vec![date, ("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT")],
                Some(Duration::from_secs(30)),
            ),
            (
                vec![date, ("retry-after", "Sun, 06 Nov 1994 08:00:00 GMT")],
                Some(Duration::ZERO),
            ),
            (vec![("retry-after", "-3")], None),
            (vec![("retry-after", "soon")], None),
            (
                vec![
                    ("x-ratelimit-remaining-requests", "0"),
                    ("x-ratelimit-reset-requests", "3s"),
                ],
                Some(Duration::from_secs(3)),
            ),
            (
                vec![
                    ("retry-after", "7"),
                    ("x-ratelimit-remaining-requests", "0"),
                    ("x-ratelimit-reset-requests", "3s"),
                ],
                Some(Duration::from_secs(7)),
            ),
            (
                vec![
                    ("x-ratelimit-remaining-requests", "1"),
                    ("x-ratelimit-reset-requests", "3s"),
                ],
                None,
            ),
            (vec![], None),
        ] {
            assert_eq!(refused(429, &head, "").retry_after(), expected, "{head:?}");
        }
    }

    #[test]
    fn googles_details_decide_the_class_and_the_wait() {
        let key = r#"[{"error":{"code":400,"message":"API key not valid.","status":"INVALID_ARGUMENT","details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"API_KEY_INVALID"}]}}]"#;
        let limit = |quota: &str, delay: &str| {
            format!(
                r#"{{"error":{{"code":429,"message":"m","status":"RESOURCE_EXHAUSTED","details":[{{"violations":[{{"quotaId":"{quota}-FreeTier"}}]}}{delay}]}}}}"#
            )
        };
        let delay = r#",{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"36.5s"}"#;
        let limited = |retry_after| ProviderError::RateLimited {
            retry_after,
            message: "m".into(),
        };
        let waits = limited(Some(Duration::from_millis(36_500)));

        assert_eq!(
            refused(400, &[], key),
            ProviderError::Auth {
                message: "API key not valid.".into()
            }
        );
        let minute = limit("GenerateRequestsPerMinutePerProject", delay);
        assert_eq!(refused(429, &[], &minute), waits);
        assert_eq!(of_event(minute.as_bytes()), waits);
        let day = limit("GenerateRequestsPerDayPerProject", delay);
        assert_eq!(refused(429, &[], &day), waits);
        assert_eq!(
            refused(429, &[("retry-after", "2")], &day).retry_after(),
            Some(Duration::from_secs(2))
        );
        assert_eq!(
            refused(429, &[], &limit("GenerateRequestsPerMinutePerProject", "")),
            limited(None)
        );
        assert_eq!(
            refused(429, &[], &limit("GenerateRequestsPerDayPerProject", "")),
            ProviderError::QuotaExhausted {
                message: "m".into()
            }
        );
    }

    #[test]
    fn words_are_found_wherever_they_are_and_stay_on_one_line() {
        for (body, message) in [
            (r#"{"error":"model not\n found"}"#, "model not found"),
            (r#"{"detail":"bad"}"#, "bad"),
            (
                r#"{"object":"error","message":"vllm says","code":400}"#,
                "vllm says",
            ),
            (
                "<!DOCTYPE html><html><head><title>502 Bad\nGateway</title>…",
                "an HTML page 502 Bad Gateway",
            ),
            ("", "no reason given"),
            (r#"{"errors":[1]}"#, r#"{"errors":[1]}"#),
        ] {
            assert_eq!(ErrorFields::read(body.as_bytes()).message, message);
        }
        assert_eq!(
            ErrorFields::read("x".repeat(9000).as_bytes())
                .message
                .chars()
                .count(),
            MESSAGE_CHARS_MAX + 1
        );
    }

    #[test]
    fn error_events_have_their_class_too() {
        let server = ProviderError::Server {
            status: 0,
            retry_after: None,
            message: "m".into(),
        };
        assert_eq!(server.to_string(), "the provider failed: m");
        for (kind, expected) in [
            ("overloaded_error", server.clone()),
            ("api_error", server.clone()),
            ("rate_limit_error", server),
            (
                "invalid_request_error",
                ProviderError::InvalidRequest {
                    status: 400,
                    message: "m".into(),
                },
            ),
            (
                "authentication_error",
                ProviderError::Auth {
                    message: "m".into(),
                },
            ),
            (
                "billing_error",
                ProviderError::QuotaExhausted {
                    message: "m".into(),
                },
            ),
            (
                "rate_limit_exceeded",
                ProviderError::RateLimited {
                    retry_after: None,
                    message: "m".into(),
                },
            ),
        ] {
            let body = format!(r#"{{"type":"error","error":{{"type":"{kind}","message":"m"}}}}"#);
            assert_eq!(of_event(body.as_bytes()), expected, "{kind}");
        }
    }
}
