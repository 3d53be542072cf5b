//! The commands of this process that run or are about to begin, by workspace.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::sandbox::fs::{Identity, Made};

#[derive(Debug)]
struct Entry {
    root: Option<Identity>,
    /// `None` before its mounts are made.
    made: Option<Made>,
    /// Whether another command of the workspace ended since the search began.
    is_disturbed: bool,
}

static ALL: Mutex<(u64, BTreeMap<u64, Entry>)> = Mutex::new((0, BTreeMap::new()));

/// A command's entry in the list, until it is dropped.
#[derive(Debug)]
pub(super) struct Running {
    id: u64,
    root: Option<Identity>,
}

impl Running {
    pub(super) fn new(root: Option<Identity>) -> Self {
        let (next, entries) = &mut *ALL.lock();
        let id = *next;
        *next += 1;
        let entry = Entry {
            root,
            made: None,
            is_disturbed: false,
        };
        entries.insert(id, entry);
        Self { id, root }
    }

    fn with<T>(&self, of: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        ALL.lock().1.get_mut(&self.id).map(of)
    }

    /// The search begins: commands that ended before move nothing any more.
    pub(super) fn search_begins(&self) {
        self.with(|entry| entry.is_disturbed = false);
    }

    pub(super) fn is_disturbed(&self) -> bool {
        self.with(|entry| entry.is_disturbed).unwrap_or(true)
    }

    pub(super) fn take_disturbed(&self) -> bool {
        self.with(|entry| std::mem::take(&mut entry.is_disturbed))
            .unwrap_or(true)
    }

    /// Lists the command with its mounts, or without them again if it does not begin.
    pub(super) fn set(&self, made: Option<Made>) {
        self.with(|entry| entry.made = made);
    }

    /// The other commands of the workspace whose mounts are made.
    pub(super) fn others(&self) -> Vec<Made> {
        let all = ALL.lock();
        let others = all.1.iter().filter(|(id, entry)| {
            **id != self.id && entry.root.is_some() && entry.root == self.root
        });
        others.filter_map(|(_, entry)| entry.made.clone()).collect()
    }

    /// All processes of the command have ended.
    pub(super) fn end(&self) {
        let entries = &mut ALL.lock().1;
        let has_run = entries
            .get_mut(&self.id)
            .and_then(|entry| entry.made.take())
            .is_some();
        if has_run {
            entries
                .values_mut()
                .filter(|entry| entry.root == self.root)
                .for_each(|entry| entry.is_disturbed = true);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
        ALL.lock().1.remove(&self.id);
    }
}
