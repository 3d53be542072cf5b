//! Checks `docs/requirements.md`: every row of every area has a text and a test that exists, or the reason why it has none.

use std::collections::{BTreeMap, BTreeSet};

/// The page that is checked.
pub const PAGE: &str = "docs/requirements.md";

/// Every area, with its number of rows.
const AREAS: &[(&str, u32)] = &[
    ("D", 17),
    ("H", 15),
    ("M", 20),
    ("O", 17),
    ("A", 24),
    ("T", 52),
    ("R", 24),
    ("P", 15),
    ("S", 38),
    ("C", 52),
    ("K", 28),
    ("X", 22),
    ("V", 14),
    ("B", 11),
    ("G", 15),
    ("U", 13),
    ("N", 10),
    ("Y", 6),
    ("Q", 6),
    ("Z", 6),
    ("W", 4),
    ("F", 16),
    ("E", 6),
    ("L", 5),
    ("I", 8),
];

/// The number of rows in all areas.
const ROWS: u32 = 444;

/// The number of promises under faults, `F1` to `F34`.
const PROMISES: u32 = 34;

/// How the note of a row without a test begins.
const REASONS: &[&str] = &["not built: ", "no test: "];

/// How a note begins that no row may have: a type with a test of its own, which no running host uses.
const BY_NAME_ONLY: &str = "type only:";

/// The ids of all rows and promises.
fn expected() -> BTreeSet<String> {
    let rows = AREAS
        .iter()
        .flat_map(|(area, rows)| (1..=*rows).map(move |row| format!("{area}-{row:02}")));
    rows.chain((1..=PROMISES).map(|promise| format!("F{promise}")))
        .collect()
}

/// Returns what is wrong with the page. `text` reads a file of the project.
///
/// A line is `| row | what must hold | tests | note |`. The tests are `` `file::name` ``, separated by commas. A row without a test
/// says `none`, and its note begins with one of [`REASONS`]. A row stands below the heading of its area, `## Name (area)`.
pub fn faults(page: &str, text: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut missing = expected();
    let mut files: BTreeMap<String, Option<String>> = BTreeMap::new();
    let mut found = Vec::new();
    let mut area = "";
    for (number, line) in (1..).zip(page.lines()) {
        if let Some(heading) = line.strip_prefix("## ") {
            area = heading
                .rsplit_once('(')
                .map_or("", |(_, area)| area.trim_end_matches(')'));
        }
        if !line.starts_with('|') {
            continue;
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, row, holds, tests, note, _] = cells.as_slice() else {
            found.push(format!(
                "{PAGE}:{number}: a row has four cells: `| row | what must hold | tests | note |`"
            ));
            continue;
        };
        if ["Row", "---"].contains(row) {
            continue;
        }
        if !missing.remove(*row) {
            found.push(format!(
                "{PAGE}:{number}: {row:?} is no requirement, or has two rows"
            ));
        }
        if row.split_once('-').map_or("F1 to F34", |(area, _)| area) != area {
            found.push(format!(
                "{PAGE}:{number}: {row} stands in the area {area:?}"
            ));
        }
        if !holds.ends_with('.') || holds.split_whitespace().count() < 4 {
            found.push(format!(
                "{PAGE}:{number}: {row} does not say in a sentence what must hold"
            ));
        }
        if *tests == "none" {
            if !REASONS
                .iter()
                .any(|reason| note.strip_prefix(reason).is_some_and(|why| !why.is_empty()))
            {
                found.push(format!(
                    "{PAGE}:{number}: {row} has no test and gives no reason ({})",
                    REASONS.join("…, ")
                ));
            }
            continue;
        }
        if REASONS
            .iter()
            .any(|reason| note.starts_with(reason.trim_end()))
        {
            found.push(format!(
                "{PAGE}:{number}: {row} has tests and a note that says that it has none"
            ));
        }
        if note.starts_with(BY_NAME_ONLY) {
            found.push(format!(
                "{PAGE}:{number}: {row} is met by a type that no running host uses. Fix: use it, or say `not built: ` and why"
            ));
        }
        for test in tests.split(',').map(|test| test.trim().trim_matches('`')) {
            let Some((file, name)) = test.split_once("::") else {
                found.push(format!("{PAGE}:{number}: {test:?} is not `file::name`"));
                continue;
            };
            let source = files.entry(file.to_owned()).or_insert_with(|| text(file));
            let is_there = source.as_ref().is_some_and(|source| is_test(source, name));
            if !is_there {
                found.push(format!(
                    "{PAGE}:{number}: {row}: there is no test {name} in {file}, or it is ignored"
                ));
            }
        }
    }
    found.extend(
        missing
            .into_iter()
            .map(|row| format!("{PAGE}: {row} is missing")),
    );
    found
}

/// Whether a function of this name stands behind an attribute that makes it a test, or is a contract that tests call. A test that
/// `#[ignore]` leaves out of every run is none.
pub fn is_test(source: &str, name: &str) -> bool {
    let needle = format!("fn {name}(");
    source.match_indices(&needle).any(|(at, _)| {
        // The lines above that of the function, which may begin with `async` or nothing.
        let (above, _) = source
            .get(..at)
            .unwrap_or_default()
            .rsplit_once('\n')
            .unwrap_or_default();
        let attributes: String = above
            .lines()
            .rev()
            .take_while(|line| line.trim_start().starts_with("#["))
            .collect();
        attributes.contains("test") && !attributes.contains("ignore")
    })
}

#[test]
fn the_areas_have_as_many_rows_as_the_requirements() {
    assert_eq!(AREAS.iter().map(|(_, rows)| rows).sum::<u32>(), ROWS);
    assert_eq!(expected().len(), (ROWS + PROMISES) as usize);
}

#[test]
fn the_table_check_sees_what_it_should() {
    let page = "## Levels (O)\n| Row | What must hold | Tests | Note |\n|---|---|---|---|\n\
                | O-01 | A level has a name. | `a.rs::holds` | |\n\
                | O-02 | A level has a name. | `a.rs::gone` | |\n\
                | O-03 | A level has a name. | none | later |\n\
                | O-04 | A level has a name. | none | not built: a later step |\n\
                | O-05 | | `a.rs::holds` | |\n\
                | O-06 | `a.rs::holds` | |\n\
                | O-07 | A level has a name. | `a.rs::holds` | not built: a later step |\n\
                | O-01 | A level has a name. | `a.rs::holds` | |\n\
                | X-01 | A level has a name. | `a.rs::holds` | |\n\
                | X-99 | A level has a name. | none | no test: nothing can fail |\n\
                | O-08 | A level has a name. | `a.rs::holds` | type only: no host has it |\n\
                ## Promises (F1 to F34)\n\
                | F1 | A level has a name. | `b.rs::holds` | |\n\
                | F2 | A level has a name. | `a.rs::rests` | |\n";
    let source =
        "#[tokio::test]\nasync fn holds() {}\nfn gone() {}\n#[test]\n#[ignore]\nfn rests() {}";

    let found = faults(page, |file| (file == "a.rs").then(|| source.to_owned()));
    let found: Vec<&str> = found
        .iter()
        .filter(|fault| !fault.ends_with("is missing"))
        .map(String::as_str)
        .collect();

    assert_eq!(
        found,
        [
            "docs/requirements.md:5: O-02: there is no test gone in a.rs, or it is ignored",
            "docs/requirements.md:6: O-03 has no test and gives no reason (not built: …, no test: )",
            "docs/requirements.md:8: O-05 does not say in a sentence what must hold",
            "docs/requirements.md:9: a row has four cells: `| row | what must hold | tests | note |`",
            "docs/requirements.md:10: O-07 has tests and a note that says that it has none",
            "docs/requirements.md:11: \"O-01\" is no requirement, or has two rows",
            "docs/requirements.md:12: X-01 stands in the area \"O\"",
            "docs/requirements.md:13: \"X-99\" is no requirement, or has two rows",
            "docs/requirements.md:13: X-99 stands in the area \"O\"",
            "docs/requirements.md:14: O-08 is met by a type that no running host uses. Fix: use it, or say `not built: ` and why",
            "docs/requirements.md:16: F1: there is no test holds in b.rs, or it is ignored",
            "docs/requirements.md:17: F2: there is no test rests in a.rs, or it is ignored",
        ]
    );
    let missing = faults("", |_| None);
    assert!(missing.contains(&"docs/requirements.md: F-16 is missing".to_owned()));
    assert_eq!(missing.len(), (ROWS + PROMISES) as usize);
}
