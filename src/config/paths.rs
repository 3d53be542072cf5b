//! Paths in the configuration, and the URL of the store.

use std::path::{Path, PathBuf};

/// Where conversations are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Store {
    /// In this SQLite file.
    Sqlite(PathBuf),
    /// In this PostgreSQL database.
    Postgres(DatabaseAddress),
    /// In memory only: everything is lost when the process ends.
    Memory,
}

/// The address of a PostgreSQL database. Its debug form shows no password.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseAddress(String);

impl DatabaseAddress {
    /// The whole address, password included, for the driver alone.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The password, decoded and as it is written, for masking; empty if there is none.
    pub(super) fn passwords(&self) -> Vec<String> {
        // Up to the last `@`, so that a password with a `/` is found too.
        let rest = self.0.split_once("://").map(|(_, rest)| rest);
        let Some((user, _)) = rest.and_then(|rest| rest.rsplit_once('@')) else {
            return Vec::new();
        };
        let Some((_, password)) = user.split_once(':') else {
            return Vec::new();
        };
        let mut all = vec![password.to_owned()];
        let decoded = percent_decoded(password);
        if decoded != password {
            all.push(decoded);
        }
        all.retain(|password| !password.is_empty());
        all
    }

    /// The scheme, and everything between it and the path or the query.
    fn authority(&self) -> Option<(&str, &str)> {
        let (scheme, rest) = self.0.split_once("://")?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        Some((scheme, rest.get(..end).unwrap_or_default()))
    }

    /// The address for people: without user, password and options, which may hold a password too.
    pub fn shown(&self) -> String {
        let Some((scheme, authority)) = self.authority() else {
            return "postgres://…".to_owned();
        };
        if self.0.matches('@').count() > authority.matches('@').count() {
            // A password with `/` or `?` as they are: where the host begins is a guess.
            return "postgres://…".to_owned();
        }
        let hosts = authority
            .rsplit_once('@')
            .map_or(authority, |(_, hosts)| hosts);
        let behind = self.0.len().min(scheme.len() + 3 + authority.len());
        let rest = self.0.get(behind..).unwrap_or_default();
        let path = rest.split_once('?').map_or(rest, |(path, _)| path);
        format!("postgres://{hosts}{path}")
    }
}

impl std::fmt::Debug for DatabaseAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown())
    }
}

/// Replaces `%40` and the like by the characters that they stand for.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        let code = behind
            .get(..2)
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match code {
            Some(byte) if first == b'%' => {
                bytes.push(byte);
                rest = behind.get(2..).unwrap_or_default();
            }
            _ => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
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
        // The errors do not quote the text, because it may contain a password.
        None if text.starts_with("postgres://") || text.starts_with("postgresql://") => {
            Ok(Store::Postgres(DatabaseAddress(text.to_owned())))
        }
        None => Err(
            "must be `sqlite:` with a path, `postgres://USER@HOST/DATABASE`, or `memory:`".into(),
        ),
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
            store("postgres:ann:not-real@db/x", &base)
                .is_err_and(|problem| !problem.contains("not-real"))
        );
    }

    #[test]
    fn the_address_of_a_database_is_shown_without_its_password() {
        let address = |text: &str| match store(text, &Base::default()) {
            Ok(Store::Postgres(address)) => address,
            other => panic!("{other:?}"),
        };

        let one = address("postgresql://ann:not%40real@db:5432,db2/x?sslpassword=other");
        assert_eq!(one.shown(), "postgres://db:5432,db2/x");
        assert_eq!(format!("{one:?}"), "postgres://db:5432,db2/x");
        assert_eq!(one.passwords(), ["not%40real", "not@real"]);

        let wrong = address("postgres://ann:not/real@db/x");
        assert_eq!(wrong.shown(), "postgres://…");
        assert_eq!(wrong.passwords(), ["not/real"]);

        let none = address("postgres://db/x");
        assert_eq!(none.shown(), "postgres://db/x");
        assert_eq!(none.passwords(), [""; 0]);
        assert_eq!(address("postgres://ann@db").passwords(), [""; 0]);
        assert_eq!(address("postgres://").shown(), "postgres://");
    }
}
