//! Second names of files that hold keys. A hard link is the file itself under a name that no list knows,
//! so a file with several names is compared with the files of the workspace whose names are known.
//!
//! Only files with several names cost a search, and a search counts for a moment: a tool that reads many
//! such files, as some package managers make them, searches about once a second, and less often in a
//! large workspace.
//!
//! **Invariant:** a file with several names is not read unless all names were compared: a command could
//! create as many as a search visits.

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
use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat},
    io::Errno,
};

use crate::sandbox::policy::PathRules;

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Names that a search visits: about half a second of work.
const NAMES_MAX: usize = 1_000_000;

/// How long a search counts, at least, and as a multiple of its duration: a tenth of the time at most is
/// spent on searches.
const FRESH: Duration = Duration::from_secs(1);
const FRESH_FACTOR: u32 = 10;

/// Device and inode number.
type Identity = (u64, u64);

/// What is known of the other names of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OtherNames {
    /// None of them is a name of keys.
    Harmless,
    OfKeys,
    /// There are too many files to compare.
    Unknown,
}

/// The files of keys that have other names as well; `None` if there are too many files.
type Keys = Option<HashSet<Identity>>;

/// The last search of a root, and until when it counts.
#[derive(Debug, Default)]
pub(super) struct SecondNames(Mutex<Option<(Instant, Arc<Keys>)>>);

impl SecondNames {
    /// Whether a file with this status is also known by a name of keys.
    pub(super) fn of(&self, root: BorrowedFd<'_>, rules: &PathRules, stat: &Stat) -> OtherNames {
        if stat.st_nlink < 2 {
            return OtherNames::Harmless;
        }
        // Held during the search: of concurrent readers, one searches.
        let mut last = self.0.lock();
        let keys = match &*last {
            Some((until, keys)) if Instant::now() < *until => keys.clone(),
            _ => {
                let begun = Instant::now();
                let keys = Arc::new(keys_with_several_names(root, rules, NAMES_MAX));
                let counts = FRESH.max(begun.elapsed().saturating_mul(FRESH_FACTOR));
                *last = Some((Instant::now() + counts, keys.clone()));
                keys
            }
        };
        drop(last);
        match &*keys {
            None => OtherNames::Unknown,
            Some(keys) if keys.contains(&identity(stat)) => OtherNames::OfKeys,
            Some(_) => OtherNames::Harmless,
        }
    }
}

#[allow(clippy::unnecessary_cast, reason = "the types differ by platform")]
fn identity(stat: &Stat) -> Identity {
    (stat.st_dev as u64, stat.st_ino as u64)
}

fn keys_with_several_names(root: BorrowedFd<'_>, rules: &PathRules, names_max: usize) -> Keys {
    let mut known = HashSet::new();
    let mut names = 0;
    let mut folders = VecDeque::from([PathBuf::new()]);
    while let Some(folder) = folders.pop_front() {
        let dir = match opened(root, &folder) {
            Ok(dir) => dir,
            // It was swapped or removed meanwhile.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            // A command may have closed it for a moment: a name of keys in it is not known.
            Err(_) => return None,
        };
        for entry in Dir::read_from(&dir).ok()? {
            let entry = entry.ok()?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            names += 1;
            if names > names_max {
                return None;
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
    Some(known)
}

/// Opens a folder below another one, without following links.
fn opened(root: BorrowedFd<'_>, relative: &Path) -> rustix::io::Result<OwnedFd> {
    let mut dir = rustix::fs::openat(root, ".", FOLDER, Mode::empty())?;
    for name in relative {
        dir = rustix::fs::openat(&dir, name, FOLDER, Mode::empty())?;
    }
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::fd::AsFd};

    use super::*;

    #[test]
    fn of_more_names_than_are_visited_no_file_counts_as_compared() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("sub/deep")).unwrap();
        fs::write(folder.path().join("sub/deep/.env"), "KEY=needle").unwrap();
        fs::hard_link(folder.path().join("sub/deep/.env"), folder.path().join("x")).unwrap();
        let root = fs::File::open(folder.path()).unwrap();
        let search =
            |names_max| keys_with_several_names(root.as_fd(), &PathRules::default(), names_max);

        assert_eq!(search(4).map(|keys| keys.len()), Some(1));
        for name in ["a", "b", "c"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(search(4), None);
    }
}
