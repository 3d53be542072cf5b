//! Writing a file as a whole or not at all: a temporary file beside it, flushed, then renamed over it, all by descriptor.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{Read, Write},
    os::fd::{AsFd, BorrowedFd},
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags},
    io::Errno,
};

use super::jail::{PathError, Place, Root};

/// Names tried for the temporary file before giving up.
const NAMES_MAX: u32 = 32;

/// A file that is about to be written: found once, so that what was read is what is replaced.
pub struct Slot<'r> {
    root: &'r Root,
    place: Place,
    given: String,
}

impl Root {
    /// Finds where `given` is to be written, links followed. Nothing is made yet, but for missing folders if asked.
    ///
    /// # Errors
    /// [`PathError`]: outside, protected, sensitive, or something that is no regular file.
    pub fn slot(&self, given: &str, make_folders: bool) -> Result<Slot<'_>, PathError> {
        Ok(Slot { root: self, place: self.place_to_write(given, make_folders)?, given: given.to_owned() })
    }
}

impl Slot<'_> {
    /// Where it lies, links resolved, relative to the root.
    pub fn relative(&self) -> std::path::PathBuf {
        self.place.relative()
    }

    /// Whether a file is there.
    pub fn exists(&self) -> bool {
        matches!(self.place.leaf, Some((_, Some(_))))
    }

    fn parts(&self) -> (BorrowedFd<'_>, &OsStr) {
        let name = self.place.leaf.as_ref().map_or(OsStr::new(""), |(name, _)| name.as_os_str());
        (self.root.folder_of(&self.place), name)
    }

    fn error(&self, errno: Errno) -> PathError {
        PathError::Io { path: self.given.clone(), reason: std::io::Error::from(errno).to_string() }
    }

    fn io(&self, error: &std::io::Error) -> PathError {
        PathError::Io { path: self.given.clone(), reason: error.kind().to_string() }
    }

    /// Reads what is there; `None` above `bytes_max`.
    ///
    /// # Errors
    /// [`PathError`] when it went away or became something else.
    pub fn read(&self, bytes_max: u64) -> Result<Option<Vec<u8>>, PathError> {
        let (folder, name) = self.parts();
        let opened = self.root.open_listed(folder, name, &self.relative())?;
        let mut bytes = Vec::new();
        opened.file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes).map_err(|e| self.io(&e))?;
        Ok((bytes.len() as u64 <= bytes_max).then_some(bytes))
    }

    /// Puts `bytes` in its place; permissions stay. After a crash there is the old file or the new one, nothing between.
    ///
    /// # Errors
    /// [`PathError::Io`]; then the old file is untouched.
    pub fn replace(&self, bytes: &[u8]) -> Result<(), PathError> {
        let (folder, name) = self.parts();
        let (temporary, mut file) = self.temporary(folder)?;
        let written = self.write(&mut file, bytes).and_then(|()| {
            if self.exists() {
                rustix::fs::renameat(folder, &temporary, folder, name).map_err(|e| self.error(e))
            } else {
                // Nothing was there when the caller looked: what came since is not ours to replace.
                match rename_new(folder, &temporary, name) {
                    Err(Errno::EXIST) => Err(PathError::Io { path: self.given.clone(), reason: "it was created meanwhile".to_owned() }),
                    other => other.map_err(|e| self.error(e)),
                }
            }
        });
        if written.is_err() {
            let _ = rustix::fs::unlinkat(folder, &temporary, AtFlags::empty());
            return written;
        }
        // The rename itself must survive a power cut; where a folder cannot be flushed the data still is.
        let _ = rustix::fs::fsync(folder);
        Ok(())
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> Result<(), PathError> {
        file.write_all(bytes).map_err(|e| self.io(&e))?;
        if self.exists() {
            let (folder, name) = self.parts();
            let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|e| self.error(e))?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                return Err(PathError::Io { path: self.given.clone(), reason: "it was replaced meanwhile".to_owned() });
            }
            // Setting the owner is for the superuser; without the right the file is the host's, as any editor leaves it.
            let _ = rustix::fs::fchown(
                file.as_fd(),
                Some(rustix::fs::Uid::from_raw(stat.st_uid)),
                Some(rustix::fs::Gid::from_raw(stat.st_gid)),
            );
            rustix::fs::fchmod(file.as_fd(), Mode::from_raw_mode(stat.st_mode & 0o7777)).map_err(|e| self.error(e))?;
        }
        rustix::fs::fsync(file.as_fd()).map_err(|e| self.error(e))
    }

    fn temporary(&self, folder: BorrowedFd<'_>) -> Result<(OsString, File), PathError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // A new file has the usual rights (less the umask); one that replaces another gets that one's before it is visible.
        let mode = Mode::from_raw_mode(if self.exists() { 0o600 } else { 0o666 });
        for _ in 0..NAMES_MAX {
            let chance = getrandom::u64().map_err(|_| self.error(Errno::AGAIN))?;
            let name = OsString::from(format!(".callboard-{chance:016x}.tmp"));
            match rustix::fs::openat(folder, &name, flags, mode) {
                Ok(fd) => return Ok((name, File::from(fd))),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(self.error(errno)),
            }
        }
        Err(self.error(Errno::EXIST))
    }
}

fn rename_new(folder: BorrowedFd<'_>, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
    #[cfg(target_os = "linux")]
    match rustix::fs::renameat_with(folder, from, folder, to, rustix::fs::RenameFlags::NOREPLACE) {
        // Not every file system knows it; a link fails on an existing name just as well.
        Err(Errno::INVAL | Errno::NOSYS) => {}
        other => return other,
    }
    rustix::fs::linkat(folder, from, folder, to, AtFlags::empty())?;
    rustix::fs::unlinkat(folder, from, AtFlags::empty())
}
