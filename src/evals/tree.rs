//! Copies and digests folders of tasks. Every walk is bounded, and a link is refused: it could lead
//! out of the task.

use std::{
    fs, io,
    io::Read as _,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::bounds::{FOLDER_BYTES_MAX, FOLDER_DEPTH_MAX, FOLDER_FILES_MAX};

/// A file or a folder below another one.
struct Entry {
    relative: PathBuf,
    is_folder: bool,
    executable: bool,
}

fn words(error: &io::Error) -> String {
    format!("it cannot be read: {}", crate::os_error::words(error))
}

/// What is wrong with a link or a special file of a task.
const NO_FILE: &str = "it is a link or a special file; replace it by a copy";

/// Opens a regular file of a task. A link could lead to any file of the user, and opening a pipe would
/// wait for ever.
///
/// # Errors
/// What is wrong with it, and the remedy.
pub(super) fn open(path: &Path) -> Result<fs::File, String> {
    let missing = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => "it is missing; add it".to_owned(),
        _ => words(&error),
    };
    if !fs::symlink_metadata(path).map_err(missing)?.is_file() {
        return Err(NO_FILE.to_owned());
    }
    let mut options = fs::File::options();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        options.custom_flags(flags.bits().cast_signed());
    }
    let file = options.open(path).map_err(missing)?;
    match file.metadata().map_err(missing)?.is_file() {
        true => Ok(file),
        false => Err(NO_FILE.to_owned()),
    }
}

/// Lists everything below a folder, by name. The folder itself is no link either.
fn entries(root: &Path) -> Result<Vec<Entry>, String> {
    let about = fs::symlink_metadata(root).map_err(|error| words(&error))?;
    if !about.is_dir() {
        return Err("it is no folder but a link or a file; replace it by a copy".to_owned());
    }
    let mut found = Vec::new();
    let mut bytes = 0u64;
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        if folder.components().count() > FOLDER_DEPTH_MAX {
            return Err(format!(
                "its folders are nested more than {FOLDER_DEPTH_MAX} deep; flatten them"
            ));
        }
        for entry in fs::read_dir(root.join(&folder)).map_err(|error| words(&error))? {
            let entry = entry.map_err(|error| words(&error))?;
            let about = entry.metadata().map_err(|error| words(&error))?;
            let relative = folder.join(entry.file_name());
            if found.len() >= FOLDER_FILES_MAX {
                return Err(format!(
                    "it has more than {FOLDER_FILES_MAX} files; remove some"
                ));
            }
            if about.is_dir() {
                folders.push(relative.clone());
            } else if !about.is_file() {
                return Err(format!(
                    "`{}` is a link or a special file; replace it by a copy",
                    relative.display()
                ));
            }
            bytes = bytes.saturating_add(if about.is_file() { about.len() } else { 0 });
            if bytes > FOLDER_BYTES_MAX {
                return Err(format!(
                    "its files have more than {FOLDER_BYTES_MAX} bytes; remove some"
                ));
            }
            found.push(Entry {
                relative,
                is_folder: about.is_dir(),
                executable: executable(&about),
            });
        }
    }
    found.sort_by(|a, b| a.relative.cmp(&b.relative));
    Ok(found)
}

#[cfg(unix)]
fn executable(about: &fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    about.permissions().mode() & 0o100 != 0
}

#[cfg(not(unix))]
fn executable(_: &fs::Metadata) -> bool {
    false
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    open(path)?
        .take(FOLDER_BYTES_MAX)
        .read_to_end(&mut bytes)
        .map_err(|error| words(&error))?;
    Ok(bytes)
}

/// The SHA-256 of all names and contents below a folder.
///
/// # Errors
/// What is wrong with it, and the remedy.
pub(super) fn digest(root: &Path) -> Result<[u8; 32], String> {
    let mut hash = Sha256::new();
    for entry in entries(root)? {
        hash.update(entry.relative.as_os_str().as_encoded_bytes());
        hash.update([0, u8::from(entry.is_folder)]);
        if !entry.is_folder {
            let bytes = read(&root.join(&entry.relative))?;
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(&bytes);
        }
    }
    Ok(hash.finalize().into())
}

/// Copies everything below `from` into the folder `to`, which is created. `skip` leaves out a name
/// at the top.
///
/// # Errors
/// What is wrong with the source, or why the copy failed.
pub(super) fn copy(from: &Path, to: &Path, skip: &str) -> Result<(), String> {
    let failed = |error: io::Error| {
        format!(
            "a copy cannot be written: {}",
            crate::os_error::words(&error)
        )
    };
    fs::create_dir_all(to).map_err(failed)?;
    for entry in entries(from)? {
        if entry.relative.starts_with(skip) && !skip.is_empty() {
            continue;
        }
        let target = to.join(&entry.relative);
        if entry.is_folder {
            fs::create_dir_all(&target).map_err(failed)?;
            continue;
        }
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        let bytes = read(&from.join(&entry.relative))?;
        fs::write(&target, bytes).map_err(failed)?;
        if entry.executable {
            make_executable(&target).map_err(failed)?;
        }
    }
    Ok(())
}

/// Removes a folder, if it exists. A solver may have left folders in it that are not writable.
///
/// # Errors
/// The folder is still there.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            make_writable(path)?;
            fs::remove_dir_all(path)
        }
        other => other,
    }
}

#[cfg(unix)]
fn make_writable(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            // The type of the entry itself: links are not followed.
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    Ok(())
}

#[cfg(not(unix))]
fn make_writable(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(unix)]
fn make_executable(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

#[cfg(not(unix))]
fn make_executable(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_files_and_the_digest_but_not_what_is_skipped() {
        let home = tempfile::tempdir().unwrap();
        let from = home.path().join("from");
        fs::create_dir_all(from.join("a/b")).unwrap();
        fs::write(from.join("a/b/c.sh"), "x").unwrap();
        fs::write(from.join("Dockerfile"), "y").unwrap();
        make_executable(&from.join("a/b/c.sh")).unwrap();

        copy(&from, &home.path().join("whole"), "").unwrap();
        copy(&from, &home.path().join("part"), "Dockerfile").unwrap();

        assert_eq!(digest(&home.path().join("whole")), digest(&from));
        assert_ne!(digest(&home.path().join("part")), digest(&from));
        let copied = home.path().join("part/a/b/c.sh");
        assert!(executable(&fs::metadata(copied).unwrap()));
        assert!(!home.path().join("part/Dockerfile").exists());
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_that_is_not_writable_is_removed() {
        use std::os::unix::fs::PermissionsExt as _;
        let home = tempfile::tempdir().unwrap();
        let inner = home.path().join("trial/a");
        fs::create_dir_all(inner.join("b")).unwrap();
        fs::write(inner.join("b/c"), "x").unwrap();
        for folder in [inner.join("b"), inner] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o500)).unwrap();
        }

        remove(&home.path().join("trial")).unwrap();

        assert!(!home.path().join("trial").exists());
        remove(&home.path().join("trial")).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_link_is_refused() {
        let home = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", home.path().join("x")).unwrap();

        let error = digest(home.path()).unwrap_err();

        assert_eq!(
            error,
            "`x` is a link or a special file; replace it by a copy"
        );
    }
}
