//! Second names of files that hold keys. A hard link is the file itself under a name that no list knows,
//! so a file with several names is compared with the files of the workspace whose names are known.
//!
//! Only files with several names cost a search, and a search counts for a moment: a tool that reads many
//! such files, as some package managers make them, searches about once a second.

use std::{
    collections::{HashSet, VecDeque},
    ffi::OsStr,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};

use crate::sandbox::policy::PathRules;

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Names that a search visits, those of the upper folders first. Keys below are not compared.
const NAMES_MAX: usize = 50_000;

/// How long a search counts.
const FRESH: Duration = Duration::from_secs(1);

/// Device and inode number.
type Identity = (u64, u64);

/// The last search of a root.
#[derive(Debug, Default)]
pub(super) struct SecondNames(Mutex<Option<(Instant, Arc<HashSet<Identity>>)>>);

impl SecondNames {
    /// Whether a file with this status is also known by a name of keys.
    pub(super) fn is_of_keys(&self, root: BorrowedFd<'_>, rules: &PathRules, stat: &Stat) -> bool {
        if stat.st_nlink < 2 {
            return false;
        }
        // Held during the search: of concurrent readers, one searches.
        let mut last = self.0.lock();
        let known = match &*last {
            Some((at, known)) if at.elapsed() < FRESH => known.clone(),
            _ => {
                let known = Arc::new(keys_with_several_names(root, rules));
                *last = Some((Instant::now(), known.clone()));
                known
            }
        };
        drop(last);
        known.contains(&identity(stat))
    }
}

#[allow(clippy::unnecessary_cast, reason = "the types differ by platform")]
fn identity(stat: &Stat) -> Identity {
    (stat.st_dev as u64, stat.st_ino as u64)
}

/// The files of keys that have other names as well.
fn keys_with_several_names(root: BorrowedFd<'_>, rules: &PathRules) -> HashSet<Identity> {
    let mut known = HashSet::new();
    let mut names = 0;
    let mut folders = VecDeque::from([PathBuf::new()]);
    while let Some(folder) = folders.pop_front() {
        // A folder that was swapped or that cannot be read: other tools do not read it either.
        let Ok(dir) = opened(root, &folder) else {
            continue;
        };
        let Ok(entries) = Dir::read_from(&dir) else {
            continue;
        };
        for entry in entries.flatten() {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            names += 1;
            if names > NAMES_MAX {
                return known;
            }
            let path = folder.join(name);
            let status = || rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW).ok();
            let kind = match entry.file_type() {
                FileType::Unknown => status().map_or(FileType::Unknown, |stat| {
                    FileType::from_raw_mode(stat.st_mode)
                }),
                kind => kind,
            };
            if kind == FileType::Directory {
                folders.push_back(path);
            } else if kind == FileType::RegularFile && rules.is_sensitive(&path) {
                known.extend(
                    status()
                        .filter(|stat| stat.st_nlink > 1)
                        .map(|stat| identity(&stat)),
                );
            }
        }
    }
    known
}

/// Opens a folder below another one, without following links.
fn opened(root: BorrowedFd<'_>, relative: &Path) -> rustix::io::Result<OwnedFd> {
    let mut dir = rustix::fs::openat(root, ".", FOLDER, Mode::empty())?;
    for name in relative {
        dir = rustix::fs::openat(&dir, name, FOLDER, Mode::empty())?;
    }
    Ok(dir)
}
