//! The question whether git runs or reads a single file because of its configuration, for tools that
//! write files.

use std::{path::Path, sync::Arc};

use rustix::fs::FileType;

use super::{Parts, Purpose, Search, open::read};
use crate::sandbox::{fs::Root, policy::lower};

/// Whether the configuration of a repository that contains `path` names it: as a hook, a program or
/// more configuration. True if such a configuration cannot be read.
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
    for folder in path.ancestors().skip(1) {
        let git = folder.join(".git");
        match search.status(&git).map(|status| status.kind) {
            Ok(FileType::Directory) => search.search_repository(&git),
            Ok(FileType::Symlink) => search.follow(&git),
            // A file with the path of a repository.
            Ok(FileType::RegularFile) => {
                let content = read(root, &git).unwrap_or_default();
                let content = String::from_utf8_lossy(&content);
                if let Some(path) = content.trim_end().strip_prefix("gitdir: ")
                    && let Some(repository) = search.locate(&folder.join(path))
                {
                    search.search_repository(&repository);
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
