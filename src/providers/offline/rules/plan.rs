//! Plans the next tool calls from the question and the known lines: three batches at most, and no
//! call twice.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{
    attribute,
    definition::{KEYWORDS, OUTLINE},
    known::Known,
    lines::Line,
    question::{Part, Question, Wants},
    rank::{Ranked, is_prose, is_test, weights},
    round::{Offered, Round, Seen},
    sites::is_comment,
    words::{Term, escape},
};

/// A tool call to make.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Call {
    pub(super) tool: &'static str,
    pub(super) input: Value,
}

/// Batches in a round: search, look closer, follow up.
pub(super) const BATCHES_MAX: usize = 3;

/// Calls in a batch: as many as a host runs at once without queueing.
const CALLS_MAX: usize = 14;

/// Files whose outline one batch requests.
const OUTLINES_MAX: usize = 6;

/// Definitions of a part that one batch reads.
const READS_MAX: usize = 4;

/// Lines read before and after a definition.
const BEFORE: u32 = 30;
const AFTER: u32 = 70;

/// Files of source code. Without this filter, prose would outnumber the matches in code.
const SOURCE: &str = "**/*.{rs,py,js,jsx,ts,tsx,go,java,kt,c,h,cc,cpp,hpp,cs,rb,php,swift,scala,sh,sql,lua,zig,toml,yaml,yml}";

/// Letters and borders of a name, in ASCII: automata for Unicode classes are a hundred times
/// larger.
const LETTERS: &str = "[0-9A-Za-z_]*";
const BORDER: &str = r"(?-u:\b)";

fn grep(pattern: String) -> Call {
    Call {
        tool: "grep_search",
        input: json!({ "pattern": pattern }),
    }
}

fn grep_source(pattern: String) -> Call {
    Call {
        tool: "grep_search",
        input: json!({ "pattern": pattern, "glob": SOURCE }),
    }
}

/// Requests the outline of a file.
pub(super) fn outline(path: &str) -> Call {
    Call {
        tool: "grep_search",
        input: json!({ "pattern": OUTLINE, "path": path }),
    }
}

/// Requests `count` lines of a file from `first` on.
pub(super) fn read(path: &str, first: u32, count: u32) -> Call {
    Call {
        tool: "file_read",
        input: json!({ "path": path, "offset": first.max(1), "limit": count }),
    }
}

/// Requests the top of the folder.
pub(super) fn top() -> Call {
    Call {
        tool: "file_list",
        input: json!({}),
    }
}

/// Returns the next batch of a search; empty when it is time to answer.
pub(super) fn next(question: &Question, round: &Round, offered: Offered) -> Vec<Call> {
    let done = round.batches.len();
    if done >= BATCHES_MAX {
        return Vec::new();
    }
    let calls = if done == 0 {
        first(question)
    } else {
        let known = Known::from_round(round);
        if done == 1 && known.lines.files.is_empty() {
            looser(question)
        } else {
            closer(question, &known)
        }
    };
    fresh(calls, round, offered)
}

/// Drops calls that were made before or whose tool is not offered.
pub(super) fn fresh(calls: Vec<Call>, round: &Round, offered: Offered) -> Vec<Call> {
    let before: Vec<&Seen> = round.batches.iter().flatten().collect();
    let mut kept: Vec<Call> = Vec::new();
    for call in calls {
        let may = match call.tool {
            "grep_search" => offered.grep,
            "file_list" => offered.list,
            _ => offered.read,
        };
        let again = before
            .iter()
            .any(|seen| seen.tool == call.tool && seen.input == call.input)
            || kept.contains(&call);
        if may && !again && kept.len() < CALLS_MAX {
            kept.push(call);
        }
    }
    kept
}

/// Searches for definitions of the names, for definitions named after the words, and for lines that
/// contain several of them.
fn first(question: &Question) -> Vec<Call> {
    let mut calls = Vec::new();
    let names: Vec<&str> = question
        .parts
        .iter()
        .flat_map(|part| &part.names)
        .map(|name| name.own.as_str())
        .take(3)
        .collect();
    for name in &names {
        let name = escape(name);
        calls.push(grep(format!(
            r"\b{KEYWORDS}\s+(?:mut\s+)?(?:\([^)]*\)\s*)?{name}\b|^\s*(?:pub(?:\([^)]*\))?\s+)?{name}\s*(?:=[^=]|:\s)|#define\s+{name}\b|\bimpl\b.*\b{name}\b.*\{{"
        )));
    }
    for part in &question.parts {
        if part.wants == Wants::Uses {
            part.names
                .iter()
                .take(2)
                .for_each(|name| calls.push(grep(format!(r"\b{}\b", escape(&name.own)))));
        }
    }
    let terms = lead(question);
    let meeting = meet(&terms, LETTERS);
    if let Some(meeting) = &meeting {
        calls.push(grep_source(format!(
            r"(?i){BORDER}{KEYWORDS} +(?:mut +)?{LETTERS}(?:{meeting})"
        )));
    }
    if let Some(meeting) = meet(&terms, ".*") {
        calls.push(grep_source(format!("(?i){meeting}")));
    }
    if !names.is_empty() && !terms.is_empty() {
        let any = terms
            .iter()
            .map(|term| term.pattern())
            .collect::<Vec<_>>()
            .join("|");
        let names = names
            .iter()
            .map(|name| escape(name))
            .collect::<Vec<_>>()
            .join("|");
        calls.push(grep_source(format!(
            r"(?i){BORDER}(?:{names}){BORDER}.*(?:{any})|(?:{any}).*{BORDER}(?:{names}){BORDER}"
        )));
    }
    for term in terms.iter().take(5) {
        calls.push(grep_source(format!(
            r"(?i){BORDER}{KEYWORDS} +(?:mut +)?{LETTERS}{}",
            term.pattern()
        )));
    }
    if question.parts.iter().any(|part| part.wants == Wants::Value) && !terms.is_empty() {
        let any = terms
            .iter()
            .filter(|term| !term.weak || terms.len() == 1)
            .map(|term| term.pattern())
            .collect::<Vec<_>>()
            .join("|");
        if !any.is_empty() {
            calls.push(grep_source(format!(
                r"(?i)(?:{any}){LETTERS}{BORDER}[^=:(]*(?::[^=]*)?[=:(] *[^ ]*{BORDER}[0-9]"
            )));
        }
    }
    for path in question.paths.iter().take(2) {
        let any = terms
            .iter()
            .map(|term| term.pattern())
            .chain(names.iter().map(|name| escape(name)))
            .collect::<Vec<_>>()
            .join("|");
        if !any.is_empty() {
            calls.push(Call {
                tool: "grep_search",
                input: json!({ "pattern": format!("(?i){any}"), "path": path, "context": 2 }),
            });
        }
    }
    let files: Vec<&str> = terms
        .iter()
        .flat_map(|term| term.forms.iter().take(1))
        .map(String::as_str)
        .filter(|form| form.len() > 2)
        .collect();
    if !files.is_empty() {
        calls.push(Call {
            tool: "file_list",
            input: json!({ "glob": format!("**/*{{{}}}*.*", files.join(",")) }),
        });
    }
    calls
}

/// Returns the terms of all parts that lead the search.
fn lead(question: &Question) -> Vec<&Term> {
    let mut terms: Vec<&Term> = Vec::new();
    for term in question
        .parts
        .iter()
        .flat_map(|part| &part.terms)
        .filter(|term| !term.is_faint())
    {
        if !terms
            .iter()
            .any(|known| known.forms.first() == term.forms.first())
        {
            terms.push(term);
        }
    }
    terms.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    terms.truncate(6);
    terms
}

/// Returns a pattern for two different terms on one line, in either order.
fn meet(terms: &[&Term], between: &str) -> Option<String> {
    let mut pairs = Vec::new();
    for (at, a) in terms.iter().enumerate() {
        for b in terms
            .iter()
            .skip(at + 1)
            .filter(|b| !(a.weak && b.weak && terms.len() > 2))
        {
            let a = a.pattern();
            let b = b.pattern();
            pairs.push(format!("{a}{between}{b}|{b}{between}{a}"));
        }
    }
    (!pairs.is_empty()).then(|| pairs.join("|"))
}

/// After a search without matches: searches for any single word, and lists the folder.
fn looser(question: &Question) -> Vec<Call> {
    let mut calls: Vec<Call> = lead(question)
        .iter()
        .take(5)
        .map(|term| grep(format!("(?i){}", term.pattern())))
        .collect();
    for name in question.parts.iter().flat_map(|part| &part.names).take(3) {
        calls.push(grep(format!("(?i){}", escape(&name.own))));
    }
    calls.push(top());
    calls
}

/// Requests outlines of the most promising files, windows around the best definitions, and
/// definitions of the names that limits and values refer to.
fn closer(question: &Question, known: &Known) -> Vec<Call> {
    let mut reads = Vec::new();
    let mut outlines = Vec::new();
    let mut follow = Vec::new();
    for part in question.parts.iter().filter(|part| !part.refers) {
        let ranked = known.ranked(part);
        for Ranked { site, .. } in ranked.iter().take(READS_MAX) {
            let last = site.line + if site.body_to > site.line { 4 } else { 8 };
            if !known
                .lines
                .knows(&site.path, site.line.saturating_sub(6).max(1), last)
            {
                reads.push(read(
                    &site.path,
                    site.line.saturating_sub(BEFORE),
                    BEFORE + AFTER,
                ));
            }
        }
        for path in promising(part, known, &ranked) {
            outlines.push(outline(&path));
        }
        for (path, line) in lines_with_most_terms(part, known) {
            if !known
                .lines
                .knows(&path, line.saturating_sub(3).max(1), line + 8)
            {
                reads.push(read(
                    &path,
                    line.saturating_sub(BEFORE / 2),
                    BEFORE + AFTER / 2,
                ));
            }
        }
        let wanted = attribute::names_to_resolve(question, known, &ranked);
        if !wanted.is_empty() {
            let names = wanted
                .iter()
                .map(|name| escape(name))
                .collect::<Vec<_>>()
                .join("|");
            follow.push(grep_source(format!(
                r"\b(?:{names})\b\s*(?::[^=:][^=]*)?(?:=[^=>]|:\s)"
            )));
        }
    }
    follow.into_iter().chain(reads).chain(outlines).collect()
}

/// Returns the files with the most evidence: their best definitions, and lines that contain several
/// terms.
fn promising(part: &Part, known: &Known, ranked: &[Ranked]) -> Vec<String> {
    let mut files: BTreeMap<&str, f64> = BTreeMap::new();
    for Ranked { site, score } in ranked.iter().take(12) {
        let best = files.entry(&site.path).or_default();
        *best = best.max(*score);
    }
    let weights = weights(part, &known.sites);
    for (path, file) in &known.lines.files {
        let mut met: BTreeSet<usize> = BTreeSet::new();
        let mut most = 0.0_f64;
        for Line { words, .. } in file.values() {
            let on_line: Vec<usize> = part
                .terms
                .iter()
                .enumerate()
                .filter(|(_, term)| term.fits_any(words) > 0.0)
                .map(|(at, _)| at)
                .collect();
            most = most.max(on_line.iter().filter_map(|at| weights.get(*at)).sum());
            met.extend(on_line);
        }
        let all: f64 = met.iter().filter_map(|at| weights.get(*at)).sum();
        *files.entry(path).or_default() += most + 0.5 * all;
    }
    let lower = |path: &str| path.to_lowercase();
    for (path, score) in &mut files {
        let path = lower(path);
        if is_prose(&path) || (is_test(&path) && !part.tests) {
            *score *= 0.3;
        }
    }
    let mut files: Vec<(&str, f64)> = files
        .into_iter()
        .filter(|(path, _)| !is_prose(&lower(path)))
        .collect();
    files.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
    files
        .into_iter()
        .take(OUTLINES_MAX)
        .map(|(path, _)| path.to_owned())
        .collect()
}

/// Returns the lines that contain most of the words, source before prose.
pub(super) fn lines_with_most_terms(part: &Part, known: &Known) -> Vec<(String, u32)> {
    let weights = weights(part, &known.sites);
    let mut scored: Vec<(f64, &str, u32)> = Vec::new();
    for (path, file) in &known.lines.files {
        let lower = path.to_lowercase();
        let aside = is_prose(&lower) || (is_test(&lower) && !part.tests);
        for (&line, Line { text, words }) in file {
            let score: f64 = part
                .terms
                .iter()
                .zip(&weights)
                .map(|(term, weight)| weight * term.fits_any(words))
                .sum();
            let comment = if is_comment(text) { 0.1 } else { 0.0 };
            if score > 0.0 {
                scored.push((score + comment - if aside { 1.0 } else { 0.0 }, path, line));
            }
        }
    }
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)).then(a.2.cmp(&b.2)));
    let mut kept: Vec<(String, u32)> = Vec::new();
    for (_, path, line) in scored {
        if !kept
            .iter()
            .any(|(known, at)| known == path && at.abs_diff(line) < 40)
        {
            kept.push((path.to_owned(), line));
        }
        if kept.len() >= 3 {
            break;
        }
    }
    kept
}
