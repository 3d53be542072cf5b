//! Texts and paths as TOML strings.

use std::{fmt::Write as _, path::Path};

/// Formats a basic TOML string.
pub(super) fn in_quotes(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// Makes a path absolute, so that the output means the same in another folder.
pub(super) fn whole(path: &Path) -> String {
    std::path::absolute(path).as_deref().unwrap_or(path).to_string_lossy().into_owned()
}
