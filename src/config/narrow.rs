//! Decides which values of an untrusted file take effect: those that allow less than the
//! configuration without the file. Pure.

use super::{keys::Key, tool_names::TOOL_NAMES, value::Value};

/// Limits that a project may lower: what one task may do and how long it may take. Limits of the
/// host's queues are excluded, because lowering them makes nothing safer.
const LOWERED: &[&str] = &[
    "tool_iterations_max",
    "parallel_tools_max",
    "subagents_a_round_max",
    "subagents_max",
    "identical_calls_max",
    "model_calls_max",
    "model_idle_s",
    "model_total_s",
];

/// Limits of `[sandbox]` that a project may lower.
const LOWERED_OF_COMMANDS: &[&str] = &["memory_bytes", "processes", "cpu_seconds", "file_bytes"];

/// Returns the part of `given` that narrows the configuration, or `None`. `effective` is the value
/// without the file; `None` if the default is to have no value.
///
/// This is an allow-list: a key without an arm here is ignored, including keys added later.
pub(super) fn narrowed(key: &Key, given: &Value, effective: Option<&Value>) -> Option<Value> {
    match (key.section, key.name, given) {
        ("tools", "enabled", Value::Names(names)) => subset(names, effective),
        ("tools", "approve", Value::Text(word)) => {
            let now = match effective {
                Some(Value::Text(now)) => now.as_str(),
                _ => "", // Unset means `ask` at a terminal and `deny` elsewhere, so `ask` would not narrow it.
            };
            let is_less = matches!(
                (word.as_str(), now),
                ("deny", "" | "ask" | "auto") | ("ask", "auto")
            );
            is_less.then(|| given.clone())
        }
        ("limits", name, _) if LOWERED.contains(&name) => lower(given, effective?),
        ("sandbox", name, _) if LOWERED_OF_COMMANDS.contains(&name) => lower(given, effective?),
        _ => None,
    }
}

/// Keeps the tools that are offered anyway. MCP tools are kept only if the user's own list names
/// them.
fn subset(names: &[String], effective: Option<&Value>) -> Option<Value> {
    let is_offered = |name: &String| match effective {
        Some(Value::Names(now)) => now.contains(name),
        _ => TOOL_NAMES.contains(&name.as_str()),
    };
    let kept = Value::Names(
        names
            .iter()
            .filter(|name| is_offered(name))
            .cloned()
            .collect(),
    );
    (Some(&kept) != effective).then_some(kept)
}

fn lower(given: &Value, now: &Value) -> Option<Value> {
    let is_lower = match (given, now) {
        (Value::Count(given), Value::Count(now)) => given < now,
        (Value::Seconds(given), Value::Seconds(now)) => given < now,
        _ => false,
    };
    is_lower.then(|| given.clone())
}

#[cfg(test)]
mod tests {
    use super::{super::keys, *};

    fn key(path: &str) -> &'static Key {
        keys::plain().find(|key| key.path() == path).unwrap()
    }

    fn names(names: &[&str]) -> Value {
        Value::Names(names.iter().map(|name| (*name).to_owned()).collect())
    }

    fn word(word: &str) -> Value {
        Value::Text(word.to_owned())
    }

    #[test]
    fn approval_is_never_loosened() {
        let approve = |given: &str, now: Option<&str>| {
            narrowed(key("tools.approve"), &word(given), now.map(word).as_ref()).is_some()
        };

        let table: Vec<_> = [None, Some("deny"), Some("ask"), Some("auto")]
            .map(|now| ["deny", "ask", "auto"].map(|given| approve(given, now)))
            .into_iter()
            .collect();

        assert_eq!(
            table,
            [
                [true, false, false],
                [false, false, false],
                [true, false, false],
                [true, true, false]
            ]
        );
    }

    #[test]
    fn tools_are_only_taken_away() {
        let enabled = |given: &[&str], now: Option<Value>| {
            narrowed(key("tools.enabled"), &names(given), now.as_ref())
        };

        assert_eq!(
            enabled(&["bash", "think", "evil__x"], None),
            Some(names(&["bash", "think"]))
        );
        assert_eq!(
            enabled(&["bash", "think"], Some(names(&["think", "time__now"]))),
            Some(names(&["think"]))
        );
        assert_eq!(
            enabled(&["time__now"], Some(names(&["think", "time__now"]))),
            Some(names(&["time__now"]))
        );
        assert_eq!(enabled(&["think"], Some(names(&["think"]))), None);
        assert_eq!(enabled(&[], None), Some(names(&[])));
    }

    #[test]
    fn limits_go_down_only() {
        let limit = |given: u64| {
            narrowed(
                key("limits.tool_iterations_max"),
                &Value::Count(given),
                Some(&Value::Count(25)),
            )
        };

        assert_eq!(
            (limit(24), limit(25), limit(26)),
            (Some(Value::Count(24)), None, None)
        );
        assert_eq!(
            narrowed(
                key("sandbox.processes"),
                &Value::Count(1),
                Some(&Value::Count(2))
            ),
            Some(Value::Count(1))
        );
    }

    #[test]
    fn no_other_key_counts() {
        let counting: Vec<String> = keys::plain()
            .filter(|key| {
                let low = [
                    Value::Count(1),
                    Value::Seconds(std::time::Duration::from_millis(1)),
                    word("deny"),
                    names(&[]),
                ];
                let high = [
                    Value::Count(9),
                    Value::Seconds(std::time::Duration::from_secs(9)),
                    word("auto"),
                    names(&["bash"]),
                ];
                low.iter()
                    .zip(&high)
                    .any(|(low, high)| narrowed(key, low, Some(high)).is_some())
            })
            .map(Key::path)
            .collect();

        let limits = LOWERED.iter().map(|name| format!("limits.{name}"));
        let commands = LOWERED_OF_COMMANDS
            .iter()
            .map(|name| format!("sandbox.{name}"));
        let mut expected: Vec<String> = ["tools.enabled".to_owned(), "tools.approve".to_owned()]
            .into_iter()
            .chain(commands)
            .collect();
        expected.extend(limits);
        assert_eq!(counting, expected);
    }
}
