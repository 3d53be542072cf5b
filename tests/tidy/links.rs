//! Checks the links of all pages: a file that a link names exists, and so does the heading behind its `#`.

use std::collections::BTreeSet;

/// The anchors of a page's headings, as GitHub and mdBook make them.
pub fn anchors(page: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in outside_of_blocks(page) {
        let Some(heading) = line.strip_prefix('#') else {
            continue;
        };
        let heading = heading.trim_start_matches('#').trim();
        let anchor: String = heading
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        found.insert(anchor);
    }
    found
}

fn outside_of_blocks(page: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    page.lines().filter(move |line| {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        }
        !inside
    })
}

/// The targets of a page's links, outside of code.
fn links(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in outside_of_blocks(page) {
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("_");
        for part in prose.split("](").skip(1) {
            if let Some((target, _)) = part.split_once(')') {
                found.push(target.to_owned());
            }
        }
    }
    found
}

/// A path without `..` and `.`.
fn plain(folder: &str, target: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            ".." => {
                parts.pop();
            }
            "." | "" => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// What a page's links name and is not there. `read` returns the text of a file, `exists` says whether there is a file or folder.
pub fn faults(
    file: &str,
    page: &str,
    exists: impl Fn(&str) -> bool,
    read: impl Fn(&str) -> String,
) -> Vec<String> {
    let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut found = Vec::new();
    for link in links(page) {
        if link.contains("://") || link.starts_with("mailto:") {
            continue;
        }
        let (target, anchor) = link.split_once('#').unwrap_or((&link, ""));
        let path = match target {
            "" => file.to_owned(),
            target => plain(folder, target),
        };
        if !exists(&path) {
            found.push(format!("{file}: there is no {path} ({link})"));
        } else if !anchor.is_empty()
            && path.ends_with(".md")
            && !anchors(&read(&path)).contains(anchor)
        {
            found.push(format!("{file}: {path} has no heading #{anchor}"));
        }
    }
    found
}

#[test]
fn a_link_to_no_file_and_to_no_heading_is_found() {
    let page = "# Two words: `b`\n[a](../b.md#good-one) [c](#two-words-b) [d](d.md) [e](../b.md#bad)\n```\n[x](x.md)\n```\n`[y](y.md)`\n";
    let exists = |file: &str| ["b.md", "docs/a.md"].contains(&file);
    let read = |file: &str| match file {
        "b.md" => "## Good one\n".to_owned(),
        _ => page.to_owned(),
    };

    let found = faults("docs/a.md", page, exists, read);

    assert_eq!(
        found,
        [
            "docs/a.md: there is no docs/d.md (d.md)",
            "docs/a.md: b.md has no heading #bad",
        ]
    );
}
