//! Splits long content into fixed pages. Computes the page boundaries; callers fetch the bytes.
//!
//! A page has [`PAGE_BYTES`] bytes, less or more by part of a character: each boundary moves back
//! to the start of a character. Boundaries depend on the content only, not on how much of it was
//! fetched, so the joined pages equal the content. A page with its footer, and with the text that
//! introduces stored data, fits into one observation.
//!
//! Pure.

use std::ops::Range;

use crate::{ids::ArtifactId, limits::OBSERVATION_BYTES_MAX};

/// Bytes of a page. The rest of an observation is for the text around it.
pub const PAGE_BYTES: u64 = (OBSERVATION_BYTES_MAX - AROUND_BYTES) as u64;

/// Bytes for the text around a page: the footer, and on the first page of stored data its
/// introduction and summary.
const AROUND_BYTES: usize = 2048;

/// A character has at most four bytes, so its start is at most three bytes back.
const BACK: u64 = 3;

/// The content has no such page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is no page {page}: the pages are 1 to {pages}")]
pub struct NoSuchPage {
    /// The requested page.
    pub page: u64,
    /// Number of pages of the content.
    pub pages: u64,
}

/// Number of pages of a content of `len` bytes. An empty content has one empty page.
pub fn pages(len: u64) -> u64 {
    len.div_ceil(PAGE_BYTES).max(1)
}

/// The range of a page before its boundaries are moved to characters.
///
/// # Errors
/// [`NoSuchPage`] for page 0 and for pages beyond the last.
pub fn nominal(len: u64, page: u64) -> Result<Range<u64>, NoSuchPage> {
    let pages = pages(len);
    if page == 0 || page > pages {
        return Err(NoSuchPage { page, pages });
    }
    let start = (page - 1).saturating_mul(PAGE_BYTES);
    Ok(start..start.saturating_add(PAGE_BYTES).min(len))
}

/// The bytes to fetch so that [`cut`] can move both ends of `range` to the start of a character.
pub fn around(len: u64, range: &Range<u64>) -> Range<u64> {
    range.start.saturating_sub(BACK)..range.end.saturating_add(1).min(len)
}

/// Cuts `range` out of the bytes fetched for [`around`], with both boundaries moved back to the
/// start of a character. Also returns the resulting range within the content.
pub fn cut<'b>(len: u64, range: &Range<u64>, fetched: &'b [u8]) -> (&'b [u8], Range<u64>) {
    let base = around(len, range).start;
    let start = floor(len, range.start, base, fetched);
    let end = floor(len, range.end, base, fetched);
    let at = |place: u64| {
        usize::try_from(place.saturating_sub(base))
            .unwrap_or(usize::MAX)
            .min(fetched.len())
    };
    (
        fetched.get(at(start)..at(end)).unwrap_or_default(),
        start..end,
    )
}

/// A page of a content in memory.
///
/// # Errors
/// [`NoSuchPage`] for page 0 and for pages beyond the last.
pub fn page(content: &[u8], page: u64) -> Result<&[u8], NoSuchPage> {
    let len = content.len() as u64;
    let range = nominal(len, page)?;
    let around = around(len, &range);
    let at = |place: u64| usize::try_from(place).unwrap_or(usize::MAX);
    let fetched = content
        .get(at(around.start)..at(around.end))
        .unwrap_or_default();
    Ok(cut(len, &range, fetched).0)
}

/// The last line of a page, to be placed after a blank line.
pub fn footer(id: &ArtifactId, page: u64, shown: u64, len: u64) -> String {
    let pages = pages(len);
    let next = if page < pages {
        format!(
            "read_more(result_id=\"{id}\", page={}) shows the next",
            page + 1
        )
    } else {
        "this is the last page".to_owned()
    };
    format!("[page {page} of {pages}; kept {shown} of {len} bytes; {next}]")
}

/// The nearest start of a character at or before `place`. Invalid UTF-8 leaves `place` unchanged.
fn floor(len: u64, place: u64, base: u64, fetched: &[u8]) -> u64 {
    if place == 0 || place >= len {
        return place.min(len);
    }
    let begins = |place: u64| {
        let index = usize::try_from(place.checked_sub(base)?).ok()?;
        fetched
            .get(index)
            .map(|byte| byte & 0b1100_0000 != 0b1000_0000)
    };
    (0..=BACK)
        .filter_map(|back| place.checked_sub(back))
        .find(|place| begins(*place) == Some(true))
        .unwrap_or(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::Entropy;

    /// Seeded text with characters of every width.
    fn text(chance: &crate::testing::SeededEntropy, bytes: usize) -> String {
        let mut text = String::new();
        while text.len() < bytes {
            for byte in chance.bytes() {
                text.push(['a', '\n', 'é', '汉', '😀', '\u{0}'][usize::from(byte) % 6]);
            }
        }
        text
    }

    fn seed() -> u64 {
        let now = || {
            std::time::UNIX_EPOCH
                .elapsed()
                .map_or(1, |time| u64::from(time.subsec_nanos()))
        };
        let seed = std::env::var("CALLBOARD_SEED")
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(now);
        println!("paging: CALLBOARD_SEED={seed}");
        seed
    }

    #[test]
    fn pages_joined_are_the_content_for_characters_of_any_width() {
        let chance = crate::testing::SeededEntropy::new(seed());
        for _ in 0..60 {
            let bytes = (chance.fraction() * 5.0 * PAGE_BYTES as f64) as usize;
            let text = text(&chance, bytes);
            let len = text.len() as u64;

            let all: Vec<&[u8]> = (1..=pages(len))
                .map(|n| page(text.as_bytes(), n).unwrap())
                .collect();

            assert_eq!(all.concat(), text.as_bytes());
            for part in &all {
                assert!(
                    std::str::from_utf8(part).is_ok(),
                    "a page ends in the middle of a character"
                );
                assert!(part.len() as u64 <= PAGE_BYTES + BACK);
            }
            assert!(len == 0 || all.iter().all(|part| !part.is_empty()));
        }
    }

    #[test]
    fn pages_of_bytes_that_are_no_text_lose_nothing_either() {
        let content = vec![0x80; 3 * usize::try_from(PAGE_BYTES).unwrap() + 7];

        let all: Vec<&[u8]> = (1..=4).map(|n| page(&content, n).unwrap()).collect();

        assert_eq!(all.concat(), content);
    }

    #[test]
    fn pages_count_from_one_and_others_are_refused_with_their_number() {
        let content = vec![b'x'; usize::try_from(PAGE_BYTES).unwrap() + 1];

        assert_eq!(pages(content.len() as u64), 2);
        assert_eq!(page(&content, 2).unwrap(), b"x");
        assert_eq!(page(&content, 0), Err(NoSuchPage { page: 0, pages: 2 }));
        assert_eq!(page(&content, 3), Err(NoSuchPage { page: 3, pages: 2 }));
        assert_eq!(
            page(&content, u64::MAX),
            Err(NoSuchPage {
                page: u64::MAX,
                pages: 2
            })
        );
        assert_eq!(
            NoSuchPage { page: 3, pages: 2 }.to_string(),
            "there is no page 3: the pages are 1 to 2"
        );
        assert_eq!((pages(0), page(b"", 1)), (1, Ok(&b""[..])));
        assert_eq!((pages(PAGE_BYTES), pages(2 * PAGE_BYTES)), (1, 2));
    }

    #[test]
    fn the_last_line_of_a_page_says_how_to_go_on() {
        let id = ArtifactId::from_content(b"abc");

        assert_eq!(
            footer(&id, 1, PAGE_BYTES, PAGE_BYTES + 5),
            "[page 1 of 2; kept 28672 of 28677 bytes; read_more(result_id=\"artifact_ba7816bf8f01cfea\", page=2) shows the next]"
        );
        assert_eq!(
            footer(&id, 2, 5, PAGE_BYTES + 5),
            "[page 2 of 2; kept 5 of 28677 bytes; this is the last page]"
        );
    }
}
