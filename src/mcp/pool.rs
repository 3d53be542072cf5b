//! All MCP servers of a host, with one connection for each tenant and server.

use std::{collections::BTreeMap, fmt, sync::Arc};

use callboard_actors::{
    ids::TenantId,
    ports::{McpClient as _, McpError},
};
use futures_util::future::join_all;
use parking_lot::Mutex;

use super::{McpServerConfig, Server, name::is_server_name, resources::McpResources};

/// Most servers of one pool, over all tenants.
const SERVERS_MAX: usize = 4096;

impl callboard_actors::ports::Resource for McpPool {
    fn close(&self) -> callboard_actors::ports::BoxFuture<'_, ()> {
        Box::pin(self.close_all())
    }
}

/// The servers of a host. Clones share them.
#[derive(Clone)]
pub struct McpPool(Arc<Inner>);

struct Inner {
    resources: McpResources,
    servers: Mutex<Servers>,
}

#[derive(Default)]
struct Servers {
    all: BTreeMap<(TenantId, String), Arc<Server>>,
    closed: bool,
}

impl fmt::Debug for McpPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpPool")
            .field("servers", &self.servers().all.len())
            .finish()
    }
}

impl McpPool {
    /// A pool without servers.
    pub fn new(resources: McpResources) -> Self {
        Self(Arc::new(Inner {
            resources,
            servers: Mutex::default(),
        }))
    }

    fn servers(&self) -> parking_lot::MutexGuard<'_, Servers> {
        self.0.servers.lock()
    }

    /// The server of a tenant; does not start it. If its configuration differs from the known one,
    /// the new server replaces the old one, which is closed.
    ///
    /// # Errors
    /// [`McpError::Unreachable`] after [`McpPool::close_all`], for an invalid name, and above 4,096
    /// servers.
    pub fn server(
        &self,
        tenant: &TenantId,
        config: &McpServerConfig,
    ) -> Result<Arc<Server>, McpError> {
        let unreachable = |reason: &str| McpError::Unreachable {
            server: config.name.clone(),
            reason: reason.to_owned(),
        };
        if !is_server_name(&config.name) {
            return Err(McpError::Unreachable {
                server: "?".to_owned(),
                reason: "its name is not a valid server name".to_owned(),
            });
        }
        let mut servers = self.servers();
        if servers.closed {
            return Err(unreachable("the host is shutting down"));
        }
        let key = (tenant.clone(), config.name.clone());
        if let Some(known) = servers
            .all
            .get(&key)
            .filter(|known| known.config() == config)
        {
            return Ok(known.clone());
        }
        if servers.all.len() >= SERVERS_MAX {
            return Err(unreachable("there are too many servers"));
        }
        let server = Server::new(config.clone(), self.0.resources.clone());
        let former = servers.all.insert(key, server.clone());
        drop(servers);
        if let (Some(former), Ok(runtime)) = (former, tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move { former.close().await });
        }
        Ok(server)
    }

    /// Closes all servers of a removed tenant concurrently.
    pub async fn close_of(&self, tenant: &TenantId) {
        let own: Vec<_> = self
            .servers()
            .all
            .extract_if(.., |(of, _), _| of == tenant)
            .collect();
        join_all(own.iter().map(|(_, server)| server.close())).await;
    }

    /// Servers of a tenant that announced a change of their tools since the tools were read.
    /// Running conversations keep the toolset that they started with.
    pub fn changed(&self, tenant: &TenantId) -> Vec<String> {
        let servers = self.servers();
        let own = servers.all.iter().filter(|((of, _), _)| of == tenant);
        own.filter(|(_, server)| server.list_changed())
            .map(|((_, name), _)| name.clone())
            .collect()
    }

    /// Closes every connection and process concurrently; each takes about five seconds at most.
    /// Later calls fail. The host calls it on shutdown.
    pub async fn close_all(&self) {
        let servers = {
            let mut servers = self.servers();
            servers.closed = true;
            std::mem::take(&mut servers.all)
        };
        join_all(servers.values().map(|server| server.close())).await;
    }
}
