//! Cleans up after a command: moves aside protected files that did not exist before it, under names
//! that no program reads.

use std::{
    ffi::{OsStr, OsString},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::{AtFlags, Mode},
    io::Errno,
};

use super::{
    aside::{random_endings, rename_with},
    found::names_of,
    known::Known,
    listings::Listings,
    search::{self, Searched, all_names, open_real},
};
use crate::sandbox::{
    PathRules,
    fs::{Root, jail::FOLDER, shown},
    policy::WORKSPACE,
};

/// Numbered names that are tried for a file moved aside, before a random name is used.
const NUMBERS_MAX: u32 = 1000;

/// Folders that are removed for the sake of room.
const REMOVALS_MAX: u32 = 10_000;

/// Moves new protected files aside. Returns a line for the model about each. What only rules protect
/// that came after `rules`, those at the start of the command, is left alone: the command did not know
/// it, and it is a file of the user.
pub(super) fn sweep(
    root: &Root,
    last: &Arc<Listings>,
    known: &Known,
    rules: &PathRules,
) -> (Vec<String>, Searched) {
    let now = root.rules();
    let is_late =
        |path: &Path| *now != *rules && now.is_protected(path) && !rules.is_protected(path);
    let searched = search::after(root, last, known);
    let mut lines = Vec::new();
    // A folder comes after what lies in it, which is moved aside first: a folder that is moved aside
    // keeps its contents, and the user may enter it.
    for (path, (own, _)) in searched.found.protected.iter().rev() {
        let changed = searched.found.loose.get(path).copied();
        if (known.has(*own, changed) && !known.is_another(root, path, *own))
            || is_harmless(root, path)
            || is_late(path)
        {
            continue;
        }
        let what = shown(path);
        lines.push(match move_aside(root, path) {
            Some(Aside::Moved(aside)) => {
                format!("[refused: {what} may be created by the user only; it was moved to {}]", shown(&aside))
            }
            Some(Aside::Removed) => format!("[refused: {what} may be created by the user only; it was removed]"),
            None => format!("[refused: {what} may be created by the user only; it could not be moved aside: do not use it]"),
        });
    }
    lines.reverse();
    lines.extend(
        searched
            .missed
            .iter()
            .take(3)
            .map(|why| format!("[what this command left could not be searched: {why}]")),
    );
    (lines, searched)
}

/// Whether a new file is one that git itself creates in a new repository or worktree and that runs
/// nothing: a `hooks` folder with git's own samples, a folder of remotes without one, the path from a
/// linked worktree to the repository that contains it, which the search finds by itself, or to its
/// files in the workspace.
fn is_harmless(root: &Root, path: &Path) -> bool {
    // The configuration of a folder that git takes for a repository only from there is not searched
    // for.
    let is_in_worktrees = || {
        let worktrees = path.parent().and_then(Path::parent);
        worktrees.is_some_and(|worktrees| {
            worktrees.file_name() == Some(OsStr::new("worktrees"))
                && worktrees
                    .parent()
                    .is_some_and(|repository| search::is_repository(root, repository))
        })
    };
    match path.file_name().and_then(OsStr::to_str) {
        Some("hooks") => open_real(root, path)
            .is_ok_and(|dir| all_names(&dir, |name| name.ends_with(b".sample"))),
        Some("branches" | "remotes") => {
            open_real(root, path).is_ok_and(|dir| all_names(&dir, |_| false))
        }
        Some("commondir") => {
            is_in_worktrees()
                && search::read(root, path)
                    .is_some_and(|content| content.trim_ascii_end() == b"../..")
        }
        Some("gitdir") => {
            is_in_worktrees()
                && search::read(root, path).is_some_and(|content| {
                    let tree = Path::new(OsStr::from_bytes(content.trim_ascii_end()));
                    is_tree_of(root, tree)
                })
        }
        _ => false,
    }
}

/// Whether this is the file `.git` of a working tree in the workspace: `git worktree repair` writes
/// to the place that `gitdir` names.
fn is_tree_of(root: &Root, tree: &Path) -> bool {
    if tree.file_name() != Some(OsStr::new(".git")) {
        return false;
    }
    // What a command sees as its workspace may be no place at all outside of it.
    if tree.starts_with(WORKSPACE) && !root.real_path().starts_with(WORKSPACE) {
        return std::fs::symlink_metadata(WORKSPACE).is_err();
    }
    // Versions of git differ in where a relative path begins.
    let below = tree.strip_prefix(root.real_path()).ok();
    let folder = below.and_then(Path::parent);
    folder.is_some_and(|folder| open_real(root, folder).is_ok())
}

/// What happened to a new file.
enum Aside {
    Moved(PathBuf),
    /// Deleted, since the disk had no room for another name.
    Removed,
}

fn move_aside(root: &Root, path: &Path) -> Option<Aside> {
    let parent = path.parent()?;
    let name = path.file_name()?;
    let dir = open_real(root, parent).ok()?;
    let aside = match rename_or_remove(&dir, name) {
        // The command left a folder that does not allow renames; it is this user's folder, so its
        // mode can be changed.
        Err(Errno::ACCESS | Errno::PERM) => {
            let mode = Mode::from_raw_mode(rustix::fs::fstat(&dir).ok()?.st_mode & 0o7777);
            rustix::fs::fchmod(&dir, mode | Mode::RWXU).ok()?;
            let aside = rename_or_remove(&dir, name);
            let _ = rustix::fs::fchmod(&dir, mode);
            aside
        }
        other => other,
    };
    aside
        .ok()
        .map(|aside| aside.map_or(Aside::Removed, |aside| Aside::Moved(parent.join(aside))))
}

/// Returns the new name; `None` if the file was removed, which works even on a full disk.
fn rename_or_remove(dir: &OwnedFd, name: &OsStr) -> Result<Option<OsString>, Errno> {
    match rename_aside(dir, name) {
        Ok(aside) => Ok(Some(aside)),
        Err(errno @ (Errno::ACCESS | Errno::PERM)) => Err(errno),
        Err(_) => make_room(dir, name, rename_aside),
    }
}

/// Removes a file, or what lies in a folder, from the inside, until a rename finds room on the disk or
/// nothing is left. A command that fills the disk loses what it put into such a folder.
fn make_room(
    dir: &OwnedFd,
    name: &OsStr,
    rename: impl Fn(&OwnedFd, &OsStr) -> Result<OsString, Errno>,
) -> Result<Option<OsString>, Errno> {
    for _ in 0..REMOVALS_MAX {
        match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(None),
            Err(_) => remove_innermost(dir, name)?,
        }
        if let Ok(aside) = rename(dir, name) {
            return Ok(Some(aside));
        }
    }
    Err(Errno::NOSPC)
}

/// Removes the files of a folder and of the first folder in each, and the innermost of these folders.
fn remove_innermost(dir: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    let mut above = dir.try_clone().map_err(|_| Errno::MFILE)?;
    let mut name = name.to_owned();
    loop {
        let here = rustix::fs::openat(&above, &name, FOLDER, Mode::empty())?;
        let is_left =
            |entry: &OsString| rustix::fs::unlinkat(&here, entry, AtFlags::empty()).is_err();
        match names_of(&here)
            .into_iter()
            .filter(is_left)
            .fold(None, |_, left| Some(left))
        {
            // Every name is tried, and the last one that is left is a folder.
            Some(folder) => {
                above = here;
                name = folder;
            }
            // Of very many files, some are left for the next time.
            None => match rustix::fs::unlinkat(&above, &name, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY) => return Ok(()),
                removed => return removed,
            },
        }
    }
}

/// Renames to a numbered name. A command may have taken all of those, so the last attempt is a
/// random name.
fn rename_aside(dir: &OwnedFd, name: &OsStr) -> Result<OsString, Errno> {
    let numbers = (1..=NUMBERS_MAX).map(|n| {
        if n == 1 {
            ".refused".to_owned()
        } else {
            format!(".refused.{n}")
        }
    });
    rename_with(dir, name, numbers.chain(random_endings()))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn a_folder_for_whose_new_name_the_disk_has_no_room_is_removed_and_nothing_behind_its_links() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        fs::create_dir_all(at(".claude/a/b/c")).unwrap();
        fs::create_dir_all(at(".claude/d")).unwrap();
        fs::create_dir(at("kept")).unwrap();
        for file in [".claude/settings.json", ".claude/a/b/x", "kept/x"] {
            fs::write(at(file), "x").unwrap();
        }
        symlink("../../kept", at(".claude/a/link")).unwrap();
        let dir = OwnedFd::from(fs::File::open(folder.path()).unwrap());
        let name = OsStr::new(".claude");

        // There is room as soon as two folders are gone.
        let tries = std::cell::Cell::new(0);
        let moved = make_room(&dir, name, |dir, name| {
            tries.set(tries.get() + 1);
            if tries.get() < 2 {
                return Err(Errno::NOSPC);
            }
            rename_aside(dir, name)
        });
        assert_eq!(moved, Ok(Some(".claude.refused".into())));
        fs::rename(at(".claude.refused"), at(".claude")).unwrap();

        assert_eq!(make_room(&dir, name, |_, _| Err(Errno::NOSPC)), Ok(None));
        assert!(!at(".claude").exists() && at("kept/x").exists());
    }
}
