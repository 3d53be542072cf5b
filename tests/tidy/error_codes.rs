//! Checks `docs/errors.md`: every code that the sources can report has an entry, and every entry is a code of the sources.

use std::collections::BTreeSet;

/// The page that is checked, and that `callboard explain` prints.
pub const PAGE: &str = "docs/errors.md";

/// What stands before the code of an error that is made in place.
const MAKERS: &[&str] = &["too_many(", "code: ", ".code("];

/// Names that `code()` returns and that are no errors: how rounds end well.
const NO_ERRORS: &[&str] = &[
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "started",
    "running",
    "finished",
    "failed",
];

/// The entries of the page.
pub fn entries(page: &str) -> BTreeSet<String> {
    let headings = page
        .lines()
        .filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`'));
    headings.map(str::to_owned).collect()
}

/// The codes that a source file reports: the names in the bodies of `fn code`, in `Problem::new` and behind [`MAKERS`].
pub fn codes(source: &str) -> BTreeSet<String> {
    let source = source.split("#[cfg(test)]").next().unwrap_or(source);
    let mut found = BTreeSet::new();
    let starts = ["fn code(&self) ", "fn code(self) "];
    for body in starts.iter().flat_map(|start| source.split(start).skip(1)) {
        let end = body.find("\n    }\n").unwrap_or(body.len());
        found.extend(quoted(&body[..end]).filter(|name| is_code(name)));
    }
    for problem in source.split("Problem::new(").skip(1) {
        let end = problem.find(");").unwrap_or(problem.len());
        let mut words = quoted(&problem[..end]);
        found.extend(words.next().filter(|name| is_code(name)));
    }
    for maker in MAKERS {
        for rest in source.split(maker).skip(1) {
            let name = rest
                .strip_prefix('"')
                .and_then(|rest| rest.split('"').next());
            found.extend(name.filter(|name| is_code(name)).map(str::to_owned));
        }
    }
    found
}

/// The texts in quotes.
fn quoted(text: &str) -> impl Iterator<Item = String> {
    text.split('"').skip(1).step_by(2).map(str::to_owned)
}

fn is_code(name: &str) -> bool {
    let is_part = |c: char| c == '_' || c.is_ascii_digit();
    let lower = name.chars().all(|c| is_part(c) || c.is_ascii_lowercase());
    let upper = name.chars().all(|c| is_part(c) || c.is_ascii_uppercase());
    name.len() > 3 && (lower || upper) && !NO_ERRORS.contains(&name)
}

/// Returns what is wrong with the page. `sources` are the files of both packages.
pub fn faults(page: &str, sources: &[(String, String)]) -> Vec<String> {
    let entries = entries(page);
    let mut found = Vec::new();
    for (file, text) in sources {
        for code in codes(text).difference(&entries) {
            found.push(format!(
                "{file}: the error `{code}` has no entry: add what it means and what to do to {PAGE}"
            ));
        }
    }
    for entry in &entries {
        if !sources
            .iter()
            .any(|(_, text)| text.contains(entry.as_str()))
        {
            found.push(format!(
                "{PAGE}: no source reports `{entry}`: remove the entry"
            ));
        }
    }
    found
}
