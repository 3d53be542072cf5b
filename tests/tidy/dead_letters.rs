//! Refuses what a reader cannot follow: references to pages outside the repository, ids of requirements outside their page, and words
//! of a private register.
//!
//! What was there when a rule was made is counted in a budget for each top-level folder. A budget may only fall.

use std::collections::BTreeMap;

/// Files that may hold all of it: the page of the requirements, its check, and this file.
const EXEMPT: &[&str] = &[
    super::requirements::PAGE,
    "tests/tidy/requirements.rs",
    "tests/tidy/dead_letters.rs",
];

/// The files that are read, by the end of their names.
const READ: &[&str] = &[".rs", ".md", ".toml", ".txt"];

/// One rule, with what is left to remove.
pub struct Rule {
    what: &'static str,
    fix: &'static str,
    count: fn(&str) -> usize,
    /// Top-level folder or file, and the most that may stand there. What is not listed may have none.
    budget: &'static [(&'static str, usize)],
}

pub const RULES: &[Rule] = &[
    Rule {
        what: "a reference to a page that is not in the repository",
        fix: "write the sentence that matters instead, or link to a page in docs/",
        count: |line| {
            words(line)
                .iter()
                .filter(|word| PAGES.contains(word))
                .count()
        },
        budget: BUDGET_PAGES,
    },
    Rule {
        what: "the id of a requirement outside docs/requirements.md",
        fix: "write what the requirement says instead of its id",
        count: ids,
        budget: BUDGET_IDS,
    },
    Rule {
        what: "a word that the documentation does not use (told, nobody, anew, …)",
        fix: "write report or return, no caller, again, N per minute, available: the subject first, in the active voice",
        count: register,
        budget: BUDGET_WORDS,
    },
];

const BUDGET_PAGES: &[(&str, usize)] = &[("src", 2)];

const BUDGET_IDS: &[(&str, usize)] = &[("actors", 11), ("tests", 1)];

const BUDGET_WORDS: &[(&str, usize)] = &[("actors", 6), ("src", 5), ("tests", 7)];

/// Working notes of the project, which the repository does not hold.
const PAGES: &[&str] = &["REQUIREMENTS", "DESIGN", "FAULTS", "INTERFACES"];

/// The letters of the areas in docs/requirements.md.
const AREAS: &str = "DHMOATRPSCKXVBGUNYQZWFELI";

/// The last promise in docs/requirements.md.
const PROMISES: u32 = 34;

const WORDS: &[&str] = &["told", "tell", "tells", "nobody", "somebody", "anew"];

const PHRASES: &[&[&str]] = &[&["so", "many"], &["to", "be", "had"]];

fn words(line: &str) -> Vec<&str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .collect()
}

/// The ids of requirements in a line, such as `T-41` and `R-03a`, and of promises, `F1` to `F34`.
fn ids(line: &str) -> usize {
    let parts = line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-');
    parts.filter(|part| is_row(part)).count()
        + words(line).iter().filter(|word| is_promise(word)).count()
}

fn is_row(part: &str) -> bool {
    let Some((area, row)) = part.split_once('-') else {
        return false;
    };
    let digits = row
        .strip_suffix(|c: char| c.is_ascii_lowercase())
        .unwrap_or(row);
    area.len() == 1
        && AREAS.contains(area)
        && digits.len() == 2
        && digits.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_promise(word: &str) -> bool {
    let number = word
        .strip_prefix('F')
        .filter(|number| !number.starts_with(['0', '+']));
    number
        .and_then(|number| number.parse().ok())
        .is_some_and(|number: u32| (1..=PROMISES).contains(&number))
}

fn register(line: &str) -> usize {
    let lower = line.to_lowercase();
    let words = words(&lower);
    let phrases = PHRASES.iter().map(|phrase| {
        words
            .windows(phrase.len())
            .filter(|at| at == phrase)
            .count()
    });
    words.iter().filter(|word| WORDS.contains(word)).count() + phrases.sum::<usize>()
}

/// Returns what exceeds its budget, and notes on budgets that can fall. `files` are names and texts.
pub fn faults<'t>(
    rules: &[Rule],
    files: impl Iterator<Item = (&'t str, &'t str)> + Clone,
) -> (Vec<String>, Vec<String>) {
    let mut found = Vec::new();
    let mut notes = Vec::new();
    for rule in rules {
        let mut places: BTreeMap<&str, Vec<(String, usize)>> = BTreeMap::new();
        for (file, text) in files.clone() {
            if EXEMPT.contains(&file) || !READ.iter().any(|end| file.ends_with(end)) {
                continue;
            }
            let folder = file.split('/').next().unwrap_or(file);
            for (number, line) in (1..).zip(text.lines()) {
                let count = (rule.count)(line);
                if count > 0 {
                    places
                        .entry(folder)
                        .or_default()
                        .push((format!("{file}:{number}"), count));
                }
            }
        }
        for (folder, places) in &places {
            let count: usize = places.iter().map(|(_, count)| count).sum();
            let most = rule
                .budget
                .iter()
                .find(|(name, _)| name == folder)
                .map_or(0, |(_, most)| *most);
            if count > most {
                // The places help only where the folder should have none: among old ones, the author knows which is new.
                let shown: Vec<&str> = places
                    .iter()
                    .take(8)
                    .map(|(place, _)| place.as_str())
                    .collect();
                let places = if most == 0 {
                    format!(" ({})", shown.join(", "))
                } else {
                    String::new()
                };
                found.push(format!(
                    "{folder}: {}: {count} found, {most} at most{places}. Fix: {}",
                    rule.what, rule.fix
                ));
            }
        }
        for (folder, most) in rule.budget {
            let count: usize = places
                .get(folder)
                .into_iter()
                .flatten()
                .map(|(_, count)| count)
                .sum();
            if count < *most {
                notes.push(format!("{folder}: {}: the budget can fall from {most} to {count} (tests/tidy/dead_letters.rs)", rule.what));
            }
        }
    }
    (found, notes)
}

#[test]
fn dead_letters_are_seen_and_other_words_are_not() {
    for (line, count) in [
        ("(R-15), T-41 and R-03a; F22 and F1", 5),
        (
            "UTF-16, T-1, T-411, t-41, F35, F0, F01, f1_nothing, 0xF1, DF-10, T-41-2",
            0,
        ),
    ] {
        assert_eq!(ids(line), count, "{line}");
    }
    for (line, count) in [
        ("Nobody is told; tells so many, to be had anew.", 6),
        (
            "told_apart, retell, somebodys, so much, many so, to be or had",
            0,
        ),
    ] {
        assert_eq!(register(line), count, "{line}");
    }
    let text = "see DESIGN §2\nthe design of INTERFACES_MAX\n";

    let rules = |budget| {
        [Rule {
            what: "a page",
            fix: "say it",
            count: RULES[0].count,
            budget,
        }]
    };
    let files = [("src/a.rs", text), ("src/b.png", text), (EXEMPT[0], text)];
    let faults = |budget| faults(&rules(budget), files.iter().copied());

    assert_eq!(faults(&[("src", 1)]), (Vec::new(), Vec::new()));
    assert_eq!(
        faults(&[]).0,
        ["src: a page: 1 found, 0 at most (src/a.rs:1). Fix: say it"]
    );
    assert_eq!(
        faults(&[("src", 1), ("docs", 0), ("benches", 2)]).1.len(),
        1,
        "a folder without any can lose its budget"
    );
    assert_eq!(
        faults(&[("src", 3)]).1,
        ["src: a page: the budget can fall from 3 to 1 (tests/tidy/dead_letters.rs)"]
    );
}
