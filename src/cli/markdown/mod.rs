//! Markdown as it arrives, as styled rows for a terminal. A row is returned once and never changes;
//! what is unfinished is returned separately, by [`Markdown::live`].
//!
//! Which rows come out depends on the text and the width, not on the pieces in which the text
//! arrived. No row is wider than the terminal. Escape sequences of the text are escaped.
//!
//! Differs from CommonMark where waiting would hold text back: headings underlined with `=` and
//! tables without a bar at their beginning are paragraphs, and links by reference are text.
//!
//! Pure.

mod code;
mod inline;
mod line;
mod source;
mod table;

use code::Language;
use inline::{inline, settled};
#[cfg(test)]
pub(in crate::cli) use line::text_of;
use line::{BREAK, may_break_before, split, trimmed, wrap};
pub(in crate::cli) use line::{Line, Span, Style, columns, cut, line_columns, push};
use source::{
    Fence, Marker, fence, heading, indent_of, is_rule, leading_expanded, marker, without_indent,
};

/// Least width that rows are made for. A narrower terminal wraps them.
const WIDTH_MIN: usize = 10;

/// Bytes of a line after which a paragraph is recognized before the line ends.
const PARAGRAPH_BYTES: usize = 64;

/// Bytes after which something unfinished is shown as it is.
const HELD_BYTES_MAX: usize = 4096;

/// Lines of a table that are laid out together.
const TABLE_LINES_MAX: usize = 200;

/// Columns of a rule.
const RULE: usize = 40;

/// Quotes and items within one another.
const DEPTH_MAX: usize = 12;

/// Renders Markdown that arrives in pieces.
#[derive(Debug, Clone)]
pub(in crate::cli) struct Markdown {
    width: usize,
    /// The unfinished line, as far as no block has taken it.
    line: String,
    /// Whether the line goes to the open paragraph, character by character.
    flows: bool,
    /// Whether the line was looked at before its end.
    is_asked: bool,
    containers: Vec<Container>,
    leaf: Leaf,
    /// Number of containers that an empty line before the next block belongs to.
    blank: Option<usize>,
    /// Whether there are rows already.
    is_begun: bool,
}

/// What contains blocks.
#[derive(Debug, Clone)]
enum Container {
    Quote,
    Item {
        /// Columns of source before the contents.
        indent: usize,
        /// The mark, with the space behind it.
        mark: String,
        /// Whether a row with the mark was made.
        is_marked: bool,
    },
}

/// The open block.
#[derive(Debug, Clone)]
enum Leaf {
    None,
    Paragraph(Paragraph),
    Code { fence: Fence, language: Language },
    Table(Vec<String>),
}

#[derive(Debug, Clone)]
struct Paragraph {
    /// What its next row begins with.
    first: Line,
    /// What the later rows begin with.
    next: Line,
    /// What is final, but does not fill a row yet.
    carry: Line,
    source: String,
    /// Bytes of source at which [`settled`] is asked again.
    ask_at: usize,
}

impl Paragraph {
    fn rows(&self, upto: usize, width: usize) -> Vec<Line> {
        #[cfg(test)]
        tests::LAID_OUT.with(|bytes| bytes.set(bytes.get() + self.held() + upto));
        let mut spans = self.carry.clone();
        for span in inline(self.source.get(..upto).unwrap_or_default(), Style::PLAIN) {
            push(&mut spans, span);
        }
        wrap(&spans, &self.first, &self.next, width)
    }

    /// Takes the rows that no later text changes.
    fn advance(&mut self, width: usize) -> Vec<Line> {
        let upto = match settled(&self.source) {
            // A mark that nothing closes is text.
            0 if self.source.len() >= HELD_BYTES_MAX => self.source.len(),
            upto => upto,
        };
        let mut rows = self.rows(upto, width);
        let last = rows.pop().unwrap_or_default();
        if !rows.is_empty() {
            self.first = self.next.clone();
        }
        self.carry = without(last, &self.first);
        // Marks without a width of their own fill no row. Each later piece of text would lay them out
        // again.
        if self.held() > HELD_BYTES_MAX {
            let mut row = std::mem::replace(&mut self.first, self.next.clone());
            row.append(&mut self.carry);
            rows.push(row);
        }
        self.source = self.source.split_off(upto);
        self.ask_at = self.source.len() + PARAGRAPH_BYTES;
        rows
    }

    /// Bytes that are final and fill no row yet.
    fn held(&self) -> usize {
        self.carry.iter().map(|span| span.text.len()).sum()
    }

    /// Ends the row, because the line of source has ended.
    fn end_row(&mut self) {
        let length = self.source.trim_end_matches([' ', '\t']).len();
        self.source.truncate(length);
        self.source.push(BREAK);
    }

    fn fit(&mut self, width: usize) {
        for before in [&mut self.first, &mut self.next] {
            *before = fitted(std::mem::take(before), width);
        }
    }
}

/// The row without what it began with.
fn without(row: Line, before: &[Span]) -> Line {
    let mut skip: usize = before.iter().map(|span| span.text.len()).sum();
    let mut rest = Line::new();
    for mut span in row {
        let cut = skip.min(span.text.len());
        skip -= cut;
        span.text = span.text.split_off(cut);
        push(&mut rest, span);
    }
    rest
}

/// What rows begin with, as far as half of the width allows.
fn fitted(mut before: Line, width: usize) -> Line {
    while line_columns(&before) > width / 2 {
        before.pop();
    }
    before
}

impl Markdown {
    pub(in crate::cli) fn new(width: usize) -> Self {
        Self {
            width: width.max(WIDTH_MIN),
            line: String::new(),
            flows: false,
            is_asked: false,
            containers: Vec::new(),
            leaf: Leaf::None,
            blank: None,
            is_begun: false,
        }
    }

    /// Sets the width of the rows that are still to come.
    pub(in crate::cli) fn set_width(&mut self, width: usize) {
        self.width = width.max(WIDTH_MIN);
        if let Leaf::Paragraph(paragraph) = &mut self.leaf {
            paragraph.fit(self.width);
        }
    }

    /// Takes the next piece of text and returns the rows that are finished.
    pub(in crate::cli) fn push(&mut self, text: &str) -> Vec<Line> {
        let mut rows = Vec::new();
        for c in text.chars() {
            self.character(c, &mut rows);
        }
        rows
    }

    /// Returns the rest, and begins again.
    pub(in crate::cli) fn finish(&mut self) -> Vec<Line> {
        let mut rows = Vec::new();
        if !self.line.is_empty() {
            self.character('\n', &mut rows);
        }
        self.close(&mut rows);
        self.leave(0, &mut rows);
        *self = Self::new(self.width);
        rows
    }

    /// Returns the last rows of what is unfinished, `rows_max` at most, as they would be if nothing
    /// followed.
    pub(in crate::cli) fn live(&self, rows_max: usize) -> Vec<Line> {
        let mut rows = self.clone().finish();
        rows.drain(..rows.len().saturating_sub(rows_max));
        rows
    }

    fn character(&mut self, c: char, rows: &mut Vec<Line>) {
        if c == '\n' {
            let line = std::mem::take(&mut self.line);
            self.is_asked = false;
            if !std::mem::take(&mut self.flows) {
                self.whole_line(&line, rows);
            }
            return;
        }
        let breaks = c.is_whitespace() || may_break_before(c);
        if self.line.len() >= HELD_BYTES_MAX {
            self.give_up(rows);
        } else if breaks && !self.is_asked && self.line.len() >= PARAGRAPH_BYTES {
            self.is_asked = true;
            self.early(rows);
        }
        let Leaf::Paragraph(paragraph) = &mut self.leaf else {
            return self.line.push(c);
        };
        if !self.flows {
            return self.line.push(c);
        }
        let length = paragraph.source.len();
        if (breaks && length >= paragraph.ask_at) || length >= paragraph.ask_at + HELD_BYTES_MAX {
            let done = paragraph.advance(self.width);
            paragraph.source.push(c);
            self.emit(done, rows);
        } else {
            paragraph.source.push(c);
        }
    }

    /// Looks whether the unfinished line belongs to a paragraph.
    fn early(&mut self, rows: &mut Vec<Line>) {
        if matches!(self.leaf, Leaf::Code { .. } | Leaf::Table(_)) {
            return;
        }
        let mut trial = self.clone();
        let mut done = Vec::new();
        if let Some(text) = trial.blocks(&self.line, &mut done) {
            *self = trial;
            rows.append(&mut done);
            self.text(&text, rows);
            self.flow();
        }
    }

    /// Shows a line that is too long to be held.
    fn give_up(&mut self, rows: &mut Vec<Line>) {
        let line = std::mem::take(&mut self.line);
        if matches!(self.leaf, Leaf::Code { .. }) {
            self.code_line(&line, rows);
        } else {
            self.close(rows);
            self.text(&line, rows);
            self.flow();
        }
    }

    /// The rest of the line goes to the paragraph.
    fn flow(&mut self) {
        self.line.clear();
        self.flows = true;
    }

    fn whole_line(&mut self, line: &str, rows: &mut Vec<Line>) {
        if let Leaf::Code { fence, .. } = &self.leaf {
            let (rest, matched) = self.matched(line);
            let is_inside = self
                .containers
                .iter()
                .skip(matched)
                .all(|container| matches!(container, Container::Item { .. }));
            if fence.is_ended_by(&rest) {
                self.leaf = Leaf::None;
                return;
            }
            if is_inside {
                let rest = without_indent(&rest, fence.indent).to_owned();
                return self.code_line(&rest, rows);
            }
            self.leaf = Leaf::None;
        }
        if let Some(text) = self.blocks(line, rows) {
            self.text(&text, rows);
        }
    }

    /// The line without the marks of the open containers, and how many of them it continues.
    fn matched(&self, line: &str) -> (String, usize) {
        let mut rest = leading_expanded(line);
        let mut matched = 0;
        for container in &self.containers {
            match container {
                Container::Quote => match quoted(&rest) {
                    Some(inner) => rest = inner,
                    None => break,
                },
                Container::Item { .. } if rest.trim().is_empty() => {}
                Container::Item { indent, .. } if indent_of(&rest) >= *indent => {
                    rest = without_indent(&rest, *indent).to_owned();
                }
                Container::Item { .. } => break,
            }
            matched += 1;
        }
        (rest, matched)
    }

    /// Handles the line and returns its text if it belongs to a paragraph.
    fn blocks(&mut self, line: &str, rows: &mut Vec<Line>) -> Option<String> {
        let (mut rest, matched) = self.matched(line);
        if matched < self.containers.len() || rest.trim().is_empty() {
            self.close(rows);
            self.leave(matched, rows);
        }
        if rest.trim().is_empty() {
            self.mark_items(0, rows);
            self.blank = Some(matched);
            return None;
        }
        while let Some((container, inner)) = self.opened(&rest) {
            self.close(rows);
            self.containers.push(container);
            rest = inner;
        }
        if rest.trim().is_empty() {
            return None; // An empty item; its mark comes with its first row.
        }
        if let Leaf::Table(lines) = &mut self.leaf {
            if rest.trim_start().starts_with('|')
                && (lines.len() != 1 || table::is_delimiter(&rest))
            {
                lines.push(rest);
                if lines.len() >= TABLE_LINES_MAX {
                    self.close(rows);
                }
                return None;
            }
            self.close(rows);
        }
        let is_paragraph = matches!(self.leaf, Leaf::Paragraph(_));
        if let Some(fence) = fence(&rest) {
            self.close(rows);
            if !fence.language.is_empty() {
                let label = vec![Span::new(&fence.language, Style::DIM)];
                self.rows_of(&label, rows);
            }
            let language = Language::named(&fence.language);
            self.leaf = Leaf::Code { fence, language };
        } else if let Some((level, text)) = heading(&rest) {
            self.close(rows);
            let style = match level {
                1 => Style::BOLD.with(Style::UNDERLINE),
                _ => Style::BOLD,
            };
            self.rows_of(&inline(text, style), rows);
        } else if is_rule(&rest) {
            self.close(rows);
            let columns = RULE.min(self.width / 2);
            self.rows_of(&[Span::new(&"─".repeat(columns), Style::DIM)], rows);
        } else if !is_paragraph && rest.trim_start().starts_with('|') {
            self.leaf = Leaf::Table(vec![rest]);
        } else if !is_paragraph && indent_of(&rest) >= 4 {
            self.code_line(without_indent(&rest, 4), rows);
        } else {
            return Some(rest);
        }
        None
    }

    /// The container that the line opens, and the line within it.
    fn opened(&self, line: &str) -> Option<(Container, String)> {
        if self.containers.len() >= DEPTH_MAX {
            return None;
        }
        if let Some(inner) = quoted(line) {
            return Some((Container::Quote, inner));
        }
        let Marker {
            number,
            indent,
            rest,
        } = marker(line).filter(|_| !is_rule(line))?;
        let is_paragraph = matches!(self.leaf, Leaf::Paragraph(_));
        let interrupts = !rest.trim().is_empty() && number.is_none_or(|number| number == "1");
        if is_paragraph && !interrupts {
            return None;
        }
        let is_item = |container: &&Container| matches!(container, Container::Item { .. });
        let depth = self.containers.iter().filter(is_item).count();
        let mark = match number {
            Some(number) => format!("{number}. "),
            None => ["• ", "◦ ", "▪ "]
                .get(depth.min(2))
                .copied()
                .unwrap_or("• ")
                .to_owned(),
        };
        let (mark, rest) = match (rest.get(..4), rest.get(4..)) {
            (Some("[ ] "), Some(task)) => (mark + "☐ ", task),
            (Some("[x] " | "[X] "), Some(task)) => (mark + "☑ ", task),
            _ => (mark, rest),
        };
        let item = Container::Item {
            indent,
            mark,
            is_marked: false,
        };
        Some((item, rest.to_owned()))
    }

    /// Adds a line to the paragraph, or begins one.
    fn text(&mut self, text: &str, rows: &mut Vec<Line>) {
        let text = text.trim_start();
        if let Leaf::Paragraph(paragraph) = &mut self.leaf {
            paragraph.end_row();
            paragraph.source.push_str(text);
            let done = paragraph.advance(self.width);
            return self.emit(done, rows);
        }
        self.close(rows);
        let (first, next) = self.begin(rows);
        self.leaf = Leaf::Paragraph(Paragraph {
            first,
            next,
            carry: Line::new(),
            source: text.to_owned(),
            ask_at: PARAGRAPH_BYTES,
        });
    }

    fn code_line(&mut self, source: &str, rows: &mut Vec<Line>) {
        let mut line = match &mut self.leaf {
            Leaf::Code { language, .. } => language.color(source),
            _ => Language::named("").color(source),
        };
        let (mut first, mut next) = self.begin(rows);
        for before in [&mut first, &mut next] {
            push(before, Span::new("  ", Style::PLAIN));
        }
        if line.is_empty() {
            line.push(Span::new(" ", Style::PLAIN));
        }
        let done = split(&line, &first, &next, self.width);
        self.emit(done, rows);
    }

    /// Ends the open block.
    fn close(&mut self, rows: &mut Vec<Line>) {
        match std::mem::replace(&mut self.leaf, Leaf::None) {
            Leaf::None | Leaf::Code { .. } => {}
            Leaf::Paragraph(mut paragraph) => {
                let length = paragraph.source.trim_end().len();
                paragraph.source.truncate(length);
                let done = paragraph.rows(length, self.width);
                self.emit(done, rows);
            }
            Leaf::Table(lines) => match lines.get(1) {
                Some(delimiter) if table::is_delimiter(delimiter) => {
                    let (first, _) = self.begin(rows);
                    let done = table::table(&lines, &first, self.width);
                    self.emit(done, rows);
                }
                _ => lines.iter().for_each(|line| {
                    self.rows_of(&inline(line.trim(), Style::PLAIN), rows);
                }),
            },
        }
    }

    /// Ends the containers behind the first `depth`.
    fn leave(&mut self, depth: usize, rows: &mut Vec<Line>) {
        self.mark_items(depth, rows);
        self.containers.truncate(depth);
    }

    /// Shows the marks of items that are empty so far.
    fn mark_items(&mut self, depth: usize, rows: &mut Vec<Line>) {
        let is_unmarked = |container: &Container| match container {
            Container::Item { is_marked, .. } => !is_marked,
            Container::Quote => false,
        };
        if self.containers.iter().skip(depth).any(is_unmarked) {
            self.rows_of(&[], rows);
        }
    }

    /// Wraps a separate line into rows.
    fn rows_of(&mut self, line: &[Span], rows: &mut Vec<Line>) {
        let (first, next) = self.begin(rows);
        let done = wrap(line, &first, &next, self.width);
        self.emit(done, rows);
    }

    /// Begins a block: makes the empty row before it, and returns what its first row and its later
    /// rows begin with.
    fn begin(&mut self, rows: &mut Vec<Line>) -> (Line, Line) {
        if let Some(depth) = self.blank.take().filter(|_| self.is_begun) {
            let quotes = self.containers.iter().take(depth);
            let mut row = Line::new();
            for container in quotes {
                push(&mut row, container.before());
            }
            rows.push(trimmed(fitted(row, self.width)));
        }
        let (mut first, mut next) = (Line::new(), Line::new());
        for container in &mut self.containers {
            push(&mut next, container.before());
            push(&mut first, container.mark());
        }
        (fitted(first, self.width), fitted(next, self.width))
    }

    fn emit(&mut self, done: Vec<Line>, rows: &mut Vec<Line>) {
        self.is_begun |= !done.is_empty();
        rows.extend(done.into_iter().map(trimmed));
    }
}

impl Container {
    /// What rows begin with.
    fn before(&self) -> Span {
        match self {
            Self::Quote => Span::new("│ ", Style::DIM),
            Self::Item { mark, .. } => Span::new(&" ".repeat(columns(mark)), Style::PLAIN),
        }
    }

    /// What the first row begins with.
    fn mark(&mut self) -> Span {
        match self {
            Self::Item {
                mark, is_marked, ..
            } if !*is_marked => {
                *is_marked = true;
                Span::new(mark, Style::PLAIN)
            }
            container => container.before(),
        }
    }
}

/// The line within a quote.
fn quoted(line: &str) -> Option<String> {
    let inner = line
        .trim_start()
        .strip_prefix('>')
        .filter(|_| indent_of(line) < 4)?;
    let inner = leading_expanded(inner);
    Some(without_indent(&inner, 1).to_owned())
}

#[cfg(test)]
mod tests;
