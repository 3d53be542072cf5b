//! Replaces a file atomically: writes a temporary file beside the target, flushes it and renames it
//! over the target, all through descriptors. The file tools write through this module only.
//!
//! Promises:
//! - Only the requested path changes, in its canonical spelling ([`Root::spelled_to_write`]). A
//!   symbolic link at the path or above it is refused, also one that another program swaps in
//!   during the write.
//! - A file is replaced only if it is still the file that was read. Another inode, size or change
//!   time is [`PathError::Changed`].
//! - No write turns a folder into a git repository, and none configures a program that git would
//!   run.
//! - The mode stays except for the set-user-ID and set-group-ID bits, and so does the owner where
//!   the host may set it. Other hard links to the old file keep the old content.
//!
//! Limits:
//! - A change by another program in the microseconds between the last check and the rename is lost.
//! - A host that is killed in that time can leave a `.callboard-….tmp` beside the file.
//! - Extended attributes are not copied.

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
};
use crate::sandbox::policy::lower_name;

/// Temporary names to try before the write fails.
const NAMES_MAX: u32 = 32;

/// Prefix and suffix of the name of a temporary file.
const TEMPORARY: (&str, &str) = (".callboard-", ".tmp");

/// Whether a name is that of a temporary file, which a killed host may have left behind.
pub(crate) fn is_temporary(name: &OsStr) -> bool {
    name.as_bytes().starts_with(TEMPORARY.0.as_bytes())
        && name.as_bytes().ends_with(TEMPORARY.1.as_bytes())
}

/// A file about to be written. It is located once, so that the file replaced is the file that was
/// read.
#[derive(Debug)]
pub struct Slot<'r> {
    root: &'r Root,
    folder: OwnedFd,
    relative: PathBuf,
    name: OsString,
    given: String,
    /// Status of the existing file at the last check; `None` if there is none.
    found: Option<Stat>,
    /// Folders above that are not git repositories but could become one through this path. They are
    /// checked again after the write.
    parts_of: Vec<PathBuf>,
}

impl Root {
    /// Locates the file that `given` names, without following links. Creates nothing, except
    /// missing folders if `make_folders` is set.
    ///
    /// # Errors
    /// [`PathError`] when the path is outside the root, protected, sensitive, reached through a
    /// link or not a regular file, or when the quota has no room for the folders and the file to
    /// create.
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
        let parts_of = self
            .git_folders(path)
            .ok_or_else(|| PathError::Protected(given.to_owned()))?;
        #[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
        if !self.private
            // The first takes as long as a folder has names, and a command may run meanwhile.
            && (super::guard::is_behind_protected_link(self, path)
                || super::guard::is_named_by_git(self, path))
        {
            return Err(PathError::Protected(given.to_owned()));
        }
        if make_folders && self.quota().is_bounded() {
            self.room_for(given, self.missing_names(path), 0)?;
        }
        let slot = settled(|| self.slot_once(given, path, make_folders))?;
        Ok(Slot { parts_of, ..slot })
    }

    fn refuse(&self, given: &str, path: &Path) -> Result<(), PathError> {
        if self.rules().is_protected(path) {
            return Err(PathError::Protected(given.to_owned()));
        }
        if self.rules().is_sensitive(path) {
            return Err(PathError::Sensitive(given.to_owned()));
        }
        Ok(())
    }

    /// Returns the folders above `path` that are not git repositories and in which `path` would be
    /// one part of a repository. Returns `None` if writing here would decide which programs git
    /// runs, in a folder that git accepts as a repository although its name is not `.git`.
    fn git_folders(&self, path: &Path) -> Option<Vec<PathBuf>> {
        let mut folder = PathBuf::new();
        let mut parts_of = Vec::new();
        for name in path {
            let parts = self.git_parts(&folder);
            let lower = lower_name(name);
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
        let exists = |name: &str| {
            rustix::fs::statat(&self.dir, folder.join(name), AtFlags::SYMLINK_NOFOLLOW).is_ok()
        };
        Parts::NAMES
            .into_iter()
            .filter(|name| exists(name))
            .for_each(|name| parts.add(&lower_name(OsStr::new(name))));
        parts
    }

    /// Walks the path name by name. No folder on the way is opened through a link, and only the
    /// last descriptor is kept.
    fn slot_once(
        &self,
        given: &str,
        path: &Path,
        make_folders: bool,
    ) -> Result<Slot<'_>, PathError> {
        let error = |errno| PathError::io(given, errno);
        let folder_mode = Mode::from_raw_mode(if self.private { 0o700 } else { 0o777 });
        let mut folder =
            rustix::fs::openat(&self.dir, ".", FOLDER, Mode::empty()).map_err(error)?;
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
                Err(Errno::LOOP | Errno::NOTDIR) => {
                    return Err(self.no_folder(given, path, &folder, &above));
                }
                Err(errno) => return Err(error(errno)),
            };
        }
        let name = match path.file_name() {
            Some(name) if path.as_os_str() != "." => name.to_owned(),
            _ => {
                return Err(PathError::NotAFile {
                    path: given.to_owned(),
                    kind: "a folder",
                });
            }
        };
        let found = match rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => Some(stat),
                FileType::Symlink => return Err(self.through(given, path, path)),
                kind => {
                    return Err(PathError::NotAFile {
                        path: given.to_owned(),
                        kind: name_of(kind),
                    });
                }
            },
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(error(errno)),
        };
        Ok(Slot {
            root: self,
            folder,
            relative: path.to_owned(),
            name,
            given: given.to_owned(),
            found,
            parts_of: Vec::new(),
        })
    }

    fn no_folder(&self, given: &str, path: &Path, folder: &OwnedFd, at: &Path) -> PathError {
        let name = at.file_name().unwrap_or_default();
        match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => {
                self.through(given, path, at)
            }
            // The open found a link here, the check after it a folder: another program is swapping
            // them.
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                PathError::Changed(given.to_owned())
            }
            Ok(_) => PathError::NotAFolder(given.to_owned()),
            Err(errno) => PathError::io(given, errno),
        }
    }

    /// Returns the error for a path that passes a link. The error names the link's target only if
    /// the caller may know it, so the target is checked first.
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
        let what = if link == path {
            "edit that path itself".to_owned()
        } else {
            format!("edit {:?} itself", shown(&end))
        };
        PathError::Link {
            link: shown(link),
            target: shown(&leads),
            what,
        }
    }
}

/// Whether two checks saw the same file in the same state.
fn is_same(a: &Stat, b: &Stat) -> bool {
    (a.st_dev, a.st_ino, a.st_size, a.st_mode) == (b.st_dev, b.st_ino, b.st_size, b.st_mode)
        && (a.st_mtime, a.st_mtime_nsec, a.st_ctime, a.st_ctime_nsec)
            == (b.st_mtime, b.st_mtime_nsec, b.st_ctime, b.st_ctime_nsec)
}

impl Slot<'_> {
    /// Path relative to the root.
    pub fn relative(&self) -> PathBuf {
        self.relative.clone()
    }

    /// Whether the file existed at the last check.
    pub fn exists(&self) -> bool {
        self.found.is_some()
    }

    fn changed(&self) -> PathError {
        PathError::Changed(self.given.clone())
    }

    fn error(&self, errno: Errno) -> PathError {
        match errno {
            // Another program removed the folder, or created or removed a name in it.
            Errno::NOENT | Errno::EXIST | Errno::LOOP => self.changed(),
            other => PathError::Io {
                path: self.given.clone(),
                reason: std::io::Error::from(other).to_string(),
            },
        }
    }

    fn io(&self, error: &std::io::Error) -> PathError {
        PathError::Io {
            path: self.given.clone(),
            reason: error.kind().to_string(),
        }
    }

    /// Reads the existing file; `None` if it has more than `bytes_max` bytes. A later
    /// [`Slot::replace`] replaces exactly the file that was read here.
    ///
    /// # Errors
    /// [`PathError`] when the file was removed, replaced or written to meanwhile.
    pub fn read(&mut self, bytes_max: u64) -> Result<Option<Vec<u8>>, PathError> {
        let opened = match self
            .root
            .open_listed(self.folder.as_fd(), &self.name, &self.relative)
        {
            Ok(opened) => opened,
            Err(PathError::NotFound(_) | PathError::TooManyLinks(_)) => return Err(self.changed()),
            Err(error) => return Err(error),
        };
        let stat = |file: &File| rustix::fs::fstat(file).map_err(|e| self.error(e));
        let before = stat(&opened.file)?;
        let mut bytes = Vec::new();
        (&opened.file)
            .take(bytes_max.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(|e| self.io(&e))?;
        if !is_same(&before, &stat(&opened.file)?) {
            return Err(self.changed());
        }
        self.found = Some(before);
        Ok((bytes.len() as u64 <= bytes_max).then_some(bytes))
    }

    /// Replaces the file's content with `bytes`, or creates the file. After a crash either the old
    /// file is there or the new one, never a part.
    ///
    /// # Errors
    /// [`PathError::Changed`] when another program changed the file meanwhile, [`PathError::Full`]
    /// when the quota has no room, [`PathError::Protected`] when the folder would become a git
    /// repository, [`PathError::Io`] otherwise. The old file is then untouched.
    pub fn replace(&self, bytes: &[u8]) -> Result<(), PathError> {
        let before = self
            .found
            .as_ref()
            .map_or(0, |found| u64::try_from(found.st_size).unwrap_or(0));
        let names = u64::from(!self.exists());
        let more = (bytes.len() as u64).saturating_sub(before);
        self.root.room_for(&self.given, names, more)?;
        let (temporary, mut file) = self.temporary()?;
        let written = self.write(&mut file, bytes).and_then(|()| {
            if self.exists() {
                self.still_there()?;
                rustix::fs::renameat(&self.folder, &temporary, &self.folder, &self.name)
                    .map_err(|e| self.error(e))
            } else {
                // The caller saw no file here, so a file created since must not be replaced.
                self.rename_new(&temporary).map_err(|e| self.error(e))
            }
        });
        if written.is_err() {
            let _ = rustix::fs::unlinkat(&self.folder, &temporary, AtFlags::empty());
            return written;
        }
        // Flush the folder, so that the rename survives a power cut. Not every file system can; the
        // data is flushed in any case.
        let _ = rustix::fs::fsync(&self.folder);
        // Several writers may each add one part of a repository to a folder that none of them saw
        // as one. Checking again after the write catches the last of them.
        if !self.exists()
            && self
                .parts_of
                .iter()
                .any(|folder| self.root.git_parts(folder).is_repository())
        {
            if let Ok(made) = self.root.slot_once(&self.given, &self.relative, false) {
                made.remove(true)?;
            }
            return Err(PathError::Protected(self.given.clone()));
        }
        self.root.made(names, more);
        Ok(())
    }

    /// Removes the file and, if `empty_folders` is set, the folders above it that this leaves
    /// empty.
    ///
    /// # Errors
    /// [`PathError::NotFound`] when there was no file, [`PathError::Changed`] when another program
    /// changed it meanwhile, [`PathError::Io`] otherwise.
    pub fn remove(&self, empty_folders: bool) -> Result<(), PathError> {
        if !self.exists() {
            return Err(PathError::NotFound(self.given.clone()));
        }
        self.still_there()?;
        rustix::fs::unlinkat(&self.folder, &self.name, AtFlags::empty())
            .map_err(|e| self.error(e))?;
        let _ = rustix::fs::fsync(&self.folder);
        for folder in self
            .relative
            .ancestors()
            .skip(1)
            .filter(|folder| empty_folders && !folder.as_os_str().is_empty())
        {
            let Some((above, name)) = folder.parent().zip(folder.file_name()) else {
                break;
            };
            // A slot for a sibling opens the folder above without following a link.
            let Ok(above) = self
                .root
                .slot_once(&self.given, &above.join(&self.name), false)
            else {
                break;
            };
            if rustix::fs::unlinkat(&above.folder, name, AtFlags::REMOVEDIR).is_err() {
                break;
            }
        }
        Ok(())
    }

    fn still_there(&self) -> Result<(), PathError> {
        let now = rustix::fs::statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|e| self.error(e))?;
        if self
            .found
            .as_ref()
            .is_some_and(|found| is_same(found, &now))
        {
            Ok(())
        } else {
            Err(self.changed())
        }
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> Result<(), PathError> {
        file.write_all(bytes).map_err(|e| self.io(&e))?;
        if let Some(found) = &self.found {
            // Only a superuser can set the owner. Otherwise the new file belongs to the host's
            // user, as after a save in an editor.
            let user = rustix::fs::Uid::from_raw(found.st_uid);
            let group = rustix::fs::Gid::from_raw(found.st_gid);
            let _ = rustix::fs::fchown(file.as_fd(), Some(user), Some(group));
            // As after any write, the file does not run as its owner or group any more.
            rustix::fs::fchmod(file.as_fd(), Mode::from_raw_mode(found.st_mode & 0o1777))
                .map_err(|e| self.error(e))?;
        }
        rustix::fs::fsync(file.as_fd()).map_err(|e| self.error(e))
    }

    fn temporary(&self) -> Result<(OsString, File), PathError> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // A new file gets the default mode (less the umask). A replacement starts private and gets
        // the old file's mode before it becomes visible.
        let mode = Mode::from_raw_mode(if self.exists() || self.root.private {
            0o600
        } else {
            0o666
        });
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
        match rustix::fs::renameat_with(
            folder,
            temporary,
            folder,
            &self.name,
            rustix::fs::RenameFlags::NOREPLACE,
        ) {
            // Not every file system supports RENAME_NOREPLACE. A hard link fails on an existing
            // name as well.
            Err(Errno::INVAL | Errno::NOSYS) => {}
            other => return other,
        }
        rustix::fs::linkat(folder, temporary, folder, &self.name, AtFlags::empty())?;
        rustix::fs::unlinkat(folder, temporary, AtFlags::empty())
    }
}
