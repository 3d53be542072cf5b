//! The protected files that existed before a command: what the sweep after it leaves alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::AsFd,
    path::Path,
};

use rustix::fs::{AtFlags, StatxFlags};
use serde::{Deserialize, Serialize};

use super::found::{Changed, FileStatus, Found, Identity};
use crate::sandbox::fs::Root;

/// The protected files that existed before a command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Known {
    /// Files and hidden folders that the command could not replace, since mounts covered them. The
    /// value is the creation time, because inode numbers are reused.
    covered: BTreeMap<Identity, Option<Changed>>,
    /// Files that no mount covered. They are identified by their change time as well, because inode
    /// numbers are reused.
    loose: BTreeSet<(Identity, Changed)>,
    /// The indexes of repositories, identified in the same way.
    indexes: BTreeSet<(Identity, Changed)>,
}

/// [`Known`] as it is written to the watchdog.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::sandbox) struct WrittenKnown {
    covered: Vec<(Identity, Option<Changed>)>,
    loose: Vec<(Identity, Changed)>,
    indexes: Vec<(Identity, Changed)>,
}

impl From<&Known> for WrittenKnown {
    fn from(known: &Known) -> Self {
        Self {
            covered: known
                .covered
                .iter()
                .map(|(own, born)| (*own, *born))
                .collect(),
            loose: known.loose.iter().copied().collect(),
            indexes: known.indexes.iter().copied().collect(),
        }
    }
}

impl From<WrittenKnown> for Known {
    fn from(written: WrittenKnown) -> Self {
        Self {
            covered: written.covered.into_iter().collect(),
            loose: written.loose.into_iter().collect(),
            indexes: written.indexes.into_iter().collect(),
        }
    }
}

impl Known {
    /// Builds the set from a search, less every file that may come from a command that runs: one for
    /// which `is_users` does not answer that every such command knew it before.
    pub(super) fn of(
        root: &Root,
        found: &Found,
        is_users: impl Fn(&Path, Identity, Option<Changed>) -> bool,
    ) -> Self {
        let mut known = Self {
            indexes: found.indexes.clone(),
            ..Self::default()
        };
        for (path, (own, _)) in &found.protected {
            let changed = found.loose.get(path).copied();
            if !is_users(path, *own, changed) {
                continue;
            }
            match changed {
                Some(changed) => drop(known.loose.insert((*own, changed))),
                None => drop(known.covered.insert(*own, born(root, path))),
            }
        }
        for path in found.hidden_folders() {
            if let Ok(FileStatus { own, .. }) = FileStatus::at(root.dir.as_fd(), path)
                && is_users(path, own, None)
            {
                known.covered.insert(own, born(root, path));
            }
        }
        known
    }

    /// Whether this very file existed before. A different file in its place can only be the user's,
    /// but replacing a file removes its cover, so its content may be the command's.
    pub(super) fn has(&self, own: Identity, changed: Option<Changed>) -> bool {
        match changed {
            Some(changed) => self.loose.contains(&(own, changed)),
            None => self.covered.contains_key(&own),
        }
    }

    /// Whether a repository's index is the same as before.
    pub(super) fn has_index(&self, own: Identity, changed: Changed) -> bool {
        self.indexes.contains(&(own, changed))
    }

    /// Whether a file has the reused inode number of a covered file that is gone.
    pub(super) fn is_another(&self, root: &Root, path: &Path, own: Identity) -> bool {
        self.covered
            .get(&own)
            .is_some_and(|before| *before != born(root, path))
    }
}

/// Creation time of a file; `None` where the file system has none, so that only the inode number
/// counts.
fn born(root: &Root, path: &Path) -> Option<Changed> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let wanted = StatxFlags::BTIME;
    let stat = rustix::fs::statx(&root.dir, path, flags, wanted)
        .ok()
        .filter(|stat| stat.stx_mask & wanted.bits() != 0)?;
    Some((stat.stx_btime.tv_sec, i64::from(stat.stx_btime.tv_nsec)))
}
