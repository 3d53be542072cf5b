//! Symbolic links by which files take the place of protected ones, or by which git writes elsewhere.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use rustix::fs::FileType;

use super::{Identity, Item, Search, open_real};
use crate::sandbox::{
    fs::guard::found::names_where,
    policy::{is_of_dependencies, lower, lower_name},
};

/// Links followed on one way, as by the kernel.
pub(super) const LINKS_MAX: usize = 40;

impl Search<'_> {
    /// Protects a link
    /// - in a git repository's own folder: git writes through links there, and makes none;
    /// - with the name of a folder that holds protected files, such as `.vscode`;
    /// - to a folder below `node_modules` and the like, or to `.git` or below it, where the names of
    ///   protected files can be free. Under the link's name they would not be.
    pub(super) fn search_link(&mut self, item: &Item<'_>, here: Identity, name: &OsStr) {
        let path = item.path.join(name);
        if item.covered {
            self.search_covered_link(&path);
            return;
        }
        let folder = lower(&item.path);
        for below in self.root.rules().keys_below(&folder, &lower_name(name)) {
            self.hide_target(&path, &below);
        }
        let takes_place = self
            .root
            .rules()
            .holds_protected(&folder, &lower_name(name));
        if !item.in_repository && !takes_place && !self.leads_to_free_names(&path) {
            return;
        }
        let Ok(status) = self.status(&path) else {
            return;
        };
        if status.kind != FileType::Symlink {
            return;
        }
        if takes_place && !item.in_repository {
            self.protect(path, status, here);
        } else {
            // What lies behind a link of the user stays writable.
            self.found.protect(path, status, here);
        }
    }

    /// Protects what a link in a protected folder of the user leads to, such as
    /// `.claude/settings.json`: the link is covered, its target is not.
    fn search_covered_link(&mut self, link: &Path) {
        if is_of_dependencies(&lower(link)) {
            return;
        }
        let target = self
            .locate(link)
            .filter(|target| !self.root.rules().is_protected(target));
        if let Some(target) = target {
            self.protect_way(link);
            self.protect_target(target, link);
        }
    }

    /// Whether a link leads to a folder in which names of protected files are free, or into a `.git`,
    /// where such folders are, from outside of such a folder. A link that does so by way of another is
    /// not found, but the other one is: a way into these folders has their name in it.
    fn leads_to_free_names(&self, path: &Path) -> bool {
        let Ok(target) = rustix::fs::readlinkat(&self.root.dir, path, Vec::new()) else {
            return false;
        };
        let target = lower(Path::new(&OsString::from_vec(target.into_bytes())));
        let leads_to_git = target.iter().any(|name| name == ".git");
        if !(is_of_dependencies(&target) || leads_to_git) || is_of_dependencies(&lower(path)) {
            return false;
        }
        let file = self.locate(path).and_then(|path| self.status(&path).ok());
        file.is_none_or(|status| status.kind != FileType::RegularFile)
    }

    /// Protects the links on the way to a file that git runs or reads, given relative to the root:
    /// by another link in their place, git would reach a file of a command, perhaps by a way that
    /// only git can follow, such as `/proc/self/cwd`.
    pub(super) fn protect_way(&mut self, path: &Path) {
        let real = self.root.real_path().to_owned();
        let mut todo: Vec<OsString> = Vec::new();
        let mut here = PathBuf::new();
        let mut path = path.to_owned();
        for _ in 0..=LINKS_MAX {
            if path.is_absolute() {
                let Ok(inner) = path.strip_prefix(&real) else {
                    return;
                };
                here = PathBuf::new();
                path = inner.to_owned();
            }
            todo.extend(path.iter().rev().map(OsStr::to_owned));
            let Some(target) = self.next_link(&mut todo, &mut here) else {
                return;
            };
            path = target;
        }
    }

    /// Walks names up to a link, protects it, and returns its target; `None` at the end of the way,
    /// and at a link that a command created.
    fn next_link(&mut self, todo: &mut Vec<OsString>, here: &mut PathBuf) -> Option<PathBuf> {
        while let Some(name) = todo.pop() {
            if name == "." {
                continue;
            }
            if name == ".." {
                if !here.pop() {
                    return None;
                }
                continue;
            }
            let next = here.join(&name);
            let status = self.status(&next).ok()?;
            if status.kind != FileType::Symlink {
                *here = next;
                continue;
            }
            let is_known = self.protect_link(&next)?;
            let target = rustix::fs::readlinkat(&self.root.dir, &next, Vec::new()).ok()?;
            return is_known.then(|| PathBuf::from(OsString::from_vec(target.into_bytes())));
        }
        None
    }

    /// Protects a link of the workspace on the way to a file that git runs or reads. Returns whether
    /// it is the user's; `None` if it is gone.
    pub(super) fn protect_link(&mut self, link: &Path) -> Option<bool> {
        let status = self.status(link).ok()?;
        let above = self.status(link.parent()?).ok()?;
        let is_known = self
            .purpose
            .known
            .is_none_or(|known| known.has(status.own, Some(status.changed)));
        self.found.protect(link.to_owned(), status, above.own);
        Some(is_known)
    }

    /// Protects the files of the workspace that the links in a folder of hooks lead to. The folder
    /// itself is covered, so that its links are the user's.
    pub(super) fn follow_hooks(&mut self, hooks: &Path) {
        let Ok(status) = self.status(hooks) else {
            return;
        };
        if status.kind != FileType::Directory || !self.is_covered(hooks, status) {
            return;
        }
        let is_link = |name: &OsStr| {
            self.status(&hooks.join(name))
                .is_ok_and(|status| status.kind == FileType::Symlink)
        };
        let links = open_real(self.root, hooks).map(|dir| names_where(&dir, is_link));
        for name in links.unwrap_or_default() {
            let hook = hooks.join(name);
            self.protect_way(&hook);
            if let Some(target) = self.locate(&hook) {
                self.protect_target(target, hooks);
            }
        }
    }
}
