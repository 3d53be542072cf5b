//! Parses a question: its parts, the identifiers and words in each, and the kind of answer each
//! asks for. Pure.

use super::{
    definition::Kind,
    diff,
    words::{Term, is_stop, tokens},
};

/// Terms of a part that lead the search. More would dilute it.
const TERMS_MAX: usize = 7;

/// How the rules answer a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Intent {
    /// Nothing to search for: a greeting or an empty prompt.
    Talk,
    /// File names, perhaps of one kind.
    ListFiles { glob: Option<String>, count: bool },
    /// The definitions in a file or of a type.
    ListDefinitions { of: String, count: bool },
    /// What a file contains or does.
    AboutFile { path: String },
    /// Places and values in the files.
    Find,
}

/// The kind of answer that a part asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wants {
    /// Where something is.
    Place,
    /// What a figure or setting is.
    Value,
    /// Where a name is used.
    Uses,
}

/// One part of a question: "Where is X, and what is its cap?" has two.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Part {
    pub(super) text: String,
    pub(super) wants: Wants,
    pub(super) names: Vec<Name>,
    pub(super) terms: Vec<Term>,
    pub(super) kinds: Vec<Kind>,
    /// Whether it refers to the part before it (`its`, `it`).
    pub(super) refers: bool,
    /// Whether it asks for tests.
    pub(super) tests: bool,
}

/// An identifier: `parent::own` or `own`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) own: String,
    pub(super) parent: Option<String>,
}

/// A prompt, split into its parts.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Question {
    pub(super) intent: Intent,
    pub(super) parts: Vec<Part>,
    /// Files that the prompt names.
    pub(super) paths: Vec<String>,
}

const ENDINGS: &[(&str, &str)] = &[
    ("rust", "rs"),
    ("python", "py"),
    ("javascript", "js"),
    ("typescript", "ts"),
    ("go", "go"),
    ("java", "java"),
    ("markdown", "md"),
    ("toml", "toml"),
    ("json", "json"),
    ("yaml", "yaml"),
    ("sql", "sql"),
    ("html", "html"),
    ("css", "css"),
    ("c", "c"),
    ("cpp", "cpp"),
    ("shell", "sh"),
    ("text", "txt"),
];

const FILE_ENDINGS: &str = "rs py js ts tsx jsx go java c h cc cpp hpp md toml json yaml yml txt sql html css sh rb kt swift cs php lock xml cfg ini lua zig";

impl Question {
    /// Parses a prompt.
    pub(super) fn read(prompt: &str) -> Self {
        let (prompt, diff) = diff::apart(prompt);
        let mut paths = paths(prompt);
        for path in diff::files(diff) {
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
        let mut parts: Vec<Part> = Vec::new();
        for text in split(prompt) {
            let part = Part::read(text, &paths, parts.is_empty());
            if !part.is_empty() {
                parts.push(part);
            } else if let Some(before) = parts
                .last_mut()
                .filter(|before| part.wants == Wants::Value && before.wants == Wants::Place)
            {
                // "… and what is its value?" asks about the same subject again: answer both with
                // its value.
                before.wants = Wants::Value;
            }
        }
        if let Some(first) = parts.first_mut() {
            first.refers = false;
        }
        let intent = intent(prompt, &parts, &paths);
        Self {
            intent,
            parts,
            paths,
        }
    }
}

impl Part {
    fn read(text: &str, paths: &[String], first: bool) -> Self {
        let names = names(text, paths);
        let lower = text.to_lowercase();
        let words = tokens(&without(text, &names, paths));
        let has = |word: &str| words.iter().any(|w| w == word);
        let kinds: Vec<Kind> = words
            .iter()
            .filter_map(|word| Kind::from_word(word))
            .collect();
        let uses = lower.contains(" used")
            || lower.contains("who calls")
            || lower.contains("usages")
            || lower.contains("callers of")
            || lower.contains("references to")
            || lower.contains("called from")
            || lower.contains("what calls");
        let place = has("where") || has("which");
        let figure = [
            "value", "default", "many", "long", "big", "large", "much", "limit", "cap", "maximum",
            "minimum", "max", "size",
        ];
        let asks_figure =
            figure.iter().any(|word| has(word)) && (has("what") || has("how") || has("value"));
        let wants = if uses && (place || !has("how")) {
            Wants::Uses
        } else if asks_figure && !(place && first && !has("value")) {
            Wants::Value
        } else {
            Wants::Place
        };
        let mut terms: Vec<Term> = Vec::new();
        for word in words
            .iter()
            .filter(|word| word.chars().count() > 1 && !is_stop(word))
        {
            // The kind that is asked for is not a term of the search, unless there is no other.
            if Kind::from_word(word).is_some() || word.chars().all(|c| c.is_ascii_digit()) {
                continue;
            }
            let term = Term::from_word(word);
            if !terms
                .iter()
                .any(|known| known.forms.first() == term.forms.first())
            {
                terms.push(term);
            }
        }
        if terms.is_empty() && names.is_empty() {
            terms = words
                .iter()
                .filter(|word| Kind::from_word(word).is_some())
                .map(|word| Term::from_word(word))
                .collect();
        }
        if terms.len() > TERMS_MAX {
            terms.sort_by(|a, b| b.weight.total_cmp(&a.weight));
            terms.truncate(TERMS_MAX);
        }
        let refers = ["its", "it", "their", "they", "that", "this"]
            .iter()
            .any(|word| has(word))
            || text.trim().is_empty();
        let tests = words.iter().any(|word| word == "test" || word == "tests");
        Self {
            text: text.trim().to_owned(),
            wants,
            names,
            terms,
            kinds,
            refers,
            tests,
        }
    }

    fn is_empty(&self) -> bool {
        self.names.is_empty() && self.terms.iter().all(Term::is_faint)
    }
}

/// Splits a prompt into its questions.
fn split(prompt: &str) -> Vec<&str> {
    const BORDERS: &[&str] = &[
        "? ",
        "?\n",
        "; ",
        ". ",
        "\n",
        ", and ",
        " and what ",
        " and how ",
        " and where ",
        " and which ",
        " and who ",
        " and why ",
        ", what ",
        ", how ",
        ", where ",
        ", which ",
    ];
    let mut parts = Vec::new();
    let mut rest = prompt;
    let mut from = 0;
    while let Some((at, border)) = BORDERS
        .iter()
        .filter_map(|border| find_from(rest, border, from).map(|at| (at, *border)))
        .min_by_key(|(at, border)| (*at, border.len()))
    {
        // The question word belongs to the part that follows.
        let keep = border
            .trim_start_matches([',', ' '])
            .trim_start_matches("and ")
            .len();
        let cut = at + border.len()
            - if border.contains("wh") || border.contains("how") {
                keep
            } else {
                0
            };
        // A comma before a list does not separate questions: the part after it must ask something.
        if border == ", and " && !asks(rest.get(cut..).unwrap_or_default()) {
            from = cut;
            continue;
        }
        parts.push(rest.get(..at).unwrap_or_default());
        (rest, from) = (rest.get(cut..).unwrap_or_default(), 0);
    }
    parts.push(rest);
    parts
        .into_iter()
        .map(|part| part.trim_matches(|c: char| c.is_whitespace() || c == '?'))
        .filter(|part| !part.is_empty())
        .collect()
}

fn find_from(text: &str, pattern: &str, from: usize) -> Option<usize> {
    text.get(from..)?.find(pattern).map(|at| at + from)
}

fn asks(text: &str) -> bool {
    let first = text
        .split_whitespace()
        .next()
        .unwrap_or_default()
        .to_lowercase();
    [
        "what", "where", "how", "which", "who", "why", "when", "is", "does", "do", "tell", "show",
    ]
    .contains(&first.as_str())
}

fn trimmed(word: &str) -> &str {
    word.trim_matches(|c: char| {
        matches!(
            c,
            '"' | '\'' | '`' | ',' | ';' | '?' | '!' | '(' | ')' | '[' | ']' | '“' | '”' | '’'
        )
    })
    .trim_end_matches(['.', ':'])
}

fn paths(prompt: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for word in prompt.split_whitespace().map(trimmed) {
        let ending = word
            .rsplit_once('.')
            .map(|(stem, ending)| (!stem.is_empty(), ending));
        let file = ending.is_some_and(|(stem, ending)| {
            stem && FILE_ENDINGS.split(' ').any(|known| known == ending)
        }) && !word.contains("::");
        let folder =
            word.contains('/') && !word.contains("//") && word.len() > 2 && !word.contains('(');
        if file || folder {
            paths.push(
                word.trim_start_matches("./")
                    .trim_end_matches('/')
                    .to_owned(),
            );
        } else if word.eq_ignore_ascii_case("readme") {
            paths.push("README.md".to_owned());
        } else if word.eq_ignore_ascii_case("changelog") {
            paths.push("CHANGELOG.md".to_owned());
        }
    }
    paths.dedup();
    paths
}

/// The identifiers of a text, in order.
fn names(text: &str, paths: &[String]) -> Vec<Name> {
    let mut names: Vec<Name> = Vec::new();
    for (at, piece) in text.split('`').enumerate() {
        if at % 2 == 1 {
            names.extend(name(piece));
            continue;
        }
        for (at_word, word) in piece.split_whitespace().enumerate() {
            let bare = trimmed(word);
            let own = bare
                .trim_end_matches("()")
                .trim_end_matches("'s")
                .trim_end_matches("’s");
            if paths
                .iter()
                .any(|path| path.ends_with(own) && !own.is_empty())
                || bare.eq_ignore_ascii_case("readme")
            {
                continue;
            }
            if looks_like_code(own, at == 0 && at_word == 0)
                || bare.ends_with("()")
                || word.contains("()")
            {
                names.extend(name(own));
            }
        }
    }
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(name.own.clone()));
    names
}

fn looks_like_code(word: &str, opens: bool) -> bool {
    let inner_capital = word
        .chars()
        .zip(word.chars().skip(1))
        .any(|(a, b)| a.is_lowercase() && b.is_uppercase());
    let plain = word
        .chars()
        .all(|c| c.is_alphanumeric() || matches!(c, '_' | ':' | '.' | '!'));
    let letters = word.chars().filter(|c| c.is_alphabetic()).count();
    let capital = word.chars().next().is_some_and(char::is_uppercase);
    let shouted = letters > 1
        && word
            .chars()
            .all(|c| c.is_uppercase() || c.is_ascii_digit() || c == '_');
    let known_word = shouted && !word.contains('_');
    plain
        && letters > 1
        && (word.trim_matches('_').contains('_')
            || word.contains("::")
            || inner_capital
            || (word.contains('.') && word.split('.').all(|piece| piece.len() > 1))
            || (capital
                && !opens
                && !known_word
                && !is_stop(&word.to_lowercase())
                && !is_language(word)))
}

fn is_language(word: &str) -> bool {
    ENDINGS
        .iter()
        .any(|(language, _)| word.eq_ignore_ascii_case(language))
}

fn name(text: &str) -> Option<Name> {
    let text = text
        .trim()
        .trim_end_matches("()")
        .trim_end_matches('!')
        .trim_start_matches(['.', ':', '&']);
    let text = text.split(['(', '<', '{', ' ']).next().unwrap_or_default();
    let mut pieces = text.rsplit([':', '.']).filter(|piece| !piece.is_empty());
    let own = pieces.next()?.to_owned();
    let valid = own.chars().all(|c| c.is_alphanumeric() || c == '_')
        && own.starts_with(|c: char| c.is_alphabetic() || c == '_');
    valid.then(|| Name {
        own,
        parent: pieces.next().map(str::to_owned),
    })
}

/// The text without its identifiers and paths: what remains are words.
fn without(text: &str, names: &[Name], paths: &[String]) -> String {
    let kept = text.split_whitespace().filter(|word| {
        let bare = trimmed(word).trim_end_matches("'s").trim_end_matches("’s");
        let is_name = names.iter().any(|name| {
            bare.contains(&name.own)
                && (bare.len() <= name.own.len() + 3
                    || bare.contains("::")
                    || bare.contains('.')
                    || bare.contains('<'))
        });
        !is_name
            && !paths
                .iter()
                .any(|path| path.contains(bare) && bare.len() > 3)
            && !bare.eq_ignore_ascii_case("readme")
    });
    kept.collect::<Vec<_>>().join(" ")
}

fn intent(prompt: &str, parts: &[Part], paths: &[String]) -> Intent {
    let words = tokens(prompt);
    let has = |word: &str| words.iter().any(|w| w == word);
    let any = |list: &[&str]| list.iter().any(|word| has(word));
    let count = has("how") && has("many");
    let lists = count
        || any(&["list", "enumerate"])
        || (any(&["what", "which", "show"])
            && any(&[
                "files",
                "functions",
                "methods",
                "types",
                "structs",
                "traits",
                "folders",
                "directories",
                "definitions",
                "constants",
                "enums",
                "macros",
            ]));
    let glob = ENDINGS
        .iter()
        .find(|(word, _)| has(word))
        .map(|(_, ending)| format!("*.{ending}"))
        .or_else(|| {
            words
                .iter()
                .zip(words.iter().skip(1))
                .find(|(word, next)| {
                    FILE_ENDINGS.split(' ').any(|e| e == *word) && *next == "files"
                })
                .map(|(word, _)| format!("*.{word}"))
        });
    if lists
        && any(&["files", "folders", "directories", "file"])
        && any(&["functions", "methods", "structs"]).eq(&false)
    {
        let subjects: Vec<&str> = parts
            .iter()
            .flat_map(|part| &part.terms)
            .filter(|term| !term.is_faint())
            .map(|term| term.word.as_str())
            .collect();
        let only_files = subjects.iter().all(|word| {
            ENDINGS.iter().any(|(language, _)| language == word)
                || FILE_ENDINGS.split(' ').any(|e| e == *word)
                || [
                    "many",
                    "list",
                    "folder",
                    "folders",
                    "directory",
                    "directories",
                    "project",
                    "current",
                    "total",
                    "contain",
                    "source",
                    "root",
                    "top",
                    "level",
                ]
                .contains(word)
        });
        if only_files && parts.iter().all(|part| part.names.is_empty()) {
            let glob = glob.or_else(|| paths.first().map(|path| format!("{path}/**")));
            return Intent::ListFiles { glob, count };
        }
    }
    let kinds = parts.iter().flat_map(|part| &part.kinds).count();
    if lists && kinds > 0 && parts.len() == 1 {
        let named = paths.first().cloned().or_else(|| {
            parts
                .first()
                .and_then(|part| part.names.first())
                .map(|name| name.own.clone())
        });
        let asks_one = any(&["which", "what"])
            && !any(&[
                "functions",
                "methods",
                "types",
                "structs",
                "traits",
                "definitions",
                "constants",
                "enums",
                "macros",
            ]);
        let few_words = parts
            .iter()
            .flat_map(|part| &part.terms)
            .filter(|term| {
                !term.is_faint() && !["list", "many", "public"].contains(&term.word.as_str())
            })
            .count()
            <= 1;
        if let Some(of) = named.filter(|_| !asks_one && few_words) {
            return Intent::ListDefinitions { of, count };
        }
    }
    if let Some(path) = paths.first() {
        let subjects = parts.iter().flat_map(|part| &part.terms).filter(|term| {
            !term.is_faint()
                && ![
                    "summarize",
                    "summarise",
                    "summary",
                    "review",
                    "change",
                    "changes",
                    "diff",
                    "commit",
                    "patch",
                    "describe",
                    "read",
                    "overview",
                    "list",
                    "say",
                    "says",
                ]
                .contains(&term.word.as_str())
        });
        if subjects.count() == 0 && parts.iter().all(|part| part.names.is_empty()) {
            return Intent::AboutFile { path: path.clone() };
        }
    }
    let greeting =
        any(&["hello", "hi", "hey", "thanks", "thank", "bye", "moin"]) && words.len() <= 6;
    if parts.is_empty() || greeting {
        if paths.is_empty() {
            Intent::Talk
        } else {
            Intent::Find
        }
    } else {
        Intent::Find
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subjects(question: &Question) -> Vec<(Wants, Vec<&str>, Vec<&str>, bool)> {
        let part = |part: &'_ Part| (part.wants, part.refers);
        question
            .parts
            .iter()
            .map(|p| {
                let (wants, refers) = part(p);
                (
                    wants,
                    p.names.iter().map(|n| n.own.as_str()).collect(),
                    p.terms.iter().map(|t| t.word.as_str()).collect(),
                    refers,
                )
            })
            .collect()
    }

    #[test]
    fn questions_fall_into_parts_names_and_words() {
        use Wants::{Place, Uses, Value};
        for (prompt, expected) in [
            (
                "Where is the retry delay computed, and what is its cap?",
                vec![
                    (Place, vec![], vec!["retry", "delay", "computed"], false),
                    (Value, vec![], vec!["cap"], true),
                ],
            ),
            (
                "Where is `BytesMut` defined?",
                vec![(Place, vec!["BytesMut"], vec![], false)],
            ),
            (
                "Where is DashMap::shards implemented?",
                vec![(Place, vec!["shards"], vec![], false)],
            ),
            (
                "Which function splits the buffer at an index?",
                vec![(Place, vec![], vec!["splits", "buffer", "index"], false)],
            ),
            (
                "Where is max_delay_ms used?",
                vec![(Uses, vec!["max_delay_ms"], vec![], false)],
            ),
            (
                "What is the default channel capacity?",
                vec![(Value, vec![], vec!["default", "channel", "capacity"], false)],
            ),
            (
                "Where are limits, budgets, and caps checked?",
                vec![(
                    Place,
                    vec![],
                    vec!["limits", "budgets", "caps", "checked"],
                    false,
                )],
            ),
        ] {
            assert_eq!(subjects(&Question::read(prompt)), expected, "{prompt}");
        }
    }

    #[test]
    fn intents_are_distinguished() {
        let files = |glob: Option<&str>, count| Intent::ListFiles {
            glob: glob.map(str::to_owned),
            count,
        };
        let definitions = |of: &str, count| Intent::ListDefinitions {
            of: of.into(),
            count,
        };
        for (prompt, intent) in [
            ("What files are here?", files(None, false)),
            ("How many Rust files are there?", files(Some("*.rs"), true)),
            (
                "list the functions in src/lib.rs",
                definitions("src/lib.rs", false),
            ),
            (
                "How many functions are in src/lib.rs?",
                definitions("src/lib.rs", true),
            ),
            (
                "Which methods does BytesMut have?",
                definitions("BytesMut", false),
            ),
            (
                "What does src/lib.rs do?",
                Intent::AboutFile {
                    path: "src/lib.rs".into(),
                },
            ),
            (
                "Summarize the README",
                Intent::AboutFile {
                    path: "README.md".into(),
                },
            ),
            (
                "Summarise README.md",
                Intent::AboutFile {
                    path: "README.md".into(),
                },
            ),
            ("What does the README say about licenses?", Intent::Find),
            ("hello", Intent::Talk),
            ("", Intent::Talk),
            ("What does BytesMut do?", Intent::Find),
            ("Which function lists files in a folder?", Intent::Find),
        ] {
            assert_eq!(Question::read(prompt).intent, intent, "{prompt}");
        }
    }
}
