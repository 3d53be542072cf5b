//! Folders of the workspace in which the user's shell searches programs, such as the `bin` of a virtual
//! environment that is active. A program there runs what the project is made of, which is the user's to
//! decide. But `git` or `ls` there would run in place of the system's, whatever the user works on.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use crate::real_path::real_or_nearest;

/// Programs that people start all day and that no project brings along.
const EVERYDAY: &[&str] = &[
    "[",
    "apt",
    "awk",
    "bash",
    "brew",
    "bwrap",
    "callboard",
    "cat",
    "cd",
    "chmod",
    "chown",
    "clear",
    "code",
    "cp",
    "curl",
    "date",
    "df",
    "diff",
    "direnv",
    "dirname",
    "dnf",
    "docker",
    "du",
    "echo",
    "emacs",
    "env",
    "find",
    "fish",
    "gh",
    "git",
    "gpg",
    "grep",
    "head",
    "hg",
    "htop",
    "id",
    "jj",
    "kill",
    "kubectl",
    "less",
    "ln",
    "ls",
    "make",
    "man",
    "mkdir",
    "more",
    "mount",
    "mv",
    "nano",
    "nvim",
    "open",
    "passwd",
    "pbcopy",
    "ping",
    "pkill",
    "podman",
    "printenv",
    "ps",
    "pwd",
    "rm",
    "rmdir",
    "rsync",
    "scp",
    "screen",
    "sed",
    "sh",
    "sleep",
    "sort",
    "ssh",
    "ssh-add",
    "ssh-keygen",
    "stat",
    "stty",
    "su",
    "sudo",
    "svn",
    "systemctl",
    "tail",
    "tar",
    "tee",
    "tmux",
    "top",
    "touch",
    "tput",
    "tr",
    "uname",
    "unzip",
    "vi",
    "vim",
    "wc",
    "wget",
    "which",
    "whoami",
    "xargs",
    "xdg-open",
    "zsh",
];

/// Whether people start a program of this name all day.
pub(super) fn is_everyday(name: &OsStr) -> bool {
    EVERYDAY.iter().any(|program| name == *program)
}

/// The paths, relative to the workspace, of [`EVERYDAY`] programs in folders of `path` that lie in it.
/// A folder counts by its own path and by that which its links lead to.
pub(super) fn everyday_programs(workspace: &Path, path: &OsStr) -> Vec<PathBuf> {
    let given = std::path::absolute(workspace).unwrap_or_else(|_| workspace.to_owned());
    let real = real_or_nearest(workspace);
    let mut folders: Vec<PathBuf> = std::env::split_paths(path)
        .map(|folder| match folder.as_os_str().is_empty() {
            true => PathBuf::from("."), // as a shell takes it
            false => folder,
        })
        .filter_map(|folder| std::path::absolute(folder).ok())
        .flat_map(|folder| [real_or_nearest(&folder), folder])
        .filter_map(|folder| {
            let inner = [&real, &given]
                .into_iter()
                .find_map(|root| folder.strip_prefix(root).ok());
            inner.map(|inner| inner.components().collect())
        })
        .collect();
    folders.sort();
    folders.dedup();
    folders
        .iter()
        .flat_map(|folder| EVERYDAY.iter().map(|name| folder.join(name)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyday_programs_are_named_in_folders_of_the_path_that_lie_in_the_workspace() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        std::fs::create_dir_all(at("work/envs/one/bin")).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink("envs/one", at("work/.venv")).unwrap();
        let path = std::env::join_paths([
            at("work/.venv/bin"),
            PathBuf::from("/usr/bin"),
            at("work/new/./bin"),
            at("elsewhere"),
        ]);

        let programs = everyday_programs(&at("work"), &path.unwrap());

        let gits: Vec<&Path> = programs
            .iter()
            .filter(|program| program.ends_with("git"))
            .map(PathBuf::as_path)
            .collect();
        assert_eq!(
            gits,
            [".venv/bin/git", "envs/one/bin/git", "new/bin/git"].map(Path::new)
        );
        assert!(everyday_programs(&at("work"), OsStr::new("/usr/bin:/bin")).is_empty());
    }
}
