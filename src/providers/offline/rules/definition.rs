//! Recognizes lines that define something in common languages. Uses patterns, not a grammar.

/// The kind of a definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Function,
    Type,
    Trait,
    Constant,
    Macro,
    Module,
    Block,
    Field,
    Variant,
    Local,
}

impl Kind {
    /// The word for this kind in answers.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Function => "function",
            Self::Type => "type",
            Self::Trait => "trait",
            Self::Constant => "constant",
            Self::Macro => "macro",
            Self::Module => "module",
            Self::Block => "impl block",
            Self::Field => "field",
            Self::Variant => "variant",
            Self::Local => "variable",
        }
    }

    /// Returns the kind that a word of a question asks for.
    pub(super) fn from_word(word: &str) -> Option<Self> {
        Some(match word {
            "function" | "functions" | "method" | "methods" | "fn" | "def" | "func" | "routine"
            | "constructor" | "procedure" => Self::Function,
            "struct" | "structs" | "type" | "types" | "class" | "classes" | "enum" | "enums"
            | "union" | "structure" => Self::Type,
            "trait" | "traits" | "interface" | "interfaces" => Self::Trait,
            "constant" | "constants" | "const" | "static" => Self::Constant,
            "macro" | "macros" => Self::Macro,
            "module" | "modules" | "mod" => Self::Module,
            "field" | "fields" => Self::Field,
            "variant" | "variants" => Self::Variant,
            _ => return None,
        })
    }
}

/// A definition on a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Definition {
    pub(super) kind: Kind,
    pub(super) name: String,
    /// Columns of indentation.
    pub(super) indent: usize,
    pub(super) public: bool,
}

/// Keywords that may stand before the keyword of a definition.
const MODIFIERS: &[&str] = &[
    "pub",
    "export",
    "default",
    "public",
    "private",
    "protected",
    "internal",
    "async",
    "unsafe",
    "extern",
    "final",
    "abstract",
    "override",
    "inline",
    "virtual",
    "declare",
    "open",
    "sealed",
    "readonly",
    "partial",
    "static",
    "const",
    "default",
];

/// A regular expression for lines that may define something; after it comes the name.
pub(super) const KEYWORDS: &str = "(?:fn|struct|enum|union|trait|type|const|static|mod|macro_rules!|def|class|func|function|interface|var|let|val|namespace|object|record)";

/// A regular expression for the lines of a file's outline.
pub(super) const OUTLINE: &str = r"^\s*(?:(?:pub(?:\([^)]*\))?|export|default|public|private|protected|async|unsafe|extern(?: *.C.)?|final|abstract|static|const|inline|override)\s+)*(?:fn|struct|enum|union|trait|type|const|static|mod|macro_rules!|impl|def|class|func|function|interface|namespace|object|record)\b|^\s*#define\s|^#\[cfg\(test\)\]";

impl Definition {
    /// Parses a line; `None` if it defines nothing.
    pub(super) fn read(line: &str) -> Option<Self> {
        let trimmed = line.trim_start();
        let indent = line.len() - trimmed.len();
        if trimmed.starts_with("//")
            || trimmed.starts_with('*')
            || trimmed.starts_with("/*")
            || trimmed.starts_with("--")
        {
            return None;
        }
        if let Some(rest) = trimmed.strip_prefix("#define") {
            return named(rest.trim_start()).map(|name| Self {
                kind: Kind::Macro,
                name,
                indent,
                public: true,
            });
        }
        let (rest, public, constant) = without_modifiers(trimmed);
        let (keyword, after) = split_word(rest);
        let after = after.trim_start();
        let found = |kind: Kind, rest: &str| {
            named(rest).map(|name| Self {
                kind,
                name,
                indent,
                public,
            })
        };
        let function = |rest: &str| found(Kind::Function, after_receiver(rest));
        match keyword {
            "fn" | "def" | "func" | "function" => function(after),
            "struct" | "enum" | "union" | "class" | "record" | "object" | "type" => {
                found(Kind::Type, after)
            }
            "trait" | "interface" => found(Kind::Trait, after),
            "macro_rules" => found(Kind::Macro, after.trim_start_matches('!').trim_start()),
            "mod" | "namespace" => found(Kind::Module, after),
            "impl" => implemented(rest).map(|name| Self {
                kind: Kind::Block,
                name,
                indent,
                public,
            }),
            "let" | "var" | "val" => found(
                if indent == 0 {
                    Kind::Constant
                } else {
                    Kind::Local
                },
                after.trim_start_matches("mut "),
            ),
            _ if constant => found(Kind::Constant, rest.trim_start_matches("mut "))
                .filter(|_| rest.contains([':', '='])),
            _ => field(rest, indent, public)
                .or_else(|| assigned(rest, indent, public))
                .or_else(|| variant(rest, indent)),
        }
    }
}

/// Skips visibility and modifiers. Also returns whether the item is public, and whether `const` or
/// `static` stood last.
fn without_modifiers(mut rest: &str) -> (&str, bool, bool) {
    let mut public = false;
    let mut constant = false;
    loop {
        let (word, after) = split_word(rest);
        if !MODIFIERS.contains(&word) {
            return (rest, public, constant);
        }
        let mut after = after;
        if let Some(inner) = after
            .trim_start()
            .strip_prefix(['(', '"'])
            .filter(|_| word == "pub" || word == "extern")
        {
            after = inner.split_once([')', '"']).map_or("", |(_, tail)| tail);
        }
        if !after.starts_with(char::is_whitespace) {
            return (rest, public, constant);
        }
        public |= matches!(word, "pub" | "export" | "public");
        constant = matches!(word, "const" | "static");
        rest = after.trim_start();
    }
}

fn split_word(text: &str) -> (&str, &str) {
    text.split_at(
        text.find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(text.len()),
    )
}

fn named(rest: &str) -> Option<String> {
    let (name, _) = split_word(rest.trim_start_matches("r#").trim_start_matches("'"));
    let starts_well = name.starts_with(|c: char| c.is_alphabetic() || c == '_');
    (starts_well && name != "_").then(|| name.to_owned())
}

/// Go writes the receiver before the name: `func (s *Server) Serve(`.
fn after_receiver(rest: &str) -> &str {
    match rest.strip_prefix('(') {
        Some(inner) => inner
            .split_once(')')
            .map_or(rest, |(_, after)| after.trim_start()),
        None => rest,
    }
}

/// Returns the type of `impl<T> Trait for Type<T> {`.
fn implemented(rest: &str) -> Option<String> {
    let rest = rest.strip_prefix("impl")?;
    let rest = if rest.starts_with('<') {
        after_generics(rest)
    } else {
        rest
    };
    let subject = match rest.find(" for ") {
        Some(at) => rest.get(at + 5..).unwrap_or_default(),
        None => rest,
    };
    let subject = subject
        .trim_start()
        .trim_start_matches('&')
        .trim_start_matches("mut ")
        .trim_start_matches("dyn ");
    let path = subject
        .split(['<', ' ', '{', '(', '['])
        .next()
        .unwrap_or_default();
    named(path.rsplit("::").next().unwrap_or(path))
}

fn after_generics(rest: &str) -> &str {
    let mut depth = 0usize;
    for (at, c) in rest.char_indices() {
        match c {
            '<' => depth += 1,
            '>' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return rest.get(at + 1..).unwrap_or_default();
                }
            }
            _ => {}
        }
    }
    rest
}

/// `name: Type,` or `name: value,` in a struct or a literal; also keys of configuration files.
fn field(rest: &str, indent: usize, public: bool) -> Option<Definition> {
    let (name, after) = split_word(rest);
    let tail = after.strip_prefix(": ")?;
    let plain = !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    (plain && (indent > 0 || public) && !tail.trim().is_empty()).then(|| Definition {
        kind: Kind::Field,
        name: name.to_owned(),
        indent,
        public,
    })
}

/// `NAME = value` of Python, shells and configuration, at the margin or in capitals.
fn assigned(rest: &str, indent: usize, public: bool) -> Option<Definition> {
    let (name, after) = split_word(rest);
    let after = after.trim_start();
    let capitals = name.len() > 2
        && name
            .chars()
            .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    let assigns = after.starts_with('=') && !after.starts_with("==") && !after.starts_with("=>");
    let typed = capitals && after.starts_with(": ") && after.contains(" = ");
    ((assigns && (indent == 0 || capitals)) || typed).then_some(())?;
    named(name).map(|name| Definition {
        kind: Kind::Constant,
        name,
        indent,
        public,
    })
}

/// `Name,`, `Name(Type),` or `Name {` of an enumeration. An argument that is a bare type matches
/// too; this is accepted.
fn variant(rest: &str, indent: usize) -> Option<Definition> {
    let (name, after) = split_word(rest);
    let camel = name.len() > 1
        && name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.chars().any(|c| c.is_ascii_lowercase());
    let ends = after == ","
        || after == " {"
        || (after.starts_with('(') && after.ends_with("),"))
        || (after.starts_with(" = ") && after.ends_with(','));
    (camel && ends && indent > 0).then(|| Definition {
        kind: Kind::Variant,
        name: name.to_owned(),
        indent,
        public: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_read_from_many_languages() {
        for (line, kind, name) in [
            (
                "    pub fn delay(&self, attempt: u32) -> Duration {",
                Kind::Function,
                "delay",
            ),
            (
                "pub(crate) const unsafe extern \"C\" fn raw(x: u8)",
                Kind::Function,
                "raw",
            ),
            (
                "pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);",
                Kind::Constant,
                "RETRY_AFTER_MAX",
            ),
            ("static mut COUNT: u32 = 0;", Kind::Constant, "COUNT"),
            ("pub struct History {", Kind::Type, "History"),
            (
                "impl<'a, K: Eq + Hash, V, S: BuildHasher + Clone> DashMap<K, V, S> {",
                Kind::Block,
                "DashMap",
            ),
            (
                "impl<T: Into<Vec<u8>>> From<T> for crate::Bytes {",
                Kind::Block,
                "Bytes",
            ),
            ("macro_rules! tri {", Kind::Macro, "tri"),
            ("    max_delay_ms: 10_000,", Kind::Field, "max_delay_ms"),
            ("    pub max_retries: u32,", Kind::Field, "max_retries"),
            ("        let delay = base * 2;", Kind::Local, "delay"),
            ("def retry_delay(attempt):", Kind::Function, "retry_delay"),
            ("MAX_DELAY = 30", Kind::Constant, "MAX_DELAY"),
            ("    MAX_DELAY: int = 30", Kind::Constant, "MAX_DELAY"),
            (
                "export async function send(request) {",
                Kind::Function,
                "send",
            ),
            ("export const LIMIT = 5;", Kind::Constant, "LIMIT"),
            (
                "func (s *Server) Serve(l net.Listener) error {",
                Kind::Function,
                "Serve",
            ),
            ("#define BUF_MAX 512", Kind::Macro, "BUF_MAX"),
            ("mod tests {", Kind::Module, "tests"),
            ("    TooManyHeaders,", Kind::Variant, "TooManyHeaders"),
            ("    Io(std::io::Error),", Kind::Variant, "Io"),
        ] {
            let read = Definition::read(line);
            assert_eq!(
                read.as_ref().map(|d| (d.kind, d.name.as_str())),
                Some((kind, name)),
                "{line}"
            );
        }
    }

    #[test]
    fn other_lines_define_nothing() {
        for line in [
            "// fn not_this()",
            "/// struct Nor",
            " * def this",
            "return delay;",
            "if a == b {",
            "delay(1);",
            "",
            "    x => y,",
            "use std::fmt;",
        ] {
            assert_eq!(Definition::read(line), None, "{line}");
        }
    }
}
