//! Accepts connections and serves the routes on them, in plain text or over TLS.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    BoxError, Router,
    body::{Body, Bytes, HttpBody},
    http::{Request, Response},
};
use http_body::{Frame, SizeHint};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower_service::Service;

use super::{
    MockTls, TlsIdentityError,
    connections::{Connections, Exchange, Exchanges, Open},
    socket::Socket,
};

/// Time for a TLS handshake. Beyond this the connection is closed: a silent client must not keep
/// its file descriptor for good.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// How long open replies may continue after a stop was requested.
const DRAIN: Duration = Duration::from_secs(2);

/// Serves every connection of a listener in the same way.
pub(super) struct Server {
    builder: auto::Builder<TokioExecutor>,
    tls: Option<TlsAcceptor>,
    app: Router,
    connections: Arc<Connections>,
    /// Cancelled when the server must stop.
    over: CancellationToken,
}

impl Server {
    /// # Errors
    /// [`TlsIdentityError`].
    pub(super) fn new(
        tls: Option<&MockTls>,
        app: Router,
        connections: Arc<Connections>,
        over: CancellationToken,
    ) -> Result<Self, TlsIdentityError> {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        match tls.map(|tls| tls.http2_streams_max) {
            Some(None) => builder = builder.http1_only(),
            Some(Some(max)) => {
                builder.http2().max_concurrent_streams(max);
            }
            None => {}
        }
        let tls = tls.map(MockTls::server_config).transpose()?;
        Ok(Self {
            builder,
            tls: tls.map(TlsAcceptor::from),
            app,
            connections,
            over,
        })
    }

    /// Accepts connections until the server must stop, then waits for open replies.
    pub(super) async fn run(self, listener: TcpListener) {
        let tasks = TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                () = self.over.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    let _ = stream.set_nodelay(true);
                    tasks.spawn(self.connection(stream));
                }
                // Most likely too many open files: wait for clients to disconnect.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
        drop(listener);
        tasks.close();
        let _ = tokio::time::timeout(DRAIN, tasks.wait()).await;
    }

    /// Serves one connection until it ends or is reset.
    fn connection(&self, stream: TcpStream) -> impl Future<Output = ()> + Send + use<> {
        let open = self.connections.opened();
        let socket = Socket::new(stream, open.link.clone());
        let (builder, tls, over) = (self.builder.clone(), self.tls.clone(), self.over.clone());
        let service = Counting {
            app: self.app.clone(),
            exchanges: open.exchanges(),
        };
        async move {
            let served = async {
                match tls {
                    None => exchange(&builder, socket, service, &open, &over).await,
                    Some(tls) => {
                        let shaken = tokio::time::timeout(HANDSHAKE_MAX, tls.accept(socket)).await;
                        if let Ok(Ok(stream)) = shaken {
                            exchange(&builder, stream, service, &open, &over).await;
                        }
                    }
                }
            };
            // Dropping what is served drops its socket, which then sends a reset.
            tokio::select! {
                () = served => {}
                () = open.link.when_reset() => {}
            }
        }
    }
}

/// Serves HTTP on a connection until it ends. When the server must stop or the connection is
/// drained, only open streams are finished: HTTP/2 announces that with GOAWAY.
async fn exchange<I>(
    builder: &auto::Builder<TokioExecutor>,
    io: I,
    service: Counting,
    open: &Open,
    over: &CancellationToken,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = TowerToHyperService::new(service);
    let serving = builder.serve_connection(TokioIo::new(io), service);
    let mut serving = std::pin::pin!(serving);
    // How a connection ends is the client's affair.
    let _ = tokio::select! {
        ended = serving.as_mut() => ended,
        () = async { tokio::select! { () = over.cancelled() => {}, () = open.link.when_drained() => {} } } => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
}

/// The routes on one connection: counts its streams and passes the connection to the handlers.
#[derive(Clone)]
struct Counting {
    app: Router,
    exchanges: Exchanges,
}

impl<B> Service<Request<B>> for Counting
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Counted>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<B>>::poll_ready(&mut self.app, context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let exchange = self.exchanges.begin();
        request.extensions_mut().insert(self.exchanges.link.clone());
        let answer = self.app.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            Ok(answer.map(|body| Counted {
                body,
                _exchange: exchange,
            }))
        })
    }
}

/// The body of an answer, whose end is the end of its stream.
struct Counted {
    body: Body,
    _exchange: Exchange,
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
