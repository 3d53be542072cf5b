//! Where a workspace lies, so that workspaces of which one contains the other know of each other. Folders
//! are compared by identity, since a path may lead elsewhere by now.

use std::{
    ffi::OsString,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::sandbox::fs::{
    Root,
    guard::found::{FileStatus, Identity},
};

/// Folders above a root that are looked at: a path has fewer.
const DEPTH_MAX: usize = 4096;

/// Where a workspace lies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Position {
    /// The real path of the root.
    path: OsString,
    /// The root, and the folders above it.
    upwards: Vec<Identity>,
}

/// The place of a path in another workspace.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It lies in it, under this path.
    At(PathBuf),
    /// It does not lie in it, so that no command there creates it.
    Outside,
    /// The other workspace was moved meanwhile.
    Unknown,
}

/// How another workspace lies to one's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Relation {
    Same,
    /// It contains one's own, under this path.
    Above(PathBuf),
    /// It lies in one's own under this path.
    Below(PathBuf),
    /// The same, but the path leads elsewhere by now.
    Moved,
}

impl Position {
    /// `None` if the root cannot be read.
    pub(super) fn of(root: &Root) -> Option<Self> {
        let mut upwards = vec![FileStatus::at(root.dir.as_fd(), Path::new("")).ok()?.own];
        let mut here: Option<OwnedFd> = None;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        while upwards.len() < DEPTH_MAX {
            let folder = here.as_ref().map_or(root.dir.as_fd(), AsFd::as_fd);
            let Ok(above) = rustix::fs::openat(folder, "..", flags, Mode::empty()) else {
                break;
            };
            let Ok(stat) = rustix::fs::fstat(&above) else {
                break;
            };
            let own = FileStatus::of(&stat).own;
            if upwards.last() == Some(&own) {
                break;
            }
            upwards.push(own);
            here = Some(above);
        }
        Some(Self {
            path: root.real_path().as_os_str().to_owned(),
            upwards,
        })
    }

    /// How `other` lies to this workspace; `None` if neither contains the other.
    pub(super) fn relation(&self, root: &Root, other: &Self) -> Option<Relation> {
        let (own, others) = (self.upwards.first()?, other.upwards.first()?);
        if own == others {
            return Some(Relation::Same);
        }
        let depth = |upwards: &[Identity], folder| upwards.iter().position(|it| it == folder);
        if let Some(depth) = depth(&self.upwards, others) {
            return Some(Relation::Above(last(&self.path, depth)));
        }
        let path = last(&other.path, depth(&other.upwards, own)?);
        let there = FileStatus::at(root.dir.as_fd(), &path);
        Some(if there.is_ok_and(|status| status.own == *others) {
            Relation::Below(path)
        } else {
            Relation::Moved
        })
    }

    /// Whether one of two workspaces contains the other.
    pub(super) fn is_related(&self, other: &Self) -> bool {
        let is_in = |one: &Self, two: &Self| {
            let root = two.upwards.first();
            root.is_some_and(|root| one.upwards.contains(root))
        };
        is_in(self, other) || is_in(other, self)
    }
}

impl Relation {
    /// The place of one's own `path` in the other workspace.
    pub(super) fn place(&self, path: &Path) -> Place {
        match self {
            Self::Same => Place::At(path.to_owned()),
            Self::Above(own) => Place::At(own.join(path)),
            Self::Below(other) => match path.strip_prefix(other) {
                // Its root is what no command in it replaces.
                Ok(inner) if !inner.as_os_str().is_empty() => Place::At(inner.to_owned()),
                _ => Place::Outside,
            },
            Self::Moved => Place::Unknown,
        }
    }
}

/// The last names of a path.
fn last(path: &OsString, names: usize) -> PathBuf {
    let path = Path::new(path);
    path.iter()
        .skip(path.iter().count().saturating_sub(names))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt};

    use super::*;
    use crate::sandbox::PathRules;

    #[test]
    fn paths_are_mapped_between_workspaces_that_contain_each_other_whatever_their_names() {
        let top = tempfile::tempdir().unwrap();
        let inner = Path::new(OsStr::from_bytes(b"a\xff/b\n"));
        fs::create_dir_all(top.path().join(inner)).unwrap();
        fs::create_dir(top.path().join("other")).unwrap();
        let open = |path: PathBuf| Root::open(path, PathRules::default()).unwrap();
        let (above, below) = (open(top.path().to_owned()), open(top.path().join(inner)));
        let beside = Position::of(&open(top.path().join("other"))).unwrap();
        let of = |root: &Root| Position::of(root).unwrap();

        let down = of(&above).relation(&above, &of(&below)).unwrap();
        let up = of(&below).relation(&below, &of(&above)).unwrap();

        assert_eq!(down, Relation::Below(inner.to_owned()));
        assert_eq!(
            [inner.join("x"), inner.to_owned(), "other/x".into()].map(|path| down.place(&path)),
            [Place::At("x".into()), Place::Outside, Place::Outside]
        );
        assert_eq!(up.place(Path::new("x")), Place::At(inner.join("x")));
        assert_eq!(of(&below).relation(&below, &beside), None);
        assert!(!of(&below).is_related(&beside) && of(&above).is_related(&beside));

        fs::rename(top.path().join(inner), top.path().join("moved")).unwrap();
        let before = of(&below);
        let moved = of(&above).relation(&above, &before);
        assert_eq!(moved, Some(Relation::Moved), "its path is that of before");
    }
}
