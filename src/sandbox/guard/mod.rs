//! Protected and sensitive names for commands: found before a command runs, so that its boundary covers them, and searched for again
//! after it, so that what was absent before does not stay.
//!
//! # Layout
//! `found` is what a search found · `search` walks the workspace · `sweep` judges what a command left and moves it aside ·
//! `held` holds a command to the workspace's quota · [`Guard`] holds what is remembered of one workspace, [`Guarded`] one command's search and sweep.
//!
//! Promises
//! - A workspace that cannot be searched as a whole runs no command ([`Unguarded`]). Nothing is truncated silently.
//! - What is new after a command is moved aside, whatever the command ends with. A command that runs beside others does not vouch for
//!   what these may have made.
//! - Where a watchdog runs ([`super::watchdog`]), that holds when the host is killed meanwhile.
//!
//! Limits, stated: a name that is absent when a command starts can be created by it and is moved aside (`NAME.refused`) when it ends;
//! until then the host's own programs could read it. A protected link cannot be covered: a command can remove it, and what it puts in
//! its place is moved aside. What the user creates or
//! replaces of protected names while a command runs is taken for the command's: a file that is replaced loses its cover.

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

/// Which folder a root is.
pub(super) fn identity_of_root(root: &Root) -> Option<Identity> {
    Look::at(root.dir.as_fd(), Path::new("")).ok().map(|look| look.own)
}

/// What guards one workspace.
#[derive(Debug)]
pub(super) struct Guard {
    root: Arc<Root>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    listings: Arc<Listings>,
    /// What the last search before a command found protected.
    remembered: Arc<BTreeSet<PathBuf>>,
    /// What was there before each command that runs.
    running: BTreeMap<u64, Arc<Known>>,
    /// Searches in progress: they may see what a command made that has ended meanwhile.
    searching: u32,
    /// What was there before commands that ended while a search was in progress.
    ended: Vec<Arc<Known>>,
    next: u64,
}

/// One command's part: what its boundary covers, and what is swept when it ends.
///
/// Dropped before [`Guarded::begin`] it sweeps nothing, for no command ran. Dropped after that without [`Guarded::end`], which is how a
/// runtime ends that does not wait, the watchdog sweeps when the spawner goes.
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
    /// [`Unguarded`], when it cannot be searched as a whole.
    pub(super) fn search(self: &Arc<Self>) -> Result<Guarded, Unguarded> {
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

    /// A command that runs beside us can move folders about while they are searched: what was found the last time is looked for at its
    /// own place, too.
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

    /// Keeps what a search counted. Returns what there is too much of.
    fn settle(&self, files: Option<u64>) -> Option<Excess> {
        let quota = self.root.quota();
        let usage = match files {
            _ if !quota.is_bounded() => return None,
            Some(files) if quota.bytes_max.is_none() => {
                let usage = WorkspaceUsage { files, bytes: None };
                self.root.note_usage(usage);
                usage
            }
            // Sizes change without a trace in the folder: every file is looked at.
            _ => self.root.count(),
        };
        quota.excess(usage)
    }

    /// Counts what the workspace holds while a command runs.
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

    /// Called when the command is about to start: from here on the watchdog sweeps if the host is killed. Blocks for a moment.
    pub(super) fn begin(&mut self, watchdog: &Watchdog, helper: Option<&Program>) {
        self.began = true;
        let known = WrittenKnown::from(&*self.known);
        self.noted = helper.and_then(|helper| watchdog.note(helper, &self.guard.root, known));
    }

    /// Sweeps, now that all processes of the command are gone: the lines for the model. Blocks.
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

/// A sweep that the watchdog does for a host that is gone.
pub(super) struct Orphaned {
    guard: Guard,
    known: Known,
}

impl Orphaned {
    /// `None` if another folder lies at that place by now.
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
