//! Modest colors for code: comments, strings and the words that most languages share. A line is
//! colored without those before it, except for comments that go over several lines.
//!
//! Pure.

use super::line::{Line, Span, Style, push};

/// Columns between the stops of a tab.
const TAB: usize = 4;

/// How a language writes comments and strings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Language {
    kind: Kind,
    /// Whether the line before left a comment open.
    in_comment: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// No colors.
    Text,
    /// Added and removed lines.
    Diff,
    /// `//` and `/* */`.
    Slashes,
    /// `#`.
    Hash,
    /// `--`.
    Dashes,
}

const KEYWORDS: &[&str] = &[
    "abstract",
    "and",
    "as",
    "async",
    "await",
    "break",
    "case",
    "catch",
    "class",
    "const",
    "continue",
    "def",
    "default",
    "defer",
    "do",
    "elif",
    "else",
    "enum",
    "export",
    "extends",
    "false",
    "False",
    "fi",
    "final",
    "finally",
    "fn",
    "for",
    "from",
    "func",
    "function",
    "go",
    "if",
    "impl",
    "import",
    "in",
    "interface",
    "is",
    "lambda",
    "let",
    "loop",
    "match",
    "mod",
    "move",
    "mut",
    "namespace",
    "new",
    "nil",
    "None",
    "not",
    "null",
    "or",
    "package",
    "pass",
    "private",
    "protected",
    "pub",
    "public",
    "raise",
    "ref",
    "return",
    "self",
    "Self",
    "static",
    "struct",
    "super",
    "switch",
    "then",
    "this",
    "throw",
    "trait",
    "true",
    "True",
    "try",
    "type",
    "undefined",
    "unsafe",
    "use",
    "using",
    "var",
    "void",
    "where",
    "while",
    "with",
    "yield",
    "done",
    "esac",
];

const SQL: &[&str] = &[
    "select", "from", "where", "insert", "into", "update", "delete", "create", "table", "index",
    "join", "left", "inner", "on", "group", "order", "by", "limit", "values", "set", "and", "or",
    "not", "null", "as", "primary", "key", "begin", "commit",
];

impl Language {
    /// The language of a name behind the fence.
    pub(super) fn named(name: &str) -> Self {
        let kind = match name.to_ascii_lowercase().as_str() {
            "diff" | "patch" => Kind::Diff,
            "rust" | "rs" | "c" | "h" | "cpp" | "c++" | "cc" | "java" | "js" | "javascript"
            | "ts" | "typescript" | "jsx" | "tsx" | "go" | "golang" | "swift" | "kotlin" | "kt"
            | "scala" | "cs" | "csharp" | "php" | "dart" | "zig" | "json" | "jsonc" | "proto"
            | "css" | "scss" => Kind::Slashes,
            "python" | "py" | "sh" | "bash" | "shell" | "zsh" | "fish" | "ruby" | "rb" | "yaml"
            | "yml" | "toml" | "perl" | "make" | "makefile" | "dockerfile" | "r" | "nix"
            | "elixir" | "ini" => Kind::Hash,
            "sql" | "lua" | "haskell" | "hs" | "elm" => Kind::Dashes,
            _ => Kind::Text,
        };
        Self {
            kind,
            in_comment: false,
        }
    }

    /// Colors one line, and remembers whether a comment stays open.
    pub(super) fn color(&mut self, source: &str) -> Line {
        let source = expanded(source);
        let whole = |style| vec![Span::new(&source, style)];
        match self.kind {
            _ if source.is_empty() => Line::new(),
            Kind::Text => whole(Style::PLAIN),
            Kind::Diff => whole(match source.as_bytes() {
                [b'+', ..] => Style::GREEN,
                [b'-', ..] => Style::RED,
                [b'@', b'@', ..] => Style::CYAN,
                _ => Style::PLAIN,
            }),
            Kind::Slashes | Kind::Hash | Kind::Dashes => self.tokens(&source),
        }
    }

    fn tokens(&mut self, source: &str) -> Line {
        let mut line = Line::new();
        let mut rest = source;
        // Before a word or a `#` inside of one there is no comment.
        let mut before = ' ';
        while let Some(first) = rest.chars().next() {
            let (length, style) = self.token(rest, first, before);
            let (token, after) = rest.split_at_checked(length).unwrap_or((rest, ""));
            push(&mut line, Span::new(token, style));
            before = token.chars().next_back().unwrap_or(' ');
            rest = after;
        }
        line
    }

    fn token(&mut self, rest: &str, first: char, before: char) -> (usize, Style) {
        let all = rest.len();
        if self.in_comment {
            let end = rest.find("*/").map(|at| at + 2);
            self.in_comment = end.is_none();
            return (end.unwrap_or(all), Style::DIM);
        }
        match (self.kind, first) {
            (Kind::Slashes, '/') if rest.starts_with("//") => (all, Style::DIM),
            (Kind::Slashes, '/') if rest.starts_with("/*") => {
                let end = rest
                    .get(2..)
                    .and_then(|inner| inner.find("*/"))
                    .map(|at| at + 4);
                self.in_comment = end.is_none();
                (end.unwrap_or(all), Style::DIM)
            }
            (Kind::Hash, '#') if before.is_whitespace() => (all, Style::DIM),
            (Kind::Dashes, '-') if rest.starts_with("--") => (all, Style::DIM),
            (_, '"' | '\'' | '`') => match string_end(rest, first) {
                Some(end) => (end, Style::GREEN),
                // An apostrophe, or the mark of a lifetime.
                None => (first.len_utf8(), Style::PLAIN),
            },
            (_, c) if c.is_alphanumeric() || c == '_' => {
                let end = rest
                    .find(|c: char| !c.is_alphanumeric() && c != '_')
                    .unwrap_or(all);
                let word = rest.get(..end).unwrap_or_default();
                let known = match self.kind {
                    Kind::Dashes => SQL.iter().any(|known| known.eq_ignore_ascii_case(word)),
                    _ => false,
                };
                let style = match known || KEYWORDS.contains(&word) {
                    true => Style::CYAN,
                    false => Style::PLAIN,
                };
                (end, style)
            }
            (_, c) => (c.len_utf8(), Style::PLAIN),
        }
    }
}

/// Length of the string at the beginning; `None` if it does not end in this line.
fn string_end(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some(at + c.len_utf8()),
            _ => {}
        }
    }
    None
}

/// The line with spaces for tabs.
pub(super) fn expanded(source: &str) -> String {
    let mut line = String::with_capacity(source.len());
    let mut column = 0;
    for c in source.chars() {
        let width = match c {
            '\t' => TAB - column % TAB,
            _ => 1,
        };
        column += width;
        match c {
            '\t' => line.extend(std::iter::repeat_n(' ', width)),
            c => line.push(c),
        }
    }
    line
}
