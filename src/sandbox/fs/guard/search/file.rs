//! The question whether a single file is the user's by another way than its name, for tools that write
//! files: because git runs or reads it, or because a link with a protected name leads to it.

use std::{ffi::OsStr, path::Path, sync::Arc};

use rustix::{fs::FileType, io::Errno};

use super::{Parts, Purpose, Search, open_real};
use crate::sandbox::{
    fs::{Root, guard::found::names_where},
    policy::{lower, lower_name},
};

/// Whether a link with a protected name, beside the file or above it, leads to `path`: `CLAUDE.md` to
/// a page, or `.vscode` to a folder with the file; or a link in such a folder.
pub(in crate::sandbox::fs) fn is_behind_protected_link(root: &Root, path: &Path) -> bool {
    let rules = root.rules();
    // `None` for a folder that a command has closed: what lies in it is not known.
    let names = |folder: &Path, passes: &dyn Fn(&OsStr) -> bool| match open_real(root, folder) {
        Ok(dir) => Some(names_where(&dir, passes)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Some(Vec::new()),
        Err(_) => None,
    };
    let leads = |link: &Path| {
        // The target of what is no link is the file itself.
        let target = root.locate_path(link).ok().filter(|target| target != link);
        target
            .and_then(|target| path.strip_prefix(target).ok())
            .is_some_and(|rest| {
                // `join` of nothing would add a slash.
                let name = if rest.as_os_str().is_empty() {
                    link.to_owned()
                } else {
                    link.join(rest)
                };
                rules.is_protected(&name)
            })
    };
    path.ancestors().skip(1).any(|folder| {
        let parts = lower(folder);
        let may_lead = |name: &OsStr| {
            let lower = lower_name(name);
            rules.is_protected_name(&parts, &lower) || rules.holds_protected(&parts, &lower)
        };
        let Some(names_here) = names(folder, &may_lead) else {
            return true;
        };
        names_here.iter().any(|name| {
            let place = folder.join(name);
            leads(&place)
                || names(&place, &|inner| leads(&place.join(inner)))
                    .is_none_or(|inner| !inner.is_empty())
        })
    })
}

/// Whether the configuration of a repository that contains `path` names it, or that of the account: as
/// a hook, a program or more configuration. True if such a configuration cannot be read.
pub(in crate::sandbox::fs) fn is_named_by_git(root: &Root, path: &Path) -> bool {
    let last = Arc::default();
    let mut search = Search::new(
        root,
        Purpose {
            last: &last,
            known: None,
            reopens: false,
            folders_max: 0,
        },
    );
    search.search_account();
    search.search_python_folders();
    search.search_outer_above();
    for folder in path.ancestors().skip(1) {
        let git = folder.join(".git");
        match search.status(&git).map(|status| status.kind) {
            Ok(FileType::Directory) => search.search_repository(&git),
            Ok(FileType::Symlink) => search.follow(&git),
            // A file with the path of a repository.
            Ok(FileType::RegularFile) => {
                let pointed_to = search.pointed_to(&git);
                match pointed_to.and_then(|path| search.locate(&path)) {
                    Some(repository) => search.search_repository(&repository),
                    None => search.search_outer_pointer(&git),
                }
            }
            _ => {}
        }
        let mut parts = Parts::default();
        for name in Parts::NAMES {
            if search.status(&folder.join(name)).is_ok() {
                parts.add(&name.to_lowercase());
            }
        }
        if parts.is_repository() {
            search.search_repository(folder);
        }
    }
    let path = lower(path);
    let is_named = |named: &std::path::PathBuf| path.starts_with(&lower(named));
    !search.missed.is_empty() || search.named.iter().any(is_named)
}
