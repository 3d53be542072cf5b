//! Detects the encoding of a page: first its byte order mark, then the server's header, then the
//! page's own declaration, else a guess.

use encoding_rs::{Encoding, UTF_8, WINDOWS_1252};

/// Bytes at the start of a page that are searched for its encoding. HTML in_document 1024; this allows for
/// long comments before it.
const PRESCAN_BYTES: usize = 4096;

/// Decodes bytes, and returns whether any were invalid. `cut`: the last character may be
/// incomplete.
pub(super) fn decode(
    bytes: &[u8],
    content_type: Option<&str>,
    is_markup: bool,
    cut: bool,
) -> (String, bool) {
    let encoding = encoding_of(bytes, content_type, is_markup, cut);
    let (text, _, mut replaced) = encoding.decode(bytes);
    let mut text = text.into_owned();
    if cut && text.ends_with(char::REPLACEMENT_CHARACTER) {
        text.truncate(text.trim_end_matches(char::REPLACEMENT_CHARACTER).len());
        replaced = text.contains(char::REPLACEMENT_CHARACTER);
    }
    (text, replaced)
}

fn encoding_of(
    bytes: &[u8],
    content_type: Option<&str>,
    is_markup: bool,
    cut: bool,
) -> &'static Encoding {
    if let Some((encoding, _)) = Encoding::for_bom(bytes) {
        return encoding;
    }
    let start = bytes.get(..PRESCAN_BYTES).unwrap_or(bytes);
    let declared = content_type.and_then(|text| label(text.as_bytes(), b"charset"));
    let in_document = || {
        let own = label(start, b"charset")
            .or_else(|| label(start, b"encoding"))
            .filter(|_| is_markup)?;
        // The declaration could be read as ASCII, so the page is not UTF-16, whatever it declares.
        Some(
            if own == encoding_rs::UTF_16LE || own == encoding_rs::UTF_16BE {
                UTF_8
            } else {
                own
            },
        )
    };
    let whole = !cut && start.len() == bytes.len();
    let broken =
        || std::str::from_utf8(start).is_err_and(|error| whole || error.error_len().is_some());
    let guess = || if broken() { WINDOWS_1252 } else { UTF_8 };
    declared.or_else(in_document).unwrap_or_else(guess)
}

/// Returns the encoding after the first `name=` that names a known one.
fn label(text: &[u8], name: &[u8]) -> Option<&'static Encoding> {
    let mut from = 0;
    while let Some(window) = text.get(from..).filter(|rest| rest.len() > name.len()) {
        if window
            .get(..name.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(name))
        {
            let after = window
                .get(name.len()..)
                .unwrap_or_default()
                .trim_ascii_start();
            if let Some(value) = after.strip_prefix(b"=") {
                let value = value.trim_ascii_start();
                let value = value
                    .strip_prefix(b"\"")
                    .or_else(|| value.strip_prefix(b"'"))
                    .unwrap_or(value);
                let end = value
                    .iter()
                    .position(|b| !(b.is_ascii_alphanumeric() || b"-_:.".contains(b)))
                    .unwrap_or(value.len());
                if let Some(encoding) = Encoding::for_label(value.get(..end).unwrap_or_default()) {
                    return Some(encoding);
                }
            }
        }
        from += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_wins_then_the_server_then_the_page() {
        let read = |bytes: &[u8], content_type| decode(bytes, content_type, true, false).0;

        assert_eq!(
            read(
                b"\xef\xbb\xbfcaf\xc3\xa9",
                Some("text/html; charset=latin1")
            ),
            "café"
        );
        assert_eq!(
            read(b"caf\xe9", Some("text/html; charset=\"ISO-8859-1\"")),
            "café"
        );
        assert_eq!(
            read(b"<meta charset=shift_jis>\x83e", None),
            "<meta charset=shift_jis>テ"
        );
        assert_eq!(
            read(
                b"<meta http-equiv=x content='text/html; Charset = koi8-r'>\xd7",
                None
            ),
            "<meta http-equiv=x content='text/html; Charset = koi8-r'>в"
        );
        assert_eq!(
            read(b"<?xml version='1.0' encoding='windows-1251'?>\xe2", None),
            "<?xml version='1.0' encoding='windows-1251'?>в"
        );
        assert_eq!(
            read("<meta charset=utf-16>é".as_bytes(), None),
            "<meta charset=utf-16>é"
        );
        assert_eq!(read(b"caf\xe9", None), "café");
        assert_eq!(
            read("café".as_bytes(), Some("text/html; charset=nonsense")),
            "café"
        );
        assert_eq!(read(b"h\0i\0", Some("text/plain; charset=utf-16le")), "hi");
    }

    #[test]
    fn a_truncated_character_is_omitted_and_a_broken_one_is_marked() {
        let bytes = "é".as_bytes();

        assert_eq!(
            decode(&bytes[..1], None, false, true),
            (String::new(), false)
        );
        assert_eq!(
            decode(b"a\xc3b", Some("text/plain; charset=utf-8"), false, false),
            ("a\u{fffd}b".to_owned(), true)
        );
    }
}
