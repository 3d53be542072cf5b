//! The person's editor, for a prompt of many lines. It is the only process that gets the terminal.

use std::{
    ffi::OsStr,
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use super::failure::Failure;
use crate::config::{Config, process_environment};

/// Largest prompt from an editor, in bytes: one more than a prompt may have.
const EDITED_BYTES_MAX: u64 = callboard_actors::limits::PROMPT_BYTES_MAX as u64 + 1;

/// Opens the person's editor on a prompt, and returns what was saved.
pub(super) async fn edited(config: &Config, text: &str) -> Result<String, Failure> {
    let file = config
        .data_dir
        .join(format!("prompt-{}.md", std::process::id()));
    let text = text.to_owned();
    tokio::task::spawn_blocking(move || edit(&file, &text))
        .await
        .map_err(|error| Failure::work(error.to_string()))?
}

/// Opens the person's editor on a file that only this user can read, and returns what was saved. The
/// file is removed. Blocks.
pub(super) fn edit(file: &Path, text: &str) -> Result<String, Failure> {
    let variable = |name: &str| {
        process_environment().find_map(|(known, value)| (known == name).then_some(value))
    };
    let editor = variable("VISUAL")
        .filter(|editor| !editor.trim().is_empty())
        .or_else(|| variable("EDITOR"))
        .filter(|editor| !editor.trim().is_empty())
        .ok_or_else(|| Failure::usage("no editor is set").hint("set VISUAL or EDITOR"))?;
    let saved = edit_with(&editor, file, text);
    let _ = std::fs::remove_file(file); // It may never have been made.
    saved
}

fn edit_with(editor: &str, file: &Path, text: &str) -> Result<String, Failure> {
    let failed =
        |error: io::Error| Failure::work(format!("the editor cannot be used: {}", error.kind()));
    let mut opened = crate::private::file()
        .create(true)
        .truncate(true)
        .open(file)
        .map_err(failed)?;
    opened.write_all(text.as_bytes()).map_err(failed)?;
    drop(opened);
    let mut words = editor.split_whitespace();
    let program = found(
        words.next().unwrap_or_default(),
        &std::env::var_os("PATH").unwrap_or_default(),
        None,
    );
    let status = std::process::Command::new(program.map_err(failed)?)
        .args(words)
        .arg(file)
        .status()
        .map_err(failed)?;
    if !status.success() {
        return Err(Failure::work("the editor failed; nothing was changed"));
    }
    let mut saved = String::new();
    std::fs::File::open(file)
        .and_then(|file| file.take(EDITED_BYTES_MAX).read_to_string(&mut saved))
        .map_err(failed)?;
    Ok(saved.trim().to_owned())
}

/// The program that a word names: a path, or a name in the absolute folders of `path`. A relative
/// folder, or an empty one, is the current folder's, which may be a stranger's repository. With
/// `outside`, none in that folder is found.
pub(super) fn found(word: &str, path: &OsStr, outside: Option<&Path>) -> io::Result<PathBuf> {
    if word.contains('/') {
        return Ok(PathBuf::from(word));
    }
    std::env::split_paths(path)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(word))
        .find(|program| {
            is_program(program) && !outside.is_some_and(|folder| is_in(program, folder))
        })
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Whether a program is in a folder, by its path or behind its links.
fn is_in(program: &Path, folder: &Path) -> bool {
    let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    program.starts_with(folder) || whole(program).starts_with(whole(folder))
}

fn is_program(path: &std::path::Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata()
        .is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn an_editor_is_found_in_absolute_folders_only() {
        let home = tempfile::tempdir().unwrap();
        let (bin, other) = (home.path().join("bin"), home.path().join("other"));
        for (folder, mode) in [(&bin, 0o755), (&other, 0o644)] {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join("ed"), "").unwrap();
            std::fs::set_permissions(folder.join("ed"), Permissions::from_mode(mode)).unwrap();
        }
        let up = "../".repeat(40);
        let relative = PathBuf::from(format!("{up}{}", bin.display()));
        let path = |folders: &[&std::path::Path]| std::env::join_paths(folders).unwrap();
        let empty = std::path::Path::new("");

        let found_at = found("ed", &path(&[empty, &relative, &other, &bin]), None);

        assert!(
            relative.join("ed").is_file(),
            "only its spelling is relative"
        );
        assert_eq!(found_at.unwrap(), bin.join("ed"));
        let missing = found("ed", &path(&[empty, &relative, &other]), None);
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(
            found("./ed", &path(&[&bin]), None).unwrap(),
            PathBuf::from("./ed")
        );
    }
}
