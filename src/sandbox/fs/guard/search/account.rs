//! What git's configuration names, and the configuration of the account, which git reads in every
//! repository.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs::File,
    io::Read,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::{FileType, Mode, OFlags},
    io::Errno,
};

use super::{GIT_FILE_BYTES_MAX, Search, Unguarded, links::LINKS_MAX, open::try_read};
use crate::sandbox::fs::{
    git::{
        harmless::may_run_in_reading,
        named::{ConfigPath, config_paths, expanded, path},
    },
    shown,
};

/// Configuration files that one configuration may include.
const INCLUDES_MAX: usize = 1000;

/// The configuration files of an account, relative to its home folder.
const FILES: [&str; 2] = [".gitconfig", ".config/git/config"];

/// The configuration files of a machine.
const SYSTEM_FILES: [&str; 2] = ["/etc/gitconfig", "/usr/local/etc/gitconfig"];

/// The paths that a configuration names, as it spells them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Named {
    /// Folders of hooks, relative to the top of a working tree.
    pub(super) hooks: Vec<PathBuf>,
    /// Words of commands, which may be paths relative to the top of a working tree.
    pub(super) programs: Vec<String>,
    /// Words of commands that count where they are files of a working tree.
    pub(super) words: BTreeSet<String>,
    /// Patterns of the shell in commands.
    pub(super) patterns: Vec<String>,
    /// Modules of Python, without their endings.
    pub(super) modules: Vec<String>,
    /// Packages of Python on the way to these.
    pub(super) packages: Vec<String>,
    /// Folders in which Python finds its own modules first.
    pub(super) module_folders: Vec<String>,
    /// Tops of working trees, relative to the repository.
    pub(super) tops: Vec<PathBuf>,
    /// Whether it may make git run a program in commands that only read.
    pub(super) runs_in_reading: bool,
}

impl Named {
    /// Number of paths that are looked for one by one.
    pub(super) fn paths(&self) -> usize {
        let deep = self.words.iter().filter(|word| word.contains('/')).count();
        let modules = self.modules.len() + self.packages.len() + self.module_folders.len();
        self.hooks.len() + self.programs.len() + self.patterns.len() + modules + deep
    }

    /// Adds a path. Returns that of an included file instead.
    fn add(&mut self, path: ConfigPath) -> Option<PathBuf> {
        fn once<T: PartialEq>(all: &mut Vec<T>, one: T) {
            if !all.contains(&one) {
                all.push(one);
            }
        }
        match path {
            ConfigPath::Hooks(path) => once(&mut self.hooks, path),
            ConfigPath::WorkTree(path) => once(&mut self.tops, path),
            ConfigPath::Program(path) => once(&mut self.programs, path),
            ConfigPath::Word(word) => {
                self.words.insert(word);
            }
            ConfigPath::Pattern(pattern) => once(&mut self.patterns, pattern),
            ConfigPath::Module(path) => once(&mut self.modules, path),
            ConfigPath::Package(path) => once(&mut self.packages, path),
            ConfigPath::ModuleFolder(path) => once(&mut self.module_folders, path),
            ConfigPath::Include(path) => return Some(path),
        }
        None
    }
}

impl Search<'_> {
    /// Reads the configuration of the account, and protects the files of it that lie in the workspace.
    pub(super) fn search_account(&mut self) {
        let rules = self.root.rules();
        let Some(home) = rules.home.clone() else {
            return;
        };
        let files = FILES.iter().map(|file| home.join(file));
        let files = files
            .chain(SYSTEM_FILES.iter().map(PathBuf::from))
            .chain(rules.git_config.iter().cloned());
        let mut named = Named::default();
        for file in files.collect::<Vec<_>>() {
            self.read_settings(&file, true, &mut named);
        }
        // The top of a working tree is a matter of its repository.
        named.tops.clear();
        // A path that is the same everywhere needs no repository in the workspace.
        let is_anywhere = |path: &Path| path.is_absolute() || path.starts_with("~");
        let anywhere = Named {
            hooks: named
                .hooks
                .iter()
                .filter(|path| is_anywhere(path))
                .cloned()
                .collect(),
            programs: named
                .programs
                .iter()
                .filter(|program| is_anywhere(&path(program)))
                .cloned()
                .collect(),
            ..Named::default()
        };
        self.protect_named_in(&[PathBuf::new()], Path::new(".git/config"), &anywhere);
        self.account = Arc::new(named);
    }

    /// Reads a configuration file and those that it includes. Protects those that lie in the
    /// workspace: the first one only if `is_named`.
    pub(super) fn read_settings(&mut self, file: &Path, is_named: bool, named: &mut Named) {
        // The path by which git opens each file: an included one may be relative to its folder.
        let mut files = vec![file.to_owned()];
        let mut next = 0;
        while let Some(file) = files.get(next).cloned() {
            let is_named = is_named || next > 0;
            next += 1;
            let Some(content) = self.settings_of(&file, is_named) else {
                // What is not read here, such as a pipe, git may read.
                named.runs_in_reading |= next > 1 && file.exists();
                continue;
            };
            if content.len() >= GIT_FILE_BYTES_MAX {
                let why = format!("it is longer than {} KiB", GIT_FILE_BYTES_MAX >> 10);
                self.missed.push(Unguarded::Settings(shown(&file), why));
                return;
            }
            named.runs_in_reading |= may_run_in_reading(&content);
            for path in config_paths(&content) {
                let Some(include) = named.add(path) else {
                    continue;
                };
                let Some(path) = self
                    .beside(&file, &include)
                    .filter(|path| !files.contains(path))
                else {
                    continue;
                };
                // These mean other files in git's own process.
                let is_elsewhere = |folder: &str| path.starts_with(folder);
                named.runs_in_reading |= ["/proc", "/dev"].into_iter().any(is_elsewhere)
                    || include.as_os_str().as_encoded_bytes().starts_with(b"%(");
                if files.len() < INCLUDES_MAX {
                    files.push(path);
                } else {
                    let why = format!("more than {INCLUDES_MAX} files are included");
                    self.missed.push(Unguarded::Settings(shown(&file), why));
                    return;
                }
            }
        }
    }

    /// The path of an included file.
    fn beside(&self, file: &Path, include: &Path) -> Option<PathBuf> {
        let include = expanded(include, self.root.rules().home.as_deref())?;
        Some(file.parent()?.join(include))
    }

    /// The content of a configuration file. A file in the workspace is protected if `is_named`, and
    /// read if it is the user's; if it cannot be read, what it names is not known.
    fn settings_of(&mut self, file: &Path, is_named: bool) -> Option<Vec<u8>> {
        let place = self.follow_way(file)?;
        let Ok(inner) = place.strip_prefix(self.root.real_path()) else {
            return content(&place);
        };
        let status = self.status(inner).ok();
        // Git reads no folder, so none is closed to commands; what takes its place is found later.
        if status.is_some_and(|status| status.kind == FileType::Directory) {
            return None;
        }
        if is_named {
            self.protect_target(inner.to_owned(), Path::new(".git/config"));
        }
        let is_users = |own| self.purpose.known.is_none_or(|known| known.has(own, None));
        status.filter(|status| status.kind == FileType::RegularFile && is_users(status.own))?;
        match try_read(self.root, inner) {
            Ok(content) => Some(content),
            Err(errno) => {
                if errno != Errno::NOENT {
                    self.missed.push(Unguarded::Settings(
                        shown(inner),
                        std::io::Error::from(errno).to_string(),
                    ));
                }
                None
            }
        }
    }

    /// The place to which a path leads, which need not exist: in the workspace or not, by any number
    /// of ways out and in. Protects the links of the workspace on the way; `None` at a link that a
    /// command created. A relative path begins in the workspace.
    pub(super) fn follow_way(&mut self, path: &Path) -> Option<PathBuf> {
        let real = self.root.real_path().to_owned();
        let mut here = PathBuf::from("/");
        let mut links = 0;
        let path = real.join(path);
        let mut todo: Vec<OsString> = path.iter().rev().map(OsString::from).collect();
        while let Some(name) = todo.pop() {
            if name == "." {
                continue;
            }
            if name == ".." {
                here.pop();
                continue;
            }
            // The root, as the first name of an absolute path, replaces what was walked.
            let next = here.join(&name);
            let is_link = std::fs::symlink_metadata(&next).is_ok_and(|file| file.is_symlink());
            if !is_link {
                here = next;
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return None;
            }
            if let Ok(inner) = next.strip_prefix(&real)
                && !self.protect_link(inner)?
            {
                return None;
            }
            let target = rustix::fs::readlink(&next, Vec::new()).ok()?;
            let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
            todo.extend(target.iter().rev().map(OsString::from));
        }
        Some(here)
    }
}

/// The beginning of a regular file. A pipe or device blocks nothing.
pub(super) fn content(path: &Path) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let mut content = Vec::new();
    file.take(GIT_FILE_BYTES_MAX as u64)
        .read_to_end(&mut content)
        .ok()?;
    Some(content)
}
