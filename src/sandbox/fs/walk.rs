//! Walks a folder through descriptors. No path is opened again by name, so a folder swapped for a
//! link reveals nothing from outside.
//!
//! Respects `.gitignore` and `.ignore` files inside the root, skips `.git` and follows no link. The
//! order is depth first, sorted by name.

use std::{
    ffi::{OsStr, OsString},
    io::Read,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

use super::jail::{Opened, PathError, Root};

/// Nesting depth; each open level costs a descriptor.
const DEPTH_MAX: usize = 64;

/// Names read of one folder, since they are sorted in memory.
const NAMES_MAX: usize = 100_000;

/// Bytes read of one ignore file.
const IGNORE_BYTES_MAX: u64 = 256 * 1024;

/// An entry of the walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Path relative to the root.
    pub(crate) relative: PathBuf,
    /// Type of the entry; links are not followed.
    pub(crate) kind: FileType,
}

struct Ignores {
    /// Folder of the ignore file, relative to the root.
    base: PathBuf,
    rules: Gitignore,
}

struct Frame {
    dir: OwnedFd,
    relative: PathBuf,
    /// Remaining names, in reverse order.
    names: Vec<(OsString, FileType)>,
    ignores: usize,
}

/// A walk in progress.
pub(crate) struct Walk<'r> {
    root: &'r Root,
    frames: Vec<Frame>,
    ignores: Vec<Ignores>,
    depth_max: usize,
    heeds_ignores: bool,
    /// Folders that could not be read or were cut off. The tool reports the number to the model.
    pub(crate) skipped: u64,
}

impl<'r> Walk<'r> {
    /// Walks below an open folder, at most `depth_max` levels deep.
    pub(crate) fn new(root: &'r Root, dir: OwnedFd, relative: PathBuf, depth_max: usize) -> Self {
        let mut walk = Self::bare(root, depth_max, true);
        walk.read_parents(&relative);
        walk.enter(dir, relative);
        walk
    }

    /// Walks over everything, ignore files notwithstanding.
    pub(crate) fn over_all(root: &'r Root, dir: OwnedFd, relative: PathBuf) -> Self {
        let mut walk = Self::bare(root, DEPTH_MAX, false);
        walk.enter(dir, relative);
        walk
    }

    fn bare(root: &'r Root, depth_max: usize, heeds_ignores: bool) -> Self {
        Self {
            root,
            frames: Vec::new(),
            ignores: Vec::new(),
            depth_max: depth_max.min(DEPTH_MAX),
            heeds_ignores,
            skipped: 0,
        }
    }

    /// Reads the ignore files of the folders above, which also apply. Those above the root do not.
    fn read_parents(&mut self, relative: &Path) {
        let Some(parent) = relative.parent() else {
            return;
        };
        let mut above = PathBuf::new();
        for name in std::iter::once(OsStr::new("")).chain(parent.iter()) {
            above.push(name);
            if let Ok((dir, _)) = self.root.open_folder(&above.to_string_lossy()) {
                let above: PathBuf = above.iter().collect();
                self.read_ignores(&dir, &above);
            }
        }
    }

    fn read_ignores(&mut self, dir: &OwnedFd, relative: &Path) {
        for name in [".gitignore", ".ignore"] {
            let Ok(opened) =
                self.root
                    .open_listed(dir.as_fd(), OsStr::new(name), &relative.join(name))
            else {
                continue;
            };
            let mut text = Vec::new();
            if opened
                .file
                .take(IGNORE_BYTES_MAX)
                .read_to_end(&mut text)
                .is_err()
            {
                continue;
            }
            let mut builder = GitignoreBuilder::new(".");
            for line in String::from_utf8_lossy(&text).lines() {
                let _ = builder.add_line(None, line); // git, too, skips an invalid line
            }
            if let Ok(rules) = builder.build() {
                self.ignores.push(Ignores {
                    base: relative.to_owned(),
                    rules,
                });
            }
        }
    }

    fn enter(&mut self, dir: OwnedFd, relative: PathBuf) {
        let ignores = self.ignores.len();
        let Ok(listing) = Dir::read_from(&dir) else {
            self.skipped += 1;
            return;
        };
        let mut names = Vec::new();
        for entry in listing {
            let Ok(entry) = entry else { break };
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." || name == ".git" {
                continue;
            }
            if names.len() >= NAMES_MAX {
                self.skipped += 1;
                break;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)
                    .map_or(FileType::Unknown, |stat| {
                        FileType::from_raw_mode(stat.st_mode)
                    }),
                known => known,
            };
            names.push((name.to_owned(), kind));
        }
        names.sort_by(|a, b| b.0.cmp(&a.0));
        if self.heeds_ignores
            && names
                .iter()
                .any(|(name, _)| name == ".gitignore" || name == ".ignore")
        {
            self.read_ignores(&dir, &relative);
        }
        self.frames.push(Frame {
            dir,
            relative,
            names,
            ignores,
        });
    }

    fn is_ignored(&self, relative: &Path, is_folder: bool) -> bool {
        for ignores in self.ignores.iter().rev() {
            let Ok(path) = relative.strip_prefix(&ignores.base) else {
                continue;
            };
            match ignores.rules.matched(path, is_folder) {
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
                Match::None => {}
            }
        }
        false
    }

    /// Returns the next entry that is not ignored. A folder comes before its contents.
    pub(crate) fn advance(&mut self) -> Option<Entry> {
        loop {
            let depth = self.frames.len();
            let frame = self.frames.last_mut()?;
            let Some((name, kind)) = frame.names.pop() else {
                self.ignores.truncate(frame.ignores);
                self.frames.pop();
                continue;
            };
            let relative = frame.relative.join(&name);
            let is_folder = kind == FileType::Directory;
            if self.is_ignored(&relative, is_folder) {
                continue;
            }
            if is_folder && depth < self.depth_max {
                self.descend(&name, &relative);
            }
            return Some(Entry { relative, kind });
        }
    }

    fn descend(&mut self, name: &OsStr, relative: &Path) {
        let Some(frame) = self.frames.last() else {
            return;
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(&frame.dir, name, flags, Mode::empty()) {
            Ok(dir) => self.enter(dir, relative.to_owned()),
            Err(_) => self.skipped += 1,
        }
    }

    /// Size in bytes of the file that [`Walk::advance`] just returned; `None` if it is gone or not
    /// a regular file.
    pub(crate) fn size(&self, entry: &Entry) -> Option<u64> {
        let stat = rustix::fs::statat(
            &self.frames.last()?.dir,
            entry.relative.file_name()?,
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .ok()?;
        (FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
            .then(|| u64::try_from(stat.st_size).unwrap_or(0))
    }

    /// Opens the file that [`Walk::advance`] just returned.
    pub(crate) fn open(&self, entry: &Entry) -> Result<Opened, PathError> {
        let given = entry.relative.to_string_lossy().into_owned();
        let (Some(frame), Some(name)) = (self.frames.last(), entry.relative.file_name()) else {
            return Err(PathError::NotFound(given));
        };
        self.root
            .open_listed(frame.dir.as_fd(), name, &entry.relative)
    }
}
