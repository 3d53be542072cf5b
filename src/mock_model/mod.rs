//! A mock model server for load tests: the Anthropic and OpenAI APIs over HTTP, with scripted
//! answers that can be delayed or broken on request. It serves plain HTTP, or https with HTTP/1.1
//! and HTTP/2.
//!
//! It uses nothing else of this crate, so any runtime can be measured against it. If the first word
//! of a prompt begins with [`MARK`], the answer begins with that word: a client can check that an
//! answer belongs to its prompt.
//!
//! # Layout
//! `settings` its configuration · `tls` certificates and protocols of https · `fault` which calls
//! fail, by a seed · `asked` the parsed request · `meter` rates and concurrency · `call` the values
//! that a reply renders · `anthropic`, `openai` their JSON · `answer` the bytes of a reply ·
//! `connections` what is open, and how it ends · `socket` one that can be reset · `routes` ·
//! `server` the accept loop.

mod settings;
mod tls;
mod fault;
mod asked;
mod meter;
mod call;
mod anthropic;
mod openai;
mod answer;
mod connections;
mod socket;
mod routes;
mod server;

use std::{io, sync::Arc};

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use connections::ConnectionCounts;
pub use fault::Fault;
pub use settings::{BadSettings, MockModelSettings, WritePer};
pub use tls::{HTTP2_STREAMS_MAX, MadeIdentity, MockTls, TlsIdentity, TlsIdentityError};

/// Prefix of a mark: the first word of a prompt that begins so is repeated as the first word of its
/// answer.
pub const MARK: &str = "load-";

/// A mock that is ready to serve.
pub struct MockModel {
    server: server::Server,
    handle: MockModelHandle,
}

/// Observes a mock and ends single connections of it. Clones refer to the same mock.
#[derive(Debug, Clone)]
pub struct MockModelHandle(Arc<routes::Mock>);

impl MockModel {
    /// Prepares a server; nothing is accepted before [`MockModel::serve`].
    ///
    /// # Errors
    /// [`BadSettings`].
    pub fn new(settings: MockModelSettings) -> Result<Self, BadSettings> {
        settings.check()?;
        let tls = settings.tls.clone();
        let mock = Arc::new(routes::Mock::new(settings, CancellationToken::new()));
        let server = server::Server::new(
            tls.as_ref(),
            routes::router(mock.clone()),
            mock.connections().clone(),
            mock.over().clone(),
        )?;
        Ok(Self {
            server,
            handle: MockModelHandle(mock),
        })
    }

    /// Access to the mock while it serves.
    pub fn handle(&self) -> MockModelHandle {
        self.handle.clone()
    }

    /// Serves until `stop` is cancelled or `requests_max` requests are answered. Returns the number
    /// of model calls.
    ///
    /// # Cancel safety
    /// Dropping the future closes the listener. Open replies continue until their clients
    /// disconnect or the runtime ends.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) -> u64 {
        let over = self.handle.0.over().clone();
        let stopping = async {
            stop.cancelled().await;
            over.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = self.server.run(listener) => {}
            () = stopping => {}
        }
        self.handle.calls()
    }
}

impl MockModelHandle {
    /// Number of model calls so far.
    pub fn calls(&self) -> u64 {
        self.0.calls()
    }

    /// The numbers of connections and streams.
    pub fn connections(&self) -> ConnectionCounts {
        self.0.connections().counts()
    }

    /// Resets one connection; all its streams break, and no other connection's. Connections are
    /// numbered from 0 in the order in which they were accepted. Returns false if it is not open.
    pub fn kill_connection(&self, index: u64) -> bool {
        self.0.connections().reset(index)
    }

    /// Ends one connection after its open streams. HTTP/2 announces that with GOAWAY: what the
    /// client sends later belongs on another connection. Returns false if it is not open.
    pub fn drain_connection(&self, index: u64) -> bool {
        self.0.connections().drain(index)
    }
}

/// Serves until `stop` is cancelled or `requests_max` requests are answered. Returns the number of
/// model calls.
///
/// # Errors
/// [`BadSettings`] as an [`io::Error`] of the kind `InvalidInput`.
///
/// # Cancel safety
/// As [`MockModel::serve`].
pub async fn serve(
    listener: TcpListener,
    settings: MockModelSettings,
    stop: CancellationToken,
) -> io::Result<u64> {
    let mock = MockModel::new(settings)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    Ok(mock.serve(listener, stop).await)
}
