//! New names, which no program reads, for what is moved aside.

use std::{
    ffi::{OsStr, OsString},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::Path,
};

use rustix::{fs::RenameFlags, io::Errno};

use super::found::FileStatus;

/// Random names that are tried.
const CHANCES_MAX: u32 = 8;

/// Bytes kept of the file's name; a name has 255 at most.
const NAME_KEPT: usize = 200;

/// Endings that no command can know.
pub(super) fn random_endings() -> impl Iterator<Item = String> {
    (0..CHANCES_MAX)
        .filter_map(|_| getrandom::u64().ok())
        .map(|chance| format!(".refused.{chance:016x}"))
}

/// Renames to the first name that is free.
pub(super) fn rename_with(
    dir: &OwnedFd,
    name: &OsStr,
    endings: impl Iterator<Item = String>,
) -> Result<OsString, Errno> {
    for ending in endings {
        let mut aside = name.to_owned().into_vec();
        aside.truncate(NAME_KEPT);
        aside.extend_from_slice(ending.as_bytes());
        let aside = OsString::from_vec(aside);
        let renamed =
            match rustix::fs::renameat_with(dir, name, dir, &aside, RenameFlags::NOREPLACE) {
                // Not every file system supports RENAME_NOREPLACE.
                Err(Errno::INVAL | Errno::NOSYS) => {
                    match FileStatus::at(dir.as_fd(), Path::new(&aside)) {
                        Err(Errno::NOENT) => rustix::fs::renameat(dir, name, dir, &aside),
                        _ => Err(Errno::EXIST),
                    }
                }
                other => other,
            };
        match renamed {
            Ok(()) => return Ok(aside),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::EXIST)
}
