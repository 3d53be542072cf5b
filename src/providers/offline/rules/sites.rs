//! Finds definitions among the known lines, each with its comment, body and parent. Does not score
//! them.

use super::{
    definition::{Definition, Kind},
    lines::{FileLines, Line, Lines},
    words::tokens,
};

/// Lines above a definition that are searched for its comment.
const COMMENT_LINES_MAX: u32 = 60;

/// Unknown lines that may lie within a comment. A search shows only the matching lines of a long
/// one.
const GAP_MAX: u32 = 40;

/// Lines of a body that are considered.
const BODY_LINES_MAX: u32 = 80;

/// A definition with its file and line.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Site {
    pub(super) path: String,
    pub(super) line: u32,
    pub(super) definition: Definition,
    /// The type or module around it.
    pub(super) parent: Option<String>,
    /// First known line of its comment.
    pub(super) comment_from: u32,
    /// Last line of its body, as far as known.
    pub(super) body_to: u32,
    /// Whether it belongs to a `#[cfg(test)]` module.
    pub(super) in_tests: bool,
}

/// Returns all definitions among the known lines, sorted by path and line.
pub(super) fn sites(lines: &Lines) -> Vec<Site> {
    lines
        .files
        .iter()
        .flat_map(|(path, file)| of_file(path, file))
        .collect()
}

fn of_file(path: &str, file: &FileLines) -> Vec<Site> {
    let mut sites: Vec<Site> = Vec::new();
    let mut tests_from = None;
    let mut marked = 0;
    let mut parents: Vec<(usize, String, Kind)> = Vec::new();
    for (&line, known) in file {
        let text = known.text.as_str();
        if text.trim_start().starts_with("#[cfg(test)]") {
            marked = line;
        }
        let Some(definition) = Definition::read(text) else {
            continue;
        };
        if definition.indent == 0 {
            // `mod tests;` has no body here; unindented lines after a test module are not tests.
            let tests = definition.kind == Kind::Module
                && text.contains('{')
                && (definition.name == "tests" || marked + 1 == line);
            tests_from = tests.then_some(line);
        }
        parents.retain(|(indent, _, _)| *indent < definition.indent);
        let parent = parents
            .iter()
            .rev()
            .find(|(_, _, kind)| *kind != Kind::Function)
            .map(|(_, name, _)| name.clone());
        if matches!(
            definition.kind,
            Kind::Block | Kind::Type | Kind::Trait | Kind::Module | Kind::Function
        ) {
            parents.push((definition.indent, definition.name.clone(), definition.kind));
        }
        sites.push(Site {
            comment_from: comment_from(file, line),
            body_to: body_to(file, line, &definition),
            path: path.to_owned(),
            line,
            parent,
            in_tests: tests_from.is_some_and(|from| line > from && definition.indent > 0),
            definition,
        });
    }
    sites
}

/// Finds the comments and attributes directly above a line. Gaps are allowed, because a search
/// shows only some lines.
fn comment_from(file: &FileLines, line: u32) -> u32 {
    let mut from = line;
    for (&above, known) in file
        .range(line.saturating_sub(COMMENT_LINES_MAX)..line)
        .rev()
    {
        let text = known.text.trim_start();
        let comment = text.starts_with("//")
            || text.starts_with("#[")
            || text.starts_with('*')
            || text.starts_with("/*")
            || text.starts_with("# ")
            || text.starts_with('@')
            || text.starts_with("--");
        let gap = from - above > GAP_MAX;
        if !comment || gap {
            break;
        }
        from = above;
    }
    from
}

/// The body ends before the next line that is indented no deeper and is no closing bracket.
fn body_to(file: &FileLines, line: u32, definition: &Definition) -> u32 {
    let mut to = line;
    let holder = matches!(definition.kind, Kind::Block | Kind::Module | Kind::Trait);
    for (&below, known) in file.range(line + 1..=line.saturating_add(BODY_LINES_MAX)) {
        let text = known.text.as_str();
        let trimmed = text.trim_start();
        if trimmed.is_empty() {
            continue;
        }
        let indent = text.len() - trimmed.len();
        if indent <= definition.indent {
            let closes = indent == definition.indent
                && (trimmed.starts_with(['}', ')', ']']) || trimmed.starts_with("where"));
            if !closes {
                break;
            }
            to = below;
            if !trimmed.ends_with('{') && !trimmed.starts_with("where") && !trimmed.starts_with(')')
            {
                break;
            }
            continue;
        }
        if holder
            && Definition::read(text)
                .is_some_and(|inner| !matches!(inner.kind, Kind::Field | Kind::Variant))
        {
            break;
        }
        to = below;
    }
    to
}

impl Site {
    /// The known lines of its comment.
    pub(super) fn comment<'a>(&self, lines: &'a Lines) -> impl Iterator<Item = (u32, &'a str)> {
        within(
            lines,
            &self.path,
            self.comment_from,
            self.line.saturating_sub(1),
        )
    }

    /// The known lines of its body, without the first.
    pub(super) fn body<'a>(&self, lines: &'a Lines) -> impl Iterator<Item = (u32, &'a str)> {
        within(lines, &self.path, self.line + 1, self.body_to)
    }

    /// Returns the words of its comment and the words of its body, both by line.
    pub(super) fn words_around<'a>(
        &self,
        lines: &'a Lines,
    ) -> (Vec<&'a [String]>, Vec<&'a [String]>) {
        let words = |first, last| {
            lines_within(lines, &self.path, first, last)
                .map(|(_, known)| known.words.as_slice())
                .collect()
        };
        (
            words(self.comment_from, self.line.saturating_sub(1)),
            words(self.line + 1, self.body_to),
        )
    }

    /// Returns the words of its file name and the words of its folders.
    pub(super) fn path_tokens(&self) -> (Vec<String>, Vec<String>) {
        let (folder, file) = self.path.rsplit_once('/').unwrap_or(("", &self.path));
        let stem = file.split('.').next().unwrap_or(file);
        (tokens(stem), tokens(folder))
    }
}

/// Known lines `first..=last` of a file.
pub(super) fn within<'a>(
    lines: &'a Lines,
    path: &str,
    first: u32,
    last: u32,
) -> impl Iterator<Item = (u32, &'a str)> {
    lines_within(lines, path, first, last).map(|(line, known)| (line, known.text.as_str()))
}

fn lines_within<'a>(
    lines: &'a Lines,
    path: &str,
    first: u32,
    last: u32,
) -> impl Iterator<Item = (u32, &'a Line)> {
    let file = lines.files.get(path).filter(|_| first <= last);
    file.into_iter()
        .flat_map(move |file| file.range(first..=last).map(|(line, known)| (*line, known)))
}

/// Whether a line is a comment.
pub(super) fn is_comment(text: &str) -> bool {
    let text = text.trim_start();
    text.starts_with("//")
        || text.starts_with("/*")
        || text.starts_with("* ")
        || text.starts_with("# ")
        || text == "#"
        || text == "*"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(text: &str) -> Lines {
        let file = text
            .lines()
            .enumerate()
            .map(|(at, line)| (at as u32 + 1, Line::from_text(line)))
            .collect();
        Lines {
            files: [("src/a.rs".to_owned(), file)].into(),
        }
    }

    #[test]
    fn a_definition_knows_its_comment_body_parent_and_whether_it_is_a_test() {
        let lines = known(
            "impl Policy {\n    /// The delay.\n    #[inline]\n    pub fn delay(&self) -> u8 {\n        let x = 1;\n        x\n    }\n\n    fn other() {}\n}\n\n#[cfg(test)]\nmod tests {\n    fn delay() {}\n}\n\nmod b {\n    fn c() {}\n}\n",
        );

        let shown: Vec<_> = sites(&lines)
            .into_iter()
            .map(|s| {
                (
                    s.definition.name,
                    s.line,
                    s.comment_from,
                    s.body_to,
                    s.parent,
                    s.in_tests,
                )
            })
            .collect();

        let policy = || Some("Policy".to_owned());
        assert_eq!(
            shown,
            [
                ("Policy".into(), 1, 1, 3, None, false),
                ("delay".into(), 4, 2, 7, policy(), false),
                ("x".into(), 5, 5, 5, policy(), false),
                ("other".into(), 9, 9, 9, policy(), false),
                ("tests".into(), 13, 12, 13, None, false),
                ("delay".into(), 14, 14, 14, Some("tests".into()), true),
                ("b".into(), 17, 17, 17, None, false),
                ("c".into(), 18, 18, 18, Some("b".into()), false),
            ]
        );
    }
}
