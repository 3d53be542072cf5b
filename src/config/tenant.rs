//! `[[tenant]]`: who is served, with which keys, and what it may use. The same keys stand in what the operator's routes are sent.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use callboard_actors::{ids::TenantId, policy::Budget, tenant::Quotas};
use serde_json::{Map, Value as Json};

use super::{
    Approve, Setting, Settings, by_name,
    error::{ConfigError, Origin, quoted},
    file,
    keys::{BUDGET_SECTION, EACH_SECTION, QUOTAS_SECTION, TENANT_SECTION},
    value::Value,
};

/// One tenant, as it is configured.
#[derive(Debug, Clone)]
pub struct TenantSection {
    /// Who it is.
    pub id: TenantId,
    /// SHA-256 of its keys, in small letters.
    pub key_sha256: Vec<String>,
    /// What it may use, and its weight.
    pub quotas: Quotas,
    /// What all its conversations may spend; nothing is bounded where it is empty.
    pub budget: Budget,
    /// What each of them may spend.
    pub conversation_budget: Budget,
    /// Folder that its tools work in.
    pub workspace: Option<PathBuf>,
    /// The provider that its calls use; the first one if `None`.
    pub provider: Option<String>,
    /// The model; the provider's if `None`.
    pub model: Option<String>,
    /// Its system prompt.
    pub system: Option<String>,
    /// Its tools; as `[tools] enabled` says if `None`.
    pub tools: Option<Vec<String>>,
    /// What happens when a tool wants to change something; as `[tools] approve` says if `None`.
    pub approve: Option<Approve>,
    /// Folder of its skills; as `[skills] dir` says if `None`.
    pub skills: Option<PathBuf>,
    /// Whether the workspace's `AGENTS.md` is put into the system prompt, whoever wrote it; not if `None`.
    pub project_instructions: Option<bool>,
    /// Models that its skills may choose; as `[skills] models` says if `None`.
    pub skill_models: Option<Vec<String>>,
    /// Who shares what the tool `memory` keeps.
    pub memory: MemoryScope,
    /// Whether it is refused for now; as it was left if `None`.
    pub paused: Option<bool>,
    pub(super) at: Origin,
    pub(super) settings: Settings,
}

/// Who shares what the tool `memory` keeps (`[[tenant]] memory`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MemoryScope {
    /// Each conversation has its own, with its subagents, and it is erased with the conversation.
    #[default]
    Conversation,
    /// All conversations of the tenant share one.
    Tenant,
}

/// What a file says of one tenant.
#[derive(Debug)]
pub(super) struct TenantLayer {
    pub(super) at: Origin,
    pub(super) settings: Vec<Setting>,
}

impl TenantSection {
    /// A tenant of this id and nothing else.
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
            system: None,
            tools: None,
            approve: None,
            skills: None,
            project_instructions: None,
            skill_models: None,
            memory: MemoryScope::default(),
            paused: None,
            at: Origin::Default,
            settings: Settings::new(),
        }
    }

    /// Reads a tenant from JSON: the keys of `[[tenant]]` but `id`. `null` is as if the key were absent. Paths are whole.
    ///
    /// # Errors
    /// [`ConfigError`] without a place; [`ConfigError::pointer`] names the value.
    pub fn from_json(id: &TenantId, json: &Json) -> Result<Self, ConfigError> {
        let wrong = |problem: &str| ConfigError::Inconsistent { at: Origin::Default, problem: problem.to_owned() };
        let Json::Object(given) = json else { return Err(wrong("a tenant is an object")) };
        if given.get("id").is_some_and(|given| given.as_str() != Some(id.as_str())) {
            return Err(wrong("`id` differs from the tenant that is named"));
        }
        let mut table = without_nulls(given);
        table.insert("id".to_owned(), Json::from(id.as_str()));
        let document = BTreeMap::from([(TENANT_SECTION, [table])]);
        let text = toml::to_string(&document).map_err(|_| wrong("a tenant holds texts, numbers, lists of texts and objects of numbers"))?;
        let layer = file::parse("tenant".as_ref(), &text, None).map_err(ConfigError::without_place)?;
        let tenant = layer.tenants.into_iter().next().ok_or_else(|| wrong("a tenant is an object"))?;
        let tenant = Self::of(tenant).map_err(ConfigError::without_place)?;
        let relative = |path: &Option<PathBuf>| path.as_ref().is_some_and(|path| path.is_relative());
        if relative(&tenant.workspace) || relative(&tenant.skills) {
            return Err(wrong("`workspace` and `skills` are paths from the root: a request stands in no folder"));
        }
        Ok(tenant)
    }

    /// Where it is configured.
    pub fn origin(&self) -> &Origin {
        &self.at
    }

    /// Whether conversations would be made of the same, within the same bounds. Keys and pauses are no part of it.
    pub fn is_same_setup(&self, other: &Self) -> bool {
        let parts = |of: &Self| {
            let Self { id, key_sha256: _, quotas, budget, conversation_budget, workspace, provider, model, system, .. } = of.clone();
            let Self { tools, approve, skills, skill_models, project_instructions, memory, .. } = of.clone();
            let works = (tools, approve, skills, skill_models, project_instructions, memory);
            ((id, quotas, budget, conversation_budget), (workspace, provider, model, system), works)
        };
        parts(self) == parts(other)
    }

    pub(super) fn of(layer: TenantLayer) -> Result<Self, ConfigError> {
        let TenantLayer { at, settings } = layer;
        let settings: Settings = settings.into_iter().map(by_name).collect();
        let id = match settings.get(&(TENANT_SECTION, "id")).map(|setting| &setting.value) {
            Some(Value::Text(id)) => TenantId::new(id).ok(),
            _ => None,
        };
        let Some(id) = id else {
            return Err(ConfigError::Inconsistent { at, problem: "this tenant has no `id`".into() });
        };
        let mut tenant = Self { at, ..Self::new(id) };
        for ((section, name), setting) in &settings {
            tenant.take(section, name, &setting.value);
        }
        tenant.settings = settings;
        Ok(tenant)
    }

    /// Takes one setting of our sections.
    fn take(&mut self, section: &str, name: &str, value: &Value) {
        match (section, name, value) {
            (TENANT_SECTION, "key_sha256", Value::Names(hashes)) => self.key_sha256 = hashes.clone(),
            (TENANT_SECTION, "weight", Value::Count(weight)) => self.quotas.weight = u32::try_from(*weight).unwrap_or(u32::MAX),
            (TENANT_SECTION, "provider", Value::Text(name)) => self.provider = Some(name.clone()),
            (TENANT_SECTION, "model", Value::Text(model)) => self.model = Some(model.clone()),
            (TENANT_SECTION, "system", Value::Text(system)) => self.system = Some(system.clone()),
            (TENANT_SECTION, "approve", Value::Text(word)) => self.approve = Approve::of(word),
            (TENANT_SECTION, "workspace", Value::Path(path)) => self.workspace = Some(path.clone()),
            (TENANT_SECTION, "skills", Value::Path(path)) => self.skills = Some(path.clone()),
            (TENANT_SECTION, "skill_models", Value::Names(models)) => self.skill_models = Some(models.clone()),
            (TENANT_SECTION, "memory", Value::Text(word)) => {
                self.memory = if word == "tenant" { MemoryScope::Tenant } else { MemoryScope::Conversation };
            }
            (TENANT_SECTION, "tools", Value::Names(names)) => self.tools = Some(names.clone()),
            (TENANT_SECTION, "project_instructions", Value::Flag(wanted)) => self.project_instructions = Some(*wanted),
            (TENANT_SECTION, "paused", Value::Flag(paused)) => self.paused = Some(*paused),
            (QUOTAS_SECTION, name, Value::Count(count)) => set_quota(&mut self.quotas, name, *count),
            (BUDGET_SECTION, name, value) => set_budget(&mut self.budget, name, value),
            (EACH_SECTION, name, value) => set_budget(&mut self.conversation_budget, name, value),
            _ => {}
        }
    }
}

fn set_quota(quotas: &mut Quotas, name: &str, count: u64) {
    match name {
        "conversations_max" => quotas.conversations_max = Some(count),
        "turns_max" => quotas.turns_max = usize::try_from(count).ok(),
        "prompts_max" => quotas.prompts_max = usize::try_from(count).ok(),
        "requests_per_minute" => quotas.requests_per_minute = u32::try_from(count).ok(),
        "tokens_per_minute" => quotas.tokens_per_minute = Some(count),
        "artifact_bytes_max" => quotas.artifact_bytes_max = Some(count),
        "stored_bytes_max" => quotas.stored_bytes_max = Some(count),
        "workspace_files_max" => quotas.workspace_files_max = Some(count),
        "workspace_bytes_max" => quotas.workspace_bytes_max = Some(count),
        "memory_bytes_max" => quotas.memory_bytes_max = Some(count),
        _ => {}
    }
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

/// An object without the values that are `null`, one level down as well: nothing of ours lies deeper.
fn without_nulls(given: &Map<String, Json>) -> Map<String, Json> {
    let kept = |map: &Map<String, Json>| -> Map<String, Json> {
        map.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    let inner = |value: Json| match value {
        Json::Object(map) => Json::Object(kept(&map)),
        other => other,
    };
    kept(given).into_iter().map(|(name, value)| (name, inner(value))).collect()
}

/// Adds the tenants of a later file: one of the same id takes the place of the earlier one.
pub(super) fn merged(mut earlier: Vec<TenantSection>, later: Vec<TenantLayer>) -> Result<Vec<TenantSection>, ConfigError> {
    let mut all: Vec<TenantSection> = Vec::new();
    for layer in later {
        let tenant = TenantSection::of(layer)?;
        if let Some(twin) = all.iter().find(|known| known.id == tenant.id) {
            let problem = format!("tenant `{}` is already at {}", quoted(tenant.id.as_str()), twin.at);
            return Err(ConfigError::Inconsistent { at: tenant.at, problem });
        }
        earlier.retain(|known| known.id != tenant.id);
        all.push(tenant);
    }
    earlier.extend(all);
    Ok(earlier)
}
