//! `[tools.web_fetch]` and `[tools.web_search]`: what may be reached besides the public internet,
//! and the search engine.

use std::collections::BTreeMap;

use super::{
    Secret, Settings,
    error::{ConfigError, Origin},
    value::Value,
};

pub(super) const FETCH: &str = "tools.web_fetch";
pub(super) const SEARCH: &str = "tools.web_search";
pub(super) const FETCH_APPROVALS: &[&str] = &["mode", "never"];
pub(super) const ENGINES: &[&str] = &["tavily", "searxng"];

/// Environment variable in which Tavily's own tools look for the key.
const TAVILY_KEY: &str = "TAVILY_API_KEY";

/// Settings of the web tools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WebConfig {
    /// Hosts, domains, addresses and ranges that `web_fetch` may reach besides the public internet.
    pub allow_hosts: Vec<String>,
    /// Whether `web_fetch` runs without approval, whatever `[tools] approve` says.
    pub fetch_without_asking: bool,
    /// `tavily` or `searxng`; `None` means Tavily.
    pub engine: Option<String>,
    /// URL of the search engine; `None` means Tavily's own.
    pub base_url: Option<String>,
    /// Tavily's key; if it is missing, `web_search` answers with what to configure.
    pub key: Option<Secret>,
    pub(super) api_key_env: Option<String>,
}

impl WebConfig {
    /// Applies one setting of the two sections.
    pub(super) fn apply(&mut self, section: &str, name: &str, value: &Value) {
        match (section, name, value) {
            (FETCH, _, Value::Names(hosts)) => self.allow_hosts = hosts.clone(),
            (FETCH, _, Value::Text(word)) => self.fetch_without_asking = word == "never",
            (SEARCH, "engine", Value::Text(word)) => self.engine = Some(word.clone()),
            (SEARCH, "base_url", Value::Text(url)) => self.base_url = Some(url.clone()),
            (SEARCH, "api_key_env", Value::Text(variable)) => {
                self.api_key_env = Some(variable.clone())
            }
            _ => {}
        }
    }

    /// Looks up the key and checks that the settings fit together. Another address never gets the
    /// default key, because its owner may be anyone.
    pub(super) fn find_key(
        &mut self,
        settings: &Settings,
        environment: &BTreeMap<String, String>,
    ) -> Result<(), ConfigError> {
        let from = |name: &'static str| {
            settings
                .get(&(SEARCH, name))
                .map_or(Origin::Default, |setting| setting.from.clone())
        };
        if self.engine.as_deref() == Some("searxng") {
            return match self.base_url {
                Some(_) => Ok(()),
                None => Err(ConfigError::Inconsistent {
                    at: from("engine"),
                    problem: "engine `searxng` needs `base_url` beside it".into(),
                }),
            };
        }
        let usual = self.base_url.is_none().then_some(TAVILY_KEY);
        let variable = self.api_key_env.as_deref().or(usual);
        let text = variable
            .and_then(|name| environment.get(name))
            .filter(|text| !text.is_empty());
        self.key = text.and_then(|text| Secret::new(text).ok());
        Ok(())
    }
}
