//! An MCP client at standard input and output, of a host in this process.

use std::sync::Arc;

use axum::http::{Extensions, HeaderValue};
use callboard_actors::ids::TenantId;
use rmcp::{
    service::{RoleServer, ServerInitializeError, serve_server},
    transport::async_rw::AsyncRwTransport,
};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    HttpConfig, KeyHash, Keys,
    answer_room::ConnectionRoom,
    mcp::{Admit, Api, Offered, Server},
    new_key,
    router::{Doors, routes, served},
    shared::Shared,
};
use crate::{Host, mask, observe::Redactor};

/// Bytes of one message: a prompt of the largest size, escaped.
const LINE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Why a client was not served to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PipeError {
    #[error(
        "the client sent no handshake of MCP: the first message must be `initialize` or `server/discover`"
    )]
    NoHandshake,
    #[error("the key of the process cannot be used")]
    Key,
    #[error("the server stopped: {0}")]
    Stopped(#[from] tokio::task::JoinError),
}

/// A host for one client over pipes, as one of its tenants.
pub(crate) struct Pipes {
    pub(crate) host: Host,
    pub(crate) tenant: TenantId,
    pub(crate) redactor: Redactor,
    /// Admits changes of conversations.
    pub(crate) admit: Admit,
}

impl Pipes {
    /// Serves until the client closes its end.
    ///
    /// # Errors
    /// A client that does not speak MCP.
    pub(crate) async fn serve(
        self,
        input: impl AsyncRead + Send + Unpin + 'static,
        output: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<(), PipeError> {
        let _ = tokio::task::spawn_blocking(mask::prepare).await;
        // The key never leaves the process: it lets requests take the way of every other client.
        let (keys, key) = (Keys::new(), new_key());
        keys.put(self.tenant, KeyHash::from_key(&key));
        let config = HttpConfig::new(keys)
            .console(false)
            .metrics(false)
            .redactor(self.redactor);
        let doors = Doors {
            console: false,
            mcp: false,
        };
        let (routes, openapi) = routes(&config.redactor, doors);
        let app = Arc::new(Shared::new(self.host, config, openapi));
        let router = served(routes, &app, &app.config.redactor);
        let mut connection = Extensions::new();
        connection.insert(ConnectionRoom::new(&app.config.bounds));
        let key = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| PipeError::Key)?;
        let api = Api::new(router, key, &connection).admitted_by(self.admit);

        let transport = AsyncRwTransport::<RoleServer, _, _>::new(input, output)
            .with_max_line_length(LINE_BYTES_MAX);
        let running = match serve_server(Server::new(api, Offered::new(), true), transport).await {
            Ok(running) => running,
            // A client that asks nothing and leaves.
            Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
            Err(_) => return Err(PipeError::NoHandshake),
        };
        running.waiting().await?;
        app.closing.cancel();
        Ok(())
    }
}
