//! Folders and files that only their user can read, and replacing such a file as a whole.

use std::{fs, io, path::Path};

/// Makes a folder and its missing parents with mode 0700. One that exists keeps its mode.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    let mut folder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut folder, 0o700);
    folder.recursive(true).create(path)
}

/// Opens files for reading and writing; a file that it creates has mode 0600.
#[cfg(feature = "config")]
pub(crate) fn file() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.read(true).write(true);
    options
}

/// Writes `bytes` to `path`, whole or not at all, and returns when they are on the disk. The caller holds the lock of the folder: two
/// writers would share one temporary file.
#[cfg(feature = "config")]
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write as _;
    let beside = path.with_extension("json.new");
    let mut temporary = file().create(true).truncate(true).open(&beside)?;
    temporary.write_all(bytes).and_then(|()| temporary.sync_all())?;
    fs::rename(&beside, path)?;
    if let Some(Ok(folder)) = path.parent().map(fs::File::open) {
        let _ = folder.sync_all(); // Where the system can: the name survives a power cut.
    }
    Ok(())
}
