//! Checks of a PDF without parsing it: signature, end marker, encryption, page count. One pass over
//! the bytes. Compressed objects are not read; the providers and the text extractor read them.
//!
//! Pure.

use std::collections::BTreeSet;

use super::AttachmentError;
use crate::limits::PDF_PAGES_MAX;

/// Bytes at the start in which `%PDF-` may stand behind other bytes.
const HEAD_BYTES: usize = 1024;

/// Bytes at the end in which `%%EOF` may stand before other bytes.
const TAIL_BYTES: usize = 2048;

/// Whether the bytes start like a PDF.
pub(super) fn sniff(bytes: &[u8]) -> bool {
    has(bytes.get(..HEAD_BYTES).unwrap_or(bytes), b"%PDF-")
}

/// Checks end marker, encryption and page count.
pub(super) fn check(bytes: &[u8]) -> Result<(), AttachmentError> {
    let tail = bytes.len().saturating_sub(TAIL_BYTES);
    if !has(bytes.get(tail..).unwrap_or(bytes), b"%%EOF") {
        return Err(AttachmentError::Cut {
            media_type: super::PDF,
        });
    }
    let mut object = 0;
    let mut pages = BTreeSet::new();
    for at in 0..bytes.len() {
        let rest = bytes.get(at..).unwrap_or_default();
        match rest.first() {
            Some(b'/') if is_encryption(rest) => return Err(AttachmentError::Encrypted),
            Some(b'/') if is_page(rest) => {
                // An edited file holds several versions of a page under one object number.
                pages.insert(object);
                if pages.len() > PDF_PAGES_MAX {
                    return Err(AttachmentError::TooManyPages);
                }
            }
            Some(b'o') if rest.starts_with(b"obj") => {
                object = number_before(bytes, at).unwrap_or(object)
            }
            _ => {}
        }
    }
    Ok(())
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

fn trimmed(bytes: &[u8]) -> &[u8] {
    bytes.trim_ascii_start()
}

/// Whether the trailer's `Encrypt` key has a value: a reference or a dictionary.
fn is_encryption(rest: &[u8]) -> bool {
    rest.strip_prefix(b"/Encrypt").is_some_and(|value| {
        let value = trimmed(value);
        value.starts_with(b"<<") || value.first().is_some_and(u8::is_ascii_digit)
    })
}

/// Whether this is `/Type /Page`, but not `/Type /Pages`.
fn is_page(rest: &[u8]) -> bool {
    let name = rest
        .strip_prefix(b"/Type")
        .and_then(|value| trimmed(value).strip_prefix(b"/Page"));
    name.is_some_and(|after| !after.first().is_some_and(u8::is_ascii_alphanumeric))
}

/// Returns the number of the object whose `obj` is at `at`, as in `12 0 obj`.
fn number_before(bytes: &[u8], at: usize) -> Option<u32> {
    let before = bytes.get(at.saturating_sub(24)..at)?.trim_ascii_end();
    let mut words = before
        .rsplit(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty());
    let _generation = words.next()?;
    let number = words.next()?;
    std::str::from_utf8(number).ok()?.parse().ok()
}
