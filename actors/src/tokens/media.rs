//! Token estimates for images and documents, by their size. Their base64 is never counted as text.
//!
//! An image costs `width x height / 750` tokens, at most 1600, since providers shrink larger
//! images. The size is read from the header of a PNG, JPEG, GIF or WebP file, and no more than
//! [`HEAD_BYTES`] are decoded. An image behind a URL, or in another format, costs 1600.
//!
//! A base64 document costs 3000 tokens per page, at 50 KiB of the file per page and at least one
//! page. A plain-text document costs what its text costs. A document stored elsewhere (a URL,
//! a file id) counts as one page, since its size is unknown.
//!
//! Pure.

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;

use crate::chat::{ContentBlock, RawJson, attachment::dimensions};

/// Tokens of the largest image, and of an image of unknown size.
pub(crate) const IMAGE_TOKENS_MAX: u64 = 1600;

/// Tokens of one page of a document.
pub(crate) const PAGE_TOKENS: u64 = 3000;

/// Bytes of a document that count as one page.
const PAGE_BYTES: u64 = 50 * 1024;

/// Bytes that are decoded to find the size of an image. A JPEG may contain a preview before its own
/// header.
const HEAD_BYTES: usize = 96 * 1024;

/// Pixels per token.
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

/// Tokens of an image or document block, with the texts of documents counted by `count`; `None` for
/// other blocks.
pub(super) fn media_tokens(kind: &str, raw: &RawJson, count: &dyn Fn(&str) -> u64) -> Option<u64> {
    let source = || {
        serde_json::from_str::<Block<'_>>(raw.as_str())
            .ok()
            .and_then(|block| block.source)
    };
    match kind {
        "image" => Some(source().map_or(IMAGE_TOKENS_MAX, |source| image_tokens(&source))),
        "image_url" | "input_image" => Some(IMAGE_TOKENS_MAX),
        "document" => Some(source().map_or(PAGE_TOKENS, |source| document_tokens(&source, count))),
        _ => None,
    }
}

fn image_tokens(source: &Source<'_>) -> u64 {
    match dimensions(&head(&source.data)) {
        Some((width, height)) => u64::from(width)
            .saturating_mul(height.into())
            .div_ceil(PIXELS_PER_TOKEN)
            .min(IMAGE_TOKENS_MAX),
        None => IMAGE_TOKENS_MAX,
    }
}

fn document_tokens(source: &Source<'_>, count: &dyn Fn(&str) -> u64) -> u64 {
    match (&*source.kind, &source.content) {
        ("text", _) => count(&source.data),
        ("base64", _) => {
            (source.data.len() as u64 / 4 * 3)
                .div_ceil(PAGE_BYTES)
                .max(1)
                * PAGE_TOKENS
        }
        (_, Some(content)) => content_tokens(content, count),
        _ => PAGE_TOKENS,
    }
}

/// Tokens of a document whose content is a text or a list of blocks.
fn content_tokens(content: &RawJson, count: &dyn Fn(&str) -> u64) -> u64 {
    if let Ok(text) = content.parse::<String>() {
        return count(&text);
    }
    let cost = |block: &ContentBlock| match block {
        ContentBlock::Text(block) => count(&block.text),
        // Also one without a source that is known.
        block if block.kind() == "image" => {
            let raw = block.raw();
            raw.and_then(|raw| media_tokens("image", raw, count))
                .unwrap_or(0)
        }
        ContentBlock::Image(_) | ContentBlock::Document(_) | ContentBlock::Other { .. } => {
            block.raw().map_or(0, |raw| count(raw.as_str()))
        }
        ContentBlock::Thinking(_) | ContentBlock::ToolUse(_) | ContentBlock::ToolResult(_) => 0, // Documents cannot contain these.
    };
    content
        .parse::<Vec<ContentBlock>>()
        .map_or(PAGE_TOKENS, |blocks| blocks.iter().map(cost).sum())
}

/// The first decoded bytes of a base64 text; empty if it is not base64.
fn head(data: &str) -> Vec<u8> {
    let whole = data.len().min(HEAD_BYTES / 3 * 4) / 4 * 4;
    data.get(..whole)
        .and_then(|start| STANDARD.decode(start).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
