//! Keeps agreements in `trust.json` in the user's data folder. Writers hold a lock and replace the
//! file atomically, so readers need no lock.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use callboard_actors::ports::Clock as _;
use serde::{Deserialize, Serialize};

use super::content;
use crate::{clock::SystemClock, private, real_path::real_or_nearest};

/// Maximum size of the store in bytes: about ten thousand agreements.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Version of the file format.
const VERSION: u32 = 1;

/// The location of a file or folder, as an agreement names it: the parent folder with symbolic
/// links resolved, plus the name. A link as the last component is not resolved, because relative
/// paths in the file refer to the folder of the link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    path: PathBuf,
    /// The folder that the file belongs to. A folder of skills belongs to itself.
    folder: PathBuf,
}

impl Place {
    /// Locates a file.
    ///
    /// # Errors
    /// The parent folder does not exist, or `path` has no file name.
    pub fn of_file(path: &Path) -> io::Result<Self> {
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let folder = parent.canonicalize()?;
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self {
            path: folder.join(name),
            folder,
        })
    }

    /// Locates a folder, for an agreement to everything in it.
    ///
    /// # Errors
    /// The folder does not exist.
    pub fn of_folder(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        Ok(Self {
            folder: path.clone(),
            path,
        })
    }

    /// The absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// What the store knows about a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// A person agreed to this path with this content.
    Trusted,
    /// A person agreed to this path, but with another content.
    Changed,
    /// No person has agreed to this path.
    New,
    /// No agreement to this path counts: the store lies in the file's folder, where the project's
    /// tools could write it.
    Barred,
}

/// One agreement to a path with its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustEntry {
    /// Absolute path of the file or folder.
    pub path: String,
    /// SHA-256 of the content, in hexadecimal digits.
    pub sha256: String,
    /// Time of the agreement, in UTC.
    pub since: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    version: u32,
    entries: Vec<TrustEntry>,
}

/// Why an agreement cannot be read or stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// Neither `HOME` nor `XDG_DATA_HOME` is set.
    #[error("the list of trusted files has no place: neither HOME nor XDG_DATA_HOME is set")]
    NoPlace,
    /// The store is malformed, or another user can write it. Nothing is trusted.
    #[error("{} cannot be used, so nothing is trusted: {reason}", path.display())]
    Unusable {
        /// Path of the store.
        path: PathBuf,
        /// What is wrong with it, as the end of a sentence.
        reason: String,
    },
    /// The store cannot be written, or its lock cannot be taken.
    #[error("{} cannot be written: {reason}", path.display())]
    Unwritable {
        /// Path of the store.
        path: PathBuf,
        /// Kind of the error of the operating system.
        reason: io::ErrorKind,
    },
    /// The path is not valid Unicode, so JSON cannot hold it.
    #[error("the path is not Unicode text")]
    Path,
    /// The path is [`Standing::Barred`].
    #[error("{} lies inside the folder of this file, where tools that work there could change it", path.display())]
    Inside {
        /// Path of the store.
        path: PathBuf,
    },
}

/// The agreements of one user. Cloning is cheap. Every query reads the file, so that all processes
/// see the same agreements.
#[derive(Debug, Clone, Default)]
pub struct TrustStore {
    folder: Option<PathBuf>,
}

impl TrustStore {
    /// Uses the store in `folder`; with `None`, nothing is trusted.
    pub fn new(folder: Option<PathBuf>) -> Self {
        Self { folder }
    }

    /// The folder of the store.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    fn path(&self) -> Result<PathBuf, TrustError> {
        self.folder
            .as_ref()
            .map(|folder| folder.join("trust.json"))
            .ok_or(TrustError::NoPlace)
    }

    /// Looks up a file with this content. A store that cannot be used has no agreements;
    /// [`TrustStore::entries`] returns why.
    pub fn standing(&self, place: &Place, sha256: &str) -> Standing {
        if self.is_inside(place) {
            return Standing::Barred;
        }
        let entries = self.entries().unwrap_or_default();
        match entries
            .iter()
            .find(|entry| Path::new(&entry.path) == place.path)
        {
            Some(entry) if entry.sha256 == sha256 => Standing::Trusted,
            Some(_) => Standing::Changed,
            None => Standing::New,
        }
    }

    /// All agreements, sorted by path.
    ///
    /// # Errors
    /// [`TrustError::Unusable`]. A missing store is empty, not an error.
    pub fn entries(&self) -> Result<Vec<TrustEntry>, TrustError> {
        match self.path() {
            Ok(path) => read(&path),
            Err(_) => Ok(Vec::new()),
        }
    }

    /// Stores an agreement and replaces an earlier one for the same path.
    ///
    /// # Errors
    /// [`TrustError`]; the store is then unchanged.
    pub fn add(&self, place: &Place, sha256: &str) -> Result<(), TrustError> {
        if self.is_inside(place) {
            return Err(TrustError::Inside { path: self.path()? });
        }
        let path = place.path.to_str().ok_or(TrustError::Path)?.to_owned();
        self.change(|entries| {
            entries.retain(|entry| entry.path != path);
            entries.push(TrustEntry {
                path: path.clone(),
                sha256: sha256.to_owned(),
                since: SystemClock.now().to_string(),
            });
        })
    }

    /// Removes the agreements to this path and to all paths below it. Returns the removed paths.
    ///
    /// # Errors
    /// [`TrustError`]; the store is then unchanged.
    pub fn revoke(&self, path: &Path) -> Result<Vec<String>, TrustError> {
        let mut gone = Vec::new();
        self.change(|entries| {
            entries.retain(|entry| {
                let goes = Path::new(&entry.path).starts_with(path);
                if goes {
                    gone.push(entry.path.clone());
                }
                !goes
            });
        })?;
        Ok(gone)
    }

    fn is_inside(&self, place: &Place) -> bool {
        self.folder
            .as_ref()
            .is_some_and(|folder| real_or_nearest(folder).starts_with(&place.folder))
    }

    fn change(&self, change: impl FnOnce(&mut Vec<TrustEntry>)) -> Result<(), TrustError> {
        let path = self.path()?;
        let failed = |error: io::Error| TrustError::Unwritable {
            path: path.clone(),
            reason: error.kind(),
        };
        let folder = path.parent().unwrap_or(Path::new("."));
        private::make_folder(folder).map_err(failed)?;
        let lock = private::file()
            .create(true)
            .truncate(false)
            .open(folder.join("trust.lock"))
            .map_err(failed)?;
        // Open files hold the lock; another process writes only for a moment, so waiting is short.
        lock.lock().map_err(failed)?;
        let mut entries = read(&path)?;
        change(&mut entries);
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        let text = serde_json::to_vec_pretty(&Kept {
            version: VERSION,
            entries,
        })
        .map_err(|error| failed(error.into()))?;
        private::replace(&path, &text).map_err(failed)
    }
}

fn read(path: &Path) -> Result<Vec<TrustEntry>, TrustError> {
    let unusable = |reason: String| TrustError::Unusable {
        path: path.to_owned(),
        reason,
    };
    let bytes = match content::file(path, FILE_BYTES_MAX) {
        Ok(content) => content.bytes,
        Err(content::Unread::Missing) => return Ok(Vec::new()),
        Err(error) => return Err(unusable(error.to_string())),
    };
    if others_can_write(path) {
        return Err(unusable(
            "other users can write it; give it mode 0600".into(),
        ));
    }
    match serde_json::from_slice::<Kept>(&bytes) {
        Ok(kept) if kept.version == VERSION => Ok(kept.entries),
        Ok(_) => Err(unusable("another version of Callboard wrote it".into())),
        Err(_) => Err(unusable(
            "it is malformed; remove it to start with an empty list".into(),
        )),
    }
}

#[cfg(unix)]
fn others_can_write(path: &Path) -> bool {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let own = rustix::process::geteuid().as_raw();
    fs::metadata(path)
        .is_ok_and(|data| data.permissions().mode() & 0o022 != 0 || ![own, 0].contains(&data.uid()))
}

#[cfg(not(unix))]
fn others_can_write(_: &Path) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    struct Ground {
        folder: tempfile::TempDir,
        store: TrustStore,
    }

    impl Ground {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            std::fs::create_dir(folder.path().join("project")).unwrap();
            let store = TrustStore::new(Some(folder.path().join("data/callboard")));
            Self { folder, store }
        }

        fn place(&self) -> Place {
            Place::of_file(&self.folder.path().join("project/callboard.toml")).unwrap()
        }

        fn file(&self) -> PathBuf {
            self.folder.path().join("data/callboard/trust.json")
        }
    }

    #[test]
    fn an_agreement_holds_for_one_path_and_one_content() {
        let ground = Ground::new();
        let place = ground.place();
        assert_eq!(ground.store.standing(&place, "aa"), Standing::New);

        ground.store.add(&place, "aa").unwrap();

        let elsewhere = Place::of_file(&ground.folder.path().join("callboard.toml"));
        assert_eq!(ground.store.standing(&place, "aa"), Standing::Trusted);
        assert_eq!(ground.store.standing(&place, "ab"), Standing::Changed);
        assert_ne!(
            ground.store.standing(&elsewhere.unwrap(), "aa"),
            Standing::Trusted
        );
        assert_eq!(
            ground
                .store
                .revoke(&ground.folder.path().canonicalize().unwrap().join("project"))
                .unwrap()
                .len(),
            1
        );
        assert_eq!(ground.store.standing(&place, "aa"), Standing::New);
    }

    #[test]
    fn the_store_is_for_its_user_alone() {
        let ground = Ground::new();
        ground.store.add(&ground.place(), "aa").unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            (mode(&ground.file()), mode(ground.file().parent().unwrap())),
            (0o600, 0o700)
        );

        std::fs::set_permissions(ground.file(), std::fs::Permissions::from_mode(0o666)).unwrap();

        assert!(
            ground
                .store
                .entries()
                .unwrap_err()
                .to_string()
                .contains("other users can write it")
        );
        assert_eq!(ground.store.standing(&ground.place(), "aa"), Standing::New);
    }

    #[test]
    fn a_corrupt_or_newer_store_trusts_nothing_and_is_left_alone() {
        let ground = Ground::new();
        ground.store.add(&ground.place(), "aa").unwrap();
        for text in [
            "",
            "{",
            "{\"version\":2,\"entries\":[]}",
            "[]",
            "{\"version\":1}",
            "\u{0}\u{1}",
        ] {
            std::fs::write(ground.file(), text).unwrap();

            assert!(
                matches!(ground.store.entries(), Err(TrustError::Unusable { .. })),
                "{text}"
            );
            assert_eq!(
                ground.store.standing(&ground.place(), "aa"),
                Standing::New,
                "{text}"
            );
            assert!(ground.store.add(&ground.place(), "aa").is_err(), "{text}");
            assert_eq!(std::fs::read_to_string(ground.file()).unwrap(), text);
        }
    }

    #[test]
    fn no_agreement_is_lost_when_many_write_at_once() {
        let ground = Ground::new();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let ground = &ground;
                scope.spawn(move || {
                    for file in 0..4 {
                        let place = Place::of_file(
                            &ground
                                .folder
                                .path()
                                .join(format!("project/{thread}-{file}")),
                        )
                        .unwrap();
                        ground.store.add(&place, "aa").unwrap();
                    }
                });
            }
        });

        assert_eq!(ground.store.entries().unwrap().len(), 32);
    }

    #[test]
    fn nothing_is_trusted_in_a_folder_that_holds_the_store() {
        let ground = Ground::new();
        let above = Place::of_file(&ground.folder.path().join("callboard.toml")).unwrap();

        assert_eq!(ground.store.standing(&above, "aa"), Standing::Barred);
        assert!(matches!(
            ground.store.add(&above, "aa"),
            Err(TrustError::Inside { .. })
        ));
        assert_eq!(
            TrustStore::default().add(&ground.place(), "aa"),
            Err(TrustError::NoPlace)
        );
    }
}
