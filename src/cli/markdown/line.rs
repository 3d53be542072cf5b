//! A styled line, its display width, and wrapping it to the width of a terminal.
//!
//! Pure.

use std::sync::Arc;

use unicode_segmentation::UnicodeSegmentation as _;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::visible::visible;

/// Attributes of a piece of text, as a set of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::cli) struct Style(u16);

impl Style {
    pub(in crate::cli) const PLAIN: Self = Self(0);
    pub(in crate::cli) const BOLD: Self = Self(1);
    pub(in crate::cli) const DIM: Self = Self(2);
    pub(in crate::cli) const ITALIC: Self = Self(4);
    pub(in crate::cli) const UNDERLINE: Self = Self(8);
    pub(in crate::cli) const STRIKE: Self = Self(16);
    pub(in crate::cli) const RED: Self = Self(32);
    pub(in crate::cli) const GREEN: Self = Self(64);
    pub(in crate::cli) const CYAN: Self = Self(128);

    /// Each attribute and the number by which terminals know it.
    const CODES: [(Self, &'static str); 8] = [
        (Self::BOLD, "1"),
        (Self::DIM, "2"),
        (Self::ITALIC, "3"),
        (Self::UNDERLINE, "4"),
        (Self::STRIKE, "9"),
        (Self::RED, "31"),
        (Self::GREEN, "32"),
        (Self::CYAN, "36"),
    ];

    /// Returns both sets together.
    pub(in crate::cli) fn with(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }

    /// The numbers of the attributes, separated by semicolons; empty for plain text.
    pub(in crate::cli) fn codes(self) -> String {
        let set = Self::CODES.iter().filter(|(bit, _)| self.0 & bit.0 != 0);
        set.map(|(_, code)| *code).collect::<Vec<_>>().join(";")
    }
}

/// A piece of text in one style.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct Span {
    pub(in crate::cli) text: String,
    pub(in crate::cli) style: Style,
    /// The address that the text leads to: the text itself, or the file whose path the text is.
    pub(in crate::cli) link: Option<Arc<str>>,
}

impl Span {
    /// Invisible characters are escaped, and line ends and tabs become spaces.
    pub(in crate::cli) fn new(text: &str, style: Style) -> Self {
        Self {
            text: visible(text).replace(['\n', '\t'], " "),
            style,
            link: None,
        }
    }

    fn like(&self, text: &str) -> Self {
        Self {
            text: text.to_owned(),
            ..self.clone()
        }
    }

    fn is_like(&self, other: &Self) -> bool {
        self.style == other.style && self.link == other.link
    }
}

/// One row of output, or text that is still to be wrapped into rows.
pub(in crate::cli) type Line = Vec<Span>;

/// The line without its styles.
#[cfg(test)]
pub(in crate::cli) fn text_of(line: &[Span]) -> String {
    line.iter().map(|span| span.text.as_str()).collect()
}

/// Number of columns of a text. Terminals disagree on joined emoji, so the larger count is taken: a
/// line may end early, but it never overflows.
pub(in crate::cli) fn columns(text: &str) -> usize {
    if text.is_ascii() {
        return text.len();
    }
    text.graphemes(true).map(cluster_columns).sum()
}

fn cluster_columns(cluster: &str) -> usize {
    let each: usize = cluster.chars().map(|c| c.width().unwrap_or(1)).sum();
    each.max(cluster.width())
}

/// Number of columns of a line.
pub(in crate::cli) fn line_columns(line: &[Span]) -> usize {
    line.iter().map(|span| columns(&span.text)).sum()
}

/// Appends a span, and joins it with the last one if both look the same.
pub(in crate::cli) fn push(line: &mut Line, span: Span) {
    match line.last_mut() {
        Some(last) if last.is_like(&span) => last.text.push_str(&span.text),
        _ if span.text.is_empty() => {}
        _ => line.push(span),
    }
}

/// The character that forces a row to end. [`visible`] leaves none of them in a text.
pub(super) const BREAK: char = '\u{2028}';

/// Closing marks, which stay in the row of the character before them.
const CLOSING: &str = "、。，．：；！？）」』】》〉”’…";

/// Whether a row may end before this character although there is no space.
pub(super) fn may_break_before(c: char) -> bool {
    c.width() == Some(2) && !CLOSING.contains(c)
}

/// What is placed into a row as a whole.
enum Token {
    Space(Span),
    Word(Line, usize),
    Break,
}

fn tokens(spans: &[Span]) -> Vec<Token> {
    let mut tokens = Vec::new();
    // Whether the last word ends with a wide character, after which a row may end.
    let mut is_wide = false;
    for span in spans {
        for cluster in span.text.graphemes(true) {
            let first = cluster.chars().next().unwrap_or(' ');
            if first == BREAK {
                tokens.push(Token::Break);
            } else if cluster == " " {
                if !matches!(tokens.last(), Some(Token::Space(_))) {
                    tokens.push(Token::Space(span.like(" ")));
                }
            } else {
                let (wide, closing) = (may_break_before(first), CLOSING.contains(first));
                let width = cluster_columns(cluster);
                match tokens.last_mut() {
                    Some(Token::Word(word, columns)) if !wide && (!is_wide || closing) => {
                        push(word, span.like(cluster));
                        *columns += width;
                    }
                    _ => tokens.push(Token::Word(vec![span.like(cluster)], width)),
                }
                is_wide = wide || (is_wide && closing);
            }
        }
    }
    tokens
}

/// Breaks text into rows of at most `width` columns, at spaces and between wide characters. A word
/// that is longer than a row is split. Each row begins with `first`, then with `next`. More text at
/// the end changes no row but the last one, which keeps its spaces.
pub(super) fn wrap(spans: &[Span], first: &[Span], next: &[Span], width: usize) -> Vec<Line> {
    let mut rows = Rows::new(first, next, width);
    let mut space: Option<Span> = None;
    for token in tokens(spans) {
        match token {
            Token::Break => {
                space = None;
                rows.end();
            }
            Token::Space(span) => space = Some(span),
            Token::Word(word, columns) => {
                let gap = usize::from(space.is_some() && !rows.is_empty());
                if rows.left() >= columns + gap {
                    if gap == 1 {
                        rows.extend(space.take());
                    }
                    rows.extend(word);
                } else {
                    if !rows.is_empty() {
                        rows.end();
                    }
                    rows.split(&word);
                }
                space = None;
            }
        }
    }
    let is_empty = rows.is_empty();
    rows.row.extend(space.filter(|_| !is_empty));
    rows.rows.push(rows.row);
    rows.rows
}

/// Breaks code into rows of at most `width` columns and keeps its spaces.
pub(super) fn split(spans: &[Span], first: &[Span], next: &[Span], width: usize) -> Vec<Line> {
    let mut rows = Rows::new(first, next, width);
    rows.split(spans);
    rows.rows.push(rows.row);
    rows.rows
}

struct Rows<'a> {
    rows: Vec<Line>,
    row: Line,
    /// Columns of the row without what it began with.
    used: usize,
    room: usize,
    next: &'a [Span],
    next_room: usize,
}

impl<'a> Rows<'a> {
    fn new(first: &[Span], next: &'a [Span], width: usize) -> Self {
        // A cluster has two columns or more; what is before the text leaves room for one.
        let room = |before: &[Span]| width.saturating_sub(line_columns(before)).max(1);
        Self {
            rows: Vec::new(),
            row: first.to_vec(),
            used: 0,
            room: room(first),
            next,
            next_room: room(next),
        }
    }

    fn is_empty(&self) -> bool {
        self.used == 0
    }

    fn left(&self) -> usize {
        self.room.saturating_sub(self.used)
    }

    fn extend(&mut self, spans: impl IntoIterator<Item = Span>) {
        for span in spans {
            self.used += columns(&span.text);
            push(&mut self.row, span);
        }
    }

    fn end(&mut self) {
        self.rows
            .push(std::mem::replace(&mut self.row, self.next.to_vec()));
        (self.used, self.room) = (0, self.next_room);
    }

    fn split(&mut self, spans: &[Span]) {
        for span in spans {
            for cluster in span.text.graphemes(true) {
                let mut columns = cluster_columns(cluster);
                if columns > self.left() && !self.is_empty() {
                    self.end();
                }
                let shown = if columns > self.left() { "?" } else { cluster };
                columns = columns.min(self.left());
                self.used += columns;
                push(&mut self.row, span.like(shown));
            }
        }
    }
}

/// The row without spaces at its end.
pub(super) fn trimmed(mut row: Line) -> Line {
    while let Some(last) = row.last_mut() {
        let length = last.text.trim_end_matches(' ').len();
        last.text.truncate(length);
        if length > 0 {
            break;
        }
        row.pop();
    }
    row
}

/// The row, cut after `width` columns.
pub(in crate::cli) fn cut(row: &[Span], width: usize) -> Line {
    if line_columns(row) <= width {
        return row.to_vec();
    }
    let mut left = width.saturating_sub(1);
    let mut line = Line::new();
    for span in row {
        let mut text = String::new();
        let mut is_whole = true;
        for c in span.text.chars() {
            let wide = columns(c.encode_utf8(&mut [0; 4]));
            if wide > left {
                is_whole = false;
                break;
            }
            left -= wide;
            text.push(c);
        }
        if !is_whole {
            text.push('…');
        }
        line.push(Span {
            text,
            ..span.clone()
        });
        if !is_whole {
            break;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_cut_at_the_width_of_the_terminal() {
        let row = [
            Span::new("ab", Style::BOLD),
            Span::new("日本語", Style::PLAIN),
        ];

        assert_eq!(text_of(&cut(&row, 8)), "ab日本語");
        assert_eq!(text_of(&cut(&row, 7)), "ab日本…");
        assert_eq!(text_of(&cut(&row, 6)), "ab日…");
        assert_eq!(text_of(&cut(&row, 1)), "…");
    }
}
