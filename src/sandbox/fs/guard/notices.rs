//! Notices that guards of one workspace leave for each other, in this process and in others of the same
//! user: a file for each search and for each command that runs. A file that a command created while
//! another guard searched is then not taken for the user's.
//!
//! A notice is locked for as long as its search or command goes on, so that one whose process was killed
//! is known by its missing lock. No command can reach the folder of notices: it lies outside of what a
//! boundary shows.
//!
//! **Why no command is missed.** A command leaves its notice after its own search and before it begins,
//! and it gives up the lock after its sweep. A search leaves a notice first, then notes which commands
//! have ended by then, searches, and reads the notices of all other commands. A command that ends in the
//! meantime sees the search's notice and leaves its own in place for it.
//!
//! Limits: only processes of the same user that share `/dev/shm` (or `/tmp`, if that is missing) know of
//! each other, not two containers over one volume. Where no notice can be left, commands run without.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fs::File,
    io::{Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use rustix::{
    fs::{AtFlags, FlockOperation, Mode, OFlags, flock},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use super::{
    found::{Changed, Identity, names_of},
    known::{Known, WrittenKnown},
};
use crate::sandbox::{PathRules, fs::jail::FOLDER};

/// Folders in which notices may be left, the first that can be used. Processes with different
/// environments must find the same one.
const PLACES: [&str; 2] = ["/dev/shm", "/tmp"];

/// Bytes of a notice that are read. A thousand files take a tenth of a megabyte.
const BYTES_MAX: u64 = 16 << 20;

/// Age from which an unlocked notice is removed, whatever its workspace. No search takes so long.
const AGE_MAX: Duration = Duration::from_hours(1);

/// Endings of the names of notices.
const SEARCH: &str = "search";
const COMMAND: &str = "command";
const MADE: &str = "made";

/// A command whose mounts are made, in a notice.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::sandbox) struct Made {
    /// A process in its mount namespace.
    pub(in crate::sandbox) pid: i32,
    /// Where it sees the workspace.
    pub(in crate::sandbox) place: PathBuf,
    /// The namespace, as the kernel calls it.
    pub(in crate::sandbox) mounts: PathBuf,
}

/// [`Made`], with the namespace in which its number counts.
#[derive(Serialize, Deserialize)]
struct WrittenMade {
    made: Made,
    numbers: PathBuf,
}

/// What a command's guard knew before the command.
#[derive(Debug)]
pub(super) struct Running {
    known: Known,
    rules: PathRules,
}

/// [`Running`] in a notice.
#[derive(Serialize, Deserialize)]
struct WrittenRunning {
    known: WrittenKnown,
    rules: PathRules,
}

impl Running {
    /// Whether the file did not come from this command. A file that the guard of this command did not
    /// look for, since only the rules of the asking guard name it, counts as the user's.
    pub(super) fn vouches(
        &self,
        rules: &PathRules,
        path: &Path,
        own: Identity,
        changed: Option<Changed>,
    ) -> bool {
        let names = |rules: &PathRules| rules.is_protected(path) || rules.is_sensitive(path);
        self.known.has(own, changed)
            || (self.rules != *rules
                && if names(rules) {
                    !names(&self.rules)
                } else {
                    // Git's configuration names it, perhaps only that of the other account.
                    self.rules.home != rules.home || self.rules.git_config != rules.git_config
                })
    }
}

/// The notices about one workspace, as one guard leaves and reads them.
#[derive(Debug)]
pub(super) struct Notices {
    folder: Arc<OwnedFd>,
    /// What the names of notices about this workspace begin with.
    root: String,
    /// The same for those of this guard.
    own: String,
    next: AtomicU64,
}

/// A notice, locked until it is dropped.
#[derive(Debug)]
pub(in crate::sandbox) struct Notice {
    folder: Arc<OwnedFd>,
    name: OsString,
    file: File,
    /// For a command's: what the names of notices about its workspace, and of those of its guard, begin
    /// with.
    of_command: Option<(String, String)>,
}

/// The notice of a search.
#[derive(Debug)]
pub(in crate::sandbox) struct Searching {
    _notice: Option<Notice>,
    /// Commands that had ended before the search began.
    ended: BTreeSet<OsString>,
    /// Of these, the notices about their mounts.
    ended_made: BTreeSet<OsString>,
    /// Whether a command of another guard was running.
    pub(super) has_others: bool,
}

impl Notices {
    /// `None` where no notice can be left.
    pub(super) fn of(root: &Path, identity: Identity) -> Option<Self> {
        let user = rustix::process::geteuid().as_raw();
        let places = PLACES.iter().map(Path::new);
        let folder = places
            .filter(|place| !place.starts_with(root))
            .find_map(|place| open_folder(&place.join(format!("callboard-{user}"))))?;
        let root = format!("{:x}-{:x}.", identity.0, identity.1);
        Some(Self {
            folder: Arc::new(folder),
            own: format!("{root}{:016x}.", getrandom::u64().ok()?),
            root,
            next: AtomicU64::new(0),
        })
    }

    /// Begins a search.
    pub(super) fn search(&self) -> Searching {
        let notice = self.leave(SEARCH, b"");
        let split = |ending| -> (Vec<OsString>, Vec<OsString>) {
            self.names(ending)
                .partition(|name| !is_locked(&self.folder, name))
        };
        let (ended_made, _) = split(MADE);
        let (ended, running) = split(COMMAND);
        // Before the names of searches are read: these commands ended before any later search began.
        self.clear(ended.iter().chain(&ended_made));
        Searching {
            _notice: notice,
            ended: ended.into_iter().collect(),
            ended_made: ended_made.into_iter().collect(),
            has_others: !running.is_empty(),
        }
    }

    /// The commands of other guards that ran during a search. One that began after its folders were
    /// read may be among them.
    pub(super) fn others(&self, searching: &Searching) -> Vec<Running> {
        self.names(COMMAND)
            .filter(|name| !searching.ended.contains(name))
            .filter_map(|name| match self.read(&name) {
                Some(running) => Some(running),
                // Its command has ended. What cannot be read otherwise vouches for nothing.
                None if !self.is_there(&name) => None,
                None => Some(Running {
                    known: Known::default(),
                    rules: PathRules::default(),
                }),
            })
            .collect()
    }

    /// The commands of other guards whose mounts are made, and whether one of them has ended since a search
    /// began or since this was last asked for it.
    pub(super) fn made(&self, searching: &mut Searching) -> (Vec<Made>, bool) {
        let mut has_ended = false;
        let mut running = Vec::new();
        for name in self.names(MADE) {
            if searching.ended_made.contains(&name) {
                continue;
            }
            if is_locked(&self.folder, &name) {
                running.extend(self.read_made(&name));
            } else {
                searching.ended_made.insert(name);
                has_ended = true;
            }
        }
        (running, has_ended)
    }

    /// `None` also for a command in a container with other process numbers.
    fn read_made(&self, name: &OsStr) -> Option<Made> {
        let mut text = Vec::new();
        let file = open(&self.folder, name)?;
        file.take(BYTES_MAX).read_to_end(&mut text).ok()?;
        let written: WrittenMade = serde_json::from_slice(&text).ok()?;
        (written.numbers == numbers()?).then_some(written.made)
    }

    /// Leaves the notice of a command whose mounts are made.
    pub(super) fn leave_made(&self, made: Made) -> Option<Notice> {
        let numbers = numbers()?;
        let written = WrittenMade { made, numbers };
        let mut notice = self.leave(MADE, &serde_json::to_vec(&written).ok()?)?;
        notice.of_command = Some((self.root.clone(), self.own.clone()));
        Some(notice)
    }

    /// Leaves the notice of a command that is about to begin.
    pub(super) fn command(&self, known: &Known, rules: &PathRules) -> Option<Notice> {
        let written = WrittenRunning {
            known: known.into(),
            rules: rules.clone(),
        };
        let mut notice = self.leave(COMMAND, &serde_json::to_vec(&written).ok()?)?;
        notice.of_command = Some((self.root.clone(), self.own.clone()));
        Some(notice)
    }

    /// Names of the notices about this workspace that other guards have left.
    fn names(&self, ending: &'static str) -> impl Iterator<Item = OsString> + '_ {
        names(&self.folder, &self.root, &self.own, ending)
    }

    fn is_there(&self, name: &OsStr) -> bool {
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::statat(&self.folder, name, flags).is_ok()
    }

    fn read(&self, name: &OsStr) -> Option<Running> {
        let file = open(&self.folder, name)?;
        let mut text = Vec::new();
        file.take(BYTES_MAX).read_to_end(&mut text).ok()?;
        let written: WrittenRunning = serde_json::from_slice(&text).ok()?;
        Some(Running {
            known: written.known.into(),
            rules: written.rules,
        })
    }

    fn leave(&self, ending: &str, content: &[u8]) -> Option<Notice> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}{number}.{ending}", self.own);
        let unfinished = format!("new.{name}");
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(&self.folder, &unfinished, flags, mode).ok()?;
        let mut file = File::from(file);
        let written = flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(std::io::Error::from)
            .and_then(|()| file.write_all(content))
            .and_then(|()| {
                rustix::fs::renameat(&self.folder, &unfinished, &self.folder, &name)
                    .map_err(std::io::Error::from)
            });
        if written.is_err() {
            remove(&self.folder, OsStr::new(&unfinished));
            return None;
        }
        Some(Notice {
            folder: self.folder.clone(),
            name: name.into(),
            file,
            of_command: None,
        })
    }

    /// Removes notices of commands that have ended, and those whose process is gone. Nothing is removed
    /// that a search in progress may need.
    fn clear<'a>(&self, ended: impl Iterator<Item = &'a OsString>) {
        let mut is_searched = false;
        for name in self.names(SEARCH) {
            if is_locked(&self.folder, &name) {
                is_searched = true;
            } else {
                remove(&self.folder, &name);
            }
        }
        if !is_searched {
            ended.for_each(|name| remove(&self.folder, name));
        }
        let is_old = |file: &File| {
            let changed = file.metadata().and_then(|metadata| metadata.modified());
            let age = changed.map(|changed| SystemTime::now().duration_since(changed));
            matches!(age, Ok(Ok(age)) if age > AGE_MAX)
        };
        names_of(&self.folder)
            .iter()
            .filter(|name| open(&self.folder, name).is_some_and(|file| is_old(&file)))
            .filter(|name| !is_locked(&self.folder, name))
            .for_each(|name| remove(&self.folder, name));
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        let is_needed = self.of_command.as_ref().is_some_and(|(root, own)| {
            names(&self.folder, root, own, SEARCH).any(|name| is_locked(&self.folder, &name))
        });
        if is_needed {
            // The time from which it counts as old.
            let _ = self.file.set_modified(SystemTime::now());
        } else {
            remove(&self.folder, &self.name);
        }
        // A child of this process that has not yet become its program may hold the file open.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Opens the folder of notices, which must be this user's alone.
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

/// Names of notices about a workspace (`root`) that other guards than `own` have left.
fn names<'a>(
    folder: &OwnedFd,
    root: &'a str,
    own: &'a str,
    ending: &'static str,
) -> impl Iterator<Item = OsString> + use<'a> {
    names_of(folder).into_iter().filter(move |name| {
        let name = name.as_bytes();
        name.starts_with(root.as_bytes())
            && !name.starts_with(own.as_bytes())
            && name.ends_with(ending.as_bytes())
    })
}

fn open(folder: &OwnedFd, name: &OsStr) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(folder.as_fd(), name, flags, Mode::empty())
        .ok()
        .map(File::from)
}

/// Whether the search or command of a notice goes on. Those that ask share the lock, so that they do not
/// take each other for the owner.
fn is_locked(folder: &OwnedFd, name: &OsStr) -> bool {
    open(folder, name).is_some_and(|file| {
        matches!(
            flock(&file, FlockOperation::NonBlockingLockShared),
            Err(Errno::WOULDBLOCK)
        )
    })
}

/// The namespace of this process's numbers.
fn numbers() -> Option<PathBuf> {
    std::fs::read_link("/proc/self/ns/pid").ok()
}

fn remove(folder: &OwnedFd, name: &OsStr) {
    let _ = rustix::fs::unlinkat(folder, name, AtFlags::empty());
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::Arc};

    use super::*;
    use crate::sandbox::fs::{Root, guard::Guard};

    fn guard(folder: &Path, rules: PathRules) -> Arc<Guard> {
        Guard::new(Arc::new(Root::open(folder, rules).unwrap()))
    }

    fn notices(folder: &Path) -> Notices {
        let root = Root::open(folder, PathRules::default()).unwrap();
        let identity = super::super::identity_of_root(&root).unwrap();
        Notices::of(root.real_path(), identity).unwrap()
    }

    #[test]
    fn what_a_command_under_one_guard_creates_is_not_the_users_under_another() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        fs::write(at(".envrc"), "the user's").unwrap();
        fs::create_dir(at("sub")).unwrap();
        let (one, two) = (
            guard(folder.path(), PathRules::default()),
            guard(folder.path(), PathRules::default()),
        );

        let first = one.search().unwrap();
        fs::write(at("sub/.envrc"), "evil").unwrap();
        let second = two.search().unwrap();
        fs::rename(at("sub/.envrc"), at("stash")).unwrap();
        assert_eq!(first.end(), Vec::<String>::new());
        fs::rename(at("stash"), at("sub/.envrc")).unwrap();

        assert_eq!(second.end().len(), 1);
        assert!(!at("sub/.envrc").exists() && at(".envrc").exists());
        assert_eq!(one.search().unwrap().end(), Vec::<String>::new());
    }

    #[test]
    fn a_file_that_only_the_rules_of_one_guard_name_stays_the_users() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("skills")).unwrap();
        let rules =
            PathRules::default().and_protected(folder.path(), &folder.path().join("skills"));
        let (one, two) = (
            guard(folder.path(), PathRules::default()),
            guard(folder.path(), rules),
        );

        let _first = one.search().unwrap();

        assert_eq!(two.search().unwrap().end(), Vec::<String>::new());
        assert!(folder.path().join("skills").exists());
    }

    #[test]
    fn a_command_that_ends_during_a_search_is_known_to_it_and_to_no_later_one() {
        let folder = tempfile::tempdir().unwrap();
        let guard = guard(folder.path(), PathRules::default());
        let command = guard.search().unwrap();
        let notices = notices(folder.path());

        let searching = notices.search();
        assert!(searching.has_others);
        command.end();

        assert_eq!(notices.others(&searching).len(), 1);
        drop(searching);
        let searching = notices.search();
        assert!(!searching.has_others);
        assert!(notices.others(&searching).is_empty());
        assert_eq!(notices.names(COMMAND).count(), 0, "it is removed");
    }

    #[test]
    fn the_notices_of_a_killed_process_count_no_longer() {
        let folder = tempfile::tempdir().unwrap();
        let dead = notices(folder.path());
        let notices = notices(folder.path());
        let command = dead
            .command(&Known::default(), &PathRules::default())
            .unwrap();
        let search = dead.search();

        // What a kill leaves: the files, without the locks.
        for notice in [Some(&command), search._notice.as_ref()]
            .into_iter()
            .flatten()
        {
            flock(&notice.file, FlockOperation::Unlock).unwrap();
        }

        let searching = notices.search();
        assert!(!searching.has_others && notices.others(&searching).is_empty());
        assert_eq!(
            notices.names(COMMAND).count() + notices.names(SEARCH).count(),
            0
        );
    }

    #[test]
    fn no_notice_lies_in_the_workspace() {
        let identity = (1, 2);
        assert!(Notices::of(Path::new("/"), identity).is_none());
        let folder = tempfile::tempdir().unwrap();
        assert!(open_folder(&folder.path().join("callboard")).is_some());
        fs::create_dir(folder.path().join("open")).unwrap();
        fs::set_permissions(
            folder.path().join("open"),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .unwrap();
        assert!(open_folder(&folder.path().join("open")).is_none());
    }
}
