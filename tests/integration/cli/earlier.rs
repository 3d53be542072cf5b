//! Stores and exports that an earlier version wrote: `tests/fixtures/stored`.

use std::{collections::BTreeSet, fs, path::PathBuf};

use serde_json::Value;

use super::Home;

/// Every kind of journal entry that a host writes. An entry of a conversation that was reset has no
/// bytes left.
const KINDS: &[&str] = &[
    "life_started",
    "prompt_accepted",
    "prompt_withdrawn",
    "round_started",
    "model_call_started",
    "assistant",
    "budget_settled",
    "output_refused",
    "tool_started",
    "tool_finished",
    "approval_asked",
    "approval_answered",
    "injected",
    "skills_offered",
    "skill_activated",
    "skill_deactivated",
    "round_finished",
    "compacted",
    "pinned",
    "imported",
    "rewound",
    "reset",
    "forked",
];

fn fixture() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/stored").into()
}

/// A home whose store is a copy of the earlier one.
fn earlier_home() -> (Home, String) {
    let home = Home::new();
    let store = home.path().join("earlier.db");
    fs::copy(fixture().join("callboard.db"), &store).unwrap();
    let store = store.to_str().unwrap().to_owned();
    (home, store)
}

/// The exports of the earlier version, by conversation.
fn exports() -> Vec<(String, PathBuf)> {
    let files = fs::read_dir(fixture().join("exports")).unwrap();
    let mut found: Vec<_> = files
        .map(|file| {
            let path = file.unwrap().path();
            let export: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            (export["conversation_id"].as_str().unwrap().to_owned(), path)
        })
        .collect();
    found.sort();
    found
}

#[test]
fn the_earlier_store_holds_every_kind_of_entry() {
    let store = rusqlite::Connection::open(fixture().join("callboard.db")).unwrap();
    let mut rows = store.prepare("SELECT body FROM journal").unwrap();
    let bodies = rows
        .query_map([], |row| row.get::<_, Vec<u8>>(0))
        .unwrap()
        .map(Result::unwrap);

    let mut kinds = BTreeSet::new();
    let mut emptied = 0;
    for body in bodies {
        match serde_json::from_slice::<Value>(&body) {
            Ok(entry) => drop(kinds.insert(entry["kind"].as_str().unwrap().to_owned())),
            Err(_) => emptied += 1,
        }
    }

    assert_eq!(kinds, KINDS.iter().map(|kind| (*kind).to_owned()).collect());
    let snapshots: u32 = store
        .query_row("SELECT count(*) FROM snapshot", [], |row| row.get(0))
        .unwrap();
    assert!(
        emptied > 0 && snapshots > 0,
        "{emptied} emptied entries, {snapshots} snapshots"
    );
}

#[test]
fn a_store_of_an_earlier_version_reads_as_it_did() {
    let (home, store) = earlier_home();
    let exports = exports();

    let listed = home.run(&["sessions", "list", "--db", &store]).well();

    assert_eq!(exports.len(), 14);
    for (id, path) in exports {
        // The list leaves out subagents.
        assert!(
            id.starts_with("subagent:") || listed.out.contains(&id),
            "{id}: {}",
            listed.out
        );
        let now = home
            .run(&["sessions", "export", "--db", &store, &id])
            .well();
        assert_eq!(now.out, fs::read_to_string(path).unwrap(), "{id}");
    }
}

#[test]
fn an_export_of_an_earlier_version_comes_back_as_it_was() {
    let home = Home::new();
    for (id, path) in exports() {
        if id.starts_with("subagent:") {
            continue; // belongs to its parent: no import may take its id
        }
        let imported = home
            .run(&["sessions", "import", path.to_str().unwrap()])
            .well()
            .json();
        let now = home.run(&["sessions", "export", &id]).well().json();

        let then: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        // An open round cannot be imported: its calls get results, which is said.
        if imported["repairs"].as_array().unwrap().is_empty() {
            assert_eq!(
                (&now["messages"], &now["rounds"]),
                (&then["messages"], &then["rounds"]),
                "{id}"
            );
        } else {
            assert_eq!(id, "parked", "{imported}");
        }
    }
}

#[test]
fn conversations_of_an_earlier_version_go_on() {
    let (home, store) = earlier_home();
    // From a snapshot; compacted and pinned; a fork; after a reset; after a rewind.
    for id in ["slept", "imported", "forked", "reset", "cli"] {
        let before = home
            .run(&["sessions", "export", "--db", &store, id])
            .well()
            .json();

        home.run(&[
            "run",
            "--db",
            &store,
            "--session",
            id,
            "Where is RETRY_CAP_MS?",
        ])
        .well();

        let after = home
            .run(&["sessions", "export", "--db", &store, id])
            .well()
            .json();
        let before = before["rounds"].as_array().unwrap();
        let after = after["rounds"].as_array().unwrap();
        assert_eq!(
            (before.len() + 1, &before[..]),
            (after.len(), &after[..before.len()]),
            "{id}"
        );
    }
}
