//! The store of sessions that the configuration or a flag names.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use callboard_actors::{
    ids::{ConversationId, Scope, TenantId},
    ports::{ListQuery, SessionBackend, StoreError},
};

use super::AppError;
use crate::{
    config::{CommitMode, Config, Store},
    notes::NoteStore,
    storage::{MemorySessions, Postgres, SessionLock, Sqlite, SqliteOptions},
};

/// The session store in use.
#[derive(Clone)]
pub(crate) enum Sessions {
    Sqlite(Arc<Sqlite>, PathBuf),
    /// With the address for people.
    Postgres(Arc<Postgres>, String),
    Memory(Arc<MemorySessions>),
}

/// Whether opening may create the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    /// Creates the store if it does not exist.
    OrCreate,
    /// The store must already exist.
    Existing,
}

impl Sessions {
    /// Opens the sessions that `--db` or the configuration names.
    pub(crate) async fn open(
        config: &Config,
        db: Option<&Path>,
        opening: Opening,
    ) -> Result<Self, AppError> {
        let path = match (db, &config.store) {
            (Some(path), _) => path.to_owned(),
            (None, Store::Sqlite(path)) => path.clone(),
            (None, Store::Memory) => return Ok(Self::Memory(Arc::new(MemorySessions::new()))),
            (None, Store::Postgres(address)) => {
                let store = Postgres::open(address.expose()).await;
                let address = address.shown();
                return match store {
                    Ok(store) => Ok(Self::Postgres(Arc::new(store), address)),
                    Err(error) => Err(AppError::Database { address, error }),
                };
            }
        };
        if opening == Opening::Existing && !path.exists() {
            // Nothing was stored yet, which is an error only if the user named a file.
            return if db.is_some() {
                Err(AppError::NoStore(path))
            } else {
                Ok(Self::Memory(Arc::new(MemorySessions::new())))
            };
        }
        let parent = db.and_then(|_| path.parent());
        let missing = parent.filter(|folder| !folder.as_os_str().is_empty() && !folder.exists());
        if let Some(folder) = missing.filter(|folder| !folder.starts_with(&config.data_dir)) {
            // Only the data folder is this program's to make.
            return Err(AppError::NoFolder(folder.to_owned()));
        }
        match Sqlite::open_with(&path, sqlite_options(config)).await {
            Ok(store) => Ok(Self::Sqlite(Arc::new(store), path)),
            Err(error) => Err(AppError::Store { path, error }),
        }
    }

    /// The store as a port.
    pub(crate) fn backend(&self) -> Arc<dyn SessionBackend> {
        match self {
            Self::Sqlite(store, _) => store.clone(),
            Self::Postgres(store, _) => store.clone(),
            Self::Memory(store) => store.clone(),
        }
    }

    /// The notes of the tool `memory` that hosts of these sessions share; `None` if a host keeps them
    /// in its data folder.
    pub(crate) fn notes(&self) -> Option<Arc<dyn NoteStore>> {
        match self {
            Self::Postgres(store, _) => Some(Arc::new(store.notes())),
            Self::Sqlite(..) | Self::Memory(_) => None,
        }
    }

    /// A failure of the store, with its place.
    pub(crate) fn error(&self, error: StoreError) -> AppError {
        match self {
            Self::Sqlite(_, path) => AppError::Store {
                path: path.clone(),
                error,
            },
            Self::Postgres(_, address) => AppError::Database {
                address: address.clone(),
                error,
            },
            Self::Memory(_) => AppError::Store {
                path: PathBuf::new(),
                error,
            },
        }
    }

    /// The file or the address of the store; `None` in memory.
    pub(crate) fn place(&self) -> Option<String> {
        match self {
            Self::Sqlite(_, path) => Some(path.display().to_string()),
            Self::Postgres(_, address) => Some(address.clone()),
            Self::Memory(_) => None,
        }
    }

    /// The file of the store; `None` if it has none.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::Sqlite(_, path) => Some(path),
            Self::Postgres(..) | Self::Memory(_) => None,
        }
    }

    /// Locks a session for this process, so that a second process reports `session in use` before
    /// the user types anything. `None` for sessions without a file: there the epoch alone keeps a
    /// second process from writing.
    pub(crate) fn lock(&self, scope: &Scope) -> Result<Option<SessionLock>, AppError> {
        match self {
            Self::Sqlite(store, _) => Ok(Some(store.lock_session(scope)?)),
            Self::Postgres(..) | Self::Memory(_) => Ok(None),
        }
    }

    /// Whether an interactive program that lives has locked a session, and so runs its rounds.
    pub(crate) fn is_locked(&self, scope: &Scope) -> bool {
        match self {
            Self::Sqlite(store, _) => store.is_session_locked(scope),
            Self::Postgres(..) | Self::Memory(_) => false,
        }
    }

    /// The ids of all conversations of a tenant.
    pub(crate) async fn ids(&self, tenant: &TenantId) -> Result<Vec<ConversationId>, StoreError> {
        let backend = self.backend();
        let mut ids = Vec::new();
        loop {
            let page = backend
                .list(
                    tenant,
                    ListQuery {
                        after: ids.last().cloned(),
                        ..ListQuery::default()
                    },
                )
                .await?;
            if page.is_empty() {
                return Ok(ids);
            }
            ids.extend(page.into_iter().map(|row| row.conversation));
        }
    }
}

/// How SQLite stores sessions, as `[host] durability` says.
fn sqlite_options(config: &Config) -> SqliteOptions {
    let durability = match config.commit {
        CommitMode::Sync => crate::storage::CommitMode::Sync,
        CommitMode::Batched => crate::storage::CommitMode::Batched,
    };
    SqliteOptions {
        durability,
        ..SqliteOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_are_as_durable_as_the_configuration_says() {
        use crate::storage::CommitMode::{Batched, Sync};
        for (word, expected) in [("sync", Sync), ("batched", Batched)] {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("callboard.toml");
            let text = format!("[host]\ndata_dir = \"data\"\ndurability = \"{word}\"\n");
            std::fs::write(&file, text).unwrap();
            let config = Config::load(Some(&file), std::iter::empty()).unwrap();

            assert_eq!(sqlite_options(&config).durability, expected);
        }
    }
}
