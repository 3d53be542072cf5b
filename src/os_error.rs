//! Words for errors of the operating system.

use std::io;

/// The system's own words, such as `Too many open files`; the kind of the error where the system
/// did not make it. The text holds no path.
pub(crate) fn words(error: &io::Error) -> String {
    if error.raw_os_error().is_none() {
        return error.kind().to_string();
    }
    let text = error.to_string();
    let words = text.split(" (os error").next();
    words.unwrap_or_default().to_owned()
}

/// The error of a file that a user named: one wording for every flag and command.
#[cfg(any(test, feature = "cli"))]
pub(crate) fn of_file(name: impl std::fmt::Display, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!("{name}: there is no such file"),
        _ => format!("{name} cannot be read: {}", words(error)),
    }
}

/// The error of a folder that a user named.
#[cfg(any(test, feature = "cli"))]
pub(crate) fn of_folder(folder: &std::path::Path, kind: io::ErrorKind) -> String {
    let folder = folder.display();
    match kind {
        io::ErrorKind::NotFound => format!("{folder}: there is no such folder"),
        io::ErrorKind::NotADirectory => format!("{folder} is not a folder"),
        kind => format!("{folder} cannot be read: {kind}"),
    }
}

/// The error of a workspace that cannot be opened, with what to do.
#[cfg(feature = "tools")]
pub(crate) fn workspace(folder: &std::path::Path, error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::NotFound => "; create it or name another folder",
        io::ErrorKind::NotADirectory => "; name a folder",
        _ => "",
    };
    let (folder, words) = (folder.display(), words(error));
    format!("the workspace {folder} cannot be opened: {words}{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_said_in_the_systems_words_without_its_number() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert_eq!(words(&full), "no storage space");
        let files = io::Error::from_raw_os_error(24);
        assert_eq!(words(&files), "Too many open files");
        let gone = io::Error::from_raw_os_error(2);
        assert_eq!(of_file("a.txt", &gone), "a.txt: there is no such file");
        assert_eq!(
            of_folder("a".as_ref(), gone.kind()),
            "a: there is no such folder"
        );
    }
}
