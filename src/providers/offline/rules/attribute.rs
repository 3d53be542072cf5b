//! Answers the second half of a question ("… and what is its cap?"): finds the line near a
//! definition that holds the property, and the line that gives it its value.

use std::collections::BTreeSet;

use super::{
    definition::Kind,
    known::Known,
    question::{Part, Question, Wants},
    rank::{Ranked, has_number, has_word, is_test, value_on},
    sites::{Site, is_comment},
    words::{Term, tokens},
};

/// Definitions of a part whose bodies are searched.
const SITES_MAX: usize = 3;

/// Names that one call looks up.
const NAMES_MAX: usize = 8;

/// A line to quote.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Quote {
    pub(super) path: String,
    pub(super) line: u32,
    pub(super) text: String,
}

/// Whether a part asks for a limit. Code expresses limits with `min` and `clamp` too.
fn bounds(part: &Part) -> bool {
    part.terms
        .iter()
        .any(|term| term.forms.iter().any(|form| form == "max" || form == "min"))
}

fn fits(terms: &[Term], text: &str) -> f64 {
    // `MAX` and `MIN` of a type are not limits of the subject.
    let words = tokens(&text.replace("::MAX", "").replace("::MIN", ""));
    terms
        .iter()
        .map(|term| term.fits_any(&words))
        .fold(0.0, f64::max)
}

/// The share of the terms, 0 to 1, that a name contains.
fn share(terms: &[Term], name: &str) -> f64 {
    let words = tokens(name);
    let total: f64 = terms.iter().map(|term| term.weight).sum();
    let met: f64 = terms
        .iter()
        .map(|term| term.weight * term.fits_any(&words))
        .sum();
    if total > 0.0 { met / total } else { 0.0 }
}

/// Identifiers: words with an underscore, or in capitals.
fn names_in(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| {
            let letters = word.chars().filter(|c| c.is_alphabetic()).count();
            letters > 2
                && (word.trim_matches('_').contains('_')
                    || word.chars().all(|c| c.is_uppercase() || c.is_ascii_digit()))
        })
}

/// Returns the names whose definitions are needed before a value can be quoted.
pub(super) fn names_to_resolve(
    question: &Question,
    known: &Known,
    ranked: &[Ranked],
) -> Vec<String> {
    let asking: Vec<&Part> = question
        .parts
        .iter()
        .filter(|part| part.wants == Wants::Value)
        .collect();
    let mut names = BTreeSet::new();
    for Ranked { site, .. } in ranked.iter().take(SITES_MAX).filter(|_| !asking.is_empty()) {
        let own = known
            .lines
            .get(&site.path, site.line)
            .map(|text| (site.line, text));
        for (_, text) in own.into_iter().chain(site.body(&known.lines)) {
            for name in names_in(text).filter(|name| *name != site.definition.name) {
                let shouted = !name.chars().any(char::is_lowercase);
                if asking.iter().any(|part| fits(&part.terms, name) > 0.0)
                    || (shouted && asking.iter().any(|part| !part.refers))
                {
                    names.insert(name.to_owned());
                }
            }
        }
    }
    names.into_iter().take(NAMES_MAX).collect()
}

/// Returns the lines that show the property of a site: first where it is applied, then where it
/// gets its value.
pub(super) fn quotes(part: &Part, first: &Part, known: &Known, site: &Site) -> Vec<Quote> {
    let quote = |site: &Site, line: u32, text: &str| Quote {
        path: site.path.clone(),
        line,
        text: text.to_owned(),
    };
    let mut applied: Vec<(f64, Quote)> = Vec::new();
    // The first line of a function names its parameters, not the limit that applies.
    let own = known
        .lines
        .get(&site.path, site.line)
        .filter(|text| value_on(text))
        .map(|text| (site.line, text));
    for (line, text) in own
        .into_iter()
        .chain(site.body(&known.lines))
        .filter(|(_, text)| !is_comment(text))
    {
        let bounding = bounds(part)
            && [".min(", ".max(", ".clamp(", "min(", "max("]
                .iter()
                .any(|call| text.contains(call));
        let said = fits(&part.terms, text);
        if said > 0.0 || bounding {
            let figure = if has_number(text) { 0.3 } else { 0.0 };
            let names = || names_in(text).filter(|name| fits(&part.terms, name) > 0.0);
            let shouted = names().any(|name| !name.chars().any(char::is_lowercase));
            let named =
                if names().next().is_some() { 0.6 } else { 0.0 } + if shouted { 0.2 } else { 0.0 };
            // A line that gives up limits the number of attempts, not the subject.
            let subject = 0.4 * fits(&first.terms, text);
            applied.push((
                said + figure + named + subject + if bounding { 0.5 } else { 0.0 },
                quote(site, line, text),
            ));
        }
    }
    applied.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.line.cmp(&b.1.line)));
    let mut quotes: Vec<Quote> = applied
        .into_iter()
        .map(|(_, quote)| quote)
        .take(1)
        .collect();
    let wanted: Vec<String> = quotes
        .iter()
        .flat_map(|quote| names_in(&quote.text))
        .filter(|name| fits(&part.terms, name) > 0.0)
        .map(str::to_owned)
        .collect();
    quotes.extend(
        wanted
            .iter()
            .filter_map(|name| value_of(name, known, &site.path)),
    );
    if !quotes.iter().any(|quote| value_on(&quote.text)) {
        let other = elsewhere(part, first, known, site);
        quotes.extend(other.filter(|quote| quotes.is_empty() || value_on(&quote.text)));
    }
    let mut seen = BTreeSet::new();
    quotes.retain(|quote| seen.insert((quote.path.clone(), quote.line)));
    quotes
}

/// Finds the line that gives `name` its value: a constant, else a field of a literal. Lines near
/// `path` come first.
pub(super) fn value_of(name: &str, known: &Known, path: &str) -> Option<Quote> {
    let mut found: Vec<(f64, Quote)> = Vec::new();
    for site in known
        .sites
        .iter()
        .filter(|site| site.definition.name == name && !site.in_tests && !is_test(&site.path))
    {
        let text = known.lines.get(&site.path, site.line).unwrap_or_default();
        if !value_on(text) || !has_word(text, name) {
            continue;
        }
        let kind = match site.definition.kind {
            Kind::Constant | Kind::Macro => 1.0,
            Kind::Field => 0.6,
            _ => 0.0,
        };
        let near = if site.path == path { 1.0 } else { 0.0 };
        found.push((
            kind + near,
            Quote {
                path: site.path.clone(),
                line: site.line,
                text: text.to_owned(),
            },
        ));
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    found.into_iter().map(|(_, quote)| quote).next()
}

/// For a property that the body does not mention: finds a definition named after the property,
/// preferably one that also names the subject.
fn elsewhere(part: &Part, first: &Part, known: &Known, site: &Site) -> Option<Quote> {
    let mut found: Vec<(f64, Quote)> = Vec::new();
    for other in known.sites.iter().filter(|other| {
        !other.in_tests && !is_test(&other.path) && other.definition.kind != Kind::Block
    }) {
        let asked = fits(&part.terms, &other.definition.name);
        if asked <= 0.0 || (other.path == site.path && other.line == site.line) {
            continue;
        }
        let text = known.lines.get(&other.path, other.line).unwrap_or_default();
        let subject = 2.0 * share(&first.terms, &other.definition.name);
        let near = if other.path == site.path { 0.8 } else { 0.0 };
        let value = if value_on(text) { 0.8 } else { 0.0 };
        if subject > 0.0 || near > 0.0 {
            found.push((
                asked + subject + near + value,
                Quote {
                    path: other.path.clone(),
                    line: other.line,
                    text: text.to_owned(),
                },
            ));
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    found.into_iter().map(|(_, quote)| quote).next()
}

/// Returns the numbers of a definition that answers a question for a value: on its own line, else
/// in its body.
pub(super) fn figures(known: &Known, site: &Site) -> Vec<Quote> {
    let quote = |line: u32, text: &str| Quote {
        path: site.path.clone(),
        line,
        text: text.to_owned(),
    };
    let own = known.lines.get(&site.path, site.line).unwrap_or_default();
    // The default of a value with a setter is where the field of that name gets its value.
    let mut quotes: Vec<Quote> = value_of(&site.definition.name, known, &site.path)
        .into_iter()
        .filter(|quote| quote.line != site.line)
        .collect();
    if !value_on(own) && quotes.is_empty() {
        let inner = site
            .body(&known.lines)
            .filter(|(_, text)| has_number(text) && !is_comment(text));
        quotes.extend(inner.take(2).map(|(line, text)| quote(line, text)));
    }
    let texts: Vec<String> = std::iter::once(own.to_owned())
        .chain(site.body(&known.lines).map(|(_, text)| text.to_owned()))
        .collect();
    let shouted = texts
        .iter()
        .flat_map(|text| names_in(text))
        .filter(|name| !name.chars().any(char::is_lowercase) && *name != site.definition.name);
    quotes.extend(
        shouted
            .filter_map(|name| value_of(name, known, &site.path))
            .take(2),
    );
    let mut seen = BTreeSet::new();
    quotes.retain(|quote| seen.insert((quote.path.clone(), quote.line)));
    quotes
}
