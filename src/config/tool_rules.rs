//! What operators set about tools besides which of them are offered: how much of their data a model
//! is shown, what a permission level allows, how deeply skills nest, how long large results are
//! kept.

use std::time::Duration;

use callboard_actors::{ports::PermissionLevel, skill::SkillPolicy, tool::OutputLevel};

use super::{
    key::{Key, key},
    value::{Kind, Value},
};

/// The section about stored results.
pub(super) const ARTIFACTS: &str = "artifacts";

const LEVELS: &[&str] = &["brief", "standard", "full"];
const PERMISSIONS: &[&str] = &["default", "restricted", "admin"];
const BYTES_MAX: u64 = 1 << 40;

/// The keys of these rules.
pub(super) const KEYS: &[Key] = &[
    key(
        "tools",
        "output_level",
        Kind::Choice(LEVELS),
        "`brief`, `standard` or `full`: how much of a tool's data models are shown, unless the call or the tool says otherwise; `standard` by default",
    ),
    key(
        "tools",
        "permission",
        Kind::Choice(PERMISSIONS),
        "`default`: as `approve` says; `restricted`: only tools that never need approval; `admin`: every tool without approval",
    ),
    key(
        "skills",
        "depth_max",
        Kind::Count { max: 100 },
        "skills that may be active on top of each other; 3 by default",
    ),
    key(
        "skills",
        "token_budget",
        Kind::Count { max: 1_000_000_000 },
        "tokens for skills on top of others, 1000 each, in place of `depth_max`; none by default",
    ),
    key(
        ARTIFACTS,
        "max_age_s",
        Kind::Seconds,
        "seconds after it was stored at which a large result expires; 86400 by default",
    ),
    key(
        ARTIFACTS,
        "bytes_max",
        Kind::Count { max: BYTES_MAX },
        "bytes of all large results; beyond it the least recently used ones go; 10 GiB by default",
    ),
    key(
        ARTIFACTS,
        "tenant_bytes_max",
        Kind::Count { max: BYTES_MAX },
        "the same of one tenant; 2 GiB by default",
    ),
    key(
        ARTIFACTS,
        "clean_s",
        Kind::Seconds,
        "seconds between searches for expired results; 3600 by default",
    ),
];

/// The values of these keys; `None` means the default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolRules {
    /// How much of a tool's data models are shown.
    pub output_level: Option<OutputLevel>,
    /// What tools may do.
    pub permission: Option<PermissionLevel>,
    /// Skills that may be active at once.
    pub skill_depth_max: Option<u32>,
    /// Tokens for nested skills.
    pub skill_token_budget: Option<u64>,
    /// How long large results are kept.
    pub retention: Retention,
}

/// How long large results are kept (`[artifacts]`); `None` means the default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Retention {
    /// Age since the result was stored.
    pub max_age: Option<Duration>,
    /// Bytes of all results.
    pub bytes_max: Option<u64>,
    /// Bytes of one tenant's results.
    pub tenant_bytes_max: Option<u64>,
    /// Time between searches.
    pub clean: Option<Duration>,
}

impl ToolRules {
    /// How deeply skills may nest.
    pub fn skill_policy(&self) -> SkillPolicy {
        let usual = SkillPolicy::default();
        SkillPolicy {
            max_depth: self.skill_depth_max.unwrap_or(usual.max_depth),
            token_budget: self.skill_token_budget,
            ..usual
        }
    }

    /// Sets the value of a key. Returns whether it is one of these keys.
    pub(super) fn set(&mut self, section: &str, name: &str, value: &Value) -> bool {
        let kept = &mut self.retention;
        match (section, name, value) {
            ("tools", "output_level", Value::Text(word)) => {
                self.output_level = [OutputLevel::Brief, OutputLevel::Standard, OutputLevel::Full]
                    .into_iter()
                    .find(|level| level.as_str() == word);
            }
            ("tools", "permission", Value::Text(word)) => {
                self.permission = Some(match word.as_str() {
                    "restricted" => PermissionLevel::Restricted,
                    "admin" => PermissionLevel::Admin,
                    _ => PermissionLevel::Default,
                });
            }
            ("skills", "depth_max", Value::Count(count)) => {
                self.skill_depth_max = u32::try_from(*count).ok();
            }
            ("skills", "token_budget", Value::Count(count)) => {
                self.skill_token_budget = Some(*count);
            }
            (ARTIFACTS, "max_age_s", Value::Seconds(time)) => kept.max_age = Some(*time),
            (ARTIFACTS, "clean_s", Value::Seconds(time)) => kept.clean = Some(*time),
            (ARTIFACTS, "bytes_max", Value::Count(bytes)) => kept.bytes_max = Some(*bytes),
            (ARTIFACTS, "tenant_bytes_max", Value::Count(bytes)) => {
                kept.tenant_bytes_max = Some(*bytes);
            }
            _ => return false,
        }
        true
    }

    /// The value of a key: `None` for other keys, `Some(None)` if it is not set.
    pub(super) fn get(&self, section: &str, name: &str) -> Option<Option<Value>> {
        let text = |word: &str| Value::Text(word.to_owned());
        let kept = &self.retention;
        Some(match (section, name) {
            ("tools", "output_level") => self.output_level.map(|level| text(level.as_str())),
            ("tools", "permission") => self.permission.map(|level| {
                text(match level {
                    PermissionLevel::Default => "default",
                    PermissionLevel::Restricted => "restricted",
                    PermissionLevel::Admin => "admin",
                })
            }),
            ("skills", "depth_max") => self.skill_depth_max.map(|n| Value::Count(n.into())),
            ("skills", "token_budget") => self.skill_token_budget.map(Value::Count),
            (ARTIFACTS, "max_age_s") => kept.max_age.map(Value::Seconds),
            (ARTIFACTS, "clean_s") => kept.clean.map(Value::Seconds),
            (ARTIFACTS, "bytes_max") => kept.bytes_max.map(Value::Count),
            (ARTIFACTS, "tenant_bytes_max") => kept.tenant_bytes_max.map(Value::Count),
            _ => return None,
        })
    }
}
