//! The change that a call of `file_edit` would make, as lines of a diff.
//!
//! Pure.

use std::time::Duration;

use serde::Deserialize;
use similar::{ChangeTag, TextDiff};

use super::markdown::{Line, Span, Style, push};
use crate::visible::visible_strict;

/// Longest time that a diff takes; a coarse one is as true as a fine one.
const DIFF_TIME_MAX: Duration = Duration::from_millis(100);

/// Unchanged lines around a change.
const CONTEXT: usize = 3;

/// The arguments of `file_edit`. With any other argument the call is shown as JSON: nothing that a
/// person decides on is left out.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Edit {
    path: String,
    old_text: String,
    new_text: String,
    #[serde(default)]
    replace_all: bool,
}

/// The path that the call changes, and the lines that it removes and adds; `None` if it is not a
/// change of a file. Invisible characters are escaped.
pub(super) fn change(tool: &str, input: &str) -> Option<(String, Vec<Line>)> {
    if tool != "file_edit" {
        return None;
    }
    let edit: Edit = serde_json::from_str(input).ok()?;
    let mut lines = Vec::new();
    if edit.replace_all {
        lines.push(vec![Span::new("  every occurrence:", Style::PLAIN)]);
    }
    let diff = TextDiff::configure()
        .timeout(DIFF_TIME_MAX)
        .diff_lines(&edit.old_text, &edit.new_text);
    for (at, group) in diff.grouped_ops(CONTEXT).iter().enumerate() {
        if at > 0 {
            lines.push(vec![Span::new("    …", Style::DIM)]);
        }
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let (mark, style) = match change.tag() {
                ChangeTag::Delete => ("  - ", Style::RED),
                ChangeTag::Insert => ("  + ", Style::GREEN),
                ChangeTag::Equal => ("    ", Style::PLAIN),
            };
            let text = change.value();
            let text = text.strip_suffix('\n').unwrap_or(text);
            let mut line = Line::new();
            push(&mut line, Span::new(mark, style));
            push(&mut line, Span::new(&visible_strict(text), style));
            lines.push(line);
        }
    }
    if lines.is_empty() {
        lines.push(vec![Span::new("    (no change)", Style::DIM)]);
    }
    let path = visible_strict(&edit.path).replace('\n', "\\n");
    Some((path, lines))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::markdown::text_of;

    fn shown(input: &serde_json::Value) -> Option<String> {
        let (path, lines) = change("file_edit", &input.to_string())?;
        let lines: Vec<String> = lines.iter().map(|line| text_of(line)).collect();
        Some(format!("{path}\n{}", lines.join("\n")))
    }

    #[test]
    fn a_change_is_shown_line_by_line() {
        let edit =
            serde_json::json!({"path": "a.rs", "old_text": "one\ntwo\n", "new_text": "one\n2\n"});
        assert_eq!(shown(&edit).unwrap(), "a.rs\n    one\n  - two\n  + 2");

        let create = serde_json::json!({"path": "a", "old_text": "", "new_text": "x\ny"});
        assert_eq!(shown(&create).unwrap(), "a\n  + x\n  + y");

        let all =
            serde_json::json!({"path": "a", "old_text": "x", "new_text": "y", "replace_all": true});
        assert_eq!(shown(&all).unwrap(), "a\n  every occurrence:\n  - x\n  + y");
    }

    #[test]
    fn what_a_change_hides_is_seen_and_what_is_no_change_is_none() {
        let nasty = serde_json::json!({"path": "s\u{202e}a\nb", "old_text": "", "new_text": "a\u{1b}[2J\r\n"});
        assert_eq!(
            shown(&nasty).unwrap(),
            "s\\u{202e}a\\nb\n  + a\\u{1b}[2J\\u{d}"
        );

        let more = serde_json::json!({"path": "a", "old_text": "", "new_text": "", "mode": "0777"});
        assert_eq!(shown(&more), None);
        assert_eq!(change("bash", "{}"), None);
    }
}
