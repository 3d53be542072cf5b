//! The folder in which each conversation's next command starts. Held in memory, so a restart
//! forgets it.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use callboard_actors::ids::Scope;
use parking_lot::Mutex;

/// Conversations that are remembered. Beyond this, the least recently used starts in the workspace
/// again.
const CONVERSATIONS_MAX: usize = 4096;

/// Folders by conversation, relative to the workspace.
#[derive(Debug, Default)]
pub(super) struct Folders {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    folders: HashMap<Scope, (PathBuf, u64)>,
    turn: u64,
}

impl Folders {
    /// The folder where the next command starts; `None`: the workspace itself.
    pub(super) fn get(&self, scope: &Scope) -> Option<PathBuf> {
        let mut known = self.known.lock();
        known.turn += 1;
        let turn = known.turn;
        known.folders.get_mut(scope).map(|(folder, used)| {
            *used = turn;
            folder.clone()
        })
    }

    /// Records the folder in which a command ended.
    pub(super) fn keep(&self, scope: &Scope, folder: &Path) {
        let mut known = self.known.lock();
        known.turn += 1;
        let turn = known.turn;
        if folder.as_os_str().is_empty() {
            known.folders.remove(scope);
            return;
        }
        known
            .folders
            .insert(scope.clone(), (folder.to_owned(), turn));
        if known.folders.len() > CONVERSATIONS_MAX
            && let Some(oldest) = known
                .folders
                .iter()
                .min_by_key(|(_, (_, used))| *used)
                .map(|(scope, _)| scope.clone())
        {
            known.folders.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_conversation_has_its_folder_and_the_oldest_is_forgotten() {
        let folders = Folders::default();
        let scope = |tenant: &str, n: usize| {
            Scope::new(
                tenant.try_into().unwrap(),
                format!("c{n}").as_str().try_into().unwrap(),
            )
        };

        (0..=CONVERSATIONS_MAX).for_each(|n| folders.keep(&scope("a", n), Path::new("sub")));
        folders.keep(&scope("a", 7), Path::new(""));

        assert_eq!(folders.get(&scope("a", 0)), None);
        assert_eq!(folders.get(&scope("a", 1)), Some(PathBuf::from("sub")));
        assert_eq!(
            (folders.get(&scope("a", 7)), folders.get(&scope("b", 1))),
            (None, None)
        );
    }
}
