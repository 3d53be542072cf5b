//! Settings that both adapters share, and the errors of invalid ones.

use std::time::Duration;

use callboard_actors::limits::Limits;
use reqwest::Url;

/// Deadlines of one model call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Longest time to establish a connection.
    pub connect: Duration,
    /// Longest wait for the first byte of the answer, from the moment a connection is there. A
    /// local model may read a long prompt for minutes.
    pub first_byte: Duration,
    /// Longest gap between two reads after that.
    pub idle: Duration,
    /// Longest duration of the whole call.
    pub total: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            connect: Duration::from_secs(10),
            first_byte: limits.model_first_byte,
            idle: limits.model_idle,
            total: limits.model_total,
        }
    }
}

/// Why an adapter cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderConfigError {
    /// An environment variable is not set.
    #[error("the environment variable {0} is not set")]
    MissingVariable(&'static str),
    /// The key holds characters that an HTTP header cannot carry.
    #[error("the API key holds characters that cannot be sent")]
    BadKey,
    /// The base URL is not an `http://` or `https://` URL with a host.
    #[error("the base URL must be http:// or https:// with a host: {reason}")]
    BadBaseUrl {
        /// The parser's reason. It never repeats the URL, which may hold a password.
        reason: String,
    },
    /// The HTTP client could not be built.
    #[error("the HTTP client could not be built: {reason}")]
    Client {
        /// The reason that the client library gives.
        reason: String,
    },
}

/// Parses a base URL and removes its trailing slash.
pub(super) fn base_url(text: &str) -> Result<Url, ProviderConfigError> {
    let bad = |reason: String| ProviderConfigError::BadBaseUrl { reason };
    let url =
        Url::parse(text.trim().trim_end_matches('/')).map_err(|error| bad(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
        return Err(bad("another scheme or no host".into()));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(bad("it has a query or a fragment".into()));
    }
    Ok(url)
}

/// Appends a path to a base URL.
pub(super) fn below(base: &Url, path: &str) -> Url {
    let mut url = base.clone();
    let joined = format!("{}/{path}", base.path().trim_end_matches('/'));
    url.set_path(&joined);
    url
}

/// Returns a variable that is set and not blank.
pub(super) fn variable(name: &'static str) -> Option<String> {
    std::env::var(name)
        .ok()
        .filter(|value| !value.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_url_is_taken_with_and_without_its_last_slash() {
        for text in [
            "http://127.0.0.1:1/v1",
            "http://127.0.0.1:1/v1/",
            " http://127.0.0.1:1/v1// ",
        ] {
            assert_eq!(
                below(&base_url(text).unwrap(), "chat/completions").as_str(),
                "http://127.0.0.1:1/v1/chat/completions"
            );
        }
        assert_eq!(
            below(&base_url("https://example.test").unwrap(), "v1/messages").as_str(),
            "https://example.test/v1/messages"
        );
    }

    #[test]
    fn a_wrong_base_url_is_refused_without_repeating_it() {
        for text in [
            "localhost:8080",
            "ftp://user:hunter2@x",
            "http://user:hunter2@",
            "https://x/?key=hunter2",
            "",
        ] {
            let error = base_url(text).unwrap_err().to_string();
            assert!(
                error.starts_with("the base URL must be") && !error.contains("hunter2"),
                "{error}"
            );
        }
    }
}
