//! One MCP server of one tenant: started on first use, stopped when idle, restarted after a failure
//! and a delay. Implements the port [`McpClient`].
//!
//! Guarantees: a dead server fails calls, never the caller. There is at most one connection at a
//! time. The server is notified when a caller cancels or is dropped. No wait exceeds the server's
//! configured timeouts.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use callboard_actors::{
    chat::RawJson,
    ports::{BoxFuture, McpClient, McpError, McpResult, McpToolDefinition, Progress},
};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{
    backoff::Backoff,
    config::McpServerConfig,
    connection::{Connection, Lease, Listed},
    handshake::Era,
    resources::McpResources,
    stderr::LastLine,
};
use crate::mask::Masker;

/// An MCP server as one tenant uses it.
pub struct Server {
    me: Weak<Self>,
    config: McpServerConfig,
    resources: McpResources,
    state: tokio::sync::Mutex<State>,
    /// The last line of the process's standard error.
    stderr_line: LastLine,
    /// Masks secrets; while the server runs, also those of its configuration.
    masker: Mutex<Arc<Masker>>,
    /// Origin of the times that [`Backoff`] sees.
    epoch: Instant,
    /// Cancelled by `close`; ends a start in progress.
    closing: CancellationToken,
}

#[derive(Default)]
struct State {
    connection: Option<Arc<Connection>>,
    backoff: Backoff,
    /// The protocol of the last connection, so that reconnecting needs no probe.
    era: Option<Era>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Server {
    pub(super) fn new(config: McpServerConfig, resources: McpResources) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            config,
            masker: Mutex::new(resources.masker.clone()),
            resources,
            state: tokio::sync::Mutex::default(),
            stderr_line: LastLine::default(),
            epoch: Instant::now(),
            closing: CancellationToken::new(),
        })
    }

    /// The configuration of the server.
    pub fn config(&self) -> &McpServerConfig {
        &self.config
    }

    /// The last line of the process's standard error, masked. For people, not for models: it may
    /// contain paths.
    pub fn last_stderr_line(&self) -> String {
        self.stderr_line.shown()
    }

    /// The negotiated version of the protocol, if the server is connected.
    pub async fn version(&self) -> Option<String> {
        self.state
            .lock()
            .await
            .connection
            .as_ref()
            .map(|connection| connection.version())
    }

    /// The protocol of the last connection; `None` before the first one or after a failed start.
    pub async fn era(&self) -> Option<Era> {
        self.state.lock().await.era
    }

    /// Whether the server is connected.
    pub async fn is_running(&self) -> bool {
        self.state
            .lock()
            .await
            .connection
            .as_ref()
            .is_some_and(|connection| !connection.is_over())
    }

    /// Whether the server announced a change of its tools since they were read.
    /// [`McpClient::list_tools`] returns the current ones. `false` while the server is being
    /// started.
    pub fn list_changed(&self) -> bool {
        self.state.try_lock().is_ok_and(|state| {
            state
                .connection
                .as_ref()
                .is_some_and(|connection| connection.list_changed())
        })
    }

    /// The server's tools, and notes about omitted ones.
    pub(super) async fn listed(&self) -> Result<Listed, McpError> {
        let lease = self.lease().await?;
        lease.list().await
    }

    /// Masks secrets in the server's texts.
    pub(super) fn masker(&self) -> Arc<Masker> {
        self.masker.lock().clone()
    }

    fn unreachable(&self, reason: impl Into<String>) -> McpError {
        McpError::Unreachable {
            server: self.config.name.clone(),
            reason: reason.into(),
        }
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Leases the connection and opens it if there is none. Concurrent callers wait on the state's
    /// lock while one of them connects.
    async fn lease(&self) -> Result<Lease, McpError> {
        let mut state = self.state.lock().await;
        if self.closing.is_cancelled() {
            return Err(self.unreachable("it was closed"));
        }
        if let Some(over) = state.connection.take_if(|connection| connection.is_over()) {
            self.lost(&mut state, over);
        }
        if let Some(connection) = &state.connection {
            return Ok(connection.lease());
        }
        if let Some(wait) = state.backoff.wait(self.now()) {
            return Err(self.unreachable(format!(
                "it failed; the next start is possible in {} s",
                wait.as_secs() + 1
            )));
        }
        let opened = tokio::select! {
            biased;
            () = self.closing.cancelled() => return Err(self.unreachable("it was closed")),
            opened = Connection::open(&self.config, &self.resources, state.era, self.stderr_line.clone()) => opened,
        };
        match opened {
            Ok(connection) => {
                tracing::debug!(
                    server = self.config.name,
                    version = connection.version(),
                    "connected to an MCP server"
                );
                let connection = Arc::new(connection);
                *self.masker.lock() = connection.masker();
                state.era = Some(connection.era);
                state.connection = Some(connection.clone());
                tokio::spawn(keep(self.me.clone(), connection.clone(), self.config.idle));
                Ok(connection.lease())
            }
            Err(error) => {
                // The program may have been replaced: probe for its protocol next time.
                state.era = None;
                state.backoff.failed(self.now(), Duration::ZERO);
                tracing::debug!(server = self.config.name, %error, "could not connect to an MCP server");
                Err(error)
            }
        }
    }

    /// Records an unexpected end of a connection, and cleans it up in the background.
    fn lost(&self, state: &mut State, connection: Arc<Connection>) {
        state.backoff.failed(self.now(), connection.began.elapsed());
        tokio::spawn(async move { connection.close().await });
    }
}

/// Waits until the connection ends or is idle for `idle`, and removes it from the server.
async fn keep(server: Weak<Server>, connection: Arc<Connection>, idle: Duration) {
    loop {
        let until = connection.idle_since().unwrap_or_else(Instant::now) + idle;
        let ended = tokio::select! {
            biased;
            () = connection.ended.cancelled() => true,
            () = sleep_until(until) => false,
        };
        let Some(server) = server.upgrade() else {
            break;
        };
        let mut state = server.state.lock().await;
        if !state
            .connection
            .as_ref()
            .is_some_and(|current| Arc::ptr_eq(current, &connection))
        {
            break; // another task has replaced it
        }
        if ended {
            state.connection = None;
            server.lost(&mut state, connection.clone());
            return;
        }
        // Leases are created under the state's lock, so the connection cannot come into use here.
        if connection
            .idle_since()
            .is_some_and(|since| since.elapsed() >= idle)
        {
            state.connection = None;
            drop(state);
            tracing::debug!(server = server.config.name, "closing an idle MCP server");
            break;
        }
    }
    connection.close().await;
}

impl McpClient for Server {
    fn server_name(&self) -> &str {
        &self.config.name
    }

    fn list_tools(&self) -> BoxFuture<'_, Result<Arc<[McpToolDefinition]>, McpError>> {
        Box::pin(async move { self.listed().await.map(|listed| listed.tools) })
    }

    fn call_tool(
        &self,
        tool: String,
        arguments: RawJson,
        progress: Progress,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, Result<McpResult, McpError>> {
        Box::pin(async move {
            let lease = tokio::select! {
                biased;
                () = cancel.cancelled() => return Err(McpError::Cancelled),
                lease = self.lease() => lease?,
            };
            // The call runs in its own task, so that a dropped caller still leads to a cancellation
            // notice to the server.
            let stop = cancel.child_token();
            let _stop_on_drop = stop.clone().drop_guard();
            let working =
                tokio::spawn(async move { lease.call(tool, arguments, progress, stop).await });
            match working.await {
                Ok(result) => result,
                Err(_) => Err(McpError::Failed {
                    server: self.config.name.clone(),
                    reason: "the call's task panicked".to_owned(),
                }),
            }
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.closing.cancel();
            let connection = self.state.lock().await.connection.take();
            if let Some(connection) = connection {
                connection.close().await;
            }
        })
    }
}
