//! The folders in which notices lie, and their files. A notice is left in every usable folder, so that
//! two processes know of each other if they share one of them, whatever another user did to the others.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::File,
    io::{BufRead, BufReader, Read, Seek, SeekFrom, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use rustix::{
    fs::{AtFlags, FlockOperation, Mode, OFlags, flock},
    io::Errno,
};

use crate::sandbox::fs::{guard::found::names_of, jail::FOLDER};

/// Bytes of a notice that are read. A thousand files take a tenth of a megabyte.
const BYTES_MAX: u64 = 16 << 20;

/// Bytes of the first line of a notice.
const HEAD_MAX: u64 = 1 << 20;

/// Age from which an unlocked notice is removed, whatever its workspace. No search takes so long.
const AGE_MAX: Duration = Duration::from_hours(1);

/// Beginning of the names of files that are being written.
const UNFINISHED: &str = "new.";

/// Ending of the names of the files that watchdogs keep locked.
const WATCHDOG: &str = ".watchdog";

/// Length of a watchdog's name: a number, and the ending.
const WATCHDOG_LENGTH: usize = 16 + WATCHDOG.len();

/// The folders of notices of this user, the one of its own first.
pub(super) fn folders() -> Vec<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    // Not `XDG_RUNTIME_DIR`: processes with different environments must find the same.
    vec![
        format!("/run/user/{user}/callboard").into(),
        format!("/dev/shm/callboard-{user}").into(),
        format!("/tmp/callboard-{user}").into(),
    ]
}

/// Opens those of the folders that can be used, creating what is missing. None that a command in `root`
/// could write in.
pub(super) fn open_all(folders: &[PathBuf], root: Option<&Path>) -> Vec<Arc<OwnedFd>> {
    folders
        .iter()
        .filter(|folder| !root.is_some_and(|root| folder.starts_with(root)))
        .filter_map(|folder| open_folder(folder))
        .map(Arc::new)
        .collect()
}

/// Opens a folder of notices, which must be this user's alone.
fn open_folder(path: &Path) -> Option<OwnedFd> {
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(_) => return None,
    }
    let folder = rustix::fs::open(path, FOLDER, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&folder).ok()?;
    let is_own = stat.st_uid == rustix::process::geteuid().as_raw();
    (is_own && stat.st_mode & 0o077 == 0).then_some(folder)
}

/// A file of notices in every folder, locked until it is dropped or its process ends.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) name: OsString,
    files: Vec<(Arc<OwnedFd>, File)>,
    /// Bytes of its content.
    length: u64,
}

impl Left {
    /// `None` if it can be left nowhere.
    pub(super) fn new(folders: &[Arc<OwnedFd>], name: &str, content: &[u8]) -> Option<Self> {
        let files: Vec<_> = folders
            .iter()
            .filter_map(|folder| Some((folder.clone(), leave(folder, name, content)?)))
            .collect();
        (!files.is_empty()).then(|| Self {
            name: name.into(),
            files,
            length: content.len() as u64,
        })
    }

    /// Names the watchdog that sweeps if this process is killed: the notice counts until it has.
    pub(super) fn name_watchdog(&mut self, watchdog: &str) {
        for (_, file) in &mut self.files {
            let written = file
                .seek(SeekFrom::Start(self.length))
                .and_then(|_| file.write_all(format!("{watchdog}\n").as_bytes()));
            if written.is_err() {
                let _ = file.set_len(self.length);
            }
        }
    }

    /// Leaves the files where they are, from now on those of a command that has ended.
    pub(super) fn end(&self) {
        for (_, file) in &self.files {
            let _ = file.set_len(self.length);
            // The time from which it counts as old.
            let _ = file.set_modified(SystemTime::now());
        }
    }

    pub(super) fn remove(&self) {
        for (folder, file) in &self.files {
            // A restarted watchdog has put its own file in place.
            if is_same(folder, &self.name, file) {
                remove(folder, &self.name);
            }
        }
    }

    /// Gives up the locks, as the end of the process does. A child of this process that has not yet
    /// become its program may hold the files open.
    pub(super) fn unlock(&self) {
        for (_, file) in &self.files {
            let _ = flock(file, FlockOperation::Unlock);
        }
    }
}

/// What lies in the folders: the names of notices, each with the folders that have it.
pub(super) struct Listed(BTreeMap<OsString, Vec<Arc<OwnedFd>>>);

impl Listed {
    pub(super) fn new(folders: &[Arc<OwnedFd>]) -> Self {
        let mut all: BTreeMap<OsString, Vec<Arc<OwnedFd>>> = BTreeMap::new();
        for folder in folders {
            for name in names_of(folder) {
                all.entry(name).or_default().push(folder.clone());
            }
        }
        Self(all)
    }

    /// The names of finished files with an ending. One that is being written may not be locked yet.
    pub(super) fn names(&self, ending: &'static str) -> impl Iterator<Item = &OsString> {
        let names = self.0.keys().map(|name| (name, name.as_bytes()));
        names
            .filter(|(_, name)| !name.starts_with(UNFINISHED.as_bytes()))
            .filter(move |(_, name)| name.ends_with(ending.as_bytes()))
            .map(|(name, _)| name)
    }

    fn folders(&self, name: &OsStr) -> impl Iterator<Item = &Arc<OwnedFd>> {
        self.0.get(name).into_iter().flatten()
    }

    /// Whether the search or command of a notice goes on, or a watchdog has yet to sweep for it.
    pub(super) fn is_running(&self, name: &OsStr) -> bool {
        self.folders(name).any(|folder| {
            is_locked(folder, name)
                || watchdog_of(folder, name).is_some_and(|watchdog| is_locked(folder, &watchdog))
        })
    }

    /// The first line of a notice.
    pub(super) fn head(&self, name: &OsStr) -> Option<Vec<u8>> {
        let mut file = self.open(name, HEAD_MAX)?;
        let mut head = Vec::new();
        file.read_until(b'\n', &mut head).ok()?;
        Some(head)
    }

    /// The second line of a notice.
    pub(super) fn body(&self, name: &OsStr) -> Option<Vec<u8>> {
        let mut file = self.open(name, BYTES_MAX)?;
        let mut line = Vec::new();
        for _ in 0..2 {
            line.clear();
            file.read_until(b'\n', &mut line).ok()?;
        }
        Some(line)
    }

    fn open(&self, name: &OsStr, bytes_max: u64) -> Option<BufReader<std::io::Take<File>>> {
        let file = self.folders(name).find_map(|folder| open(folder, name))?;
        Some(BufReader::new(file.take(bytes_max)))
    }

    /// Whether a notice is still there.
    pub(super) fn is_there(&self, name: &OsStr) -> bool {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        self.folders(name)
            .any(|folder| rustix::fs::statat(folder, name, flags).is_ok())
    }

    pub(super) fn remove(&self, name: &OsStr) {
        self.folders(name).for_each(|folder| remove(folder, name));
    }

    /// Removes what processes that are gone have left long ago.
    pub(super) fn remove_old(&self) {
        let is_old = |file: &File| {
            let changed = file.metadata().and_then(|metadata| metadata.modified());
            let age = changed.map(|changed| SystemTime::now().duration_since(changed));
            matches!(age, Ok(Ok(age)) if age > AGE_MAX)
        };
        for (name, folders) in &self.0 {
            let is_old = |folder: &Arc<OwnedFd>| open(folder, name).is_some_and(|it| is_old(&it));
            if folders.iter().any(is_old) && !self.is_running(name) {
                self.remove(name);
            }
        }
    }
}

/// A name for the file that a watchdog keeps locked.
pub(super) fn watchdog_name() -> Option<String> {
    Some(format!("{:016x}{WATCHDOG}", getrandom::u64().ok()?))
}

/// The watchdog that a notice names in its last line.
fn watchdog_of(folder: &OwnedFd, name: &OsStr) -> Option<OsString> {
    let mut file = open(folder, name)?;
    let mut line = [0; WATCHDOG_LENGTH + 2];
    file.seek(SeekFrom::End(-i64::try_from(line.len()).ok()?))
        .ok()?;
    file.read_exact(&mut line).ok()?;
    let name = line.strip_prefix(b"\n")?.strip_suffix(b"\n")?;
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'.';
    (name.ends_with(WATCHDOG.as_bytes()) && name.iter().all(is_plain))
        .then(|| OsStr::from_bytes(name).to_owned())
}

/// Creates a file under a name of its own, locks it, and gives it its name.
fn leave(folder: &OwnedFd, name: &str, content: &[u8]) -> Option<File> {
    let unfinished = format!("{UNFINISHED}{name}");
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let file = rustix::fs::openat(folder, &unfinished, flags, mode).ok()?;
    let mut file = File::from(file);
    let written = flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(std::io::Error::from)
        .and_then(|()| file.write_all(content))
        .and_then(|()| {
            rustix::fs::renameat(folder, &unfinished, folder, name).map_err(std::io::Error::from)
        });
    if written.is_err() {
        remove(folder, OsStr::new(&unfinished));
    }
    written.is_ok().then_some(file)
}

fn open(folder: &OwnedFd, name: &OsStr) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(folder.as_fd(), name, flags, Mode::empty())
        .ok()
        .map(File::from)
}

/// Whether a process holds the lock of a file. Those that ask share the lock, so that they do not take
/// each other for the owner.
fn is_locked(folder: &OwnedFd, name: &OsStr) -> bool {
    open(folder, name).is_some_and(|file| {
        matches!(
            flock(&file, FlockOperation::NonBlockingLockShared),
            Err(Errno::WOULDBLOCK)
        )
    })
}

fn is_same(folder: &OwnedFd, name: &OsStr, file: &File) -> bool {
    let there = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    let own = rustix::fs::fstat(file);
    matches!((there, own), (Ok(there), Ok(own)) if (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino))
}

fn remove(folder: &OwnedFd, name: &OsStr) {
    let _ = rustix::fs::unlinkat(folder, name, AtFlags::empty());
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn a_folder_that_is_not_the_users_alone_or_lies_in_the_workspace_is_not_used() {
        let top = tempfile::tempdir().unwrap();
        let at = |name: &str| top.path().join(name);
        fs::create_dir(at("open")).unwrap();
        fs::set_permissions(at("open"), fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(at("new"), at("link")).unwrap();
        fs::write(at("file"), "").unwrap();
        let folders = ["open", "link", "file", "missing/x", "new"].map(at);

        assert_eq!(open_all(&folders, None).len(), 1);
        assert!(at("new").is_dir());
        assert!(open_all(&folders, Some(top.path())).is_empty());
        assert!(open_all(&self::folders(), Some(Path::new("/"))).is_empty());
    }
}
