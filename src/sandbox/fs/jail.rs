//! A folder that paths cannot leave. All file tools open files through a [`Root`], relative to one
//! directory descriptor.
//!
//! The kernel enforces the boundary (`openat2` with `RESOLVE_BENEATH`). Where the kernel lacks that
//! call, or a link inside the root is absolute, a walk opens one name after the other without
//! following links and keeps the descriptors on a stack. `..` pops the stack instead of asking the
//! file system, so nothing that moves during the walk can lead outside. Names are checked after
//! resolution ([`PathRules`]). Errors show the path as the caller gave it, never a path of the
//! host.
//!
//! **Reads** may follow links that stay inside. **Writes** pass no link at all ([`Root::slot`]), so
//! that the path shown and approved is the path that changes.
//!
//! A path that changes during a check is checked again, a bounded number of times: a refusal must
//! not depend on what another program swaps in for a moment. So a refusal because of a link or a
//! missing name takes one or two milliseconds.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Component, Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags},
    io::Errno,
};

use super::{
    quota::Space,
    second_names::{OtherNames, SecondNames},
    shared_rules::SharedRules,
};
use crate::sandbox::policy::{PathRules, WORKSPACE};

/// Links followed on one path; the kernel's own limit.
const LINKS_MAX: u32 = 40;

/// Retries for a name that changed between two system calls.
const CHANGES_MAX: u32 = 16;

/// Retries for a whole path without a pause.
const CHECKS_AT_ONCE: u32 = 8;

/// Retries for a whole path that met a link or a missing name. Those after [`CHECKS_AT_ONCE`] pause
/// first, so that the program that swaps names can run and finish.
const CHECKS_MAX: u32 = 20;

const CHECK_PAUSE: Duration = Duration::from_micros(50);

/// Folders on one resolved path; each costs a descriptor.
const DEPTH_MAX: usize = 256;

pub(super) const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
// O_NONBLOCK: opening a fifo without a writer would block forever, and so may opening a device.
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// Why a path was refused. `Display` shows the path as the caller gave it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// The path leads out of the root.
    #[error("{0:?} is outside of the workspace")]
    Outside(String),
    /// The file does not exist.
    #[error("{0:?} does not exist")]
    NotFound(String),
    /// The file may hold keys.
    #[error("{0:?} may hold keys or passwords and is not readable through tools")]
    Sensitive(String),
    /// The file has several names, and there are too many files to find out whether one of these is
    /// that of a file with keys.
    #[error(
        "{0:?} is not read: it has several hard links, and the workspace has too many files to search for those that hold keys; copy the file, or choose a smaller folder as workspace"
    )]
    Uncompared(String),
    /// Only the user may write the file.
    #[error("{0:?} is protected: only the user may change it")]
    Protected(String),
    /// The path is a folder, fifo, device or socket.
    #[error("{path:?} is {kind}, not a regular file")]
    NotAFile {
        /// Path as given.
        path: String,
        /// Type of the file, for the message.
        kind: &'static str,
    },
    /// The path, or a name on the way, is not a folder.
    #[error("{0:?} is not a folder")]
    NotAFolder(String),
    /// Links form a cycle, or there are too many.
    #[error("{0:?} leads through too many links")]
    TooManyLinks(String),
    /// The path is a link or passes one, where only a path without links may be written.
    #[error("{link:?} is a link to {target:?}; {what}")]
    Link {
        /// The link, relative to the root.
        link: String,
        /// Where it leads, relative to the root.
        target: String,
        /// What the caller can do instead.
        what: String,
    },
    /// Another program changed the file between two steps.
    #[error("{0:?} was changed by something else meanwhile; nothing was written")]
    Changed(String),
    /// The path contains a NUL byte or is too long.
    #[error("{0:?} is not a valid path")]
    Invalid(String),
    /// The workspace has reached its quota.
    #[error("{path:?} was not written: {what}")]
    Full {
        /// Path as given.
        path: String,
        /// Usage, quota and what the caller can do.
        what: String,
    },
    /// The file system reported an error.
    #[error("{path:?}: {reason}")]
    Io {
        /// Path as given.
        path: String,
        /// The system's message, which contains no path.
        reason: String,
    },
}

impl PathError {
    /// How often a path is checked again after this error, which a swap in progress may have
    /// caused.
    fn checks(&self) -> u32 {
        match self {
            Self::Outside(_)
            | Self::NotFound(_)
            | Self::TooManyLinks(_)
            | Self::Link { .. }
            | Self::Changed(_) => CHECKS_MAX,
            Self::NotAFolder(_) | Self::NotAFile { .. } => CHECKS_AT_ONCE,
            Self::Sensitive(_)
            | Self::Uncompared(_)
            | Self::Protected(_)
            | Self::Invalid(_)
            | Self::Full { .. }
            | Self::Io { .. } => 0,
        }
    }

    pub(super) fn io(given: &str, errno: Errno) -> Self {
        let given = given.to_owned();
        match errno {
            Errno::NOENT => Self::NotFound(given),
            Errno::NOTDIR => Self::NotAFolder(given),
            Errno::LOOP => Self::TooManyLinks(given),
            Errno::INVAL | Errno::NAMETOOLONG | Errno::ILSEQ => Self::Invalid(given),
            Errno::STALE => Self::Changed(given),
            Errno::NXIO => Self::NotAFile {
                path: given,
                kind: "a socket or a device",
            },
            other => Self::Io {
                path: given,
                reason: std::io::Error::from(other).to_string(),
            },
        }
    }
}

/// Repeats `check` until the result cannot come from a swap in progress, or the retries are used
/// up.
///
/// # Errors
/// The error of the last attempt.
pub(crate) fn settled<T>(mut check: impl FnMut() -> Result<T, PathError>) -> Result<T, PathError> {
    let mut checks = 0;
    loop {
        let found = check();
        if checks >= found.as_ref().err().map_or(0, PathError::checks) {
            return found;
        }
        checks += 1;
        if checks > CHECKS_AT_ONCE {
            std::thread::sleep(CHECK_PAUSE);
        }
    }
}

/// A folder that was opened once. Cheap to share in an `Arc`.
#[derive(Debug)]
pub struct Root {
    pub(in crate::sandbox) dir: OwnedFd,
    /// Real path of the folder, used to bind it into a sandbox and to recognize absolute paths,
    /// never to open a file.
    real: PathBuf,
    given: PathBuf,
    rules: SharedRules,
    /// Whether new files and folders are accessible to the host's user only.
    pub(super) private: bool,
    /// The quota and the last count.
    pub(super) space: Space,
    second_names: SecondNames,
}

/// A regular file opened below a root.
#[derive(Debug)]
pub struct Opened {
    /// The open file, at its beginning.
    pub file: File,
    /// Path relative to the root, links resolved.
    pub relative: PathBuf,
    /// Size in bytes when the file was opened.
    pub len: u64,
}

/// The end of a resolved path.
struct Place {
    /// Names and descriptors of the folders below the root.
    folders: Vec<(OsString, OwnedFd)>,
    /// The last name and its type; `None` when the path ends at a folder.
    leaf: Option<(OsString, Option<FileType>)>,
}

impl Place {
    fn folder<'a>(&'a self, root: &'a Root) -> BorrowedFd<'a> {
        self.folders
            .last()
            .map_or(root.dir.as_fd(), |(_, fd)| fd.as_fd())
    }

    fn relative(&self) -> PathBuf {
        self.folders
            .iter()
            .map(|(name, _)| name)
            .chain(self.leaf.iter().map(|(name, _)| name))
            .collect()
    }
}

impl Root {
    /// Opens the folder.
    ///
    /// # Errors
    /// The system's error when the path is missing or not a folder.
    pub fn open(path: impl AsRef<Path>, rules: PathRules) -> std::io::Result<Self> {
        let given = std::path::absolute(path.as_ref())?;
        let real = given.canonicalize()?;
        let dir = rustix::fs::open(&real, FOLDER, Mode::empty())?;
        Ok(Self {
            dir,
            real,
            given,
            rules: SharedRules::new(rules),
            private: false,
            space: Space::default(),
            second_names: SecondNames::default(),
        })
    }

    /// Opens a folder of the host, creating it if it is missing. The folder and everything created
    /// in it are accessible to the host's user only (folders 0700, files 0600).
    ///
    /// # Errors
    /// The system's error when the folder cannot be created or opened.
    pub fn private(path: impl AsRef<Path>, rules: PathRules) -> std::io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;

        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path.as_ref())?;
        let root = Self::open(path, rules)?;
        rustix::fs::fchmod(&root.dir, Mode::from_raw_mode(0o700))?;
        Ok(Self {
            private: true,
            ..root
        })
    }

    /// Real path of the folder. For the host; a model must not see it.
    pub fn real_path(&self) -> &Path {
        &self.real
    }

    /// Names that are refused.
    pub fn rules(&self) -> Arc<PathRules> {
        self.rules.now(&self.real)
    }

    /// Protects what other sessions of this process name as well, from now on.
    #[cfg(any(test, feature = "cli"))]
    #[must_use]
    pub(crate) fn sharing(mut self, named: super::NamedFiles) -> Self {
        self.rules.share(named);
        self
    }

    /// Converts a path to one relative to the root. An absolute path must name the root: as given,
    /// by its real path, or as the sandbox's `/workspace`.
    pub(super) fn relative(&self, given: &str) -> Result<PathBuf, PathError> {
        if given.bytes().any(|b| b == 0) {
            return Err(PathError::Invalid(given.to_owned()));
        }
        let path = Path::new(given);
        if !path.is_absolute() {
            return Ok(path.to_owned());
        }
        self.beneath(path)
            .map(Path::to_owned)
            .ok_or_else(|| PathError::Outside(given.to_owned()))
    }

    /// Like [`Root::relative`], but refuses a path whose first name leads outside without checking
    /// the file system.
    fn to_open(&self, given: &str) -> Result<PathBuf, PathError> {
        let path = self.relative(given)?;
        match path.components().find(|part| *part != Component::CurDir) {
            Some(Component::ParentDir) => Err(PathError::Outside(given.to_owned())),
            _ => Ok(path),
        }
    }

    fn beneath<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        [
            self.real.as_path(),
            self.given.as_path(),
            Path::new(WORKSPACE),
        ]
        .into_iter()
        .find_map(|root| path.strip_prefix(root).ok())
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// [`PathError`] when the path is outside or missing, is not a regular file (fifos and devices
    /// are refused at once), or is sensitive after resolving links.
    pub fn open_file(&self, given: &str) -> Result<Opened, PathError> {
        let path = self.to_open(given)?;
        if self.rules().is_sensitive(&path) {
            return Err(PathError::Sensitive(given.to_owned()));
        }
        settled(|| {
            let (fd, relative) = match self.open_beneath(&path) {
                Some(opened) => opened,
                None => {
                    let place = self.resolve(given, &path)?;
                    let fd = self.open_leaf(given, &place)?;
                    (fd, place.relative())
                }
            };
            self.opened(given, fd, relative)
        })
    }

    /// Opens a file in an open folder by a name that was just listed. Does not follow links.
    pub(crate) fn open_listed(
        &self,
        folder: BorrowedFd<'_>,
        name: &OsStr,
        relative: &Path,
    ) -> Result<Opened, PathError> {
        let given = relative.to_string_lossy();
        let fd = rustix::fs::openat(folder, name, READ | OFlags::NOFOLLOW, Mode::empty())
            .map_err(|e| PathError::io(&given, e))?;
        self.opened(&given, fd, relative.to_owned())
    }

    fn opened(&self, given: &str, fd: OwnedFd, relative: PathBuf) -> Result<Opened, PathError> {
        let stat = rustix::fs::fstat(&fd).map_err(|e| PathError::io(given, e))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            kind => {
                return Err(PathError::NotAFile {
                    path: given.to_owned(),
                    kind: name_of(kind),
                });
            }
        }
        let rules = self.rules();
        if rules.is_sensitive(&relative) {
            return Err(PathError::Sensitive(given.to_owned()));
        }
        match self
            .second_names
            .of(self.dir.as_fd(), &rules, &relative, &stat)
        {
            OtherNames::Harmless => {}
            OtherNames::OfKeys => return Err(PathError::Sensitive(given.to_owned())),
            OtherNames::Unknown => return Err(PathError::Uncompared(given.to_owned())),
        }
        Ok(Opened {
            file: File::from(fd),
            relative,
            len: u64::try_from(stat.st_size).unwrap_or(0),
        })
    }

    /// Resolves the whole path in one system call. `None` means that the walk must decide; it also
    /// handles absolute links and names the reason of every refusal.
    #[cfg(target_os = "linux")]
    fn open_beneath(&self, path: &Path) -> Option<(OwnedFd, PathBuf)> {
        use rustix::fs::ResolveFlags;
        use std::os::fd::AsRawFd;

        let flags = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        // Read the type through an O_PATH descriptor first: opening a device can have side effects.
        let probe = rustix::fs::openat2(
            &self.dir,
            path,
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
            flags,
        )
        .ok()?;
        let stat = rustix::fs::fstat(&probe).ok()?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return None;
        }
        let fd = rustix::fs::openat2(&self.dir, path, READ, Mode::empty(), flags).ok()?;
        let real = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
        // Deleted meanwhile, or the root was moved: the walk resolves the names itself.
        let relative = real.strip_prefix(&self.real).ok()?.to_owned();
        Some((fd, relative))
    }

    #[cfg(not(target_os = "linux"))]
    fn open_beneath(&self, _path: &Path) -> Option<(OwnedFd, PathBuf)> {
        None
    }

    fn open_leaf(&self, given: &str, place: &Place) -> Result<OwnedFd, PathError> {
        match &place.leaf {
            None => Err(PathError::NotAFile {
                path: given.to_owned(),
                kind: "a folder",
            }),
            Some((_, None)) => Err(PathError::NotFound(given.to_owned())),
            Some((name, Some(FileType::RegularFile))) => rustix::fs::openat(
                place.folder(self),
                name,
                READ | OFlags::NOFOLLOW,
                Mode::empty(),
            )
            .map_err(|e| PathError::io(given, e)),
            Some((_, Some(kind))) => Err(PathError::NotAFile {
                path: given.to_owned(),
                kind: name_of(*kind),
            }),
        }
    }

    /// Opens a folder. Returns its descriptor and its path relative to the root, links resolved.
    ///
    /// # Errors
    /// [`PathError`] when the path is outside or missing, is not a folder, or is sensitive after
    /// resolving links.
    pub fn open_folder(&self, given: &str) -> Result<(OwnedFd, PathBuf), PathError> {
        let path = self.to_open(given)?;
        settled(|| self.open_folder_once(given, &path))
    }

    fn open_folder_once(&self, given: &str, path: &Path) -> Result<(OwnedFd, PathBuf), PathError> {
        let mut place = self.resolve(given, path)?;
        match &place.leaf {
            None => {}
            Some((_, None)) => return Err(PathError::NotFound(given.to_owned())),
            Some(_) => return Err(PathError::NotAFolder(given.to_owned())),
        }
        let relative = place.relative();
        if self.rules().is_sensitive(&relative) {
            return Err(PathError::Sensitive(given.to_owned()));
        }
        let fd = match place.folders.pop() {
            Some((_, fd)) => fd,
            None => rustix::fs::openat(&self.dir, ".", FOLDER, Mode::empty())
                .map_err(|e| PathError::io(given, e))?,
        };
        Ok((fd, relative))
    }

    /// Resolves a path to its place relative to the root. For a path that does not exist yet, the
    /// nearest existing parent is resolved.
    ///
    /// # Errors
    /// [`PathError`] when the path leads outside or cannot be resolved.
    pub fn locate(&self, given: &str) -> Result<PathBuf, PathError> {
        let path = self.relative(given)?;
        self.locate_relative(given, path)
    }

    /// As [`Self::locate`], for a path that need not be text.
    #[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
    pub(super) fn locate_path(&self, path: &Path) -> Result<PathBuf, PathError> {
        let given = path.to_string_lossy();
        let path = match path.is_absolute() {
            true => self.beneath(path),
            false => Some(path),
        };
        match path {
            Some(path) => self.locate_relative(&given, path.to_owned()),
            None => Err(PathError::Outside(given.into_owned())),
        }
    }

    fn locate_relative(&self, given: &str, path: PathBuf) -> Result<PathBuf, PathError> {
        let mut missing = Vec::new();
        let mut here = path.as_path();
        loop {
            match self.resolve(given, here) {
                Ok(place) => {
                    let mut found = place.relative();
                    found.extend(missing.iter().rev());
                    return Ok(found);
                }
                // The nearest existing parent decides; a missing folder contains no links.
                Err(PathError::NotFound(_)) => match (here.file_name(), here.parent()) {
                    (Some(name), Some(parent)) => {
                        missing.push(name.to_owned());
                        here = parent;
                    }
                    _ => return Err(PathError::NotFound(given.to_owned())),
                },
                Err(error) => return Err(error),
            }
        }
    }

    /// Walks the path name by name. No descriptor is opened through a link: a link is read, and the
    /// names of its target are walked instead.
    fn resolve(&self, given: &str, path: &Path) -> Result<Place, PathError> {
        // `todo` holds the remaining names, the next one last; `place.folders` holds the descriptors
        // of the folders walked so far. A link pushes the names of its target onto `todo`, and `..`
        // pops a descriptor, so a path can leave the root only by an empty stack. If the type of a
        // name changes between `statat` and the open, the name is pushed back and checked again.
        let mut todo: Vec<OsString> = Vec::new();
        push_parts(&mut todo, path);
        let mut place = Place {
            folders: Vec::new(),
            leaf: None,
        };
        let mut links = 0;
        let mut changes = 0;
        while let Some(name) = todo.pop() {
            if name == ".." {
                if place.folders.pop().is_none() {
                    return Err(PathError::Outside(given.to_owned()));
                }
                continue;
            }
            let here = place.folder(self);
            let stat = match rustix::fs::statat(here, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) if todo.is_empty() => {
                    place.leaf = Some((name, None));
                    return Ok(place);
                }
                Err(errno) => return Err(PathError::io(given, errno)),
            };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory if place.folders.len() >= DEPTH_MAX => {
                    return Err(PathError::Invalid(given.to_owned()));
                }
                FileType::Directory => match rustix::fs::openat(here, &name, FOLDER, Mode::empty())
                {
                    Ok(fd) => place.folders.push((name, fd)),
                    // It was a folder a moment ago, so check it again.
                    Err(Errno::LOOP | Errno::NOTDIR) if changes < CHANGES_MAX => {
                        changes += 1;
                        todo.push(name);
                    }
                    Err(errno) => return Err(PathError::io(given, errno)),
                },
                FileType::Symlink => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(PathError::TooManyLinks(given.to_owned()));
                    }
                    let target = match rustix::fs::readlinkat(here, &name, Vec::new()) {
                        Ok(target) => PathBuf::from(OsString::from_vec(target.into_bytes())),
                        Err(Errno::INVAL) if changes < CHANGES_MAX => {
                            changes += 1;
                            todo.push(name);
                            continue;
                        }
                        Err(errno) => return Err(PathError::io(given, errno)),
                    };
                    if target.is_absolute() {
                        let inside = self
                            .beneath(&target)
                            .ok_or_else(|| PathError::Outside(given.to_owned()))?;
                        place.folders.clear();
                        push_parts(&mut todo, inside);
                    } else {
                        push_parts(&mut todo, &target);
                    }
                }
                kind if todo.is_empty() => place.leaf = Some((name, Some(kind))),
                _ => return Err(PathError::NotAFolder(given.to_owned())),
            }
        }
        Ok(place)
    }
}

fn push_parts(todo: &mut Vec<OsString>, path: &Path) {
    todo.extend(path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    }));
}

pub(super) fn name_of(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a folder",
        FileType::Symlink => "a link",
        FileType::Fifo => "a fifo",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Unknown => "of an unknown kind",
    }
}

/// The path as text for a model, with invalid UTF-8 replaced.
pub(crate) fn shown(path: &Path) -> String {
    if path.as_os_str().as_bytes().is_empty() {
        ".".to_owned()
    } else {
        path.to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn next(state: &mut u64) -> usize {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as usize
    }

    /// A random path of pieces that lead inside and outside.
    fn path(state: &mut u64, root: &Path) -> String {
        const PIECES: &[&str] = &[
            "a", "b", "c", "..", "..", ".", "", "...", "..f", "f", "l0", "l1", "l2", "l3",
            "outside", "root",
        ];
        let parts: Vec<&str> = (0..1 + next(state) % 5)
            .map(|_| PIECES[next(state) % PIECES.len()])
            .collect();
        let absolute = match next(state) % 6 {
            0 => format!("{}/", root.display()),
            1 => "/".to_owned(),
            _ => String::new(),
        };
        absolute + &parts.join("/")
    }

    #[test]
    fn whatever_opens_lies_inside_and_both_ways_agree() {
        let start = next(&mut u64::from(std::process::id()).clone()) as u64;
        for seed in (0..callboard_actors::testing::TestSize::pick(20, 60, 60))
            .map(|n| start.wrapping_add(n))
        {
            let mut state = seed;
            let folder = tempfile::tempdir().unwrap();
            let real = folder.path().canonicalize().unwrap().join("root");
            for name in ["a/b/c", "b", "a/root"] {
                std::fs::create_dir_all(real.join(name)).unwrap();
            }
            std::fs::create_dir(folder.path().join("a")).unwrap();
            for name in ["f", "a/f", "a/b/..f", "b/...", "b/c"] {
                std::fs::write(real.join(name), "inside").unwrap();
            }
            for name in ["f", "outside", "a/f"] {
                std::fs::write(folder.path().join(name), "outside").unwrap();
            }
            for link in ["l0", "l1", "a/l2", "a/b/l3", "b/l0"] {
                let target = path(&mut state, &real);
                std::os::unix::fs::symlink(
                    if target.is_empty() { "." } else { &target },
                    real.join(link),
                )
                .unwrap();
            }
            let root = Root::open(&real, PathRules::default()).unwrap();

            for _ in 0..200 {
                let given = path(&mut state, &real);
                let opened = root.open_file(&given).map(|mut opened| {
                    let mut text = String::new();
                    opened.file.read_to_string(&mut text).unwrap();
                    (opened.relative, text)
                });
                let walked = root
                    .relative(&given)
                    .and_then(|path| root.resolve(&given, &path))
                    .and_then(|place| {
                        root.open_leaf(&given, &place)?;
                        Ok((place.relative(), "inside".to_owned()))
                    });

                assert_eq!(opened, walked, "seed {seed}: {given:?}");
                // The system refuses `file/`, which is accepted as `file` here. Otherwise both name
                // the same place.
                if let (Ok((relative, _)), Ok(expected)) =
                    (&opened, real.join(&given).canonicalize())
                {
                    assert_eq!(expected, real.join(relative), "seed {seed}: {given:?}");
                }
            }
        }
    }

    #[test]
    fn a_root_that_is_moved_is_still_the_root() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("one")).unwrap();
        std::fs::write(folder.path().join("one/f"), "first").unwrap();
        let root = Root::open(folder.path().join("one"), PathRules::default()).unwrap();

        std::fs::rename(folder.path().join("one"), folder.path().join("two")).unwrap();
        std::fs::create_dir(folder.path().join("one")).unwrap();
        std::fs::write(folder.path().join("one/f"), "second").unwrap();

        let mut text = String::new();
        root.open_file("f")
            .unwrap()
            .file
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "first");
    }
}
