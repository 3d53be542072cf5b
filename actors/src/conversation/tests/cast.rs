//! The tools of the simulated world, one of each kind, and the call policy that knows them.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use super::client_laws::MINE;
use crate::{
    chat::RawJson,
    conversation::round::rules::{CallCheck, CallPolicy},
    policy::ToolRetryPolicy,
    ports::{Approval, Concurrency, ToolSpec},
    tool::{EffectClass, ToolError, ToolErrorType},
};

/// The input with which a hook replaces that of the tool `hooked`.
pub(super) const HOOKED_INPUT: &str = r#"{"path": "hooked"}"#;

/// The tools that a model may name; `nope` does not exist, and `mine` is the caller's.
pub(super) const NAMES: [&str; 12] = [
    "read", "put", "send", "pay", "edit", "build", "tidy", "hooked", "send", "nope", MINE, MINE,
];

pub(super) const RETRIES_MAX: u32 = 2;

pub(super) fn retried(kind: ToolErrorType) -> bool {
    matches!(
        kind,
        ToolErrorType::Timeout | ToolErrorType::ResourceError | ToolErrorType::InvalidParameters
    )
}

static SPECS: LazyLock<BTreeMap<&'static str, Arc<ToolSpec>>> = LazyLock::new(|| {
    let per_file = || Concurrency::PerFile("path".into());
    let tool =
        |name: &'static str, effect: EffectClass, approval: Approval, concurrency: Concurrency| {
            let retry_on = vec![
                ToolErrorType::Timeout,
                ToolErrorType::ResourceError,
                ToolErrorType::InvalidParameters,
            ];
            let retry = ToolRetryPolicy {
                max_retries: RETRIES_MAX,
                retry_on,
                ..ToolRetryPolicy::default()
            };
            let spec = ToolSpec::new(name, "", RawJson::empty_object())
                .effect(effect)
                .approval(approval)
                .concurrency(concurrency);
            (name, Arc::new(spec.retry(retry)))
        };
    BTreeMap::from([
        tool(
            "read",
            EffectClass::Pure,
            Approval::Never,
            Concurrency::Parallel,
        ),
        tool("put", EffectClass::Idempotent, Approval::Never, per_file()),
        tool(
            "send",
            EffectClass::Once,
            Approval::Never,
            Concurrency::Parallel,
        ),
        tool(
            "pay",
            EffectClass::Once,
            Approval::ByMode,
            Concurrency::Parallel,
        ),
        tool(
            "edit",
            EffectClass::Idempotent,
            Approval::ByMode,
            per_file(),
        ),
        tool(
            "build",
            EffectClass::Once,
            Approval::Never,
            Concurrency::Exclusive,
        ),
        tool(
            "tidy",
            EffectClass::Pure,
            Approval::Never,
            Concurrency::Exclusive,
        ),
        tool(
            "hooked",
            EffectClass::Idempotent,
            Approval::ByMode,
            per_file(),
        ),
    ])
});

pub(super) fn spec(name: &str) -> Option<Arc<ToolSpec>> {
    SPECS.get(name).cloned()
}

/// The input that a hook sets for a call, if there is a hook.
pub(super) fn hook(name: &str) -> Option<RawJson> {
    (name == "hooked").then(|| RawJson::from_text(HOOKED_INPUT).unwrap())
}

/// The pattern that "always allow" covers for a call.
/// The pattern of a call: of the arguments that the tool would get.
pub(super) fn pattern(name: &str, input: &RawJson) -> String {
    let used = hook(name);
    format!("{name}:{}", used.as_ref().unwrap_or(input).as_str())
}

pub(super) fn is_bad(input: &RawJson) -> bool {
    input.as_str().contains("bad")
}

/// Whether an answer fits its schema.
pub(super) fn fits(text: &str) -> bool {
    text.ends_with(['0', '3', '6', '9'])
}

/// Knows the tools above; refuses inputs that contain `bad`.
pub(super) struct Cast;

impl CallPolicy for Cast {
    fn check_call(&self, name: &str, input: &RawJson) -> CallCheck {
        match spec(name) {
            None => CallCheck::Refused(ToolError::not_found("no such tool")),
            Some(_) if is_bad(input) => CallCheck::Refused(ToolError::invalid("bad")),
            Some(spec) => {
                let pattern = (spec.approval == Approval::ByMode).then(|| pattern(name, input));
                CallCheck::Ready {
                    spec,
                    input: hook(name),
                    pattern,
                    level: None,
                }
            }
        }
    }

    fn check_output(&self, _: &RawJson, text: &str) -> Result<(), String> {
        if fits(text) {
            Ok(())
        } else {
            Err("odd".into())
        }
    }

    fn spec(&self, name: &str) -> Option<Arc<ToolSpec>> {
        spec(name)
    }
}
