//! Which receiver the webhooks of a tenant go to: its own, or that of `[webhook]`.

use callboard_actors::ports::OutboxEvent;

use super::{
    Config, Secret, TenantSection,
    error::{ConfigError, Origin},
    webhook::{SECTION, USUAL},
};

/// The receiver of one tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookReceiver {
    /// The URL to call.
    pub url: String,
    /// The texts of its secrets: one, or two while it changes. The calls are signed with each.
    pub secrets: Vec<Secret>,
    /// What is sent.
    pub events: Vec<OutboxEvent>,
}

impl Config {
    /// The receiver of a tenant: its own, or the host's; `None` without one. A tenant with its own
    /// URL has its own secret.
    ///
    /// # Errors
    /// [`ConfigError::Inconsistent`] if the secret is missing or malformed. No error quotes it.
    pub fn webhook_of(
        &self,
        tenant: &TenantSection,
    ) -> Result<Option<WebhookReceiver>, ConfigError> {
        let of_host = &self.webhook.receiver;
        let own = &tenant.webhook;
        let is_own = own.url.is_some() || own.secret_env.is_some() || own.secret_file.is_some();
        let (section, of_whom) = match is_own {
            true => (own, format!("the webhook of tenant `{}`: ", tenant.id)),
            false => (of_host, "[webhook]: ".to_owned()),
        };
        let wrong = |problem: String| ConfigError::Inconsistent {
            at: match is_own {
                true => tenant.origin().clone(),
                false => {
                    let set = self.settings.get(&(SECTION, "url"));
                    set.map_or(Origin::Default, |setting| setting.from.clone())
                }
            },
            problem: format!("{of_whom}{problem}"),
        };
        let Some(url) = section.url.clone() else {
            return match is_own || of_host.secret_env.is_some() || of_host.secret_file.is_some() {
                true => Err(wrong("a secret needs `url` beside it".into())),
                false => Ok(None),
            };
        };
        let events = own.events.as_ref().or(of_host.events.as_ref());
        Ok(Some(WebhookReceiver {
            url,
            secrets: section.secrets().map_err(wrong)?,
            events: events.cloned().unwrap_or_else(|| USUAL.to_vec()),
        }))
    }

    /// The texts of the secrets of all webhooks, with and without their prefix.
    pub(super) fn webhook_secrets(&self) -> Vec<String> {
        let sections = self.tenants.iter().map(|tenant| &tenant.webhook);
        let secrets = sections
            .chain([&self.webhook.receiver])
            .filter(|section| section.secret_env.is_some() || section.secret_file.is_some())
            .filter_map(|section| section.secrets().ok())
            .flatten();
        let both = |secret: Secret| {
            let text = secret.expose().to_owned();
            let bare = text.trim_start_matches("whsec_").to_owned();
            [text, bare]
        };
        secrets.flat_map(both).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::WebhookConfig;

    #[test]
    fn every_key_of_a_webhook_arrives_and_a_tenants_own_receiver_has_its_own_secret() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("own", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n");
        write(
            "of-host",
            "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oDazZv+KvLdpU=",
        );
        let load = |more: &str| {
            let text = format!(
                "[host]\ndata_dir = \"data\"\n[webhook]\nurl = \"https://hooks.example/all\"\nsecret_file = \"of-host\"\n\
                 events = [\"failed\"]\nallow_hosts = [\"10.0.0.0/8\"]\ntimeout_s = 2\ntries_max = 3\nat_once_max = 4\npending_max = 5\n\
                 [[tenant]]\nid = \"acme\"\n{more}"
            );
            write("callboard.toml", &text);
            Config::load(
                Some(&folder.path().join("callboard.toml")),
                std::iter::empty(),
            )
            .unwrap()
        };

        let config = load("");
        let expected = WebhookConfig {
            receiver: config.webhook.receiver.clone(),
            allow_hosts: vec!["10.0.0.0/8".to_owned()],
            timeout: Duration::from_secs(2),
            tries_max: 3,
            at_once_max: 4,
            pending_max: 5,
        };
        assert_eq!(config.webhook, expected);
        let of_host = config.webhook_of(&config.tenants[0]).unwrap().unwrap();
        assert_eq!(of_host.url, "https://hooks.example/all");
        assert_eq!(of_host.events, [OutboxEvent::Failed]);
        let own = load(
            "[tenant.webhook]\nurl = \"https://hooks.example/own\"\nsecret_file = \"own\"\nevents = [\"finished\"]\n",
        );
        let own = own.webhook_of(&own.tenants[0]).unwrap().unwrap();
        assert_eq!(own.url, "https://hooks.example/own");
        assert_ne!(own.secrets, of_host.secrets);
        assert_eq!(own.events, [OutboxEvent::Finished]);
        let unsigned = load("[tenant.webhook]\nurl = \"https://hooks.example/own\"\n");
        let error = unsigned.webhook_of(&unsigned.tenants[0]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("needs `secret_env` or `secret_file`"),
            "{text}"
        );
    }
}
