//! Answers questions about files themselves: which exist, how many, what one defines or contains.

use std::fmt::Write;

use serde_json::json;

use super::{
    answer::{WHO, quoted},
    definition::Kind,
    known::Known,
    lines::{FileLines, left_out, listed},
    plan::{Call, fresh, outline, read, top},
    question::Question,
    rank::is_prose,
    round::{Offered, Round},
    sites::Site,
    words::escape,
};

/// Lines of a file that are read to summarize it.
const LEAD_LINES: u32 = 60;

/// The next step: the answer, or more calls.
pub(super) type Step = Result<String, Vec<Call>>;

/// Lists or counts files.
pub(super) fn files(glob: Option<&str>, count: bool, round: &Round, offered: Offered) -> Step {
    if round.batches.is_empty() {
        let call = match glob {
            Some(glob) => Call {
                tool: "file_list",
                input: json!({ "glob": glob }),
            },
            // A count needs all files; a list starts with the top folder.
            None if count => Call {
                tool: "file_list",
                input: json!({ "glob": "**" }),
            },
            None => top(),
        };
        let calls = fresh(vec![call], round, offered);
        if !calls.is_empty() {
            return Err(calls);
        }
    }
    let Some(seen) = round
        .batches
        .iter()
        .flatten()
        .find(|seen| seen.tool == "file_list")
    else {
        return Ok(format!(
            "{WHO}\n\nThe tool `file_list` is not offered, so files cannot be listed."
        ));
    };
    if seen.is_error {
        return Ok(format!("{WHO}\n\nListing failed: {}", seen.reason()));
    }
    let paths: Vec<&str> = listed(&seen.text)
        .filter(|path| glob.is_none() || !path.ends_with('/'))
        .collect();
    let (more, at_least) = left_out(&seen.text);
    let total = paths.len() as u64 + more;
    let what = glob.map_or_else(String::new, |glob| format!(" that match `{glob}`"));
    let mut text = format!("{WHO}\n\n");
    if count {
        let files = if glob.is_some() {
            "files"
        } else {
            "files and folders"
        };
        let _ = write!(
            text,
            "There are {}{total} {files}{what}.",
            if at_least { "at least " } else { "" }
        );
    } else {
        let _ = writeln!(text, "{total} entries{what}:");
        paths.iter().for_each(|path| {
            let _ = writeln!(text, "- {path}");
        });
        if more > 0 {
            let _ = writeln!(text, "- and {more} more");
        }
    }
    Ok(text.trim_end().to_owned())
}

/// Lists or counts what a file or a type defines.
pub(super) fn definitions(
    of: &str,
    count: bool,
    question: &Question,
    round: &Round,
    offered: Offered,
) -> Step {
    let is_path = question.paths.iter().any(|path| path == of);
    let known = Known::from_round(round);
    let calls = match round.batches.len() {
        0 if is_path => vec![outline(of)],
        0 => {
            let name = escape(of);
            let holders =
                format!(r"\b(?:impl|struct|enum|trait|class|interface|mod)\b.*\b{name}\b");
            vec![
                Call {
                    tool: "grep_search",
                    input: json!({ "pattern": holders }),
                },
                Call {
                    tool: "file_list",
                    input: json!({ "glob": format!("**/{}.*", of.to_lowercase()) }),
                },
            ]
        }
        1 if !is_path => holders(of, &known)
            .into_iter()
            .map(|path| outline(&path))
            .collect(),
        _ => Vec::new(),
    };
    let calls = fresh(calls, round, offered);
    if !calls.is_empty() {
        return Err(calls);
    }
    let kinds: Vec<Kind> = question
        .parts
        .iter()
        .flat_map(|part| part.kinds.clone())
        .collect();
    let wanted = |site: &&Site| {
        let inside = if is_path {
            site.path.contains(of)
        } else {
            site.parent.as_deref() == Some(of)
        };
        let kind = kinds.is_empty() || kinds.contains(&site.definition.kind);
        inside
            && kind
            && !site.in_tests
            && !matches!(
                site.definition.kind,
                Kind::Local | Kind::Block | Kind::Variant | Kind::Field
            )
    };
    let sites: Vec<&Site> = known.sites.iter().filter(wanted).collect();
    let word = if kinds.len() == 1 {
        kinds.first().map_or("definition", |kind| kind.word())
    } else {
        "definition"
    };
    if sites.is_empty() {
        let failed = round
            .batches
            .iter()
            .flatten()
            .find(|seen| seen.is_error)
            .map(|seen| format!(" ({})", seen.reason()));
        return Ok(format!(
            "{WHO}\n\nNo {word} was found in `{of}`{}.",
            failed.unwrap_or_default()
        ));
    }
    let mut text = format!(
        "{WHO}\n\n`{of}` has {} {word}{}.\n",
        sites.len(),
        if sites.len() == 1 { "" } else { "s" }
    );
    for site in sites.iter().filter(|_| !count) {
        let _ = writeln!(
            text,
            "- `{}:{}` `{}`",
            site.path,
            site.line,
            known
                .lines
                .get(&site.path, site.line)
                .unwrap_or_default()
                .trim()
        );
    }
    Ok(text.trim_end().to_owned())
}

fn holders(of: &str, known: &Known) -> Vec<String> {
    let mut paths: Vec<String> = known
        .sites
        .iter()
        .filter(|site| site.definition.name == of)
        .map(|site| site.path.clone())
        .collect();
    paths.dedup();
    paths.truncate(6);
    paths
}

/// Describes a file by its first lines and its definitions.
pub(super) fn about(path: &str, question: &Question, round: &Round, offered: Offered) -> Step {
    let calls = match round.batches.len() {
        0 => vec![read(path, 1, LEAD_LINES), outline(path)],
        1 if round.batches.iter().flatten().all(|seen| seen.is_error) => {
            let name = path.rsplit('/').next().unwrap_or(path);
            vec![
                Call {
                    tool: "file_list",
                    input: json!({ "glob": format!("**/{name}*") }),
                },
                top(),
            ]
        }
        _ => Vec::new(),
    };
    let calls = fresh(calls, round, offered);
    if !calls.is_empty() {
        return Err(calls);
    }
    let known = Known::from_round(round);
    let Some(file) = known.lines.files.get(path) else {
        let said = round
            .batches
            .iter()
            .flatten()
            .find(|seen| seen.is_error)
            .map(|seen| format!(": {}", seen.reason()))
            .unwrap_or_else(|| ".".to_owned());
        let near: Vec<String> = round
            .batches
            .iter()
            .flatten()
            .filter(|seen| seen.tool == "file_list" && !seen.is_error)
            .flat_map(|seen| listed(&seen.text))
            .map(|path| format!("- {path}"))
            .collect();
        let near = if near.is_empty() {
            String::new()
        } else {
            format!("\n\nThere are:\n{}", near.join("\n"))
        };
        return Ok(format!("{WHO}\n\n`{path}` could not be read{said}{near}"));
    };
    let mut text = format!("{WHO}\n\n");
    if !(is_prose(path) && introduced(&mut text, path, file)) {
        let _ = write!(text, "`{path}:1` begins so:\n\n");
        let lead = if is_prose(path) { 30 } else { 20 };
        quoted(
            &mut text,
            file.iter()
                .take(lead)
                .take_while(|(line, _)| **line <= LEAD_LINES)
                .map(|(line, shown)| (*line, shown.text.as_str())),
        );
    }
    let sites: Vec<&Site> = known
        .sites
        .iter()
        .filter(|s| s.path == path && s.definition.indent == 0 && !s.in_tests && !is_prose(path))
        .take(30)
        .collect();
    if !sites.is_empty() {
        text.push_str("It defines:\n");
        for site in sites {
            let _ = writeln!(
                text,
                "- `{path}:{}` `{}`",
                site.line,
                known.lines.get(path, site.line).unwrap_or_default().trim()
            );
        }
    }
    let others: Vec<String> = question
        .paths
        .iter()
        .filter(|other| *other != path)
        .map(|other| format!("`{other}`"))
        .collect();
    if !others.is_empty() {
        let _ = write!(text, "\nThe prompt also names {}.", others.join(", "));
    }
    Ok(text.trim_end().to_owned())
}

/// Writes the first heading of a text with its first paragraph, and the headings after it. Returns
/// whether the text has both.
fn introduced(text: &mut String, path: &str, file: &FileLines) -> bool {
    let lines: Vec<(u32, &str)> = file
        .iter()
        .take_while(|(line, _)| **line <= LEAD_LINES)
        .map(|(line, shown)| (*line, shown.text.as_str()))
        .collect();
    let is_heading = |line: &str| line.trim_start_matches('#').starts_with(' ');
    let is_heading = |line: &str| line.starts_with('#') && is_heading(line);
    let Some(heading) = lines.iter().position(|(_, line)| is_heading(line)) else {
        return false;
    };
    // Badges and HTML before the first sentence say nothing about the subject.
    let is_sentence =
        |line: &str| line.starts_with(|c: char| c.is_alphanumeric() || "*_`".contains(c));
    let after = lines.get(heading + 1..).unwrap_or_default();
    let Some(from) = after.iter().position(|(_, line)| is_sentence(line)) else {
        return false;
    };
    let after = after.get(from..).unwrap_or_default();
    let to = after
        .iter()
        .position(|(_, line)| line.trim().is_empty())
        .unwrap_or(after.len());
    let (paragraph, rest) = after.split_at_checked(to).unwrap_or((after, &[]));
    let first = lines.get(heading).copied().unwrap_or_default();
    let _ = write!(text, "`{path}:{}` is headed and begins so:\n\n", first.0);
    quoted(
        text,
        std::iter::once(first).chain(paragraph.iter().copied()),
    );
    let headings: Vec<_> = rest.iter().filter(|(_, line)| is_heading(line)).collect();
    if !headings.is_empty() {
        text.push_str("Its next headings:\n");
    }
    for (line, shown) in headings {
        let _ = writeln!(
            text,
            "- `{path}:{line}` {}",
            shown.trim_start_matches('#').trim()
        );
    }
    true
}
