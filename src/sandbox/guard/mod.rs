//! Guards protected and sensitive names against commands. A search before each command finds them,
//! so that the boundary can cover them; a search after it finds and moves aside protected names
//! that are new.
//!
//! # Layout
//! `found` is the result of a search · `search` walks the workspace · `sweep` moves aside what a
//! command left · `held` enforces the workspace's quota · [`Guard`] holds the state of one
//! workspace, [`Guarded`] the search and sweep of one command.
//!
//! Promises:
//! - No command runs in a workspace that cannot be searched completely ([`Unguarded`]). Nothing is
//!   truncated silently.
//! - A protected name that is new after a command is moved aside, whatever the command's outcome.
//!   While several commands run, a name that one of them found is not taken as the user's if
//!   another may have created it.
//! - Where a watchdog runs ([`super::watchdog`]), these promises hold even if the host is killed
//!   during the command.
//!
//! Limits:
//! - A command can create a name that was absent at its start. The sweep moves the file aside
//!   (`NAME.refused`) when the command ends; until then the host's own programs could read it.
//! - No mount can cover a protected link. A command can remove the link, and the sweep moves aside
//!   its replacement.
//! - A protected name that the user creates or replaces while a command runs is taken for the
//!   command's: replacing a file removes its cover.

mod found;
mod search;
mod sweep;
mod held;

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use found::Look;
pub(super) use found::{Found, Identity, identity, names_of};
pub(super) use held::Held;
use search::Listings;
pub(super) use search::Unguarded;
use sweep::Known;
pub(super) use sweep::WrittenKnown;

use super::{
    Root,
    helper::Program,
    quota::{Excess, WorkspaceUsage},
    watchdog::{Note, Noted, Watchdog},
};

/// Identity of the root folder.
pub(super) fn identity_of_root(root: &Root) -> Option<Identity> {
    Look::at(root.dir.as_fd(), Path::new("")).ok().map(|look| look.own)
}

/// The guard of one workspace.
#[derive(Debug)]
pub(super) struct Guard {
    root: Arc<Root>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    listings: Arc<Listings>,
    /// Protected paths found by the last search before a command.
    remembered: Arc<BTreeSet<PathBuf>>,
    /// For each running command, the protected files that existed before it.
    running: BTreeMap<u64, Arc<Known>>,
    /// Number of searches in progress. A search may see files of a command that has ended since the
    /// search began.
    searching: u32,
    /// The protected files that existed before commands which ended while a search was in progress.
    ended: Vec<Arc<Known>>,
    next: u64,
}

/// One command's part: what its boundary covers, and what the sweep checks when it ends.
///
/// Dropping it before [`Guarded::begin`] sweeps nothing, since no command ran. Dropping it later
/// without [`Guarded::end`] happens when a runtime shuts down without waiting; then the watchdog
/// sweeps when the spawner is dropped.
#[derive(Debug)]
pub(super) struct Guarded {
    guard: Arc<Guard>,
    id: u64,
    found: Found,
    known: Arc<Known>,
    noted: Option<Noted>,
    began: bool,
}

impl Guard {
    pub(super) fn new(root: Arc<Root>) -> Arc<Self> {
        Arc::new(Self { root, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Searches the workspace before a command. Blocks.
    ///
    /// # Errors
    /// [`Unguarded`] when the workspace cannot be searched completely.
    pub(super) fn search(self: &Arc<Self>) -> Result<Guarded, Unguarded> {
        // The lock is held before and after the search, not during it: searches run concurrently.
        // `searching` makes `forget` keep the knowledge of commands that end meanwhile, since this
        // search may have seen files that such a command created. A file counts as the user's only
        // if every command that ran at the time knew it before.
        let (listings, remembered, is_alone) = {
            let mut state = self.state();
            state.searching += 1;
            (state.listings.clone(), state.remembered.clone(), state.running.is_empty())
        };
        let searched = search::before(&self.root, &listings).map(|mut searched| {
            if !is_alone {
                self.look_again(&mut searched.found, &remembered);
            }
            searched
        });
        if let Ok(searched) = &searched {
            self.settle(searched.files);
        }
        let mut state = self.state();
        let guarded = searched.map(|searched| {
            let others = state.running.values().chain(&state.ended).map(|known| &**known);
            let known = Arc::new(Known::of(&self.root, &searched.found, others));
            state.listings = searched.listings;
            state.remembered = Arc::new(searched.found.protected.keys().cloned().collect());
            let id = state.next;
            state.next += 1;
            state.running.insert(id, known.clone());
            Guarded { guard: self.clone(), id, found: searched.found, known, noted: None, began: false }
        });
        state.searching -= 1;
        if state.searching == 0 {
            state.ended.clear();
        }
        guarded
    }

    /// Checks the paths of the last search again. A concurrent command can move folders during the
    /// search, so a path that the walk missed may still be in its old place.
    fn look_again(&self, found: &mut Found, remembered: &BTreeSet<PathBuf>) {
        let look = |path: &Path| Look::at(self.root.dir.as_fd(), path).ok();
        let missing: Vec<PathBuf> = remembered.iter().filter(|path| !found.protected.contains_key(*path)).cloned().collect();
        for path in missing {
            if let (Some(own), Some(above)) = (look(&path), path.parent().and_then(look)) {
                found.protect(path, own, above.own);
            }
        }
    }

    fn sweep(&self, known: &Known) -> Vec<String> {
        let listings = self.state().listings.clone();
        let (mut lines, searched) = sweep::sweep(&self.root, &listings, known);
        self.state().listings = searched.listings;
        lines.extend(self.settle(searched.files).map(|excess| format!("[{excess} before more is created]")));
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
    fn count(&self) -> WorkspaceUsage {
        let listings = self.state().listings.clone();
        let searched = search::during(&self.root, &listings);
        self.settle(searched.files);
        self.state().listings = searched.listings;
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
    pub(super) fn found(&self) -> &Found {
        &self.found
    }

    /// Registers the command with the watchdog just before its start: from here on, the watchdog
    /// sweeps if the host is killed. Blocks briefly.
    pub(super) fn begin(&mut self, watchdog: &Watchdog, helper: Option<&Program>) {
        self.began = true;
        let known = WrittenKnown::from(&*self.known);
        self.noted = helper.and_then(|helper| watchdog.note(helper, &self.guard.root, known));
    }

    /// Sweeps after all processes of the command have ended. Returns the lines that the model
    /// reads. Blocks.
    pub(super) fn end(mut self) -> Vec<String> {
        let lines = self.guard.sweep(&self.known);
        self.began = false;
        lines
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.guard.forget(self.id);
        if let Some(noted) = self.noted.take() {
            if self.began {
                noted.leave();
            } else {
                noted.end();
            }
        }
    }
}

/// A sweep that the watchdog makes for a host that is gone.
pub(super) struct Orphaned {
    guard: Guard,
    known: Known,
}

impl Orphaned {
    /// `None` if the path now names another folder.
    pub(super) fn of(note: Note) -> Option<Self> {
        let root = Root::open(PathBuf::from(note.root), note.rules).ok()?;
        (identity_of_root(&root)? == note.identity)
            .then(|| Self { guard: Guard { root: Arc::new(root), state: Mutex::default() }, known: note.known.into() })
    }

    pub(super) fn sweep(&self) {
        self.guard.sweep(&self.known);
    }
}

#[cfg(test)]
mod tests;
