//! Writes the answer: quotations with `path:line`, and no claim beyond them.

use std::{collections::BTreeSet, fmt::Write};

use super::{
    attribute::{self, Quote},
    definition::{Definition, Kind},
    known::Known,
    lines::{hits, listed},
    plan::lines_with_most_terms,
    question::{Part, Question, Wants},
    rank::{Ranked, has_word, is_prose, is_test, value_on},
    round::Round,
    sites::{Site, within},
};

/// The first line of every answer.
pub(super) const WHO: &str = "[offline model: rule-based and deterministic, no network; it searches and quotes, it does not reason]";

/// Lines of a quotation, at most.
const EXCERPT_LINES: u32 = 14;

/// A definition that scores below this is called a guess.
const GUESS: f64 = 1.2;

/// Further places that are listed after the best one.
const OTHERS_MAX: usize = 4;

/// Writes the answer to a search.
pub(super) fn found(question: &Question, round: &Round) -> String {
    let known = Known::from_round(round);
    let mut text = String::new();
    let mut answered: Option<(&Part, Vec<Site>)> = None;
    for part in &question.parts {
        match (&answered, part.refers) {
            (Some((first, sites)), true) => property(&mut text, part, first, sites, &known),
            _ if part.wants == Wants::Uses && !part.names.is_empty() => {
                uses(&mut text, part, round, &known)
            }
            _ => {
                if let Some(sites) = place(&mut text, part, question, &known) {
                    answered.get_or_insert((part, sites));
                }
            }
        }
    }
    if text.is_empty() {
        nothing(question, round)
    } else {
        format!("{WHO}\n\n{}", text.trim_end())
    }
}

/// Writes where the subject of a part is. Returns the places that later parts refer to.
fn place(text: &mut String, part: &Part, question: &Question, known: &Known) -> Option<Vec<Site>> {
    let ranked = known.ranked(part);
    let named_file = |site: &Site| {
        question.paths.is_empty()
            || question
                .paths
                .iter()
                .any(|path| site.path.contains(path.as_str()))
    };
    let prose = !question.paths.is_empty() && question.paths.iter().all(|path| is_prose(path));
    let mut ranked: Vec<Ranked> = if prose {
        Vec::new()
    } else {
        ranked.into_iter().filter(|r| named_file(&r.site)).collect()
    };
    if ranked.is_empty() {
        return lines_only(text, part, question, known).then(Vec::new);
    }
    // Quote one definition per name and place; fields and literals of the best one are in its
    // quotation.
    let mut seen = BTreeSet::new();
    ranked.retain(|r| seen.insert((r.site.path.clone(), r.site.line)));
    let best = ranked.first()?.score;
    let full: Vec<Ranked> = ranked
        .iter()
        .take(2)
        .enumerate()
        .filter(|(at, r)| *at == 0 || same_thing(&ranked, r))
        .map(|(_, r)| r.clone())
        .collect();
    if best < GUESS {
        let _ = writeln!(
            text,
            "Nothing fits \"{}\" well; the nearest is this.\n",
            part.text
        );
    }
    for Ranked { site, .. } in &full {
        let _ = writeln!(
            text,
            "{} {} is at `{}:{}`.\n",
            headed(&part.text),
            described(site),
            site.path,
            site.line
        );
        excerpt(text, site, known);
    }
    if part.wants == Wants::Value {
        values(text, &full, &ranked, known);
    }
    let others: Vec<&Ranked> = ranked
        .iter()
        .skip(full.len())
        .filter(|r| r.score > best * 0.6)
        .take(OTHERS_MAX)
        .collect();
    if !others.is_empty() {
        text.push_str("Also near:\n");
        for Ranked { site, .. } in others {
            let line = known.lines.get(&site.path, site.line).unwrap_or_default();
            let _ = writeln!(text, "- `{}:{}` `{}`", site.path, site.line, line.trim());
        }
        text.push('\n');
    }
    Some(full.into_iter().map(|ranked| ranked.site).collect())
}

/// Writes the values found at the places, or at the best place that has one.
fn values(text: &mut String, full: &[Ranked], ranked: &[Ranked], known: &Known) {
    let mut quotes: Vec<Quote> = full
        .iter()
        .flat_map(|ranked| attribute::figures(known, &ranked.site))
        .collect();
    let shown = |site: &Site| known.lines.get(&site.path, site.line).unwrap_or_default();
    if quotes.is_empty() && !full.iter().any(|ranked| value_on(shown(&ranked.site))) {
        let mut with_value: Vec<&Site> = ranked
            .iter()
            .map(|ranked| &ranked.site)
            .filter(|site| !site.in_tests && value_on(shown(site)))
            .take(20)
            .collect();
        with_value.sort_by_key(|site| {
            full.first()
                .is_none_or(|first| first.site.path != site.path)
        });
        let with_value = with_value.first();
        quotes.extend(with_value.map(|site| Quote {
            path: site.path.clone(),
            line: site.line,
            text: shown(site).to_owned(),
        }));
    }
    for quote in &quotes {
        let _ = writeln!(
            text,
            "- value: `{}:{}` `{}`",
            quote.path,
            quote.line,
            quote.text.trim()
        );
    }
    if !quotes.is_empty() {
        text.push('\n');
    }
}

/// Formats a part as the heading of its answer.
fn headed(part: &str) -> String {
    let first = part
        .split_whitespace()
        .next()
        .unwrap_or_default()
        .to_lowercase();
    let asks = [
        "what", "where", "which", "how", "who", "why", "when", "does", "is",
    ]
    .contains(&first.as_str());
    format!("{part}{}", if asks { "?" } else { ":" })
}

/// Whether the second best scores about as high and has the same name. The question then has two
/// answers.
fn same_thing(ranked: &[Ranked], second: &Ranked) -> bool {
    ranked.first().is_some_and(|first| {
        second.score > first.score * 0.85
            && second.site.definition.name == first.site.definition.name
    })
}

fn described(site: &Site) -> String {
    let Definition { kind, name, .. } = &site.definition;
    let inside = match &site.parent {
        Some(parent) if *kind != Kind::Block && parent != name => format!(" of `{parent}`"),
        _ => String::new(),
    };
    format!("the {} `{name}`{inside}", kind.word())
}

fn excerpt(text: &mut String, site: &Site, known: &Known) {
    let first = site.comment_from.max(site.line.saturating_sub(3));
    let last = site.body_to.min(site.line + EXCERPT_LINES);
    quoted(text, within(&known.lines, &site.path, first, last));
}

/// Writes numbered lines in a block. The fence is longer than the fences inside documentation
/// comments.
pub(super) fn quoted<'a>(text: &mut String, lines: impl Iterator<Item = (u32, &'a str)>) {
    text.push_str("````text\n");
    for (line, shown) in lines {
        let _ = writeln!(text, "{line:>5}  {shown}");
    }
    text.push_str("````\n\n");
}

/// Writes the value of a property of the places quoted before.
fn property(text: &mut String, part: &Part, first: &Part, sites: &[Site], known: &Known) {
    let quotes: Vec<Quote> = if part.terms.is_empty() && part.names.is_empty() {
        sites
            .iter()
            .flat_map(|site| attribute::figures(known, site))
            .collect()
    } else {
        sites
            .iter()
            .flat_map(|site| attribute::quotes(part, first, known, site))
            .collect()
    };
    if quotes.is_empty() {
        let _ = writeln!(
            text,
            "{} No line near the quoted ones shows it.\n",
            headed(&part.text)
        );
        return;
    }
    let _ = writeln!(text, "{}", headed(&part.text));
    for quote in quotes {
        let _ = writeln!(
            text,
            "- `{}:{}` `{}`",
            quote.path,
            quote.line,
            quote.text.trim()
        );
    }
    text.push('\n');
}

/// No definition fits: quotes the lines that contain most of the words.
fn lines_only(text: &mut String, part: &Part, question: &Question, known: &Known) -> bool {
    let mut lines = lines_with_most_terms(part, known);
    if !question.paths.is_empty() {
        let inside = |path: &str| {
            question
                .paths
                .iter()
                .any(|asked| path == asked || path.starts_with(&format!("{asked}/")))
        };
        lines.retain(|(path, _)| inside(path));
    }
    if lines.is_empty() {
        return false;
    }
    let _ = writeln!(
        text,
        "{} No definition fits, but these lines do.\n",
        headed(&part.text)
    );
    for (path, line) in lines {
        let _ = writeln!(text, "`{path}:{line}`\n");
        quoted(
            text,
            within(&known.lines, &path, line.saturating_sub(2), line + 4),
        );
    }
    true
}

/// Writes where a name is used.
fn uses(text: &mut String, part: &Part, round: &Round, known: &Known) {
    for name in &part.names {
        let mut places: Vec<(bool, Quote)> = Vec::new();
        for seen in round
            .batches
            .iter()
            .flatten()
            .filter(|seen| seen.tool == "grep_search" && !seen.is_error)
        {
            for hit in hits(&seen.text).filter(|hit| hit.matched && has_word(hit.text, &name.own)) {
                let defines = known.sites.iter().any(|s| {
                    s.path == hit.path && s.line == hit.line && s.definition.name == name.own
                });
                if !defines {
                    let lower = hit.path.to_lowercase();
                    let quote = Quote {
                        path: hit.path.to_owned(),
                        line: hit.line,
                        text: hit.text.to_owned(),
                    };
                    places.push((is_prose(&lower) || is_test(&lower), quote));
                }
            }
        }
        places.sort();
        places.dedup();
        let _ = writeln!(
            text,
            "`{}` is used on {} lines that were found:",
            name.own,
            places.len()
        );
        for (_, quote) in places.iter().take(12) {
            let _ = writeln!(
                text,
                "- `{}:{}` `{}`",
                quote.path,
                quote.line,
                quote.text.trim()
            );
        }
        if places.len() > 12 {
            let _ = writeln!(text, "- and {} more", places.len() - 12);
        }
        text.push('\n');
    }
}

fn nothing(question: &Question, round: &Round) -> String {
    let mut words: Vec<&str> = question
        .parts
        .iter()
        .flat_map(|part| &part.names)
        .map(|name| name.own.as_str())
        .collect();
    words.extend(
        question
            .parts
            .iter()
            .flat_map(|part| &part.terms)
            .map(|term| term.word.as_str()),
    );
    let mut text = format!("{WHO}\n\nNothing was found for: {}.", words.join(", "));
    let failed: Vec<&str> = round
        .batches
        .iter()
        .flatten()
        .filter(|seen| seen.is_error)
        .map(|seen| seen.text.lines().next().unwrap_or_default())
        .collect();
    if let Some(first) = failed.first() {
        let _ = write!(
            text,
            "\n{} tool call{} failed; the first said: {first}",
            failed.len(),
            if failed.len() == 1 { "" } else { "s" }
        );
    }
    let top = round.batches.iter().flatten().find(|seen| {
        seen.tool == "file_list"
            && seen
                .input
                .as_object()
                .is_some_and(serde_json::Map::is_empty)
    });
    if let Some(top) = top.filter(|seen| !seen.is_error) {
        text.push_str("\n\nThe folder holds:\n");
        listed(&top.text).take(40).for_each(|path| {
            let _ = writeln!(text, "- {path}");
        });
    }
    text.trim_end().to_owned()
}
