//! What git's configuration names in a working tree, and the configuration of the account, which git
//! reads in every repository.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags};

use super::GIT_FILE_BYTES_MAX;
use crate::sandbox::{
    PathRules,
    fs::git::{ConfigPath, config_paths},
};

/// Configuration files that one configuration may include, and linked working trees whose hooks are
/// looked at.
pub(super) const INCLUDES_MAX: usize = 100;

/// The configuration files of an account, relative to its home folder.
const FILES: [&str; 2] = [".gitconfig", ".config/git/config"];

/// The paths that a configuration names, as it spells them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Named {
    /// Folders of hooks, relative to the top of a working tree.
    pub(super) hooks: Vec<String>,
    /// Words of commands, which may be paths relative to the top of a working tree.
    pub(super) programs: Vec<String>,
    /// Tops of working trees, relative to the repository.
    pub(super) tops: Vec<String>,
}

impl Named {
    /// Adds a path. Returns that of an included file instead.
    pub(super) fn add(&mut self, path: ConfigPath) -> Option<String> {
        match path {
            ConfigPath::Hooks(path) => self.hooks.push(path),
            ConfigPath::WorkTree(path) => self.tops.push(path),
            ConfigPath::Program(path) => self.programs.push(path),
            ConfigPath::Include(path) => return Some(path),
        }
        None
    }
}

/// Reads the configuration of the account.
pub(super) fn named(rules: &PathRules) -> Named {
    let mut named = Named::default();
    for file in FILES.iter().filter(|_| rules.home.is_some()) {
        read(rules, Path::new(&format!("~/{file}")), &mut named);
    }
    // The top of a working tree is a matter of its repository.
    named.tops.clear();
    named
}

/// Reads a configuration file outside of the workspace, and those that it includes.
pub(super) fn read(rules: &PathRules, file: &Path, named: &mut Named) {
    let absolute = |folder: &Path, path: &Path| {
        match (path.strip_prefix("~"), &rules.home) {
            (Ok(rest), Some(home)) => Some(home.join(rest)),
            (Ok(_), None) => None,
            (Err(_), _) => Some(folder.join(path)),
        }
        .filter(|path| path.is_absolute())
    };
    let mut files: Vec<PathBuf> = absolute(Path::new(""), file).into_iter().collect();
    let mut next = 0;
    while let Some(file) = files.get(next).cloned() {
        next += 1;
        let content = content(&file).unwrap_or_default();
        for path in config_paths(&String::from_utf8_lossy(&content)) {
            if let Some(include) = named.add(path)
                && let Some(path) = file
                    .parent()
                    .and_then(|folder| absolute(folder, Path::new(&include)))
                && files.len() < INCLUDES_MAX
                && !files.contains(&path)
            {
                files.push(path);
            }
        }
    }
}

/// The beginning of a regular file. A pipe or device blocks nothing.
fn content(path: &Path) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let mut content = Vec::new();
    file.take(GIT_FILE_BYTES_MAX as u64)
        .read_to_end(&mut content)
        .ok()?;
    Some(content)
}
