//! Writing a file as a whole or not at all: a temporary file beside it, flushed, then renamed over it, all by descriptor.
//!
//! Promises
//! - The path that was given, in its one spelling ([`Root::spelled_to_write`]), is the path that is changed: a link on the way or at
//!   its end is refused, also one that is swapped in meanwhile.
//! - What was read is what is replaced: another identity, size or time of change in its place is [`PathError::Changed`].
//! - No file is written that makes a folder a repository of git which was none, or that sets up programs in one: git would run them.
//! - Permissions and, where the host may set it, the owner stay. A name with several hard links stops being one of them.
//!
//! Limits, stated: between the last look and the rename lie microseconds in which another program's change would be lost; a host that
//! is killed between the two can leave a `.callboard-….tmp` beside the file. Extended attributes are not copied.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, Stat},
    io::Errno,
};

use super::{
    git::Parts,
    jail::{FOLDER, PathError, Root, name_of, settled, shown},
    policy::lower_name,
};

/// Names tried for the temporary file before giving up.
const NAMES_MAX: u32 = 32;

/// How the name of a temporary file begins and ends.
const TEMPORARY: (&str, &str) = (".callboard-", ".tmp");

/// Whether a file is one that a killed host may have left behind.
pub(crate) fn is_temporary(name: &OsStr) -> bool {
    name.as_bytes().starts_with(TEMPORARY.0.as_bytes()) && name.as_bytes().ends_with(TEMPORARY.1.as_bytes())
}

/// A file that is about to be written: found once, so that what was read is what is replaced.
#[derive(Debug)]
pub struct Slot<'r> {
    root: &'r Root,
    folder: OwnedFd,
    relative: PathBuf,
    name: OsString,
    given: String,
    /// What is there, as it was last looked at.
    found: Option<Stat>,
    /// Folders above that are no repository of git and of which this path would be a part.
    parts_of: Vec<PathBuf>,
}

impl Root {
    /// Finds where `given` is to be written, without passing a link. Nothing is made yet, but for missing folders if asked.
    ///
    /// # Errors
    /// [`PathError`]: outside, protected, sensitive, through a link, something that is no regular file, or no room for folders and a file
    /// that are to be made.
    pub fn slot(&self, given: &str, make_folders: bool) -> Result<Slot<'_>, PathError> {
        let spelled = self.spelled_to_write(given);
        if given.bytes().any(|b| b == 0) {
            return Err(PathError::Invalid(given.to_owned()));
        }
        if spelled.starts_with('/') || spelled.split('/').next() == Some("..") {
            return Err(PathError::Outside(given.to_owned()));
        }
        let path = Path::new(&spelled);
        self.refuse(given, path)?;
        let parts_of = self.git_folders(path).ok_or_else(|| PathError::Protected(given.to_owned()))?;
        if make_folders && self.quota().is_bounded() {
            self.room_for(given, self.missing_names(path), 0)?;
        }
        let slot = settled(|| self.slot_once(given, path, make_folders))?;
        Ok(Slot { parts_of, ..slot })
    }

    fn refuse(&self, given: &str, path: &Path) -> Result<(), PathError> {
        if self.rules.is_protected(path) {
            return Err(PathError::Protected(given.to_owned()));
        }
        if self.rules.is_sensitive(path) {
            return Err(PathError::Sensitive(given.to_owned()));
        }
        Ok(())
    }

    /// The folders above that would have a part of a repository of git in this path, but are none. `None` if writing here decides what
    /// programs git runs, in a folder that it takes for a repository although it is not named `.git`.
    fn git_folders(&self, path: &Path) -> Option<Vec<PathBuf>> {
        let (mut folder, mut parts_of) = (PathBuf::new(), Vec::new());
        for name in path {
            let (parts, lower) = (self.git_parts(&folder), lower_name(name));
            if parts.is_armed_by(&lower) {
                return None;
            }
            if Parts::is_part(&lower) && !parts.is_repository() {
                parts_of.push(folder.clone());
            }
            folder.push(name);
        }
        Some(parts_of)
    }

    fn git_parts(&self, folder: &Path) -> Parts {
        let mut parts = Parts::default();
        let exists = |name: &str| rustix::fs::statat(&self.dir, folder.join(name), AtFlags::SYMLINK_NOFOLLOW).is_ok();
        Parts::NAMES.into_iter().filter(|name| exists(name)).for_each(|name| parts.add(&lower_name(OsStr::new(name))));
        parts
    }

    /// Walks name by name; no descriptor of the way is opened through a link, and only the last is kept.
    fn slot_once(&self, given: &str, path: &Path, make_folders: bool) -> Result<Slot<'_>, PathError> {
        let error = |errno| PathError::io(given, errno);
        let folder_mode = Mode::from_raw_mode(if self.private { 0o700 } else { 0o777 });
        let mut folder = rustix::fs::openat(&self.dir, ".", FOLDER, Mode::empty()).map_err(error)?;
        let mut above = PathBuf::new();
        for name in path.parent().into_iter().flat_map(Path::iter) {
            above.push(name);
            if make_folders {
                match rustix::fs::mkdirat(&folder, name, folder_mode) {
                    Ok(()) => self.made(1, 0),
                    Err(Errno::EXIST) => {}
                    Err(errno) => return Err(error(errno)),
                }
            }
            folder = match rustix::fs::openat(&folder, name, FOLDER, Mode::empty()) {
                Ok(below) => below,
                Err(Errno::LOOP | Errno::NOTDIR) => return Err(self.no_folder(given, path, &folder, &above)),
                Err(errno) => return Err(error(errno)),
            };
        }
        let name = match path.file_name() {
            Some(name) if path.as_os_str() != "." => name.to_owned(),
            _ => return Err(PathError::NotAFile { path: given.to_owned(), kind: "a folder" }),
        };
        let found = match rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => Some(stat),
                FileType::Symlink => return Err(self.through(given, path, path)),
                kind => return Err(PathError::NotAFile { path: given.to_owned(), kind: name_of(kind) }),
            },
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(error(errno)),
        };
        Ok(Slot { root: self, folder, relative: path.to_owned(), name, given: given.to_owned(), found, parts_of: Vec::new() })
    }

    fn no_folder(&self, given: &str, path: &Path, folder: &OwnedFd, at: &Path) -> PathError {
        let name = at.file_name().unwrap_or_default();
        match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => self.through(given, path, at),
            // It was a link a moment ago.
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => PathError::Changed(given.to_owned()),
            Ok(_) => PathError::NotAFolder(given.to_owned()),
            Err(errno) => PathError::io(given, errno),
        }
    }

    /// Says where a link leads, if that may be known; what lies there is judged first.
    fn through(&self, given: &str, path: &Path, link: &Path) -> PathError {
        let located = |path: &Path| match self.locate(&path.to_string_lossy()) {
            Ok(target) => Ok(target),
            Err(PathError::Outside(_)) => Err(PathError::Outside(given.to_owned())),
            Err(PathError::TooManyLinks(_)) => Err(PathError::TooManyLinks(given.to_owned())),
            Err(_) => Err(PathError::Changed(given.to_owned())),
        };
        let (leads, end) = match (located(link), located(path)) {
            (Ok(leads), Ok(end)) => (leads, end),
            (Err(error), _) | (_, Err(error)) => return error,
        };
        if let Err(error) = self.refuse(given, &end) {
            return error;
        }
        let what = if link == path { "edit that path itself".to_owned() } else { format!("edit {:?} itself", shown(&end)) };
        PathError::Link { link: shown(link), target: shown(&leads), what }
    }
}

/// Whether two looks saw the same file in the same state.
fn is_same(a: &Stat, b: &Stat) -> bool {
    (a.st_dev, a.st_ino, a.st_size, a.st_mode) == (b.st_dev, b.st_ino, b.st_size, b.st_mode)
        && (a.st_mtime, a.st_mtime_nsec, a.st_ctime, a.st_ctime_nsec) == (b.st_mtime, b.st_mtime_nsec, b.st_ctime, b.st_ctime_nsec)
}

impl Slot<'_> {
    /// Where it lies, relative to the root.
    pub fn relative(&self) -> PathBuf {
        self.relative.clone()
    }

    /// Whether a file is there.
    pub fn exists(&self) -> bool {
        self.found.is_some()
    }

    fn changed(&self) -> PathError {
        PathError::Changed(self.given.clone())
    }

    fn error(&self, errno: Errno) -> PathError {
        match errno {
            // The folder was removed, or a name came or went.
            Errno::NOENT | Errno::EXIST | Errno::LOOP => self.changed(),
            other => PathError::Io { path: self.given.clone(), reason: std::io::Error::from(other).to_string() },
        }
    }

    fn io(&self, error: &std::io::Error) -> PathError {
        PathError::Io { path: self.given.clone(), reason: error.kind().to_string() }
    }

    /// Reads what is there; `None` above `bytes_max`. From here on this is what is replaced.
    ///
    /// # Errors
    /// [`PathError`] when it went away, became something else or is being written.
    pub fn read(&mut self, bytes_max: u64) -> Result<Option<Vec<u8>>, PathError> {
        let opened = match self.root.open_listed(self.folder.as_fd(), &self.name, &self.relative) {
            Ok(opened) => opened,
            Err(PathError::NotFound(_) | PathError::TooManyLinks(_)) => return Err(self.changed()),
            Err(error) => return Err(error),
        };
        let stat = |file: &File| rustix::fs::fstat(file).map_err(|e| self.error(e));
        let before = stat(&opened.file)?;
        let mut bytes = Vec::new();
        (&opened.file).take(bytes_max.saturating_add(1)).read_to_end(&mut bytes).map_err(|e| self.io(&e))?;
        if !is_same(&before, &stat(&opened.file)?) {
            return Err(self.changed());
        }
        self.found = Some(before);
        Ok((bytes.len() as u64 <= bytes_max).then_some(bytes))
    }

    /// Puts `bytes` in its place; permissions stay. After a crash there is the old file or the new one, nothing between.
    ///
    /// # Errors
    /// [`PathError::Changed`], [`PathError::Full`], [`PathError::Io`]; then the old file is untouched.
    pub fn replace(&self, bytes: &[u8]) -> Result<(), PathError> {
        let before = self.found.as_ref().map_or(0, |found| u64::try_from(found.st_size).unwrap_or(0));
        let (names, more) = (u64::from(!self.exists()), (bytes.len() as u64).saturating_sub(before));
        self.root.room_for(&self.given, names, more)?;
        let (temporary, mut file) = self.temporary()?;
        let written = self.write(&mut file, bytes).and_then(|()| {
            if self.exists() {
                self.still_there()?;
                rustix::fs::renameat(&self.folder, &temporary, &self.folder, &self.name).map_err(|e| self.error(e))
            } else {
                // Nothing was there when the caller looked: what came since is not ours to replace.
                self.rename_new(&temporary).map_err(|e| self.error(e))
            }
        });
        if written.is_err() {
            let _ = rustix::fs::unlinkat(&self.folder, &temporary, AtFlags::empty());
            return written;
        }
        // The rename itself must survive a power cut; where a folder cannot be flushed the data still is.
        let _ = rustix::fs::fsync(&self.folder);
        // Several writers, each with one part of a repository, have each seen a folder that was none: the last one sees it now.
        if !self.exists() && self.parts_of.iter().any(|folder| self.root.git_parts(folder).is_repository()) {
            if let Ok(made) = self.root.slot_once(&self.given, &self.relative, false) {
                made.remove(true)?;
            }
            return Err(PathError::Protected(self.given.clone()));
        }
        self.root.made(names, more);
        Ok(())
    }

    /// Removes the file, and the folders above it that this leaves empty if asked.
    ///
    /// # Errors
    /// [`PathError::NotFound`], [`PathError::Changed`], [`PathError::Io`].
    pub fn remove(&self, empty_folders: bool) -> Result<(), PathError> {
        if !self.exists() {
            return Err(PathError::NotFound(self.given.clone()));
        }
        self.still_there()?;
        rustix::fs::unlinkat(&self.folder, &self.name, AtFlags::empty()).map_err(|e| self.error(e))?;
        let _ = rustix::fs::fsync(&self.folder);
        for folder in self.relative.ancestors().skip(1).filter(|folder| empty_folders && !folder.as_os_str().is_empty()) {
            let Some((above, name)) = folder.parent().zip(folder.file_name()) else { break };
            // A slot beside it holds the folder above, found without a link.
            let Ok(above) = self.root.slot_once(&self.given, &above.join(&self.name), false) else { break };
            if rustix::fs::unlinkat(&above.folder, name, AtFlags::REMOVEDIR).is_err() {
                break;
            }
        }
        Ok(())
    }

    fn still_there(&self) -> Result<(), PathError> {
        let now = rustix::fs::statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW).map_err(|e| self.error(e))?;
        if self.found.as_ref().is_some_and(|found| is_same(found, &now)) { Ok(()) } else { Err(self.changed()) }
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> Result<(), PathError> {
        file.write_all(bytes).map_err(|e| self.io(&e))?;
        if let Some(found) = &self.found {
            // Setting the owner is for the superuser; without the right the file is the host's, as any editor leaves it.
            let (user, group) = (rustix::fs::Uid::from_raw(found.st_uid), rustix::fs::Gid::from_raw(found.st_gid));
            let _ = rustix::fs::fchown(file.as_fd(), Some(user), Some(group));
            rustix::fs::fchmod(file.as_fd(), Mode::from_raw_mode(found.st_mode & 0o7777)).map_err(|e| self.error(e))?;
        }
        rustix::fs::fsync(file.as_fd()).map_err(|e| self.error(e))
    }

    fn temporary(&self) -> Result<(OsString, File), PathError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // A new file has the usual rights (less the umask); one that replaces another gets that one's before it is visible.
        let mode = Mode::from_raw_mode(if self.exists() || self.root.private { 0o600 } else { 0o666 });
        for _ in 0..NAMES_MAX {
            let chance = getrandom::u64().map_err(|_| self.error(Errno::AGAIN))?;
            let name = OsString::from(format!("{}{chance:016x}{}", TEMPORARY.0, TEMPORARY.1));
            match rustix::fs::openat(&self.folder, &name, flags, mode) {
                Ok(fd) => return Ok((name, File::from(fd))),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(self.error(errno)),
            }
        }
        Err(self.changed())
    }

    fn rename_new(&self, temporary: &OsStr) -> Result<(), Errno> {
        let folder = &self.folder;
        #[cfg(target_os = "linux")]
        match rustix::fs::renameat_with(folder, temporary, folder, &self.name, rustix::fs::RenameFlags::NOREPLACE) {
            // Not every file system knows it; a link fails on an existing name just as well.
            Err(Errno::INVAL | Errno::NOSYS) => {}
            other => return other,
        }
        rustix::fs::linkat(folder, temporary, folder, &self.name, AtFlags::empty())?;
        rustix::fs::unlinkat(folder, temporary, AtFlags::empty())
    }
}
