//! The web tools, and their settings: [`fetch`] reads one document, [`search`] asks a search engine.

mod errors;
pub mod fetch;
pub mod search;

use std::{
    fmt,
    sync::{Arc, LazyLock},
    time::Duration,
};

use callboard_actors::{
    ports::{Tool, ToolContext, erased},
    tool::{ToolError, ToolErrorType},
};

use self::{
    fetch::WebFetch,
    search::{SearchEngine, SearxNg, TAVILY_URL, Tavily, WebSearch},
};
use crate::{
    fair::{FairPlaces, Place, Waiting},
    mask::Masker,
    tools::cancelled,
    web::{Denied, NoSuchEntry, UrlPolicy, WebClient, WebError},
};

/// The executor's time limit. The web client's own limit of 30 s ends first; the rest is for the
/// conversion.
const TOOL_TIME: Duration = Duration::from_secs(60);

/// Answers that are open at a time, of all tenants together: from the look-up of the name until the
/// body is text. A page takes up to 6 MiB meanwhile, and its server decides how slowly it comes.
const OPEN_MAX: usize = 32;

static OPEN: LazyLock<Arc<FairPlaces>> = LazyLock::new(|| FairPlaces::new(OPEN_MAX, WAITING));

/// Calls that wait for a place, within their time limit.
const WAITING: Waiting = Waiting {
    all: 64 * 1024,
    tenant: 16 * 1024,
};

/// Waits for a place of the call's tenant.
async fn place(places: &Arc<FairPlaces>, context: &ToolContext) -> Result<Place, ToolError> {
    let tenant = context.key.scope.tenant.clone();
    let place = tokio::select! {
        biased;
        () = context.cancel.cancelled() => return Err(cancelled()),
        place = places.acquire(Some(tenant)) => place,
    };
    place.map_err(|_| {
        let message = "too many calls wait for the web; try again in a moment";
        ToolError::new(ToolErrorType::RateLimit, message).not_started()
    })
}

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
        f.debug_struct("WebTools")
            .field("allow_hosts", &self.allow_hosts)
            .field("search", &self.search)
            .finish_non_exhaustive()
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
    let policy = settings
        .allow_hosts
        .iter()
        .try_fold(UrlPolicy::public(), |policy, entry| policy.allow(entry))?;
    let masker = Arc::new(match &settings.search {
        Search::Tavily { key, .. } => settings.masker.and([key.clone()]),
        Search::None | Search::SearxNg { .. } => settings.masker,
    });
    let engine: Option<Arc<dyn SearchEngine>> = match settings.search {
        Search::None => None,
        Search::Tavily { key, base_url } => {
            let base_url = base_url.unwrap_or_else(|| TAVILY_URL.to_owned());
            Some(Arc::new(Tavily::new(
                engine_client(&base_url)?,
                base_url,
                key,
            )))
        }
        Search::SearxNg { base_url } => {
            Some(Arc::new(SearxNg::new(engine_client(&base_url)?, base_url)))
        }
    };
    let fetch = WebFetch::new(
        WebClient::builder().policy(policy).build()?,
        masker.clone(),
        !settings.fetch_without_asking,
    );
    Ok(vec![erased(fetch), erased(WebSearch::new(engine, masker))])
}

/// Builds a client that may reach the search engine at its configured address.
fn engine_client(base_url: &str) -> Result<WebClient, WebToolsError> {
    let invalid = || WebToolsError::BaseUrl(Denied::Invalid("it names no host"));
    let url = url::Url::parse(base_url)
        .map_err(|_| WebToolsError::BaseUrl(Denied::Invalid("it cannot be parsed")))?;
    let policy = UrlPolicy::public().allow(url.host_str().ok_or_else(invalid)?)?;
    policy.check_url(base_url).map_err(WebToolsError::BaseUrl)?;
    Ok(WebClient::builder()
        .policy(policy)
        .body_bytes_max(SEARCH_BYTES_MAX)
        .build()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_settings_are_refused_with_their_reason() {
        let wrong = |settings| tools(settings).err().unwrap().to_string();

        assert_eq!(
            wrong(WebTools {
                allow_hosts: vec!["http://x".to_owned()],
                ..WebTools::default()
            }),
            "an entry of allow_hosts must be a host name, `*.` with a domain, an IP address or a range such as 10.0.0.0/8, not \"http://x\""
        );
        let engine = |base_url: &str| WebTools {
            search: Search::SearxNg {
                base_url: base_url.to_owned(),
            },
            ..WebTools::default()
        };
        assert_eq!(
            wrong(engine("ftp://a.example")),
            "base_url of web_search cannot be used: only http and https URLs are allowed"
        );
        assert!(
            tools(engine("http://searxng:8080")).is_ok()
                && tools(engine("http://[fd00::1]:8080/x")).is_ok()
        );
    }
}
