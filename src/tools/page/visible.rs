//! Removes characters from untrusted pages that a person does not see but a model reads.

use std::borrow::Cow;

use crate::visible::is_invisible;

/// Returns the text without invisible characters, and how many there were. Line ends become `\n`
/// and are not counted.
pub(in crate::tools) fn visible(text: &str) -> (Cow<'_, str>, usize) {
    if !text.contains(is_invisible) {
        return (Cow::Borrowed(text), 0);
    }
    let mut out = String::with_capacity(text.len());
    let mut removed = 0;
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\r' if rest.peek() == Some(&'\n') => {}
            '\r' | '\u{2028}' | '\u{2029}' => out.push('\n'),
            c if is_invisible(c) => removed += 1,
            c => out.push(c),
        }
    }
    (Cow::Owned(out), removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_removed_and_counted() {
        assert_eq!(
            visible("plain ü 漢 😀\n\t"),
            (Cow::Borrowed("plain ü 漢 😀\n\t"), 0)
        );
        let hidden: String = "hi"
            .chars()
            .map(|c| char::from_u32(0xe0000 + u32::from(c)).unwrap())
            .collect();
        assert_eq!(
            visible(&format!("a{hidden}\u{200b}b\u{202e}c\u{1b}[0m")),
            ("abc[0m".into(), 5)
        );
        assert_eq!(visible("a\r\nb\rc"), ("a\nb\nc".into(), 0));
    }
}
