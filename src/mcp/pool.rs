//! All servers of a host: one connection a tenant and server (REQUIREMENTS Q-06 ends them).

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use callboard_actors::{
    ids::TenantId,
    ports::{McpClient as _, McpError},
};
use futures_util::future::join_all;

use super::{HttpClients, McpServerConfig, Server, name::is_server_name};
use crate::{sandbox::Spawner, tools::mask::Masker};

/// Servers under one pool, over all tenants.
const SERVERS_MAX: usize = 4096;

type Variable = dyn Fn(&str) -> Option<String> + Send + Sync;

/// What servers are reached with.
#[derive(Clone)]
pub struct Means {
    /// Starts processes.
    pub spawner: Spawner,
    /// Makes HTTP clients.
    pub http: HttpClients,
    /// Hides keys in whatever servers say.
    pub masker: Arc<Masker>,
    environment: Arc<Variable>,
}

impl fmt::Debug for Means {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Means").field("http", &self.http).field("masker", &self.masker).finish_non_exhaustive()
    }
}

impl Means {
    /// Means of a host, with the variables of its own environment.
    pub fn new(spawner: Spawner, http: HttpClients, masker: Arc<Masker>) -> Self {
        Self { spawner, http, masker, environment: Arc::new(|name| std::env::var(name).ok()) }
    }

    /// With other variables than those of this process.
    #[must_use]
    pub fn environment(mut self, variable: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        self.environment = Arc::new(variable);
        self
    }

    pub(super) fn variable(&self, name: &str) -> Option<String> {
        (self.environment)(name)
    }
}

impl callboard_actors::ports::Resource for McpPool {
    fn close(&self) -> callboard_actors::ports::BoxFuture<'_, ()> {
        Box::pin(self.close_all())
    }
}

/// The servers of a host. Clones share them.
#[derive(Clone)]
pub struct McpPool(Arc<Inner>);

struct Inner {
    means: Means,
    servers: Mutex<Servers>,
}

#[derive(Default)]
struct Servers {
    all: BTreeMap<(TenantId, String), Arc<Server>>,
    closed: bool,
}

impl fmt::Debug for McpPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpPool").field("servers", &self.servers().all.len()).finish()
    }
}

impl McpPool {
    /// A pool without servers.
    pub fn new(means: Means) -> Self {
        Self(Arc::new(Inner { means, servers: Mutex::default() }))
    }

    fn servers(&self) -> std::sync::MutexGuard<'_, Servers> {
        self.0.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server of a tenant; nothing is started yet. One that is configured otherwise than before takes the place of the former,
    /// which is closed.
    ///
    /// # Errors
    /// [`McpError::Unreachable`] after [`McpPool::close_all`], for a name that no server may have, and above 4,096 servers.
    pub fn server(&self, tenant: &TenantId, config: &McpServerConfig) -> Result<Arc<Server>, McpError> {
        let unreachable = |reason: &str| McpError::Unreachable { server: config.name.clone(), reason: reason.to_owned() };
        if !is_server_name(&config.name) {
            return Err(McpError::Unreachable { server: "?".to_owned(), reason: "its name is none of a server".to_owned() });
        }
        let mut servers = self.servers();
        if servers.closed {
            return Err(unreachable("the host shuts down"));
        }
        let key = (tenant.clone(), config.name.clone());
        if let Some(known) = servers.all.get(&key).filter(|known| known.config() == config) {
            return Ok(known.clone());
        }
        if servers.all.len() >= SERVERS_MAX {
            return Err(unreachable("there are too many servers"));
        }
        let server = Server::new(config.clone(), self.0.means.clone());
        let former = servers.all.insert(key, server.clone());
        drop(servers);
        if let (Some(former), Ok(runtime)) = (former, tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move { former.close().await });
        }
        Ok(server)
    }

    /// Ends the connections and processes of a tenant that is served no more, all at once.
    pub async fn close_of(&self, tenant: &TenantId) {
        let own: Vec<_> = self.servers().all.extract_if(.., |(of, _), _| of == tenant).collect();
        join_all(own.iter().map(|(_, server)| server.close())).await;
    }

    /// Names of a tenant's servers that said that their tools changed since they were read: to be announced; what a conversation is
    /// offered stays as it is.
    pub fn changed(&self, tenant: &TenantId) -> Vec<String> {
        let servers = self.servers();
        let own = servers.all.iter().filter(|((of, _), _)| of == tenant);
        own.filter(|(_, server)| server.list_changed()).map(|((_, name), _)| name.clone()).collect()
    }

    /// Ends every connection and process (REQUIREMENTS Q-06), all at once, each within some five seconds. Calls after it fail.
    pub async fn close_all(&self) {
        let servers = {
            let mut servers = self.servers();
            servers.closed = true;
            std::mem::take(&mut servers.all)
        };
        join_all(servers.values().map(|server| server.close())).await;
    }
}
