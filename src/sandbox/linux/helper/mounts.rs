//! Sets up the file system view of a command where the helper has a mount namespace. Every mount of
//! the machine becomes read-only, except the workspace and the private folder. Home folders, `/etc`
//! and similar show only what a command may use. Mounts over the workspace cover protected and
//! hidden names; since the kernel refuses to rename, remove or replace a mount point, the folders
//! around them can stay writable.
//!
//! Every cover is mounted through a descriptor opened without following links, and checked again
//! afterwards. If another command moves names at the same time, this one fails; no name is left
//! uncovered.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, ResolveFlags, StatVfsMountFlags, StatxAttributes,
        StatxFlags,
    },
    io::Errno,
    mount::{MountFlags, mount, mount_bind_recursive, mount_remount},
};

use crate::sandbox::{
    exec::shell::CHANGED,
    fs::{Found, Identity, Root},
};

/// Folders in which a command sees only what it may use.
const EMPTIED: &[&str] = &[
    "/boot", "/etc", "/home", "/media", "/mnt", "/opt", "/root", "/run", "/srv", "/tmp", "/var",
];

/// Mount options of an empty folder that will contain mount points.
const SMALL: &std::ffi::CStr = c"size=1m,mode=755";

/// Mount options of the empty folder, one page in size, that hides another.
const EMPTY: &std::ffi::CStr = c"size=4k,mode=755";

/// Makes every mount read-only except those at and below `writable`, which become separate mounts.
pub(super) fn close(writable: [&Path; 2]) -> Result<(), String> {
    let mut own = Vec::new();
    for folder in writable {
        // The kernel lists mounts by their real paths.
        let folder = folder
            .canonicalize()
            .map_err(|error| format!("a writable folder: {}", error.kind()))?;
        mount_bind_recursive(&folder, &folder)
            .map_err(|error| format!("the mount of a writable folder: {error}"))?;
        own.push(folder);
    }
    let mounts =
        Mounted::of("self").map_err(|error| format!("the list of mounts: {}", error.kind()))?;
    for Mounted { place, flags, .. } in mounts {
        if flags.contains(MountFlags::RDONLY) || own.iter().any(|folder| place.starts_with(folder))
        {
            continue;
        }
        match mount_remount(&place, MountFlags::BIND | MountFlags::RDONLY | flags, c"") {
            // Unreachable: another mount lies over it, or a folder on the way is closed. The
            // command has fewer rights than this process, so it cannot reach the mount either.
            Ok(()) | Err(Errno::ACCESS | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(Errno::INVAL) if !is_mount(&place) => {}
            Err(error) => return Err(format!("a mount cannot be made read-only: {error}")),
        }
    }
    let whole = rustix::fs::statvfs("/").map_err(|error| format!("the root folder: {error}"))?;
    if whole.f_flag.contains(StatVfsMountFlags::RDONLY) {
        Ok(())
    } else {
        Err("the root folder is not read-only".to_owned())
    }
}

/// Whether a mount is visible at a place.
fn is_mount(place: &Path) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let stat = rustix::fs::statx(rustix::fs::CWD, place, flags, StatxFlags::empty());
    stat.is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Empties the folders of [`EMPTIED`] except for `shown`. Most programs handle a missing file well
/// and treat an unreadable one as a failure.
pub(super) fn narrow<'a>(shown: impl Iterator<Item = &'a Path>) -> Result<(), String> {
    let said = |what: &'static str| move |error: Errno| format!("{what}: {error}");
    let io = |error: std::io::Error| format!("a shown folder: {}", error.kind());
    let shown: Vec<&Path> = shown.collect();
    for folder in EMPTIED {
        let Ok(folder) = Path::new(folder).canonicalize() else {
            continue;
        };
        // A workspace that contains the whole folder keeps it visible. A folder that is a link
        // elsewhere keeps its contents.
        if shown.iter().any(|place| folder.starts_with(place)) || folder.components().count() != 2 {
            continue;
        }
        let kept = shown
            .iter()
            .filter(|place| place.starts_with(&folder))
            .filter_map(|place| {
                let fd =
                    rustix::fs::open(*place, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
                let kind = rustix::fs::fstat(&fd).ok()?.st_mode;
                Some((
                    *place,
                    fd,
                    FileType::from_raw_mode(kind) == FileType::Directory,
                ))
            });
        let kept: Vec<(&Path, OwnedFd, bool)> = kept.collect();
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("tmpfs", &folder, "tmpfs", flags, SMALL).map_err(said("an empty folder"))?;
        for (place, fd, is_folder) in kept {
            if is_folder {
                std::fs::create_dir_all(place).map_err(io)?;
            } else {
                std::fs::create_dir_all(place.parent().unwrap_or(&folder)).map_err(io)?;
                std::fs::File::options()
                    .append(true)
                    .create(true)
                    .open(place)
                    .map_err(io)?;
            }
            mount_bind_recursive(through(&fd), place).map_err(said("a shown folder"))?;
        }
        mount_remount(&folder, MountFlags::BIND | MountFlags::RDONLY | flags, c"")
            .map_err(said("an empty folder"))?;
    }
    Ok(())
}

/// A line of the kernel's list of mounts.
#[derive(Debug, PartialEq)]
pub(in crate::sandbox) struct Mounted {
    pub(in crate::sandbox) id: u64,
    /// Number of the mount that it lies on.
    pub(in crate::sandbox) parent: u64,
    pub(in crate::sandbox) place: PathBuf,
    /// Flags that a remount must keep, since another user namespace set them.
    flags: MountFlags,
}

impl Mounted {
    /// The mounts of a process's namespace.
    pub(in crate::sandbox) fn of(process: &str) -> std::io::Result<Vec<Self>> {
        let lines = std::fs::read(format!("/proc/{process}/mountinfo"))?;
        Ok(lines
            .split(|byte| *byte == b'\n')
            .filter_map(Self::parse)
            .collect())
    }

    /// Parses a line, in which a path may be no text.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse().ok();
        let (id, parent) = (number()?, number()?);
        let mut fields = fields.skip(2);
        let place = unescaped(fields.next()?);
        let options = fields.next()?.split(|byte| *byte == b',');
        let flags = options.map(|option| match option {
            b"ro" => MountFlags::RDONLY,
            b"nosuid" => MountFlags::NOSUID,
            b"nodev" => MountFlags::NODEV,
            b"noexec" => MountFlags::NOEXEC,
            _ => MountFlags::empty(),
        });
        Some(Self {
            id,
            parent,
            place,
            flags: flags.collect(),
        })
    }
}

/// Decodes octal escapes: `\040` is a blank.
fn unescaped(text: &[u8]) -> PathBuf {
    use std::{ffi::OsString, os::unix::ffi::OsStringExt};
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let code = after
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|code| std::str::from_utf8(code).ok());
        let (byte, left) = match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) => (byte, after.get(3..).unwrap_or_default()),
            None => (*first, after),
        };
        bytes.push(byte);
        rest = left;
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Mounts the covers over the workspace, as bubblewrap does: a folder that must stay in place, such as
/// `.git`, over itself; a protected path over itself, read-only; an empty file or folder over a path
/// that holds keys.
pub(super) fn cover(root: &Root, found: &Found) -> Result<(), String> {
    for path in &found.held {
        lay(root, path, &Cover::Itself)?;
    }
    for path in &found.read_only {
        lay(root, path, &Cover::ReadOnly)?;
    }
    for (path, is_folder) in &found.hidden {
        lay(
            root,
            path,
            if *is_folder {
                &Cover::EmptyFolder
            } else {
                &Cover::EmptyFile
            },
        )?;
    }
    Ok(())
}

enum Cover {
    Itself,
    ReadOnly,
    EmptyFile,
    EmptyFolder,
}

fn lay(root: &Root, path: &Path, cover: &Cover) -> Result<(), String> {
    let said = |error: Errno| format!("a protected name cannot be covered: {error}");
    let place = match open(root, path) {
        Ok(place) => place,
        // It was moved or removed after the search.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Err(CHANGED.to_owned()),
        Err(error) => return Err(said(error)),
    };
    let null;
    let source = match cover {
        Cover::Itself | Cover::ReadOnly => Some(&place),
        Cover::EmptyFile => {
            null = rustix::fs::open("/dev/null", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
                .map_err(said)?;
            Some(&null)
        }
        Cover::EmptyFolder => None,
    };
    match source {
        Some(source) => mount_bind_recursive(through(source), through(&place)).map_err(said)?,
        None => {
            let flags =
                MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            mount("tmpfs", through(&place), "tmpfs", flags, EMPTY).map_err(said)?;
        }
    }
    // Another command may have moved the name between the open and the mount. Opening the path again
    // must reach the mount that was just made; if it reaches another file, the cover lies elsewhere.
    let changed = || CHANGED.to_owned();
    let laid = open(root, path).map_err(|error| match error {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => changed(),
        error => said(error),
    })?;
    if source.is_some_and(|source| own_identity(source) != own_identity(&laid)) {
        return Err(changed());
    }
    if matches!(cover, Cover::ReadOnly | Cover::EmptyFile) {
        let kept = rustix::fs::fstatvfs(&laid).map_err(said)?.f_flag;
        let flags = [
            (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
            (StatVfsMountFlags::NODEV, MountFlags::NODEV),
            (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        ];
        let flags: MountFlags = flags
            .into_iter()
            .filter(|(kind, _)| kept.contains(*kind))
            .map(|(_, flag)| flag)
            .collect();
        mount_remount(
            through(&laid),
            MountFlags::BIND | MountFlags::RDONLY | flags,
            c"",
        )
        .map_err(|error| match error {
            Errno::INVAL => changed(), // it is not a mount point
            other => said(other),
        })?;
    }
    Ok(())
}

fn open(root: &Root, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(
        &root.dir,
        path,
        flags,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
    )
}

/// Whether a path of the workspace is a mount point of this process's namespace.
pub(in crate::sandbox) fn is_mount_point(root: &Root, path: &Path) -> bool {
    let flags = AtFlags::EMPTY_PATH;
    open(root, path).is_ok_and(|place| {
        rustix::fs::statx(&place, c"", flags, StatxFlags::empty())
            .is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    })
}

/// Path under `/proc` of an open descriptor, which names exactly that file.
fn through(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

fn own_identity(fd: &OwnedFd) -> Option<Identity> {
    let stat = rustix::fs::fstat(fd).ok()?;
    #[allow(clippy::unnecessary_cast, reason = "the types differ by platform")]
    Some((stat.st_dev as u64, stat.st_ino as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_list_of_mounts_is_read() {
        let line = br"45 43 0:21 / /mnt/a\040b\134c rw,nosuid,nodev,relatime shared:7 - ext4 /dev/vda ro,errors=continue";
        let closed = b"43 42 254:0 /x / ro,noexec - ext4 /dev/vda rw";

        assert_eq!(
            Mounted::parse(line),
            Some(Mounted {
                id: 45,
                parent: 43,
                place: PathBuf::from("/mnt/a b\\c"),
                flags: MountFlags::NOSUID | MountFlags::NODEV
            })
        );
        assert_eq!(
            Mounted::parse(closed),
            Some(Mounted {
                id: 43,
                parent: 42,
                place: PathBuf::from("/"),
                flags: MountFlags::RDONLY | MountFlags::NOEXEC
            })
        );
        assert_eq!(Mounted::parse(b"43 42"), None);
    }
}
