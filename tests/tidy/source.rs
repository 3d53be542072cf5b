//! Just enough of a Rust reader for house rules: comments and literals blanked, test code marked, `use` trees unfolded.

/// One Rust file.
pub struct Source<'t> {
    pub path: &'t str,
    pub text: &'t str,
    /// The text with comments and literals blanked; bytes and lines stay where they are.
    pub code: String,
    test_lines: Vec<bool>,
}

/// A word or a path such as `std::fs::File`, with its place; `use` trees come unfolded.
pub struct Token {
    pub line: usize,
    pub path: String,
    pub kind: Kind,
    /// The name that an import gives it, where it is another.
    pub alias: Option<String>,
    /// Whether it is a re-export (`pub use`).
    pub is_exported: bool,
}

/// Where a token stands.
#[derive(PartialEq)]
pub enum Kind {
    Import,
    Macro,
    Other,
}

impl<'t> Source<'t> {
    pub fn of(path: &'t str, text: &'t str) -> Self {
        let code = blanked(text);
        let test_lines = if is_test_file(path) {
            vec![true; text.lines().count() + 1]
        } else {
            test_lines(&code)
        };
        Self {
            path,
            text,
            code,
            test_lines,
        }
    }

    /// Whether a line (from 1) is compiled for tests only.
    pub fn is_test(&self, line: usize) -> bool {
        self.test_lines.get(line - 1).copied().unwrap_or(false)
    }

    pub fn line_of(&self, byte: usize) -> usize {
        1 + self.code.as_bytes()[..byte]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count()
    }

    /// All words and paths in order.
    pub fn tokens(&self) -> Vec<Token> {
        let code = self.code.as_bytes();
        let mut tokens = Vec::new();
        let mut at = 0;
        let mut line = 1;
        while at < code.len() {
            let start = at;
            if !is_ident(code[at]) {
                line += usize::from(code[at] == b'\n');
                at += 1;
                continue;
            }
            at = end_of_path(code, at);
            let path = &self.code[start..at];
            if path == "use" && code.get(at).is_some_and(u8::is_ascii_whitespace) {
                let end = self.code[at..]
                    .find(';')
                    .map_or(code.len(), |length| at + length);
                let is_exported = is_visibility(self.code[..start].trim_end());
                unfold("", &self.code[at..end], &mut |offset, path, alias| {
                    let line = line + self.code[at..at + offset].matches('\n').count();
                    tokens.push(Token {
                        line,
                        path,
                        kind: Kind::Import,
                        alias,
                        is_exported,
                    });
                });
                line += self.code[at..end].matches('\n').count();
                at = end;
            } else {
                let kind = if code.get(at) == Some(&b'!') {
                    Kind::Macro
                } else {
                    Kind::Other
                };
                tokens.push(Token {
                    line,
                    path: path.to_owned(),
                    kind,
                    alias: None,
                    is_exported: false,
                });
            }
        }
        tokens
    }
}

/// Whether a whole file is test code, by its name.
fn is_test_file(path: &str) -> bool {
    let in_folder = |folder: &str| path.starts_with(&folder[1..]) || path.contains(folder);
    let name = path.rsplit('/').next().unwrap_or(path);
    ["/tests/", "/benches/", "/examples/", "/testing/"]
        .into_iter()
        .any(in_folder)
        || ["tests.rs", "testing.rs", "fixture.rs", "fixtures.rs"].contains(&name)
        || name.ends_with("_tests.rs")
}

fn is_ident(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

fn end_of_path(code: &[u8], mut at: usize) -> usize {
    loop {
        while at < code.len() && is_ident(code[at]) {
            at += 1;
        }
        match code.get(at..at + 3) {
            Some([b':', b':', next]) if is_ident(*next) => at += 2,
            _ => return at,
        }
    }
}

/// Whether a text ends with `pub` or `pub(…)`.
fn is_visibility(text: &str) -> bool {
    let open = text
        .strip_suffix(')')
        .and_then(|text| text.rfind('(').map(|open| &text[..open]));
    open.unwrap_or(text)
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .next_back()
        == Some("pub")
}

/// Calls `found` with the place, the whole path and the new name of every leaf of a `use` tree.
fn unfold(prefix: &str, tree: &str, found: &mut dyn FnMut(usize, String, Option<String>)) {
    let mut depth = 0;
    let mut start = 0;
    let mut brace = None;
    let ends = tree.char_indices().chain([(tree.len(), ',')]);
    for (at, c) in ends {
        match c {
            '{' => {
                if depth == 0 {
                    brace = Some(at);
                }
                depth += 1;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let leaf = tree[start..at].trim();
                let offset = start + (tree[start..at].len() - tree[start..at].trim_start().len());
                match brace.take() {
                    Some(open) => {
                        let inner = tree[open + 1..at].trim_end();
                        let inner = inner.strip_suffix('}').unwrap_or(inner);
                        let prefix = format!(
                            "{prefix}{}",
                            tree[start..open].trim().trim_start_matches("::")
                        );
                        unfold(&prefix, inner, &mut |at, path, alias| {
                            found(open + 1 + at, path, alias)
                        });
                    }
                    None if leaf.is_empty() => {}
                    None => {
                        let (name, alias) = leaf
                            .split_once(" as ")
                            .map_or((leaf, None), |(name, alias)| {
                                (name, Some(alias.trim().to_owned()))
                            });
                        let name = name.trim().trim_start_matches("::");
                        found(
                            offset,
                            format!("{prefix}{name}")
                                .trim_end_matches("::self")
                                .to_owned(),
                            alias,
                        );
                    }
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// Marks the lines of items under `#[cfg(test)]` and the like.
fn test_lines(code: &str) -> Vec<bool> {
    let mut lines = vec![false; code.lines().count() + 1];
    let mut from = 0;
    while let Some(found) = code[from..].find("#[cfg(") {
        let start = from + found;
        let Some(end) = code[start..].find(']').map(|length| start + length) else {
            break;
        };
        from = end;
        let words: Vec<&str> = code[start..end]
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .collect();
        if !words.contains(&"test") || words.contains(&"not") {
            continue;
        }
        let Some(open) = code[end..].find(['{', ';']).map(|length| end + length) else {
            break;
        };
        let close = if code.as_bytes()[open] == b'{' {
            matching_brace(code, open)
        } else {
            open
        };
        let line = |byte: usize| code[..byte].matches('\n').count();
        lines[line(start)..=line(close)].fill(true);
        from = close;
    }
    lines
}

fn matching_brace(code: &str, open: usize) -> usize {
    let mut depth = 0;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 1 => return at,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

/// The text with comments, strings and character literals replaced by spaces.
fn blanked(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_end(text, at);
        if end == at {
            at += 1;
            continue;
        }
        for byte in &mut code[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    String::from_utf8_lossy(&code).into_owned()
}

/// Where the comment or literal that begins at `at` ends; `at` if none does.
fn literal_end(text: &str, at: usize) -> usize {
    let bytes = text.as_bytes();
    let rest = &bytes[at..];
    let find = |what: &str, from: usize| {
        text.get(from..)
            .and_then(|rest| rest.find(what))
            .map_or(text.len(), |length| from + length)
    };
    match rest {
        [b'/', b'/', ..] => find("\n", at),
        [b'/', b'*', ..] => block_comment_end(bytes, at),
        [b'"', ..] => string_end(bytes, at + 1),
        [b'\'', b'\\', _, ..] => find("'", at + 3) + 1,
        [b'\'', ..] => {
            let width = text[at + 1..].chars().next().map_or(1, char::len_utf8);
            if bytes.get(at + 1 + width) == Some(&b'\'') {
                at + width + 2
            } else {
                at
            }
        }
        [b'r' | b'b' | b'c', ..] if at == 0 || !is_ident(bytes[at - 1]) => {
            let prefix = rest
                .iter()
                .take_while(|byte| matches!(byte, b'r' | b'b' | b'c'))
                .count();
            let hashes = rest[prefix..]
                .iter()
                .take_while(|byte| **byte == b'#')
                .count();
            let raw = rest[..prefix].contains(&b'r');
            match rest.get(prefix + hashes) {
                Some(b'"') if raw => (find(
                    &format!("\"{}", "#".repeat(hashes)),
                    at + prefix + hashes + 1,
                ) + 1
                    + hashes)
                    .min(text.len()),
                Some(b'"') if hashes == 0 => string_end(bytes, at + prefix + 1),
                _ => at,
            }
        }
        _ => at,
    }
}

fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

fn block_comment_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    while at < bytes.len() {
        match bytes.get(at..at + 2) {
            Some(b"/*") => (depth, at) = (depth + 1, at + 2),
            Some(b"*/") if depth == 1 => return at + 2,
            Some(b"*/") => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    bytes.len()
}
