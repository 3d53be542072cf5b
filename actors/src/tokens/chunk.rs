//! Cuts a text into chunks that are counted one by one, so that no single piece can be slow (ECOSYSTEM §3).
//!
//! An encoding first splits a text into pieces by an expression and then merges each piece; both take more than linear time on one
//! long piece. A chunk has [`CHUNK_BYTES`] at most. It ends where the expressions of every encoding of ours end a piece whatever
//! stands around it, and then the count is that of the whole text:
//! - before a space that follows something else than white space
//! - after a Latin letter, a Chinese or Japanese character or a Korean syllable, before ASCII that is no letter and no apostrophe, and
//!   before Chinese punctuation
//!
//! Where a chunk holds no such place (4 KiB of one letter, of digits, of blank lines), it ends after its last character, and the count
//! may differ by [`TOKENS_PER_HARD_CUT`] at most.
//!
//! Pure.

/// Bytes of one chunk: a few pages of prose, and short enough that one piece of it costs what prose of its length costs tenfold.
pub(super) const CHUNK_BYTES: usize = 4 * 1024;

/// By how many tokens a count may differ for each chunk that had to be cut within a piece: what is measured is 2.
pub const TOKENS_PER_HARD_CUT: u64 = 4;

/// The text in chunks; joined, they are the text.
pub(super) fn chunks(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (chunk, after) = rest.split_at_checked(cut(rest)).unwrap_or((rest, ""));
        rest = after;
        Some(chunk)
    })
}

/// Where the first chunk ends: a border of characters, never 0.
fn cut(text: &str) -> usize {
    if text.len() <= CHUNK_BYTES {
        return text.len();
    }
    let hard = text.floor_char_boundary(CHUNK_BYTES);
    let mut following = text.get(hard..).and_then(|rest| rest.chars().next());
    for (at, c) in text.get(..hard).unwrap_or_default().char_indices().rev() {
        if following.is_some_and(|next| ends_a_piece(c, next)) {
            return at + c.len_utf8();
        }
        following = Some(c);
    }
    hard
}

/// Whether every encoding ends a piece between these two, whatever stands around them.
fn ends_a_piece(last: char, next: char) -> bool {
    (next == ' ' && !last.is_whitespace()) || (is_plain_letter(last) && is_no_part_of_a_word(next))
}

/// A letter in the sense of Unicode (category L), of the scripts that we know.
fn is_plain_letter(c: char) -> bool {
    matches!(c, 'a'..='z' | 'A'..='Z' | '\u{4E00}'..='\u{9FFF}' | '\u{3041}'..='\u{3096}' | '\u{30A1}'..='\u{30FA}' | '\u{AC00}'..='\u{D7A3}')
}

/// Neither a letter, nor a mark, nor what a contraction begins with.
fn is_no_part_of_a_word(c: char) -> bool {
    (c.is_ascii() && !c.is_ascii_alphabetic() && c != '\'') || matches!(c, '、' | '。' | '，' | '！' | '？' | '：' | '；')
}

#[cfg(test)]
mod tests;
