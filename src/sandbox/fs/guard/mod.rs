//! Guards protected and sensitive names against commands. A search before each command finds them,
//! so that the boundary can cover them; a search after it finds and moves aside protected names
//! that are new.
//!
//! # Layout
//! `found` is the result of a search · `known` lists the files from before a command · `listings`
//! keeps the names of folders from one search to the next · `notices` let the guards of one workspace
//! know of each other's commands · `search` walks the workspace · `sweep` moves aside what a command
//! left, under names from `aside` · [`Guard`] holds the state of one workspace, [`Guarded`] the
//! search and sweep of one command.
//!
//! Promises:
//! - No command runs in a workspace that cannot be searched completely ([`Unguarded`]). Nothing is
//!   truncated silently.
//! - A protected name that is new after a command is moved aside, whatever the command's outcome.
//!   While several commands run, a name that one of them found is not taken as the user's if
//!   another may have created it, also under another guard or in another process of the user.
//! - A protected name, a name of keys and the folders by whose names they are known stay in their
//!   places: no command renames `.vscode` or `.aws`, to write or read under another name later. Folders
//!   above them may move: `linux::begin` finds what lies in them.
//! - Where a watchdog runs (`exec::watchdog`), these promises hold even if the host is killed
//!   during the command.
//!
//! Limits:
//! - A command can create a name that was absent at its start. The sweep moves the file aside
//!   (`NAME.refused`) when the command ends; until then the host's own programs could read it.
//! - No mount can cover a protected link. A command can remove the link, and the sweep moves aside
//!   its replacement.
//! - A folder that contains a folder such as `.vscode` can be renamed, and takes it along into the place
//!   of another folder.
//! - Processes of different users, or of containers with a `/dev/shm` each, do not know of each other's
//!   commands in one workspace.
//! - A protected name that the user creates or replaces while a command runs is taken for the
//!   command's: replacing a file removes its cover.

mod aside;
mod found;
mod known;
mod listings;
mod notices;
mod search;
mod sweep;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use callboard_actors::ports::SandboxError;
use found::FileStatus;
pub(in crate::sandbox) use found::{Added, Found, Identity, identity, names_of};
use known::{Known, WrittenKnown};
use listings::Listings;
pub(in crate::sandbox) use notices::WatchdogLock;
pub(crate) use notices::why_no_notices;
pub(in crate::sandbox) use notices::{Made, Notice, Searching};
use notices::{Notices, Running};
use parking_lot::{Mutex, MutexGuard};
use search::{COVERS_MAX, Unguarded};
pub(in crate::sandbox::fs) use search::{is_behind_protected_link, is_named_by_git};
use serde::{Deserialize, Serialize};

use super::{
    Root,
    quota::{Excess, WorkspaceUsage},
};
use crate::sandbox::PathRules;

/// Identity of the root folder.
fn identity_of_root(root: &Root) -> Option<Identity> {
    FileStatus::at(root.dir.as_fd(), Path::new(""))
        .ok()
        .map(|status| status.own)
}

/// The guard of one workspace.
#[derive(Debug)]
pub(in crate::sandbox) struct Guard {
    root: Arc<Root>,
    state: Mutex<State>,
    /// Shared with other guards of the workspace; `None` where there can be none.
    notices: OnceLock<Option<Notices>>,
}

#[derive(Debug, Default)]
struct State {
    listings: Arc<Listings>,
    /// Protected paths found by the last search before a command.
    remembered: Arc<BTreeSet<PathBuf>>,
    /// The rules of these listings.
    rules: Arc<PathRules>,
    /// For each running command, the protected files that existed before it.
    running: BTreeMap<u64, Running>,
    /// Number of searches in progress. A search may see files of a command that has ended since the
    /// search began.
    searching: u32,
    /// The protected files that existed before commands which ended while a search was in progress.
    ended: Vec<Running>,
    next: u64,
}

impl State {
    /// Keeps the listings of a search that began by these rules, unless others came meanwhile.
    fn keep(&mut self, rules: &Arc<PathRules>, listings: Arc<Listings>) {
        if self.rules == *rules {
            self.listings = listings;
        }
    }
}

/// One command's part: what its boundary covers, and what the sweep checks when it ends.
///
/// Dropping it without [`Guarded::end`] sweeps nothing. Before the command begins nothing is left to
/// sweep; later it happens when a runtime shuts down without waiting, and then the watchdog sweeps
/// when the spawner is dropped.
#[derive(Debug)]
pub(in crate::sandbox) struct Guarded {
    guard: Arc<Guard>,
    id: u64,
    found: Found,
    /// What the guard knew before the command, and by which rules.
    known: Arc<Known>,
    rules: Arc<PathRules>,
    /// Dropped last, after the sweep.
    notice: Option<Notice>,
}

impl Guard {
    pub(in crate::sandbox) fn new(root: Arc<Root>) -> Arc<Self> {
        Arc::new(Self::of(root))
    }

    fn of(root: Arc<Root>) -> Self {
        Self {
            root,
            state: Mutex::default(),
            notices: OnceLock::new(),
        }
    }

    fn notices(&self) -> Option<&Notices> {
        self.notices.get_or_init(Notices::new).as_ref()
    }

    /// The rules of a search that begins, and the listings of the last one that went by them.
    fn begin(&self) -> (Arc<PathRules>, Arc<Listings>) {
        let rules = self.root.rules();
        let mut state = self.state();
        if state.rules != rules {
            state.rules = rules.clone();
            state.listings = Arc::default();
        }
        (rules, state.listings.clone())
    }

    /// The guarded workspace.
    pub(in crate::sandbox) fn root(&self) -> &Root {
        &self.root
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// From now on, commands of other guards that end are seen by [`Guard::made_elsewhere`].
    pub(in crate::sandbox) fn watch(&self) -> Option<Searching> {
        self.notices()?.search(&self.root)
    }

    /// The commands of other guards whose mounts are made, and whether one has ended meanwhile.
    pub(in crate::sandbox) fn made_elsewhere(&self, watch: &mut Searching) -> (Vec<Made>, bool) {
        self.notices()
            .map(|notices| notices.made(&self.root, watch))
            .unwrap_or_default()
    }

    /// Leaves other guards a notice of a command whose mounts are made, until the notice is dropped.
    pub(in crate::sandbox) fn leave_made(&self, made: Made) -> Option<Notice> {
        self.notices()?.leave_made(&self.root, made)
    }

    /// Searches the workspace once more for what a command must not write or read. Blocks.
    ///
    /// # Errors
    /// [`Unguarded`] when the workspace cannot be searched completely.
    pub(in crate::sandbox) fn find(&self) -> Result<Found, Unguarded> {
        let (_, listings) = self.begin();
        search::before(&self.root, &listings).map(|searched| searched.found)
    }

    #[cfg(test)]
    fn search(self: &Arc<Self>) -> Result<Guarded, Unguarded> {
        self.search_beside(|_, _| {})
    }

    /// Searches the workspace before a command. `add` adds what commands that run keep from it. Blocks.
    ///
    /// # Errors
    /// [`Unguarded`] when the workspace cannot be searched completely.
    pub(in crate::sandbox) fn search_beside(
        self: &Arc<Self>,
        add: impl FnOnce(&Root, &mut Found),
    ) -> Result<Guarded, Unguarded> {
        // The lock is held before and after the search, not during it: searches run concurrently.
        // `searching` makes `forget` keep the knowledge of commands that end meanwhile, since this
        // search may have seen files that such a command created. A file counts as the user's only
        // if every command that ran at the time knew it before. `notices` do the same between guards.
        let notices = self
            .notices()
            .and_then(|notices| Some((notices, notices.search(&self.root)?)));
        let (rules, listings) = self.begin();
        let (remembered, is_alone) = {
            let mut state = self.state();
            state.searching += 1;
            (state.remembered.clone(), state.running.is_empty())
        };
        let searched = search::before(&self.root, &listings).and_then(|mut searched| {
            if !is_alone
                || notices
                    .as_ref()
                    .is_some_and(|(_, notice)| notice.has_others)
            {
                self.check_remembered(&mut searched.found, &remembered);
            }
            add(&self.root, &mut searched.found);
            if searched.found.covers() > COVERS_MAX {
                return Err(Unguarded::Covers);
            }
            Ok(searched)
        });
        if let Ok(searched) = &searched {
            self.settle(searched.files);
        }
        let others = match &notices {
            Some((notices, searching)) => notices.others(&self.root, searching),
            None => Vec::new(),
        };
        let mut state = self.state();
        let guarded = searched.map(|searched| {
            let known = Known::of(&self.root, &searched.found, |path, own, changed| {
                let running = state.running.values().chain(&state.ended);
                running
                    .chain(&others)
                    .all(|other| other.vouches(&self.root, &rules, path, own, changed))
            });
            let known = Arc::new(known);
            state.keep(&rules, searched.listings);
            state.remembered = Arc::new(searched.found.protected.keys().cloned().collect());
            let id = state.next;
            state.next += 1;
            let running = Running::own(known.clone(), rules.clone());
            state.running.insert(id, running);
            Guarded {
                guard: self.clone(),
                id,
                found: searched.found,
                notice: notices
                    .as_ref()
                    .and_then(|(notices, _)| notices.command(&self.root, &known, &rules)),
                known,
                rules,
            }
        });
        state.searching -= 1;
        if state.searching == 0 {
            state.ended.clear();
        }
        guarded
    }

    /// Checks the paths of the last search again. A concurrent command can move folders during the
    /// search, so a path that the walk missed may still be in its old place.
    fn check_remembered(&self, found: &mut Found, remembered: &BTreeSet<PathBuf>) {
        let status = |path: &Path| FileStatus::at(self.root.dir.as_fd(), path).ok();
        let missing: Vec<PathBuf> = remembered
            .iter()
            .filter(|path| !found.protected.contains_key(*path))
            .cloned()
            .collect();
        for path in missing {
            if let (Some(own), Some(above)) = (status(&path), path.parent().and_then(status)) {
                found.protect(path, own, above.own);
            }
        }
    }

    /// Sweeps after a command that began under `rules`.
    fn sweep(&self, known: &Known, rules: &PathRules) -> Vec<String> {
        let (begun, listings) = self.begin();
        let (mut lines, searched) = sweep::sweep(&self.root, &listings, known, rules);
        self.state().keep(&begun, searched.listings);
        lines.extend(
            self.settle(searched.files)
                .map(|excess| format!("[{excess} before more is created]")),
        );
        lines
    }

    /// Records the count of a search. Returns the quota that it exceeds, if any.
    fn settle(&self, files: Option<u64>) -> Option<Excess> {
        let quota = self.root.quota();
        let usage = match files {
            _ if !quota.is_bounded() => return None,
            Some(files) if quota.bytes_max.is_none() => {
                let usage = WorkspaceUsage { files, bytes: None };
                self.root.note_usage(usage);
                usage
            }
            // A file's size can change without a change to its folder, so every file is checked.
            _ => self.root.count(),
        };
        quota.excess(usage)
    }

    /// Counts the contents of the workspace while a command runs.
    pub(in crate::sandbox) fn count(&self) -> WorkspaceUsage {
        let (rules, listings) = self.begin();
        let searched = search::during(&self.root, &listings);
        self.settle(searched.files);
        self.state().keep(&rules, searched.listings);
        self.root.usage().unwrap_or_default()
    }

    fn forget(&self, id: u64) {
        let mut state = self.state();
        if let Some(known) = state.running.remove(&id)
            && state.searching > 0
        {
            state.ended.push(known);
        }
    }
}

impl Guarded {
    pub(in crate::sandbox) fn found(&self) -> &Found {
        &self.found
    }

    /// What a watchdog needs in order to sweep for this command; `None` if the root is gone.
    pub(in crate::sandbox) fn note(&self) -> Option<Note> {
        let root = &self.guard.root;
        Some(Note {
            root: root.real_path().as_os_str().to_owned(),
            identity: identity_of_root(root)?,
            rules: (*self.rules).clone(),
            known: WrittenKnown::from(&*self.known),
        })
    }

    /// Sweeps after all processes of the command have ended. Returns the lines that the model
    /// reads. Blocks.
    pub(in crate::sandbox) fn end(mut self) -> Vec<String> {
        let lines = self.guard.sweep(&self.known, &self.rules);
        if let Some(notice) = &mut self.notice {
            notice.end();
        }
        lines
    }

    /// Names the watchdog that sweeps for the command if this process is killed: other guards take it
    /// for running until then.
    pub(in crate::sandbox) fn name_watchdog(&mut self, watchdog: &str) {
        if let Some(notice) = &mut self.notice {
            notice.name_watchdog(watchdog);
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.guard.forget(self.id);
    }
}

/// What a watchdog needs in order to sweep for one command.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::sandbox) struct Note {
    root: OsString,
    identity: Identity,
    rules: PathRules,
    known: WrittenKnown,
}

impl From<Unguarded> for SandboxError {
    fn from(why: Unguarded) -> Self {
        Self::Failed(why.to_string())
    }
}

/// A sweep that the watchdog makes for a host that is gone.
pub(in crate::sandbox) struct Orphaned {
    guard: Guard,
    known: Known,
}

impl Orphaned {
    /// `None` if the path now names another folder.
    pub(in crate::sandbox) fn of(note: Note) -> Option<Self> {
        let root = Root::open(PathBuf::from(note.root), note.rules).ok()?;
        (identity_of_root(&root)? == note.identity).then(|| Self {
            guard: Guard::of(Arc::new(root)),
            known: note.known.into(),
        })
    }

    pub(in crate::sandbox) fn sweep(&self) {
        self.guard.sweep(&self.known, &self.guard.root.rules());
    }
}

#[cfg(test)]
mod tests;
