//! The files of the workspace that mounts keep from a command, read from the kernel while it runs.
//!
//! The kernel's list of mounts has the path of each mount point as it is now. A command that moves folders
//! in the moment between the list and a look at a path is noticed: every mount point of the list must be
//! one, and no two may be the same.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    ffi::OsStr,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, ResolveFlags, StatVfsMountFlags, Statx, StatxAttributes,
        StatxFlags,
    },
    io::Errno,
};

use super::Entry;
use crate::sandbox::{
    fs::{Added, Identity, Made, Root, identity},
    linux::helper::Mounted,
};

/// How a mount keeps a file from a command; each way keeps more than the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// It stays in its place.
    Held,
    /// And it is not written.
    ReadOnly,
    /// And it is not read.
    Hidden,
    HiddenFolder,
}

impl Kind {
    pub(super) fn hidden(is_folder: bool) -> Self {
        if is_folder {
            Self::HiddenFolder
        } else {
            Self::Hidden
        }
    }
}

impl From<Kind> for Added {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Held => Self::Held,
            Kind::ReadOnly => Self::ReadOnly,
            Kind::Hidden => Self::Hidden { is_folder: false },
            Kind::HiddenFolder => Self::Hidden { is_folder: true },
        }
    }
}

/// A file that a mount keeps from a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Covered {
    /// Where it is now, relative to the root.
    pub(super) path: PathBuf,
    pub(super) kind: Kind,
}

pub(super) type Covers = BTreeMap<Entry, Covered>;

/// Reads the mounts of the command of a process, which sees the workspace at `place`. `None` if it moves
/// folders meanwhile, or has just ended.
pub(super) fn of(made: &Made, root: &Root) -> Option<Covers> {
    let Made { pid, place, mounts } = made;
    // Its number may be that of another process by now.
    let is_same = || namespace(*pid).as_ref() == Some(mounts);
    let covers = read(*pid, place, root).filter(|_| is_same())?;
    Some(covers)
}

/// The mount namespace of a process.
pub(super) fn namespace(pid: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()
}

fn read(pid: i32, place: &Path, root: &Root) -> Option<Covers> {
    let mounts = Mounted::of(&pid.to_string()).ok()?;
    let inside = place.strip_prefix("/").ok()?;
    let inside = Path::new(&format!("/proc/{pid}/root")).join(inside);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let inside = rustix::fs::open(&inside, flags, Mode::empty()).ok()?;
    let places = visible(&mounts, place);
    let mut covers = Covers::new();
    for path in &places {
        let (entry, kind) = look(&inside, root, path)?;
        let path = path.clone();
        covers.insert(entry, Covered { path, kind });
    }
    (covers.len() == places.len()).then_some(covers)
}

/// Paths below `place` on which a mount can be seen. One that another mount lies over cannot.
fn visible(mounts: &[Mounted], place: &Path) -> BTreeSet<PathBuf> {
    let by_parent: HashSet<(u64, &Path)> = mounts
        .iter()
        .map(|mount| (mount.parent, &*mount.place))
        .collect();
    let is_over = |mount: &Mounted| {
        let mut above = mount.place.ancestors().skip(1);
        above.any(|folder| by_parent.contains(&(mount.parent, folder)))
    };
    let mut hidden: HashMap<u64, bool> = HashMap::new();
    let mut places = BTreeSet::new();
    for mount in mounts {
        let is_hidden = hidden.get(&mount.parent).copied().unwrap_or(false) || is_over(mount);
        hidden.insert(mount.id, is_hidden);
        if let Ok(path) = mount.place.strip_prefix(place)
            && !is_hidden
            && !path.as_os_str().is_empty()
        {
            places.insert(path.to_owned());
        }
    }
    places
}

/// The file at a path on which a mount lies, and how the mount keeps it. `None` if no mount lies there.
fn look(inside: &OwnedFd, root: &Root, path: &Path) -> Option<(Entry, Kind)> {
    let (above, name) = (path.parent()?, path.file_name()?);
    let seen_above = open(inside, above).ok()?;
    let real_above = open(&root.dir, above).ok()?;
    let folder = identity_of(&seen_above)?;
    // Otherwise it was moved between the two.
    if folder != identity_of(&real_above)? {
        return None;
    }
    let seen = status(&seen_above, name)?;
    if !seen.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        return None;
    }
    let (real, real_kind) = identity(real_above.as_fd(), name)?;
    let is_folder = real_kind == FileType::Directory;
    let seen_file = rustix::fs::openat(
        &seen_above,
        name,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .ok()?;
    let kind = if identity_of(&seen_file)? != real {
        Kind::hidden(is_folder)
    } else if rustix::fs::fstatvfs(&seen_file)
        .ok()?
        .f_flag
        .contains(StatVfsMountFlags::RDONLY)
    {
        Kind::ReadOnly
    } else {
        Kind::Held
    };
    Some(((folder, name.to_owned()), kind))
}

pub(super) fn open(folder: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    rustix::fs::openat2(
        folder,
        path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
    )
}

fn status(folder: &OwnedFd, name: &OsStr) -> Option<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(folder, name, flags, StatxFlags::empty()).ok()
}

fn identity_of(file: &OwnedFd) -> Option<Identity> {
    let stat = rustix::fs::fstat(file).ok()?;
    #[allow(clippy::unnecessary_cast, reason = "the types differ by platform")]
    Some((stat.st_dev as u64, stat.st_ino as u64))
}
