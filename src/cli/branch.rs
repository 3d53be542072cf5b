//! The branch of the workspace's repository, read from its files: no program is run.

use std::{fs::OpenOptions, io::Read as _, os::unix::fs::OpenOptionsExt as _, path::Path};

use rustix::fs::OFlags;

use crate::visible::visible_line;

/// Bytes of `HEAD`, or of a `.git` that names a folder.
const BYTES_MAX: u64 = 1024;

/// Characters of a branch that are shown.
const SHOWN_CHARS: usize = 40;

/// Digits of a commit that are shown.
const COMMIT_CHARS: usize = 8;

/// The branch, or the commit if there is none. `None` outside of a repository, and where the
/// repository of a linked worktree is not in the workspace: its files are not the workspace's.
pub(super) fn branch(workspace: &Path) -> Option<String> {
    let git = workspace.join(".git");
    let about = git.symlink_metadata().ok()?;
    let folder = match about.is_file() {
        true => {
            let text = small(&git)?;
            let named = workspace.join(text.strip_prefix("gitdir:")?.trim());
            let folder = named.canonicalize().ok()?;
            folder
                .starts_with(workspace.canonicalize().ok()?)
                .then_some(folder)?
        }
        false if about.is_dir() => git,
        false => return None,
    };
    name(&small(&folder.join("HEAD"))?)
}

/// A small file that is no link.
fn small(file: &Path) -> Option<String> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(i32::try_from(flags.bits()).ok()?)
        .open(file)
        .ok()?;
    if !opened.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    opened.take(BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The branch that the text of a `HEAD` names.
fn name(head: &str) -> Option<String> {
    let line = head.lines().next()?.trim();
    let name = match line.strip_prefix("ref:") {
        Some(reference) => {
            let reference = reference.trim();
            let branch = reference.strip_prefix("refs/heads/");
            visible_line(branch.unwrap_or(reference), SHOWN_CHARS)
        }
        None if line.len() >= COMMIT_CHARS && line.bytes().all(|b| b.is_ascii_hexdigit()) => {
            line.chars().take(COMMIT_CHARS).collect()
        }
        None => return None,
    };
    Some(name).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_names_a_branch_or_a_commit_and_hides_nothing() {
        assert_eq!(name("ref: refs/heads/fix/a-b\n").unwrap(), "fix/a-b");
        assert_eq!(name("ref: refs/remotes/x\n").unwrap(), "refs/remotes/x");
        assert_eq!(
            name("0123456789abcdef0123456789abcdef01234567\n").unwrap(),
            "01234567"
        );
        assert_eq!(
            name("ref: refs/heads/a\u{1b}[2J\u{202e}b").unwrap(),
            "a\\u{1b}[2J\\u{202e}b"
        );
        assert!(
            name(&format!("ref: refs/heads/{}", "x".repeat(900)))
                .unwrap()
                .len()
                < 50
        );
        for nothing in ["", "\n", "ref:\n", "hello there, all", "0123"] {
            assert_eq!(name(nothing), None, "{nothing:?}");
        }
    }

    #[test]
    fn a_repository_outside_of_the_workspace_is_not_read() {
        let home = tempfile::tempdir().unwrap();
        let work = home.path().join("work");
        let put = |folder: &Path| {
            std::fs::create_dir_all(folder).unwrap();
            std::fs::write(folder.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        };
        put(&home.path().join("outside"));
        put(&work.join("inside"));
        assert_eq!(branch(&work), None);

        let git = work.join(".git");
        for (named, found) in [("inside", Some("main")), ("../outside", None)] {
            std::fs::write(&git, format!("gitdir: {named}\n")).unwrap();
            assert_eq!(branch(&work).as_deref(), found, "{named}");
        }
        std::fs::remove_file(&git).unwrap();
        std::os::unix::fs::symlink(home.path().join("outside"), &git).unwrap();
        assert_eq!(branch(&work), None);
        std::fs::remove_file(&git).unwrap();
        put(&git);
        assert_eq!(branch(&work).as_deref(), Some("main"));
        std::fs::remove_file(git.join("HEAD")).unwrap();
        std::os::unix::fs::symlink(home.path().join("outside/HEAD"), git.join("HEAD")).unwrap();
        assert_eq!(branch(&work), None);
    }
}
