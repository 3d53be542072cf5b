//! Stub until the store branch is merged.
use crate::{chat::RawJson, ports::PermissionLevel};
/// Stub.
pub(super) fn idempotency_key(name: &str, version: &str, input: &RawJson, caller: &str, level: PermissionLevel) -> String {
    let value: serde_json::Value = input.parse().unwrap_or_default();
    format!("{name}\0{version}\0{value}\0{caller}\0{level:?}")
}
