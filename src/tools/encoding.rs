//! Detects the encoding of a text, and files that are not text. A guessed encoding is reported as a
//! guess.
//!
//! A byte order mark decides. Without one a text is UTF-8, unless more of its non-ASCII bytes are
//! invalid UTF-8 than valid. Then it is read as Windows-1252, a superset of Latin-1. The decision
//! counts line by line, in bounded memory.

use encoding_rs::{Decoder, UTF_16BE, UTF_16LE, WINDOWS_1252};

/// Bytes at the start of a file that decide whether it is text.
pub(super) const START_BYTES: usize = 8192;

/// The encoding of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Utf8,
    Utf8Marked,
    Utf16Le,
    Utf16Be,
    Windows1252,
}

impl Encoding {
    /// Returns the encoding that a byte order mark declares.
    pub(super) fn marked(start: &[u8]) -> Option<Self> {
        [Self::Utf8Marked, Self::Utf16Le, Self::Utf16Be]
            .into_iter()
            .find(|encoding| start.starts_with(encoding.mark()))
    }

    /// The byte order mark of this encoding; empty without one.
    pub(super) fn mark(self) -> &'static [u8] {
        match self {
            Self::Utf8Marked => b"\xef\xbb\xbf",
            Self::Utf16Le => b"\xff\xfe",
            Self::Utf16Be => b"\xfe\xff",
            Self::Utf8 | Self::Windows1252 => b"",
        }
    }

    /// Bytes in a code unit. A match that does not start at a code unit is not a match.
    pub(super) fn unit(self) -> usize {
        match self {
            Self::Utf16Le | Self::Utf16Be => 2,
            Self::Utf8 | Self::Utf8Marked | Self::Windows1252 => 1,
        }
    }

    /// The note that a reader gets; `None` for plain UTF-8.
    pub(super) fn note(self) -> Option<&'static str> {
        match self {
            Self::Utf8 => None,
            Self::Utf8Marked => Some("[UTF-8 with a byte order mark]"),
            Self::Utf16Le => Some("[UTF-16, little-endian]"),
            Self::Utf16Be => Some("[UTF-16, big-endian]"),
            Self::Windows1252 => {
                Some("[not UTF-8: read as Windows-1252 (Latin-1), which is a guess]")
            }
        }
    }

    /// Returns a decoder for pieces of a stream; `None` if the bytes can be cut at line ends
    /// without one.
    pub(super) fn decoder(self) -> Option<Decoder> {
        match self {
            Self::Utf16Le => Some(UTF_16LE.new_decoder_without_bom_handling()),
            Self::Utf16Be => Some(UTF_16BE.new_decoder_without_bom_handling()),
            Self::Utf8 | Self::Utf8Marked | Self::Windows1252 => None,
        }
    }

    /// Decodes bytes without their mark. Invalid sequences become U+FFFD.
    pub(super) fn decode(self, bytes: &[u8]) -> String {
        match self {
            Self::Utf8 | Self::Utf8Marked => String::from_utf8_lossy(bytes).into_owned(),
            Self::Utf16Le => UTF_16LE.decode_without_bom_handling(bytes).0.into_owned(),
            Self::Utf16Be => UTF_16BE.decode_without_bom_handling(bytes).0.into_owned(),
            Self::Windows1252 => WINDOWS_1252
                .decode_without_bom_handling(bytes)
                .0
                .into_owned(),
        }
    }

    /// Encodes a text without a mark; `None` if the encoding lacks one of its characters.
    pub(super) fn encode(self, text: &str) -> Option<Vec<u8>> {
        match self {
            Self::Utf8 | Self::Utf8Marked => Some(text.as_bytes().to_vec()),
            Self::Utf16Le => Some(text.encode_utf16().flat_map(u16::to_le_bytes).collect()),
            Self::Utf16Be => Some(text.encode_utf16().flat_map(u16::to_be_bytes).collect()),
            Self::Windows1252 => {
                let (bytes, _, unmappable) = WINDOWS_1252.encode(text);
                (!unmappable).then(|| bytes.into_owned())
            }
        }
    }
}

/// Counts valid non-ASCII characters and invalid sequences of a text without a mark.
#[derive(Debug, Default)]
pub(super) struct Judge {
    characters: u64,
    stray: u64,
}

impl Judge {
    /// Counts a line. The last bytes of a line that was cut may be half a character.
    pub(super) fn see(&mut self, line: &[u8], is_cut: bool) {
        if line.is_ascii() {
            return;
        }
        let mut chunks = line.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.characters += chunk.valid().chars().filter(|c| !c.is_ascii()).count() as u64;
            let is_half = is_cut && chunks.peek().is_none();
            self.stray += u64::from(!is_half && !chunk.invalid().is_empty());
        }
    }

    /// The likeliest encoding, and whether the text holds bytes that are invalid in it.
    pub(super) fn verdict(&self) -> (Encoding, bool) {
        if self.stray > self.characters {
            (Encoding::Windows1252, false)
        } else {
            (Encoding::Utf8, self.stray > 0)
        }
    }
}

/// Detects the encoding of complete bytes.
pub(super) fn detect(bytes: &[u8]) -> Encoding {
    Encoding::marked(bytes).unwrap_or_else(|| {
        let mut judge = Judge::default();
        bytes
            .split(|b| *b == b'\n')
            .for_each(|line| judge.see(line, false));
        judge.verdict().0
    })
}

/// Returns the kind of a binary file; `None` for text. Only the first [`START_BYTES`] are examined.
pub(super) fn binary(start: &[u8]) -> Option<&'static str> {
    const KINDS: &[(&[u8], &str)] = &[
        (b"\x89PNG", "a PNG image"),
        (b"\xff\xd8\xff", "a JPEG image"),
        (b"%PDF-", "a PDF document"),
        (b"\x1f\x8b", "gzip data"),
        (b"\xfd7zXZ", "xz data"),
        (b"\x28\xb5\x2f\xfd", "zstd data"),
        (b"PK\x03\x04", "a ZIP archive"),
        (b"\x7fELF", "an ELF program"),
        (b"\xff\xfe\0\0", "UTF-32 text"),
        (b"\0\0\xfe\xff", "UTF-32 text"),
    ];
    // The start of these formats could also begin a text.
    const KINDS_WITH_NUL: &[(&[u8], &str)] = &[
        (b"GIF8", "a GIF image"),
        (b"RIFF", "RIFF data"),
        (b"BZh", "bzip2 data"),
        (b"7z\xbc\xaf", "a 7z archive"),
        (b"MZ", "a Windows program"),
        (b"SQLite format 3", "an SQLite database"),
        (b"\0asm", "a WebAssembly module"),
    ];
    let start = start.get(..START_BYTES).unwrap_or(start);
    let of = |kinds: &[(&[u8], &'static str)]| {
        kinds
            .iter()
            .find(|(magic, _)| start.starts_with(magic))
            .map(|(_, kind)| *kind)
    };
    if let Some(kind) = of(KINDS) {
        return Some(kind);
    }
    if Encoding::marked(start).is_some() {
        return None;
    }
    let odd = start
        .iter()
        .filter(|b| matches!(b, 1..=7 | 14..=26 | 28..=31 | 127))
        .count();
    let has_nul = start.contains(&0);
    (has_nul || odd * 10 > start.len()).then(|| of(KINDS_WITH_NUL).unwrap_or("data"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_decides_and_without_one_the_greater_part_of_the_odd_bytes() {
        for (bytes, encoding) in [
            (&b"plain"[..], Encoding::Utf8),
            ("caf\u{e9}".as_bytes(), Encoding::Utf8),
            (b"\xef\xbb\xbfa", Encoding::Utf8Marked),
            (b"\xff\xfea\0", Encoding::Utf16Le),
            (b"\xfe\xff\0a", Encoding::Utf16Be),
            (b"caf\xe9 d\xe9j\xe0", Encoding::Windows1252),
            (
                "caf\u{e9} \u{fc}ber \u{4e16}\n"
                    .bytes()
                    .chain([0xff])
                    .collect::<Vec<_>>()
                    .leak(),
                Encoding::Utf8,
            ),
            (b"", Encoding::Utf8),
        ] {
            assert_eq!(detect(bytes), encoding, "{bytes:?}");
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let text = "caf\u{e9}\n\u{20ac} end";
        for encoding in [
            Encoding::Utf8,
            Encoding::Utf8Marked,
            Encoding::Utf16Le,
            Encoding::Utf16Be,
            Encoding::Windows1252,
        ] {
            assert_eq!(encoding.decode(&encoding.encode(text).unwrap()), text);
        }
        assert_eq!(Encoding::Windows1252.encode("\u{4e16}"), None);
    }

    #[test]
    fn a_binary_file_is_named_by_its_kind() {
        for (start, kind) in [
            (&b"\x89PNG\r\n"[..], Some("a PNG image")),
            (b"%PDF-1.7\n", Some("a PDF document")),
            (b"a\0b", Some("data")),
            (b"MZ\0", Some("a Windows program")),
            (b"MZ is a text", None),
            (b"\x01\x02\x03abc", Some("data")),
            (b"\xff\xfe\0\0a\0\0\0", Some("UTF-32 text")),
            (b"\xff\xfea\0", None),
            (b"\x1b[31mred\x1b[0m", None),
            (b"", None),
        ] {
            assert_eq!(binary(start), kind, "{start:?}");
        }
    }
}
