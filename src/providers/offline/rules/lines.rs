//! Collects all lines that the tools have shown, by file and number. Parses the tools' outputs
//! only.

use std::collections::BTreeMap;

use super::{round::Seen, words::tokens};

/// Longest line that is quoted in full. Longer ones are generated or minified.
const LINE_CHARS_MAX: usize = 240;

/// A line and its words, which are split once because many definitions are compared with them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) text: String,
    pub(super) words: Vec<String>,
}

impl Line {
    pub(super) fn from_text(text: impl Into<String>) -> Self {
        let text = text.into();
        Self {
            words: tokens(&text),
            text,
        }
    }
}

/// The lines of a file.
pub(super) type FileLines = BTreeMap<u32, Line>;

/// All known lines, by file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Lines {
    pub(super) files: BTreeMap<String, FileLines>,
}

impl Lines {
    /// Adds the lines of a tool's output. Errors and notes add none.
    pub(super) fn take_in(&mut self, seen: &Seen) {
        if seen.is_error {
            return;
        }
        match seen.tool.as_str() {
            "grep_search" => {
                for hit in hits(&seen.text) {
                    self.put(hit.path, hit.line, hit.text);
                }
            }
            "file_read" => {
                let Some(path) = seen.argument("path") else {
                    return;
                };
                for line in seen.text.lines() {
                    if let Some((number, text)) = line.split_once('\t')
                        && let Ok(number) = number.trim().parse()
                    {
                        self.put(path, number, text);
                    }
                }
            }
            _ => {}
        }
    }

    fn put(&mut self, path: &str, line: u32, text: &str) {
        let file = self.files.entry(plain(path).to_owned()).or_default();
        file.entry(line).or_insert_with(|| {
            Line::from_text(text.chars().take(LINE_CHARS_MAX).collect::<String>())
        });
    }

    /// A line's text.
    pub(super) fn get(&self, path: &str, line: u32) -> Option<&str> {
        self.files
            .get(path)?
            .get(&line)
            .map(|line| line.text.as_str())
    }

    /// Whether every line from `first` to `last` is known.
    pub(super) fn knows(&self, path: &str, first: u32, last: u32) -> bool {
        self.files.get(path).is_some_and(|lines| {
            lines.range(first..=last).count() as u32 == last.saturating_sub(first) + 1
        })
    }
}

/// A line of `grep_search`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hit<'a> {
    pub(super) path: &'a str,
    pub(super) line: u32,
    pub(super) text: &'a str,
    /// Whether the pattern matched here; otherwise the line is context.
    pub(super) matched: bool,
}

/// Reads `path:line: text` and `path-line- text`.
pub(super) fn hits(output: &str) -> impl Iterator<Item = Hit<'_>> {
    output
        .lines()
        .filter_map(|line| separated(line, ':', true).or_else(|| separated(line, '-', false)))
}

fn separated(line: &str, mark: char, matched: bool) -> Option<Hit<'_>> {
    let mut from = 0;
    while let Some(at) = line.get(from..)?.find(mark).map(|at| at + from) {
        let rest = line.get(at + 1..)?;
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number = rest.get(..digits).and_then(|number| number.parse().ok());
        let after = rest
            .get(digits..)
            .and_then(|after| after.strip_prefix(mark));
        if let (Some(number), Some(text)) = (
            number,
            after.filter(|text| text.is_empty() || text.starts_with(' ')),
        ) && at > 0
        {
            return Some(Hit {
                path: plain(line.get(..at)?),
                line: number,
                text: text.strip_prefix(' ').unwrap_or(text),
                matched,
            });
        }
        from = at + 1;
    }
    None
}

/// The paths of a `file_list` answer: folders end with a slash, notes stand in brackets.
pub(super) fn listed(output: &str) -> impl Iterator<Item = &str> {
    output
        .lines()
        .map(|line| plain(line.trim()))
        .filter(|line| !line.is_empty() && !is_note(line))
}

fn is_note(line: &str) -> bool {
    line.starts_with('[') && line.ends_with(']')
}

/// Returns how many more entries the note at the end of a list mentions, and whether the number is
/// a lower bound.
pub(super) fn left_out(output: &str) -> (u64, bool) {
    let Some(note) = output
        .lines()
        .rfind(|line| line.starts_with('[') && line.contains("more"))
    else {
        return (0, false);
    };
    let before = note.split("more").next().unwrap_or_default();
    let number = before
        .rsplit(|c: char| !c.is_ascii_digit())
        .find(|digits| !digits.is_empty());
    (
        number.and_then(|number| number.parse().ok()).unwrap_or(0),
        note.contains("at least"),
    )
}

fn plain(path: &str) -> &str {
    path.strip_prefix("./").unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn grep_lines_are_read_with_colons_and_dashes_in_paths_and_texts() {
        let output = "a-1/b.rs:12: let x: 3: = y;\n./a-1/b.rs-13- next-4- \nc.rs:7:\n[200 matches shown]\n--\n";

        assert_eq!(
            hits(output).collect::<Vec<_>>(),
            [
                Hit {
                    path: "a-1/b.rs",
                    line: 12,
                    text: "let x: 3: = y;",
                    matched: true
                },
                Hit {
                    path: "a-1/b.rs",
                    line: 13,
                    text: "next-4- ",
                    matched: false
                },
                Hit {
                    path: "c.rs",
                    line: 7,
                    text: "",
                    matched: true
                },
            ]
        );
    }

    #[test]
    fn errors_and_notes_leave_nothing() {
        let mut lines = Lines::default();
        let seen = |text: &str, is_error| Seen {
            tool: "file_read".into(),
            input: json!({"path": "./x.rs"}),
            text: text.into(),
            is_error,
        };

        lines.take_in(&seen("1\tfn a() {\n2\t}\n[lines 1-2 of 9 shown]", false));
        lines.take_in(&seen("3\tno", true));

        assert_eq!(
            lines.files["x.rs"],
            FileLines::from([(1, Line::from_text("fn a() {")), (2, Line::from_text("}"))])
        );
        assert!(lines.knows("x.rs", 1, 2) && !lines.knows("x.rs", 1, 3));
    }

    #[test]
    fn lists_are_counted_beyond_what_is_shown() {
        let output = "a.rs\nsrc/\n[100 entries shown; at least 250 more exist: narrow it]\n";

        assert_eq!(listed(output).collect::<Vec<_>>(), ["a.rs", "src/"]);
        assert_eq!(left_out(output), (250, true));
        assert_eq!(left_out("a\n"), (0, false));
    }
}
