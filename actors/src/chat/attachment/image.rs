//! Image headers: format, size in pixels, and whether the file is complete. Reads headers only and
//! decodes no pixel.
//!
//! Pure.

/// Image formats that providers accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ImageFormat {
    /// `image/png`
    Png,
    /// `image/jpeg`
    Jpeg,
    /// `image/gif`
    Gif,
    /// `image/webp`
    Webp,
}

impl ImageFormat {
    /// Detects the format from the first bytes.
    pub(crate) fn sniff(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some(Self::Png),
            [0xff, 0xd8, 0xff, ..] => Some(Self::Jpeg),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Self::Gif),
            [
                b'R',
                b'I',
                b'F',
                b'F',
                _,
                _,
                _,
                _,
                b'W',
                b'E',
                b'B',
                b'P',
                ..,
            ] => Some(Self::Webp),
            _ => None,
        }
    }

    /// Returns the media type.
    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
            Self::Gif => "image/gif",
            Self::Webp => "image/webp",
        }
    }

    /// Returns width and height in pixels from the header. `None` if the header is truncated,
    /// invalid or says zero.
    pub(crate) fn dimensions(self, bytes: &[u8]) -> Option<(u32, u32)> {
        let (width, height) = match self {
            Self::Png => (big(bytes, 16, 4)?, big(bytes, 20, 4)?),
            Self::Jpeg => Jpeg::read(bytes).size?,
            Self::Gif => (little(bytes, 6, 2)?, little(bytes, 8, 2)?),
            Self::Webp => webp_size(bytes)?,
        };
        (width > 0 && height > 0).then_some((width, height))
    }

    /// Whether the file is complete. A truncated file has a valid header and no picture.
    pub(super) fn is_whole(self, bytes: &[u8]) -> bool {
        match self {
            Self::Png => png_is_whole(bytes),
            Self::Jpeg => Jpeg::read(bytes).has_end,
            Self::Gif => gif_is_whole(bytes).unwrap_or(false),
            Self::Webp => webp_is_whole(bytes),
        }
    }
}

/// Returns width and height in pixels of an image of any known format, read from its header.
pub(crate) fn dimensions(bytes: &[u8]) -> Option<(u32, u32)> {
    ImageFormat::sniff(bytes)?.dimensions(bytes)
}

fn slice(bytes: &[u8], at: usize, count: usize) -> Option<&[u8]> {
    bytes.get(at..at.checked_add(count)?)
}

/// Reads a big-endian number of up to four bytes.
fn big(bytes: &[u8], at: usize, count: usize) -> Option<u32> {
    slice(bytes, at, count).map(|digits| {
        digits
            .iter()
            .fold(0, |sum, byte| (sum << 8) | u32::from(*byte))
    })
}

/// Reads a little-endian number of up to four bytes.
fn little(bytes: &[u8], at: usize, count: usize) -> Option<u32> {
    slice(bytes, at, count).map(|digits| {
        digits
            .iter()
            .rev()
            .fold(0, |sum, byte| (sum << 8) | u32::from(*byte))
    })
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// A PNG is complete when its chunks lead to `IEND`.
fn png_is_whole(bytes: &[u8]) -> bool {
    let mut at = 8usize;
    while let (Some(len), Some(name)) = (big(bytes, at, 4), slice(bytes, at.saturating_add(4), 4)) {
        let Some(next) = at
            .checked_add(index(len))
            .and_then(|end| end.checked_add(12))
            .filter(|next| *next <= bytes.len())
        else {
            return false;
        };
        if name == b"IEND" {
            return true;
        }
        at = next;
    }
    false
}

/// What the segments of a JPEG contain.
#[derive(Default)]
struct Jpeg {
    size: Option<(u32, u32)>,
    /// Whether an end marker follows the start of the picture. The end marker of a preview in the
    /// header does not count.
    has_end: bool,
}

impl Jpeg {
    fn read(bytes: &[u8]) -> Self {
        let mut read = Self::default();
        let mut at = 2usize;
        while let Some([0xff, mark]) = slice(bytes, at, 2) {
            match mark {
                0xff => at += 1, // filling
                0x01 | 0xd0..=0xd8 => at += 2,
                0xd9 => return read,
                0xda => {
                    let rest = bytes.get(at..).unwrap_or_default();
                    read.has_end = rest.windows(2).rev().any(|pair| pair == [0xff, 0xd9]);
                    return read;
                }
                _ => {
                    // A start of frame; the three excluded markers of this range are tables.
                    if matches!(mark, 0xc0..=0xcf) && !matches!(mark, 0xc4 | 0xc8 | 0xcc) {
                        read.size = big(bytes, at + 7, 2).zip(big(bytes, at + 5, 2));
                    }
                    let Some(len) = big(bytes, at + 2, 2).filter(|len| *len >= 2) else {
                        return read;
                    };
                    at = at.saturating_add(2).saturating_add(index(len));
                }
            }
        }
        read
    }
}

/// A GIF is complete when its blocks lead to the trailer. `None` for a truncated block.
fn gif_is_whole(bytes: &[u8]) -> Option<bool> {
    let table = |flags: u8| {
        if flags & 0x80 == 0 {
            0
        } else {
            3 * (2usize << (flags & 7))
        }
    };
    let mut at = 13 + table(*bytes.get(10)?);
    let mut has_picture = false;
    loop {
        at = match *bytes.get(at)? {
            0x3b => return Some(has_picture),
            0x21 => at + 2,
            0x2c => {
                has_picture = true;
                at + 11 + table(*bytes.get(at + 9)?)
            }
            _ => return Some(false),
        };
        loop {
            let len = usize::from(*bytes.get(at)?);
            at += 1 + len;
            if len == 0 {
                break;
            }
        }
    }
}

fn webp_size(bytes: &[u8]) -> Option<(u32, u32)> {
    match slice(bytes, 12, 4)? {
        b"VP8 " if slice(bytes, 23, 3)? == [0x9d, 0x01, 0x2a] => Some((
            little(bytes, 26, 2)? & 0x3fff,
            little(bytes, 28, 2)? & 0x3fff,
        )),
        b"VP8L" if *bytes.get(20)? == 0x2f => {
            let bits = little(bytes, 21, 4)?;
            Some(((bits & 0x3fff) + 1, ((bits >> 14) & 0x3fff) + 1))
        }
        b"VP8X" => Some((little(bytes, 24, 3)? + 1, little(bytes, 27, 3)? + 1)),
        _ => None,
    }
}

/// A WebP is complete when its chunks fill the length in the header and one of them is a picture.
fn webp_is_whole(bytes: &[u8]) -> bool {
    let end = little(bytes, 4, 4).and_then(|size| index(size).checked_add(8));
    let Some(end) = end.filter(|end| *end <= bytes.len()) else {
        return false;
    };
    let mut at = 12usize;
    let mut has_picture = false;
    while at < end {
        let (Some(name), Some(len)) = (slice(bytes, at, 4), little(bytes, at.saturating_add(4), 4))
        else {
            return false;
        };
        has_picture |= matches!(name, b"VP8 " | b"VP8L" | b"ANMF");
        // Chunks of odd length have one byte of padding.
        let next = at
            .checked_add(8)
            .and_then(|at| at.checked_add(index(len)))
            .and_then(|at| at.checked_add(index(len & 1)));
        let Some(next) = next.filter(|next| *next <= end) else {
            return false;
        };
        at = next;
    }
    has_picture
}
