//! What images and documents cost: an estimate by their size, never a count of their base64 as text (REQUIREMENTS W-04, BUG-38).
//!
//! An image is `width x height / 750` tokens, 1600 at most: models are shown larger ones shrunk. The size stands in the first bytes of
//! a PNG, JPEG, GIF or WebP file, and no more is decoded than [`HEAD_BYTES`]; an image behind a URL, or of another format, is 1600.
//!
//! A document in base64 is 3000 tokens a page; a page is taken for 50 KiB of the file, and at least one is there. A document of plain
//! text is a third of its characters. What stands elsewhere (a URL, a file's id) is one page: nobody can know.

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;

use super::rough_tokens;
use crate::chat::{ContentBlock, RawJson};

/// What the largest image costs, and one whose size nobody knows.
pub const IMAGE_TOKENS_MAX: u64 = 1600;

/// What a page of a document costs.
pub const PAGE_TOKENS: u64 = 3000;

/// Bytes of a document that are taken for a page.
const PAGE_BYTES: u64 = 50 * 1024;

/// Bytes that are decoded to find the size of an image; a JPEG may hold a preview before it.
const HEAD_BYTES: usize = 96 * 1024;

/// Pixels a token stands for.
const PIXELS_PER_TOKEN: u64 = 750;

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(borrow, default)]
    source: Option<Source<'a>>,
}

#[derive(Deserialize)]
struct Source<'a> {
    #[serde(borrow, rename = "type", default)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    data: Cow<'a, str>,
    #[serde(default)]
    content: Option<RawJson>,
}

/// What a block costs if it is an image or a document; `None` for every other kind.
pub(super) fn media_tokens(kind: &str, raw: &RawJson) -> Option<u64> {
    let source = || serde_json::from_str::<Block<'_>>(raw.as_str()).ok().and_then(|block| block.source);
    match kind {
        "image" => Some(source().map_or(IMAGE_TOKENS_MAX, |source| image_tokens(&source))),
        "image_url" | "input_image" => Some(IMAGE_TOKENS_MAX),
        "document" => Some(source().map_or(PAGE_TOKENS, |source| document_tokens(&source))),
        _ => None,
    }
}

fn image_tokens(source: &Source<'_>) -> u64 {
    match pixels(&head(&source.data)) {
        Some((width, height)) if width > 0 && height > 0 => {
            u64::from(width).saturating_mul(height.into()).div_ceil(PIXELS_PER_TOKEN).min(IMAGE_TOKENS_MAX)
        }
        _ => IMAGE_TOKENS_MAX,
    }
}

fn document_tokens(source: &Source<'_>) -> u64 {
    match (&*source.kind, &source.content) {
        ("text", _) => rough_tokens(&source.data),
        ("base64", _) => (source.data.len() as u64 / 4 * 3).div_ceil(PAGE_BYTES).max(1) * PAGE_TOKENS,
        (_, Some(content)) => content_tokens(content),
        _ => PAGE_TOKENS,
    }
}

/// A document that is made of a text or of blocks.
fn content_tokens(content: &RawJson) -> u64 {
    if let Ok(text) = content.parse::<String>() {
        return rough_tokens(&text);
    }
    let cost = |block: &ContentBlock| match block {
        ContentBlock::Text(block) => rough_tokens(&block.text),
        ContentBlock::Other { kind, raw } if kind == "image" => media_tokens(kind, raw).unwrap_or(0),
        ContentBlock::Other { raw, .. } => rough_tokens(raw.as_str()),
        ContentBlock::Thinking(_) | ContentBlock::ToolUse(_) | ContentBlock::ToolResult(_) => 0, // No document holds them.
    };
    content.parse::<Vec<ContentBlock>>().map_or(PAGE_TOKENS, |blocks| blocks.iter().map(cost).sum())
}

/// The first bytes behind a base64 text; none if it is not base64.
fn head(data: &str) -> Vec<u8> {
    let whole = data.len().min(HEAD_BYTES / 3 * 4) / 4 * 4;
    data.get(..whole).and_then(|start| STANDARD.decode(start).ok()).unwrap_or_default()
}

/// Width and height by the header of a file.
fn pixels(file: &[u8]) -> Option<(u32, u32)> {
    match file {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1A, b'\n', ..] => {
            Some((u32::from_be_bytes(at(file, 16)?), u32::from_be_bytes(at(file, 20)?)))
        }
        [b'G', b'I', b'F', b'8', ..] => Some((u16::from_le_bytes(at(file, 6)?).into(), u16::from_le_bytes(at(file, 8)?).into())),
        [0xFF, 0xD8, ..] => jpeg(file),
        [b'R', b'I', b'F', b'F', ..] if at(file, 8)? == *b"WEBP" => webp(file),
        _ => None,
    }
}

/// The bytes from `start`.
fn at<const N: usize>(file: &[u8], start: usize) -> Option<[u8; N]> {
    file.get(start..start.checked_add(N)?)?.try_into().ok()
}

/// Goes from segment to segment up to the one that says the size; each is at least two bytes long, so it ends.
fn jpeg(file: &[u8]) -> Option<(u32, u32)> {
    let mut place = 2;
    loop {
        let [mark, kind] = at(file, place)?;
        match (mark, kind) {
            (0xFF, 0xFF) => place += 1, // Padding.
            (0xFF, 0xC0..=0xCF) if ![0xC4, 0xC8, 0xCC].contains(&kind) => {
                let (height, width) = (u16::from_be_bytes(at(file, place + 5)?), u16::from_be_bytes(at(file, place + 7)?));
                return Some((width.into(), height.into()));
            }
            (0xFF, 0x01 | 0xD0..=0xD8) => place += 2, // These have no length.
            (0xFF, _) => place += 2 + usize::from(u16::from_be_bytes(at(file, place + 2)?).max(2)),
            _ => return None,
        }
    }
}

fn webp(file: &[u8]) -> Option<(u32, u32)> {
    let three = |start| at(file, start).map(|[a, b, c]: [u8; 3]| u32::from_le_bytes([a, b, c, 0]));
    match &at(file, 12)? {
        b"VP8X" => Some((three(24)? + 1, three(27)? + 1)),
        b"VP8L" => {
            let bits = u32::from_le_bytes(at(file, 21)?);
            Some(((bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1))
        }
        b"VP8 " => {
            let side = |start| at(file, start).map(|bytes| u32::from(u16::from_le_bytes(bytes) & 0x3FFF));
            Some((side(26)?, side(28)?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
