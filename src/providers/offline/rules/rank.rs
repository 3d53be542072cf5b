//! Scores how well a definition answers a part of a question. Pure arithmetic: the same input gives
//! the same order.

use super::{
    definition::Kind,
    lines::Lines,
    question::{Part, Wants},
    sites::{Site, is_comment, within},
    words::tokens,
};

/// A site and its score.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ranked {
    pub(super) site: Site,
    pub(super) score: f64,
}

/// The weight of each term, by its index in the part. Rare words weigh more.
pub(super) type Weights = Vec<f64>;

/// Sorts sites by score, best first. Sites that score nothing are left out.
pub(super) fn rank(part: &Part, weights: &Weights, lines: &Lines, sites: &[Site]) -> Vec<Ranked> {
    let mut ranked: Vec<Ranked> = sites
        .iter()
        .map(|site| Ranked {
            score: score(part, weights, lines, site),
            site: site.clone(),
        })
        .filter(|ranked| ranked.score > 0.0)
        .collect();
    ranked.sort_by(|a, b| {
        b.score
            .total_cmp(&a.score)
            .then_with(|| a.site.path.len().cmp(&b.site.path.len()))
            .then_with(|| a.site.path.cmp(&b.site.path))
            .then(a.site.line.cmp(&b.site.line))
    });
    ranked
}

/// Weighs the terms: a term that names many definitions weighs little.
pub(super) fn weights(part: &Part, sites: &[Site]) -> Weights {
    let names: Vec<Vec<String>> = sites
        .iter()
        .map(|site| tokens(&site.definition.name))
        .collect();
    let weigh = |term: &super::words::Term| {
        // Related words count half: a word whose relatives name everything ("make": `new`) finds
        // nothing useful.
        let count: f64 = names
            .iter()
            .map(|name| term.fits_any(name))
            .map(|fit| if fit > 0.9 { 1.0 } else { fit * 0.7 })
            .sum();
        let rarity = 1.0 / (1.0 + (count / 12.0).ln_1p());
        rarity * term.weight
    };
    part.terms.iter().map(weigh).collect()
}

fn score(part: &Part, weights: &Weights, lines: &Lines, site: &Site) -> f64 {
    let by_names = by_names(part, lines, site);
    let by_terms = by_terms(part, weights, lines, site);
    if by_names <= 0.0 && by_terms <= 0.0 {
        return 0.0;
    }
    let both =
        if !part.names.is_empty() && !part.terms.is_empty() && by_names > 0.0 && by_terms > 0.0 {
            0.5
        } else {
            0.0
        };
    by_names
        + by_terms
        + both
        + by_kind(part, site)
        + by_place(part, site)
        + by_value(part, lines, site)
}

fn by_names(part: &Part, lines: &Lines, site: &Site) -> f64 {
    let mut sum = 0.0;
    for name in &part.names {
        let own = site.definition.name == name.own;
        let parent = site.parent.as_deref();
        sum += if own {
            let right_parent = name.parent.as_deref().is_some_and(|asked| {
                parent == Some(asked) || site.path.contains(&asked.to_lowercase())
            });
            // In a question with words, a name often says only where to look.
            let base = if part.terms.is_empty() { 5.0 } else { 2.2 };
            base + if right_parent { 1.5 } else { 0.0 }
        } else if site.definition.name.eq_ignore_ascii_case(&name.own) {
            1.5
        } else if parent == Some(name.own.as_str()) {
            if part.terms.is_empty() { 0.3 } else { 1.8 }
        } else if lines
            .get(&site.path, site.line)
            .is_some_and(|line| has_word(line, &name.own))
        {
            0.7
        } else if site
            .comment(lines)
            .chain(site.body(lines))
            .any(|(_, text)| has_word(text, &name.own))
            || site
                .path
                .to_lowercase()
                .contains(&tokens(&name.own).join("_"))
        {
            0.5
        } else {
            0.0
        };
    }
    sum
}

/// Whether `word` stands in `text` as a whole word.
pub(super) fn has_word(text: &str, word: &str) -> bool {
    let letter = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        !text
            .get(..at)
            .is_some_and(|before| before.ends_with(letter))
            && !text
                .get(at + word.len()..)
                .is_some_and(|after| after.starts_with(letter))
    })
}

fn by_terms(part: &Part, weights: &Weights, lines: &Lines, site: &Site) -> f64 {
    let total: f64 = weights.iter().sum();
    if total <= 0.0 {
        return 0.0;
    }
    let name = tokens(&site.definition.name);
    let line = lines
        .files
        .get(&site.path)
        .and_then(|file| file.get(&site.line))
        .map_or(&[][..], |line| &line.words);
    let parent = site.parent.as_deref().map(tokens).unwrap_or_default();
    let (file, folders) = site.path_tokens();
    let (comment, body) = site.words_around(lines);
    let (lead, rest) = comment.split_at(comment.len().min(3));
    let mut sum = 0.0;
    let mut met = 0.0;
    for (term, weight) in part.terms.iter().zip(weights) {
        let among = |texts: &[&[String]]| {
            texts
                .iter()
                .map(|text| term.fits_any(text))
                .fold(0.0, f64::max)
        };
        let mut evidence = [
            3.0 * term.fits_any(&name),
            1.3 * term.fits_any(line),
            1.9 * among(lead),
            1.1 * among(rest),
            1.4 * term.fits_any(&parent),
            1.2 * term.fits_any(&file),
            0.5 * term.fits_any(&folders),
            0.8 * among(&body),
        ];
        evidence.sort_by(|a, b| b.total_cmp(a));
        let [best, second, third, ..] = evidence;
        sum += weight * (best + 0.3 * second + 0.15 * third);
        // The confidence that the term occurs at all.
        met += weight * (best / 1.5).min(1.0);
    }
    let covered = met / total;
    let fitting = name
        .iter()
        .filter(|token| part.terms.iter().any(|term| term.fits(token) > 0.0))
        .count();
    let exact = if name.is_empty() {
        0.0
    } else {
        fitting as f64 / name.len() as f64
    };
    sum / total * (0.35 + 0.65 * covered * covered) + 0.7 * exact * covered
}

fn by_kind(part: &Part, site: &Site) -> f64 {
    let kind = site.definition.kind;
    if !part.kinds.is_empty() {
        let alike = |asked: &Kind| {
            *asked == kind
                || matches!(
                    (asked, kind),
                    (Kind::Type, Kind::Trait)
                        | (Kind::Constant, Kind::Field)
                        | (Kind::Type, Kind::Variant)
                )
        };
        return if part.kinds.iter().any(alike) {
            0.7
        } else {
            -0.7
        };
    }
    match (part.wants, kind) {
        (Wants::Value, Kind::Constant) => 0.8,
        (Wants::Value, Kind::Field) => 0.4,
        (Wants::Value, Kind::Function) => -0.3,
        (_, Kind::Function | Kind::Type | Kind::Trait | Kind::Macro | Kind::Constant) => 0.2,
        (_, Kind::Module) => -0.4,
        (_, Kind::Variant) => 0.0,
        (_, Kind::Block) => -0.6,
        (_, Kind::Field) => -0.3,
        (_, Kind::Local) => -0.7,
    }
}

fn by_place(part: &Part, site: &Site) -> f64 {
    let path = site.path.to_lowercase();
    let mut sum = if site.definition.public { 0.15 } else { 0.0 };
    if !part.tests && (site.in_tests || is_test(&path)) {
        sum -= 1.4;
    }
    if is_prose(&path) {
        sum -= 3.0;
    }
    // Settings files share many words with the source, and questions rarely mean them.
    if is_settings(&path) {
        sum -= 1.2;
    }
    sum - path.len() as f64 * 0.002
}

/// Whether a path belongs to tests, benches or examples.
pub(super) fn is_test(path: &str) -> bool {
    path.split('/').any(|piece| {
        let stem = piece.split('.').next().unwrap_or(piece);
        matches!(
            stem,
            "tests"
                | "test"
                | "benches"
                | "bench"
                | "examples"
                | "example"
                | "fuzz"
                | "testing"
                | "fixtures"
        ) || stem.ends_with("_test")
            || stem.ends_with("_tests")
            || stem.starts_with("test_")
    })
}

/// Whether a path holds prose or data instead of source code.
pub(super) fn is_prose(path: &str) -> bool {
    [
        ".md", ".lock", ".txt", ".json", ".html", ".svg", ".csv", ".rst",
    ]
    .iter()
    .any(|ending| path.ends_with(ending))
}

fn is_settings(path: &str) -> bool {
    [".toml", ".yaml", ".yml"]
        .iter()
        .any(|ending| path.ends_with(ending))
}

fn by_value(part: &Part, lines: &Lines, site: &Site) -> f64 {
    if part.wants != Wants::Value {
        return 0.0;
    }
    let line = lines.get(&site.path, site.line).unwrap_or_default();
    if value_on(line) {
        return 0.9;
    }
    if matches!(site.definition.kind, Kind::Constant | Kind::Field) {
        return -0.6;
    }
    let near = site.definition.kind == Kind::Function
        && within(
            lines,
            &site.path,
            site.line + 1,
            site.body_to.min(site.line + 6),
        )
        .any(|(_, text)| has_number(text));
    if near { 0.3 } else { -0.4 }
}

/// Whether a line assigns a literal value.
pub(super) fn value_on(line: &str) -> bool {
    let Some(at) = line.find(['=', ':', '(']) else {
        return false;
    };
    !is_comment(line) && line.get(at..).is_some_and(has_number)
}

/// Whether a text holds a number that is not part of a name.
pub(super) fn has_number(text: &str) -> bool {
    let mut before = ' ';
    text.chars().any(|c| {
        let number = c.is_ascii_digit() && !before.is_alphanumeric() && before != '_';
        before = c;
        number
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::offline::rules::{lines::Line, question::Question, sites::sites};

    fn known(files: &[(&str, &str)]) -> Lines {
        let file = |text: &str| {
            text.lines()
                .enumerate()
                .map(|(at, line)| (at as u32 + 1, Line::from_text(line)))
                .collect()
        };
        Lines {
            files: files
                .iter()
                .map(|(path, text)| ((*path).to_owned(), file(text)))
                .collect(),
        }
    }

    #[test]
    fn the_definition_asked_for_comes_first() {
        let lines = known(&[
            (
                "docs/retry.md",
                "# The retry delay\nfn retry_delay is described here\n",
            ),
            (
                "src/policy/retry.rs",
                "/// The pause before the next try of a failed call.\npub fn delay(attempt: u32) -> u64 {\n    (BASE << attempt).min(DELAY_MAX)\n}\nconst DELAY_MAX: u64 = 60;\n",
            ),
            (
                "src/ui.rs",
                "/// Redraws after a delay.\nfn redraw_delay() {}\nstruct DelayBar;\nfn retry_button() {}\n",
            ),
            ("tests/retry.rs", "fn retry_delay_doubles() {}\n"),
            (
                "src/buffer.rs",
                "impl Buffer {\n    /// Splits the buffer in two at the given index.\n    pub fn split_off(&mut self, at: usize) {}\n    pub fn len(&self) -> usize { 0 }\n}\npub struct Buffer {}\n",
            ),
            (
                "src/limits.rs",
                "pub const CHANNEL_CAPACITY: usize = 64;\nfn channel() {}\nfn capacity() {}\n",
            ),
        ]);
        for (question, expected) in [
            (
                "Where is the retry delay computed?",
                ("src/policy/retry.rs", 2),
            ),
            ("Where is `Buffer` defined?", ("src/buffer.rs", 6)),
            (
                "Which function splits a buffer at an index?",
                ("src/buffer.rs", 3),
            ),
            ("Where does Buffer tell its length?", ("src/buffer.rs", 4)),
            ("What is the capacity of the channel?", ("src/limits.rs", 1)),
            ("Which test covers the retry delay?", ("tests/retry.rs", 1)),
        ] {
            let question = Question::read(question);
            let sites = sites(&lines);
            let part = &question.parts[0];

            let ranked = rank(part, &weights(part, &sites), &lines, &sites);

            let first = ranked.first().map(|r| (r.site.path.as_str(), r.site.line));
            assert_eq!(first, Some(expected), "{question:?}\n{ranked:#?}");
        }
    }
}
