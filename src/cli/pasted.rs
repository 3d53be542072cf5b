//! A paste that is the path of an image: terminals paste it when a file is dropped on them.

use std::{
    ffi::OsString,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
};

/// Characters of such a paste.
const PASTED_CHARS: usize = 4096;

/// Ends of names that image files have.
const ENDS: [&str; 5] = ["png", "jpg", "jpeg", "gif", "webp"];

/// The image that a paste names, if it is nothing but the path of an existing file.
pub(super) fn image_path(pasted: &str) -> Option<PathBuf> {
    let path = path(pasted)?;
    path.is_file().then_some(path)
}

/// The path of an image in the ways in which terminals write it: as it is, in quotes, with
/// backslashes, or as an address.
fn path(pasted: &str) -> Option<PathBuf> {
    let text = pasted.trim();
    if text.is_empty() || text.len() > PASTED_CHARS || text.contains(char::is_control) {
        return None;
    }
    let quoted = |mark: char| text.strip_prefix(mark)?.strip_suffix(mark);
    let path = match (
        text.strip_prefix("file://"),
        quoted('\'').or_else(|| quoted('"')),
    ) {
        (Some(address), _) => decoded(address.strip_prefix("localhost").unwrap_or(address))?,
        (_, Some(inner)) => PathBuf::from(inner),
        (None, None) => PathBuf::from(unescaped(text)),
    };
    is_image(&path).then_some(path)
}

fn is_image(path: &Path) -> bool {
    let end = path.extension().and_then(|end| end.to_str());
    end.is_some_and(|end| ENDS.iter().any(|known| known.eq_ignore_ascii_case(end)))
}

/// The text without the backslashes that protect it from a shell.
fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        plain.extend(match c {
            '\\' => rest.next(),
            c => Some(c),
        });
    }
    plain
}

/// The path of an address, without its percent signs.
fn decoded(address: &str) -> Option<PathBuf> {
    let mut bytes = Vec::with_capacity(address.len());
    let mut rest = address.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    let path = PathBuf::from(OsString::from_vec(bytes));
    path.is_absolute().then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_read_as_terminals_write_it() {
        for text in [
            "/a b/c.PNG",
            " /a b/c.PNG\n",
            "'/a b/c.PNG'",
            "\"/a b/c.PNG\"",
            "/a\\ b/c.PNG",
            "file:///a%20b/c.PNG",
            "file://localhost/a%20b/c.PNG",
        ] {
            assert_eq!(path(text), Some(PathBuf::from("/a b/c.PNG")), "{text:?}");
        }
        for text in [
            "",
            "hello",
            "/a/b.txt",
            "a.png\nb.png",
            "file://host/a.png",
            "file:///a%2",
        ] {
            assert_eq!(path(text), None, "{text:?}");
        }
    }

    #[test]
    fn only_an_existing_file_is_an_image() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("a.png");
        assert_eq!(image_path(file.to_str().unwrap()), None);

        std::fs::write(&file, "").unwrap();
        assert_eq!(image_path(file.to_str().unwrap()), Some(file));
    }
}
