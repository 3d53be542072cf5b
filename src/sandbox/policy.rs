//! What a tool may touch, in one place for every tool: paths, environment, processes, memory (FAULTS, "Only bash is sandboxed").
//! Pure: names are judged here, [`super::Root`] and the jails enforce the judgement.

#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
use std::collections::HashSet;
use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    time::Duration,
};

use callboard_actors::ports::ExecLimits;
use serde::{Deserialize, Serialize};

/// Where the workspace lies inside the Linux sandbox. The host's own path is never shown to a model (DESIGN §10).
pub const WORKSPACE: &str = "/workspace";

/// How far commands stand behind the host for a processor: the thread that stops a fork bomb must get one (FAULTS F3).
pub const NICENESS: i32 = 10;

/// Longest run that a caller may ask for.
pub const EXEC_TIME_MAX: Duration = Duration::from_millis(ExecLimits::DEFAULT.time_ms);

/// The most commands that run at once under one spawner; more wait for their turn. Where the host may open few files, it is one for
/// every sixteen of these: a command takes three to five, and the rest is for others.
pub const COMMANDS_MAX: usize = 1024;

/// Where programs are looked for inside a sandbox.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// Where the proxy is found inside a sandbox whose commands may reach listed hosts.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(crate) const FORWARD_PORT: u16 = 3128;

/// The proxy's socket inside.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(crate) const FORWARD_SOCKET: &str = "/run/callboard/proxy";

/// The program that listens at the port and hands on to the socket.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(crate) const FORWARDER: &str = "/run/callboard/forward";

/// What tells programs of the proxy: there is no one spelling that all of them know.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(crate) const PROXY_VARIABLES: &[&str] = &["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];

/// What is inside is reached without the proxy.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(crate) const NO_PROXY: &str = "localhost,127.0.0.1,::1";

/// The whole environment of a command. Nothing is inherited: keys live in the host's environment (FAULTS F5).
pub const ENVIRONMENT: &[(&str, &str)] =
    &[("PATH", PATH), ("HOME", "/tmp"), ("LANG", "C.UTF-8"), ("TERM", "dumb"), ("NO_COLOR", "1"), ("PAGER", "cat"), ("GIT_PAGER", "cat")];

/// File names that hold keys, in lower case (REQUIREMENTS U-02).
const SENSITIVE_NAMES: &[&str] = &[
    ".env",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ecdsa_sk",
    "id_ed25519",
    "id_ed25519_sk",
    ".netrc",
    "_netrc",
    ".npmrc",
    ".pypirc",
    ".pgpass",
    ".my.cnf",
    ".htpasswd",
    ".git-credentials",
    ".vault-token",
    "credentials.tfrc.json",
];

/// Endings of files that hold keys.
const SENSITIVE_ENDINGS: &[&str] = &[".pem", ".key", ".p12", ".pfx", ".jks", ".keystore", ".kdbx", ".ppk"];

/// Folders and files that hold keys, as the end of a folder's path or anything below it.
const SENSITIVE_PLACES: &[&[&str]] = &[
    &[".aws", "credentials"],
    &[".aws", "sso"],
    &[".ssh"],
    &[".gnupg"],
    &[".azure"],
    &[".kube", "config"],
    &[".docker", "config.json"],
    &[".config", "gcloud"],
    &[".config", "gh", "hosts.yml"],
    &[".cargo", "credentials"],
    &[".cargo", "credentials.toml"],
];

/// What only the user may write: files that make other programs run commands. Anything below counts too.
const PROTECTED_PLACES: &[&[&str]] = &[
    &[".git"],
    &[".gitconfig"],
    &[".gitmodules"],
    &[".callboard"],
    &["callboard.toml"],
    &[".mcp.json"],
    &["mcp.json"],
    &[".bashrc"],
    &[".bash_profile"],
    &[".bash_login"],
    &[".bash_logout"],
    &[".bash_aliases"],
    &[".profile"],
    &[".zshrc"],
    &[".zshenv"],
    &[".zprofile"],
    &[".zlogin"],
    &[".zlogout"],
    &[".kshrc"],
    &[".cshrc"],
    &[".tcshrc"],
    &[".inputrc"],
    &[".envrc"],
    &[".config", "fish"],
    &[".ssh"],
];

/// What editors, agents, version managers and runners of git hooks read when a folder is opened or entered or a commit is made: it runs
/// commands, or it is taken for the user's instructions. Only the user may write it, but below [`DEPENDENCIES`].
const PROTECTED_IN_PROJECTS: &[&[&str]] = &[
    // Instructions and settings of agents.
    &["agents.md"],
    &["agents.override.md"],
    &["claude.md"],
    &["claude.local.md"],
    &["gemini.md"],
    &[".agents"],
    &[".aider.conf.yml"],
    &[".claude"],
    &[".clinerules"],
    &[".codex"],
    &[".cursor"],
    &[".cursorrules"],
    &[".gemini"],
    &[".github", "copilot-instructions.md"],
    &[".roo"],
    &[".windsurf"],
    &[".windsurfrules"],
    // Tasks and settings of editors.
    &[".devcontainer"],
    &[".devcontainer.json"],
    &[".dir-locals.el"],
    &[".exrc"],
    &[".fleet"],
    &[".gdbinit"],
    &[".idea"],
    &[".lldbinit"],
    &[".nvim.lua"],
    &[".nvimrc"],
    &[".vimrc"],
    &[".vscode", "launch.json"],
    &[".vscode", "mcp.json"],
    &[".vscode", "settings.json"],
    &[".vscode", "tasks.json"],
    &[".zed"],
    // What a shell runs when it enters the folder.
    &[".direnv"],
    &[".mise"],
    &[".mise.local.toml"],
    &[".mise.toml"],
    &[".tool-versions"],
    &["mise.local.toml"],
    &["mise.toml"],
    // Hooks of git by another name.
    &[".husky"],
    &[".lefthook.yaml"],
    &[".lefthook.yml"],
    &[".pre-commit-config.yaml"],
    &["lefthook.yaml"],
    &["lefthook.yml"],
];

/// Endings of files that editors take for a project with tasks in it.
const PROTECTED_ENDINGS: &[&str] = &[".code-workspace"];

/// Folders that package managers fill: what lies there is opened as a project by no editor, and packages ship such files.
const DEPENDENCIES: &[&str] = &["node_modules", "site-packages"];

/// Which names are refused. [`PathRules::default`] holds the lists of this page; a host may add to them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRules {
    /// More file names that must not be read or written, in lower case.
    pub sensitive_names: Vec<String>,
    /// More file or folder names that must not be written, in lower case.
    pub protected_names: Vec<String>,
    /// Folders that must not be written, relative to the root: one that holds skills, for example.
    #[serde(default)]
    pub protected_folders: Vec<PathBuf>,
}

impl PathRules {
    /// Adds a folder that must not be written, if it lies in `root`.
    #[must_use]
    pub fn and_protected(mut self, root: &Path, folder: &Path) -> Self {
        if let Ok(relative) = real(folder).strip_prefix(real(root))
            && !relative.as_os_str().is_empty()
        {
            self.protected_folders.push(relative.to_owned());
        }
        self
    }

    /// Whether `path`, relative to the root and with links resolved, holds keys.
    pub fn is_sensitive(&self, path: &Path) -> bool {
        let parts = lower(path);
        let Some(name) = parts.last() else { return false };
        is_env_file(name)
            || SENSITIVE_NAMES.contains(&name.as_str())
            || SENSITIVE_ENDINGS.iter().any(|ending| name.len() > ending.len() && name.ends_with(ending))
            || self.sensitive_names.contains(name)
            || SENSITIVE_PLACES.iter().any(|place| holds(&parts, place))
    }

    /// Whether `path`, relative to the root and with links resolved, is for the user alone to write.
    pub fn is_protected(&self, path: &Path) -> bool {
        let parts = lower(path);
        (1..=parts.len()).any(|end| {
            let Some((name, folder)) = parts.get(..end).and_then(<[String]>::split_last) else { return false };
            name == ".git" || self.is_protected_name(folder, name)
        })
    }

    /// Whether only the user may write this name in this folder (relative to the root); all in lower case. `.git` is left out: what
    /// lies in it is judged instead.
    pub(crate) fn is_protected_name(&self, folder: &[String], name: &str) -> bool {
        let is = |place: &&[&str]| match place {
            [only] => *only == name,
            [before, last] => *last == name && folder.last().is_some_and(|part| part == before),
            _ => false,
        };
        if name == ".git" {
            return false;
        }
        PROTECTED_PLACES.iter().any(is)
            || self.protected_names.iter().any(|protected| protected == name)
            || self.protected_folders.iter().any(|path| is_path(&lower(path), folder, name))
            || ((PROTECTED_IN_PROJECTS.iter().any(is) || PROTECTED_ENDINGS.iter().any(|ending| name.ends_with(ending)))
                && !folder.iter().any(|part| DEPENDENCIES.contains(&part.as_str())))
    }

    /// Whether a name (in lower case) is worth a look: nothing of another name is sensitive or protected, whatever folder it lies in.
    #[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
    pub(crate) fn names(&self) -> Names {
        let last = |place: &&[&str]| place.last().copied().unwrap_or_default().to_owned();
        let places = PROTECTED_PLACES.iter().chain(PROTECTED_IN_PROJECTS).chain(SENSITIVE_PLACES).map(last);
        let known = SENSITIVE_NAMES.iter().map(|name| (*name).to_owned());
        let own = self.sensitive_names.iter().chain(&self.protected_names).cloned();
        let folders = self.protected_folders.iter().filter_map(|path| path.file_name()).map(lower_name);
        Names(places.chain(known).chain(own).chain(folders).collect())
    }
}

/// Names that are worth a look, in lower case.
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
#[derive(Debug)]
pub(crate) struct Names(HashSet<String>);

#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
impl Names {
    /// Whether a name is among them.
    pub(crate) fn has(&self, lower: &str) -> bool {
        self.0.contains(lower)
            || lower.starts_with(".env.")
            || SENSITIVE_ENDINGS.iter().chain(PROTECTED_ENDINGS).any(|ending| lower.ends_with(ending))
    }
}

/// Where a path leads; one that is not there yet by its nearest folder that is.
fn real(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let found = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    found.map_or_else(|| path.clone(), |(above, found)| path.strip_prefix(above).map_or_else(|_| path.clone(), |rest| found.join(rest)))
}

fn is_path(path: &[String], folder: &[String], name: &str) -> bool {
    path.split_last().is_some_and(|(last, above)| last == name && above == folder)
}

fn lower(path: &Path) -> Vec<String> {
    path.iter().map(lower_name).collect()
}

/// A name as it is compared: `.ENV` is `.env` on file systems that fold case.
pub(crate) fn lower_name(name: &OsStr) -> String {
    name.to_string_lossy().to_lowercase()
}

/// `.env` and `.env.production`, but not the examples that are made to be read.
fn is_env_file(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(".env.") else { return false };
    !["example", "sample", "template", "dist"].iter().any(|kind| rest == *kind || rest.ends_with(&format!(".{kind}")))
}

fn holds(parts: &[String], place: &[&str]) -> bool {
    parts.windows(place.len()).any(|window| window.iter().zip(place).all(|(part, name)| part == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_hold_keys_are_known_by_name() {
        let rules = PathRules { sensitive_names: vec!["vault.txt".to_owned()], ..PathRules::default() };
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
            ".ssh/known_hosts",
            "vault.txt",
            ".docker/config.json",
        ];
        let no = [
            "",
            ".env.example",
            ".env.local.example",
            ".env.sample",
            "env",
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

        assert_eq!(yes.iter().filter(|path| !sensitive(path)).collect::<Vec<_>>(), Vec::<&&str>::new());
        assert_eq!(no.iter().filter(|path| sensitive(path)).collect::<Vec<_>>(), Vec::<&&str>::new());
    }

    #[test]
    fn what_makes_other_programs_run_is_for_the_user_to_write() {
        let rules = PathRules { protected_names: vec!["notes.json".to_owned()], ..PathRules::default() };
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
            "node_modules/x/AGENTS.md",
            "node_modules/x/.vscode/settings.json",
        ];

        assert_eq!(yes.iter().filter(|path| !protected(path)).collect::<Vec<_>>(), Vec::<&&str>::new());
        assert_eq!(no.iter().filter(|path| protected(path)).collect::<Vec<_>>(), Vec::<&&str>::new());
    }

    #[test]
    fn the_page_on_tools_names_all_that_is_protected() {
        let page = include_str!("../../docs/tools.md").to_lowercase();
        let endings = PROTECTED_ENDINGS.iter().map(|ending| format!("*{ending}"));
        let names = PROTECTED_PLACES.iter().chain(PROTECTED_IN_PROJECTS).map(|place| place.join("/")).chain(endings);

        assert_eq!(names.filter(|name| !page.contains(&format!("`{name}`"))).collect::<Vec<_>>(), Vec::<String>::new());
    }
}
