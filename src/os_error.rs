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
    }
}
