//! Prints the effective configuration as TOML that can be read again.

use std::fmt::Write as _;

use serde_json::json;

use super::{
    Config, Settings, Store,
    error::{Origin, quoted},
    keys::{self, FALLBACK_SECTION, Key, NESTED, PROVIDER_SECTION, SECTIONS, TENANT_SECTION},
    tokens,
    toml_text::{self, whole},
    value::Value,
    web, webhook,
};

pub(super) fn show(config: &Config) -> String {
    let mut text = String::from(
        "# The effective configuration. Each value is followed by its origin. Provider keys are not shown.\n",
    );
    for file in config.files() {
        let _ = writeln!(text, "# read: {}", quoted(&file.to_string_lossy()));
    }
    for file in config.project_files() {
        let _ = writeln!(text, "# {}", file.line());
    }
    for section in SECTIONS {
        let _ = writeln!(text, "\n[{section}]");
        for key in keys::of_section(section) {
            let from = config
                .settings
                .get(&(key.section, key.name))
                .map_or(Origin::Default, |setting| setting.from.clone());
            match effective(config, key) {
                Some(value) => line(&mut text, key, &value, &from.to_string()),
                None => not_set(&mut text, key),
            }
        }
    }
    for provider in &config.providers {
        let _ = writeln!(text, "\n[[provider]]");
        for key in keys::PROVIDER {
            let setting = provider.settings.get(&(PROVIDER_SECTION, key.name));
            let derived = match key.name {
                "name" => Some(Value::Text(provider.name.clone())),
                "kind" => Some(Value::Text(provider.kind.as_str().to_owned())),
                _ => None,
            };
            let from = setting.map_or(Origin::Default, |setting| setting.from.clone());
            let note = provider
                .key_state()
                .filter(|_| key.name.starts_with("api_key_"))
                .map_or(String::new(), |state| format!("; {state}"));
            match setting.map(|setting| setting.value.clone()).or(derived) {
                Some(value) => line(&mut text, key, &value, &format!("{from}{note}")),
                None => not_set(&mut text, key),
            }
        }
        nested(&mut text, FALLBACK_SECTION, &provider.settings);
    }
    for tenant in &config.tenants {
        let _ = writeln!(text, "\n[[{TENANT_SECTION}]]");
        for key in keys::TENANT {
            match tenant.settings.get(&(TENANT_SECTION, key.name)) {
                Some(setting) => line(&mut text, key, &setting.value, &setting.from.to_string()),
                None => not_set(&mut text, key),
            }
        }
        NESTED
            .iter()
            .for_each(|section| nested(&mut text, section, &tenant.settings));
    }
    tokens::show(&mut text, &config.tokens.encoders);
    super::compaction::show(&mut text, &config.compaction);
    super::observability::show(&mut text, &config.observability);
    super::prices::show(&mut text, &config.prices);
    #[cfg(feature = "mcp")]
    super::mcp::show(&mut text, &config.mcp);
    if config.providers.is_empty() {
        let _ = writeln!(
            text,
            "\n# no [[provider]]: Anthropic if ANTHROPIC_API_KEY is set, else OpenAI if OPENAI_API_KEY is set, else the offline model"
        );
    }
    text
}

/// Prints a section within a provider or a tenant, if any of its keys is set.
fn nested(text: &mut String, section: &'static str, settings: &Settings) {
    let set: Vec<_> = keys::of_section(section)
        .filter_map(|key| settings.get(&(section, key.name)))
        .collect();
    if !set.is_empty() {
        let _ = writeln!(text, "[{section}]");
    }
    for setting in set {
        line(text, setting.key, &setting.value, &setting.from.to_string());
    }
}

/// The effective value of a key outside `[[provider]]`; `None` if the key is unset and has no
/// default value.
pub(super) fn effective(config: &Config, key: &Key) -> Option<Value> {
    if key.section == "host"
        && let Some(value) = config.http.get(key.name)
    {
        return value;
    }
    if let Some(value) = config.tool_rules.get(key.section, key.name) {
        return value;
    }
    match (key.section, key.name) {
        ("host", "data_dir") => Some(Value::Path(config.data_dir.clone())),
        ("host", "listen") => Some(Value::Address(config.listen())),
        ("host", "peer_address") => config.peer_address.clone().map(Value::Text),
        ("host", "admin_key_sha256") => config.admin_key_sha256.clone().map(Value::Text),
        ("host", _) => Some(Value::Text(config.commit.as_str().to_owned())),
        ("store", _) => Some(Value::Store(config.store.clone())),
        ("tools", "enabled") => config.tools.clone().map(Value::Names),
        ("tools", _) => config
            .approve
            .map(|mode| Value::Text(mode.as_str().to_owned())),
        ("sandbox", "network") => Some(Value::Patterns(config.network.clone())),
        ("sandbox", "toolchains") => Some(Value::Flag(config.toolchains)),
        ("sandbox", "read_only") => Some(Value::Paths(config.read_only.clone())),
        ("sandbox", name) if name != "mode" => {
            keys::exec_limit(&config.exec_limits, name).map(Value::Count)
        }
        ("sandbox", _) => Some(Value::Text(config.sandbox.as_str().to_owned())),
        ("skills", "models") => Some(Value::Names(config.skill_models.clone())),
        ("skills", _) => config.skills.clone().map(Value::Path),
        (web::FETCH, "allow_hosts") => Some(Value::Names(config.web.allow_hosts.clone())),
        (web::FETCH, _) => Some(Value::Text(
            if config.web.fetch_without_asking {
                "never"
            } else {
                "mode"
            }
            .to_owned(),
        )),
        (web::SEARCH, "engine") => config.web.engine.clone().map(Value::Text),
        (web::SEARCH, "base_url") => config.web.base_url.clone().map(Value::Text),
        (web::SEARCH, _) => config.web.api_key_env.clone().map(Value::Text),
        (webhook::SECTION, name) => config.webhook.get(name),
        (tokens::SECTION, _) => config.tokens.file.clone().map(Value::Path),
        ("limits", name) => keys::limit_values(&config.limits)
            .into_iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value),
        _ => None,
    }
}

fn line(text: &mut String, key: &Key, value: &Value, from: &str) {
    let _ = writeln!(text, "{} = {}  # {from}", key.name, toml_value(value));
}

fn not_set(text: &mut String, key: &Key) {
    let _ = writeln!(text, "# {} is not set: {}", key.name, key.what);
}

fn toml_value(value: &Value) -> String {
    toml_text::value(&match value {
        Value::Text(word) => json!(word),
        Value::Path(path) => json!(whole(path)),
        Value::Store(Store::Memory) => json!("memory:"),
        Value::Store(Store::Postgres(address)) => json!(address.shown()),
        Value::Store(Store::Sqlite(path)) => json!(format!("sqlite:{}", whole(path))),
        Value::Count(count) => json!(count),
        Value::Seconds(time) if time.subsec_nanos() == 0 => json!(time.as_secs()),
        Value::Seconds(time) => json!(time.as_secs_f64()),
        Value::Patterns(hosts) => hosts.iter().map(ToString::to_string).collect(),
        Value::Paths(paths) => paths.iter().map(|path| whole(path)).collect(),
        Value::Address(address) => json!(address),
        Value::MicroUsd(micro) => json!(*micro as f64 / 1e6),
        Value::Flag(yes) => json!(yes),
        Value::Thinking(thinking) => json!(thinking),
        Value::Temperature(temperature) => json!(temperature),
        Value::Names(names) => json!(names),
    })
}
