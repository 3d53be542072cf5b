//! What a tool may touch, in one place for every tool: paths, environment, processes, memory (FAULTS, "Only bash is sandboxed").
//! Pure: names are judged here, [`super::Root`] and the jails enforce the judgement.

use std::{ffi::OsStr, path::Path, time::Duration};

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

/// What only the user may write: files that make other programs run commands (FAULTS F2). Anything below counts too.
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

/// What a command may not write although it may commit: `.git` itself stays writable for it (FAULTS F2).
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(crate) const PROTECTED_IN_GIT: &[&str] = &["hooks", "config", "config.worktree", "commondir", "modules"];

/// Which names are refused. [`PathRules::default`] holds the lists of this page; a host may add to them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRules {
    /// More file names that must not be read or written, in lower case.
    pub sensitive_names: Vec<String>,
    /// More file or folder names that must not be written, in lower case.
    pub protected_names: Vec<String>,
}

impl PathRules {
    /// Whether `path`, relative to the root and with links resolved, holds keys (REQUIREMENTS U-02).
    pub fn is_sensitive(&self, path: &Path) -> bool {
        let parts = lower(path);
        let Some(name) = parts.last() else { return false };
        is_env_file(name)
            || SENSITIVE_NAMES.contains(&name.as_str())
            || SENSITIVE_ENDINGS.iter().any(|ending| name.len() > ending.len() && name.ends_with(ending))
            || self.sensitive_names.contains(name)
            || SENSITIVE_PLACES.iter().any(|place| holds(&parts, place))
    }

    /// Whether `path`, relative to the root and with links resolved, is for the user alone to write (FAULTS F2).
    pub fn is_protected(&self, path: &Path) -> bool {
        let parts = lower(path);
        PROTECTED_PLACES.iter().any(|place| holds(&parts, place)) || parts.iter().any(|part| self.protected_names.contains(part))
    }

    /// Whether a command may not create or change a file of this name in this folder.
    #[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
    pub(crate) fn is_protected_from_commands(&self, folder: &[String], name: &str) -> bool {
        if folder.last().is_some_and(|last| last == ".git") {
            return PROTECTED_IN_GIT.contains(&name);
        }
        if name == ".git" {
            return false; // the folder is searched instead; a `.git` file is judged by its kind
        }
        PROTECTED_PLACES.iter().any(|place| match place {
            [only] => *only == name,
            [before, last] => *last == name && folder.last().is_some_and(|part| part == before),
            _ => false,
        }) || self.protected_names.iter().any(|protected| protected == name)
    }
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
        let rules = PathRules { protected_names: vec!["tasks.json".to_owned()], ..PathRules::default() };
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
        ];
        let no = ["git/hooks", ".github/workflows/ci.yml", ".gitignore", "src/config", "config/fish", "bashrc", "callboard.toml.md"];

        assert_eq!(yes.iter().filter(|path| !protected(path)).collect::<Vec<_>>(), Vec::<&&str>::new());
        assert_eq!(no.iter().filter(|path| protected(path)).collect::<Vec<_>>(), Vec::<&&str>::new());
    }
}
