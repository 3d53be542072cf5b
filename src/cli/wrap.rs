//! Wraps words at the width of the terminal. Output that goes elsewhere stays as it is.

use std::io::IsTerminal as _;

use super::{markdown::columns, terminal::size};

/// Text for standard error; later rows of a line are indented as the line is.
pub(super) fn for_stderr(text: &str) -> String {
    match std::io::stderr().is_terminal() {
        true => wrapped(text, size().0, indent),
        false => text.to_owned(),
    }
}

/// Parts on one line of standard error; rows end between them.
pub(super) fn parts_for_stderr(parts: &[String]) -> String {
    for_stderr(&unbroken(parts)).replace(NO_BREAK, " ")
}

/// A space at which no row ends.
const NO_BREAK: char = '\u{a0}';

fn unbroken(parts: &[String]) -> String {
    let parts = parts.iter().map(|part| part.replace(' ', "\u{a0}"));
    parts.collect::<Vec<_>>().join("\u{a0}· ")
}

/// As [`for_stderr`], for standard output.
pub(super) fn for_stdout(text: &str) -> String {
    match std::io::stdout().is_terminal() {
        true => wrapped(text, size().0, indent),
        false => text.to_owned(),
    }
}

/// A list for standard output, of names and what they mean; later rows stand below the meaning.
pub(super) fn list_for_stdout(text: &str) -> String {
    match std::io::stdout().is_terminal() {
        true => wrapped(text, size().0, meaning),
        false => text.to_owned(),
    }
}

/// Columns of the spaces at the beginning of a line.
fn indent(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

/// Column at which the names of a list end.
const NAMES: usize = 10;

/// Where the meaning begins in a line of a list; 0 in a line that is a sentence.
fn meaning(line: &str) -> usize {
    match line.split_once("  ") {
        Some((name, rest)) => name.len() + 2 + indent(rest),
        None if line.as_bytes().get(NAMES - 1) == Some(&b' ') => NAMES,
        None => 0,
    }
}

fn wrapped(text: &str, width: usize, hang: impl Fn(&str) -> usize) -> String {
    let lines: Vec<String> = text
        .split('\n')
        .map(|line| match columns(line) <= width {
            true => line.to_owned(),
            false => rows(line, width, hang(line).min(width / 2)),
        })
        .collect();
    lines.join("\n")
}

/// The rows of one line. A word that is wider than the terminal is left to it.
fn rows(line: &str, width: usize, hang: usize) -> String {
    let mut rows = String::new();
    let (mut used, mut has_word) = (0, false);
    for word in line.split_inclusive(' ') {
        if has_word && used + columns(word.trim_end()) > width {
            rows.truncate(rows.trim_end_matches(' ').len());
            rows.push('\n');
            rows.extend(std::iter::repeat_n(' ', hang));
            (used, has_word) = (hang, false);
        }
        rows.push_str(word);
        used += columns(word);
        has_word |= word != " ";
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_wrapped_at_words_and_keep_their_indent() {
        assert_eq!(wrapped("  one two three", 9, indent), "  one two\n  three");
        assert_eq!(wrapped("short\n\nx", 9, indent), "short\n\nx");
        assert_eq!(wrapped("a unbreakable b", 5, indent), "a\nunbreakable\nb");
        assert_eq!(wrapped("東京 東京", 5, indent), "東京\n東京");
        // The last space, behind which a person types, stays.
        assert_eq!(wrapped("  yes, [N]o ", 9, indent), "  yes,\n  [N]o ");
    }

    #[test]
    fn a_row_ends_between_parts_only() {
        let parts = ["448 ms", "a-model", "a branch"].map(str::to_owned);

        assert_eq!(
            wrapped(&unbroken(&parts), 12, indent).replace(NO_BREAK, " "),
            "448 ms ·\na-model ·\na branch"
        );
    }

    #[test]
    fn a_meaning_goes_on_below_its_beginning() {
        assert_eq!(
            wrapped("/a FILE  one two three", 20, meaning),
            "/a FILE  one two\n         three"
        );
        assert_eq!(
            wrapped("!!COMMAND one two three", 20, meaning),
            "!!COMMAND one two\n          three"
        );
        assert_eq!(
            wrapped("Tab completes all", 14, meaning),
            "Tab completes\nall"
        );
    }
}
