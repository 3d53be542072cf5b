//! The beginning of a text, of which only as much is kept as shows what a whole text has beyond it.

use std::hash::{DefaultHasher, Hasher as _};

/// A text so far, without its bytes: a stream per client must not hold a copy of a long answer.
#[derive(Debug, Default)]
pub(in crate::http) struct Prefix {
    bytes: usize,
    hash: DefaultHasher,
}

impl Prefix {
    pub(in crate::http) fn push(&mut self, piece: &str) {
        self.bytes += piece.len();
        self.hash.write(piece.as_bytes());
    }

    pub(in crate::http) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// What `whole` has beyond this beginning; `None` if it begins otherwise, or has nothing more.
    pub(in crate::http) fn rest<'a>(&self, whole: &'a str) -> Option<&'a str> {
        let (beginning, rest) = whole.split_at_checked(self.bytes)?;
        let mut hash = DefaultHasher::new();
        hash.write(beginning.as_bytes());
        let is_it = hash.finish() == self.hash.finish();
        (is_it && !rest.is_empty()).then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_known_however_the_text_was_cut() {
        for pieces in [&["hé", "llo"][..], &["", "h", "é", "l", "lo"], &["héllo"]] {
            let mut prefix = Prefix::default();
            assert_eq!(prefix.rest("héllo you"), Some("héllo you"));
            pieces.iter().for_each(|piece| prefix.push(piece));
            assert_eq!(prefix.rest("héllo you"), Some(" you"));
            assert_eq!(prefix.rest("héllo"), None);
            assert_eq!(prefix.rest("hallo you"), None);
            assert_eq!(prefix.rest("hé"), None);
        }
    }
}
