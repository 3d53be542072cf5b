//! Checks that providers answer and accept the key, with one request each for the list of models.
//! Nothing is generated, so nothing is charged.

use std::time::{Duration, SystemTime};

use reqwest::{StatusCode, header};

use super::Finding;
use crate::config::{Config, ProviderConfig, ProviderKind};

/// Timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// API version of the request for the list of models.
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// Checks each provider. Also returns the time from the first `Date` header among the answers.
pub(super) async fn providers(config: &Config) -> (Vec<Finding>, Option<SystemTime>) {
    let chosen = config
        .choose(None)
        .ok()
        .filter(|_| config.providers.is_empty());
    let builder = crate::tls::client_builder().ok();
    let client = builder.and_then(|builder| {
        builder
            .timeout(REQUEST_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .ok()
    });
    let Some(client) = client else {
        return (
            vec![Finding::fail(
                "providers",
                "the HTTP client cannot be built",
                "check the certificates of the system",
            )],
            None,
        );
    };
    let mut findings = Vec::new();
    let mut date = None;
    for provider in config.providers.iter().chain(chosen) {
        let name = format!("provider {}", provider.name);
        let finding = match (provider.kind, provider.key()) {
            (ProviderKind::Offline, _) => Finding::ok(name, "it is built into this program"),
            (_, Err(error)) => {
                Finding::fail(name, error.to_string(), "set it, or remove the provider")
            }
            (_, Ok(key)) => {
                let request = request(&client, provider, key.map(|secret| secret.expose()));
                let (finding, time) = judge(name, provider.kind, request.send().await);
                date = date.or(time);
                finding
            }
        };
        findings.push(finding);
    }
    (findings, date)
}

fn request(
    client: &reqwest::Client,
    provider: &ProviderConfig,
    key: Option<&str>,
) -> reqwest::RequestBuilder {
    let base = provider
        .base_url
        .clone()
        .or_else(|| crate::app::usual_base_url(provider.kind));
    match provider.kind {
        ProviderKind::Anthropic => {
            let base = base.unwrap_or_else(|| "https://api.anthropic.com".to_owned());
            let request = client
                .get(format!("{base}/v1/models"))
                .header("anthropic-version", ANTHROPIC_VERSION);
            key.into_iter()
                .fold(request, |request, key| request.header("x-api-key", key))
        }
        ProviderKind::Gemini => {
            let base =
                base.unwrap_or_else(|| "https://generativelanguage.googleapis.com".to_owned());
            let has_version = base
                .split_once("://")
                .is_some_and(|(_, rest)| rest.contains('/'));
            let base = if has_version {
                base
            } else {
                format!("{base}/v1beta")
            };
            key.into_iter()
                .fold(client.get(format!("{base}/models")), |request, key| {
                    request.header("x-goog-api-key", key)
                })
        }
        ProviderKind::OpenAi | ProviderKind::OpenAiResponses | ProviderKind::Offline => {
            let base = base.unwrap_or_else(|| "https://api.openai.com/v1".to_owned());
            key.into_iter()
                .fold(client.get(format!("{base}/models")), |request, key| {
                    request.bearer_auth(key)
                })
        }
    }
}

fn judge(
    name: String,
    kind: ProviderKind,
    answer: Result<reqwest::Response, reqwest::Error>,
) -> (Finding, Option<SystemTime>) {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            let why = if error.is_timeout() {
                "it did not answer in time"
            } else {
                "it cannot be reached"
            };
            return (
                Finding::fail(name, why, "check `base_url`, the network and the proxy"),
                None,
            );
        }
    };
    let date = answer
        .headers()
        .get(header::DATE)
        .and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok());
    let finding = match answer.status() {
        status if status.is_success() => Finding::ok(name, "it answers and accepts the key"),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => bad_key(name),
        // Google's answer to a wrong key.
        StatusCode::BAD_REQUEST if kind == ProviderKind::Gemini => bad_key(name),
        StatusCode::NOT_FOUND => Finding::warn(
            name,
            "it answers, but has no list of models",
            "check `base_url`",
        ),
        status => Finding::warn(
            name,
            format!("it answers {}", status.as_u16()),
            "try again later",
        ),
    };
    (finding, date)
}

fn bad_key(name: String) -> Finding {
    Finding::fail(
        name,
        "it rejects the key",
        "set a valid key where the configuration says",
    )
}
