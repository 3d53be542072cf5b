//! Hyperlinks (OSC 8) of places such as `src/main.rs:12`: only of files that are in the workspace,
//! and the text shown is the path, so that no link leads elsewhere than it says.

use std::{
    fmt::Write as _,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use super::markdown::{Line, Span};

/// Places of a piece of output that are looked up.
const LOOKED_UP_MAX: usize = 32;

/// Bytes of a path.
const PATH_BYTES_MAX: usize = 1024;

/// Finds places in rows of output.
#[derive(Debug)]
pub(super) struct Places {
    /// Without links in its path.
    workspace: PathBuf,
    host: String,
}

impl Places {
    /// `None` if the workspace cannot be found.
    pub(super) fn of(workspace: &Path) -> Option<Self> {
        // Elsewhere the address has no host, which means this one.
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Some(Self {
            workspace: workspace.canonicalize().ok()?,
            host: encoded(host.trim().as_bytes()),
        })
    }

    /// Makes the places of rows links.
    pub(super) fn link(&self, rows: &mut [Line]) {
        let mut left = LOOKED_UP_MAX;
        for row in rows {
            let spans = std::mem::take(row);
            for span in spans {
                self.split(span, row, &mut left);
            }
        }
    }

    /// Appends a span to a row, in as many pieces as it has places and text between them.
    fn split(&self, span: Span, row: &mut Line, left: &mut usize) {
        if span.link.is_some() {
            return row.push(span);
        }
        let mut rest = span.text.as_str();
        let mut before = String::new();
        let piece = |text: &str, link: Option<Arc<str>>| Span {
            text: text.to_owned(),
            link,
            ..span.clone()
        };
        while !rest.is_empty() {
            let end = rest.find(|c| !is_of_place(c)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            let found = place(word).and_then(|(path, length)| {
                *left = left.checked_sub(1)?;
                Some((self.address(path)?, length))
            });
            match found {
                Some((address, length)) => {
                    if !before.is_empty() {
                        row.push(piece(&std::mem::take(&mut before), None));
                    }
                    let (shown, more) = word.split_at(length);
                    row.push(piece(shown, Some(address.into())));
                    before.push_str(more);
                }
                None => before.push_str(word),
            }
            let space = after.find(is_of_place).unwrap_or(after.len());
            let (between, next) = after.split_at(space);
            before.push_str(between);
            rest = next;
        }
        if !before.is_empty() {
            row.push(piece(&before, None));
        }
    }

    /// The address of a file of the workspace.
    fn address(&self, path: &str) -> Option<String> {
        let parts = || Path::new(path).components();
        if !parts().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
            return None;
        }
        let file = self.workspace.join(path).canonicalize().ok()?;
        if !file.starts_with(&self.workspace) || !file.is_file() {
            return None;
        }
        // A link of the file system shows one name and leads to another.
        let named: PathBuf = parts()
            .filter(|part| matches!(part, Component::Normal(_)))
            .collect();
        if file != self.workspace.join(named) {
            return None;
        }
        let path = encoded(file.as_os_str().as_encoded_bytes());
        Some(format!("file://{}{path}", self.host))
    }
}

fn is_of_place(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+' | '@' | ':')
}

/// The path of a place at the beginning of a word, and the length of the path with its line.
fn place(word: &str) -> Option<(&str, usize)> {
    let (path, rest) = word.split_once(':')?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let is_path = path.contains(['.', '/']) && path.len() <= PATH_BYTES_MAX;
    let ends = rest.get(digits..)?.chars().next();
    let is_line = digits > 0 && ends.is_none_or(|c| matches!(c, ':' | '.' | '-'));
    (is_path && is_line).then_some((path, path.len() + 1 + digits))
}

/// Bytes as they stand in an address.
fn encoded(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'/' | b'.' | b'_' | b'-' | b'~' => text.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => text.push(char::from(*byte)),
            byte => {
                let _ = write!(text, "%{byte:02X}"); // Writing to memory cannot fail.
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::markdown::{Style, text_of};

    fn links(places: &Places, text: &str) -> Vec<(String, String)> {
        let mut rows = vec![vec![Span::new(text, Style::PLAIN)]];
        places.link(&mut rows);
        assert_eq!(text_of(&rows[0]), text, "no text is lost");
        let linked = rows[0].iter().filter(|span| span.link.is_some());
        linked
            .map(|span| (span.text.clone(), span.link.as_deref().unwrap().to_owned()))
            .collect()
    }

    #[test]
    fn only_files_of_the_workspace_are_links_and_show_their_path() {
        let home = tempfile::tempdir().unwrap();
        let work = home.path().canonicalize().unwrap().join("a work");
        std::fs::create_dir_all(work.join("src")).unwrap();
        std::fs::write(home.path().join("secret.txt"), "").unwrap();
        std::fs::write(work.join("src/a.rs"), "").unwrap();
        std::os::unix::fs::symlink("src/a.rs", work.join("b.rs")).unwrap();
        std::os::unix::fs::symlink(home.path().join("secret.txt"), work.join("c.rs")).unwrap();
        let places = Places {
            workspace: work.clone(),
            host: "here".to_owned(),
        };
        let path = work.to_str().unwrap().replace(' ', "%20");
        let to = format!("file://here{path}/src/a.rs");

        assert_eq!(
            links(
                &places,
                "See src/a.rs:12, (./src/a.rs:3) and src/a.rs:4:5: x."
            ),
            ["src/a.rs:12", "./src/a.rs:3", "src/a.rs:4"].map(|text| (text.to_owned(), to.clone()))
        );
        let outside = home.path().join("secret.txt");
        for none in [
            "src/a.rs",
            "src/a.rs:x",
            "src/a.rs:1x",
            "src/none.rs:1",
            "src:1",
            "../secret.txt:1",
            "src/../../secret.txt:1",
            &format!("{}:1", outside.display()),
            "b.rs:1",
            "c.rs:1",
            "http://src/a.rs:1",
        ] {
            assert_eq!(links(&places, none), [], "{none}");
        }
    }

    #[test]
    fn look_ups_of_one_piece_of_output_are_bounded() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("a.rs"), "").unwrap();
        let places = Places::of(home.path()).unwrap();

        assert_eq!(links(&places, &"a.rs:1 ".repeat(100)).len(), LOOKED_UP_MAX);
    }
}
