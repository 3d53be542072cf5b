//! Emphasis, code and links within a paragraph, and how much of an unfinished paragraph is final.
//!
//! Pure.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::line::{BREAK, Line, Span, Style, push};

/// Text before the source, so that nothing in it begins a block. It is removed from the output.
const GUARD: &str = "x ";

/// Longest address that becomes a link.
const LINK_BYTES_MAX: usize = 2000;

/// Renders one line of source.
pub(super) fn inline(source: &str, style: Style) -> Line {
    let guarded = format!("{GUARD}{source}");
    let mut writer = Writer {
        line: Line::new(),
        styles: vec![style],
        links: Vec::new(),
    };
    let mut guard = GUARD;
    for event in Parser::new_ext(&guarded, Options::ENABLE_STRIKETHROUGH) {
        match event {
            Event::Text(text) if !guard.is_empty() => {
                let text = text
                    .strip_prefix(guard)
                    .or(text.strip_prefix(guard.trim_end()));
                writer.text(text.unwrap_or_default());
                guard = "";
            }
            event => writer.event(event),
        }
    }
    // The parser drops spaces at the end of a paragraph, but more text may follow.
    if source.ends_with(' ') && !writer.line.is_empty() {
        push(&mut writer.line, Span::new(" ", style));
    }
    writer.line
}

struct Writer {
    line: Line,
    styles: Vec<Style>,
    /// Addresses of the open links and images, and where their texts begin.
    links: Vec<(String, usize)>,
}

impl Writer {
    fn style(&self) -> Style {
        self.styles.last().copied().unwrap_or_default()
    }

    fn event(&mut self, event: Event<'_>) {
        let style = self.style();
        match event {
            Event::Text(text) => self.text(&text),
            Event::Code(text) => {
                let text = text.replace(BREAK, " ");
                push(&mut self.line, Span::new(&text, style.with(Style::CYAN)));
            }
            Event::Html(text)
            | Event::InlineHtml(text)
            | Event::InlineMath(text)
            | Event::DisplayMath(text)
            | Event::FootnoteReference(text) => push(&mut self.line, Span::new(&text, style)),
            Event::SoftBreak | Event::HardBreak => push(&mut self.line, Span::new(" ", style)),
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Rule | Event::TaskListMarker(_) => {}
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        let more = match tag {
            Tag::Emphasis => Style::ITALIC,
            Tag::Strong => Style::BOLD,
            Tag::Strikethrough => Style::STRIKE,
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => {
                self.links.push((dest_url.into_string(), self.length()));
                Style::UNDERLINE
            }
            _ => return,
        };
        self.styles.push(self.style().with(more));
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough => {
                self.styles.pop();
            }
            TagEnd::Link | TagEnd::Image => {
                self.styles.pop();
                if let Some((address, begun)) = self.links.pop() {
                    self.address(&address, begun);
                }
            }
            _ => {}
        }
    }

    /// Number of bytes of the text so far.
    fn length(&self) -> usize {
        self.line.iter().map(|span| span.text.len()).sum()
    }

    /// Shows where a link leads, unless its text says it.
    fn address(&mut self, address: &str, begun: usize) {
        let shown: String = self.line.iter().map(|span| span.text.as_str()).collect();
        let text = shown.get(begun..).unwrap_or_default();
        if text == address || format!("mailto:{text}") == address || address.is_empty() {
            return;
        }
        let dim = self.style().with(Style::DIM);
        push(&mut self.line, Span::new(" (", dim));
        push(&mut self.line, addressed(address, dim));
        push(&mut self.line, Span::new(")", dim));
    }

    /// Adds text; addresses in it become links.
    fn text(&mut self, text: &str) {
        let style = self.style();
        let mut parts = text.split(BREAK);
        self.words(parts.next().unwrap_or_default(), style);
        for part in parts {
            self.line.push(Span {
                text: BREAK.to_string(),
                style,
                link: None,
            });
            self.words(part, style);
        }
    }

    fn words(&mut self, text: &str, style: Style) {
        let mut rest = text;
        while let Some(at) = ["https://", "http://"]
            .iter()
            .filter_map(|scheme| rest.find(scheme))
            .min()
        {
            let (before, from) = rest.split_at(at);
            let end = from.find(|c: char| !c.is_ascii_graphic() || "<>\"'`".contains(c));
            let (address, after) = from.split_at(end.unwrap_or(from.len()));
            let address_end = address
                .trim_end_matches(|c: char| ".,;:!?)]}*_~".contains(c))
                .len();
            let (address, mark) = address.split_at(address_end);
            push(&mut self.line, Span::new(before, style));
            push(&mut self.line, addressed(address, style));
            push(&mut self.line, Span::new(mark, style));
            rest = after;
        }
        push(&mut self.line, Span::new(rest, style));
    }
}

/// An address as text that leads to itself.
fn addressed(address: &str, style: Style) -> Span {
    let mut span = Span::new(address, style);
    span.link = is_honest(address).then(|| address.into());
    span
}

/// Whether a person who reads the address knows where it leads: an address of the web in ASCII, and
/// no name before its host.
fn is_honest(address: &str) -> bool {
    let rest = address
        .strip_prefix("https://")
        .or(address.strip_prefix("http://"));
    let Some(host) = rest.and_then(|rest| rest.split(['/', '?', '#']).next()) else {
        return false;
    };
    address.len() <= LINK_BYTES_MAX
        && address.chars().all(|c| c.is_ascii_graphic() && c != '\\')
        && !host.is_empty()
        && !host.contains('@')
        && !host.contains("xn--")
}

/// Number of bytes at the beginning of an unfinished paragraph that no later text changes: all up
/// to a mark that may open something and is not closed.
pub(super) fn settled(source: &str) -> usize {
    let mut open: Vec<(char, usize)> = Vec::new();
    let mut at = 0;
    while let Some(c) = source.get(at..).and_then(|rest| rest.chars().next()) {
        let rest = source.get(at..).unwrap_or_default();
        let limit = open.first().map_or(at, |(_, begun)| *begun);
        match c {
            '\\' => {
                let Some(escaped) = rest.chars().nth(1) else {
                    return limit;
                };
                at += 1 + if escaped.is_ascii_punctuation() { 1 } else { 0 };
            }
            '`' => {
                let length = run(rest, '`');
                let Some(closed) = code_end(rest, length) else {
                    return limit;
                };
                at += closed;
            }
            '[' => match link_end(rest) {
                Some(end) => at += end,
                None => return limit,
            },
            '<' if rest
                .chars()
                .nth(1)
                .is_none_or(|c| c.is_ascii_alphabetic() || "/!?".contains(c)) =>
            {
                match rest.find('>') {
                    Some(end) => at += end + 1,
                    None => return limit,
                }
            }
            '&' => {
                let name = rest.get(1..).unwrap_or_default();
                let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '#');
                if end.is_none() {
                    return limit;
                }
                at += 1;
            }
            '*' | '_' | '~' => {
                let length = run(rest, c);
                let before = source
                    .get(..at)
                    .and_then(|before| before.chars().next_back());
                let after = rest.get(length..).and_then(|after| after.chars().next());
                let is_in_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
                let closes = before.is_some_and(|before| !before.is_whitespace())
                    && !(c == '_' && is_in_word(after));
                let opens = after.is_none_or(|after| !after.is_whitespace())
                    && !(c == '_' && is_in_word(before));
                match open.iter().rposition(|(mark, _)| *mark == c) {
                    Some(which) if closes => open.truncate(which),
                    _ if opens => open.push((c, at)),
                    _ => {}
                }
                at += length;
            }
            c => at += c.len_utf8(),
        }
    }
    open.first()
        .map_or(at, |(_, begun)| *begun)
        .min(source.len())
}

fn run(text: &str, mark: char) -> usize {
    text.chars().take_while(|c| *c == mark).count()
}

/// Length of the code that begins with `length` backticks.
fn code_end(text: &str, length: usize) -> Option<usize> {
    let mut at = length;
    loop {
        at += text.get(at..)?.find('`')?;
        let found = run(text.get(at..)?, '`');
        at += found;
        if found == length {
            return Some(at);
        }
    }
}

/// Length of the bracket, with the address behind it; `None` if it is not closed.
fn link_end(text: &str) -> Option<usize> {
    let mut depth = 0u32;
    for (at, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            let after = text.get(at + 1..)?;
            return match after.chars().next()? {
                '(' => Some(at + 1 + after.find(')')? + 1),
                _ => Some(at + 1),
            };
        }
    }
    None
}
