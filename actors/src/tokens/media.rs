//! What images and documents cost: an estimate by their size, never a count of their base64 as text (REQUIREMENTS W-04, BUG-38).
//!
//! An image is `width x height / 750` tokens, 1600 at most: models are shown larger ones shrunk. The size stands in the first bytes of
//! a PNG, JPEG, GIF or WebP file, and no more is decoded than [`HEAD_BYTES`]; an image behind a URL, or of another format, is 1600.
//!
//! A document in base64 is 3000 tokens a page; a page is taken for 50 KiB of the file, and at least one is there. A document of plain
//! text is a third of its characters. What stands elsewhere (a URL, a file's id) is one page: nobody can know.
//!
//! Pure.

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;

use super::rough_tokens;
use crate::chat::{ContentBlock, RawJson, attachment::dimensions};

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
    match dimensions(&head(&source.data)) {
        Some((width, height)) => u64::from(width).saturating_mul(height.into()).div_ceil(PIXELS_PER_TOKEN).min(IMAGE_TOKENS_MAX),
        None => IMAGE_TOKENS_MAX,
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

#[cfg(test)]
mod tests;
