//! Reads `CALLBOARD_<SECTION>__<KEY>` and `CALLBOARD_PROVIDER__<NAME>__<KEY>`.

use std::{collections::BTreeMap, path::Path};

use super::{
    Layer, ProviderLayer, Setting,
    error::{ConfigError, Origin, hint, quoted},
    keys::{self, PROVIDER_SECTION},
    paths::Base,
};

/// Prefix of all variables of Callboard.
const PREFIX: &str = "CALLBOARD_";

/// Variables with our prefix that are not settings: the path of the file, the log level, a running
/// host for `sessions` and `metrics`, and those that only tests read.
pub const NOT_SETTINGS: &[&str] = &[
    "CALLBOARD_CONFIG",
    "CALLBOARD_LOG",
    "CALLBOARD_SERVER",
    "CALLBOARD_KEY",
    "CALLBOARD_CASSETTES",
    "CALLBOARD_GATE",
    "CALLBOARD_LONG",
    "CALLBOARD_SEED",
    "CALLBOARD_MCP_PEERS",
];

/// Whether a variable with our prefix is not ours: Kubernetes derives some from a service named
/// `callboard`, and some are only read by tests.
fn is_foreign(rest: &str) -> bool {
    rest == "PORT"
        || ["PORT_", "SERVICE_HOST", "SERVICE_PORT", "TEST_"]
            .iter()
            .any(|prefix| rest.starts_with(prefix))
}

/// Reads our variables from an environment. An empty variable counts as unset.
pub(super) fn read(
    environment: &BTreeMap<String, String>,
    home: Option<&Path>,
) -> Result<Layer, ConfigError> {
    let base = Base {
        folder: Default::default(),
        home: home.map(Path::to_owned),
    };
    let mut layer = Layer::default();
    for (name, text) in environment {
        let Some(rest) = name.strip_prefix(PREFIX) else {
            continue;
        };
        if text.is_empty() || is_foreign(rest) || NOT_SETTINGS.contains(&name.as_str()) {
            continue;
        }
        let from = Origin::Environment(name.clone());
        let (key, provider) = match rest
            .strip_prefix("PROVIDER__")
            .and_then(|rest| rest.rsplit_once("__"))
        {
            Some((provider, key)) => (
                keys::PROVIDER
                    .iter()
                    .find(|known| known.name.to_ascii_uppercase() == key),
                Some(provider),
            ),
            None => (keys::plain().find(|key| key.variable() == *name), None),
        };
        let Some(key) = key.filter(|key| (key.section, key.name) != (PROVIDER_SECTION, "name"))
        else {
            return Err(unknown(name, provider));
        };
        let value = match key.kind.read_text(text, &base) {
            Ok(value) => value,
            Err(problem) => {
                return Err(ConfigError::BadValue {
                    at: from,
                    key: key.path(),
                    problem,
                });
            }
        };
        let setting = Setting {
            key,
            value,
            from: from.clone(),
        };
        match provider {
            None => layer.settings.push(setting),
            Some(provider) => match layer
                .providers
                .iter_mut()
                .find(|known| known.has_variable_part(provider))
            {
                Some(known) => known.settings.push(setting),
                None => layer.providers.push(ProviderLayer::named(
                    provider.to_ascii_lowercase(),
                    from,
                    Some(setting),
                )),
            },
        }
    }
    Ok(layer)
}

fn unknown(given: &str, provider: Option<&str>) -> ConfigError {
    let known: Vec<String> = match provider {
        Some(provider) => keys::PROVIDER
            .iter()
            .filter(|key| key.name != "name")
            .map(|key| key.variable_of_provider(provider))
            .collect(),
        None => keys::plain()
            .map(|key| key.variable())
            .chain(NOT_SETTINGS.iter().map(|name| (*name).to_owned()))
            .collect(),
    };
    // The prefix is dropped first: its ten letters always match and would make every name look
    // near.
    let bare = |name: &str| name.strip_prefix(PREFIX).unwrap_or(name).to_owned();
    let names: Vec<String> = known.iter().map(|name| bare(name)).collect();
    let hint =
        match hint(&bare(given), names.iter().map(String::as_str)).strip_prefix("did you mean `") {
            Some(nearest) => format!("did you mean `{PREFIX}{nearest}"),
            // The full list would not fit in one line.
            None => "`callboard config show` lists what can be set".into(),
        };
    ConfigError::Unknown {
        at: Origin::Environment("environment".into()),
        what: "variable".into(),
        given: quoted(given),
        hint,
    }
}
