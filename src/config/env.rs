//! Reads `CALLBOARD_<SECTION>__<KEY>` and `CALLBOARD_PROVIDER__<NAME>__<KEY>`.

use std::{collections::BTreeMap, path::Path};

use super::{
    Layer, ProviderLayer, Setting,
    error::{ConfigError, Origin, hint, quoted},
    keys::{self, Key, PROVIDER_SECTION},
    value::Base,
};

/// What all our variables begin with.
const PREFIX: &str = "CALLBOARD_";

/// Variables of ours that are no settings: the file to read, the log level, and what tests are told.
pub const NOT_SETTINGS: &[&str] =
    &["CALLBOARD_CONFIG", "CALLBOARD_LOG", "CALLBOARD_CASSETTES", "CALLBOARD_LONG", "CALLBOARD_SEED", "CALLBOARD_MCP_PEERS"];

/// The variable of a key; `provider` is the provider's name where the key is one of a provider.
pub(super) fn variable(key: &Key, provider: Option<&str>) -> String {
    let name = key.name.to_ascii_uppercase();
    match provider {
        Some(provider) => format!("CALLBOARD_PROVIDER__{}__{name}", shouted(provider)),
        None => format!("CALLBOARD_{}__{name}", key.section.to_ascii_uppercase().replace('.', "__")),
    }
}

/// A provider's name as it stands in a variable.
pub(super) fn shouted(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}

/// Variables that others make of the name of a service called `callboard` (Kubernetes does), or that only tests read.
fn is_foreign(rest: &str) -> bool {
    rest == "PORT" || ["PORT_", "SERVICE_HOST", "SERVICE_PORT", "TEST_"].iter().any(|prefix| rest.starts_with(prefix))
}

/// Takes our variables out of an environment. An empty one counts as not set.
pub(super) fn read(environment: &BTreeMap<String, String>, home: Option<&Path>) -> Result<Layer, ConfigError> {
    let base = Base { folder: Default::default(), home: home.map(Path::to_owned) };
    let mut layer = Layer::default();
    for (name, text) in environment {
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        if text.is_empty() || is_foreign(rest) || NOT_SETTINGS.contains(&name.as_str()) {
            continue;
        }
        let from = Origin::Environment(name.clone());
        let (key, provider) = match rest.strip_prefix("PROVIDER__").and_then(|rest| rest.rsplit_once("__")) {
            Some((provider, key)) => (find(keys::PROVIDER.iter(), key), Some(provider)),
            None => (keys::plain().find(|key| variable(key, None) == *name), None),
        };
        let Some(key) = key.filter(|key| (key.section, key.name) != (PROVIDER_SECTION, "name")) else {
            return Err(unknown(name, provider));
        };
        let value = match key.kind.read_text(text, &base) {
            Ok(value) => value,
            Err(problem) => return Err(ConfigError::BadValue { at: from, key: key.path(), problem }),
        };
        let setting = Setting { key, value, from: from.clone() };
        match provider {
            None => layer.settings.push(setting),
            Some(provider) => match layer.providers.iter_mut().find(|known| known.is_called(provider)) {
                Some(known) => known.settings.push(setting),
                None => layer.providers.push(ProviderLayer::named(provider.to_ascii_lowercase(), from, Some(setting))),
            },
        }
    }
    Ok(layer)
}

fn find<'a>(mut keys: impl Iterator<Item = &'a Key>, shouted: &str) -> Option<&'a Key> {
    keys.find(|key| key.name.to_ascii_uppercase() == shouted)
}

fn unknown(given: &str, provider: Option<&str>) -> ConfigError {
    let known: Vec<String> = match provider {
        Some(provider) => keys::PROVIDER.iter().filter(|key| key.name != "name").map(|key| variable(key, Some(provider))).collect(),
        None => keys::plain().map(|key| variable(key, None)).chain(NOT_SETTINGS.iter().map(|name| (*name).to_owned())).collect(),
    };
    // Without the prefix: ten letters that are always right make everything look near.
    let bare = |name: &str| name.strip_prefix(PREFIX).unwrap_or(name).to_owned();
    let names: Vec<String> = known.iter().map(|name| bare(name)).collect();
    let hint = match hint(&bare(given), names.iter().map(String::as_str)).strip_prefix("did you mean `") {
        Some(nearest) => format!("did you mean `{PREFIX}{nearest}"),
        // The whole list is longer than a line should be.
        None => "`callboard config show` lists what can be set".into(),
    };
    ConfigError::Unknown { at: Origin::Environment("environment".into()), what: "variable".into(), given: quoted(given), hint }
}
