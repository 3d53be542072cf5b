//! Other hard links of protected and hidden files. A hard link is the same file under a name that no
//! rule knows, so a command would write or read the file there. The search before a command adds these
//! names to what the boundary covers, and so the folders above them stay in their places.
//!
//! The workspace is read only if such a file has more hard links than known names, and until all of
//! them are found: the folders of the last search come first, in which the user's links lie.
//!
//! **Invariant:** a link is not missed because a command created many names. If not every name was
//! read and a link is missing, the search fails.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    ffi::OsStr,
    os::{fd::AsFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Stat},
    io::Errno,
};

use super::{FileStatus, Found, Identity, Unguarded, open_real};
use crate::sandbox::fs::{Root, guard::found::names_of, shown};

/// Names that are read before a command: about half a second of work.
pub(super) const HARD_LINK_NAMES_MAX: usize = 500_000;

/// Names in one protected or hidden folder whose other hard links are searched for.
const INNER_MAX: usize = 1000;

/// A protected or hidden file with more than one hard link.
struct Linked {
    /// One of its known names.
    name: PathBuf,
    is_hidden: bool,
    /// Hard links that were not found yet.
    missing: u64,
}

/// Adds the other hard links of what was found. `folders` are those of the search, in its order.
pub(super) fn add_hard_links<'a>(
    root: &Root,
    found: &mut Found,
    folders: impl Iterator<Item = &'a Path>,
    names_max: usize,
) -> Result<(), Unguarded> {
    let known = known_names(root, found);
    let mut linked = linked(root, &known);
    // A name in a protected folder can be read.
    for (path, _) in known.iter().filter(|(_, is_hidden)| !**is_hidden) {
        let own = several(root, path).map(|stat| FileStatus::of(&stat).own);
        if own.is_some_and(|own| linked.get(&own).is_some_and(|file| file.is_hidden)) {
            found.hidden.push((path.clone(), false));
        }
    }
    let mut missing = linked.values().filter(|file| file.missing > 0).count();
    if missing == 0 {
        return Ok(());
    }
    let hidden: HashSet<PathBuf> = found.hidden_folders().map(Path::to_owned).collect();
    let mut seen: HashSet<&Path> = HashSet::new();
    let mut todo: VecDeque<PathBuf> = VecDeque::new();
    for folder in folders.filter(|folder| !folder.ancestors().any(|part| hidden.contains(part))) {
        if seen.insert(folder) {
            todo.push_back(folder.to_owned());
        }
    }
    let mut names = 0;
    while let Some(folder) = todo.pop_front() {
        let unreadable = |errno: Errno| {
            let why = std::io::Error::from(errno).to_string();
            Unguarded::Unreadable(shown(&folder), why)
        };
        let dir = match open_real(root, &folder) {
            Ok(dir) => dir,
            // It is gone, or closed: no command reads or opens it.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS | Errno::PERM) => {
                continue;
            }
            Err(errno) => return Err(unreadable(errno)),
        };
        for entry in Dir::read_from(&dir).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            names += 1;
            if names > names_max {
                let file = linked.into_values().find(|file| file.missing > 0);
                let name = file.map(|file| shown(&file.name)).unwrap_or_default();
                return Err(Unguarded::HardLinks(name));
            }
            let kind = entry.file_type();
            if !matches!(
                kind,
                FileType::RegularFile | FileType::Directory | FileType::Unknown
            ) {
                continue;
            }
            let path = folder.join(name);
            if kind == FileType::Directory {
                if !seen.contains(path.as_path()) && !hidden.contains(&path) {
                    todo.push_back(path);
                }
                continue;
            }
            let Ok(stat) = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            let status = FileStatus::of(&stat);
            if kind == FileType::Unknown && status.kind == FileType::Directory {
                if !seen.contains(path.as_path()) && !hidden.contains(&path) {
                    todo.push_back(path);
                }
                continue;
            }
            let Some(file) = linked.get_mut(&status.own) else {
                continue;
            };
            if known.contains_key(&path) {
                continue;
            }
            if file.is_hidden {
                found.hidden.push((path, false));
            } else {
                found.read_only.push(path);
            }
            file.missing = file.missing.saturating_sub(1);
            if file.missing == 0 {
                missing -= 1;
                if missing == 0 {
                    return Ok(());
                }
            }
        }
    }
    // The other links lie outside of the workspace.
    Ok(())
}

/// The names of all covered files, those in covered folders too, and whether each is hidden.
fn known_names(root: &Root, found: &Found) -> BTreeMap<PathBuf, bool> {
    let mut known = BTreeMap::new();
    let covered = found.read_only.iter().map(|path| (path, false));
    for (path, is_hidden) in covered.chain(found.hidden.iter().map(|(path, _)| (path, true))) {
        known.insert(path.clone(), is_hidden);
        let mut inner = 0;
        let mut todo = VecDeque::from([path.clone()]);
        while let Some(folder) = todo.pop_front().filter(|_| inner < INNER_MAX) {
            let Ok(dir) = open_real(root, &folder) else {
                continue;
            };
            for name in names_of(&dir).into_iter().take(INNER_MAX - inner) {
                inner += 1;
                let path = folder.join(&name);
                let status = FileStatus::at(dir.as_fd(), Path::new(&name));
                if status.is_ok_and(|status| status.kind == FileType::Directory) {
                    todo.push_back(path);
                } else {
                    known.insert(path, is_hidden);
                }
            }
        }
    }
    known
}

/// Those of the names that are files with several hard links.
fn linked(root: &Root, known: &BTreeMap<PathBuf, bool>) -> BTreeMap<Identity, Linked> {
    let mut linked: BTreeMap<Identity, Linked> = BTreeMap::new();
    for (path, is_hidden) in known {
        let Some(stat) = several(root, path) else {
            continue;
        };
        let file = linked
            .entry(FileStatus::of(&stat).own)
            .or_insert_with(|| Linked {
                name: path.clone(),
                is_hidden: false,
                #[allow(clippy::useless_conversion, reason = "the types differ by platform")]
                missing: u64::from(stat.st_nlink),
            });
        file.is_hidden |= *is_hidden;
        file.missing = file.missing.saturating_sub(1);
    }
    linked
}

/// The status of a regular file with more than one hard link.
fn several(root: &Root, path: &Path) -> Option<Stat> {
    let stat = rustix::fs::statat(&root.dir, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    (is_file && stat.st_nlink > 1).then_some(stat)
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::Arc};

    use super::*;
    use crate::sandbox::{PathRules, fs::guard::Guard};

    fn workspace(files: &[&str]) -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("workspace");
        for file in files {
            let file = inner.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "x").unwrap();
        }
        let root = Root::open(inner, PathRules::default()).unwrap();
        (folder, root)
    }

    fn link(root: &Root, from: &str, to: &Path) {
        let to = root.real_path().join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::hard_link(root.real_path().join(from), to).unwrap();
    }

    #[test]
    fn other_links_of_protected_and_hidden_files_are_covered_whatever_their_names() {
        let (_folder, root) = workspace(&[".env", ".bashrc", ".vscode/tasks.json", ".ssh/id", "z"]);
        let odd = OsStr::from_bytes(b"b\xff");
        link(&root, ".env", &Path::new(odd).join("x"));
        link(
            &root,
            ".bashrc",
            &Path::new(odd).join(OsStr::from_bytes(b"y\n\xff")),
        );
        link(&root, ".vscode/tasks.json", Path::new("c/d"));
        link(&root, ".ssh/id", Path::new("e/f"));
        link(&root, ".env", Path::new(".ssh/env"));

        let guarded = Guard::new(Arc::new(root)).search().unwrap();

        let found = guarded.found();
        let has = |path: &Path| found.hidden.contains(&(path.to_owned(), false));
        assert!(
            has(&Path::new(odd).join("x")) && has(Path::new("e/f")),
            "{found:?}"
        );
        let read_only = [
            Path::new(odd).join(OsStr::from_bytes(b"y\n\xff")),
            "c/d".into(),
        ];
        assert!(
            read_only.iter().all(|path| found.read_only.contains(path)),
            "{found:?}"
        );
        assert!(!found.hidden.iter().any(|(path, _)| path == Path::new("z")));
    }

    #[test]
    fn new_names_do_not_keep_a_link_from_being_found_and_what_was_not_compared_is_refused() {
        let (folder, root) = workspace(&[".env", "zzz/1", "zzz/2", "zzz/3", "zzz/4"]);
        link(&root, ".env", Path::new("b/x"));
        let add = |folders: &[&str], names_max: usize| {
            let mut found = Found {
                hidden: vec![(".env".into(), false)],
                ..Found::default()
            };
            add_hard_links(&root, &mut found, folders.iter().map(Path::new), names_max)
                .map(|()| found.hidden.len())
        };

        assert_eq!(
            add(&["", "b", "zzz"], 4),
            Ok(2),
            "those of the last search come first"
        );
        assert_eq!(
            add(&["", "zzz", "b"], 4),
            Err(Unguarded::HardLinks(".env".into()))
        );
        assert_eq!(
            add(&["", "zzz"], 100),
            Ok(2),
            "a folder that is not among them is searched too"
        );
        fs::remove_file(root.real_path().join("b/x")).unwrap();
        fs::hard_link(root.real_path().join(".env"), folder.path().join("outside")).unwrap();
        assert_eq!(add(&["", "zzz"], 100), Ok(1), "the other link lies outside");
        assert!(add(&["", "zzz"], 4).is_err());
    }
}
