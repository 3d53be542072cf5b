//! Creates folders and files that only their owner can read, and replaces such a file atomically.

use std::{fs, io, path::Path};

/// Creates a folder and its missing parents with mode 0700. An existing folder keeps its mode.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    let mut folder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut folder, 0o700);
    folder.recursive(true).create(path)
}

/// Options that open a file for reading and writing; a file that they create gets mode 0600.
#[cfg(any(feature = "config", feature = "sqlite"))]
pub(crate) fn file() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.read(true).write(true);
    options
}

/// Replaces the file at `path` by `bytes`, atomically, and returns when the bytes are on disk. The
/// caller must hold the folder's lock, because all writers use the same temporary file.
#[cfg(feature = "config")]
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write as _;
    let beside = path.with_extension("json.new");
    // What a crash left, or a link of a folder that came from elsewhere: it is not written through.
    if let Err(error) = fs::remove_file(&beside)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut temporary = file().create_new(true).open(&beside)?;
    temporary
        .write_all(bytes)
        .and_then(|()| temporary.sync_all())?;
    fs::rename(&beside, path)?;
    if let Some(Ok(folder)) = path.parent().map(fs::File::open) {
        let _ = folder.sync_all(); // Best effort: after this, the rename survives a power cut.
    }
    Ok(())
}
