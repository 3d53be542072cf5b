//! Paths in the configuration, and the URL of the store.

use std::path::{Path, PathBuf};

/// Where conversations are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Store {
    /// In this SQLite file.
    Sqlite(PathBuf),
    /// In memory only: everything is lost when the process ends.
    Memory,
}

/// How to resolve relative paths and `~/`: against the folder of the file that sets the value.
#[derive(Debug, Clone, Default)]
pub(super) struct Base {
    pub(super) folder: PathBuf,
    pub(super) home: Option<PathBuf>,
}

impl Base {
    /// Resolves a path; an empty one is an error.
    pub(super) fn path(&self, text: &str) -> Result<PathBuf, String> {
        match (text.strip_prefix("~/"), &self.home) {
            _ if text.is_empty() => Err("must not be empty".into()),
            _ if text.contains('\0') => Err("must not hold a zero byte".into()),
            (Some(rest), Some(home)) => Ok(home.join(rest)),
            (Some(_), None) => Err("starts with `~/`, but HOME is not set".into()),
            (None, _) => Ok(self.folder.join(text)),
        }
    }
}

/// Parses the URL of a store.
pub(super) fn store(text: &str, base: &Base) -> Result<Store, String> {
    if text == "memory:" {
        return Ok(Store::Memory);
    }
    match text.strip_prefix("sqlite:") {
        Some(":memory:") => {
            Err("must be `memory:` for a store without a file, not `sqlite::memory:`".into())
        }
        Some(path) => base
            .path(path.strip_prefix("//").unwrap_or(path))
            .map(Store::Sqlite)
            .map_err(|problem| format!("names a file that {problem}")),
        // The error does not quote the text, because the URL of another store may contain a
        // password.
        None if ["postgres:", "postgresql:"]
            .iter()
            .any(|scheme| text.starts_with(scheme)) =>
        {
            Err(
                "names PostgreSQL, which is not built in; `sqlite:` with a path, or `memory:`"
                    .into(),
            )
        }
        None => Err("must be `sqlite:` with a path, or `memory:`".into()),
    }
}

/// Whether two paths refer to the same file.
pub(super) fn same_file(left: &Path, right: &Path) -> bool {
    match (left.canonicalize(), right.canonicalize()) {
        (Ok(left), Ok(right)) => left == right,
        _ => left == right,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_relative_to_the_place_that_names_them() {
        let base = Base {
            folder: "conf".into(),
            home: Some("/home/ann".into()),
        };

        assert_eq!(base.path("data"), Ok("conf/data".into()));
        assert_eq!(base.path("/data"), Ok("/data".into()));
        assert_eq!(base.path("~/data"), Ok("/home/ann/data".into()));
        assert_eq!(
            store("sqlite:x.db", &base),
            Ok(Store::Sqlite("conf/x.db".into()))
        );
        assert_eq!(
            store("sqlite:///x.db", &base),
            Ok(Store::Sqlite("/x.db".into()))
        );
        assert_eq!(store("memory:", &base), Ok(Store::Memory));
        assert!(
            store("postgres://ann:secret@db/x", &base)
                .is_err_and(|problem| !problem.contains("secret"))
        );
    }
}
