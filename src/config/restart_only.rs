//! Settings that a running host cannot change. A reload reports each key that differs and keeps the
//! running values until the next start.

use super::{Config, Setting, key::Key, keys};

/// The keys that only a start can change; a section without a name is meant as a whole. Every other
/// key is applied by a reload.
const NEXT_START: &[(&str, Option<&str>)] = &[
    ("host", None),
    ("store", None),
    ("tools", Some("output_level")),
    ("tools", Some("permission")),
    ("sandbox", Some("toolchains")), // `serve` does not look for toolchains.
    ("tokens", None),
    ("skills", Some("depth_max")),
    ("skills", Some("token_budget")),
    ("artifacts", None),
    ("limits", None),
];

/// The keys of these sections that a reload applies.
const APPLIED: &[(&str, &str)] = &[("host", "admin_key_sha256")];

/// Whether only a start can change the key.
fn needs_start(key: &Key) -> bool {
    let names = |(section, name): &(&str, Option<&str>)| {
        *section == key.section && name.is_none_or(|name| name == key.name)
    };
    NEXT_START.iter().any(names) && !APPLIED.contains(&(key.section, key.name))
}

impl Config {
    /// Replaces the settings that only a start can change by those of `running`. Returns one line
    /// for each key that differs, or for a section that is read as a whole.
    pub fn keep_restart_only(&mut self, running: &Self) -> Vec<String> {
        // A new field does not compile until it is kept here, with its keys in `NEXT_START`, or left
        // to the reload. `every_key_is_applied_or_reported` holds the keys to it.
        let Self {
            listen,
            peer_address,
            http,
            data_dir,
            commit,
            store,
            limits,
            toolchains,
            tool_rules,
            prices,
            compaction,
            observability,
            tokens,
            settings,
            // A reload applies these.
            admin_key_sha256: _,
            tenants: _,
            providers: _,
            tools: _,
            approve: _,
            sandbox: _,
            network: _,
            read_only: _,
            exec_limits: _,
            web: _,
            webhook: _,
            skills: _,
            skill_models: _,
            #[cfg(feature = "mcp")]
                mcp: _,
            // These come from flags, variables and files, not from a key.
            own_tenant: _,
            default_providers: _,
            servers_keys: _,
            files: _,
            project: _,
            trust: _,
            user_file: _,
        } = self;
        let mut changed = Vec::new();
        for key in keys::plain().filter(|key| needs_start(key)) {
            let at = (key.section, key.name);
            let before = running.settings.get(&at);
            let value = |setting: Option<&Setting>| setting.map(|setting| setting.value.clone());
            if value(settings.get(&at)) != value(before) {
                changed.push(format!("[{}] {}", key.section, key.name));
            }
            match before {
                Some(before) => drop(settings.insert(at, before.clone())),
                None => drop(settings.remove(&at)),
            }
        }
        let mut whole = |section: &str, differs: bool| {
            if differs {
                changed.push(section.to_owned());
            }
        };
        whole("[prices]", *prices != running.prices);
        whole("[compaction]", *compaction != running.compaction);
        whole("[observability]", *observability != running.observability);
        whole(
            "[tokens.encoders]",
            tokens.encoders != running.tokens.encoders,
        );
        *listen = running.listen;
        peer_address.clone_from(&running.peer_address);
        http.clone_from(&running.http);
        data_dir.clone_from(&running.data_dir);
        *commit = running.commit;
        store.clone_from(&running.store);
        limits.clone_from(&running.limits);
        *toolchains = running.toolchains;
        tool_rules.clone_from(&running.tool_rules);
        prices.clone_from(&running.prices);
        compaction.clone_from(&running.compaction);
        observability.clone_from(&running.observability);
        tokens.clone_from(&running.tokens);
        changed
            .into_iter()
            .map(|what| format!("{what} changed; the change takes effect at the next start"))
            .collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use super::{
        super::{key::Key, value::Kind},
        *,
    };

    /// A value of the key that is no default.
    fn sample(key: &Key) -> String {
        let choice = |words: &[&str]| words.last().copied().unwrap_or_default().to_owned();
        match key.kind {
            Kind::Choice(words) if key.name == "mode" => words[2].to_owned(), // Not `none`, which is like `auto` without a sandbox.
            Kind::Choice(words) if key.name == "permission" => words[1].to_owned(),
            Kind::Choice(words) if key.name == "output_level" => words[0].to_owned(),
            Kind::Choice(words) => choice(words),
            Kind::Names(names) => choice(names),
            Kind::Path | Kind::Paths => "/elsewhere".into(),
            Kind::StoreUrl => "memory:".into(),
            Kind::BaseUrl => "http://127.0.0.1:9".into(),
            Kind::EnvName => "SOME_KEY".into(),
            Kind::Count { .. }
            | Kind::CountFromZero { .. }
            | Kind::Millis { .. }
            | Kind::Seconds => "7".into(),
            Kind::Hosts | Kind::Patterns => "example.com".into(),
            Kind::Origins => "https://app.example".into(),
            Kind::Models => "m-*".into(),
            Kind::Address => "127.0.0.1:9".into(),
            Kind::Hash => "0".repeat(64),
            Kind::Flag => "false".into(),
            Kind::Text
            | Kind::Texts
            | Kind::Thinking
            | Kind::Temperature
            | Kind::Hashes
            | Kind::TenantId
            | Kind::Prose
            | Kind::Usd => panic!("{} has a kind without a sample here", key.path()),
        }
    }

    fn with(key: Option<&Key>) -> Config {
        // The engine `searxng` needs an address.
        let mut environment = BTreeMap::from([
            ("HOME".to_owned(), "/nowhere/home".to_owned()),
            (
                "CALLBOARD_TOOLS__WEB_SEARCH__BASE_URL".to_owned(),
                "http://127.0.0.1:8".to_owned(),
            ),
        ]);
        if let Some(key) = key {
            environment.insert(key.variable(), sample(key));
        }
        Config::load(None, environment.into_iter()).unwrap()
    }

    /// A configuration without keys, and for each key one that only has that key, with whether a
    /// reload leaves the key to the next start.
    pub(crate) fn each_key() -> (Config, Vec<(String, bool, Config)>) {
        let each = keys::plain().map(|key| {
            let name = format!("[{}] {}", key.section, key.name);
            (name, needs_start(key), with(Some(key)))
        });
        (with(None), each.collect())
    }
}
