//! Checks whether values fit together, which no single value can show.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use callboard_actors::{ids::TenantId, policy::Budget};

use super::{
    Config, ProviderConfig, ProviderKind, Store, TenantSection,
    error::{ConfigError, Origin, hint, quoted},
    keys::{FALLBACK_SECTION, TENANT_SECTION},
};
use crate::real_path::real_or_nearest;

/// Checks references to providers and the uniqueness of keys. A mistake here is an error wherever
/// the configuration is read.
pub(super) fn references(config: &Config) -> Result<(), ConfigError> {
    for provider in &config.providers {
        if let Some(fallback) = &provider.fallback {
            let at = provider
                .settings
                .get(&(FALLBACK_SECTION, "provider"))
                .map_or(Origin::Default, |setting| setting.from.clone());
            if fallback.provider == provider.name {
                let problem = format!(
                    "provider `{}` cannot be the fallback for itself",
                    quoted(&provider.name)
                );
                return Err(ConfigError::Inconsistent { at, problem });
            }
            known_provider(config, &fallback.provider, &at)?;
            if let Some(back) = fallback_cycle(config, &provider.name) {
                let problem = format!(
                    "the fallback of provider `{}` leads back to it, by `{}`",
                    quoted(&provider.name),
                    quoted(&back)
                );
                return Err(ConfigError::Inconsistent { at, problem });
            }
        }
    }
    let mut owners: BTreeMap<&str, String> = BTreeMap::new();
    if let Some(hash) = &config.admin_key_sha256 {
        owners.insert(hash, "the operator".to_owned());
    }
    for tenant in &config.tenants {
        if let Some(provider) = &tenant.provider {
            known_provider(config, provider, &place_of(tenant, "provider"))?;
        }
        for hash in &tenant.key_sha256 {
            if let Some(owner) = owners.insert(hash, format!("tenant `{}`", tenant.id)) {
                let problem = format!(
                    "a key of tenant `{}` is a key of {owner} already; each needs its own",
                    tenant.id
                );
                return Err(ConfigError::Inconsistent {
                    at: place_of(tenant, "key_sha256"),
                    problem,
                });
            }
        }
    }
    Ok(())
}

/// Folders that usually hold keys, wherever they lie.
const KEY_FOLDERS: &[&str] = &[
    ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".config",
];

/// Refuses `sandbox.read_only` folders that would expose keys or stored data to commands.
pub(super) fn read_only_folders(config: &Config, home: Option<&Path>) -> Result<(), ConfigError> {
    let at = || {
        config
            .settings
            .get(&("sandbox", "read_only"))
            .map_or(Origin::Default, |setting| setting.from.clone())
    };
    let home = home.map(real_or_nearest);
    let data = real_or_nearest(&config.data_dir);
    for folder in &config.read_only {
        let real = real_or_nearest(folder);
        let within = |other: &Path| other.starts_with(&real);
        let why = if real.parent().is_none() || home.as_deref().is_some_and(within) {
            "is or holds your home folder"
        } else if within(&data) || real.starts_with(&data) {
            "is or holds the data folder, or lies in it"
        } else if real
            .iter()
            .any(|name| KEY_FOLDERS.iter().any(|known| name == *known))
        {
            "may hold keys"
        } else {
            continue;
        };
        let problem = format!(
            "`sandbox.read_only` must list toolchains: {} {why}",
            quoted(&folder.to_string_lossy())
        );
        return Err(ConfigError::Inconsistent { at: at(), problem });
    }
    Ok(())
}

/// Follows the fallbacks from `start`; returns the provider that leads back to it, if there is a
/// cycle.
fn fallback_cycle(config: &Config, start: &str) -> Option<String> {
    let next = |name: &str| {
        config
            .providers
            .iter()
            .find(|provider| provider.name == name)?
            .fallback
            .as_ref()
            .map(|to| &to.provider)
    };
    let mut here = start;
    for _ in &config.providers {
        let there = next(here)?;
        if there == start {
            return Some(here.to_owned());
        }
        here = there;
    }
    None
}

fn place_of(tenant: &TenantSection, name: &'static str) -> Origin {
    tenant
        .settings
        .get(&(TENANT_SECTION, name))
        .map_or_else(|| tenant.at.clone(), |setting| setting.from.clone())
}

fn known_provider(config: &Config, name: &str, at: &Origin) -> Result<(), ConfigError> {
    let known = || {
        config
            .providers
            .iter()
            .chain(&config.default_providers)
            .map(|provider| provider.name.as_str())
    };
    if known().any(|known| known == name) {
        return Ok(());
    }
    let mut names: Vec<&str> = known().collect();
    names.sort_unstable();
    names.dedup();
    Err(ConfigError::Unknown {
        at: at.clone(),
        what: "provider".into(),
        given: quoted(name),
        hint: hint(name, names.into_iter()),
    })
}

/// Checks what would fail when the host starts: the listen address without tenants, tenants'
/// folders, prices.
pub(super) fn host(config: &Config) -> Result<(), ConfigError> {
    let at = |name: &'static str| {
        config
            .settings
            .get(&("host", name))
            .map_or(Origin::Default, |setting| setting.from.clone())
    };
    if !config.listen().ip().is_loopback() && config.tenants.is_empty() {
        let problem = format!(
            "{} can be reached from other machines, and there is no [[tenant]]; add one (`callboard keys new --tenant ID` prints it), or \
             listen at 127.0.0.1",
            config.listen()
        );
        return Err(ConfigError::Inconsistent {
            at: at("listen"),
            problem,
        });
    }
    if config.peer_address.is_some() {
        let problem = if !matches!(config.store, Store::Postgres(_)) {
            "several hosts share a PostgreSQL database; set `[store] url` to one"
        } else if config.tenants.is_empty() {
            "several hosts serve the same tenants; add them as [[tenant]] to the configuration of each host"
        } else {
            ""
        };
        if !problem.is_empty() {
            return Err(ConfigError::Inconsistent {
                at: at("peer_address"),
                problem: problem.to_owned(),
            });
        }
    }
    config.tenants.iter().try_for_each(|it| tenant(config, it))
}

/// Checks one tenant, from a file or from an operator's request.
pub(super) fn tenant(config: &Config, tenant: &TenantSection) -> Result<(), ConfigError> {
    if let Some(provider) = &tenant.provider {
        known_provider(config, provider, &place_of(tenant, "provider"))?;
    }
    config.webhook_of(tenant)?;
    if let Some(workspace) = &tenant.workspace {
        folders(config, tenant, workspace)?;
    } else if let Some(tool) = tenant
        .tools
        .iter()
        .flatten()
        .find(|tool| NEED_WORKSPACE.contains(&tool.as_str()))
    {
        let problem = format!(
            "the tool `{tool}` of tenant `{}` needs a `workspace`",
            tenant.id
        );
        return Err(ConfigError::Inconsistent {
            at: place_of(tenant, "tools"),
            problem,
        });
    }
    price(config, tenant)
}

/// Tools that need a workspace.
pub(crate) const NEED_WORKSPACE: &[&str] =
    &["bash", "file_edit", "file_list", "file_read", "grep_search"];

/// Refuses a workspace whose tools could read stored data, and one that lies inside stored data.
fn folders(config: &Config, tenant: &TenantSection, workspace: &Path) -> Result<(), ConfigError> {
    let at = || place_of(tenant, "workspace");
    let wrong = |problem: String| Err(ConfigError::Inconsistent { at: at(), problem });
    if !workspace.is_dir() {
        return wrong(format!(
            "the workspace of tenant `{}` is not a folder: {}",
            tenant.id,
            quoted(&workspace.to_string_lossy())
        ));
    }
    for (what, path) in stored(config) {
        match overlap(path, workspace) {
            Some(Overlap::InWorkspace) => {
                return wrong(format!(
                    "the {what} lies inside the workspace of tenant `{}`, where its tools could read it",
                    tenant.id
                ));
            }
            Some(Overlap::AroundWorkspace) => {
                return wrong(format!(
                    "the workspace of tenant `{}` lies inside the {what}",
                    tenant.id
                ));
            }
            None => {}
        }
    }
    Ok(())
}

/// The locations of the host's stored data, each with its name in messages.
pub(crate) fn stored(config: &Config) -> impl Iterator<Item = (&'static str, &Path)> {
    let store = match &config.store {
        Store::Sqlite(path) => Some(("session store", path.as_path())),
        Store::Postgres(_) | Store::Memory => None,
    };
    std::iter::once(("data folder", config.data_dir.as_path())).chain(store)
}

/// How a stored path and a workspace overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Overlap {
    /// The stored path lies inside the workspace, so tools could read or replace it.
    InWorkspace,
    /// The workspace lies inside the stored path.
    AroundWorkspace,
}

/// Compares a stored path with a workspace, symbolic links resolved. A link inside the workspace
/// counts as inside even if its target lies outside, because tools could replace the link. SQLite
/// keeps its log beside the file, so checking the file's path covers the log.
pub(crate) fn overlap(stored: &Path, workspace: &Path) -> Option<Overlap> {
    let workspace = real_or_nearest(workspace);
    let target = real_or_nearest(stored);
    let named = match (stored.parent(), stored.file_name()) {
        (Some(parent), Some(name)) => real_or_nearest(parent).join(name),
        _ => target.clone(),
    };
    if target.starts_with(&workspace) || named.starts_with(&workspace) {
        Some(Overlap::InWorkspace)
    } else if workspace.starts_with(&target) || workspace.starts_with(&named) {
        Some(Overlap::AroundWorkspace)
    } else {
        None
    }
}

/// Refuses a money budget for a model without a price, if the model is known from the
/// configuration.
fn price(config: &Config, tenant: &TenantSection) -> Result<(), ConfigError> {
    let money = |budget: &Budget| budget.micro_usd.is_some();
    if !money(&tenant.budget) && !money(&tenant.conversation_budget) {
        return Ok(());
    }
    let provider = config.choose(tenant.provider.as_deref())?;
    if let Some((at, model)) = unpriced_fallback(config, provider) {
        let problem = format!(
            "the budget of tenant `{}` needs a price for the model `{}` of a fallback in [prices]",
            tenant.id,
            quoted(model)
        );
        return Err(ConfigError::Inconsistent { at, problem });
    }
    let model = tenant.model.as_deref().or(provider.model.as_deref());
    match model {
        Some(model)
            if config.prices.get(model).is_none() && provider.kind != ProviderKind::Offline =>
        {
            let near = config
                .prices
                .nearest(model)
                .map(|name| format!("; the nearest price is for `{name}`"))
                .unwrap_or_default();
            let problem = format!(
                "the budget of tenant `{}` needs a price for the model `{}` in [prices]{near}",
                tenant.id,
                quoted(model)
            );
            Err(ConfigError::Inconsistent {
                at: tenant.at.clone(),
                problem,
            })
        }
        Some(_) | None => Ok(()),
    }
}

/// The first fallback of a provider whose configured model has no price.
fn unpriced_fallback<'a>(
    config: &'a Config,
    provider: &'a ProviderConfig,
) -> Option<(Origin, &'a str)> {
    let mut here = provider;
    for _ in &config.providers {
        let fallback = here.fallback.as_ref()?;
        let there = config
            .providers
            .iter()
            .chain(&config.default_providers)
            .find(|known| known.name == fallback.provider)?;
        let model = fallback.model.as_deref().or(there.model.as_deref());
        if let Some(model) = model.filter(|model| {
            config.prices.get(model).is_none() && there.kind != ProviderKind::Offline
        }) {
            let at = here
                .settings
                .get(&(FALLBACK_SECTION, "provider"))
                .map_or(Origin::Default, |setting| setting.from.clone());
            return Some((at, model));
        }
        here = there;
    }
    None
}

/// Settings that are valid but rarely intended.
pub(super) fn warnings(config: &Config) -> Vec<String> {
    let mut users: BTreeMap<PathBuf, Vec<&TenantId>> = BTreeMap::new();
    for tenant in &config.tenants {
        if let Some(workspace) = &tenant.workspace {
            users
                .entry(real_or_nearest(workspace))
                .or_default()
                .push(&tenant.id);
        }
    }
    let shared = users
        .into_iter()
        .filter(|(_, users)| users.len() > 1)
        .map(|(folder, users)| {
            let names = users
                .iter()
                .map(|id| format!("`{id}`"))
                .collect::<Vec<_>>()
                .join(", ");
            format!(
                "the tenants {names} share the workspace {}: each sees the files of the others",
                quoted(&folder.to_string_lossy())
            )
        });
    let keyless = config
        .tenants
        .iter()
        .filter(|tenant| tenant.key_sha256.is_empty())
        .map(|tenant| format!("tenant `{}` has no `key_sha256`: no caller can use it until the operator adds a key", tenant.id));
    shared.chain(keyless).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_path_inside_a_workspace_is_found_by_whatever_name() {
        let folder = tempfile::tempdir().unwrap();
        let workspace = folder.path().join("ws");
        let outside = folder.path().join("outside");
        std::fs::create_dir_all(workspace.join("sub")).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::write(outside.join("s.db"), "").unwrap();
        std::os::unix::fs::symlink(&workspace, folder.path().join("link")).unwrap();
        std::os::unix::fs::symlink(outside.join("s.db"), workspace.join("out.db")).unwrap();
        std::os::unix::fs::symlink(workspace.join("in.db"), outside.join("in.db")).unwrap();
        std::fs::write(workspace.join("in.db"), "").unwrap();
        let inside = [
            "ws/s.db",
            "ws/sub/new/s.db",
            "link/s.db",
            "ws/out.db",
            "outside/in.db",
            "outside/../ws/s.db",
            "none/../ws/s.db",
        ];

        for path in inside {
            assert_eq!(
                overlap(&folder.path().join(path), &workspace),
                Some(Overlap::InWorkspace),
                "{path}"
            );
        }
        for path in ["s.db", "outside/s.db", "ws.db", "wsx/s.db"] {
            assert_eq!(
                overlap(&folder.path().join(path), &workspace),
                None,
                "{path}"
            );
        }
        assert_eq!(
            overlap(&folder.path().join("ws"), &workspace.join("sub")),
            Some(Overlap::AroundWorkspace)
        );
    }
}
