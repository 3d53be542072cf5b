//! The rules of a root that may grow: sessions of one process name files, such as programs of MCP servers,
//! and those that lie in another session's workspace are protected there as well.

use std::{path::Path, sync::Arc};

#[cfg(any(test, feature = "cli"))]
use std::{collections::BTreeSet, path::PathBuf};

#[cfg(any(test, feature = "cli"))]
use parking_lot::RwLock;

use crate::sandbox::policy::PathRules;

/// Files that the sessions of one process may name: far more than configurations have.
#[cfg(any(test, feature = "cli"))]
const FILES_MAX: usize = 10_000;

/// The files that the sessions of one process have named. They stay named until the process ends: who
/// named a program once may start it again.
#[cfg(any(test, feature = "cli"))]
#[derive(Debug, Clone, Default)]
pub(crate) struct NamedFiles(Arc<RwLock<Named>>);

#[cfg(any(test, feature = "cli"))]
#[derive(Debug, Default)]
struct Named {
    protected: BTreeSet<PathBuf>,
    programs: BTreeSet<PathBuf>,
    sensitive: BTreeSet<PathBuf>,
}

#[cfg(any(test, feature = "cli"))]
impl Named {
    fn len(&self) -> usize {
        self.protected.len() + self.programs.len() + self.sensitive.len()
    }
}

#[cfg(any(test, feature = "cli"))]
impl NamedFiles {
    /// Adds files that only the user may write, programs, which only the user may write either, and files
    /// that no tool may read. `false`, if there are too many.
    pub(crate) fn add(
        &self,
        protected: &[PathBuf],
        programs: &[PathBuf],
        sensitive: &[PathBuf],
    ) -> bool {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let mut named = self.0.write();
        named.protected.extend(protected.iter().map(absolute));
        named.programs.extend(programs.iter().map(absolute));
        named.sensitive.extend(sensitive.iter().map(absolute));
        named.len() <= FILES_MAX
    }

    fn len(&self) -> usize {
        self.0.read().len()
    }

    fn and(&self, rules: &PathRules, root: &Path) -> (usize, PathRules) {
        let named = self.0.read();
        let rules = named
            .protected
            .iter()
            .fold(rules.clone(), |rules, path| rules.and_protected(root, path));
        let rules = named
            .programs
            .iter()
            .fold(rules, |rules, path| rules.and_program(root, path));
        let rules = named
            .sensitive
            .iter()
            .fold(rules, |rules, path| rules.and_sensitive(root, path));
        (named.len(), rules)
    }
}

/// Rules with this number of named files.
#[cfg(any(test, feature = "cli"))]
type Counted = RwLock<(usize, Arc<PathRules>)>;

/// The rules of one root.
#[derive(Debug)]
pub(super) struct SharedRules {
    own: Arc<PathRules>,
    /// What others name, and the last rules with it.
    #[cfg(any(test, feature = "cli"))]
    named: Option<(NamedFiles, Counted)>,
}

impl SharedRules {
    pub(super) fn new(own: PathRules) -> Self {
        Self {
            own: Arc::new(own),
            #[cfg(any(test, feature = "cli"))]
            named: None,
        }
    }

    #[cfg(any(test, feature = "cli"))]
    pub(super) fn share(&mut self, named: NamedFiles) {
        self.named = Some((named, RwLock::new((0, self.own.clone()))));
    }

    #[cfg(any(test, feature = "cli"))]
    pub(super) fn now(&self, root: &Path) -> Arc<PathRules> {
        let Some((named, last)) = &self.named else {
            return self.own.clone();
        };
        let count = named.len();
        {
            let last = last.read();
            if last.0 == count {
                return last.1.clone();
            }
        }
        let (count, rules) = named.and(&self.own, root);
        let rules = Arc::new(rules);
        *last.write() = (count, rules.clone());
        rules
    }

    #[cfg(not(any(test, feature = "cli")))]
    pub(super) fn now(&self, _root: &Path) -> Arc<PathRules> {
        self.own.clone()
    }
}
