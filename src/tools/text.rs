//! Limits for texts that a model reads: whole lines, whole characters, and a note of what is
//! missing.

use std::{fmt::Write, path::Path};

use crate::sandbox::shown;

/// Characters of one line before it is cut.
pub(super) const LINE_CHARS_MAX: usize = 2000;

/// Cuts a line after `chars_max` characters and notes how many are missing.
pub(super) fn cut_line(line: &str, chars_max: usize) -> String {
    match line.char_indices().nth(chars_max) {
        None => line.to_owned(),
        Some((at, _)) => {
            let (shown, rest) = line.split_at(at);
            format!("{shown} [… {} more characters]", rest.chars().count())
        }
    }
}

/// Returns the longest prefix of at most `bytes_max` bytes that ends at a character.
pub(super) fn prefix(text: &str, bytes_max: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes_max))
        .unwrap_or(text)
}

/// Returns the longest suffix of at most `bytes_max` bytes that begins at a character.
pub(super) fn suffix(text: &str, bytes_max: usize) -> &str {
    text.get(text.ceil_char_boundary(text.len().saturating_sub(bytes_max))..)
        .unwrap_or(text)
}

/// Keeps head and tail of a text that is too long.
pub(super) fn middle_cut(text: &str, bytes_max: usize) -> String {
    middle_cut_counted(text, bytes_max).0
}

/// As [`middle_cut`], and returns how many bytes of the text were left out.
pub(super) fn middle_cut_counted(text: &str, bytes_max: usize) -> (String, usize) {
    if text.len() <= bytes_max {
        return (text.to_owned(), 0);
    }
    let head = prefix(text, bytes_max / 2);
    let tail = suffix(text, bytes_max / 2);
    let left_out = text.len() - head.len() - tail.len();
    let mut out = String::with_capacity(bytes_max + 64);
    let _ = write!(out, "{head}\n[… {left_out} bytes left out …]\n{tail}");
    (out, left_out)
}

/// Formats a path for a line of an answer. A name with a line end or another control character is
/// quoted, so that it stays one line.
pub(super) fn path_line(path: &Path) -> String {
    let path = shown(path);
    if path.contains(char::is_control) {
        format!("{path:?}")
    } else {
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_look_like_two_lines() {
        assert_eq!(path_line(Path::new("a b/\u{fc}")), "a b/\u{fc}");
        assert_eq!(
            path_line(Path::new("a\n[2 more exist]")),
            r#""a\n[2 more exist]""#
        );
        assert_eq!(path_line(Path::new("[id].tsx")), "[id].tsx");
        assert_eq!(path_line(Path::new("")), ".");
    }

    #[test]
    fn cuts_fall_between_characters_and_say_what_is_missing() {
        assert_eq!(cut_line("äöü", 3), "äöü");
        assert_eq!(cut_line("äöüß", 3), "äöü [… 1 more characters]");
        assert_eq!((prefix("äöü", 3), suffix("äöü", 3)), ("ä", "ü"));
        assert_eq!(middle_cut("abcdef", 6), "abcdef");
        assert_eq!(middle_cut("abcdefgh", 4), "ab\n[… 4 bytes left out …]\ngh");
    }
}
