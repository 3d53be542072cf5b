//! The canonical spelling of a path, computed from its text alone. The same text is shown,
//! approved, locked and opened, so that an approval applies to the file that changes.
//!
//! `.`, empty names and a trailing slash are dropped; an absolute path that names the root becomes
//! relative. The meaning of `..` depends on the operation:
//! - **Reads** may follow links, and after a link `..` is the parent of the link's target, as in a
//!   shell. Any name can be a link, so `a/../b` stays and is resolved when the file is opened.
//! - **Writes** pass no link ([`Root::slot`] refuses them), and without links `a/../b` is `b`. So
//!   the spelling is `b`, and `b` is approved and changed. If `a` is a link, a shell would do
//!   something else: here the text decides, as it was shown.

use std::path::{Component, Path};

use super::jail::Root;
use crate::sandbox::policy::WORKSPACE;

impl Root {
    /// Canonical spelling of a path to read. Links are followed, so `..` after a name stays.
    pub fn spelled(&self, given: &str) -> String {
        self.relative(given)
            .map_or_else(|_| given.to_owned(), |path| joined(&path, false))
    }

    /// Canonical spelling of a path to write. `..` remains only at the start, where it leads
    /// outside and is refused.
    pub fn spelled_to_write(&self, given: &str) -> String {
        // Resolve the text before looking for the root: `/workspace/../x` leaves the root, whatever
        // other names the root has.
        let plain = if given.starts_with('/') {
            format!("/{}", joined(Path::new(given), true))
        } else {
            given.to_owned()
        };
        self.relative(&plain)
            .map_or_else(|_| given.to_owned(), |path| joined(&path, true))
    }
}

/// Canonical spelling of a folder below `root`: empty for the root itself, `None` for one outside.
/// As for writes, `..` is resolved in the text. Commands see the root as `/workspace` or
/// `$WORKSPACE`, so a model may name it in this way.
pub(crate) fn folder_below(root: &Path, given: &str) -> Option<String> {
    let shown = given
        .strip_prefix("$WORKSPACE")
        .filter(|rest| rest.is_empty() || rest.starts_with('/'));
    let plain = if let Some(rest) = shown {
        rest.trim_start_matches('/').to_owned()
    } else if given.starts_with('/') {
        let plain = format!("/{}", joined(Path::new(given), true));
        let below = [root, Path::new(WORKSPACE)]
            .into_iter()
            .filter(|root| root.is_absolute())
            .find_map(|root| Path::new(&plain).strip_prefix(root).ok())?;
        below.to_string_lossy().into_owned()
    } else {
        given.to_owned()
    };
    let spelled = joined(Path::new(&plain), true);
    match spelled.split('/').next() {
        Some("..") => None,
        Some(".") => Some(String::new()),
        _ => Some(spelled),
    }
}

fn joined(path: &Path, climbs: bool) -> String {
    let mut parts: Vec<Component<'_>> = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(_) => parts.push(part),
            Component::ParentDir
                if climbs && matches!(parts.last(), Some(Component::Normal(_))) =>
            {
                parts.pop();
            }
            // The parent of the file system's root is the root itself.
            Component::ParentDir if climbs && path.is_absolute() => {}
            Component::ParentDir => parts.push(part),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    let names: Vec<_> = parts
        .iter()
        .map(|part| part.as_os_str().to_string_lossy())
        .collect();
    if names.is_empty() {
        ".".to_owned()
    } else {
        names.join("/")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::PathRules;

    #[test]
    fn one_path_has_one_spelling_by_its_text_alone() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path(), PathRules::default()).unwrap();
        let real = root.real_path().to_str().unwrap().to_owned();
        let inside = format!("{real}/a.txt");
        let around = format!(
            "{real}/b/../../{}/a.txt",
            root.real_path().file_name().unwrap().to_str().unwrap()
        );

        for (given, read, written) in [
            ("a.txt", "a.txt", "a.txt"),
            ("./a.txt", "a.txt", "a.txt"),
            (".//a.txt/", "a.txt", "a.txt"),
            ("src/../a.txt", "src/../a.txt", "a.txt"),
            ("./src/./../a.txt", "src/../a.txt", "a.txt"),
            ("..foo/...", "..foo/...", "..foo/..."),
            ("../a.txt", "../a.txt", "../a.txt"),
            ("a/../../b", "a/../../b", "../b"),
            ("/workspace/a.txt", "a.txt", "a.txt"),
            ("/workspace/./b//../a.txt", "b/../a.txt", "a.txt"),
            ("/workspace/../x", "../x", "/workspace/../x"),
            ("/workspace", ".", "."),
            ("", ".", "."),
            (".", ".", "."),
            ("/etc/passwd", "/etc/passwd", "/etc/passwd"),
            (&inside, "a.txt", "a.txt"),
            (
                &around,
                around.strip_prefix(&format!("{real}/")).unwrap(),
                "a.txt",
            ),
            ("nul\0/../a", "nul\0/../a", "nul\0/../a"),
            ("%2e%2e/a", "%2e%2e/a", "%2e%2e/a"),
            (" a b /\u{fc}\n", " a b /\u{fc}\n", " a b /\u{fc}\n"),
        ] {
            assert_eq!(
                (
                    root.spelled(given).as_str(),
                    root.spelled_to_write(given).as_str()
                ),
                (read, written),
                "{given:?}"
            );
            // A canonical spelling does not change.
            assert_eq!(root.spelled(read), read, "{given:?}");
            assert_eq!(root.spelled_to_write(written), written, "{given:?}");
        }
    }

    #[test]
    fn a_folder_of_a_command_has_one_spelling_and_none_outside() {
        let spelled = |given| folder_below(Path::new("/srv/job"), given);

        for inside in [
            "a/b",
            "./a//b/",
            "a/c/../b",
            "/workspace/a/b",
            "/srv/job/a/b",
            "/srv/job/../job/a/b",
            "$WORKSPACE/a/b",
        ] {
            assert_eq!(spelled(inside).as_deref(), Some("a/b"), "{inside}");
        }
        for root in [
            "",
            ".",
            "a/..",
            "/workspace/",
            "/srv/job",
            "$WORKSPACE",
            "$WORKSPACE/.",
        ] {
            assert_eq!(spelled(root).as_deref(), Some(""), "{root}");
        }
        for outside in [
            "..",
            "a/../..",
            "/etc",
            "/workspace/..",
            "/srv/jobs",
            "$WORKSPACE/../x",
        ] {
            assert_eq!(spelled(outside), None, "{outside}");
        }
        assert_eq!(spelled("$WORKSPACES").as_deref(), Some("$WORKSPACES"));
    }
}
