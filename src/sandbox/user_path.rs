//! Folders of the workspace in which the user's shell searches programs, such as the `bin` of a virtual
//! environment that is active, and those in which the user's Python searches modules. A program there runs
//! what the project is made of, which is the user's to decide. But `git` or `ls` there would run in place
//! of the system's, whatever the user works on.

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
    "basename",
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
    "cut",
    "date",
    "df",
    "diff",
    "dircolors",
    "direnv",
    "dirname",
    "dnf",
    "docker",
    "du",
    "echo",
    "emacs",
    "env",
    "expr",
    "find",
    "fish",
    "fzf",
    "gh",
    "git",
    "git-lfs",
    "gpg",
    "grep",
    "head",
    "hg",
    "hostname",
    "htop",
    "id",
    "jj",
    "kill",
    "kubectl",
    "less",
    "lesspipe",
    "ln",
    "ls",
    "make",
    "man",
    "mkdir",
    "mktemp",
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
    "seq",
    "sftp",
    "sh",
    "sha256sum",
    "sleep",
    "sort",
    "ssh",
    "ssh-add",
    "ssh-keygen",
    "starship",
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
    "tty",
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
    "zoxide",
    "zsh",
];

/// Interpreters, package managers and compilers, which an environment of a package manager brings along.
/// In any other folder they count like [`EVERYDAY`], unless the project has its own there already.
const TOOLS: &[&str] = &[
    "bun", "c++", "cargo", "cc", "clang", "cmake", "deno", "g++", "gcc", "gem", "go", "gunzip",
    "gzip", "java", "javac", "jq", "ld", "lua", "node", "npm", "npx", "openssl", "perl", "php",
    "pip", "pip3", "pnpm", "python", "python3", "rg", "ruby", "rustc", "rustup", "uv", "xz",
    "yarn", "zip",
];

/// Modules that Python runs at each start, wherever in `PYTHONPATH` they lie.
const PYTHON_STARTS: &[&str] = &[
    "sitecustomize",
    "sitecustomize.py",
    "usercustomize",
    "usercustomize.py",
];

/// The paths, relative to the workspace, of the programs that would run in place of the user's own: of
/// [`EVERYDAY`] programs and [`TOOLS`] in folders of `path` that lie in the workspace, and of
/// [`PYTHON_STARTS`] in those of `python_path`.
pub(crate) fn programs_of_user(
    workspace: &Path,
    path: &OsStr,
    python_path: &OsStr,
) -> Vec<PathBuf> {
    let of_path = folders_within(workspace, path)
        .into_iter()
        .flat_map(|folder| {
            let here = workspace.join(&folder);
            let is_own = is_of_package_manager(&here);
            let tools = TOOLS
                .iter()
                .filter(|name| !is_own && here.join(name).symlink_metadata().is_err());
            // A folder, such as `docker` where `.` is in `PATH`, is no program.
            let everyday = EVERYDAY.iter().filter(|name| !here.join(name).is_dir());
            let names = everyday.chain(tools);
            names.map(|name| folder.join(name)).collect::<Vec<_>>()
        });
    let of_python = folders_within(workspace, python_path)
        .into_iter()
        .flat_map(|folder| PYTHON_STARTS.iter().map(move |name| folder.join(name)));
    of_path.chain(of_python).collect()
}

/// Whether a package manager fills the folder: the programs of a virtual environment or of packages.
fn is_of_package_manager(folder: &Path) -> bool {
    let above = folder.parent().unwrap_or(folder);
    folder.ends_with("node_modules/.bin")
        || ["pyvenv.cfg", "conda-meta"]
            .iter()
            .any(|mark| above.join(mark).exists())
}

/// The folders of a list such as `PATH` that lie in the workspace, relative to it. A folder counts by its
/// own path and by that which its links lead to.
fn folders_within(workspace: &Path, list: &OsStr) -> Vec<PathBuf> {
    if list.is_empty() {
        return Vec::new();
    }
    let given = std::path::absolute(workspace).unwrap_or_else(|_| workspace.to_owned());
    let real = real_or_nearest(workspace);
    let mut folders: Vec<PathBuf> = std::env::split_paths(list)
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

        let programs = programs_of_user(&at("work"), &path.unwrap(), OsStr::new(""));

        let gits: Vec<&Path> = programs
            .iter()
            .filter(|program| program.ends_with("git"))
            .map(PathBuf::as_path)
            .collect();
        assert_eq!(
            gits,
            [".venv/bin/git", "envs/one/bin/git", "new/bin/git"].map(Path::new)
        );
        assert!(
            programs_of_user(&at("work"), OsStr::new("/usr/bin:/bin"), OsStr::new("")).is_empty()
        );
    }

    #[test]
    fn interpreters_are_named_where_no_package_manager_brings_them() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        for folder in ["bin", ".venv/bin", "node_modules/.bin", "own"] {
            std::fs::create_dir_all(at(folder)).unwrap();
        }
        std::fs::write(at(".venv/pyvenv.cfg"), "").unwrap();
        std::fs::write(at("own/python3"), "").unwrap();
        std::fs::create_dir(at("own/docker")).unwrap();
        let folders = ["bin", ".venv/bin", "node_modules/.bin", "own"].map(at);
        let path = std::env::join_paths(folders).unwrap();

        let programs = programs_of_user(home.path(), &path, OsStr::new(""));

        let of = |name: &str| -> Vec<&Path> {
            let named = programs.iter().filter(|program| program.ends_with(name));
            named.map(PathBuf::as_path).collect()
        };
        assert_eq!(of("python3"), [Path::new("bin/python3")]);
        assert_eq!(of("node"), ["bin/node", "own/node"].map(Path::new));
        assert_eq!(of("git").len(), 4);
        assert_eq!(
            of("docker"),
            [".venv/bin/docker", "bin/docker", "node_modules/.bin/docker"].map(Path::new)
        );
    }

    #[test]
    fn what_python_runs_at_each_start_is_named_in_folders_of_its_path() {
        let home = tempfile::tempdir().unwrap();
        let list = std::env::join_paths([home.path().join("src"), "/usr/lib".into()]).unwrap();

        let programs = programs_of_user(home.path(), OsStr::new(""), &list);

        let expected = PYTHON_STARTS.iter().map(|name| Path::new("src").join(name));
        assert_eq!(programs, expected.collect::<Vec<_>>());
    }
}
