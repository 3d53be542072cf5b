//! What every server of a host shares: the process spawner, the HTTP clients, the masker and the
//! environment.

use std::{fmt, sync::Arc};

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
    /// Uses the environment of this process.
    pub fn new(spawner: Spawner, http: HttpClients, masker: Arc<Masker>) -> Self {
        Self {
            spawner,
            http,
            masker,
            environment: Arc::new(|name| std::env::var(name).ok()),
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

    pub(super) fn variable(&self, name: &str) -> Option<String> {
        (self.environment)(name)
    }
}
