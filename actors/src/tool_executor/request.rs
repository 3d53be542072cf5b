//! The request of a tool call, and the key under which its result may be reused.
//!
//! Pure.

use std::{collections::BTreeMap, fmt, path::Path};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::{
    chat::RawJson,
    ids::{Scope, sha256_hex},
    limits::JSON_DEPTH_MAX,
    policy::ToolRetryPolicy,
    ports::{CachePolicy, PermissionLevel, TOOL_TIMEOUT, ToolSpec},
    tool::{EffectClass, OutputLevel, ToolError, ToolErrorType},
};

/// Bytes of an idempotency key that a caller gives, as over HTTP.
pub const KEY_BYTES_MAX: usize = 255;

/// A tool call as the model and its conversation made it. The `tool_call_id` comes from the wire
/// adapter; nothing here assigns one.
///
/// ```
/// use callboard_actors::{chat::RawJson, tool_executor::ToolInvocationRequest};
///
/// let parameters = RawJson::from_text(r#"{"city":"Yangzhou"}"#)?;
/// let request = ToolInvocationRequest::new("toolu_1", "weather", parameters, "acme/support-42");
/// assert_eq!(request.timeout_ms, 120_000);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolInvocationRequest {
    /// The id that the model's provider gave the call.
    pub tool_call_id: String,
    /// Name of the tool.
    pub tool_name: String,
    /// Version of the tool; part of the idempotency key.
    #[serde(default = "first_version")]
    pub tool_version: String,
    /// The arguments, a JSON object.
    pub parameters: RawJson,
    /// The output level that the model chose for this call; `None` leaves it to tool and host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_level: Option<OutputLevel>,
    /// Time limit of one attempt, in milliseconds.
    #[serde(default = "timeout_ms")]
    pub timeout_ms: u64,
    /// Whether a timeout is retried, if the retry policy allows it.
    #[serde(default = "yes")]
    pub retry_on_timeout: bool,
    /// Identifies the caller for the sharing of results; see [`caller_id`].
    pub caller_id: String,
    /// The permission level of the caller.
    #[serde(default)]
    pub permission_level: PermissionLevel,
    /// Replaces the generated idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Whether, and for how long, the result may answer later calls.
    #[serde(default)]
    pub cache_policy: CachePolicy,
}

fn first_version() -> String {
    "1.0.0".to_owned()
}

fn timeout_ms() -> u64 {
    u64::try_from(TOOL_TIMEOUT.as_millis()).unwrap_or(u64::MAX)
}

fn yes() -> bool {
    true
}

impl fmt::Debug for ToolInvocationRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ToolInvocationRequest");
        shown
            .field("tool_call_id", &self.tool_call_id)
            .field("tool_name", &self.tool_name)
            .field("tool_version", &self.tool_version);
        shown
            .field("parameters", &self.parameters)
            .field("output_level", &self.output_level)
            .field("timeout_ms", &self.timeout_ms);
        shown
            .field("retry_on_timeout", &self.retry_on_timeout)
            .field("caller_id", &self.caller_id);
        shown
            .field("permission_level", &self.permission_level)
            .field("cache_policy", &self.cache_policy)
            .finish_non_exhaustive()
    }
}

/// Why a request is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The idempotency key is empty or too long.
    #[error("an idempotency key has 1 to {KEY_BYTES_MAX} bytes")]
    Key,
}

impl From<RequestError> for ToolError {
    fn from(error: RequestError) -> Self {
        Self::invalid(error.to_string())
    }
}

impl ToolInvocationRequest {
    /// A request with default options.
    pub fn new(
        tool_call_id: impl Into<String>,
        tool_name: impl Into<String>,
        parameters: RawJson,
        caller_id: impl Into<String>,
    ) -> Self {
        Self {
            tool_call_id: tool_call_id.into(),
            tool_name: tool_name.into(),
            tool_version: first_version(),
            parameters,
            output_level: None,
            timeout_ms: timeout_ms(),
            retry_on_timeout: true,
            caller_id: caller_id.into(),
            permission_level: PermissionLevel::default(),
            idempotency_key: None,
            cache_policy: CachePolicy::default(),
        }
    }

    /// A request with the options that a tool declares: version, time limit, and the cache policy
    /// if its calls are `pure`.
    pub fn from_spec(
        spec: &ToolSpec,
        tool_call_id: impl Into<String>,
        parameters: RawJson,
    ) -> Self {
        let cache_policy = if spec.effect == EffectClass::Pure {
            spec.cache
        } else {
            CachePolicy::NoCache
        };
        Self {
            tool_version: spec.version.clone(),
            timeout_ms: u64::try_from(spec.timeout.as_millis()).unwrap_or(u64::MAX),
            cache_policy,
            ..Self::new(tool_call_id, spec.name(), parameters, "")
        }
    }

    /// Sets the caller and its permission level.
    #[must_use]
    pub(crate) fn caller(mut self, caller_id: impl Into<String>, level: PermissionLevel) -> Self {
        self.caller_id = caller_id.into();
        self.permission_level = level;
        self
    }

    /// Sets the version of the tool.
    #[must_use]
    pub fn tool_version(mut self, version: impl Into<String>) -> Self {
        self.tool_version = version.into();
        self
    }

    /// Sets the output level that the model chose.
    #[must_use]
    pub fn output_level(mut self, level: Option<OutputLevel>) -> Self {
        self.output_level = level;
        self
    }

    /// Sets the time limit of one attempt, in milliseconds.
    #[must_use]
    pub fn timeout_ms(mut self, timeout_ms: u64) -> Self {
        self.timeout_ms = timeout_ms;
        self
    }

    /// Sets whether a timeout is retried.
    #[must_use]
    pub fn retry_on_timeout(mut self, retry: bool) -> Self {
        self.retry_on_timeout = retry;
        self
    }

    /// Sets the permission level.
    #[must_use]
    pub fn permission_level(mut self, level: PermissionLevel) -> Self {
        self.permission_level = level;
        self
    }

    /// Sets an idempotency key in place of the generated one. Calls of one caller with the same key,
    /// tool and version are the same call, whatever their arguments: while the result of one is kept
    /// (see [`ToolInvocationRequest::cache_policy`]) or its run is shared, it answers the others.
    /// Only calls whose effect class is `pure` are answered so.
    ///
    /// # Errors
    /// [`RequestError::Key`] for an empty key or one of more than [`KEY_BYTES_MAX`] bytes.
    pub fn with_idempotency_key(mut self, key: impl Into<String>) -> Result<Self, RequestError> {
        let key = key.into();
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(RequestError::Key);
        }
        self.idempotency_key = Some(key);
        Ok(self)
    }

    /// The output level of this call, in order of precedence: its own, the tool's, BRIEF when the
    /// window is nearly full, the host's default.
    pub(crate) fn effective_level(
        &self,
        tool: Option<OutputLevel>,
        global: OutputLevel,
        window_used: f64,
    ) -> OutputLevel {
        OutputLevel::effective(self.output_level, tool, window_used, global)
    }

    /// Whether to retry after `attempt` earlier retries. The effect class must be checked first.
    pub(crate) fn should_retry(
        &self,
        policy: &ToolRetryPolicy,
        error: ToolErrorType,
        attempt: u32,
    ) -> bool {
        (self.retry_on_timeout || error != ToolErrorType::Timeout)
            && policy.should_retry(error, attempt)
    }

    /// The key under which the result may be reused: the given one, else a SHA-256 hash (64 hex
    /// digits) of tool, version, arguments, caller and permission level.
    ///
    /// The key ignores `tool_call_id`, and the order of keys and white space in the arguments.
    /// Numbers are compared as written: `1` and `1.0` give different keys, which costs an extra run
    /// and never returns a wrong result.
    pub fn idempotency_key(&self) -> String {
        match &self.idempotency_key {
            Some(key) => key.clone(),
            None => self.key_of(canonical(&self.parameters).as_bytes(), b""),
        }
    }

    /// The key under which a tenant keeps the result: a given key counts within its tool, version,
    /// caller and permission level, so that no other call's result answers it.
    pub(super) fn result_key(&self) -> String {
        match &self.idempotency_key {
            Some(key) => self.key_of(key.as_bytes(), b"given"),
            None => self.idempotency_key(),
        }
    }

    fn key_of(&self, call: &[u8], kind: &[u8]) -> String {
        let permission = match self.permission_level {
            PermissionLevel::Default => "default",
            PermissionLevel::Restricted => "restricted",
            PermissionLevel::Admin => "admin",
        };
        sha256_hex(&[
            self.tool_name.as_bytes(),
            self.tool_version.as_bytes(),
            call,
            self.caller_id.as_bytes(),
            permission.as_bytes(),
            kind,
        ])
    }
}

/// The caller of a conversation's tool calls: a hash of the root conversation of its family, the
/// workspace and the allowed tools. The hash hides the workspace path.
pub fn caller_id(root: &Scope, workspace: Option<&Path>, permissions: &[&str]) -> String {
    let workspace = workspace.map(|path| path.to_string_lossy().into_owned());
    let mut parts = vec![
        root.tenant.as_str().as_bytes(),
        root.conversation.as_str().as_bytes(),
        if workspace.is_some() { b"1" } else { b"0" },
        workspace.as_deref().unwrap_or_default().as_bytes(),
    ];
    let mut permissions = permissions.to_vec();
    permissions.sort_unstable();
    permissions.dedup();
    parts.extend(permissions.iter().map(|permission| permission.as_bytes()));
    sha256_hex(&parts)
}

/// Canonical JSON: sorted keys at every depth, no white space. Numbers stay as written, since
/// parsing could make two different large numbers equal.
pub(super) fn canonical(json: &RawJson) -> String {
    let mut text = String::with_capacity(json.as_str().len());
    write_canonical(json.as_str(), JSON_DEPTH_MAX, &mut text);
    text
}

fn write_canonical(json: &str, depth: usize, out: &mut String) {
    let json = json.trim();
    let known = match json.as_bytes().first() {
        _ if depth == 0 => None,
        Some(b'{') => serde_json::from_str::<Fields<'_>>(json)
            .ok()
            .map(|Fields(fields)| {
                out.push('{');
                for (index, (key, values)) in fields.iter().enumerate() {
                    // A duplicate key keeps all its values, since a tool may read either one.
                    for (again, value) in values.iter().enumerate() {
                        if index + again > 0 {
                            out.push(',');
                        }
                        out.push_str(&serde_json::to_string(key).unwrap_or_default());
                        out.push(':');
                        write_canonical(value.get(), depth - 1, out);
                    }
                }
                out.push('}');
            }),
        Some(b'[') => serde_json::from_str::<Vec<&RawValue>>(json)
            .ok()
            .map(|items| {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    write_canonical(item.get(), depth - 1, out);
                }
                out.push(']');
            }),
        Some(b'"') => serde_json::from_str::<String>(json)
            .ok()
            .and_then(|text| serde_json::to_string(&text).ok())
            .map(|text| {
                out.push_str(&text);
            }),
        _ => None,
    };
    if known.is_none() {
        out.push_str(json); // A number, a literal or invalid JSON: copied as it is.
    }
}

/// The fields of an object, sorted by key.
struct Fields<'a>(BTreeMap<String, Vec<&'a RawValue>>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields: BTreeMap<String, Vec<&'de RawValue>> = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, &'de RawValue>()? {
                    fields.entry(key).or_default().push(value);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(parameters: &str) -> ToolInvocationRequest {
        ToolInvocationRequest::new("toolu_1", "t", RawJson::from_text(parameters).unwrap(), "c")
    }

    fn key(parameters: &str) -> String {
        request(parameters).idempotency_key()
    }

    #[test]
    fn a_request_has_the_defaults_and_needs_the_rest() {
        let read: ToolInvocationRequest = serde_json::from_str(
            r#"{"tool_call_id":"toolu_1","tool_name":"t","parameters":{},"caller_id":"c"}"#,
        )
        .unwrap();

        assert_eq!(read, request("{}"));
        assert_eq!(
            (
                read.tool_version.as_str(),
                read.timeout_ms,
                read.retry_on_timeout
            ),
            ("1.0.0", 120_000, true)
        );
        assert_eq!(
            (read.output_level, read.permission_level, read.cache_policy),
            (None, PermissionLevel::Default, CachePolicy::NoCache)
        );
        for missing in ["tool_call_id", "tool_name", "parameters", "caller_id"] {
            let mut json = serde_json::to_value(&read).unwrap();
            json.as_object_mut().unwrap().remove(missing);
            assert!(
                serde_json::from_value::<ToolInvocationRequest>(json).is_err(),
                "{missing}"
            );
        }
    }

    #[test]
    fn a_given_key_is_the_key() {
        let given = ToolInvocationRequest {
            idempotency_key: Some("mine".into()),
            ..request("{}")
        };

        assert_eq!(given.idempotency_key(), "mine");
        assert_eq!(
            request("{}").with_idempotency_key("mine"),
            Ok(given.clone())
        );
        for wrong in ["".to_owned(), "k".repeat(256)] {
            assert_eq!(
                request("{}").with_idempotency_key(wrong),
                Err(RequestError::Key)
            );
        }
    }

    #[test]
    fn the_key_depends_on_five_things_and_not_on_the_calls_id() {
        let base = request(r#"{"a":1}"#);
        let other_call = ToolInvocationRequest {
            tool_call_id: "toolu_2".into(),
            ..base.clone()
        };
        assert_eq!(base.idempotency_key(), other_call.idempotency_key());
        assert_eq!(base.idempotency_key().len(), 64);
        let mut beside = base
            .clone()
            .timeout_ms(1)
            .output_level(Some(OutputLevel::Full));
        beside.cache_policy = CachePolicy::TtlLong;
        assert_eq!(
            base.idempotency_key(),
            beside.retry_on_timeout(false).idempotency_key()
        );

        let others = [
            ToolInvocationRequest {
                tool_name: "u".into(),
                ..base.clone()
            },
            base.clone().tool_version("1.0.1"),
            request(r#"{"a":2}"#),
            ToolInvocationRequest {
                caller_id: "d".into(),
                ..base.clone()
            },
            base.clone().permission_level(PermissionLevel::Admin),
            base.clone().permission_level(PermissionLevel::Restricted),
        ];
        let keys: std::collections::BTreeSet<String> = others
            .iter()
            .chain([&base])
            .map(ToolInvocationRequest::idempotency_key)
            .collect();
        assert_eq!(keys.len(), 7);
    }

    #[test]
    fn components_never_collide_by_being_joined() {
        let of = |name: &str, version: &str, caller: &str| {
            ToolInvocationRequest {
                tool_name: name.into(),
                caller_id: caller.into(),
                ..request("{}")
            }
            .tool_version(version)
            .idempotency_key()
        };

        assert_ne!(of("ab", "c", "d"), of("a", "bc", "d"));
        assert_ne!(of("a", "1", "{}d"), of("a", "1{}", "d"));
        assert_ne!(of("", "ab", ""), of("ab", "", ""));
    }

    #[test]
    fn the_order_of_keys_does_not_matter_at_any_depth_and_everything_else_does() {
        let same = [
            r#"{"a":{"x":1,"y":[{"p":1,"q":"A"}]},"b":null}"#,
            "{ \"b\" : null,\n \"a\":{\"y\":[ {\"q\":\"\\u0041\",\"p\":1}],\"x\":1 } }",
        ];
        assert_eq!(key(same[0]), key(same[1]));
        assert_eq!(canonical(&RawJson::from_text(same[1]).unwrap()), same[0]);

        let different = [
            r#"{"a":[1,2]}"#,
            r#"{"a":[2,1]}"#,
            r#"{"a":"1"}"#,
            r#"{"a":1}"#,
            r#"{"a":1.0}"#,
            r#"{"a":12345678901234567890123}"#,
            r#"{"a":12345678901234567890124}"#,
            r#"{"a":1e400}"#,
            r#"{"a":null}"#,
            "{}",
            r#"{"a":1,"a":2}"#,
            r#"{"a":2,"a":1}"#,
            r#"{"a":2}"#,
            r#"{"a":{"b":1},"c":2}"#,
            r#"{"a":{"b":1,"c":2}}"#,
            r#"{"a,b":1}"#,
        ];
        let keys: std::collections::BTreeSet<String> =
            different.iter().map(|text| key(text)).collect();
        assert_eq!(keys.len(), different.len());
    }

    #[test]
    fn deep_arguments_have_a_key_without_deep_recursion() {
        let deep: RawJson =
            serde_json::from_str(&format!("{{\"a\":{}{}}}", "[".repeat(100), "]".repeat(100)))
                .unwrap();

        assert_eq!(
            ToolInvocationRequest::new("i", "t", deep, "c")
                .idempotency_key()
                .len(),
            64
        );
    }

    #[test]
    fn callers_of_other_tenants_folders_and_permissions_are_others() {
        let scope =
            |tenant: &str, id: &str| Scope::new(tenant.try_into().unwrap(), id.try_into().unwrap());
        let ids = [
            caller_id(&scope("a", "b"), None, &[]),
            caller_id(&scope("ab", "b"), None, &[]),
            caller_id(&scope("a", "bb"), None, &[]),
            caller_id(&scope("a", "b"), Some(Path::new("")), &[]),
            caller_id(&scope("a", "b"), Some(Path::new("/w")), &[]),
            caller_id(&scope("a", "b"), None, &["x"]),
            caller_id(&scope("a", "b"), None, &["x", "y"]),
        ];

        assert_eq!(
            ids.iter().collect::<std::collections::BTreeSet<_>>().len(),
            ids.len()
        );
        assert_eq!(ids[6], caller_id(&scope("a", "b"), None, &["y", "x", "y"]));
        assert!(!ids[4].contains("/w"));
    }

    #[test]
    fn the_level_and_the_retry_follow_the_request() {
        let plain = request("{}");
        assert_eq!(
            plain.effective_level(None, OutputLevel::Standard, 0.8),
            OutputLevel::Standard
        );
        assert_eq!(
            plain.effective_level(None, OutputLevel::Standard, 0.81),
            OutputLevel::Brief
        );
        let full = plain.clone().output_level(Some(OutputLevel::Full));
        assert_eq!(
            full.effective_level(Some(OutputLevel::Brief), OutputLevel::Standard, 0.9),
            OutputLevel::Full
        );

        let policy = ToolRetryPolicy::default();
        assert!(
            plain.should_retry(&policy, ToolErrorType::Timeout, 2)
                && !plain.should_retry(&policy, ToolErrorType::Timeout, 3)
        );
        let never = plain.retry_on_timeout(false);
        assert!(!never.should_retry(&policy, ToolErrorType::Timeout, 0));
        assert!(never.should_retry(&policy, ToolErrorType::ResourceError, 0));
    }
}
