//! One server of one tenant: starts it when it is wanted, lends its connection, ends it when nobody uses it, starts it again after a
//! failure and a pause. The adapter of the port [`McpClient`].
//!
//! Promises: a dead server fails calls, never the caller · one connection at a time · a caller that goes is told to the server ·
//! nothing waits longer than the server's own bounds.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use callboard_actors::{
    chat::RawJson,
    ports::{BoxFuture, McpClient, McpError, McpResult, McpToolDefinition, Progress},
};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{
    backoff::Backoff,
    config::McpServerConfig,
    connection::{Connection, Era, Lease, Listed},
    pool::Means,
};
use crate::tools::mask::Masker;

/// A server as one tenant uses it.
pub struct Server {
    me: Weak<Self>,
    config: McpServerConfig,
    means: Means,
    state: tokio::sync::Mutex<State>,
    /// The last line that it said on its standard error.
    words: Arc<Mutex<String>>,
    /// Hides keys, those of its own configuration too once it runs.
    masker: Mutex<Arc<Masker>>,
    /// What times are counted from.
    epoch: Instant,
    /// Ends a start that goes on when the server is closed.
    closing: CancellationToken,
}

#[derive(Default)]
struct State {
    connection: Option<Arc<Connection>>,
    backoff: Backoff,
    /// What it spoke the last time: it need not be asked again.
    era: Option<Era>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Server {
    pub(super) fn new(config: McpServerConfig, means: Means) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            config,
            masker: Mutex::new(means.masker.clone()),
            means,
            state: tokio::sync::Mutex::default(),
            words: Arc::default(),
            epoch: Instant::now(),
            closing: CancellationToken::new(),
        })
    }

    /// What is configured of it.
    pub fn config(&self) -> &McpServerConfig {
        &self.config
    }

    /// The last line that its process said on standard error, masked; for people, not for models: it may hold paths.
    pub fn last_words(&self) -> String {
        self.words.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The version of the protocol that is spoken with it now, if it runs.
    pub async fn version(&self) -> Option<String> {
        self.state.lock().await.connection.as_ref().map(|connection| connection.version())
    }

    /// Which protocol it spoke the last time it was reached.
    pub async fn era(&self) -> Option<Era> {
        self.state.lock().await.era
    }

    /// Whether it runs.
    pub async fn is_running(&self) -> bool {
        self.state.lock().await.connection.as_ref().is_some_and(|connection| !connection.is_over())
    }

    /// Whether it said that its tools changed since they were read. What a conversation is offered stays as it is; see
    /// [`McpClient::list_tools`] for what holds now. One that is just being started did not.
    pub fn list_changed(&self) -> bool {
        self.state.try_lock().is_ok_and(|state| state.connection.as_ref().is_some_and(|connection| connection.list_changed()))
    }

    /// What it offers, and what of it was left out.
    pub(super) async fn listed(&self) -> Result<Listed, McpError> {
        let lease = self.lease().await?;
        lease.list().await
    }

    /// Hides what must not be read in its words.
    pub(super) fn masker(&self) -> Arc<Masker> {
        self.masker.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn unreachable(&self, reason: impl Into<String>) -> McpError {
        McpError::Unreachable { server: self.config.name.clone(), reason: reason.into() }
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// A connection, started if there is none. One caller starts it, others wait for that.
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
            return Err(self.unreachable(format!("it failed; it is started again in {} s at the earliest", wait.as_secs() + 1)));
        }
        let opened = tokio::select! {
            biased;
            () = self.closing.cancelled() => return Err(self.unreachable("it was closed")),
            opened = Connection::open(&self.config, &self.means, state.era, self.words.clone()) => opened,
        };
        match opened {
            Ok(connection) => {
                tracing::debug!(server = self.config.name, version = connection.version(), "MCP server is there");
                let connection = Arc::new(connection);
                *self.masker.lock().unwrap_or_else(PoisonError::into_inner) = connection.masker();
                state.era = Some(connection.era);
                state.connection = Some(connection.clone());
                tokio::spawn(keep(self.me.clone(), connection.clone(), self.config.idle));
                Ok(connection.lease())
            }
            Err(error) => {
                // It may be another one by now: it is asked anew what it speaks.
                state.era = None;
                state.backoff.failed(self.now(), Duration::ZERO);
                tracing::debug!(server = self.config.name, %error, "MCP server is not there");
                Err(error)
            }
        }
    }

    /// Takes leave of a connection that ended by itself.
    fn lost(&self, state: &mut State, connection: Arc<Connection>) {
        state.backoff.failed(self.now(), connection.began.elapsed());
        tokio::spawn(async move { connection.close().await });
    }
}

/// Waits until a connection ended or nobody used it for long, and takes it away.
async fn keep(server: Weak<Server>, connection: Arc<Connection>, idle: Duration) {
    loop {
        let until = connection.idle_since().unwrap_or_else(Instant::now) + idle;
        let ended = tokio::select! {
            biased;
            () = connection.ended.cancelled() => true,
            () = sleep_until(until) => false,
        };
        let Some(server) = server.upgrade() else { break };
        let mut state = server.state.lock().await;
        if !state.connection.as_ref().is_some_and(|current| Arc::ptr_eq(current, &connection)) {
            break; // somebody else took it away
        }
        if ended {
            state.connection = None;
            server.lost(&mut state, connection.clone());
            return;
        }
        // Nobody begins to use it while the state is held.
        if connection.idle_since().is_some_and(|since| since.elapsed() >= idle) {
            state.connection = None;
            drop(state);
            tracing::debug!(server = server.config.name, "MCP server was not used for long");
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
            // A task of its own: a caller that is dropped still has the server told.
            let stop = cancel.child_token();
            let _told_when_dropped = stop.clone().drop_guard();
            let working = tokio::spawn(async move { lease.call(tool, arguments, progress, stop).await });
            match working.await {
                Ok(result) => result,
                Err(_) => Err(McpError::Failed { server: self.config.name.clone(), reason: "the work did not end".to_owned() }),
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
