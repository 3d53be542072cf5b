//! Persists the run-time changes that `serve` makes to its tenants (tenants, keys, pauses) in
//! `tenants.json` in the data folder. The file holds hashes of keys, never a key.
//!
//! The configuration file wins for the tenants that it names, except for what it cannot know: keys
//! that were added or replaced at run time, and whether the tenant is paused.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use callboard_actors::ids::TenantId;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::private;

/// Version of the file format; a newer file is left untouched.
const VERSION: u32 = 1;

/// Maximum size of the file in bytes; ten thousand tenants fit.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Why the file or its folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoredTenantsError {
    #[error("the data folder {} cannot be used: {reason}", path.display())]
    Folder {
        path: PathBuf,
        reason: io::ErrorKind,
    },
    #[error("the data folder {} is in use by another `callboard serve`", .0.display())]
    InUse(PathBuf),
    #[error("{} cannot be read: {reason}", path.display())]
    Unreadable { path: PathBuf, reason: String },
    #[error("{} cannot be written: {reason}", path.display())]
    Unwritable {
        path: PathBuf,
        reason: io::ErrorKind,
    },
    #[error("the tenants in the database cannot be used: {0}")]
    Database(String),
    #[error("another host changed the tenants at the same time; try again")]
    Changed,
}

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredTenants {
    version: u32,
    /// Tenants by id.
    pub(crate) tenants: BTreeMap<TenantId, StoredTenant>,
}

/// The persisted changes of one tenant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StoredTenant {
    /// The JSON that the operator's route received; `None` for a tenant of the configuration file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) settings: Option<Value>,
    /// Hashes of keys that were added at run time.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) key_sha256: BTreeSet<String>,
    /// Hashes of keys of the configuration file, or of `settings`, that were replaced at run time and
    /// are no longer valid.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) replaced_sha256: BTreeSet<String>,
    /// Whether the tenant is paused; `None` if this was never changed at run time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) paused: Option<bool>,
    /// Whether the first start without configuration created this tenant. It is served only while
    /// no tenant is configured.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) generated: bool,
}

impl Default for StoredTenants {
    fn default() -> Self {
        Self {
            version: VERSION,
            tenants: BTreeMap::new(),
        }
    }
}

/// The data folder of a host that serves. A lock ensures that one process at a time uses it.
#[derive(Debug)]
pub(crate) struct DataFolder {
    path: PathBuf,
    /// Holds the lock while it is open.
    _lock: File,
    /// Whether the last process stopped without a crash.
    follows_orderly_stop: bool,
}

/// The file that a process leaves in its data folder when it stops without a crash.
pub(crate) fn stop_mark(data_dir: &Path) -> PathBuf {
    data_dir.join("serve.stopped")
}

impl DataFolder {
    /// Locks the folder. A missing folder is created with access for this user only.
    pub(crate) fn take(path: &Path) -> Result<Self, StoredTenantsError> {
        let failed = |error: io::Error| StoredTenantsError::Folder {
            path: path.to_owned(),
            reason: error.kind(),
        };
        private::make_folder(path).map_err(failed)?;
        // A link in a folder that came from elsewhere would create a file where it leads.
        let no_links = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0);
        let lock = private::file()
            .custom_flags(no_links)
            .create(true)
            .truncate(false)
            .open(path.join("serve.lock"))
            .map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                path: path.to_owned(),
                _lock: lock,
                follows_orderly_stop: fs::remove_file(stop_mark(path)).is_ok(),
            }),
            Err(fs::TryLockError::WouldBlock) => Err(StoredTenantsError::InUse(path.to_owned())),
            Err(fs::TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// Whether the last process on this folder stopped without a crash.
    pub(crate) fn follows_orderly_stop(&self) -> bool {
        self.follows_orderly_stop
    }

    fn file(&self) -> PathBuf {
        stored_tenants_file(&self.path)
    }

    /// Reads the file; a missing file is empty.
    pub(crate) fn read(&self) -> Result<StoredTenants, StoredTenantsError> {
        read(&self.file())
    }

    /// Replaces the file atomically, and returns when it is on disk.
    pub(crate) fn write(&self, stored: &StoredTenants) -> Result<(), StoredTenantsError> {
        let path = self.file();
        let failed = |error: io::Error| StoredTenantsError::Unwritable {
            path: path.clone(),
            reason: error.kind(),
        };
        let text = serde_json::to_vec_pretty(stored).map_err(|error| failed(error.into()))?;
        private::replace(&path, &text).map_err(failed)
    }
}

/// Path of the file in the data folder.
pub(crate) fn stored_tenants_file(data_dir: &Path) -> PathBuf {
    data_dir.join("tenants.json")
}

/// Reads the file at `path`; a missing file is empty.
pub(crate) fn read(path: &Path) -> Result<StoredTenants, StoredTenantsError> {
    use io::Read as _;
    let failed = |reason: String| StoredTenantsError::Unreadable {
        path: path.to_owned(),
        reason,
    };
    let mut text = String::new();
    match crate::named_file::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text))
    {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(StoredTenants::default());
        }
        Err(error) => return Err(failed(error.kind().to_string())),
    }
    let stored: StoredTenants =
        serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?;
    if stored.version > VERSION {
        return Err(failed("it was written by a newer Callboard".into()));
    }
    Ok(stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_pipes_of_a_folder_that_came_from_elsewhere_are_neither_followed_nor_waited_for() {
        let home = tempfile::tempdir().unwrap();
        let (data, outside) = (home.path().join("data"), home.path().join("outside"));
        fs::create_dir(&data).unwrap();
        std::os::unix::fs::symlink(&outside, data.join("serve.lock")).unwrap();
        assert!(matches!(
            DataFolder::take(&data),
            Err(StoredTenantsError::Folder { .. })
        ));
        assert!(!outside.exists());

        fs::remove_file(data.join("serve.lock")).unwrap();
        fs::write(&outside, "kept").unwrap();
        std::os::unix::fs::symlink(&outside, data.join("tenants.json.new")).unwrap();
        let folder = DataFolder::take(&data).unwrap();
        folder.write(&StoredTenants::default()).unwrap();
        assert_eq!(fs::read_to_string(&outside).unwrap(), "kept");
        assert_eq!(folder.read().unwrap(), StoredTenants::default());

        let file = stored_tenants_file(&data);
        fs::remove_file(&file).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(matches!(
            folder.read(),
            Err(StoredTenantsError::Unreadable { .. })
        ));
    }

    #[test]
    fn the_mark_of_an_orderly_stop_counts_for_one_start() {
        let home = tempfile::tempdir().unwrap();
        let follows = || {
            DataFolder::take(home.path())
                .unwrap()
                .follows_orderly_stop()
        };
        assert!(!follows(), "nothing ran here before");

        fs::write(stop_mark(home.path()), "").unwrap();

        assert!(follows());
        assert!(!follows(), "a crash after it is a crash");
    }

    #[test]
    fn stored_tenants_are_read_as_written_and_are_private_to_their_user() {
        use std::os::unix::fs::PermissionsExt as _;
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("data");
        let folder = DataFolder::take(&path).unwrap();
        let mut stored = folder.read().unwrap();
        let tenant = StoredTenant {
            paused: Some(true),
            key_sha256: BTreeSet::from(["ab".repeat(32)]),
            ..StoredTenant::default()
        };
        stored
            .tenants
            .insert(TenantId::new("acme").unwrap(), tenant);

        folder.write(&stored).unwrap();

        assert_eq!(folder.read().unwrap(), stored);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            (mode(&path), mode(&stored_tenants_file(&path))),
            (0o700, 0o600)
        );
    }

    #[test]
    fn a_data_folder_has_one_host() {
        let home = tempfile::tempdir().unwrap();
        let first = DataFolder::take(home.path()).unwrap();

        assert!(matches!(
            DataFolder::take(home.path()),
            Err(StoredTenantsError::InUse(_))
        ));
        drop(first);
        assert!(DataFolder::take(home.path()).is_ok());
    }

    #[test]
    fn a_newer_file_is_left_alone() {
        let home = tempfile::tempdir().unwrap();
        fs::write(
            stored_tenants_file(home.path()),
            r#"{"version":2,"tenants":{}}"#,
        )
        .unwrap();

        assert!(matches!(
            read(&stored_tenants_file(home.path())),
            Err(StoredTenantsError::Unreadable { .. })
        ));
    }
}
