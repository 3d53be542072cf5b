//! Splits a text into chunks that are counted one at a time, so that counting takes linear time.
//!
//! An encoding first splits a text into pieces by a regular expression and then merges each piece;
//! both steps take more than linear time on one long piece. A chunk has at most [`CHUNK_BYTES`]
//! bytes. It ends at a place where the expression of every encoding ends a piece, whatever
//! surrounds it, so the sum over the chunks is the count of the whole text. These places are:
//! - before a space that follows a character other than white space
//! - after a Latin letter, a Chinese or Japanese character or a Korean syllable, before Chinese
//!   punctuation or before ASCII other than a letter or an apostrophe
//!
//! A chunk without such a place (4 KiB of one letter, of digits, of blank lines) ends after its
//! last character. The count may then differ by at most four tokens a cut.
//!
//! Pure.

/// Size of a chunk in bytes: a few pages of prose. In the worst case one piece of this length takes
/// ten times as long as prose of the same length.
pub(super) const CHUNK_BYTES: usize = 4 * 1024;

/// How many tokens a count may differ for each chunk that was cut within a piece. The measured
/// difference is 2.
#[cfg(test)]
pub(crate) const TOKENS_PER_HARD_CUT: u64 = 4;

/// The chunks of a text; joined, they are the text.
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

/// The end of the first chunk: a character boundary, never 0.
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

/// Whether every encoding ends a piece between these characters, whatever surrounds them.
fn ends_a_piece(last: char, next: char) -> bool {
    (next == ' ' && !last.is_whitespace()) || (is_plain_letter(last) && is_no_part_of_a_word(next))
}

/// Whether the character is a letter (Unicode category L) of a known script.
fn is_plain_letter(c: char) -> bool {
    matches!(c, 'a'..='z' | 'A'..='Z' | '\u{4E00}'..='\u{9FFF}' | '\u{3041}'..='\u{3096}' | '\u{30A1}'..='\u{30FA}' | '\u{AC00}'..='\u{D7A3}')
}

/// Whether the character is neither a letter nor a mark and cannot begin a contraction.
fn is_no_part_of_a_word(c: char) -> bool {
    (c.is_ascii() && !c.is_ascii_alphabetic() && c != '\'')
        || matches!(c, '、' | '。' | '，' | '！' | '？' | '：' | '；')
}

#[cfg(test)]
mod tests;
