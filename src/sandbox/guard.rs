//! Protected and sensitive names for commands: found before a command runs, so that the jail covers them, and looked for again after
//! it, so that what was absent at start does not stay (FAULTS F2).
//!
//! Limits, stated: a name that is absent when a command starts can be created by it and is moved aside (`name.refused`) when it ends;
//! until then the host's own programs could read it. An empty file bound over every absent name would close that gap, but bubblewrap
//! makes such mount points in the user's folder, where a `kill -9` leaves them. The search is bounded: nearest folders first.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ffi::{OsStr, OsString},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, Dir, FileType, RenameFlags};

use super::{
    jail::{Root, shown},
    policy::{PROTECTED_IN_GIT, lower_name},
};

/// Folders that are searched, nearest first: a search must cost milliseconds.
const FOLDERS_MAX: usize = 2000;

/// Names that are looked at.
const NAMES_MAX: usize = 50_000;

/// Mounts of one kind: each costs time at every command.
const MOUNTS_MAX: usize = 200;

/// Names tried for something moved aside.
const ASIDE_MAX: u32 = 1000;

pub(super) type Identity = (u64, u64);

/// What was found. Paths are relative to the root.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Folders named `.git`: writable, but not to be renamed or replaced.
    pub(super) git: Vec<PathBuf>,
    /// What commands may read and not write.
    pub(super) read_only: Vec<PathBuf>,
    /// What holds keys, with whether it is a folder.
    pub(super) hidden: Vec<(PathBuf, bool)>,
    /// Every protected thing with its own and its folder's identity.
    pub(super) protected: BTreeMap<PathBuf, (Identity, Identity)>,
}

pub(super) fn identity(dir: BorrowedFd<'_>, name: &OsStr) -> Option<(Identity, FileType)> {
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    #[allow(clippy::unnecessary_cast, reason = "the types differ by platform")]
    Some(((stat.st_dev as u64, stat.st_ino as u64), FileType::from_raw_mode(stat.st_mode)))
}

impl Found {
    /// Searches the folder, breadth first.
    pub(super) fn search(root: &Root) -> Self {
        let mut found = Self::default();
        let mut folders = VecDeque::from([PathBuf::new()]);
        let (mut searched, mut names) = (0, 0);
        while let Some(folder) = folders.pop_front() {
            searched += 1;
            if searched > FOLDERS_MAX || names > NAMES_MAX {
                break;
            }
            let Ok((dir, _)) = root.open_folder(&folder.to_string_lossy()) else { continue };
            names += found.search_folder(root, &dir, &folder, &mut folders);
        }
        found.git.truncate(MOUNTS_MAX);
        found.read_only.truncate(MOUNTS_MAX);
        found.hidden.truncate(MOUNTS_MAX);
        found
    }

    fn search_folder(&mut self, root: &Root, dir: &OwnedFd, folder: &Path, folders: &mut VecDeque<PathBuf>) -> usize {
        let Some((here, _)) = identity(dir.as_fd(), OsStr::new(".")) else { return 0 };
        let lower: Vec<String> = folder.iter().map(lower_name).collect();
        let names = names_of(dir);
        let count = names.len();
        for name in names {
            let path = folder.join(&name);
            let Some((own, kind)) = identity(dir.as_fd(), &name) else { continue };
            let is_git = lower_name(&name) == ".git";
            if is_git && kind == FileType::Directory {
                self.search_git(root, &path);
            } else if is_git && kind == FileType::Symlink {
                if let Ok((_, target)) = root.open_folder(&path.to_string_lossy()) {
                    self.search_git(root, &target);
                }
            } else if is_git || root.rules().is_protected_from_commands(&lower, &lower_name(&name)) {
                self.protect(path.clone(), own, here, kind);
            }
            if root.rules().is_sensitive(&path) && matches!(kind, FileType::RegularFile | FileType::Directory) {
                self.hidden.push((path, kind == FileType::Directory));
            } else if kind == FileType::Directory && !is_git {
                folders.push_back(path);
            }
        }
        count
    }

    fn search_git(&mut self, root: &Root, path: &Path) {
        let Ok((dir, _)) = root.open_folder(&path.to_string_lossy()) else { return };
        let Some((here, _)) = identity(dir.as_fd(), OsStr::new(".")) else { return };
        self.git.push(path.to_owned());
        for name in PROTECTED_IN_GIT {
            if let Some((own, kind)) = identity(dir.as_fd(), OsStr::new(name)) {
                self.protect(path.join(name), own, here, kind);
            }
        }
    }

    fn protect(&mut self, path: PathBuf, own: Identity, folder: Identity, kind: FileType) {
        if matches!(kind, FileType::RegularFile | FileType::Directory) {
            self.read_only.push(path.clone());
        }
        self.protected.insert(path, (own, folder));
    }

    /// Moves aside what came since; tells of each in a line for the model.
    pub(super) fn sweep(&self, root: &Root) -> Vec<String> {
        let known: BTreeSet<Identity> = self.protected.values().map(|(own, _)| *own).collect();
        let now = Self::search(root);
        let mut lines = Vec::new();
        for (path, (own, folder)) in &now.protected {
            // The user may have saved it meanwhile (another file in the same folder); a command cannot: it was covered.
            let same_place = self.protected.get(path).is_some_and(|(_, before)| before == folder);
            if known.contains(own) || same_place || is_harmless(root, path) {
                continue;
            }
            let what = shown(path);
            lines.push(match move_aside(root, path) {
                Some(aside) => format!("[refused: {what} may be created by the user only; it was moved to {}]", shown(&aside)),
                None => format!("[refused: {what} may be created by the user only; it could not be moved aside: do not use it]"),
            });
        }
        lines
    }
}

/// A new `hooks` folder with nothing but git's own samples, as `git init` makes it.
fn is_harmless(root: &Root, path: &Path) -> bool {
    path.file_name() == Some(OsStr::new("hooks"))
        && root
            .open_folder(&path.to_string_lossy())
            .is_ok_and(|(dir, _)| names_of(&dir).iter().all(|name| name.as_bytes().ends_with(b".sample")))
}

fn move_aside(root: &Root, path: &Path) -> Option<PathBuf> {
    let (parent, name) = (path.parent()?, path.file_name()?);
    let (dir, _) = root.open_folder(&parent.to_string_lossy()).ok()?;
    (1..=ASIDE_MAX).find_map(|n| {
        let mut aside = name.to_owned().into_vec();
        aside.extend_from_slice(if n == 1 { ".refused".to_owned() } else { format!(".refused.{n}") }.as_bytes());
        let aside = OsString::from_vec(aside);
        rustix::fs::renameat_with(&dir, name, &dir, &aside, RenameFlags::NOREPLACE).ok()?;
        Some(parent.join(aside))
    })
}

pub(super) fn names_of(dir: &OwnedFd) -> Vec<OsString> {
    let entries = Dir::read_from(dir).into_iter().flatten().map_while(Result::ok);
    let names = entries.map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
    let mut names: Vec<OsString> = names.filter(|name| name != "." && name != "..").take(NAMES_MAX).collect();
    names.sort();
    names
}
