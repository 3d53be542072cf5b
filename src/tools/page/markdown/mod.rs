//! Converts a page to Markdown: reduces it to a few well-nested elements and passes those to htmd
//! in pieces.
//!
//! A page may be hostile: a hundred thousand nested tags, links in links, a table in every cell. So
//! htmd and its parser never see the page itself. They see what this module writes: at most twelve
//! nested blocks and eight inline elements, every tag closed, one piece at a time. This bounds
//! their time and stack by the size of a piece, and a cancellation is noticed after each piece.
//! Tables are written as lines with bars, because htmd's padding would multiply their size.

mod elements;
#[cfg(test)]
mod tests;

use callboard_actors::tool::ToolError;
use htmd::{
    HtmlToMarkdown,
    options::{BulletListMarker, HrStyle, Options},
};
use tokio_util::sync::CancellationToken;
use url::Url;

use self::elements::{Block, NOISE, RAW, is_block, is_hidden, lower};
use super::scan::{Scanner, Tag, Token, unescape};
use crate::tools::cancelled;

/// Nested blocks, such as lists in quotes in lists. Deeper ones become text of the deepest.
const BLOCKS_MAX: usize = 12;

/// Nested inline elements around a text.
const INLINES_MAX: usize = 8;

/// Bytes after which a piece ends: at the next paragraph (soft), or at any place (hard).
const PIECE_SOFT: usize = 16 * 1024;
const PIECE_HARD: usize = 48 * 1024;

/// Longest URL of a link or image that is kept.
const LINK_BYTES_MAX: usize = 1024;

/// Columns in the line below a table's head.
const COLUMNS_MAX: usize = 64;

const TITLE_CHARS_MAX: usize = 300;

/// A converted page.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) title: Option<String>,
    pub(super) text: String,
    /// Whether the size limit was reached before the end of the page.
    pub(super) more: bool,
}

/// Converts `html` to Markdown of about `bytes_max` bytes at most. Links are resolved against
/// `base`.
pub(super) fn markdown(
    html: &str,
    base: &Url,
    bytes_max: usize,
    cancel: &CancellationToken,
) -> Result<Page, ToolError> {
    let page = Writer::new(base, bytes_max, cancel).write(html, true)?;
    // An unclosed menu would swallow the whole page; a page that is only a menu is converted with
    // it.
    match page {
        Some(page) if !page.text.is_empty() => Ok(page),
        _ => Ok(Writer::new(base, bytes_max, cancel)
            .write(html, false)?
            .unwrap_or(Page {
                title: None,
                text: String::new(),
                more: false,
            })),
    }
}

/// An inline element around the next text. Its tag is written when text follows.
struct Inline {
    name: &'static str,
    open: String,
}

#[derive(Default)]
struct Table {
    /// Cells of the current row; how many of them are headings; cells whose bar is still to be
    /// written.
    cells: usize,
    heads: usize,
    bars: usize,
    row_has_text: bool,
    any_row: bool,
}

struct Writer<'a> {
    cancel: &'a CancellationToken,
    converter: HtmlToMarkdown,
    base: Url,
    bytes_max: usize,
    title: Option<String>,
    out: String,
    piece: String,
    blocks: Vec<Block>,
    inlines: Vec<Inline>,
    /// How many of the inline elements are written.
    written: usize,
    /// A paragraph that text opened without a tag.
    paragraph: bool,
    /// Whether the current block or paragraph is still empty.
    fresh: bool,
    /// Whether a line break is due before the next text.
    gap: bool,
    tables: Vec<Table>,
}

impl<'a> Writer<'a> {
    fn new(base: &Url, bytes_max: usize, cancel: &'a CancellationToken) -> Self {
        let options = Options {
            bullet_list_marker: BulletListMarker::Dash,
            ul_bullet_spacing: 1,
            ol_number_spacing: 1,
            hr_style: HrStyle::Dashes,
            ..Options::default()
        };
        Self {
            cancel,
            converter: HtmlToMarkdown::builder().options(options).build(),
            base: base.clone(),
            bytes_max,
            title: None,
            out: String::new(),
            piece: String::new(),
            blocks: Vec::new(),
            inlines: Vec::new(),
            written: 0,
            paragraph: false,
            fresh: true,
            gap: false,
            tables: Vec::new(),
        }
    }

    /// Returns `None` if an omitted element never ended.
    fn write(mut self, html: &str, without_noise: bool) -> Result<Option<Page>, ToolError> {
        let mut scanner = Scanner::new(html);
        let mut skip: Option<(String, usize)> = None;
        let mut based = false;
        let mut count = 0_usize;
        while let Some(token) = scanner.next() {
            count += 1;
            if count.is_multiple_of(4096) && self.cancel.is_cancelled() {
                return Err(cancelled());
            }
            match token {
                Token::Text(_) if skip.is_some() => {}
                Token::Text(text) => self.text(text)?,
                Token::Start(tag) => {
                    let name = lower(tag.name);
                    // A hidden paragraph without an end tag ends at the next block.
                    let ends_paragraph =
                        is_block(&name) || Block::from_tag(&name).is_some() || name == "table";
                    if ends_paragraph && skip.as_ref().is_some_and(|(skipped, _)| skipped == "p") {
                        skip = None;
                    }
                    if name == "title" {
                        let text = scanner.raw_text("title");
                        self.title = self
                            .title
                            .take()
                            .or_else(|| title(text).filter(|_| skip.is_none()));
                    } else if RAW.contains(&name.as_str()) {
                        scanner.raw_text(&name);
                    } else if let Some((skipped, depth)) = &mut skip {
                        if *skipped == name {
                            *depth += 1;
                        }
                    } else if without_noise
                        && (NOISE.contains(&name.as_str()) || is_hidden(&name, &tag))
                    {
                        self.boundary()?;
                        skip = Some((name, 1));
                    } else if name == "base" && !based {
                        let href = tag
                            .attribute("href")
                            .and_then(|href| self.base.join(&href).ok());
                        if let Some(url) = href.filter(|url| {
                            matches!(url.scheme(), "http" | "https")
                                && url.as_str().len() <= LINK_BYTES_MAX
                        }) {
                            self.base = url;
                            based = true;
                        }
                    } else {
                        self.start(&name, &tag)?;
                    }
                }
                Token::End(name) => {
                    let name = lower(name);
                    match &mut skip {
                        Some((skipped, depth)) => {
                            *depth -= usize::from(*skipped == name);
                            if *depth == 0 {
                                skip = None;
                            }
                        }
                        None => self.end(&name)?,
                    }
                }
            }
            if self.out.len() >= self.bytes_max {
                return Ok(Some(Page {
                    title: self.title,
                    text: self.out,
                    more: true,
                }));
            }
        }
        if skip.is_some() {
            return Ok(None);
        }
        self.flush("\n\n")?;
        Ok(Some(Page {
            title: self.title,
            text: self.out,
            more: false,
        }))
    }

    fn start(&mut self, name: &str, tag: &Tag<'_>) -> Result<(), ToolError> {
        if self.blocks.last() == Some(&Block::Pre) && name != "pre" {
            if name == "br" || is_block(name) {
                self.text("\n")?;
            }
            return Ok(());
        }
        if let Some(block) = Block::from_tag(name) {
            return self.open(block);
        }
        match name {
            "a" => {
                self.unwrap_inline("a");
                let href = tag.attribute("href").filter(|href| !href.starts_with('#'));
                if let Some(url) = href.and_then(|href| self.link(&href)) {
                    self.inline("a", format!("<a href=\"{}\">", escape(&url)));
                }
            }
            "em" | "i" | "cite" | "dfn" => self.inline("em", "<em>".to_owned()),
            "strong" | "b" => self.inline("strong", "<strong>".to_owned()),
            "code" | "kbd" | "samp" | "tt" => self.inline("code", "<code>".to_owned()),
            "br" => match self.blocks.last() {
                Some(Block::Heading(_)) => self.piece.push(' '),
                _ => self.gap = true,
            },
            "hr" => {
                self.boundary()?;
                if !matches!(self.blocks.last(), Some(Block::Heading(_) | Block::List(_))) {
                    self.piece.push_str("<hr>");
                }
            }
            "img" => {
                let alt = tag
                    .attribute("alt")
                    .map(|alt| alt.trim().to_owned())
                    .filter(|alt| !alt.is_empty() && alt.len() <= LINK_BYTES_MAX);
                let source = tag.attribute("src").and_then(|source| self.link(&source));
                if let Some(alt) = alt {
                    self.ready()?;
                    match source {
                        Some(url) => self.piece.push_str(&format!(
                            "<img alt=\"{}\" src=\"{}\">",
                            escape(&alt),
                            escape(&url)
                        )),
                        None => self.piece.push_str(&escape(&alt)),
                    }
                }
            }
            "table" => {
                self.boundary()?;
                self.inlines.clear();
                if self.tables.len() < BLOCKS_MAX {
                    self.tables.push(Table::default());
                }
            }
            "tr" => self.row_ends(),
            "td" | "th" => {
                self.close_inlines(0);
                self.inlines.clear();
                if let Some(table) = self.tables.last_mut() {
                    table.bars += usize::from(table.cells > 0);
                    table.cells += 1;
                    table.heads += usize::from(name == "th");
                }
            }
            _ if is_block(name) => self.boundary()?,
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, name: &str) -> Result<(), ToolError> {
        if let Some(block) = Block::from_tag(name) {
            return self.close(block);
        }
        if self.blocks.last() == Some(&Block::Pre) {
            return Ok(());
        }
        match name {
            "a" => self.unwrap_inline("a"),
            "em" | "i" | "cite" | "dfn" => self.unwrap_inline("em"),
            "strong" | "b" => self.unwrap_inline("strong"),
            "code" | "kbd" | "samp" | "tt" => self.unwrap_inline("code"),
            "table" => {
                self.row_ends();
                self.inlines.clear();
                self.tables.pop();
                self.boundary()?;
            }
            "tr" => self.row_ends(),
            "td" | "th" => {
                self.close_inlines(0);
                self.inlines.clear();
            }
            _ if is_block(name) => self.boundary()?,
            _ => {}
        }
        Ok(())
    }

    fn text(&mut self, text: &str) -> Result<(), ToolError> {
        let pre = self.blocks.last() == Some(&Block::Pre);
        if !pre && text.chars().all(|c| c.is_ascii_whitespace()) {
            if !self.fresh && !self.piece.ends_with(' ') {
                self.piece.push(' ');
            }
            return Ok(());
        }
        let mut rest = text;
        while !rest.is_empty() {
            let (part, after) = rest.split_at(cut_at(rest));
            self.ready()?;
            if part == "<" {
                self.piece.push_str("&lt;")
            } else {
                self.piece.push_str(part)
            }
            rest = after;
        }
        Ok(())
    }

    /// Prepares for text: opens a paragraph if there is none, writes the bars of a table and the
    /// inline tags.
    fn ready(&mut self) -> Result<(), ToolError> {
        if self.piece.len() > PIECE_HARD {
            self.flush("")?;
        }
        match self.blocks.last() {
            Some(Block::List(_)) => self.push(Block::Item),
            None | Some(Block::Quote) if !self.paragraph => {
                self.piece.push_str("<p>");
                (self.paragraph, self.fresh) = (true, true);
            }
            _ => {}
        }
        if std::mem::take(&mut self.gap) && !self.fresh {
            self.close_inlines(0);
            self.piece
                .push_str(if self.blocks.last() == Some(&Block::Pre) {
                    "\n"
                } else {
                    "<br>"
                });
        }
        let bars = self.tables.last_mut().map_or(0, |table| {
            table.row_has_text = true;
            std::mem::take(&mut table.bars)
        });
        for _ in 0..bars.min(COLUMNS_MAX) {
            self.piece.push_str(" | ");
        }
        for inline in self.inlines.get(self.written..).unwrap_or_default() {
            self.piece.push_str(&inline.open);
        }
        self.written = self.inlines.len();
        self.fresh = false;
        Ok(())
    }

    fn row_ends(&mut self) {
        self.close_inlines(0);
        let Some(table) = self.tables.last_mut() else {
            return;
        };
        let row = std::mem::take(table);
        table.any_row = row.any_row || row.row_has_text;
        if !row.row_has_text {
            return;
        }
        // This line makes the head a Markdown table.
        if !row.any_row && row.cells > 1 && row.heads == row.cells {
            let columns = row.cells.min(COLUMNS_MAX);
            self.piece.push_str("<br>|");
            self.piece.push_str(&" --- |".repeat(columns));
        }
        self.gap = true;
    }

    fn inline(&mut self, name: &'static str, open: String) {
        let known = self.inlines.iter().any(|inline| inline.name == name);
        if !known && self.inlines.len() < INLINES_MAX {
            self.inlines.push(Inline { name, open });
        }
    }

    /// Ends an inline element. Those opened after it are opened again before the next text.
    fn unwrap_inline(&mut self, name: &str) {
        if let Some(at) = self.inlines.iter().rposition(|inline| inline.name == name) {
            self.close_inlines(at);
            self.inlines.remove(at);
        }
    }

    /// Writes end tags until only `left` inline elements remain open.
    fn close_inlines(&mut self, left: usize) {
        while self.written > left {
            self.written -= 1;
            if let Some(inline) = self.inlines.get(self.written) {
                self.piece.push_str("</");
                self.piece.push_str(inline.name);
                self.piece.push('>');
            }
        }
    }

    /// Ends the current paragraph.
    fn boundary(&mut self) -> Result<(), ToolError> {
        self.close_inlines(0);
        if std::mem::take(&mut self.paragraph) {
            // A row of a table is one line, whatever its cells contain.
            if self.tables.last().is_some_and(|table| table.cells > 0) {
                self.paragraph = true;
                if !self.piece.ends_with(' ') {
                    self.piece.push(' ');
                }
                return Ok(());
            }
            self.piece.push_str("</p>");
            self.fresh = true;
        }
        match self.blocks.last() {
            Some(Block::Item) => self.gap = self.tables.is_empty() || self.gap,
            Some(Block::Heading(_)) => self.piece.push(' '),
            None | Some(Block::Quote | Block::List(_)) => self.gap = false,
            Some(Block::Pre) => {}
        }
        if self.piece.len() > PIECE_SOFT {
            self.flush("\n\n")
        } else {
            Ok(())
        }
    }

    fn push(&mut self, block: Block) {
        self.piece.push_str(block.open());
        self.blocks.push(block);
        (self.fresh, self.gap) = (true, false);
    }

    fn pop(&mut self) {
        if let Some(block) = self.blocks.pop() {
            self.piece.push_str(block.close());
            (self.fresh, self.gap) = (false, self.blocks.last() == Some(&Block::Item));
        }
    }

    fn open(&mut self, block: Block) -> Result<(), ToolError> {
        // There are no blocks inside of a row.
        if self.tables.last().is_some_and(|table| table.cells > 0) {
            return self.boundary();
        }
        self.boundary()?;
        while matches!(self.blocks.last(), Some(Block::Heading(_) | Block::Pre)) {
            self.pop();
        }
        match block {
            Block::Item => {
                let list = self
                    .blocks
                    .iter()
                    .rposition(|open| matches!(open, Block::List(_)));
                let item = self.blocks.iter().rposition(|open| *open == Block::Item);
                if let Some(item) = item.filter(|item| list.is_none_or(|list| list < *item)) {
                    self.pop_to(item);
                }
                if !matches!(self.blocks.last(), Some(Block::List(_)))
                    && self.blocks.len() + 2 <= BLOCKS_MAX
                {
                    self.push(Block::List("ul"));
                }
                // An item beyond the depth limit becomes a line of the item around it.
                if matches!(self.blocks.last(), Some(Block::List(_))) {
                    self.push(Block::Item);
                }
            }
            _ => {
                let within_list = matches!(self.blocks.last(), Some(Block::List(_)));
                if self.blocks.len() + 3 > BLOCKS_MAX {
                    return Ok(());
                }
                if within_list {
                    self.push(Block::Item);
                }
                self.push(block);
            }
        }
        Ok(())
    }

    fn close(&mut self, block: Block) -> Result<(), ToolError> {
        self.boundary()?;
        let mut open = self.blocks.iter().enumerate().rev();
        // Only an end tag of its own list ends an item.
        let found = match block {
            Block::Item => open
                .find(|(_, open)| matches!(open, Block::Item | Block::List(_)))
                .filter(|(_, open)| **open == Block::Item),
            _ => open.find(|(_, open)| open.ends_with(block)),
        };
        if let Some(at) = found.map(|(at, _)| at) {
            self.pop_to(at);
        }
        Ok(())
    }

    fn pop_to(&mut self, at: usize) {
        while self.blocks.len() > at {
            self.pop();
        }
    }

    /// Converts the piece and begins the next one inside the same blocks.
    fn flush(&mut self, joint: &str) -> Result<(), ToolError> {
        if self.cancel.is_cancelled() {
            return Err(cancelled());
        }
        self.close_inlines(0);
        if std::mem::take(&mut self.paragraph) {
            self.piece.push_str("</p>");
        }
        for block in self.blocks.iter().rev() {
            self.piece.push_str(block.close());
        }
        let piece = std::mem::take(&mut self.piece);
        let text = self
            .converter
            .convert(&piece)
            .map_err(|_| ToolError::failed("the page could not be converted to text"))?;
        if !text.trim().is_empty() {
            if !self.out.is_empty() {
                self.out.push_str(joint);
            }
            self.out.push_str(&text);
        }
        for block in &self.blocks {
            self.piece.push_str(block.open());
        }
        (self.fresh, self.gap) = (true, false);
        Ok(())
    }

    /// Returns the target of a link if it can be followed.
    fn link(&self, href: &str) -> Option<String> {
        if href.len() > LINK_BYTES_MAX {
            return None;
        }
        let url = self.base.join(href.trim()).ok()?;
        (matches!(url.scheme(), "http" | "https" | "mailto")
            && url.as_str().len() <= LINK_BYTES_MAX)
            .then(|| url.into())
    }
}

fn title(text: &str) -> Option<String> {
    let text = unescape(text);
    let words: Vec<&str> = text.split_whitespace().take(TITLE_CHARS_MAX).collect();
    Some(
        words
            .join(" ")
            .chars()
            .take(TITLE_CHARS_MAX)
            .collect::<String>(),
    )
    .filter(|title| !title.is_empty())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('"', "&quot;")
        .replace('<', "&lt;")
}

/// Returns where to cut a long text: at a blank, else between characters.
fn cut_at(text: &str) -> usize {
    if text.len() <= PIECE_SOFT {
        return text.len();
    }
    let end = text.floor_char_boundary(PIECE_SOFT);
    let near = text.get(end.saturating_sub(200)..end).is_some();
    let from = if near {
        end.saturating_sub(200)
    } else {
        text.floor_char_boundary(end.saturating_sub(200))
    };
    text.get(from..end)
        .and_then(|window| window.rfind([' ', '\n']))
        .map_or(end, |at| from + at + 1)
}
