//! The sockets, and the order in which all of it ends (DESIGN §5): not ready, no new connection, the host with its rounds, the event
//! streams, the connections. Whoever was told something before is told its end.

use std::{future::Future, sync::Arc, time::Duration};

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    HttpBounds, HttpConfig,
    addresses::{AddressPlace, Addresses},
    router::{router, without_allow},
    shared::Shared,
    socket::Socket,
};
use crate::{Host, tools::mask};

/// How long to wait after the system refused a connection (no descriptor left): it will refuse the next one too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Streams at once of one connection of HTTP/2.
const HTTP2_STREAMS_MAX: u32 = 100;

/// What a connection may hold of an answer that its client does not read.
const SEND_BYTES_MAX: usize = 64 * 1024;

/// What the system may hold of it beside, at least: it takes twice as much. Left to itself it takes up to 4 MiB a connection.
const SOCKET_BYTES_MAX: usize = 128 * 1024;

/// Least room for a request's line and header fields that the HTTP/1 reader takes.
const BUFFER_BYTES_MIN: usize = 8 * 1024;

/// What a connection is told that is one too many.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\nconnection: close\r\n\
content-length: 151\r\n\r\n{\"status\":503,\"title\":\"Service Unavailable\",\"code\":\"too_many_connections\",\"detail\":\"too many connections; come back in a moment\",\"retry_after_ms\":1000}";

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
    // Before anybody is served: the first refusal and the first result of a tool would hold up a whole thread for it.
    let _ = tokio::task::spawn_blocking(mask::prepare).await;
    let (router, openapi) = router(&config.redactor);
    let app = Arc::new(Shared::new(host, config, openapi));
    let server = Server {
        builder: builder(&app.config.bounds),
        router: without_allow(router.with_state(app.clone())),
        closing: app.closing.clone(),
    };
    let (mut connections, addresses) = (JoinSet::new(), Addresses::default());
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            () = app.drain.cancelled() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if connections.len() >= app.config.bounds.connections_max => refuse(&stream),
                Ok((stream, client)) => match addresses.take(client.ip(), app.config.bounds.connections_per_address_max) {
                    Some(place) => drop(connections.spawn(server.connection(stream, place, &app.config.bounds))),
                    None => refuse(&stream),
                },
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }

    let asked_at = Instant::now();
    app.draining.cancel();
    drop(listener);
    let conversations = app.host.shutdown(app.config.drain_within).await;
    app.closing.cancel();
    let all_closed = async { while connections.join_next().await.is_some() {} };
    let _ = timeout(app.config.bounds.close_within, all_closed).await;
    let connections_cut = connections.len();
    connections.shutdown().await;
    Served { conversations, connections_cut, took: asked_at.elapsed() }
}

/// Says no without waiting: a client that does not read it is closed all the same.
fn refuse(stream: &TcpStream) {
    let _ = stream.try_write(FULL);
}

/// Events leave at once, and what the system holds of them is bounded.
fn prepare(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = set_socket_send_buffer_size(stream, SOCKET_BYTES_MAX);
}

fn builder(bounds: &HttpBounds) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.header_within)
        .max_headers(bounds.headers_max)
        .max_buf_size(bounds.header_bytes_max.max(BUFFER_BYTES_MIN));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS_MAX)
        .max_header_list_size(u32::try_from(bounds.header_bytes_max).unwrap_or(u32::MAX))
        .max_send_buf_size(SEND_BYTES_MAX)
        .keep_alive_interval(bounds.header_within)
        .keep_alive_timeout(bounds.header_within);
    builder
}

struct Server {
    builder: auto::Builder<TokioExecutor>,
    router: Router,
    closing: CancellationToken,
}

impl Server {
    /// Serves one connection to its end; once the host has ended it only finishes what it is at.
    fn connection(&self, stream: TcpStream, place: AddressPlace, bounds: &HttpBounds) -> impl Future<Output = ()> + Send + use<> {
        prepare(&stream);
        let io = TokioIo::new(Socket::new(stream, bounds.header_within, bounds.write_pause_max));
        let (builder, service, closing) = (self.builder.clone(), TowerToHyperService::new(self.router.clone()), self.closing.clone());
        async move {
            let mut connection = std::pin::pin!(builder.serve_connection(io, service));
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = closing.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended early");
            }
            drop(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_holds_a_bounded_part_of_an_answer_and_sends_it_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();

        prepare(&stream);

        let held = rustix::net::sockopt::socket_send_buffer_size(&stream).unwrap();
        assert!((SOCKET_BYTES_MAX..=2 * SOCKET_BYTES_MAX).contains(&held) && stream.nodelay().unwrap(), "{held}");
    }

    #[test]
    fn the_refusal_says_how_long_it_is() {
        let text = std::str::from_utf8(FULL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();

        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
    }
}
