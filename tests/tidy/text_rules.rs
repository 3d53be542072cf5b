//! Rules that are not about imports: globals, `select!`, privacy of wire types, leftovers, machine paths, length.

use super::source::Source;

type Found = Vec<(usize, String)>;

/// Longest file, in lines of 100 columns; half of it is better.
pub const LINES_MAX: usize = 1200;
/// From here on a file is asked which second noun it hides.
pub const LINES_ASK: usize = 900;

/// Words that say that something is unfinished. Put together here, so that this file keeps its own rule.
const UNFINISHED: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];

/// Folders of one machine.
const MACHINE: &[&str] = &[
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
];

/// Rules on code, comments and literals left out.
pub fn of_code(source: &Source<'_>) -> Found {
    let mut found = Found::new();
    let kernel = source.path.starts_with("actors/");
    let lines: Vec<&str> = source.code.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let number = at + 1;
        let code = line.trim_start();
        let words: Vec<&str> = code
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|word| !word.is_empty())
            .collect();

        if code.contains("#[ignore") {
            found.push((number, "an ignored test proves nothing. Fix: make it fast, or let it run under CALLBOARD_LONG=1".into()));
        }
        let module = words
            .windows(2)
            .find(|pair| matches!(pair, ["mod", "wire" | "api"]))
            .is_some();
        if module && words.first() == Some(&"pub") {
            found.push((number, "wire and api types belong to one adapter. Fix: make the module private and convert at its edge".into()));
        }
        let is_static = words.iter().take(3).any(|word| *word == "static")
            && code.contains(':')
            && !code.contains("fn ");
        let mutable = ["Mutex", "RwLock", "DashMap", "OnceLock", "OnceCell", "mut"]
            .iter()
            .any(|word| words.contains(word))
            || words.iter().any(|word| word.starts_with("Atomic"));
        if is_static
            && mutable
            && !code.starts_with("'")
            && (code.starts_with("static") || code.starts_with("pub"))
            && !source.is_test(number)
            // The process of a command has one terminal, whose modes signals set back.
            && source.path != "src/cli/typed.rs"
        {
            found.push((number, "process-wide state: two hosts in one process would see each other. Fix: keep it in the Host".into()));
        }
        let lint = [
            "clippy::unwrap_used",
            "clippy::expect_used",
            "clippy::panic",
            "clippy::indexing_slicing",
        ]
        .iter()
        .find(|lint| code.contains(**lint));
        if let Some(lint) = lint
            // Looks back over the file, so only where a lint is named.
            && let attribute = attribute_with(&lines, at)
            // A script may ask for a panic, as one of the faults; it must say so on the spot.
            && !(*lint == "clippy::panic"
                && attribute.starts_with("#[")
                && attribute.contains("reason ="))
            && !attribute.contains("cfg_attr(test")
            && !source.is_test(number)
        {
            found.push((
                number,
                format!("`{lint}` is switched off outside tests. Fix: return an error, or use get(), let-else or unwrap_or"),
            ));
        }
    }
    if kernel {
        found.extend(unbiased_selects(source));
    }
    found
}

/// The whole attribute that a line belongs to, without line breaks; the line itself if it belongs
/// to none.
fn attribute_with(lines: &[&str], at: usize) -> String {
    let begins = |line: &&&str| {
        ["#[", "#!["]
            .iter()
            .any(|mark| line.trim_start().starts_with(mark))
    };
    let from = lines[..=at]
        .iter()
        .rposition(|line| begins(&line))
        .unwrap_or(at);
    let mut attribute = String::new();
    for line in &lines[from..] {
        attribute.push_str(line.trim());
        if attribute.matches('[').count() == attribute.matches(']').count() {
            break;
        }
    }
    if attribute.contains(lines[at].trim()) {
        attribute
    } else {
        lines[at].trim().to_owned()
    }
}

/// `select!` in the kernel begins with `biased;`: else chance, not the seed, picks the branch.
fn unbiased_selects(source: &Source<'_>) -> Found {
    source
        .code
        .match_indices("select!")
        .filter(|(at, word)| {
            let body = source.code[at + word.len()..]
                .trim_start()
                .trim_start_matches(['{', '('])
                .trim_start();
            !body.starts_with("biased")
        })
        .map(|(at, _)| source.line_of(at))
        .filter(|line| !source.is_test(*line))
        .map(|line| {
            (
                line,
                "`select!` picks by chance. Fix: begin it with `biased;` and order the branches"
                    .into(),
            )
        })
        .collect()
}

/// Rules on the raw text of any file.
pub fn of_text(source: &Source<'_>) -> Found {
    let mut found = Found::new();
    for (at, line) in source.text.lines().enumerate() {
        let words = || line.split(|c: char| !c.is_alphanumeric() && c != '_');
        if let Some(word) = words().find(|word| UNFINISHED.contains(word)) {
            found.push((at + 1, format!("`{word}`: unfinished work. Fix: finish it, or file an issue and say what is there")));
        }
        if let Some(folder) = MACHINE.iter().find(|folder| line.contains(**folder)) {
            found.push((at + 1, format!("`{folder}` is a folder of one machine. Fix: use a relative path or a temporary folder")));
        }
    }
    let lines = source.text.lines().count();
    if source.path.ends_with(".rs") && lines > LINES_MAX {
        found.push((
            lines,
            format!(
                "{lines} lines, {LINES_MAX} at most. Fix: find the second noun and give it a file"
            ),
        ));
    }
    found
}
