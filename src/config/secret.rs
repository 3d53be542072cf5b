//! A provider key: it is read once and never displayed.

use std::{fmt, io::Read as _, path::Path};

/// Maximum size of a key file in bytes; a key is one line.
const KEY_FILE_BYTES_MAX: u64 = 16 * 1024;

/// A key. Its Debug text is a mask, it has no Display, and only [`Secret::expose`] returns the
/// text.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Accepts a key: one word of visible ASCII. Surrounding white space is removed.
    ///
    /// # Errors
    /// What is wrong with the text, without quoting it.
    pub fn new(text: &str) -> Result<Self, &'static str> {
        let text = text.trim();
        if text.is_empty() {
            Err("is empty")
        } else if text.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Self(text.to_owned()))
        } else {
            // The key becomes an HTTP header: a line break would inject another header.
            Err("holds white space or characters outside ASCII")
        }
    }

    /// Reads a key from a file that contains nothing else.
    ///
    /// # Errors
    /// The error of the operating system, or that of [`Secret::new`].
    pub(super) fn from_file(path: &Path) -> Result<Self, String> {
        let mut text = String::new();
        crate::named_file::open(path)
            .and_then(|file| file.take(KEY_FILE_BYTES_MAX).read_to_string(&mut text))
            .map_err(|error| format!("the file cannot be read: {error}"))?;
        Self::new(&text).map_err(|problem| format!("the file {problem}"))
    }

    /// The text of the key. Only for a request header and for masking.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(masked)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_show_in_debug() {
        let secret = Secret::new(" sk-test-not-a-real-key\n").unwrap();

        assert_eq!(secret.expose(), "sk-test-not-a-real-key");
        assert_eq!(format!("{secret:?}"), "Secret(masked)");
    }

    #[test]
    fn what_cannot_stand_in_a_header_is_no_key() {
        assert_eq!(Secret::new(" \n"), Err("is empty"));
        assert_eq!(
            Secret::new("a\r\nx-other: b"),
            Err("holds white space or characters outside ASCII")
        );
    }
}
