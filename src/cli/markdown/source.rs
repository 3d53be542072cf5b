//! What a line of Markdown begins with.
//!
//! Pure.

/// The beginning of a block of code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fence {
    mark: char,
    length: usize,
    /// Columns before the fence, which its lines have too.
    pub(super) indent: usize,
    /// Name of the language; empty for none.
    pub(super) language: String,
}

impl Fence {
    /// Whether the line ends the block.
    pub(super) fn is_ended_by(&self, line: &str) -> bool {
        let line = line.trim();
        line.chars().count() >= self.length && line.chars().all(|c| c == self.mark)
    }
}

/// Number of spaces at the beginning.
pub(super) fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

/// The line without `columns` spaces at most.
pub(super) fn without_indent(line: &str, columns: usize) -> &str {
    line.get(indent_of(line).min(columns)..).unwrap_or_default()
}

/// The line with spaces for the tabs at its beginning.
pub(super) fn leading_expanded(line: &str) -> String {
    let text = line.trim_start_matches([' ', '\t']);
    let (space, _) = line.split_at(line.len() - text.len());
    super::code::expanded(space) + text
}

pub(super) fn fence(line: &str) -> Option<Fence> {
    let indent = indent_of(line);
    let text = line.trim_start();
    let mark = text.chars().next().filter(|c| matches!(c, '`' | '~'))?;
    let length = text.chars().take_while(|c| *c == mark).count();
    let info = text.get(length..)?.trim();
    if indent > 3 || length < 3 || (mark == '`' && info.contains('`')) {
        return None;
    }
    let name = info
        .split(|c: char| c.is_whitespace() || "{,:".contains(c))
        .next();
    Some(Fence {
        mark,
        length,
        indent,
        language: name.unwrap_or_default().chars().take(20).collect(),
    })
}

/// Level and text of a heading.
pub(super) fn heading(line: &str) -> Option<(usize, &str)> {
    let text = line.trim_start();
    let level = text.chars().take_while(|c| *c == '#').count();
    let rest = text.get(level..)?;
    if indent_of(line) > 3
        || !(1..=6).contains(&level)
        || !(rest.is_empty() || rest.starts_with([' ', '\t']))
    {
        return None;
    }
    let rest = rest.trim();
    let open = rest.trim_end_matches('#');
    Some((
        level,
        if open.is_empty() || open.ends_with(' ') {
            open.trim_end()
        } else {
            rest
        },
    ))
}

/// Whether the line is a rule: three or more of a mark, and spaces.
pub(super) fn is_rule(line: &str) -> bool {
    let mut marks = line.chars().filter(|c| !c.is_whitespace());
    let Some(mark) = marks.next().filter(|c| "-*_".contains(*c)) else {
        return false;
    };
    indent_of(line) < 4 && marks.clone().count() >= 2 && marks.all(|c| c == mark)
}

/// The mark of an item of a list.
pub(super) struct Marker<'a> {
    /// `None` for a bullet.
    pub(super) number: Option<&'a str>,
    /// Columns before its contents.
    pub(super) indent: usize,
    /// The line behind the mark.
    pub(super) rest: &'a str,
}

pub(super) fn marker(line: &str) -> Option<Marker<'_>> {
    let before = indent_of(line);
    let text = line.trim_start();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, length) = match text.get(digits..)?.chars().next()? {
        '-' | '*' | '+' if digits == 0 => (None, 1),
        '.' | ')' if (1..=9).contains(&digits) => (text.get(..digits), digits + 1),
        _ => return None,
    };
    let rest = text.get(length..)?;
    if before > 3 || !(rest.is_empty() || rest.starts_with(' ')) {
        return None;
    }
    // Five spaces and more belong to code within the item.
    let gap = match indent_of(rest) {
        gap @ 1..=4 if !rest.trim().is_empty() => gap,
        _ => 1,
    };
    Some(Marker {
        number,
        indent: before + length + gap,
        rest: without_indent(rest, gap),
    })
}
