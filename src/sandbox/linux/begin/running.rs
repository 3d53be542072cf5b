//! The commands of one sandbox that run or are about to begin. Those of other sandboxes leave notices.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;

use crate::sandbox::fs::Made;

#[derive(Debug)]
struct Entry {
    /// `None` before its mounts are made.
    made: Option<Made>,
    /// Whether another command of the workspace ended since the search began.
    is_disturbed: bool,
}

/// The commands of one sandbox.
#[derive(Debug, Default)]
pub(in crate::sandbox::linux) struct Commands {
    next: u64,
    entries: BTreeMap<u64, Entry>,
}

/// A command's entry in the list, until it is dropped.
#[derive(Debug)]
pub(super) struct Running {
    id: u64,
    all: Arc<Mutex<Commands>>,
}

impl Running {
    pub(super) fn new(commands: &Arc<Mutex<Commands>>) -> Self {
        let all = commands.clone();
        let mut listed = all.lock();
        let id = listed.next;
        listed.next += 1;
        let entry = Entry {
            made: None,
            is_disturbed: false,
        };
        listed.entries.insert(id, entry);
        drop(listed);
        Self { id, all }
    }

    fn with<T>(&self, of: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        self.all.lock().entries.get_mut(&self.id).map(of)
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

    /// The other commands of the sandbox whose mounts are made.
    pub(super) fn others(&self) -> Vec<Made> {
        let all = self.all.lock();
        let others = all.entries.iter().filter(|(id, _)| **id != self.id);
        others.filter_map(|(_, entry)| entry.made.clone()).collect()
    }

    /// All processes of the command have ended.
    pub(super) fn end(&self) {
        let entries = &mut self.all.lock().entries;
        let has_run = entries
            .get_mut(&self.id)
            .and_then(|entry| entry.made.take())
            .is_some();
        if has_run {
            entries
                .values_mut()
                .for_each(|entry| entry.is_disturbed = true);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
        self.all.lock().entries.remove(&self.id);
    }
}
