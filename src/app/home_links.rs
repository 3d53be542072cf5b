//! Files of the home folder that are links into the workspace, as where a repository keeps the files of
//! the account under other names. A shell or an editor of the user reads them under the name of the
//! link.

use std::{
    collections::VecDeque,
    ffi::OsStr,
    path::{Path, PathBuf},
};

use crate::sandbox::{PathRules, is_everyday, protected_places};

/// Folders of settings that are searched, and how deep: `.config/systemd/user/x.wants/y` is the
/// deepest usual link.
const SETTINGS: [&str; 2] = [".config", ".local/share/systemd"];
const DEPTH: usize = 4;

/// Folders of programs. What the workspace's project builds may be linked there.
const PROGRAMS: [&str; 2] = [".local/bin", "bin"];

/// Folders in which links lead to what projects and package managers make.
const OTHERS: [&str; 5] = [".cache", ".local", ".trash", ".venv", ".virtualenvs"];

/// Names that are looked at, those nearest to the home folder first.
const NAMES_MAX: usize = 20_000;

/// Protects the files of the workspace that the home folder's settings are links to.
pub(super) fn and_linked_from(rules: PathRules, home: &Path, workspace: &Path) -> PathRules {
    // Programs are looked at one by one, and commands may write in a repository.
    let others = [".local/bin", ".git"].map(Path::new);
    protected_places()
        .filter(|place| !others.contains(&place.as_path()))
        .chain(links(home))
        .fold(rules, |rules, path| {
            rules.and_protected(workspace, &home.join(path))
        })
}

/// Links that are settings of the account, relative to its home folder.
fn links(home: &Path) -> Vec<PathBuf> {
    let plain = PathRules::default();
    let is_dotted = |name: &OsStr| name.as_encoded_bytes().starts_with(b".");
    let is_other = |path: &Path| OTHERS.iter().any(|other| path == Path::new(other));
    let mut found = Vec::new();
    let mut folders: VecDeque<(PathBuf, usize)> = VecDeque::from([(PathBuf::new(), 1)]);
    folders.extend(PROGRAMS.map(|programs| (programs.into(), 0)));
    folders.extend(SETTINGS.map(|settings| (settings.into(), DEPTH)));
    let mut seen = 0;
    while let Some((folder, depth)) = folders.pop_front() {
        let is_home = folder.as_os_str().is_empty();
        let is_programs = PROGRAMS.iter().any(|it| folder == Path::new(it));
        let is_settings = SETTINGS.iter().any(|it| folder.starts_with(it));
        let entries = std::fs::read_dir(home.join(&folder)).into_iter().flatten();
        for entry in entries.map_while(Result::ok) {
            seen += 1;
            if seen > NAMES_MAX {
                return found;
            }
            let (name, Ok(kind)) = (entry.file_name(), entry.file_type()) else {
                continue;
            };
            let path = folder.join(&name);
            if kind.is_symlink() {
                let is_setting = if is_programs {
                    is_everyday(&name)
                } else if is_home {
                    is_dotted(&name) && !is_other(&path)
                } else {
                    is_settings || plain.is_protected(&path)
                };
                if is_setting {
                    found.push(path);
                }
            } else if kind.is_dir()
                && depth > 0
                && (!is_home || is_dotted(&name))
                && !SETTINGS.iter().any(|it| path == Path::new(it))
            {
                folders.push_back((path, depth - 1));
            }
        }
    }
    found
}

#[cfg(all(test, unix))]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn files_of_the_account_that_are_links_into_the_workspace_are_protected_there() {
        let top = tempfile::tempdir().unwrap();
        let (home, work) = (top.path().join("home"), top.path().join("home/dotfiles"));
        let link = |name: &str, to: &str| {
            let path = home.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(work.join(to), path).unwrap();
        };
        for (name, to) in [
            (".bashrc", "bashrc"),
            (".hgrc", "hgrc"),
            (".emacs.d", "emacs"),
            (".ssh/config", "ssh_config"),
            (".cargo/config.toml", "cargo.toml"),
            (".config/fish/config.fish", "fish.cfg"),
            (".config/systemd/user/x.wants/y", "y"),
            (".local/share/systemd/user/z", "z"),
            (".local/bin/git", "my-git"),
            (".local/bin/project", "target/project"),
            (".cache", "cache"),
            (".vim/pack/x", "plugin"),
            ("notes", "notes"),
        ] {
            link(name, to);
        }

        let mut protected = and_linked_from(PathRules::default(), &home, &work).protected_folders;
        protected.sort();

        let expected = [
            "bashrc",
            "cargo.toml",
            "emacs",
            "fish.cfg",
            "hgrc",
            "my-git",
            "ssh_config",
            "y",
            "z",
        ];
        assert_eq!(protected, expected.map(PathBuf::from));
    }

    #[test]
    fn a_linked_folder_of_settings_protects_what_may_come_to_lie_in_it() {
        let top = tempfile::tempdir().unwrap();
        let (home, work) = (top.path().join("home"), top.path().join("work"));
        fs::create_dir_all(work.join("share")).unwrap();
        fs::create_dir_all(&home).unwrap();
        symlink(work.join("share"), home.join(".local")).unwrap();

        let rules = and_linked_from(PathRules::default(), &home, &work);

        assert!(rules.is_protected(Path::new("share/share/systemd/user/x.service")));
        assert!(!rules.is_protected(Path::new("share/state")));
    }
}
