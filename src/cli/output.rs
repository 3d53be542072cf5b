//! Files that a flag names and a command writes.

use std::{fs, io::Write as _, path::Path};

use super::{failure::Failure, terminal::sanitize};

/// Writes a file, or replaces its content. `what` names it in errors, such as "the page".
///
/// # Errors
/// The file is a link or, for a relative path, a folder on the way to it is: a folder of a stranger
/// could lead the output elsewhere. Devices such as `/dev/stdout` may be links.
pub(super) fn write_file(what: &str, path: &Path, content: &[u8]) -> Result<(), Failure> {
    let shown = sanitize(&path.display().to_string());
    refuse_links(what, path)?;
    fs::File::create(path)
        .and_then(|mut file| file.write_all(content))
        .map_err(|error| {
            Failure::work(format!(
                "{what} {shown} cannot be written: {}",
                crate::os_error::words(&error)
            ))
        })
}

/// Checks a file that a command is about to write; see [`write_file`].
pub(super) fn refuse_links(what: &str, path: &Path) -> Result<(), Failure> {
    if path.starts_with("/dev") || path.starts_with("/proc") {
        return Ok(());
    }
    // From the file up to the first folder that the path names; the working folder is the user's.
    let places = path
        .ancestors()
        .take_while(|place| !place.as_os_str().is_empty());
    let checked = if path.is_absolute() { 1 } else { usize::MAX };
    let mut links = places.take(checked).filter(|place| place.is_symlink());
    match links.next() {
        None => Ok(()),
        Some(link) => Err(Failure::work(format!(
            "{what} {} is not written: {} is a link",
            sanitize(&path.display().to_string()),
            sanitize(&link.display().to_string())
        ))
        .hint("name the file that it leads to, or another one")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::{super::terminal::Paint, *};

    #[test]
    fn no_file_is_written_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let mine = folder.path().join("mine");
        fs::write(&mine, "mine").unwrap();
        let link = folder.path().join("report.html");
        symlink(&mine, &link).unwrap();
        let dangling = folder.path().join("new.html");
        symlink(folder.path().join("made"), &dangling).unwrap();

        for path in [&link, &dangling] {
            let refused = write_file("the page", path, b"theirs").unwrap_err();
            assert!(
                refused.text(Paint::stdout()).contains("is a link"),
                "{refused:?}"
            );
        }
        assert_eq!(fs::read(&mine).unwrap(), b"mine");
        assert!(!folder.path().join("made").exists());
        write_file("the page", &folder.path().join("page.html"), b"page").unwrap();
        write_file("the page", Path::new("/dev/null"), b"page").unwrap();
    }
}
