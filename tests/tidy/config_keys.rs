//! Checks `tests/tidy/config_keys.txt`: every key of the configuration names a test that exists and fails when the key is ignored.

use std::collections::BTreeSet;

/// The table that is checked: `[section] key = file::test, file::test`, or `no effect: ` and a reason.
pub const TABLE: &str = "tests/tidy/config_keys.txt";

/// The page whose tables list the keys of `src/config/keys.rs`; another test compares them.
const PAGE: &str = "docs/configuration.md";

/// Sections that are read through serde: the file with the list of their keys, and what stands before it.
const LISTS: &[(&str, &str, &str)] = &[
    ("[compaction]", "src/config/compaction.rs", "const KEYS: "),
    ("[prices]", "src/config/prices.rs", "const KEYS: "),
    ("[tokens.encoders]", "src/config/tokens.rs", "const KEYS: "),
    ("[[mcp]]", "src/mcp/config.rs", "const MCP_KEYS: "),
    (
        "[observability]",
        "actors/src/policy/settings.rs",
        "pub struct ObservabilityConfig {",
    ),
];

/// All keys, as `[section] key`.
fn keys(read: impl Fn(&str) -> String) -> BTreeSet<String> {
    let page = read(PAGE);
    let mut keys: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `[")?.split_once('`'))
        .map(|(key, _)| format!("[{key}"))
        .collect();
    for (section, file, start) in LISTS {
        let text = read(file);
        let (_, list) = text
            .split_once(start)
            .unwrap_or_else(|| panic!("{file} has no `{start}`"));
        let names: Vec<&str> = if start.ends_with('{') {
            let (fields, _) = list.split_once("\n}").unwrap();
            fn name(line: &str) -> Option<&str> {
                Some(line.trim().strip_prefix("pub ")?.split_once(':')?.0)
            }
            fields.lines().filter_map(name).collect()
        } else {
            let (words, _) = list.split_once("];").unwrap();
            words.split('"').skip(1).step_by(2).collect()
        };
        keys.extend(names.iter().map(|name| format!("{section} {name}")));
    }
    keys
}

/// Returns what is wrong with the table. `read` reads a file of the project, `is_test` says whether a file holds a test.
pub fn faults(
    table: &str,
    read: impl Fn(&str) -> String,
    is_test: impl Fn(&str, &str) -> bool,
) -> Vec<String> {
    let mut missing = keys(read);
    let mut found = Vec::new();
    for (number, line) in (1..).zip(table.lines()) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let at = format!("{TABLE}:{number}");
        let Some((key, tests)) = line.split_once(" = ") else {
            found.push(format!("{at}: a line is `[section] key = file::test`"));
            continue;
        };
        if !missing.remove(key) {
            found.push(format!("{at}: {key} is no key, or has two lines"));
        }
        if tests
            .strip_prefix("no effect: ")
            .is_some_and(|why| !why.is_empty())
        {
            continue;
        }
        for test in tests.split(", ") {
            let is_there = test
                .split_once("::")
                .is_some_and(|(file, name)| is_test(file, name));
            if !is_there {
                found.push(format!("{at}: {key}: there is no test {test}"));
            }
        }
    }
    found.extend(missing.into_iter().map(|key| {
        format!("{TABLE}: {key} is missing. Fix: name a test that fails when the key is ignored")
    }));
    found
}

#[test]
fn a_key_without_a_test_is_found() {
    let read = |file: &str| match file {
        PAGE => "| `[host] listen` | `X` | where |\n| `[[tenant]] id` | | id |\n".to_owned(),
        "actors/src/policy/settings.rs" => {
            "pub struct ObservabilityConfig {\n    /// Doc.\n    pub log_level: String,\n}\n"
                .to_owned()
        }
        "src/mcp/config.rs" => "pub const MCP_KEYS: &[&str] = &[\"url\"];".to_owned(),
        _ => "const KEYS: [&str; 0] = [];".to_owned(),
    };
    let table = "# Words.\n[host] listen = a.rs::holds\n[[tenant]] id = a.rs::gone\n[[mcp]] url = no effect: \n[host] other = a.rs::holds\n";

    let found = faults(table, read, |file, name| (file, name) == ("a.rs", "holds"));

    assert_eq!(
        found,
        [
            "tests/tidy/config_keys.txt:3: [[tenant]] id: there is no test a.rs::gone",
            "tests/tidy/config_keys.txt:4: [[mcp]] url: there is no test no effect: ",
            "tests/tidy/config_keys.txt:5: [host] other is no key, or has two lines",
            "tests/tidy/config_keys.txt: [observability] log_level is missing. Fix: name a test that fails when the key is ignored",
        ]
    );
}
