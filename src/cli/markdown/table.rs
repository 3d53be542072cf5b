//! Tables: aligned columns if they fit, else one named value per line.
//!
//! Pure.

use super::{
    inline::inline,
    line::{Line, Span, Style, line_columns, push, wrap},
};

/// Whether the line below a head makes a table of it.
pub(super) fn is_delimiter(line: &str) -> bool {
    let line = line.trim();
    line.starts_with('|') && line.contains('-') && line.chars().all(|c| "|-: ".contains(c))
}

/// The cells of a line; `\|` is a bar within a cell.
fn cells(line: &str) -> Vec<String> {
    let line = line.trim();
    let line = line.strip_prefix('|').unwrap_or(line);
    let mut cells = vec![String::new()];
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, cells.last_mut()) {
            ('\\', Some(cell)) if chars.peek() == Some(&'|') => {
                cell.push('|');
                chars.next();
            }
            ('|', _) => cells.push(String::new()),
            (c, Some(cell)) => cell.push(c),
            (_, None) => {}
        }
    }
    if cells.last().is_some_and(|last| last.trim().is_empty()) {
        cells.pop();
    }
    cells
}

/// Renders a table from its lines, of which the second is the delimiter.
pub(super) fn table(lines: &[String], before: &[Span], width: usize) -> Vec<Line> {
    let (Some(head), Some(delimiter)) = (lines.first(), lines.get(1)) else {
        return Vec::new();
    };
    let is_right: Vec<bool> = cells(delimiter)
        .iter()
        .map(|cell| cell.trim().ends_with(':') && !cell.trim().starts_with(':'))
        .collect();
    let row = |line: &String, style: Style| -> Vec<Line> {
        cells(line)
            .iter()
            .map(|cell| inline(cell.trim(), style))
            .collect()
    };
    let head = row(head, Style::BOLD);
    let body: Vec<Vec<Line>> = lines
        .iter()
        .skip(2)
        .map(|line| row(line, Style::PLAIN))
        .collect();
    let columns = std::iter::once(&head)
        .chain(&body)
        .map(Vec::len)
        .max()
        .unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            let of = |row: &Vec<Line>| row.get(column).map_or(0, |cell| line_columns(cell));
            std::iter::once(&head)
                .chain(&body)
                .map(of)
                .max()
                .unwrap_or(0)
        })
        .collect();
    let whole = widths.iter().sum::<usize>() + 3 * columns.saturating_sub(1);
    if whole <= width.saturating_sub(line_columns(before)) {
        aligned(&head, &body, &widths, &is_right, before)
    } else {
        named(&head, &body, before, width)
    }
}

fn aligned(
    head: &[Line],
    body: &[Vec<Line>],
    widths: &[usize],
    is_right: &[bool],
    before: &[Span],
) -> Vec<Line> {
    let bar = |text: &str| Span::new(text, Style::DIM);
    let spaces = |count: usize| Span::new(&" ".repeat(count), Style::PLAIN);
    let row = |cells: &[Line]| {
        let mut line = before.to_vec();
        for (at, width) in widths.iter().enumerate() {
            if at > 0 {
                push(&mut line, bar(" │ "));
            }
            let cell = cells.get(at).map(Vec::as_slice).unwrap_or_default();
            let gap = width.saturating_sub(line_columns(cell));
            let right = is_right.get(at).copied().unwrap_or(false);
            push(&mut line, spaces(if right { gap } else { 0 }));
            cell.iter().for_each(|span| push(&mut line, span.clone()));
            push(&mut line, spaces(if right { 0 } else { gap }));
        }
        line
    };
    let rules: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
    let mut rule = before.to_vec();
    push(&mut rule, bar(&rules.join("─┼─")));
    std::iter::once(row(head))
        .chain(std::iter::once(rule))
        .chain(body.iter().map(|cells| row(cells)))
        .collect()
}

/// One line per cell, with the name of its column.
fn named(head: &[Line], body: &[Vec<Line>], before: &[Span], width: usize) -> Vec<Line> {
    let mut inner = before.to_vec();
    push(&mut inner, Span::new("  ", Style::PLAIN));
    let mut rows = Vec::new();
    let named: Vec<&Line> = head.iter().collect();
    if body.is_empty() {
        for name in named {
            rows.extend(wrap(name, before, &inner, width));
        }
        return rows;
    }
    for cells in body {
        for at in 0..named.len().max(cells.len()) {
            let mut line = Line::new();
            if let Some(name) = named.get(at).filter(|name| !name.is_empty()) {
                name.iter().for_each(|span| push(&mut line, span.clone()));
                push(&mut line, Span::new(": ", Style::PLAIN));
            }
            let cell = cells.get(at).map(Vec::as_slice).unwrap_or_default();
            cell.iter().for_each(|span| push(&mut line, span.clone()));
            rows.extend(wrap(
                &line,
                if at == 0 { before } else { &inner },
                &inner,
                width,
            ));
        }
    }
    rows
}
