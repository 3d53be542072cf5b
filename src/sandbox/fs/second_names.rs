//! Second names of files that hold keys. A link with a name of keys leads to a file or folder under another
//! name, which counts as well. A hard link is the file itself under a name that no list knows,
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

use crate::sandbox::policy::{PathRules, lower, lower_name};

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

/// How long a search counts for links: those of the user that lead to keys change seldom.
const LINKS_FRESH: Duration = Duration::from_secs(60);

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

/// What a search found.
#[derive(Debug, Default, PartialEq)]
struct Keys {
    /// The files of keys that have other names as well; `None` if there are too many files.
    linked: Option<HashSet<Identity>>,
    /// Files and folders that links with names of keys lead to.
    targets: HashSet<Identity>,
}

#[derive(Debug)]
struct Searched {
    begun: Instant,
    /// Until when it counts for files with several names.
    until: Instant,
    keys: Arc<Keys>,
}

/// The last search of a root.
#[derive(Debug, Default)]
pub(super) struct SecondNames(Mutex<Option<Searched>>);

impl SecondNames {
    /// Whether a file with this status, at `path`, is also known by a name of keys.
    pub(super) fn of(
        &self,
        root: BorrowedFd<'_>,
        rules: &PathRules,
        path: &Path,
        stat: &Stat,
    ) -> OtherNames {
        let has_several = stat.st_nlink > 1;
        let keys = self.keys(root, rules, has_several);
        let is_target = |stat: &Stat| keys.targets.contains(&identity(stat));
        let is_in_target = |folder: &Path| {
            let stat = rustix::fs::statat(root, folder, AtFlags::SYMLINK_NOFOLLOW);
            stat.is_ok_and(|stat| is_target(&stat))
        };
        let mut above = path.ancestors().skip(1);
        if !keys.targets.is_empty()
            && (is_target(stat)
                || above.any(|folder| !folder.as_os_str().is_empty() && is_in_target(folder)))
        {
            return OtherNames::OfKeys;
        }
        match &keys.linked {
            _ if !has_several => OtherNames::Harmless,
            None => OtherNames::Unknown,
            Some(keys) if keys.contains(&identity(stat)) => OtherNames::OfKeys,
            Some(_) => OtherNames::Harmless,
        }
    }

    fn keys(&self, root: BorrowedFd<'_>, rules: &PathRules, has_several: bool) -> Arc<Keys> {
        // Held during the search: of concurrent readers, one searches.
        let mut last = self.0.lock();
        let now = Instant::now();
        if let Some(searched) = &*last
            && (now < searched.until || !has_several && now < searched.begun + LINKS_FRESH)
        {
            return searched.keys.clone();
        }
        let keys = Arc::new(search(root, rules, NAMES_MAX));
        let counts = FRESH.max(now.elapsed().saturating_mul(FRESH_FACTOR));
        *last = Some(Searched {
            begun: now,
            until: Instant::now() + counts,
            keys: keys.clone(),
        });
        keys
    }
}

#[allow(clippy::unnecessary_cast, reason = "the types differ by platform")]
fn identity(stat: &Stat) -> Identity {
    (stat.st_dev as u64, stat.st_ino as u64)
}

fn search(root: BorrowedFd<'_>, rules: &PathRules, names_max: usize) -> Keys {
    let mut targets = HashSet::new();
    let linked = search_linked(root, rules, names_max, &mut targets);
    Keys { linked, targets }
}

/// The files of keys with several names. Adds what links with names of keys lead to, as far as it comes.
fn search_linked(
    root: BorrowedFd<'_>,
    rules: &PathRules,
    names_max: usize,
    targets: &mut HashSet<Identity>,
) -> Option<HashSet<Identity>> {
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
            } else if kind == FileType::Symlink {
                targets.extend(targets_of(root, rules, &dir, &path));
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

/// What a link leads to that holds keys by the link's name, or by names below it. Not a folder in which
/// the link itself lies: the whole workspace would count.
fn targets_of(
    root: BorrowedFd<'_>,
    rules: &PathRules,
    dir: &OwnedFd,
    path: &Path,
) -> Vec<Identity> {
    let Some(name) = path.file_name() else {
        return Vec::new();
    };
    let mut places = rules.keys_below(&lower(path.parent().unwrap_or(path)), &lower_name(name));
    if rules.is_sensitive(path) {
        places.push(PathBuf::new());
    }
    let above: Vec<Identity> = path
        .ancestors()
        .skip(1)
        .map(|folder| {
            if folder.as_os_str().is_empty() {
                Path::new(".")
            } else {
                folder
            }
        })
        .filter_map(|folder| rustix::fs::statat(root, folder, AtFlags::empty()).ok())
        .map(|stat| identity(&stat))
        .collect();
    let targets = places.iter().filter_map(|place| {
        let place = if place.as_os_str().is_empty() {
            PathBuf::from(name)
        } else {
            Path::new(name).join(place)
        };
        rustix::fs::statat(dir, &place, AtFlags::empty()).ok()
    });
    targets
        .map(|stat| identity(&stat))
        .filter(|target| !above.contains(target))
        .collect()
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
        let search = |names_max| search(root.as_fd(), &PathRules::default(), names_max).linked;

        assert_eq!(search(4).map(|keys| keys.len()), Some(1));
        for name in ["a", "b", "c"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(search(4), None);
    }

    #[test]
    fn what_links_with_names_of_keys_lead_to_is_known_under_its_own_name() {
        use crate::sandbox::fs::{PathError, Root};
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        for path in [
            "a/settings",
            "keys/x",
            "conf/gh/hosts.yml",
            "conf/own",
            "b/own",
        ] {
            fs::create_dir_all(at(path).parent().unwrap()).unwrap();
            fs::write(at(path), "needle").unwrap();
        }
        for (target, link) in [
            ("../a/settings", "b/.env"),
            ("keys", ".ssh"),
            ("conf", ".config"),
            ("..", "b/.gnupg"),
        ] {
            std::os::unix::fs::symlink(target, at(link)).unwrap();
        }
        let root = Root::open(folder.path(), PathRules::default()).unwrap();

        for path in ["a/settings", "keys/x", "conf/gh/hosts.yml"] {
            let refused = root.open_file(path);
            assert!(matches!(refused, Err(PathError::Sensitive(_))), "{path}");
        }
        for path in ["conf/own", "b/own"] {
            assert!(root.open_file(path).is_ok(), "{path}");
        }
    }
}
