//! Opens folders and files of the workspace without following links, and folders that a command has
//! closed.

use std::{
    io::Read,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{Dir, Mode, OFlags},
    io::Errno,
};

use super::GIT_FILE_BYTES_MAX;
use crate::sandbox::fs::{Root, jail::FOLDER};

/// Opens a folder by its path below the root, without following a link.
pub(in super::super) fn open_real(root: &Root, path: &Path) -> Result<OwnedFd, Errno> {
    root.open_real(path, FOLDER)
}

/// Gives this user access to the root again, if a command has closed it.
pub(super) fn reopen_root(root: &Root) {
    let Ok(stat) = rustix::fs::fstat(&root.dir) else {
        return;
    };
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    if stat.st_uid == rustix::process::geteuid().as_raw() && !mode.contains(Mode::RWXU) {
        // If this fails, the search reports that it cannot read the root.
        let _ = rustix::fs::fchmod(&root.dir, mode | Mode::RWXU);
    }
}

/// Gives this user access to a folder of this user again.
pub(super) fn reopen(root: &Root, path: &Path) -> Option<()> {
    let dir = root
        .open_real(
            path,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        )
        .ok()?;
    let stat = rustix::fs::fstat(&dir).ok()?;
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return None;
    }
    // A descriptor opened with O_PATH does not allow `fchmod`; its name under `/proc` allows
    // `chmod`.
    rustix::fs::chmod(
        format!("/proc/self/fd/{}", dir.as_raw_fd()),
        Mode::from_raw_mode(stat.st_mode & 0o7777) | Mode::RWXU,
    )
    .ok()
}

/// Whether every name in a folder passes; `false` if the folder cannot be listed.
pub(in super::super) fn all_names(dir: &OwnedFd, passes: impl Fn(&[u8]) -> bool) -> bool {
    let Ok(entries) = Dir::read_from(dir) else {
        return false;
    };
    entries.into_iter().all(|entry| {
        entry.is_ok_and(|entry| {
            let name = entry.file_name().to_bytes();
            name == b"." || name == b".." || passes(name)
        })
    })
}

/// Reads the beginning of a file, without following links.
pub(in super::super) fn read(root: &Root, path: &Path) -> Option<Vec<u8>> {
    try_read(root, path).ok()
}

/// As [`read`], for a file whose content decides what is protected.
pub(super) fn try_read(root: &Root, path: &Path) -> Result<Vec<u8>, Errno> {
    let fd = root.open_real(
        path,
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC,
    )?;
    let mut content = Vec::new();
    std::fs::File::from(fd)
        .take(GIT_FILE_BYTES_MAX as u64)
        .read_to_end(&mut content)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(content)
}
