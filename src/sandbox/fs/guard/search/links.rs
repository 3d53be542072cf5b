//! Symbolic links by which files take the place of protected ones, or by which git writes elsewhere.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStringExt,
    path::Path,
};

use rustix::fs::FileType;

use super::{Identity, Item, Search, holds_branches};
use crate::sandbox::policy::{is_of_dependencies, lower, lower_name};

impl Search<'_> {
    /// Protects a link
    /// - in a git repository's own folder: git writes through links there, and makes none;
    /// - with the name of a folder that holds protected files, such as `.vscode`;
    /// - to a folder below `node_modules` and the like, or with branches in it, where the names of
    ///   protected files are free. Under the link's name they would not be.
    pub(super) fn search_link(&mut self, item: &Item<'_>, here: Identity, name: &OsStr) {
        if item.covered {
            return;
        }
        let path = item.path.join(name);
        let folder = lower(&item.path);
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

    /// Whether a link leads to a folder in which names of protected files are free, from outside of
    /// such a folder. A link that does so by way of another is not found, but the other one is.
    fn leads_to_free_names(&self, path: &Path) -> bool {
        let Ok(target) = rustix::fs::readlinkat(&self.root.dir, path, Vec::new()) else {
            return false;
        };
        let target = lower(Path::new(&OsString::from_vec(target.into_bytes())));
        if !(is_of_dependencies(&target) || holds_branches(&target))
            || is_of_dependencies(&lower(path))
        {
            return false;
        }
        let file = self.locate(path).and_then(|path| self.status(&path).ok());
        file.is_none_or(|status| status.kind != FileType::RegularFile)
    }
}
