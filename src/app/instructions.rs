//! Adds the `AGENTS.md` of a workspace to the model's system prompt, after a person or the operator
//! agreed to it.

use std::path::Path;

use crate::{
    config::{ProjectFile, ProjectKind},
    trust::{self, Content, Place, Standing, TrustStore, Unread},
};

/// Maximum size of `AGENTS.md` in bytes: longer instructions would fill the window of a small
/// model.
pub(crate) const AGENTS_BYTES_MAX: u64 = 64 * 1024;

/// Who decides whether the instructions of a workspace are used.
#[derive(Debug, Clone, Copy)]
pub(super) enum Agreed<'s> {
    /// The person who owns this store, by path and content.
    Person(&'s TrustStore),
    /// The operator of a multi-tenant host, whatever the file contains.
    Operator(bool),
}

/// Appends the workspace's instructions to the system prompt `base`, if they are agreed to.
/// Otherwise adds the reason to `notes`.
pub(super) fn added(
    base: String,
    workspace: &Path,
    agreed: Agreed<'_>,
    notes: &mut Vec<String>,
) -> String {
    let content = match read(workspace) {
        Ok(None) => return base,
        Ok(Some(content)) => content,
        Err(reason) => {
            notes.push(format!("AGENTS.md is not read: {reason}"));
            return base;
        }
    };
    match agreed {
        Agreed::Operator(true) => {}
        Agreed::Operator(false) => {
            notes.push(
                "AGENTS.md of the workspace is not used: `project_instructions` is not set".into(),
            );
            return base;
        }
        Agreed::Person(store) => {
            let file = file(workspace, &content, store);
            if !file.is_trusted() {
                notes.push(file.line());
                return base;
            }
        }
    }
    let text = String::from_utf8_lossy(&content.bytes);
    format!(
        "{base}\n\n# Project instructions (AGENTS.md)\n\n{}",
        text.trim()
    )
}

/// The instructions of a workspace and whether they are trusted; `None` if the file is missing or
/// unreadable.
pub(crate) fn instructions_of(workspace: &Path, store: &TrustStore) -> Option<ProjectFile> {
    let content = read(workspace).ok().flatten()?;
    Some(file(workspace, &content, store))
}

fn file(workspace: &Path, content: &Content, store: &TrustStore) -> ProjectFile {
    let path = if workspace == Path::new(".") {
        "AGENTS.md".into()
    } else {
        workspace.join("AGENTS.md")
    };
    let standing = Place::of_file(&path).map_or(Standing::New, |place| {
        store.standing(&place, &content.sha256)
    });
    ProjectFile::new(&path, ProjectKind::Instructions, standing)
}

/// The content of `AGENTS.md`; `None` if it is missing or blank.
fn read(workspace: &Path) -> Result<Option<Content>, String> {
    let path = workspace.join("AGENTS.md");
    let Ok(real) = path.canonicalize() else {
        return Ok(None);
    };
    if !workspace
        .canonicalize()
        .is_ok_and(|root| real.starts_with(root))
    {
        return Err("it is a link out of the workspace".into());
    }
    match trust::file(&real, AGENTS_BYTES_MAX) {
        Ok(content) => match std::str::from_utf8(&content.bytes) {
            Ok(text) if text.trim().is_empty() => Ok(None),
            Ok(_) => Ok(Some(content)),
            Err(_) => Err("it is not UTF-8 text".into()),
        },
        Err(Unread::Missing) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}
