//! `docs/rows.md` tells for every requirement which test would fail without it. This checks that no row is missing and that every
//! test named is there.

use std::collections::{BTreeMap, BTreeSet};

/// The areas whose rows must stand in the table, with how many there are.
const AREAS: &[(&str, u32)] = &[
    ("O", 17),
    ("A", 24),
    ("T", 52),
    ("G", 15),
    ("U", 13),
    ("Q", 6),
    ("Z", 6),
    ("K", 28),
    ("C", 52),
    ("S", 38),
    ("W", 4),
    ("Y", 6),
    ("F", 16),
    ("V", 14),
    ("X", 22),
    ("N", 10),
];

/// Single rows and promises beside the areas.
const SINGLE: &[&str] = &[
    "L-04", "F1", "F2", "F3", "F4", "F5", "F6", "F7", "F9", "F22", "F24", "M-14", "M-15", "R-03", "R-04", "R-18", "R-19", "R-20", "R-21",
    "R-22", "L-02", "L-05", "D-07", "D-17", "F21", "F26", "H-06", "B-10", "F8", "F10", "F12", "F16", "F17", "F18", "F19", "F23", "F25",
    "F34",
];

fn wanted() -> BTreeSet<String> {
    let of_areas = AREAS.iter().flat_map(|(area, rows)| (1..=*rows).map(move |row| format!("{area}-{row:02}")));
    of_areas.chain(SINGLE.iter().map(|row| (*row).to_owned())).collect()
}

/// What is wrong with the table. `text` reads a file of the project.
///
/// A line is `| row | tests | note |`; tests are `` `file::name` ``, several with commas; a row that has none says `none` and why.
pub fn faults(table: &str, text: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut missing = wanted();
    let mut files: BTreeMap<String, Option<String>> = BTreeMap::new();
    let mut found = Vec::new();
    for (number, line) in (1..).zip(table.lines()) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, row, tests, note, _] = cells.as_slice() else { continue };
        if ["Row", "---"].contains(row) {
            continue;
        }
        if !missing.remove(*row) {
            found.push(format!("docs/rows.md:{number}: {row:?} is no requirement of these areas, or stands twice"));
        }
        if *tests == "none" {
            if note.is_empty() {
                found.push(format!("docs/rows.md:{number}: {row} has no test and does not say why"));
            }
            continue;
        }
        for test in tests.split(',').map(|test| test.trim().trim_matches('`')) {
            let Some((file, name)) = test.split_once("::") else {
                found.push(format!("docs/rows.md:{number}: {test:?} is not `file::name`"));
                continue;
            };
            let source = files.entry(file.to_owned()).or_insert_with(|| text(file));
            let is_there = source.as_ref().is_some_and(|source| is_test(source, name));
            if !is_there {
                found.push(format!("docs/rows.md:{number}: {row}: there is no test {name} in {file}"));
            }
        }
    }
    found.extend(missing.into_iter().map(|row| format!("docs/rows.md: {row} is missing")));
    found
}

/// Whether a function of this name stands behind an attribute that makes it a test, or is a contract that tests call.
fn is_test(source: &str, name: &str) -> bool {
    let needle = format!("fn {name}(");
    source.match_indices(&needle).any(|(at, _)| {
        // The lines above that of the function, which may begin with `async` or nothing.
        let (above, _) = source.get(..at).unwrap_or_default().rsplit_once('\n').unwrap_or_default();
        let attributes: String = above.lines().rev().take_while(|line| line.trim_start().starts_with("#[")).collect();
        attributes.contains("test")
    })
}

#[test]
fn the_table_check_sees_what_it_should() {
    let table = "| Row | Tests | Note |\n|---|---|---|\n| O-01 | `a.rs::holds` | |\n| O-02 | `a.rs::gone` | |\n| O-03 | none | |\n| X-99 | none | no |";
    let source = "#[tokio::test]\nasync fn holds() {}\nfn gone() {}";

    let found = faults(table, |file| (file == "a.rs").then(|| source.to_owned()));

    assert!(found.contains(&"docs/rows.md:4: O-02: there is no test gone in a.rs".to_owned()), "a helper is no test: {found:?}");
    assert!(found.contains(&"docs/rows.md:5: O-03 has no test and does not say why".to_owned()));
    assert!(found.iter().any(|fault| fault.contains("X-99")) && found.contains(&"docs/rows.md: F24 is missing".to_owned()));
    assert!(!found.iter().any(|fault| fault.contains("O-01")));
}
