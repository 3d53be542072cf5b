//! The page of limits: its values are those of the code and of the configuration, and no limit of the kernel is missing.

use super::root;

/// Constants of `actors/src/limits.rs` that no user meets: sizes of the machinery, and shares of bounds that the page has.
const INTERNAL: &[&str] = &[
    "ANSWER_BLOCK_BYTES",
    "AWAKE_READ_WAIT",
    "AWAKE_SNAPSHOT_ENTRIES",
    "BREAKER_PROBES_MAX",
    "BUDGET_OUTPUT_TOKENS",
    "BYTES_A_TOKEN",
    "CLIENT_KEYS_WHOLE",
    "CONVERSATION_READS_MAX",
    "GATEWAY_QUANTUM_TOKENS",
    "GATEWAY_QUANTUM_TOKENS_MAX",
    "MESSAGE_KEPT_BYTES",
    "QUEUE_REPORT_INTERVAL",
    "RECLAIMED_PART",
    "REFOCUS_ROUNDS",
    "REQUESTS_BURST_MIN",
    "REQUEST_SLACK_TOKENS",
    "RESOURCES_CLOSE_MAX",
    "RETRY_AFTER_MIN",
    "SNAPSHOT_BYTES",
    "SNAPSHOT_ENTRIES",
    "SUBAGENT_PROGRESS_INTERVAL",
    "SUBAGENT_RESULT_BYTES_MAX",
    "SUBAGENT_RESULT_BYTES_MIN",
    "SUPERVISORS",
    "TOKENS_BURST_MIN",
    "TOOL_CACHED_RESULT_BYTES_MAX",
    "TOOL_CACHE_BYTES_MAX",
    "UNKNOWN_OUTPUT_TOKENS",
    "WATCHED_EVENTS_MAX",
    "WATCHER_BYTES_MAX",
];

/// Keys of `[limits]` that bound nothing, or whose default is no bound.
const NO_BOUNDS: &[&str] = &["flush_ms", "sweep_s", "tenant_workspace_bytes_max"];

fn source(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap()
}

/// The value of an expression such as `4 * PROMPT_BYTES_MAX` or `Duration::from_secs(2)`; times in milliseconds.
fn value(expression: &str, text: &str) -> f64 {
    let expression = expression.trim();
    let inner = |start: &str| expression.strip_prefix(start)?.strip_suffix(')');
    if let Some(seconds) = inner("Duration::from_secs(") {
        return value(seconds, text) * 1000.0;
    }
    if let Some(millis) = inner("Duration::from_millis(") {
        return value(millis, text);
    }
    // The constants have products and quotients only.
    let mut result = 1.0;
    let mut rest = expression;
    let mut divides = false;
    loop {
        let end = rest.find(['*', '/']).unwrap_or(rest.len());
        let part = rest[..end].trim();
        let number = match part.replace('_', "").parse::<f64>() {
            Ok(number) => number,
            Err(_) => constant(part, text),
        };
        result = if divides {
            result / number
        } else {
            result * number
        };
        let Some(operator) = rest[end..].chars().next() else {
            return result;
        };
        divides = operator == '/';
        rest = &rest[end + 1..];
    }
}

fn constant(name: &str, text: &str) -> f64 {
    let start = format!("const {name}: ");
    let (_, after) = text
        .split_once(&start)
        .unwrap_or_else(|| panic!("there is no constant {name}"));
    let (_, after) = after.split_once('=').unwrap();
    value(after.split(';').next().unwrap(), text)
}

/// The default of a field, in the last place where the file gives it a value.
fn field(name: &str, text: &str) -> Option<f64> {
    let start = format!("\n            {name}: ");
    let other = format!("\n        {name}: ");
    let from = text.rfind(&start).map(|at| at + start.len());
    let from = from.or_else(|| text.rfind(&other).map(|at| at + other.len()))?;
    Some(value(text[from..].split(",\n").next().unwrap(), text))
}

/// What the page says: a number with a unit. Times are milliseconds.
fn stated(cell: &str) -> Option<f64> {
    let digits = cell.split_whitespace().next()?.replace(',', "");
    let number: f64 = digits.parse().ok()?;
    let unit = cell.split_whitespace().nth(1).unwrap_or_default();
    let factor = match unit.trim_end_matches([',', ';']) {
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        "MB" => 1e6,
        "s" => 1000.0,
        "h" => 3_600_000.0,
        _ => 1.0,
    };
    Some(number * factor)
}

/// The value that the code or the configuration has for a setting; `None` where nothing has one.
fn actual(setting: &str) -> Option<f64> {
    let limits = source("actors/src/limits.rs");
    if let Some(name) = setting.strip_prefix("fixed: ") {
        let name = name.trim_matches('`');
        return Some(match name.split_once("::") {
            Some((file, name)) => constant(name, &source(file)),
            None => constant(name, &limits),
        });
    }
    let (section, key) = setting.split('`').nth(1)?.split_once("] ")?;
    match section {
        "[limits" => {
            let plain = key.strip_suffix("_s").unwrap_or(key);
            field(key, &limits).or_else(|| field(plain, &limits))
        }
        "[sandbox" => {
            let factor = if key.ends_with("_seconds") {
                1000.0
            } else {
                1.0
            };
            Some(field(key, &source("actors/src/ports/sandbox.rs"))? * factor)
        }
        "[host" => {
            let name = match key {
                "header_s" => "header_within",
                "write_pause_s" => "write_pause_max",
                key => key,
            };
            match key {
                "connections_per_address_max" => Some(1000.0),
                _ => field(name, &source("src/http/settings.rs")),
            }
        }
        "[artifacts" | "[webhook" => Some(by_default(section, key)),
        _ => None,
    }
}

/// The number that the table of all keys names as default.
fn by_default(section: &str, key: &str) -> f64 {
    let page = source("docs/configuration.md");
    let row = page
        .lines()
        .find(|line| line.starts_with(&format!("| `{section}] {key}` |")))
        .unwrap_or_else(|| panic!("{section}] {key}"));
    let text = row.rsplit("; ").next().unwrap();
    let factor = if key.ends_with("_s") { 1000.0 } else { 1.0 };
    stated(text).unwrap_or_else(|| panic!("{row}")) * factor
}

fn rows(page: &str) -> Vec<(String, String, String)> {
    let lines = page
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| Bound"));
    lines
        .map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            assert_eq!(cells.len(), 6, "{line}");
            (
                cells[1].to_owned(),
                cells[2].to_owned(),
                cells[3].to_owned(),
            )
        })
        .collect()
}

#[test]
fn every_value_on_the_page_of_limits_is_that_of_the_code() {
    let rows = rows(&source("docs/limits.md"));
    assert!(rows.len() > 80, "{}", rows.len());
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|(bound, cell, setting)| {
            let said = stated(cell)?;
            let is = match actual(setting) {
                Some(is) => is,
                // Those that providers and tenants set have sentences for defaults.
                None if setting.starts_with("`[[") => return None,
                None => return Some(format!("{bound}: {setting} has no value")),
            };
            (said != is).then(|| format!("{bound}: the page says {said}, the code {is}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_limit_of_the_kernel_is_missing_on_the_page_of_limits() {
    let page = source("docs/limits.md");
    let limits = source("actors/src/limits.rs");
    let names = limits.lines().filter_map(|line| {
        let name = line.split_once("const ")?.1.split_once(':')?.0;
        line.starts_with("pub").then_some(name)
    });
    let missing: Vec<&str> = names
        .filter(|name| INTERNAL.contains(name) == page.contains(&format!("`{name}`")))
        .collect();
    assert_eq!(
        missing, [""; 0],
        "on the page of limits, or in INTERNAL, and not in both"
    );

    let configuration = source("docs/configuration.md");
    let keys = configuration
        .lines()
        .filter_map(|line| line.strip_prefix("| `[limits] ")?.split('`').next());
    let missing: Vec<&str> = keys
        .filter(|key| NO_BOUNDS.contains(key) == page.contains(&format!("`[limits] {key}`")))
        .collect();
    assert_eq!(missing, [""; 0], "keys of [limits]");
}
