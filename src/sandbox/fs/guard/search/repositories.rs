//! The files of git repositories that decide which programs git runs, and the files that these name.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::File,
    io::Read,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags},
    io::Errno,
};

use super::{
    FileStatus, GIT_FILE_BYTES_MAX, Identity, Known, Search, Stamp, Unguarded,
    account::{Named, content},
    is_git, open_real, read, reopen,
};
use crate::sandbox::fs::{
    git::{
        PROGRAM_NAMES, REPOSITORY_FOLDERS, WAITING_FILES, WAITING_FOLDERS,
        index::{self, Index},
        named::{self, expanded, is_python_file, is_pythons_own, python_modules_own},
        waiting_file_is_dangerous,
    },
    guard::found::names_where,
    jail::FOLDER,
    shown,
};
use crate::sandbox::policy::names_python;

/// Paths of one configuration that are looked for in a working tree.
const PATHS_MAX: usize = 5000;

impl Search<'_> {
    /// Protects the files of a repository that decide which programs git runs.
    pub(super) fn search_repository(&mut self, path: &Path) {
        let Ok(FileStatus { own: here, .. }) = self.status(path) else {
            return;
        };
        if !self.repositories.insert(path.to_owned()) {
            return;
        }
        if !path.as_os_str().is_empty() {
            self.found.held.push(path.to_owned());
        }
        for name in ["", "worktrees", "modules"] {
            self.open_again(&path.join(name));
        }
        for name in PROGRAM_NAMES {
            let path = path.join(name);
            if let Ok(status) = self.status(&path) {
                self.protect(path.clone(), status, here);
                if *name == "hooks"
                    && let Some(hooks) = self.locate(&path)
                {
                    self.follow_hooks(&hooks);
                }
            }
        }
        self.search_paths(path, here);
        let account = self.account.clone();
        self.protect_named(path, &account);
        // Git reads the configuration of the folder that `commondir` names, whatever else lies there.
        if let Some(content) = self.read_behind_links(&path.join("commondir")) {
            let common = path.join(OsStr::from_bytes(content.trim_ascii_end()));
            match self.locate(&common) {
                Some(common) => self.search_repository(&common),
                None => {
                    let tops = self.working_trees(path);
                    let common = self.root.real_path().join(common);
                    self.search_outer(&common, &tops, &path.join("commondir"));
                }
            }
        }
        for name in REPOSITORY_FOLDERS.iter().chain(WAITING_FOLDERS) {
            let path = path.join(name);
            match self.status(&path) {
                Ok(status) if status.kind != FileType::Directory => {
                    self.protect(path, status, here)
                }
                Ok(status) if WAITING_FOLDERS.contains(name) => WAITING_FILES
                    .iter()
                    .for_each(|name| self.search_waiting(&path, name, status.own)),
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Opens a folder of a repository again that a command has closed. Where this search must not, what
    /// lies in the folder is not known.
    fn open_again(&mut self, folder: &Path) {
        if let Err(errno @ (Errno::ACCESS | Errno::PERM)) = open_real(self.root, folder)
            && !(self.purpose.reopens && reopen(self.root, folder).is_some())
            && !self.purpose.reopens
        {
            self.miss(folder, errno);
        }
    }

    /// The content of a file, wherever links lead to it.
    fn read_behind_links(&mut self, path: &Path) -> Option<Vec<u8>> {
        let place = self.follow_way(path)?;
        match place.strip_prefix(self.root.real_path()) {
            Ok(inner) => read(self.root, inner),
            Err(_) => content(&place),
        }
    }

    /// Protects a file of a rebase or cherry-pick that waits, if it runs commands or writes to other
    /// files. Others stay
    /// writable, so that a command can continue it.
    fn search_waiting(&mut self, folder: &Path, name: &str, here: Identity) {
        let path = folder.join(name);
        let Ok(status) = self.status(&path) else {
            return;
        };
        let runs = || {
            read(self.root, &path).is_none_or(|content| {
                content.len() >= GIT_FILE_BYTES_MAX || waiting_file_is_dangerous(name, &content)
            })
        };
        if status.kind != FileType::RegularFile || runs() {
            self.protect(path, status, here);
        }
    }

    pub(super) fn protect(&mut self, path: PathBuf, status: FileStatus, here: Identity) {
        let changed = (!status.is_coverable()).then_some(status.changed);
        if self
            .purpose
            .known
            .is_none_or(|known| known.has(status.own, changed))
        {
            match status.kind {
                FileType::Symlink => {
                    self.follow(&path);
                    if is_config(&path) {
                        self.follow_config(&path);
                    }
                }
                FileType::RegularFile if is_git(&path) => self.search_outer_pointer(&path),
                FileType::RegularFile if is_config(&path) => self.follow_config(&path),
                _ => {}
            }
        }
        self.found.protect(path, status, here);
    }

    /// Protects the hooks, programs and included configuration that a repository's configuration
    /// names, and those that included configuration names.
    fn follow_config(&mut self, config: &Path) {
        let Some(repository) = config.parent() else {
            return;
        };
        let mut named = Named::default();
        let file = self.root.real_path().join(config);
        self.read_settings(&file, false, &mut named);
        self.found.git_runs_programs |= named.runs_in_reading;
        self.protect_named(repository, &named);
    }

    /// Protects what git's configuration names in the working trees of a repository.
    pub(super) fn protect_named(&mut self, repository: &Path, named: &Named) {
        let mut tops = self.working_trees(repository);
        tops.extend(named.tops.iter().map(|top| repository.join(top)));
        self.protect_named_in(&tops, &repository.join("config"), named);
    }

    /// Protects what a configuration names in these working trees.
    pub(super) fn protect_named_in(&mut self, tops: &[PathBuf], origin: &Path, named: &Named) {
        if named.paths() > PATHS_MAX {
            let why = format!("it names more than {PATHS_MAX} paths");
            self.missed.push(Unguarded::Settings(shown(origin), why));
            return;
        }
        for top in tops {
            for hooks in &named.hooks {
                if let Some(target) = self.locate_named(top, hooks) {
                    self.protect_target(target.clone(), origin);
                    self.follow_hooks(&target);
                }
            }
            for program in &named.programs {
                let Some(target) = self.locate_named(top, &named::path(program)) else {
                    continue;
                };
                match self.status(&target) {
                    Ok(status) if status.kind == FileType::RegularFile => {
                        self.protect_beside_script(&target, origin);
                        self.protect_target(target, origin);
                    }
                    Ok(_) => {}
                    Err(_) => self.named.push(target),
                }
            }
            for word in self.words_in(top, &named.words) {
                let Some(target) = self.locate_named(top, &named::path(&word)) else {
                    continue;
                };
                let known = self.purpose.known;
                if let Ok(status) = self.status(&target)
                    && status.kind == FileType::RegularFile
                    && known.is_none_or(|known| known.has(status.own, None))
                {
                    self.protect_beside_script(&target, origin);
                    self.protect_target(target, origin);
                }
            }
            for pattern in &named.patterns {
                let pattern = named::path(pattern);
                if let (Some(folder), Some(names)) = (pattern.parent(), pattern.file_name())
                    && let Some(folder) = self.locate_named(top, folder)
                {
                    let fits = |name: &str| named::fits(names.as_bytes(), name.as_bytes());
                    self.protect_files(&folder, fits, origin);
                }
            }
            for module in &named.modules {
                if let Some(folder) = self.protect_module(top, &named::path(module), origin) {
                    self.protect_target(folder, origin);
                }
            }
            for package in &named.packages {
                let package = named::path(package);
                self.protect_module(top, &package, origin);
                self.protect_module(top, &package.join("__init__"), origin);
            }
            for folder in &named.module_folders {
                self.protect_pythons_own(top, &named::path(folder), origin);
            }
        }
    }

    /// Those of the words that may be files of a working tree. Most are none: they are looked for in the
    /// list of the folder, and not one by one.
    fn words_in(&self, top: &Path, words: &BTreeSet<String>) -> Vec<String> {
        let is_plain = |word: &&String| !word.contains('/');
        let place = self.root.real_path().join(top);
        let dir = rustix::fs::open(&place, FOLDER, Mode::empty());
        let is_word = |name: &OsStr| name.to_str().is_some_and(|name| words.contains(name));
        let here = match dir {
            Ok(dir) => names_where(&dir, is_word),
            Err(_) => return words.iter().cloned().collect(),
        };
        let here = here.into_iter().filter_map(|name| name.into_string().ok());
        let deeper = words.iter().filter(|word| !is_plain(word)).cloned();
        here.chain(deeper).collect()
    }

    /// Protects what Python reads in the folders of scripts that the user runs.
    pub(super) fn search_python_folders(&mut self) {
        for folder in self.root.rules().python_folders.clone() {
            self.protect_pythons_own(Path::new(""), &folder, &folder);
        }
    }

    /// Protects the files beside a script of Python that Python takes for its own modules.
    fn protect_beside_script(&mut self, script: &Path, origin: &Path) {
        let beginning = read(self.root, script).unwrap_or_default();
        if names_python(script, &beginning)
            && let Some(folder) = script.parent()
        {
            self.protect_pythons_own(Path::new(""), folder, origin);
        }
    }

    /// Protects the files that Python takes for a module. Returns the place of its folder.
    fn protect_module(&mut self, top: &Path, module: &Path, origin: &Path) -> Option<PathBuf> {
        let target = self.locate_named(top, module)?;
        let name = module.file_name()?.to_str()?;
        for ending in ["py", "pyc", "so"] {
            self.named.push(target.with_added_extension(ending));
        }
        if let Some(folder) = self.locate_named(top, module.parent()?) {
            self.protect_files(&folder, |file| is_python_file(file, name), origin);
        }
        Some(target)
    }

    /// Protects the files in a folder that Python takes for its own modules.
    fn protect_pythons_own(&mut self, top: &Path, folder: &Path, origin: &Path) {
        let Some(folder) = self.locate_named(top, folder) else {
            return;
        };
        self.protect_files(&folder, is_pythons_own, origin);
        for module in python_modules_own() {
            let package = folder.join(module);
            self.named.push(package.with_added_extension("py"));
            self.named.push(package.join("__init__.py"));
        }
        // A folder without this file is no rival of Python's own module.
        let is_own = |name: &OsStr| python_modules_own().any(|module| name == module);
        let packages = open_real(self.root, &folder).map(|dir| names_where(&dir, is_own));
        for package in packages.unwrap_or_default() {
            let is_package = |file: &str| is_python_file(file, "__init__");
            self.protect_files(&folder.join(package), is_package, origin);
        }
    }

    /// Protects the files in a folder whose names pass.
    fn protect_files(&mut self, folder: &Path, passes: impl Fn(&str) -> bool, origin: &Path) {
        let passes = |name: &OsStr| name.to_str().is_some_and(&passes);
        let names = open_real(self.root, folder).map(|dir| names_where(&dir, passes));
        for name in names.unwrap_or_default() {
            let path = folder.join(name);
            self.protect_way(&path);
            if let Some(target) = self.locate(&path) {
                self.protect_target(target, origin);
            }
        }
    }

    /// The place of a path of git's configuration, which may begin with `~`, and may leave the
    /// workspace and return. Protects the links on the way.
    fn locate_named(&mut self, folder: &Path, path: &Path) -> Option<PathBuf> {
        let path = expanded(path, self.root.rules().home.as_deref())?;
        let path = self.root.real_path().join(folder).join(path);
        let place = self.follow_way(&path)?;
        match place.strip_prefix(self.root.real_path()) {
            Ok(inner) => Some(inner.to_owned()),
            // The workspace as commands see it.
            Err(_) => self.locate(&path),
        }
    }

    /// Before a command, remembers the index of a repository. After it, protects the files by which
    /// git would read or write other files than those of the working tree.
    fn search_paths(&mut self, repository: &Path, here: Identity) {
        let path = repository.join("index");
        let index = self
            .status(&path)
            .ok()
            .filter(|status| status.kind == FileType::RegularFile);
        let Some(known) = self.purpose.known else {
            let settled = index.filter(|status| Stamp::from(*status).is_settled());
            self.found
                .indexes
                .extend(settled.map(|status| (status.own, status.changed)));
            return;
        };
        if !self.purpose.reopens {
            return;
        }
        if let Some(status) = index.filter(|status| !known.has_index(status.own, status.changed)) {
            let id = self.id_length(repository, known);
            match self.read_index(&path, id) {
                Some(index) => {
                    for name in index.shared {
                        let path = repository.join(format!("sharedindex.{name}"));
                        if let Ok(status) = self.status(&path)
                            && self.read_index(&path, id).is_none()
                        {
                            self.found.protect(path, status, here);
                        }
                    }
                }
                None => self.found.protect(path, status, here),
            }
        }
        let path = repository.join("MERGE_RR");
        if let Ok(status) = self.status(&path)
            && !self.has_own_conflicts(repository, &path)
        {
            self.found.protect(path, status, here);
        }
    }

    /// `None` if the file cannot be read, or names other files than those of a working tree.
    fn read_index(&self, path: &Path, id: usize) -> Option<Index> {
        let open = || {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = File::from(self.root.open_real(path, flags)?);
            Ok(Box::new(file) as Box<dyn Read>)
        };
        let stat = rustix::fs::statat(&self.root.dir, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let length = u64::try_from(stat.st_size).ok()?;
        index::read(open, length, id).ok().flatten()
    }

    /// Bytes of an object's id in a repository. Only a configuration from before the command counts:
    /// a new one is moved aside.
    fn id_length(&self, repository: &Path, known: &Known) -> usize {
        let common = read(self.root, &repository.join("commondir"))
            .map(|content| repository.join(OsStr::from_bytes(content.trim_ascii_end())));
        let uses_sha256 = [Some(repository.to_owned()), common]
            .into_iter()
            .flatten()
            .filter_map(|folder| self.locate(&folder.join("config")))
            .filter(|config| {
                self.status(config)
                    .is_ok_and(|status| known.has(status.own, None))
            })
            .filter_map(|config| read(self.root, &config))
            .any(|content| named::uses_sha256(&content));
        if uses_sha256 { 32 } else { 20 }
    }

    /// Whether the conflicts whose resolutions git will record are in files of the working tree,
    /// through no link.
    fn has_own_conflicts(&self, repository: &Path, path: &Path) -> bool {
        let Some(content) = read(self.root, path) else {
            return false;
        };
        let tops = self.working_trees(repository);
        content.len() < GIT_FILE_BYTES_MAX
            && index::conflicts(&content).is_some_and(|paths| {
                paths.iter().all(|path| {
                    let path = Path::new(OsStr::from_bytes(path));
                    tops.iter().all(|top| {
                        self.locate(top).is_none_or(|top| {
                            let path = top.join(path);
                            self.locate(&path).is_some_and(|real| real == path)
                        })
                    })
                })
            })
    }

    pub(super) fn locate(&self, path: &Path) -> Option<PathBuf> {
        self.root.locate_path(path).ok()
    }

    /// The tops of a repository's working trees, as far as its files name them: hooks are relative
    /// to the tree in which git runs.
    fn working_trees(&self, repository: &Path) -> Vec<PathBuf> {
        let mut tops = vec![repository.to_owned()];
        if is_git(repository) {
            tops.extend(repository.parent().map(Path::to_owned));
        }
        let folder = repository.join("worktrees");
        // Of any number of folders that commands have made there, those of the user count.
        let is_linked = |name: &OsStr| {
            let path = folder.join(name).join("gitdir");
            self.status(&path).is_ok_and(|status| {
                let known = self.purpose.known;
                known.is_none_or(|known| known.has(status.own, None))
            })
        };
        let linked = open_real(self.root, &folder).map(|dir| names_where(&dir, is_linked));
        let linked = linked.unwrap_or_default();
        let linked = linked.iter().map(|name| folder.join(name));
        for folder in linked.chain([repository.to_owned()]) {
            // The path of the `.git` file in the working tree.
            let content = read(self.root, &folder.join("gitdir")).unwrap_or_default();
            let path = folder.join(OsStr::from_bytes(content.trim_ascii()));
            tops.extend(path.parent().map(Path::to_owned));
        }
        tops
    }

    /// Protects the target of `origin`, unless it contains `origin`: a folder cannot be closed
    /// because of a file in it.
    pub(super) fn protect_target(&mut self, target: PathBuf, origin: &Path) {
        let is_above = target.as_os_str().is_empty() || origin.starts_with(&target);
        if !is_above {
            self.named.push(target.clone());
        }
        if !is_above
            && let Ok(status) = self.status(&target)
            && status.is_coverable()
            && let Some(above) = target.parent().and_then(|above| self.status(above).ok())
        {
            self.found.protect(target, status, above.own);
        }
    }

    /// Protects the target of a protected link as well.
    pub(super) fn follow(&mut self, link: &Path) {
        let Some(target) = self.locate(link) else {
            if is_git(link) {
                self.search_outer_link(link);
            }
            return;
        };
        if is_git(link)
            && self
                .status(&target)
                .is_ok_and(|status| status.kind == FileType::Directory)
        {
            self.search_repository(&target);
        } else {
            self.protect_target(target, link);
        }
    }
}

/// Whether a file of a repository is its configuration.
fn is_config(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name == "config" || name == "config.worktree")
}
