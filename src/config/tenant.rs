//! `[[tenant]]`: the tenants of `serve`, their keys, and their limits. The operator's HTTP routes
//! accept the same keys as JSON.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use callboard_actors::{chat::ModelParameters, ids::TenantId, policy::Budget, tenant::Quotas};
use serde::Deserialize as _;
use serde_json::{Map, Value as Json};

use super::{
    Approve, Setting, Settings, TenantLayer, by_name,
    error::{ConfigError, Origin, quoted},
    file,
    keys::{BUDGET_SECTION, EACH_SECTION, QUOTAS_SECTION, TENANT_SECTION},
    parameters::parameters,
    value::Value,
    webhook::{self, WebhookSection},
};

/// The configuration of one tenant.
#[derive(Debug, Clone)]
pub struct TenantSection {
    /// The tenant's id.
    pub id: TenantId,
    /// SHA-256 of each of its keys, in lower case.
    pub key_sha256: Vec<String>,
    /// Quotas and weight.
    pub quotas: Quotas,
    /// Budget of all its conversations together; an unset field is unlimited.
    pub budget: Budget,
    /// Budget of each of its conversations; an unset field is unlimited.
    pub conversation_budget: Budget,
    /// Folder that its tools work in; `None` means no file tools and no commands.
    pub workspace: Option<PathBuf>,
    /// Name of the provider to use; `None` means the first.
    pub provider: Option<String>,
    /// The model to use; `None` means the provider's.
    pub model: Option<String>,
    /// How its models are asked to answer; what is open is as for the provider.
    pub parameters: ModelParameters,
    /// System prompt; `None` for none.
    pub system: Option<String>,
    /// Names of its tools; `None` means as `[tools] enabled`.
    pub tools: Option<Vec<String>>,
    /// What happens when a tool wants to change something; `None` means as `[tools] approve`.
    pub approve: Option<Approve>,
    /// Folder of its skills; `None` means `[skills] dir`.
    pub skills: Option<PathBuf>,
    /// Whether the workspace's `AGENTS.md` is added to the system prompt, whoever wrote it; `None`
    /// means no.
    pub project_instructions: Option<bool>,
    /// Models that its skills may choose; `None` means as `[skills] models`.
    pub skill_models: Option<Vec<String>>,
    /// The scope of the tool `memory`.
    pub memory: MemoryScope,
    /// Who is informed when its rounds end; what is open is as `[webhook]` says.
    pub webhook: WebhookSection,
    /// Whether its requests are refused for now; `None` leaves the current state.
    pub paused: Option<bool>,
    pub(super) at: Origin,
    pub(super) settings: Settings,
}

/// Which conversations share the content of the tool `memory` (`[[tenant]] memory`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MemoryScope {
    /// Each conversation has its own, shared with its subagents, and deleted with the conversation.
    #[default]
    Conversation,
    /// All conversations of the tenant share one.
    Tenant,
}

/// What flags of `serve` say about the tenant of a host without configured tenants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnTenant {
    /// Folder that its tools work in.
    pub workspace: Option<PathBuf>,
    /// Name of its provider.
    pub provider: Option<String>,
    /// Its model.
    pub model: Option<String>,
}

impl OwnTenant {
    /// The tenant as if it stood in the configuration.
    pub fn section(&self, id: TenantId) -> TenantSection {
        TenantSection {
            workspace: self.workspace.clone(),
            provider: self.provider.clone(),
            model: self.model.clone(),
            ..TenantSection::new(id)
        }
    }
}

impl TenantSection {
    /// The JSON pointer of the setting that stands at a place.
    pub(super) fn pointer(&self, at: &Origin) -> Option<String> {
        let here = |(key, setting): (&(_, &'static str), &Setting)| {
            (key.0 == TENANT_SECTION && setting.from == *at).then(|| format!("/{}", key.1))
        };
        self.settings.iter().find_map(here)
    }

    /// A tenant with this id and defaults for everything else.
    pub fn new(id: TenantId) -> Self {
        Self {
            id,
            key_sha256: Vec::new(),
            quotas: Quotas::default(),
            budget: Budget::default(),
            conversation_budget: Budget::default(),
            workspace: None,
            provider: None,
            model: None,
            parameters: ModelParameters::default(),
            system: None,
            tools: None,
            approve: None,
            skills: None,
            project_instructions: None,
            skill_models: None,
            memory: MemoryScope::default(),
            webhook: WebhookSection::default(),
            paused: None,
            at: Origin::Default,
            settings: Settings::new(),
        }
    }

    /// Reads a tenant from JSON with the keys of `[[tenant]]` except `id`. `null` counts as absent.
    /// Paths must be absolute.
    ///
    /// # Errors
    /// [`ConfigError`] without a place; [`ConfigError::pointer`] locates the value.
    pub fn from_json(id: &TenantId, json: &Json) -> Result<Self, ConfigError> {
        let wrong = |problem: &str| ConfigError::Inconsistent {
            at: Origin::Default,
            problem: problem.to_owned(),
        };
        let Json::Object(given) = json else {
            return Err(wrong("a tenant is an object"));
        };
        if given
            .get("id")
            .is_some_and(|given| given.as_str() != Some(id.as_str()))
        {
            return Err(wrong("`id` differs from the tenant that is named"));
        }
        let mut table = without_nulls(given);
        table.insert("id".to_owned(), Json::from(id.as_str()));
        let document = BTreeMap::from([(TENANT_SECTION, [table])]);
        let text = toml::to_string(&document).map_err(|_| {
            wrong("a tenant holds texts, numbers, lists of texts and objects of numbers")
        })?;
        let layer =
            file::parse("tenant".as_ref(), &text, None).map_err(ConfigError::without_place)?;
        let tenant = layer
            .tenants
            .into_iter()
            .next()
            .ok_or_else(|| wrong("a tenant is an object"))?;
        let tenant = Self::of(tenant).map_err(ConfigError::without_place)?;
        let relative =
            |path: &Option<PathBuf>| path.as_ref().is_some_and(|path| path.is_relative());
        if [
            &tenant.workspace,
            &tenant.skills,
            &tenant.webhook.secret_file,
        ]
        .into_iter()
        .any(relative)
        {
            return Err(wrong(
                "`workspace`, `skills` and `webhook.secret_file` must be absolute paths",
            ));
        }
        Ok(tenant)
    }

    /// Place of the tenant in its file; [`Origin::Default`] if it is in no file.
    pub fn origin(&self) -> &Origin {
        &self.at
    }

    /// Whether conversations of both would have the same setup and limits. Keys and pauses are not
    /// compared.
    pub fn is_same_setup(&self, other: &Self) -> bool {
        // A new key does not compile until it is compared here or left out by name.
        let parts = |of: &Self| {
            let Self {
                id,
                quotas,
                budget,
                conversation_budget,
                workspace,
                provider,
                model,
                parameters,
                system,
                tools,
                approve,
                skills,
                skill_models,
                project_instructions,
                memory,
                webhook,
                key_sha256: _,
                paused: _,
                at: _,
                settings: _,
            } = of.clone();
            let works = (
                tools,
                approve,
                skills,
                skill_models,
                project_instructions,
                memory,
                webhook,
            );
            (
                (id, quotas, budget, conversation_budget),
                (workspace, provider, model, parameters, system),
                works,
            )
        };
        parts(self) == parts(other)
    }

    pub(super) fn of(layer: TenantLayer) -> Result<Self, ConfigError> {
        let TenantLayer { at, settings } = layer;
        let settings: Settings = settings.into_iter().map(by_name).collect();
        let id = match settings
            .get(&(TENANT_SECTION, "id"))
            .map(|setting| &setting.value)
        {
            Some(Value::Text(id)) => TenantId::new(id).ok(),
            _ => None,
        };
        let Some(id) = id else {
            return Err(ConfigError::Inconsistent {
                at,
                problem: "this tenant has no `id`".into(),
            });
        };
        let quotas = quotas(&settings, &at)?;
        let mut tenant = Self {
            at,
            quotas,
            parameters: parameters(&settings, TENANT_SECTION)?,
            ..Self::new(id)
        };
        for ((section, name), setting) in &settings {
            tenant.apply(section, name, &setting.value);
        }
        tenant.settings = settings;
        Ok(tenant)
    }

    /// Applies one setting of `[[tenant]]` or of its nested sections.
    fn apply(&mut self, section: &str, name: &str, value: &Value) {
        match (section, name, value) {
            (TENANT_SECTION, "key_sha256", Value::Names(hashes)) => {
                self.key_sha256 = hashes.clone()
            }
            (TENANT_SECTION, "provider", Value::Text(name)) => self.provider = Some(name.clone()),
            (TENANT_SECTION, "model", Value::Text(model)) => self.model = Some(model.clone()),
            (TENANT_SECTION, "system", Value::Text(system)) => self.system = Some(system.clone()),
            (TENANT_SECTION, "approve", Value::Text(word)) => self.approve = Approve::of(word),
            (TENANT_SECTION, "workspace", Value::Path(path)) => self.workspace = Some(path.clone()),
            (TENANT_SECTION, "skills", Value::Path(path)) => self.skills = Some(path.clone()),
            (TENANT_SECTION, "skill_models", Value::Names(models)) => {
                self.skill_models = Some(models.clone())
            }
            (TENANT_SECTION, "memory", Value::Text(word)) => {
                self.memory = if word == "tenant" {
                    MemoryScope::Tenant
                } else {
                    MemoryScope::Conversation
                };
            }
            (TENANT_SECTION, "tools", Value::Names(names)) => self.tools = Some(names.clone()),
            (TENANT_SECTION, "project_instructions", Value::Flag(wanted)) => {
                self.project_instructions = Some(*wanted)
            }
            (TENANT_SECTION, "paused", Value::Flag(paused)) => self.paused = Some(*paused),
            (webhook::OF_TENANT, name, value) => self.webhook.apply(name, value),
            (BUDGET_SECTION, name, value) => set_budget(&mut self.budget, name, value),
            (EACH_SECTION, name, value) => set_budget(&mut self.conversation_budget, name, value),
            _ => {}
        }
    }
}

/// Reads the weight and the quotas. A key of the table that is no field of [`Quotas`] is an error.
fn quotas(settings: &Settings, at: &Origin) -> Result<Quotas, ConfigError> {
    let count = |setting: &Setting| match (setting.key.section, setting.key.name, &setting.value) {
        (QUOTAS_SECTION, name, Value::Count(count))
        | (TENANT_SECTION, name @ "weight", Value::Count(count)) => {
            Some((name.to_owned(), Json::from(*count)))
        }
        _ => None,
    };
    let fields: Json = settings.values().filter_map(count).collect();
    Quotas::deserialize(fields).map_err(|error| ConfigError::Inconsistent {
        at: at.clone(),
        problem: error.to_string(),
    })
}

fn set_budget(budget: &mut Budget, name: &str, value: &Value) {
    match (name, value) {
        ("tokens", Value::Count(tokens)) => budget.tokens = Some(*tokens),
        ("usd", Value::MicroUsd(micro)) => budget.micro_usd = Some(*micro),
        ("wall_s", Value::Seconds(time)) => budget.wall_ms = Some(millis(*time)),
        _ => {}
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Removes `null` values from an object and from the objects in it; no tenant key nests deeper.
fn without_nulls(given: &Map<String, Json>) -> Map<String, Json> {
    let kept = |map: &Map<String, Json>| -> Map<String, Json> {
        map.iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    };
    let inner = |value: Json| match value {
        Json::Object(map) => Json::Object(kept(&map)),
        other => other,
    };
    kept(given)
        .into_iter()
        .map(|(name, value)| (name, inner(value)))
        .collect()
}

/// Adds the tenants of a later file; a tenant replaces an earlier one with the same id.
pub(super) fn merged(
    mut earlier: Vec<TenantSection>,
    later: Vec<TenantLayer>,
) -> Result<Vec<TenantSection>, ConfigError> {
    let mut all: Vec<TenantSection> = Vec::new();
    for layer in later {
        let tenant = TenantSection::of(layer)?;
        if let Some(twin) = all.iter().find(|known| known.id == tenant.id) {
            let problem = format!(
                "tenant `{}` is already at {}",
                quoted(tenant.id.as_str()),
                twin.at
            );
            return Err(ConfigError::Inconsistent {
                at: tenant.at,
                problem,
            });
        }
        earlier.retain(|known| known.id != tenant.id);
        all.push(tenant);
    }
    earlier.extend(all);
    Ok(earlier)
}
