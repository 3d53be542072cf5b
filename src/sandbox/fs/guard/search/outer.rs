//! Repositories that lie outside of the workspace, with working trees in it or around it: the workspace
//! is a folder of a repository, a linked working tree or a submodule. Commands do not reach such a
//! repository, but its configuration may name hooks and programs of the workspace.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use super::{
    Search,
    account::{Named, content},
    open::read,
};

impl Search<'_> {
    /// Protects what the repositories name whose working trees the workspace lies in.
    pub(super) fn search_outer_above(&mut self) {
        let real = self.root.real_path().to_owned();
        for top in real.ancestors().skip(1) {
            let git = top.join(".git");
            let repository = match std::fs::metadata(&git) {
                Ok(status) if status.is_dir() => Some(git),
                Ok(_) => content(&git).and_then(|content| named_by(&content, top)),
                Err(_) if is_bare(top) => Some(top.to_owned()),
                Err(_) => None,
            };
            if let Some(repository) = repository {
                self.search_outer(&repository, &[top.to_owned()], Path::new(".git"));
            }
        }
    }

    /// The path in a file of the workspace that is called `.git`.
    pub(super) fn pointed_to(&self, pointer: &Path) -> Option<PathBuf> {
        named_by(&read(self.root, pointer)?, pointer.parent()?)
    }

    /// Protects what the repository names that a file of the workspace leads to, called `.git`. One in
    /// the workspace is found by itself.
    pub(super) fn search_outer_pointer(&mut self, pointer: &Path) {
        if let Some(path) = self.pointed_to(pointer)
            && self.locate(&path).is_none()
            && let Some(top) = pointer.parent()
        {
            let repository = self.root.real_path().join(path);
            self.search_outer(&repository, &[top.to_owned()], pointer);
        }
    }

    /// The same for a link that is called `.git`.
    pub(super) fn search_outer_link(&mut self, link: &Path) {
        let Some(top) = link.parent() else {
            return;
        };
        let path = self.root.real_path().join(link);
        let repository = match std::fs::metadata(&path) {
            Ok(status) if status.is_file() => content(&path).and_then(|content| {
                let folder = std::fs::canonicalize(&path).ok()?;
                named_by(&content, folder.parent()?)
            }),
            Ok(_) => Some(path),
            Err(_) => None,
        };
        if let Some(repository) = repository {
            self.search_outer(&repository, &[top.to_owned()], link);
        }
    }

    /// Protects what a repository names in these working trees, which are relative to the workspace or
    /// absolute.
    pub(super) fn search_outer(&mut self, repository: &Path, tops: &[PathBuf], origin: &Path) {
        let Ok(repository) = std::fs::canonicalize(repository) else {
            return;
        };
        let common = content(&repository.join("commondir"))
            .map(|content| repository.join(OsStr::from_bytes(content.trim_ascii_end())))
            .and_then(|common| std::fs::canonicalize(common).ok());
        let mut named = Named::default();
        let mut tops = tops.to_owned();
        for folder in [Some(repository), common].into_iter().flatten() {
            for file in ["config", "config.worktree"] {
                self.read_settings(&folder.join(file), true, &mut named);
            }
            tops.extend(named.tops.drain(..).map(|top| folder.join(top)));
            self.follow_outer_hooks(&folder.join("hooks"), origin);
        }
        for hooks in &named.hooks {
            for top in &tops {
                let folder = self.root.real_path().join(top).join(hooks);
                self.follow_outer_hooks(&folder, origin);
            }
        }
        self.found.git_runs_programs |= named.runs_in_reading;
        self.protect_named_in(&tops, origin, &named);
        let account = self.account.clone();
        self.protect_named_in(&tops, origin, &account);
    }

    /// Protects the files of the workspace that hooks outside of it lead to.
    fn follow_outer_hooks(&mut self, folder: &Path, origin: &Path) {
        let is_inner = |real: PathBuf| real.starts_with(self.root.real_path());
        if std::fs::canonicalize(folder).is_ok_and(is_inner) {
            return;
        }
        let Ok(entries) = std::fs::read_dir(folder) else {
            return;
        };
        for entry in entries.flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
                continue;
            }
            if let Some(place) = self.follow_way(&entry.path())
                && let Ok(inner) = place.strip_prefix(self.root.real_path())
            {
                self.protect_target(inner.to_owned(), origin);
            }
        }
    }
}

/// The repository that a file called `.git` names, which lies in `folder`.
fn named_by(content: &[u8], folder: &Path) -> Option<PathBuf> {
    let path = content.trim_ascii_end().strip_prefix(b"gitdir: ")?;
    Some(folder.join(OsStr::from_bytes(path)))
}

/// Whether a folder is a repository without a working tree.
fn is_bare(folder: &Path) -> bool {
    ["HEAD", "objects", "refs"]
        .iter()
        .all(|part| folder.join(part).exists())
}
