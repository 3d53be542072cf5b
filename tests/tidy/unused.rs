//! Public items that only tests use. The compiler cannot see them: to it, a public item has users elsewhere.
//!
//! Traits are left out. An item counts as used if its name stands in code that is no test, outside of imports and of its own definition, in a package, an
//! example or a bench. A type must stand somewhere besides its own `impl` lines. The check goes by name, so an item with a common name
//! can hide; it finds none that is used.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Kind, Source};

/// Folders whose items are checked.
const CHECKED: &[&str] = &["actors/src/", "src/"];

/// What supports tests and fuzzers.
const SUPPORT: &[&str] = &[
    "actors/src/testing/",
    "actors/src/scripted/",
    "src/fuzzing.rs",
];

/// Folders in which a use counts.
const USERS: &[&str] = &["actors/src/", "src/", "examples/", "benches/", "fuzz/"];

/// Items for programs that embed the library, which no host of this project needs. Remove a name when its item is used or gone; add one
/// only for an item that the documentation of the library names.
const FOR_EMBEDDERS: &[&str] = &[
    "FnTool",
    "MemoryPins",
    "MemorySkills",
    "activate_skill",
    "encoder_config",
    "model_retry",
    "register_custom_encoder",
    "standard",
    "with_idempotency_key",
    "with_time",
    "with_tokens",
];

/// Items through which tests of another package look inside a host or a server. The list may only shrink.
const FOR_TESTS: &[&str] = &[
    "bytes_ahead",
    "drain_connection",
    "is_cleaning",
    "kill_connection",
    "prompts_under_way",
    "with_helper",
    "with_spawner",
];

struct Item {
    name: String,
    is_type: bool,
    place: String,
}

/// Returns the items that only tests use. `files` are paths and texts.
pub fn faults<'t>(files: impl Iterator<Item = (&'t str, &'t str)>) -> Vec<String> {
    let mut items = Vec::new();
    let mut uses: BTreeMap<String, usize> = BTreeMap::new();
    for (file, text) in files {
        if !USERS.iter().any(|folder| file.starts_with(folder)) || !file.ends_with(".rs") {
            continue;
        }
        let source = Source::of(file, text);
        let lines: Vec<&str> = source.code.lines().collect();
        let checked = CHECKED.iter().any(|folder| file.starts_with(folder))
            && !SUPPORT.iter().any(|folder| file.starts_with(folder));
        let mut defined: BTreeMap<usize, String> = BTreeMap::new();
        for (number, line) in (1..).zip(&lines) {
            let Some((name, is_type)) = definition(line) else {
                continue;
            };
            defined.insert(number, name.clone());
            if checked && !source.is_test(number) {
                let place = format!("{file}:{number}");
                items.push(Item {
                    name,
                    is_type,
                    place,
                });
            }
        }
        for token in source.tokens() {
            if token.kind == Kind::Import || source.is_test(token.line) {
                continue;
            }
            let line = lines.get(token.line - 1).copied().unwrap_or_default();
            let of_impl = line.trim_start().starts_with("impl");
            for word in token.path.split("::") {
                if defined.get(&token.line).is_some_and(|name| name == word) {
                    continue;
                }
                if of_impl && word.starts_with(char::is_uppercase) {
                    continue;
                }
                *uses.entry(word.to_owned()).or_default() += 1;
            }
        }
    }
    let mut needed = BTreeSet::new();
    let mut found = Vec::new();
    for item in items {
        if uses.contains_key(&item.name) {
            continue;
        }
        let mut listed = FOR_EMBEDDERS.iter().chain(FOR_TESTS);
        if let Some(name) = listed.find(|name| **name == item.name) {
            needed.insert(*name);
            continue;
        }
        let (name, place) = (&item.name, &item.place);
        let kind = if item.is_type { "type" } else { "item" };
        found.push(format!(
            "{place}: only tests use the {kind} `{name}`. Fix: use it where a host runs, or remove it with its tests"
        ));
    }
    let stale = FOR_EMBEDDERS
        .iter()
        .chain(FOR_TESTS)
        .filter(|name| !needed.contains(*name));
    found.extend(stale.map(|name| {
        format!("tests/tidy/unused.rs: `{name}` is used or gone. Fix: remove it from the list")
    }));
    found
}

/// The name of the public item that a line defines, and whether it is a type.
fn definition(line: &str) -> Option<(String, bool)> {
    let mut words = line.split_whitespace();
    if words.next() != Some("pub") {
        return None;
    }
    let mut word = words.next()?;
    while ["async", "const", "unsafe"].contains(&word) {
        // `pub const NAME:` is an item itself; `pub const fn` is a function.
        let next = words.next()?;
        if word == "const" && next != "fn" {
            return Some((name(next), false));
        }
        word = next;
    }
    // A trait is used through its methods, without its name.
    let is_type = ["struct", "enum", "type"].contains(&word);
    (is_type || ["fn", "static"].contains(&word))
        .then(|| words.next().map(name))
        .flatten()
        .filter(|name| !name.is_empty())
        .map(|name| (name, is_type))
}

fn name(word: &str) -> String {
    word.chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect()
}

#[test]
fn an_item_that_only_tests_use_is_found() {
    let kernel = "pub struct Dead;\nimpl Dead {\n    pub fn dead_too() {}\n}\npub struct Alive;\npub fn alive(_: Alive) {}\n\
        #[cfg(test)]\nmod tests {\n    fn t() {\n        Dead::dead_too();\n    }\n}\n";
    let user = "use kernel::Dead;\nfn main() {\n    alive(x);\n}\n";
    let found = faults([("actors/src/a.rs", kernel), ("src/main.rs", user)].into_iter());

    let found: Vec<&str> = found
        .iter()
        .filter_map(|line| line.split_once(". Fix").map(|(what, _)| what))
        .filter(|what| what.starts_with("actors"))
        .collect();
    assert_eq!(
        found,
        [
            "actors/src/a.rs:1: only tests use the type `Dead`",
            "actors/src/a.rs:3: only tests use the item `dead_too`"
        ]
    );
}
