//! `[webhook]` and `[tenant.webhook]`: who is informed when rounds end, and how.

use std::{path::PathBuf, time::Duration};

use callboard_actors::ports::OutboxEvent;
use serde::Deserialize as _;
use serde_json::Value as Json;

use super::{
    Secret,
    key::{Key, key},
    value::{Kind, Value},
};

pub(super) const SECTION: &str = "webhook";
pub(super) const OF_TENANT: &str = "tenant.webhook";

/// Values of `events`.
const EVENTS: &[&str] = &[
    "finished",
    "failed",
    "interrupted",
    "approval_required",
    "client_tool_call",
];

/// What is sent without `events`: every end of a round.
pub(super) const USUAL: [OutboxEvent; 3] = [
    OutboxEvent::Finished,
    OutboxEvent::Failed,
    OutboxEvent::Interrupted,
];

/// Where a section says that messages go.
const fn receiver_keys(section: &'static str) -> [Key; 4] {
    [
        key(
            section,
            "url",
            Kind::BaseUrl,
            "URL that is called when a round ends ([webhooks.md](webhooks.md)); none by default",
        ),
        key(
            section,
            "secret_env",
            Kind::EnvName,
            "environment variable with the secret that signs the calls: `whsec_` and 24 to 64 bytes in base64; two during a change, a comma between them",
        ),
        key(
            section,
            "secret_file",
            Kind::Path,
            "file with that secret, instead of `secret_env`",
        ),
        key(
            section,
            "events",
            Kind::Names(EVENTS),
            "what is sent: `finished`, `failed`, `interrupted`, `approval_required`, `client_tool_call`; the first three by default",
        ),
    ]
}

const HOST: [Key; 4] = receiver_keys(SECTION);
pub(super) const TENANT_KEYS: &[Key] = &receiver_keys(OF_TENANT);

/// The keys of `[webhook]`.
pub(super) const KEYS: &[Key] = &[
    HOST[0],
    HOST[1],
    HOST[2],
    HOST[3],
    key(
        SECTION,
        "allow_hosts",
        Kind::Hosts,
        "hosts, `*.domains`, addresses and ranges that webhooks may reach besides the public internet; none by default",
    ),
    key(
        SECTION,
        "timeout_s",
        Kind::Seconds,
        "seconds that a receiver has to answer; 15 by default",
    ),
    key(
        SECTION,
        "tries_max",
        Kind::Count { max: 100 },
        "tries of a call, with longer and longer waits; 17, which are 15 hours, by default",
    ),
    key(
        SECTION,
        "at_once_max",
        Kind::Count { max: 1000 },
        "calls at once, of which one tenant gets an eighth; 64 by default",
    ),
    key(
        SECTION,
        "pending_max",
        Kind::Count { max: 10_000_000 },
        "calls of one tenant that may wait; beyond it the oldest are given up; 10000 by default",
    ),
];

/// A receiver, as a section describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WebhookSection {
    /// The URL to call; `None` means the host's, or none.
    pub url: Option<String>,
    /// The environment variable that holds its secret.
    pub secret_env: Option<String>,
    /// The file that holds its secret.
    pub secret_file: Option<PathBuf>,
    /// What is sent; `None` means as `[webhook] events`, or every end of a round.
    pub events: Option<Vec<OutboxEvent>>,
}

/// How webhooks are delivered (`[webhook]`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookConfig {
    /// The receiver of tenants that name none.
    pub receiver: WebhookSection,
    /// Hosts, domains, addresses and ranges that may be reached besides the public internet.
    pub allow_hosts: Vec<String>,
    /// How long a receiver may take to answer.
    pub timeout: Duration,
    /// Tries of one message.
    pub tries_max: u32,
    /// Calls at once, of all tenants.
    pub at_once_max: usize,
    /// Messages of one tenant that may wait.
    pub pending_max: usize,
}

impl Default for WebhookConfig {
    fn default() -> Self {
        Self {
            receiver: WebhookSection::default(),
            allow_hosts: Vec::new(),
            timeout: Duration::from_secs(15),
            tries_max: 17,
            at_once_max: 64,
            pending_max: 10_000,
        }
    }
}

impl WebhookSection {
    /// Applies one setting.
    pub(super) fn apply(&mut self, name: &str, value: &Value) {
        match (name, value) {
            ("url", Value::Text(url)) => self.url = Some(url.clone()),
            ("secret_env", Value::Text(variable)) => self.secret_env = Some(variable.clone()),
            ("secret_file", Value::Path(path)) => self.secret_file = Some(path.clone()),
            ("events", Value::Names(names)) => {
                let event = |name: &String| OutboxEvent::deserialize(Json::from(name.as_str()));
                self.events = Some(names.iter().filter_map(|name| event(name).ok()).collect());
            }
            _ => {}
        }
    }

    fn get(&self, name: &str) -> Option<Value> {
        match name {
            "url" => self.url.clone().map(Value::Text),
            "secret_env" => self.secret_env.clone().map(Value::Text),
            "secret_file" => self.secret_file.clone().map(Value::Path),
            _ => {
                let name = |event: &OutboxEvent| {
                    let name = serde_json::to_value(event).ok()?;
                    name.as_str().map(str::to_owned)
                };
                let events = self.events.as_ref()?;
                Some(Value::Names(events.iter().filter_map(name).collect()))
            }
        }
    }

    /// The texts of its secrets, as the environment or the file holds them now.
    ///
    /// # Errors
    /// What is wrong with them, without quoting them.
    pub(super) fn secrets(&self) -> Result<Vec<Secret>, String> {
        let (place, text) = match (&self.secret_env, &self.secret_file) {
            (Some(_), Some(_)) => {
                return Err("`secret_env` and `secret_file` are both set; keep one".into());
            }
            (None, None) => {
                return Err("a webhook needs `secret_env` or `secret_file` beside `url`".into());
            }
            (Some(name), None) => (
                format!("the environment variable {name}"),
                std::env::var(name)
                    .map_err(|_| format!("the environment variable {name} is not set"))?,
            ),
            (None, Some(path)) => (
                "the file".to_owned(),
                Secret::from_file(path)?.expose().to_owned(),
            ),
        };
        let secret = |text: &str| {
            let secret = Secret::new(text).map_err(|problem| format!("{place} {problem}"))?;
            match is_signing_secret(secret.expose()) {
                true => Ok(secret),
                false => Err(format!(
                    "{place} must hold `whsec_` and 24 to 64 bytes in base64, such as `whsec_$(openssl rand -base64 32)`"
                )),
            }
        };
        text.split(',').map(secret).collect()
    }
}

/// Whether a text has the form of the Standard Webhooks specification: `whsec_` and 24 to 64 bytes
/// in base64.
fn is_signing_secret(text: &str) -> bool {
    let Some(encoded) = text.strip_prefix("whsec_") else {
        return false;
    };
    let body = encoded.trim_end_matches('=');
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/';
    let padding = encoded.len() - body.len();
    encoded.len() % 4 == 0
        && padding <= 2
        && body.bytes().all(is_base64)
        && (24..=64).contains(&(encoded.len() / 4 * 3 - padding))
}

impl WebhookConfig {
    /// Applies one setting of `[webhook]`.
    pub(super) fn apply(&mut self, name: &str, value: &Value) {
        let count = |count: &u64| usize::try_from(*count).unwrap_or(usize::MAX);
        match (name, value) {
            ("allow_hosts", Value::Names(hosts)) => self.allow_hosts = hosts.clone(),
            ("timeout_s", Value::Seconds(time)) => self.timeout = *time,
            ("tries_max", Value::Count(tries)) => {
                self.tries_max = u32::try_from(*tries).unwrap_or(u32::MAX);
            }
            ("at_once_max", Value::Count(calls)) => self.at_once_max = count(calls),
            ("pending_max", Value::Count(calls)) => self.pending_max = count(calls),
            _ => self.receiver.apply(name, value),
        }
    }

    /// The effective value of a key.
    pub(super) fn get(&self, name: &str) -> Option<Value> {
        match name {
            "allow_hosts" => Some(Value::Names(self.allow_hosts.clone())),
            "timeout_s" => Some(Value::Seconds(self.timeout)),
            "tries_max" => Some(Value::Count(self.tries_max.into())),
            "at_once_max" => Some(Value::Count(self.at_once_max as u64)),
            "pending_max" => Some(Value::Count(self.pending_max as u64)),
            _ => self.receiver.get(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signing_secret_has_the_form_of_the_specification() {
        for (text, is_one) in [
            ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", true),
            ("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oDazZv+KvLdpU=", true),
            ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", false),
            ("whsec_", false),
            ("whsec_c2hvcnQ=", false),
            ("whsec_not base64 not base64 not base64", false),
            ("whsec_====MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", false),
        ] {
            assert_eq!(is_signing_secret(text), is_one, "{text}");
        }
    }
}
