//! What tools may touch: paths, environment, processes and memory, in one place for every tool.
//! This file decides by name; [`super::Root`] and the sandboxes enforce the decision.

#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
use std::collections::HashSet;
use std::{
    ffi::{OsStr, OsString},
    path::{Component, Path, PathBuf},
    time::Duration,
};

use callboard_actors::ports::ExecLimits;
use serde::{Deserialize, Serialize};

use crate::{real_path::real_or_nearest, visible::is_invisible};

mod lists;

use lists::{
    DEPENDENCIES, FOLDED, HOOK_RUNNER, HOOK_RUNNER_ENDINGS, POINTERS, PROTECTED_ENDINGS,
    PROTECTED_IN_PROJECTS, PROTECTED_PLACES, SENSITIVE_ENDINGS, SENSITIVE_NAMES, SENSITIVE_PLACES,
};

/// Path of the workspace inside the Linux sandbox. A model never sees the host's own path.
pub const WORKSPACE: &str = "/workspace";

/// Niceness of commands relative to the host: the thread that stops a fork bomb must get a
/// processor.
pub const NICENESS: i32 = 10;

/// Longest run time that a caller may request.
pub const EXEC_TIME_MAX: Duration = Duration::from_millis(ExecLimits::DEFAULT.time_ms);

/// Most concurrent commands under one spawner; further commands wait. A host that may open few
/// files runs one command for every sixteen of them: a command takes three to five descriptors, and
/// the rest is for other uses.
pub const COMMANDS_MAX: usize = 1024;

/// `PATH` inside a sandbox.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// Port of the forwarder inside a sandbox whose commands may reach listed hosts.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(crate) const FORWARD_PORT: u16 = 3128;

/// Path of the proxy's socket inside the sandbox.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(crate) const FORWARD_SOCKET: &str = "/run/callboard/proxy";

/// Path of the program that listens at the port and forwards to the socket.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(crate) const FORWARDER: &str = "/run/callboard/forward";

/// Environment variables that name the proxy. Programs differ in the spelling that they read.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(crate) const PROXY_VARIABLES: &[&str] = &[
    "http_proxy",
    "https_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
];

/// Hosts that programs reach without the proxy: those inside the sandbox.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(crate) const NO_PROXY: &str = "localhost,127.0.0.1,::1";

/// The whole environment of a command. Nothing is inherited, since the host's environment holds
/// keys.
pub const ENVIRONMENT: &[(&str, &str)] = &[
    ("PATH", PATH),
    ("HOME", "/tmp"),
    ("LANG", "C.UTF-8"),
    ("TERM", "dumb"),
    ("NO_COLOR", "1"),
    ("PAGER", "cat"),
    ("GIT_PAGER", "cat"),
    // `git status` only reads: without this it would write the index again.
    ("GIT_OPTIONAL_LOCKS", "0"),
];

/// Names that are refused. The lists of `lists.rs` always apply, and a host may add names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRules {
    /// More file names that must not be read or written, in lower case.
    pub sensitive_names: Vec<String>,
    /// More file or folder names that must not be written, in lower case.
    pub protected_names: Vec<String>,
    /// Folders that must not be written, relative to the root; for example one that holds skills.
    #[serde(default, with = "raw_paths")]
    pub protected_folders: Vec<PathBuf>,
    /// Files and folders that must not be read or written, relative to the root; for example a file
    /// with a key that the configuration names.
    #[serde(default, with = "raw_paths")]
    pub sensitive_paths: Vec<PathBuf>,
    /// Home folder of the account whose git works in the folder. Git's configuration there may name
    /// programs of the workspace, which must not be written; `~` in a repository's configuration is
    /// this folder. Unread if absent.
    #[serde(default, with = "raw_path")]
    pub home: Option<PathBuf>,
    /// More configuration files of the account's git, which its environment names. A relative path
    /// begins in the root. Unread without a home folder.
    #[serde(default, with = "raw_paths")]
    pub git_config: Vec<PathBuf>,
    /// Folders of scripts that the user's Python runs outside of the sandbox, relative to the root.
    /// Python searches there first: a file that takes the place of one of Python's own modules
    /// (`json.py`) must not be written.
    #[serde(default, with = "raw_paths")]
    pub python_folders: Vec<PathBuf>,
}

/// Whether Python may run a file, given by its place without links: by its ending, or by its first line.
/// A file without either is one if it is no program of the machine.
#[cfg(any(test, feature = "cli"))]
fn is_python_script(file: &Path) -> bool {
    use std::io::Read as _;
    let mut beginning = Vec::new();
    if !file.is_file() {
        return false;
    }
    let read = std::fs::File::open(file)
        .and_then(|file| file.take(FIRST_LINE_MAX).read_to_end(&mut beginning));
    read.is_err() || names_python(file, &beginning)
}

/// As much of a first line as Linux reads.
#[cfg(any(test, feature = "cli"))]
const FIRST_LINE_MAX: u64 = 256;

/// Whether a file with this name and beginning may be a script of Python.
#[cfg(any(
    test,
    feature = "cli",
    all(feature = "sandbox-linux", target_os = "linux")
))]
pub(super) fn names_python(file: &Path, beginning: &[u8]) -> bool {
    match beginning.strip_prefix(b"#!") {
        _ if file
            .extension()
            .is_some_and(|ending| ending == "py" || ending == "pyw") =>
        {
            true
        }
        Some(line) => {
            let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
            String::from_utf8_lossy(line).contains("py")
        }
        None => file.extension().is_none() && !beginning.starts_with(b"\x7fELF"),
    }
}

/// Paths as their bytes: a path that is no UTF-8 has no other form, and rules that hold one must reach
/// the helpers too.
mod raw_paths {
    use std::{ffi::OsString, path::PathBuf};

    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(paths.iter().map(|path| path.as_os_str()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<PathBuf>, D::Error> {
        let paths = Vec::<OsString>::deserialize(from)?;
        Ok(paths.into_iter().map(PathBuf::from).collect())
    }
}

/// The same for a path that may be absent.
mod raw_path {
    use std::{ffi::OsString, path::PathBuf};

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(super) fn serialize<S: Serializer>(
        path: &Option<PathBuf>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        path.as_ref().map(|path| path.as_os_str()).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<PathBuf>, D::Error> {
        Ok(Option::<OsString>::deserialize(from)?.map(PathBuf::from))
    }
}

impl PathRules {
    /// Adds a file or folder that must not be written, and the links that lead to it. What does not
    /// lie in `root` is ignored.
    #[must_use]
    pub fn and_protected(mut self, root: &Path, path: &Path) -> Self {
        for place in way(root, path) {
            let parts = lower(&place);
            let is_known = (1..=parts.len()).any(|end| {
                parts
                    .get(..end)
                    .and_then(<[String]>::split_last)
                    .is_some_and(|(name, folder)| self.is_protected_name(folder, name))
            });
            if !is_known {
                self.protected_folders.push(place);
            }
        }
        self
    }

    /// Adds a program that the user runs outside of the sandbox, and the links that lead to it. Of a
    /// script of Python, the folder counts too ([`Self::python_folders`]). What does not lie in `root`
    /// is ignored.
    #[cfg(any(test, feature = "cli"))]
    #[must_use]
    pub(crate) fn and_program(mut self, root: &Path, path: &Path) -> Self {
        let script = std::fs::canonicalize(path).ok();
        let folder = script
            .filter(|script| is_python_script(script))
            .as_deref()
            .and_then(Path::parent)
            .and_then(|folder| folder.strip_prefix(real_or_nearest(root)).ok())
            .map(Path::to_owned);
        self.python_folders.extend(folder);
        self.and_protected(root, path)
    }

    /// Adds a file or folder that must not be read or written, and the links that lead to it. What
    /// does not lie in `root` is ignored.
    #[cfg(any(test, feature = "cli"))]
    #[must_use]
    pub(crate) fn and_sensitive(mut self, root: &Path, path: &Path) -> Self {
        for place in way(root, path) {
            if !self.sensitive_paths.contains(&place) {
                self.sensitive_paths.push(place);
            }
        }
        self.and_protected(root, path)
    }

    /// Sets the home folder of the account whose git works in the folder.
    #[must_use]
    pub fn with_home(mut self, home: Option<PathBuf>) -> Self {
        self.home = home.filter(|home| home.is_absolute());
        self
    }

    /// Adds the configuration files of git that these variables of the account's environment name:
    /// `GIT_CONFIG_GLOBAL`, `GIT_CONFIG_SYSTEM` and `XDG_CONFIG_HOME`.
    #[must_use]
    pub fn with_git_variables(mut self, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let path = |name| variable(name).filter(|path| !path.is_empty());
        let files = ["GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"].into_iter();
        self.git_config
            .extend(files.filter_map(path).map(PathBuf::from));
        let folder = path("XDG_CONFIG_HOME").map(PathBuf::from);
        self.git_config
            .extend(folder.map(|folder| folder.join("git/config")));
        self
    }

    /// Whether `path` holds keys. `path` is relative to the root, links resolved.
    pub fn is_sensitive(&self, path: &Path) -> bool {
        let mut parts = lower(path);
        if let Some(name) = parts.last_mut() {
            name.truncate(without_backup(name).len());
        }
        let Some(name) = parts.last().map(String::as_str) else {
            return false;
        };
        is_env_file(name)
            || SENSITIVE_NAMES.contains(&name)
            || SENSITIVE_ENDINGS
                .iter()
                .any(|ending| name.len() > ending.len() && name.ends_with(ending))
            || self.sensitive_names.iter().any(|own| is_named(own, name))
            || SENSITIVE_PLACES.iter().any(|place| holds(&parts, place))
            || self
                .sensitive_paths
                .iter()
                .any(|own| parts.starts_with(&lower(own)))
    }

    /// Whether only the user may write `path`, which is relative to the root, links resolved.
    pub fn is_protected(&self, path: &Path) -> bool {
        let parts = lower(path);
        (1..=parts.len()).any(|end| {
            let Some((name, folder)) = parts.get(..end).and_then(<[String]>::split_last) else {
                return false;
            };
            name == ".git" || self.is_pointer(folder, name) || self.is_protected_name(folder, name)
        })
    }

    /// Whether only the user may write `name` in `folder` (relative to the root), both in lower
    /// case. `.git` does not count; the names inside it are checked instead.
    pub(crate) fn is_protected_name(&self, folder: &[String], name: &str) -> bool {
        let is = |place: &&[&str]| is_at(place, folder, name);
        if name == ".git" {
            return false;
        }
        PROTECTED_PLACES.iter().any(is)
            || self.protected_names.iter().any(|own| is_named(own, name))
            || self
                .protected_folders
                .iter()
                .filter(|path| path.file_name().map(lower_name).as_deref() == Some(name))
                .any(|path| is_path(&lower(path), folder, name))
            || ((PROTECTED_IN_PROJECTS.iter().any(is)
                || is_of_hook_runner(name)
                || PROTECTED_ENDINGS
                    .iter()
                    .any(|ending| name.ends_with(ending)))
                && !is_of_dependencies(folder))
    }

    /// The places of keys below a folder with this name, all in lower case: `gh/hosts.yml` in `.config`.
    #[cfg(unix)]
    #[allow(clippy::unused_self, reason = "a rule like the others")]
    pub(crate) fn keys_below(&self, folder: &[String], name: &str) -> Vec<PathBuf> {
        let begins = |place: &&&[&str]| {
            (1..place.len()).find(|end| {
                place
                    .get(..*end)
                    .is_some_and(|begin| is_at(begin, folder, name))
            })
        };
        let places = SENSITIVE_PLACES.iter();
        places
            .filter_map(|place| place.get(begins(&place)?..))
            .map(|rest| rest.iter().collect())
            .collect()
    }

    /// How many of the folders directly above `name` make it protected or sensitive by their own
    /// names, all in lower case: two for `hosts.yml` in `.config/gh`.
    #[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
    pub(crate) fn naming_folders(&self, folder: &[String], name: &str) -> usize {
        let named = without_backup(name);
        let keys = SENSITIVE_PLACES
            .iter()
            .filter(|place| is_at(place, folder, named));
        let ways = self.protected_folders.iter().filter(|path| {
            path.file_name().map(lower_name).as_deref() == Some(name)
                && is_path(&lower(path), folder, name)
        });
        PROTECTED_PLACES
            .iter()
            .chain(PROTECTED_IN_PROJECTS)
            .chain(POINTERS)
            .filter(|place| is_at(place, folder, name))
            .chain(keys)
            .map(|place| place.len())
            .chain(ways.map(|path| path.iter().count()))
            .max()
            .map_or(0, |parts| parts.saturating_sub(1))
    }

    /// Whether only a folder may have this name in `folder`, both in lower case.
    #[allow(clippy::unused_self, reason = "a rule like the others")]
    pub(crate) fn is_pointer(&self, folder: &[String], name: &str) -> bool {
        POINTERS.iter().any(|place| is_at(place, folder, name))
    }

    /// Whether protected files lie in folders that are called `name` in `folder`, both in lower
    /// case: a link of this name would make other files take their place.
    #[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
    pub(crate) fn holds_protected(&self, folder: &[String], name: &str) -> bool {
        let is_above = |place: &&[&str]| {
            (1..place.len()).any(|end| {
                place
                    .get(..end)
                    .is_some_and(|above| is_at(above, folder, name))
            })
        };
        let is_on_the_way = |path: &PathBuf| {
            let mut rest = path.iter().skip(folder.len());
            rest.next().is_some_and(|part| lower_name(part) == name)
                && rest.next().is_some()
                && lower(path).starts_with(folder)
        };
        PROTECTED_PLACES.iter().chain(POINTERS).any(is_above)
            || self.protected_folders.iter().any(is_on_the_way)
            || (!is_of_dependencies(folder) && PROTECTED_IN_PROJECTS.iter().any(is_above))
    }

    /// The names that the search compares first: no other name is sensitive or protected, in
    /// whatever folder.
    #[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
    pub(crate) fn names(&self) -> Names {
        let last = |place: &&[&str]| place.last().copied().unwrap_or_default().to_owned();
        let places = PROTECTED_PLACES
            .iter()
            .chain(PROTECTED_IN_PROJECTS)
            .chain(SENSITIVE_PLACES)
            .map(last);
        let known = SENSITIVE_NAMES.iter().map(|name| (*name).to_owned());
        let own = self
            .sensitive_names
            .iter()
            .chain(&self.protected_names)
            .map(|own| lower_name(OsStr::new(own)));
        let folders = self
            .protected_folders
            .iter()
            .chain(&self.sensitive_paths)
            .filter_map(|path| path.file_name())
            .map(lower_name);
        Names(places.chain(known).chain(own).chain(folders).collect())
    }
}

/// A set of names, in lower case, that may be sensitive or protected.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
#[derive(Debug)]
pub(crate) struct Names(HashSet<String>);

#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
impl Names {
    /// Whether the set contains a name, given in lower case.
    pub(crate) fn has(&self, lower: &str) -> bool {
        let lower = without_backup(lower);
        self.0.contains(lower)
            || is_env_file(lower)
            || SENSITIVE_ENDINGS
                .iter()
                .chain(PROTECTED_ENDINGS)
                .any(|ending| lower.ends_with(ending))
            || is_of_hook_runner(lower)
    }
}

/// The places of protected files, as they lie in a home folder.
#[cfg(any(test, feature = "cli"))]
pub(crate) fn protected_places() -> impl Iterator<Item = PathBuf> {
    PROTECTED_PLACES
        .iter()
        .chain(PROTECTED_IN_PROJECTS)
        .map(|place| place.iter().collect())
}

/// A name without the sign of an editor's backup, which holds the same keys.
fn without_backup(name: &str) -> &str {
    name.strip_suffix('~').unwrap_or(name)
}

/// Whether a name, in lower case, is that of settings of [`HOOK_RUNNER`].
fn is_of_hook_runner(name: &str) -> bool {
    name.strip_prefix('.')
        .unwrap_or(name)
        .split_once('.')
        .is_some_and(|(stem, ending)| {
            HOOK_RUNNER.contains(&stem) && HOOK_RUNNER_ENDINGS.contains(&ending)
        })
}

/// Most links on a way, as the kernel counts them.
const LINKS_MAX: usize = 40;

/// The places in `root`, relative to it, where a change would lead `path` to something else: its real
/// path, and the path that goes on behind each link on the way. Nothing needs to exist.
fn way(root: &Path, path: &Path) -> Vec<PathBuf> {
    let root = real_or_nearest(root);
    let mut todo: Vec<OsString> = Vec::new();
    let mut here = PathBuf::new();
    let mut next = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut places = Vec::new();
    for _ in 0..=LINKS_MAX {
        if next.is_absolute() {
            here = PathBuf::from("/");
        }
        todo.extend(next.components().rev().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
        }));
        let mut target = None;
        while let Some(name) = todo.pop() {
            if name == ".." {
                here.pop();
                continue;
            }
            let one = here.join(&name);
            target = std::fs::read_link(&one).ok();
            if target.is_some() {
                let rest = todo.iter().rev().take_while(|name| *name != "..");
                places.push(rest.fold(one, |place, name| place.join(name)));
                break;
            }
            here = one;
        }
        match target {
            Some(target) => next = target,
            None => {
                places.push(here);
                break;
            }
        }
    }
    places
        .iter()
        .filter_map(|place| place.strip_prefix(&root).ok())
        .filter(|place| !place.as_os_str().is_empty())
        .map(Path::to_owned)
        .collect()
}

/// Whether a name in a folder is the given place.
fn is_at(place: &[&str], folder: &[String], name: &str) -> bool {
    place.split_last().is_some_and(|(last, above)| {
        *last == name
            && folder.len() >= above.len()
            && folder
                .iter()
                .rev()
                .zip(above.iter().rev())
                .all(|(part, name)| part == name)
    })
}

/// Whether a path, in lower case, leads through a folder that package managers fill.
pub(crate) fn is_of_dependencies(path: &[String]) -> bool {
    path.iter()
        .any(|part| DEPENDENCIES.contains(&part.as_str()))
}

fn is_path(path: &[String], folder: &[String], name: &str) -> bool {
    path.split_last()
        .is_some_and(|(last, above)| last == name && above == folder)
}

/// The names of a path in lower case.
pub(crate) fn lower(path: &Path) -> Vec<String> {
    path.iter().map(lower_name).collect()
}

/// A name in the form used for comparison: two names that any file system takes for the same one are
/// equal in it. `.ENV` is `.env` where case is folded; so are `.\u{17f}sh` and `.\u{df}h` for `.ssh`, and
/// some file systems ignore characters without a shape.
pub(crate) fn lower_name(name: &OsStr) -> String {
    let name = name.to_string_lossy();
    if name.is_ascii() {
        return name.to_ascii_lowercase();
    }
    let mut lower = String::with_capacity(name.len());
    for c in name.chars().filter(|c| !is_invisible(*c)) {
        match FOLDED.iter().find(|(folded, _)| *folded == c) {
            Some((_, letters)) => lower.push_str(letters),
            None => lower.extend(c.to_lowercase()),
        }
    }
    lower
}

/// Whether a name of a host's own list is `lower`, a name in the form used for comparison.
fn is_named(own: &str, lower: &str) -> bool {
    own == lower || (!own.is_ascii() && lower_name(OsStr::new(own)) == lower)
}

/// What the names of variants of `.env` and `.envrc` begin with, such as `.env.production`.
const ENV_STARTS: [&str; 2] = [".env.", ".envrc."];

/// What the name of an example that is made to be read ends with, as in `.env.local.example` and
/// `example.env`.
const EXAMPLES: [&str; 4] = ["example", "sample", "template", "dist"];

/// Whether the name is that of a variant of `.env`, such as `.env.production` or `prod.env`, but not
/// an example made to be read.
fn is_env_file(name: &str) -> bool {
    let variant = ENV_STARTS
        .iter()
        .find_map(|start| name.strip_prefix(start))
        .or_else(|| name.strip_suffix(".env"));
    variant.is_some_and(|variant| {
        let last = variant.rsplit(['.', '-', '_']).next();
        !last.is_some_and(|last| EXAMPLES.contains(&last))
    })
}

/// Why a folder is no workspace: the names of the keys in it are known only together with the names
/// above it, such as `credentials` in `.aws`. `None` for every other folder. The user's own data folder
/// is not of the list, because the host refuses it with its own words.
pub(crate) fn refused_workspace(folder: &Path) -> Option<String> {
    let parts = lower(&real_or_nearest(folder));
    let is_of = |place: &&[&str]| {
        place.last() != Some(&"callboard")
            && (holds(&parts, place)
                || (1..place.len()).any(|end| {
                    let above = place.get(..end).unwrap_or_default();
                    parts.len() > end
                        && parts
                            .iter()
                            .rev()
                            .zip(above.iter().rev())
                            .all(|(part, name)| part == name)
                }))
    };
    SENSITIVE_PLACES.iter().any(is_of).then(|| {
        format!(
            "the workspace {} may hold keys or passwords; name a project's folder",
            folder.display()
        )
    })
}

fn holds(parts: &[String], place: &[&str]) -> bool {
    parts
        .windows(place.len())
        .any(|window| window.iter().zip(place).all(|(part, name)| part == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn rules_with_paths_that_are_no_text_reach_the_helpers() {
        use std::os::unix::ffi::OsStrExt as _;
        let odd = PathBuf::from(OsStr::from_bytes(b"a/\xff.toml"));
        let rules = PathRules {
            protected_folders: vec![odd.clone()],
            sensitive_paths: vec![odd.clone()],
            home: Some(odd.clone()),
            git_config: vec![odd.clone()],
            python_folders: vec![odd],
            ..PathRules::default()
        };

        let written = serde_json::to_vec(&rules).unwrap();
        assert_eq!(
            serde_json::from_slice::<PathRules>(&written).unwrap(),
            rules
        );
    }

    #[test]
    fn files_that_hold_keys_are_known_by_name() {
        let rules = PathRules {
            sensitive_names: vec!["vault.txt".to_owned()],
            ..PathRules::default()
        };
        let sensitive = |path: &&&str| rules.is_sensitive(Path::new(path));
        let yes = [
            ".env",
            ".ENV",
            "a/.env",
            ".env.local",
            ".env.production",
            "id_rsa",
            "deep/id_ed25519",
            "x.pem",
            "server.KEY",
            ".netrc",
            ".npmrc",
            ".aws/credentials",
            "home/.aws/credentials",
            ".aws/credentials~",
            ".ssh/known_hosts",
            "vault.txt",
            ".docker/config.json",
            ".env~",
            "deep/id_rsa~",
            ".envrc",
            ".envrc.private",
            "prod.env",
            "deploy/Staging.ENV",
            "prod.env~",
            "counterexample.env",
            "example.prod.env",
            ".env.example.local",
        ];
        let no = [
            "",
            ".env.example",
            ".env.local.example",
            ".env.sample",
            ".envrc.example",
            "example.env",
            "prod.example.env",
            "env",
            "prodenv",
            "prod.env.md",
            "environment.rs",
            "id_rsa.pub",
            "pem",
            ".pem",
            "keys.rs",
            "aws/credentials",
            "credentials",
            "docker/config.json",
            "monkey",
        ];

        assert_eq!(
            yes.iter()
                .filter(|path| !sensitive(path))
                .collect::<Vec<_>>(),
            Vec::<&&str>::new()
        );
        assert_eq!(
            no.iter().filter(|path| sensitive(path)).collect::<Vec<_>>(),
            Vec::<&&str>::new()
        );
    }

    #[test]
    fn what_makes_other_programs_run_is_for_the_user_to_write() {
        let rules = PathRules {
            protected_names: vec!["notes.json".to_owned()],
            ..PathRules::default()
        };
        let rules = rules
            .and_protected(Path::new("/nowhere"), Path::new("/nowhere/My/Skills"))
            .and_protected(Path::new("/nowhere"), Path::new("/elsewhere"));
        let protected = |path: &&&str| rules.is_protected(Path::new(path));
        let yes = [
            ".git",
            ".git/hooks/pre-commit",
            ".git/config",
            "sub/.git/config",
            ".GIT/hooks/x",
            ".callboard/state",
            "callboard.toml",
            ".mcp.json",
            ".vscode/mcp.json",
            ".bashrc",
            ".config/fish/config.fish",
            ".vscode/tasks.json",
            ".envrc",
            "deep/notes.json",
            "my/skills/x/SKILL.md",
            "AGENTS.md",
            "sub/CLAUDE.md",
            ".claude/settings.json",
            ".cursor/rules/x.mdc",
            ".husky/pre-commit",
            ".idea/workspace.xml",
            ".vscode/settings.json",
            "sub/.vscode/launch.json",
            "team.code-workspace",
            ".tool-versions",
            ".pre-commit-config.yaml",
            "sub/.cargo/config.toml",
            ".yarnrc.yml",
            ".pdbrc",
            ".Rprofile",
            "sub/.helix/languages.toml",
            ".dir-locals-2.el",
            "opencode.json",
            ".kiro/hooks/x.kiro.hook",
            ".github/instructions/x.instructions.md",
            "x.sublime-project",
            ".hg/hgrc",
            ".hg/hgrc-not-shared",
            ".hg/sharedpath",
            "lefthook-local.yml",
            ".lefthook.toml",
            ".config/lefthook.json",
            ".lefthook-local/pre-commit/x.sh",
            ".local/bin/git",
            ".config/systemd/user/x.timer",
            ".local/share/callboard/trust.json",
            "_darcs/prefs/defaults",
            "sub/.svn/wc.db",
            "_FOSSIL_",
            ".poetry/plugins/x.py",
            "tools/bazel",
            "sub/pnpm-workspace.yaml",
            ".python-version",
            ".local/lib/python3.11/site-packages/usercustomize.py",
            ".vim/plugin/x.vim",
            ".vs/x/.suo",
            ".jj/repo",
            "sub/.jj/repo/config.toml",
            ".config/git/config",
            "node_modules/x/.git/config",
            "node_modules/x/.envrc",
        ];
        let no = [
            "",
            "git/hooks",
            ".github/workflows/ci.yml",
            ".gitignore",
            ".gitattributes",
            "src/config",
            "config/fish",
            "bashrc",
            "callboard.toml.md",
            ".vscode/extensions.json",
            "tasks.json",
            "other/my/skills/x",
            "agents.md.txt",
            ".hg/dirstate",
            "repo/config.toml",
            ".jj/config.toml",
            "hgrc",
            ".config/gitty",
            ".cargo/audit.toml",
            "lefthook.md",
            "x.lefthook.yml",
            ".local/share/x",
            "node_modules/x/lefthook.yml",
            "node_modules/x/.yarnrc.yml",
            "node_modules/x/AGENTS.md",
            "node_modules/x/.vscode/settings.json",
        ];

        assert_eq!(
            yes.iter()
                .filter(|path| !protected(path))
                .collect::<Vec<_>>(),
            Vec::<&&str>::new()
        );
        assert_eq!(
            no.iter().filter(|path| protected(path)).collect::<Vec<_>>(),
            Vec::<&&str>::new()
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_named_file_is_known_by_each_way_that_leads_to_it() {
        use std::os::unix::fs::symlink;
        let top = tempfile::tempdir().unwrap();
        let at = |name: &str| top.path().join(name);
        std::fs::create_dir_all(at("ws/v1/deep")).unwrap();
        symlink("v1", at("ws/current")).unwrap();
        symlink("../ws/current/deep/key", at("ws/named")).unwrap();
        symlink(at("ws/named"), at("outside")).unwrap();
        symlink("ws", at("other")).unwrap();
        symlink("missing/key", at("ws/dangling")).unwrap();
        symlink("round", at("ws/v1/round")).unwrap();
        let of = |name: &str| {
            let rules = PathRules::default().and_sensitive(&at("other"), &at(name));
            let names = rules.names();
            for path in &rules.sensitive_paths {
                assert!(rules.is_sensitive(path) && rules.is_protected(path));
                assert!(names.has(&lower_name(path.file_name().unwrap())));
            }
            let mut all = rules.sensitive_paths;
            all.sort();
            all
        };

        assert_eq!(
            of("outside"),
            ["current/deep/key", "named", "v1/deep/key"].map(PathBuf::from)
        );
        assert_eq!(
            of("other/dangling"),
            ["dangling", "missing/key"].map(PathBuf::from)
        );
        assert_eq!(of("ws/a/../b"), [PathBuf::from("b")]);
        assert_eq!(of("ws/v1/round"), [PathBuf::from("v1/round")]);
        assert_eq!(
            of("ws/current/../far"),
            ["current", "far"].map(PathBuf::from)
        );
        assert_eq!(of("other"), [] as [PathBuf; 0]);
        assert_eq!(of("elsewhere"), [] as [PathBuf; 0]);
    }

    #[test]
    fn what_lies_in_a_sensitive_folder_is_sensitive() {
        let rules = PathRules::default()
            .and_sensitive(Path::new("/nowhere"), Path::new("/nowhere/Var/data"));

        assert!(rules.is_sensitive(Path::new("var/data/x/y.db")));
        assert!(rules.is_protected(Path::new("var/data/x/y.db")));
        assert!(!rules.is_sensitive(Path::new("var/database")));
        assert!(!rules.is_sensitive(Path::new("x/var/data")));
    }

    #[test]
    fn a_name_is_known_in_every_spelling_that_a_file_system_takes_for_it() {
        let rules = PathRules {
            sensitive_names: vec!["straße.txt".to_owned()],
            ..PathRules::default()
        };
        let names = rules.names();
        for path in [
            ".aws/credential\u{17f}",
            "id_ed25519_\u{17f}k",
            "id_ed25519_s\u{212a}",
            "server.\u{212a}EY",
            ".\u{17f}\u{17f}h/x",
            ".\u{df}h/x",
            ".e\u{200d}nv",
            "Stra\u{1e9e}e.TXT",
        ] {
            assert!(rules.is_sensitive(Path::new(path)), "{path}");
        }
        for path in [
            ".g\u{200c}it/config",
            ".git\u{feff}/hooks/x",
            ".ba\u{17f}hrc",
            ".vscode/ta\u{17f}ks.json",
            "sub/AGENT\u{17f}.md",
            "\u{ad}.envrc",
            ".con\u{fb01}g/\u{fb01}sh/x",
        ] {
            assert!(rules.is_protected(Path::new(path)), "{path}");
        }
        for name in [".g\u{200c}it", ".ba\u{17f}hrc", "stra\u{df}e.txt"] {
            let lower = lower_name(OsStr::new(name));
            assert!(lower == ".git" || names.has(&lower), "{name}");
        }
        assert!(
            !rules.is_protected(Path::new("größe.md")) && !rules.is_sensitive(Path::new("ключ"))
        );
    }

    #[test]
    fn the_page_on_tools_names_all_that_is_protected() {
        let page = include_str!("../../docs/tools.md").to_lowercase();
        let endings = PROTECTED_ENDINGS.iter().map(|ending| format!("*{ending}"));
        let names = PROTECTED_PLACES
            .iter()
            .chain(PROTECTED_IN_PROJECTS)
            .map(|place| place.join("/"))
            .chain(HOOK_RUNNER.map(str::to_owned))
            .chain(endings);

        assert_eq!(
            names
                .filter(|name| !page.contains(&format!("`{name}`")))
                .collect::<Vec<_>>(),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_folder_of_keys_is_no_workspace() {
        let home = tempfile::tempdir().unwrap();
        let made = |path: &str| {
            let path = home.path().join(path);
            std::fs::create_dir_all(&path).unwrap();
            path
        };
        for path in [
            ".ssh",
            ".ssh/x",
            ".aws",
            ".AWS",
            ".aws/sso/cache",
            ".gnupg",
            ".kube",
            ".docker",
            ".cargo",
            ".config",
            ".config/gh",
            ".config/gcloud/x",
            ".config/op",
            ".config/rclone",
            ".password-store/x",
            ".local/share/keyrings",
        ] {
            let refused = refused_workspace(&made(path)).unwrap();
            assert!(
                refused.contains("may hold keys") && !refused.contains('\n'),
                "{refused}"
            );
        }
        for path in [
            "",
            "x",
            ".config/nvim",
            "aws",
            "config",
            ".aws/x",
            ".docker/x",
            "x/.local/share/callboard/y",
        ] {
            assert_eq!(refused_workspace(&made(path)), None, "{path}");
        }
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(".ssh", home.path().join("innocent")).unwrap();
            assert!(refused_workspace(&home.path().join("innocent")).is_some());
        }
    }
}
