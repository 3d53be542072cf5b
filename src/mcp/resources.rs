//! What every server of a host shares: the process spawner, the HTTP clients, the masker and the
//! environment.

use std::{fmt, os::unix::fs::DirBuilderExt as _, path::PathBuf, sync::Arc};

use super::http::HttpClients;
use crate::{mask::Masker, sandbox::Spawner};

type Variable = dyn Fn(&str) -> Option<String> + Send + Sync;

/// What a pool needs to reach servers.
#[derive(Clone)]
pub struct McpResources {
    /// Starts server processes.
    pub spawner: Spawner,
    /// Creates HTTP clients.
    pub http: HttpClients,
    /// Masks secrets in everything that servers send.
    pub masker: Arc<Masker>,
    environment: Arc<Variable>,
    folder: PathBuf,
}

impl fmt::Debug for McpResources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpResources")
            .field("http", &self.http)
            .field("masker", &self.masker)
            .finish_non_exhaustive()
    }
}

impl McpResources {
    /// Uses the environment of this process. Servers without a `cwd` start in the folder
    /// of this process; a program whose folder holds files of others sets [`McpResources::folder`].
    pub fn new(spawner: Spawner, http: HttpClients, masker: Arc<Masker>) -> Self {
        Self {
            spawner,
            http,
            masker,
            environment: Arc::new(|name| std::env::var(name).ok()),
            folder: PathBuf::from("."),
        }
    }

    /// Replaces the environment that templates and `env_from` read.
    #[must_use]
    pub fn environment(
        mut self,
        variable: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.environment = Arc::new(variable);
        self
    }

    /// Sets the folder in which servers without a `cwd` start. It is created, empty and read-only,
    /// when the first of them starts: no program finds code or settings there.
    #[must_use]
    pub fn folder(mut self, folder: PathBuf) -> Self {
        self.folder = folder;
        self
    }

    pub(super) fn start_folder(&self) -> Result<PathBuf, String> {
        let above = self.folder.parent().map_or(Ok(()), std::fs::create_dir_all);
        let created = above.and_then(|()| {
            let made = std::fs::DirBuilder::new().mode(0o500).create(&self.folder);
            match made {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
                Ok(()) | Err(_) => Ok(()),
            }
        });
        match created {
            Ok(()) => Ok(self.folder.clone()),
            Err(error) => Err(format!(
                "the empty folder in which it starts cannot be created in the data folder: {}",
                error.kind()
            )),
        }
    }

    pub(super) fn variable(&self, name: &str) -> Option<String> {
        (self.environment)(name)
    }
}
