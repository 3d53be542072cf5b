//! Builds the web tools from settings, and maps errors of the web client to errors for the model.

use std::{fmt, sync::Arc, time::Duration};

use callboard_actors::{
    ports::{Tool, erased},
    tool::{ToolError, ToolErrorType},
};

use super::{
    mask::Masker,
    web_fetch::WebFetch,
    web_search::{SearchEngine, SearxNg, TAVILY_URL, Tavily, WebSearch},
};
use crate::web::{Denied, NoSuchEntry, UrlPolicy, WebClient, WebError};

/// The executor's time limit. The web client's own limit of 30 s ends first; the rest is for the
/// conversion.
pub(super) const TOOL_TIME: Duration = Duration::from_secs(60);

/// Longest answer of a search engine. Ten results take about 10 KiB.
const SEARCH_BYTES_MAX: usize = 1024 * 1024;

/// Settings of the web tools.
#[derive(Clone, Default)]
pub struct WebTools {
    /// Hosts, domains and ranges that `web_fetch` may reach in addition to the public internet
    /// ([`UrlPolicy::allow`]).
    pub allow_hosts: Vec<String>,
    /// Whether `web_fetch` runs without approval, whatever the approval mode.
    pub fetch_without_asking: bool,
    /// The search engine of `web_search`.
    pub search: Search,
    /// Masks keys in results. The key of the search engine is added to it.
    pub masker: Masker,
}

/// A search engine.
#[derive(Clone, Default)]
pub enum Search {
    /// No engine: `web_search` answers with what to configure.
    #[default]
    None,
    /// Tavily, with a key.
    Tavily {
        /// The API key.
        key: String,
        /// The API's address; `None`: Tavily's own.
        base_url: Option<String>,
    },
    /// A SearXNG server; it may be on a private address.
    SearxNg {
        /// The address of the server.
        base_url: String,
    },
}

impl fmt::Debug for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Tavily { .. } => "Tavily",
            Self::SearxNg { .. } => "SearxNg",
        })
    }
}

impl fmt::Debug for WebTools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebTools").field("allow_hosts", &self.allow_hosts).field("search", &self.search).finish_non_exhaustive()
    }
}

/// Why the web tools could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WebToolsError {
    /// An entry of `allow_hosts` is invalid.
    #[error("an entry of allow_hosts {0}")]
    AllowHosts(#[from] NoSuchEntry),
    /// The address of the search engine is invalid or not allowed.
    #[error("base_url of web_search cannot be used: {0}")]
    BaseUrl(Denied),
    /// TLS could not be set up.
    #[error("the web client cannot be made: {0}")]
    Client(#[from] WebError),
}

/// Builds `web_fetch` and `web_search`, each with its own HTTP client: an address that the operator
/// allows for the search engine is not allowed for URLs of a model.
///
/// # Errors
/// [`WebToolsError`].
pub fn tools(settings: WebTools) -> Result<Vec<Arc<dyn Tool>>, WebToolsError> {
    let policy = settings.allow_hosts.iter().try_fold(UrlPolicy::public(), |policy, entry| policy.allow(entry))?;
    let masker = Arc::new(match &settings.search {
        Search::Tavily { key, .. } => settings.masker.and([key.clone()]),
        Search::None | Search::SearxNg { .. } => settings.masker,
    });
    let engine: Option<Arc<dyn SearchEngine>> = match settings.search {
        Search::None => None,
        Search::Tavily { key, base_url } => {
            let base_url = base_url.unwrap_or_else(|| TAVILY_URL.to_owned());
            Some(Arc::new(Tavily::new(engine_client(&base_url)?, base_url, key)))
        }
        Search::SearxNg { base_url } => Some(Arc::new(SearxNg::new(engine_client(&base_url)?, base_url))),
    };
    let fetch = WebFetch::new(WebClient::builder().policy(policy).build()?, masker.clone(), !settings.fetch_without_asking);
    Ok(vec![erased(fetch), erased(WebSearch::new(engine, masker))])
}

/// Builds a client that may reach the search engine at its configured address.
fn engine_client(base_url: &str) -> Result<WebClient, WebToolsError> {
    let invalid = || WebToolsError::BaseUrl(Denied::Invalid("it names no host"));
    let url = url::Url::parse(base_url).map_err(|_| WebToolsError::BaseUrl(Denied::Invalid("it cannot be parsed")))?;
    let policy = UrlPolicy::public().allow(url.host_str().ok_or_else(invalid)?)?;
    policy.check_url(base_url).map_err(WebToolsError::BaseUrl)?;
    Ok(WebClient::builder().policy(policy).body_bytes_max(SEARCH_BYTES_MAX).build()?)
}

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
        WebError::Connect => ToolError::new(ToolErrorType::TransientError, message).code("NO_CONNECTION"),
        WebError::Timeout { .. } => ToolError::new(ToolErrorType::Timeout, message),
        WebError::Cancelled => super::cancelled(),
        WebError::Broken(_) | WebError::Encoding | WebError::Redirected => ToolError::new(ToolErrorType::DependencyError, message),
        WebError::Request(_) => ToolError::invalid(message),
    }
}

/// Maps a status that is not a success.
pub(super) fn status_error(who: &str, status: u16, retry_after: Option<Duration>) -> ToolError {
    let wait = retry_after.map_or(String::new(), |wait| format!("; try again in {} s", wait.as_secs()));
    let (kind, what) = match status {
        404 | 410 => (ToolErrorType::NotFound, "there is no such document"),
        401 | 403 | 407 | 451 => (ToolErrorType::PermissionDenied, "it is not for everybody"),
        429 => (ToolErrorType::RateLimit, "too many requests"),
        408 | 425 | 500..=599 => (ToolErrorType::TransientError, "the server is in trouble"),
        300..=399 => (ToolErrorType::DependencyError, "a redirect that leads nowhere"),
        _ => (ToolErrorType::ExecutionError, "the request was not served"),
    };
    ToolError::new(kind, format!("{who} answered with HTTP status {status}: {what}{wait}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_told_by_class_and_code() {
        let of = |status| {
            let error = status_error("the server", status, Some(Duration::from_secs(7)));
            (error.kind, error.code, error.message)
        };

        assert_eq!(
            of(429),
            (
                ToolErrorType::RateLimit,
                "RATE_LIMIT".to_owned(),
                "the server answered with HTTP status 429: too many requests; try again in 7 s".to_owned()
            )
        );
        assert_eq!((of(404).0, of(410).1.as_str()), (ToolErrorType::NotFound, "NOT_FOUND"));
        assert_eq!(
            (of(403).0, of(503).0, of(418).0),
            (ToolErrorType::PermissionDenied, ToolErrorType::TransientError, ToolErrorType::ExecutionError)
        );
    }

    #[test]
    fn settings_that_make_no_sense_are_told() {
        let wrong = |settings| tools(settings).err().unwrap().to_string();

        assert_eq!(
            wrong(WebTools { allow_hosts: vec!["http://x".to_owned()], ..WebTools::default() }),
            "an entry of allow_hosts must be a host name, `*.` with a domain, an IP address or a range such as 10.0.0.0/8, not \"http://x\""
        );
        let engine = |base_url: &str| WebTools { search: Search::SearxNg { base_url: base_url.to_owned() }, ..WebTools::default() };
        assert_eq!(wrong(engine("ftp://a.example")), "base_url of web_search cannot be used: only http and https URLs are allowed");
        assert!(tools(engine("http://searxng:8080")).is_ok() && tools(engine("http://[fd00::1]:8080/x")).is_ok());
    }
}
