//! Notices that guards leave for each other, in this process and in others of the same user: a file for
//! each search and for each command that runs. A file that a command created while another guard
//! searched is then not taken for the user's. Guards of one workspace know of each other, and those of
//! workspaces of which one contains the other.
//!
//! A notice is locked for as long as its search or command goes on, so that one whose process was killed
//! is known by its missing lock. The notice of a command whose process was killed counts until the
//! watchdog has swept for it: that keeps a file locked, which the notice names. No command can reach the
//! folders of notices: they lie outside of what a boundary shows.
//!
//! # Layout
//! `places` are the folders and files · `position` compares workspaces.
//!
//! **Why no command is missed.** A command leaves its notice after its own search and before it begins,
//! and it gives up the lock after its sweep. A search leaves a notice first, then notes which commands
//! have ended by then, searches, and reads the notices of all other commands. A command that ends in the
//! meantime sees the search's notice and leaves its own in place for it.
//!
//! Limits: only processes of the same user that share one of the folders know of each other, not two
//! containers over one volume. Where no notice can be left, commands run without.

mod places;
mod position;

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};

use super::{
    found::{Changed, FileStatus, Identity},
    known::{Known, WrittenKnown},
};
use crate::sandbox::{PathRules, fs::Root};
use places::{Left, Listed};
use position::{Place, Position, Relation};

/// Endings of the names of notices.
const SEARCH: &str = ".search";
const COMMAND: &str = ".command";
const MADE: &str = ".made";

/// By how much the last change of a file must be older than a command, so that it cannot be from it: the
/// clocks of file systems tick in seconds at worst.
const SETTLED: Duration = Duration::from_secs(3);

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
#[derive(Debug, Clone)]
pub(super) struct Running {
    pub(super) known: Arc<Known>,
    pub(super) rules: Arc<PathRules>,
    /// Where the command's workspace lies; `None` for that of the asking guard.
    relation: Option<Relation>,
    began: SystemTime,
}

/// [`Running`] in a notice.
#[derive(Serialize, Deserialize)]
struct WrittenRunning {
    known: WrittenKnown,
    rules: PathRules,
    began: SystemTime,
}

impl Running {
    /// A command of the asking guard.
    pub(super) fn own(known: Arc<Known>, rules: Arc<PathRules>) -> Self {
        Self {
            known,
            rules,
            relation: None,
            began: SystemTime::UNIX_EPOCH,
        }
    }

    /// Whether the file did not come from this command. A file that the guard of this command did not
    /// look for, since only the rules of the asking guard name it, counts as the user's.
    pub(super) fn vouches(
        &self,
        root: &Root,
        rules: &PathRules,
        path: &Path,
        own: Identity,
        changed: Option<Changed>,
    ) -> bool {
        let relation = self.relation.as_ref().unwrap_or(&Relation::Same);
        let place = match relation.place(path) {
            Place::Outside => return true,
            Place::Unknown => return self.known.has(own, changed),
            Place::At(place) => place,
        };
        let names =
            |rules: &PathRules, path: &Path| rules.is_protected(path) || rules.is_sensitive(path);
        self.known.has(own, changed)
            // The guards of two workspaces find different files by links and git's configurations.
            || (*relation != Relation::Same && self.is_older(root, path))
            || (*self.rules != *rules
                && if names(rules, path) {
                    !names(&self.rules, &place)
                } else {
                    // Git's configuration names it, perhaps only that of the other account.
                    self.rules.home != rules.home || self.rules.git_config != rules.git_config
                })
    }

    /// Whether a file and the folders above it were changed last before the command began.
    fn is_older(&self, root: &Root, path: &Path) -> bool {
        path.ancestors()
            .filter(|part| !part.as_os_str().is_empty())
            .all(|part| {
                let status = FileStatus::at(root.dir.as_fd(), part);
                let Ok(Ok(seconds)) = status.map(|status| u64::try_from(status.changed.0)) else {
                    return false;
                };
                let changed = Duration::from_secs(seconds);
                SystemTime::UNIX_EPOCH + changed + SETTLED < self.began
            })
    }
}

/// The notices that concern one workspace, as one guard leaves and reads them.
#[derive(Debug)]
pub(super) struct Notices {
    folders: Vec<PathBuf>,
    /// What the names of this guard's notices begin with.
    own: String,
    next: AtomicU64,
}

/// A notice, locked until it is dropped.
#[derive(Debug)]
pub(in crate::sandbox) struct Notice {
    left: Left,
    /// For a command's: where its workspace lies, and the names of its guard's notices.
    of_command: Option<(Vec<PathBuf>, PathBuf, Position)>,
    /// Whether a watchdog sweeps for the command unless [`Notice::end`] is called.
    is_watched: bool,
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

/// Why commands in a workspace do not know of those of other processes; `None` if they do.
pub(crate) fn why_no_notices(root: &Root) -> Option<String> {
    why_none_in(&places::folders(), root)
}

fn why_none_in(folders: &[PathBuf], root: &Root) -> Option<String> {
    if !places::open_all(folders, Some(root.real_path())).is_empty() {
        return None;
    }
    let names: Vec<String> = folders
        .iter()
        .filter(|folder| !folder.starts_with(root.real_path()))
        .map(|folder| folder.display().to_string())
        .collect();
    Some(if names.is_empty() {
        "commands here do not know of those of other processes in the same folder: the workspace contains the \
         folders of notices; choose a smaller one"
            .to_owned()
    } else {
        format!(
            "commands here do not know of those of other processes in the same folder: none of {} belongs to you \
             alone; remove what another user has put there",
            names.join(", ")
        )
    })
}

impl Notices {
    /// `None` where there is no chance.
    pub(super) fn new() -> Option<Self> {
        Self::in_folders(places::folders())
    }

    fn in_folders(folders: Vec<PathBuf>) -> Option<Self> {
        Some(Self {
            folders,
            own: format!("{:016x}.", getrandom::u64().ok()?),
            next: AtomicU64::new(0),
        })
    }

    /// Opened again each time: a folder that another user had taken may have become free.
    fn open(&self, root: &Root) -> Vec<Arc<OwnedFd>> {
        places::open_all(&self.folders, Some(root.real_path()))
    }

    /// Begins a search.
    pub(super) fn search(&self, root: &Root) -> Option<Searching> {
        let folders = self.open(root);
        let position = Position::of(root)?;
        let notice = self.leave(&folders, SEARCH, &position, b"");
        let listed = Listed::new(&folders);
        let (running, ended): (Vec<&OsString>, Vec<&OsString>) = self
            .of_others(&listed, COMMAND)
            .partition(|name| listed.is_running(name));
        let (_, ended_made): (Vec<&OsString>, Vec<&OsString>) = self
            .of_others(&listed, MADE)
            .partition(|name| listed.is_running(name));
        // Before the names of searches are read: these commands ended before any later search began.
        let all_ended: Vec<&OsString> = ended.iter().chain(&ended_made).copied().collect();
        clear(&folders, notice.as_ref(), &all_ended);
        let concerns = |name: &&OsString| {
            position_of(&listed, name).is_some_and(|other| position.is_related(&other))
        };
        Some(Searching {
            _notice: notice,
            has_others: running.iter().any(concerns),
            ended: ended.into_iter().cloned().collect(),
            ended_made: ended_made.into_iter().cloned().collect(),
        })
    }

    /// The commands of other guards that ran during a search. One that began after its folders were
    /// read may be among them.
    pub(super) fn others(&self, root: &Root, searching: &Searching) -> Vec<Running> {
        let Some(position) = Position::of(root) else {
            return Vec::new();
        };
        let listed = Listed::new(&self.open(root));
        self.of_others(&listed, COMMAND)
            .filter(|name| !searching.ended.contains(*name))
            .filter_map(|name| {
                let other = position_of(&listed, name)?;
                let relation = position.relation(root, &other)?;
                let body = listed.body(name).unwrap_or_default();
                match serde_json::from_slice::<WrittenRunning>(&body) {
                    Ok(written) => Some(Running {
                        known: Arc::new(written.known.into()),
                        rules: Arc::new(written.rules),
                        relation: Some(relation),
                        began: written.began,
                    }),
                    // Its command has ended. What cannot be read otherwise vouches for nothing.
                    Err(_) if !listed.is_there(name) => None,
                    Err(_) => Some(Running {
                        relation: Some(Relation::Moved),
                        ..Running::own(Arc::default(), Arc::default())
                    }),
                }
            })
            .collect()
    }

    /// The commands of other guards whose mounts are made, and whether one of them has ended since a search
    /// began or since this was last asked for it.
    pub(super) fn made(&self, root: &Root, searching: &mut Searching) -> (Vec<Made>, bool) {
        let Some(position) = Position::of(root) else {
            return (Vec::new(), false);
        };
        let listed = Listed::new(&self.open(root));
        let mut has_ended = false;
        let mut running = Vec::new();
        for name in self.of_others(&listed, MADE) {
            if searching.ended_made.contains(name) {
                continue;
            }
            if listed.is_running(name) {
                let is_here = position_of(&listed, name).is_some_and(|other| position == other);
                running.extend(is_here.then(|| read_made(&listed, name)).flatten());
            } else {
                searching.ended_made.insert(name.clone());
                has_ended = true;
            }
        }
        (running, has_ended)
    }

    /// Leaves the notice of a command whose mounts are made.
    pub(super) fn leave_made(&self, root: &Root, made: Made) -> Option<Notice> {
        let numbers = numbers()?;
        let written = serde_json::to_vec(&WrittenMade { made, numbers }).ok()?;
        let position = Position::of(root)?;
        let mut notice = self.leave(&self.open(root), MADE, &position, &written)?;
        notice.of_command = Some((self.folders.clone(), root.real_path().to_owned(), position));
        Some(notice)
    }

    /// Leaves the notice of a command that is about to begin.
    pub(super) fn command(&self, root: &Root, known: &Known, rules: &PathRules) -> Option<Notice> {
        let written = WrittenRunning {
            known: known.into(),
            rules: rules.clone(),
            began: SystemTime::now(),
        };
        let position = Position::of(root)?;
        let body = serde_json::to_vec(&written).ok()?;
        let mut notice = self.leave(&self.open(root), COMMAND, &position, &body)?;
        notice.of_command = Some((self.folders.clone(), root.real_path().to_owned(), position));
        Some(notice)
    }

    /// Names of the notices that other guards have left.
    fn of_others<'a>(
        &'a self,
        listed: &'a Listed,
        ending: &'static str,
    ) -> impl Iterator<Item = &'a OsString> {
        let own = self.own.as_bytes();
        listed
            .names(ending)
            .filter(move |name| !name.as_encoded_bytes().starts_with(own))
    }

    fn leave(
        &self,
        folders: &[Arc<OwnedFd>],
        ending: &str,
        position: &Position,
        body: &[u8],
    ) -> Option<Notice> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}{number}{ending}", self.own);
        let mut content = serde_json::to_vec(position).ok()?;
        content.push(b'\n');
        content.extend_from_slice(body);
        content.push(b'\n');
        Some(Notice {
            left: Left::new(folders, &name, &content)?,
            of_command: None,
            is_watched: false,
        })
    }
}

/// Removes notices of commands that have ended, and those whose process is gone. Nothing is removed
/// that a search in progress, other than the asking one, may need.
fn clear(folders: &[Arc<OwnedFd>], asking: Option<&Notice>, ended: &[&OsString]) {
    let listed = Listed::new(folders);
    let mut searched = Vec::new();
    for name in listed.names(SEARCH) {
        if asking.is_some_and(|asking| asking.left.name == **name) {
            continue;
        }
        if listed.is_running(name) {
            searched.push(position_of(&listed, name));
        } else {
            listed.remove(name);
        }
    }
    for name in ended {
        let position = position_of(&listed, name);
        if !is_needed(&searched, position.as_ref()) {
            listed.remove(name);
        }
    }
    listed.remove_old();
}

/// Whether a search in one of these places concerns a command in this one. One that cannot be read
/// may.
fn is_needed(searched: &[Option<Position>], position: Option<&Position>) -> bool {
    searched.iter().any(|search| match (search, position) {
        (Some(search), Some(position)) => search.is_related(position),
        _ => true,
    })
}

/// `None` also for a command in a container with other process numbers.
fn read_made(listed: &Listed, name: &OsStr) -> Option<Made> {
    let written: WrittenMade = serde_json::from_slice(&listed.body(name)?).ok()?;
    (written.numbers == numbers()?).then_some(written.made)
}

/// The namespace of this process's numbers.
fn numbers() -> Option<PathBuf> {
    std::fs::read_link("/proc/self/ns/pid").ok()
}

/// Where the workspace of a notice lies.
fn position_of(listed: &Listed, name: &OsStr) -> Option<Position> {
    serde_json::from_slice(&listed.head(name)?).ok()
}

impl Notice {
    /// Names the watchdog that sweeps for the command if this process is killed.
    pub(super) fn name_watchdog(&mut self, watchdog: &str) {
        self.left.name_watchdog(watchdog);
        self.is_watched = true;
    }

    /// The command was swept for.
    pub(super) fn end(&mut self) {
        self.left.end();
        self.is_watched = false;
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        // Where the watchdog has yet to sweep, the notice counts until then.
        if !self.is_watched {
            let is_needed = self
                .of_command
                .as_ref()
                .is_some_and(|(folders, root, position)| {
                    let listed = Listed::new(&places::open_all(folders, Some(root)));
                    let searched: Vec<_> = listed
                        .names(SEARCH)
                        .filter(|name| listed.is_running(name))
                        .map(|name| position_of(&listed, name))
                        .collect();
                    is_needed(&searched, Some(position))
                });
            if is_needed {
                self.left.end();
            } else {
                self.left.remove();
            }
        }
        self.left.unlock();
    }
}

/// A file that a watchdog keeps locked until it has swept.
#[derive(Debug)]
pub(in crate::sandbox) struct WatchdogLock(Option<Left>);

impl WatchdogLock {
    /// A name for the file.
    pub(in crate::sandbox) fn name() -> Option<String> {
        places::watchdog_name()
    }

    /// Locks the file of this name. Without a folder for it there are no notices either.
    pub(in crate::sandbox) fn new(name: &str) -> Self {
        Self::in_folders(&places::folders(), name)
    }

    fn in_folders(folders: &[PathBuf], name: &str) -> Self {
        // A watchdog serves commands of any workspace. A command whose workspace contains a folder
        // of notices has its own elsewhere.
        let folders = places::open_all(folders, None);
        Self(Left::new(&folders, name, b""))
    }
}

impl Drop for WatchdogLock {
    fn drop(&mut self) {
        if let Some(left) = &self.0 {
            left.remove();
            left.unlock();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::Arc};

    use super::*;
    use crate::sandbox::fs::{Root, guard::Guard};

    fn root(folder: &Path) -> Root {
        Root::open(folder, PathRules::default()).unwrap()
    }

    fn guard(folder: &Path, rules: PathRules) -> Arc<Guard> {
        Guard::new(Arc::new(Root::open(folder, rules).unwrap()))
    }

    fn none() -> Known {
        Known::default()
    }

    /// What a kill leaves: the files, without the locks.
    fn kill(notice: &Notice) {
        notice.left.unlock();
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
    fn what_a_command_in_a_workspace_above_or_below_creates_is_not_the_users() {
        for (first, second, moved) in [("", "a/sub", ""), ("a/sub", "", ""), ("a/sub", "", "b")] {
            let folder = tempfile::tempdir().unwrap();
            let at = |path: &str| folder.path().join(path);
            fs::create_dir_all(at("a/sub/e")).unwrap();
            for file in [".envrc", "a/.envrc", "a/sub/.mcp.json"] {
                fs::write(at(file), "the user's").unwrap();
            }
            let (one, two) = (
                guard(&at(first), PathRules::default()),
                guard(&at(second), PathRules::default()),
            );

            let first = one.search().unwrap();
            fs::write(at("a/sub/.envrc"), "evil").unwrap();
            if !moved.is_empty() {
                fs::rename(at("a"), at(moved)).unwrap();
            }
            let second = two.search().unwrap();
            if !moved.is_empty() {
                fs::rename(at(moved), at("a")).unwrap();
            }
            fs::rename(at("a/sub/.envrc"), at("a/sub/stash")).unwrap();
            assert_eq!(first.end(), Vec::<String>::new());
            fs::rename(at("a/sub/stash"), at("a/sub/e/.envrc")).unwrap();
            let lines = second.end();

            assert!(!at("a/sub/e/.envrc").exists(), "{lines:?}");
            if moved.is_empty() {
                assert_eq!(lines.len(), 1);
                assert!(
                    [".envrc", "a/.envrc", "a/sub/.mcp.json"]
                        .iter()
                        .all(|it| at(it).exists())
                );
            }
        }
    }

    #[test]
    fn a_file_that_only_one_of_two_workspaces_finds_is_the_users_if_it_is_older_than_the_command() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("sub")).unwrap();
        fs::write(folder.path().join("sub/hook"), "the user's").unwrap();
        let root = root(folder.path());
        let path = Path::new("sub/hook");
        let own = FileStatus::at(root.dir.as_fd(), path).unwrap().own;
        let vouches = |relation: Relation, began: SystemTime| {
            let running = Running {
                relation: Some(relation),
                began,
                ..Running::own(Arc::default(), root.rules())
            };
            running.vouches(&root, &root.rules(), path, own, None)
        };
        let now = SystemTime::now();
        let later = now + Duration::from_mins(1);
        let below = || Relation::Below("sub".into());

        assert!(vouches(below(), later) && !vouches(below(), now));
        assert!(vouches(Relation::Below("other".into()), now));
        assert!(!vouches(Relation::Same, later) && !vouches(Relation::Moved, later));
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
        let top = tempfile::tempdir().unwrap();
        fs::create_dir_all(top.path().join("a/b")).unwrap();
        for (folder, searched) in [("a", "a"), ("a/b", "a"), ("a", "a/b")] {
            let guard = guard(&top.path().join(folder), PathRules::default());
            let command = guard.search().unwrap();
            let root = root(&top.path().join(searched));
            let notices = Notices::new().unwrap();

            let searching = notices.search(&root).unwrap();
            assert!(searching.has_others);
            command.end();
            // The search of a guard that has nothing to do with the first one removes nothing.
            let third = guard.search().unwrap();

            assert_eq!(notices.others(&root, &searching).len(), 2, "{folder}");
            third.end();
            drop(searching);
            let searching = notices.search(&root).unwrap();
            assert!(!searching.has_others);
            assert!(notices.others(&root, &searching).is_empty());
        }
    }

    #[test]
    fn the_notices_of_a_killed_process_count_until_its_watchdog_is_done() {
        let folder = tempfile::tempdir().unwrap();
        let places = tempfile::tempdir().unwrap();
        let own = vec![places.path().join("a"), places.path().join("b")];
        let root = root(folder.path());
        let dead = Notices::in_folders(own.clone()).unwrap();
        let notices = Notices::in_folders(own.clone()).unwrap();
        let left = || -> usize { own.iter().map(|it| fs::read_dir(it).unwrap().count()).sum() };
        let running = |notices: &Notices| {
            let searching = notices.search(&root).unwrap();
            (
                searching.has_others,
                notices.others(&root, &searching).len(),
            )
        };
        let name = WatchdogLock::name().unwrap();

        for is_watched in [false, true] {
            let mut command = dead.command(&root, &none(), &PathRules::default()).unwrap();
            let search = dead.search(&root).unwrap();
            let lock = is_watched.then(|| WatchdogLock::in_folders(&own, &name));
            if is_watched {
                command.name_watchdog(&name);
            }
            assert_eq!(running(&notices), (true, 1));
            kill(&command);
            kill(search._notice.as_ref().unwrap());

            assert_eq!(running(&notices), (is_watched, usize::from(is_watched)));
            drop(lock);
            assert_eq!(running(&notices), (false, 0));
            std::mem::forget((command, search));
        }

        // A command that has ended counts no longer, whatever its watchdog does.
        let _lock = WatchdogLock::in_folders(&own, &name);
        let mut command = dead.command(&root, &none(), &PathRules::default()).unwrap();
        command.name_watchdog(&name);
        let searching = notices.search(&root).unwrap();
        command.end();
        drop(command);
        assert_eq!(
            notices.others(&root, &searching).len(),
            1,
            "it ended during that search"
        );
        drop(searching);
        assert_eq!(running(&notices), (false, 0));
        assert_eq!(left(), 2, "the watchdog's");
    }

    #[test]
    fn processes_that_share_one_of_the_folders_know_of_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let places = tempfile::tempdir().unwrap();
        let at = |name: &str| places.path().join(name);
        let root = root(folder.path());
        let one = Notices::in_folders(vec![at("a"), at("b")]).unwrap();
        let two = Notices::in_folders(vec![at("taken"), at("b"), at("c")]).unwrap();
        fs::write(at("taken"), "").unwrap();

        let _first = one.command(&root, &none(), &PathRules::default()).unwrap();
        assert!(two.search(&root).unwrap().has_others);
        let _second = two.command(&root, &none(), &PathRules::default()).unwrap();
        assert!(one.search(&root).unwrap().has_others);

        fs::remove_file(at("taken")).unwrap();
        drop(two.search(&root));
        assert!(at("taken").is_dir(), "a folder that became free is used");
    }

    #[test]
    fn a_notice_that_is_being_written_is_not_removed_and_counts_not_yet() {
        let folder = tempfile::tempdir().unwrap();
        let places = tempfile::tempdir().unwrap();
        let root = root(folder.path());
        let notices = Notices::in_folders(vec![places.path().join("a")]).unwrap();
        drop(notices.search(&root));
        let unfinished = places.path().join("a/new.0.1.command");
        fs::write(&unfinished, "").unwrap();

        assert!(!notices.search(&root).unwrap().has_others);
        assert!(unfinished.exists());
    }

    #[test]
    fn where_no_notice_can_be_left_a_line_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["taken", "workspace"] {
            fs::create_dir(at(name)).unwrap();
        }
        fs::set_permissions(
            at("taken"),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .unwrap();
        let root = root(&at("workspace"));

        let why = why_none_in(&[at("taken")], &root).unwrap();
        assert!(
            why.contains("remove what another user has put there"),
            "{why}"
        );
        let why = why_none_in(&[at("workspace/inner")], &root).unwrap();
        assert!(why.contains("choose a smaller one"), "{why}");
        assert_eq!(why_none_in(&[at("taken"), at("own")], &root), None);
    }
}
