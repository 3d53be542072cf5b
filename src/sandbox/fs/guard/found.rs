//! The result of a search, and its encoding as arguments of the helper. Paths are encoded byte for
//! byte, since a path need not be valid text.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Stat},
    io::Errno,
};

use crate::sandbox::fs::Root;

/// Names of one folder that can get a Landlock rule; names beyond these get none.
const NAMES_MAX: usize = 50_000;

/// Device and inode number of a file.
pub(in crate::sandbox) type Identity = (u64, u64);

/// The result of a search. Paths are relative to the root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::sandbox) struct Found {
    /// Folders that commands may write in, but not rename or replace: git repositories, and folders
    /// by whose names files in them are protected or hold keys, such as `.vscode` and `.aws`. An outer
    /// folder comes before those in it.
    pub(in crate::sandbox) held: Vec<PathBuf>,
    /// Paths that commands may read but not write.
    pub(in crate::sandbox) read_only: Vec<PathBuf>,
    /// Paths that hold keys, and whether each is a folder.
    pub(in crate::sandbox) hidden: Vec<(PathBuf, bool)>,
    /// Every protected path, with the identity of the file and of its folder.
    pub(in crate::sandbox) protected: BTreeMap<PathBuf, (Identity, Identity)>,
    /// Protected files that no mount can cover (links, sockets), with their change time. A command
    /// can replace them, and the sweep after the command notices the replacement.
    pub(in crate::sandbox) loose: BTreeMap<PathBuf, Changed>,
    /// The index of each repository as it was: one that has not changed since needs no examination.
    pub(in crate::sandbox) indexes: BTreeSet<(Identity, Changed)>,
    /// Whether the configuration of a repository names a program that git runs in commands that only read.
    pub(in crate::sandbox) git_runs_programs: bool,
}

/// How a file is kept from another command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sandbox) enum Added {
    Held,
    ReadOnly,
    Hidden { is_folder: bool },
}

/// Change time (ctime) of a file, in seconds and nanoseconds. The kernel's clock sets it; programs
/// cannot.
pub(in crate::sandbox) type Changed = (i64, i64);

/// Status of a name, without following links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileStatus {
    pub(super) own: Identity,
    pub(super) kind: FileType,
    pub(super) changed: Changed,
}

impl FileStatus {
    #[allow(
        clippy::unnecessary_cast,
        clippy::useless_conversion,
        reason = "the types differ by platform"
    )]
    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            own: (stat.st_dev as u64, stat.st_ino as u64),
            kind: FileType::from_raw_mode(stat.st_mode),
            changed: (
                i64::from(stat.st_ctime),
                i64::try_from(stat.st_ctime_nsec).unwrap_or(0),
            ),
        }
    }

    /// Reads the status of a path below a folder.
    pub(super) fn at(dir: BorrowedFd<'_>, path: &Path) -> Result<Self, Errno> {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        rustix::fs::statat(dir, path, AtFlags::SYMLINK_NOFOLLOW).map(|stat| Self::of(&stat))
    }

    /// Whether a mount can cover the file, so that no command can replace it.
    pub(super) fn is_coverable(&self) -> bool {
        matches!(self.kind, FileType::RegularFile | FileType::Directory)
    }
}

/// Identity and type of the file with this name; `None` if there is none.
pub(in crate::sandbox) fn identity(
    dir: BorrowedFd<'_>,
    name: &OsStr,
) -> Option<(Identity, FileType)> {
    FileStatus::at(dir, Path::new(name))
        .ok()
        .map(|status| (status.own, status.kind))
}

/// The names in a folder, sorted: not all of them, where a command has made very many. What must not be
/// missed is asked for by [`names_where`].
pub(in crate::sandbox) fn names_of(dir: &OwnedFd) -> Vec<OsString> {
    let mut names: Vec<OsString> = each_name(dir).take(NAMES_MAX).collect();
    names.sort();
    names
}

/// Those of all names in a folder that pass, sorted.
pub(in crate::sandbox) fn names_where(
    dir: &OwnedFd,
    passes: impl Fn(&OsStr) -> bool,
) -> Vec<OsString> {
    let mut names: Vec<OsString> = each_name(dir).filter(|name| passes(name)).collect();
    names.sort();
    names
}

fn each_name(dir: &OwnedFd) -> impl Iterator<Item = OsString> {
    let entries = Dir::read_from(dir)
        .into_iter()
        .flatten()
        .map_while(Result::ok);
    entries
        .map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned())
        .filter(|name| name != "." && name != "..")
}

impl Found {
    pub(super) fn protect(&mut self, path: PathBuf, status: FileStatus, folder: Identity) {
        if status.is_coverable() {
            self.read_only.push(path.clone());
        } else {
            self.loose.insert(path.clone(), status.changed);
        }
        self.protected.insert(path, (status.own, folder));
    }

    /// Removes duplicates, which arise when a path is found both by its name and through a link. An
    /// outer folder comes before its contents.
    pub(super) fn deduplicate(&mut self) {
        fn once<T: Ord + Clone>(all: &mut Vec<T>) {
            let mut seen = BTreeSet::new();
            all.retain(|one| seen.insert(one.clone()));
        }
        self.held.sort();
        self.held.dedup();
        once(&mut self.read_only);
        once(&mut self.hidden);
    }

    /// Adds a file that is kept from another command, unless it was found.
    pub(in crate::sandbox) fn add(&mut self, root: &Root, path: PathBuf, how: Added) {
        let is_known = match how {
            Added::Held => self.held.contains(&path),
            Added::ReadOnly => self.read_only.contains(&path),
            Added::Hidden { is_folder } => self.hidden.contains(&(path.clone(), is_folder)),
        };
        if is_known {
            return;
        }
        match how {
            Added::Held => self.held.push(path),
            Added::Hidden { is_folder } => self.hidden.push((path, is_folder)),
            Added::ReadOnly => {
                let status = |path: &Path| FileStatus::at(root.dir.as_fd(), path).ok();
                if let (Some(own), Some(above)) = (status(&path), path.parent().and_then(status)) {
                    self.protect(path, own, above.own);
                }
            }
        }
        self.deduplicate();
    }

    /// Folders that hold keys.
    pub(super) fn hidden_folders(&self) -> impl Iterator<Item = &Path> {
        self.hidden
            .iter()
            .filter(|(_, is_folder)| *is_folder)
            .map(|(path, _)| path.as_path())
    }

    /// Number of mounts that cover this result.
    pub(in crate::sandbox) fn covers(&self) -> usize {
        self.held.len() + self.read_only.len() + self.hidden.len()
    }

    /// Encodes the result as arguments of a helper, each a letter, numbers and a path.
    pub(in crate::sandbox) fn to_arguments(&self) -> impl Iterator<Item = OsString> {
        let with = |head: String, path: &Path| {
            let mut argument = head.into_bytes();
            argument.extend_from_slice(path.as_os_str().as_bytes());
            OsString::from_vec(argument)
        };
        let held = self
            .held
            .iter()
            .map(move |path| with("g:".to_owned(), path));
        let read_only = self
            .read_only
            .iter()
            .map(move |path| with("r:".to_owned(), path));
        let hidden = self.hidden.iter().map(move |(path, is_folder)| {
            with(if *is_folder { "d:" } else { "f:" }.to_owned(), path)
        });
        let protected = self.protected.iter().map(move |(path, (own, folder))| {
            with(
                format!("p:{}:{}:{}:{}:", own.0, own.1, folder.0, folder.1),
                path,
            )
        });
        held.chain(read_only).chain(hidden).chain(protected)
    }

    /// Decodes arguments of [`Found::to_arguments`]; `None` if one is malformed. `loose` and
    /// `indexes` are not encoded: only the sweep after a command needs it, and the host does that.
    pub(in crate::sandbox) fn of_arguments(arguments: &[OsString]) -> Option<Self> {
        let mut found = Self::default();
        for argument in arguments {
            let (kind, rest) = cut(argument.as_bytes())?;
            match kind {
                b"g" => found.held.push(path(rest)),
                b"r" => found.read_only.push(path(rest)),
                b"d" | b"f" => found.hidden.push((path(rest), kind == b"d")),
                b"p" => {
                    let (own_device, rest) = number(rest)?;
                    let (own, rest) = number(rest)?;
                    let (folder_device, rest) = number(rest)?;
                    let (folder, rest) = number(rest)?;
                    found
                        .protected
                        .insert(path(rest), ((own_device, own), (folder_device, folder)));
                }
                _ => return None,
            }
        }
        Some(found)
    }
}

fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// Splits at the first colon.
fn cut(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|byte| *byte == b':')?;
    Some((bytes.get(..at)?, bytes.get(at + 1..)?))
}

fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = cut(bytes)?;
    Some((std::str::from_utf8(number).ok()?.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_reaches_the_helper_whatever_its_paths_hold() {
        let odd = PathBuf::from(OsStr::from_bytes(b"a:1:\xff\n/.git"));
        let found = Found {
            held: vec![odd.clone()],
            read_only: vec![odd.join("config"), PathBuf::from("x y")],
            hidden: vec![
                (PathBuf::from(".env"), false),
                (PathBuf::from(".ssh"), true),
            ],
            protected: BTreeMap::from([(odd.join("config"), ((1, 2), (3, u64::MAX)))]),
            ..Found::default()
        };

        let arguments: Vec<OsString> = found.to_arguments().collect();

        assert_eq!(Found::of_arguments(&arguments), Some(found));
        for nonsense in ["", "x:a", "g", "p:1:2:3:a", "p:a:b:c:d:e"] {
            assert_eq!(Found::of_arguments(&[nonsense.into()]), None, "{nonsense}");
        }
    }
}
