//! The listener, its connections and graceful shutdown. Shutdown has a fixed order: readiness off,
//! listener closed, rounds drained, event streams ended, connections closed. Clients thus receive
//! the end of every round that they watch.

use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    BoxError, Router,
    body::{Bytes, HttpBody},
    http::{Request, request::Parts},
    response::Response,
};
use callboard_actors::ids::TenantId;
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
use tower_service::Service;

use super::{
    HttpBounds, HttpConfig, Keys,
    addresses::{AddressPlace, Addresses, ClientAddress},
    answer_room::ConnectionRoom,
    auth,
    idle::OpenRequests,
    peers::{end_gone, end_moved, find_others},
    refusals::Refusals,
    request_body::RequestBody,
    router::{Doors, routes, served},
    shared::Shared,
    socket::Socket,
};
use crate::{
    Host,
    fair::{FairPlaces, Owns, Waiting},
    frames::Pace,
    mask,
    read_turns::{ReadTurns, Turns},
};

/// Pause after a failed `accept`. The usual cause is a lack of file descriptors, which affects the
/// next connection as well.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Requests at work for each processor, of all clients that have several at hand: pipelined ones, and
/// those beyond the first few of a connection or of an address. Thousands of them would leave no turn
/// for others. The tenants take turns, and the addresses of clients without a tenant's key.
const AT_WORK: usize = 16;

/// How long a request counts as at work, unless it is answered before. What takes longer waits for
/// something else than a processor.
const WORK_MAX: Duration = Duration::from_millis(5);

/// Open requests of a connection, and of an address, above which the next one waits for its turn to
/// begin.
const OPEN_AT_ONCE: usize = 4;
const OPEN_AT_ONCE_OF_ADDRESS: usize = 64;

/// Requests that may wait for a turn. Their connections and streams are bounded.
const WAITING: Waiting = Waiting {
    all: usize::MAX,
    tenant: usize::MAX,
};

/// Unsent response bytes buffered for an HTTP/2 connection whose client does not read.
const SEND_BYTES_MAX: usize = 64 * 1024;

/// Send buffer of a socket; Linux reserves twice as much. By default the kernel lets it grow up to
/// 4 MiB for each connection.
const SOCKET_BYTES_MAX: usize = 128 * 1024;

/// How long a connection that had no request may take to close.
const GOODBYE_MAX: Duration = Duration::from_secs(1);

/// Smallest read buffer that hyper's HTTP/1 parser accepts.
const BUFFER_BYTES_MIN: usize = 8 * 1024;

/// How serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Conversations that were active when shutdown was requested.
    pub conversations: usize,
    /// Connections that were still open after [`HttpBounds::close_within`] and were cut.
    pub connections_cut: usize,
    /// Time from the shutdown request to the end.
    pub took: Duration,
}

/// Serves until `shutdown` completes or the operator requests a drain. Then shuts down in order:
/// readiness off, listener closed, rounds drained, event streams ended, connections closed.
///
/// # Cancel safety
/// Dropping the future closes the listener and every connection at once; rounds continue in the
/// host.
pub async fn serve(
    listener: TcpListener,
    host: Host,
    config: HttpConfig,
    shutdown: impl Future<Output = ()> + Send,
) -> Served {
    // Compile the masking patterns up front: on first use they would block a worker thread.
    let _ = tokio::task::spawn_blocking(mask::prepare).await;
    let doors = Doors {
        console: config.console,
        mcp: config.mcp,
    };
    let (routes, openapi) = routes(&config.redactor, doors);
    let app = Arc::new(Shared::new(host, config, openapi));
    if let Some(peers) = &app.config.peers {
        // Ends with the state of the handlers.
        tokio::spawn(end_moved(peers.clone(), Arc::downgrade(&app.watched)));
        tokio::spawn(end_gone(peers.clone(), Arc::downgrade(&app.sent_on)));
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let server = Server {
        turns: FairPlaces::new(AT_WORK * processors, WAITING),
        reads: ReadTurns::new(processors),
        builder: builder(&app.config.bounds),
        router: served(routes, &app, &app.config.redactor),
        keys: app.config.keys.clone(),
        closing: app.closing.clone(),
    };
    let mut connections = JoinSet::new();
    let mut refusals = Refusals::default();
    let addresses = Addresses::default();
    if let Some(peers) = &app.config.peers {
        let finding = find_others(peers.clone(), addresses.clone());
        tokio::spawn(app.closing.clone().run_until_cancelled_owned(finding));
    }
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            () = app.config.leaving.cancelled() => break,
            () = app.drain.cancelled() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if connections.len() >= app.config.bounds.connections_max => refusals.refuse(stream),
                Ok((stream, client)) => match addresses.take(client.ip(), app.config.bounds.connections_per_address_max) {
                    Some(place) => drop(connections.spawn(server.connection(stream, place, &app.config.bounds))),
                    None => refusals.refuse(stream),
                },
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }

    // The order is part of the contract. Readiness goes off first, so load balancers stop sending.
    // The host drains while event streams are still open, so watchers receive the end of their
    // rounds. Streams and connections close last; connections that do not finish in time are
    // aborted.
    let asked_at = Instant::now();
    app.draining.cancel();
    drop(listener);
    let conversations = tokio::select! {
        biased;
        conversations = app.host.shutdown(app.config.drain_within) => conversations,
        () = app.config.leaving.cancelled() => app.host.awake(),
    };
    app.closing.cancel();
    let all_closed = async { while connections.join_next().await.is_some() {} };
    let _ = timeout(app.config.bounds.close_within, all_closed).await;
    let connections_cut = connections.len();
    connections.shutdown().await;
    Served {
        conversations,
        connections_cut,
        took: asked_at.elapsed(),
    }
}

/// Disables Nagle's algorithm, so that events leave at once, and limits the send buffer.
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
        .max_header_list_size(u32::try_from(bounds.header_bytes_max).unwrap_or(u32::MAX))
        .max_send_buf_size(SEND_BYTES_MAX)
        .keep_alive_interval(bounds.header_within)
        .keep_alive_timeout(bounds.header_within);
    builder
}

struct Server {
    builder: auto::Builder<TokioExecutor>,
    router: Router,
    keys: Keys,
    turns: Arc<FairPlaces<Client>>,
    reads: Arc<ReadTurns>,
    closing: CancellationToken,
}

impl Server {
    /// Serves one connection until it ends. After `closing` it only finishes responses in progress.
    fn connection(
        &self,
        stream: TcpStream,
        place: AddressPlace,
        bounds: &HttpBounds,
    ) -> impl Future<Output = ()> + Send + use<> {
        prepare(&stream);
        let pace = Pace::new();
        let turns = Turns::new(self.reads.clone(), place.client().0);
        let io = TokioIo::new(Socket::new(
            stream,
            pace.clone(),
            turns,
            bounds.header_within,
            bounds.write_pause_max,
        ));
        let mut builder = self.builder.clone();
        builder.http2().max_concurrent_streams(place.streams());
        let requests = OpenRequests::new(place.requests());
        let service = TowerToHyperService::new(Counting {
            router: self.router.clone(),
            requests: requests.clone(),
            pace,
            turns: self.turns.clone(),
            keys: self.keys.clone(),
            client: place.client(),
            room: ConnectionRoom::new(bounds),
        });
        let closing = self.closing.clone();
        let idle_max = bounds.header_within;
        async move {
            let mut connection = std::pin::pin!(builder.serve_connection(io, service));
            let served = poll_fn(|context| {
                requests.polled();
                connection.as_mut().poll(context)
            });
            let ended = tokio::select! {
                ended = served => Some(ended),
                () = closing.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    Some(connection.await)
                }
                () = requests.none_for(idle_max) => {
                    connection.as_mut().graceful_shutdown();
                    timeout(GOODBYE_MAX, connection).await.ok()
                }
            };
            if let Some(Err(error)) = ended {
                tracing::debug!(%error, "a connection ended early");
            }
            drop(place);
        }
    }
}

/// The routes, with a count of the connection's open requests and its room for answers.
#[derive(Clone)]
struct Counting {
    router: Router,
    requests: OpenRequests,
    pace: Pace,
    turns: Arc<FairPlaces<Client>>,
    keys: Keys,
    client: ClientAddress,
    room: ConnectionRoom,
}

impl Counting {
    /// With whom a request takes turns.
    fn client_of(&self, parts: &Parts) -> Client {
        let tenant = auth::tenant_of(parts, &self.keys);
        tenant.map_or(Client::Address(self.client.0), Client::Tenant)
    }
}

/// Who takes turns with others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Client {
    Tenant(TenantId),
    /// One without a tenant's key.
    Address(IpAddr),
}

impl Owns for Client {}

impl<B> Service<Request<B>> for Counting
where
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(())) // A router is always ready.
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        let body = RequestBody::new(body, self.pace.clone(), &parts.headers);
        parts.extensions.insert(self.room.clone());
        parts.extensions.insert(self.client);
        let in_turns = self.requests.are_pipelined()
            || self.requests.count() >= OPEN_AT_ONCE
            || self.requests.count_of_address() >= OPEN_AT_ONCE_OF_ADDRESS;
        let turns = in_turns.then(|| (self.turns.clone(), self.client_of(&parts)));
        let is_pipelined = self.requests.are_pipelined();
        let open = self.requests.begin();
        self.pace.request();
        let answer = self.router.call(Request::from_parts(parts, body));
        Box::pin(async move {
            let answer = match turns {
                Some((places, client)) => {
                    // A connection works on pipelined requests in one poll. And requests that are
                    // refused at once would follow each other before others have their turn.
                    let yields = is_pipelined || matches!(client, Client::Address(_));
                    let answer = async {
                        if yields {
                            tokio::task::yield_now().await;
                        }
                        answer.await
                    };
                    in_turn(&places, client, answer).await?
                }
                None => answer.await?,
            };
            Ok(answer.map(|body| open.until_sent(body)))
        })
    }
}

/// Begins the work of a request when it has a place, which it keeps until it is done or for
/// [`WORK_MAX`].
async fn in_turn<T>(
    places: &Arc<FairPlaces<Client>>,
    client: Client,
    work: impl Future<Output = T>,
) -> T {
    let mut work = std::pin::pin!(work);
    // Never refused.
    let place = places.acquire(client).await.ok();
    let done = timeout(WORK_MAX, &mut work).await;
    drop(place);
    match done {
        Ok(done) => done,
        Err(_) => work.await,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::Ipv4Addr,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use super::*;
    use crate::{fair::Place, http::KeyHash};

    /// A place for requests that wait for their turn, and what holds it.
    async fn held_turns() -> (Arc<FairPlaces<Client>>, Place<Client>) {
        let turns = FairPlaces::new(1, WAITING);
        let other = Client::Address(Ipv4Addr::UNSPECIFIED.into());
        let held = turns.acquire(other).await.unwrap();
        (turns, held)
    }

    #[tokio::test]
    async fn a_socket_buffers_a_bounded_part_of_a_response_and_sends_it_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (stream, _) = listener.accept().await.unwrap();

        prepare(&stream);

        let held = rustix::net::sockopt::socket_send_buffer_size(&stream).unwrap();
        assert!(
            (SOCKET_BYTES_MAX..=2 * SOCKET_BYTES_MAX).contains(&held) && stream.nodelay().unwrap(),
            "{held}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn pipelined_requests_are_worked_on_few_at_a_time() {
        let client = Client::Address(Ipv4Addr::LOCALHOST.into());
        // A client gets half of the places.
        let places = FairPlaces::new(4, WAITING);
        let begun = std::cell::Cell::new(0);
        let work = || async {
            begun.set(begun.get() + 1);
            std::future::pending::<()>().await;
        };
        let mut all = Vec::new();
        for _ in 0..6 {
            all.push(Box::pin(in_turn(&places, client.clone(), work())));
        }
        let mut seen = Vec::new();

        for _ in 0..3 {
            for _ in 0..3 {
                poll_fn(|context| {
                    for work in &mut all {
                        assert!(work.as_mut().poll(context).is_pending());
                    }
                    Poll::Ready(())
                })
                .await;
            }
            seen.push(begun.get());
            tokio::time::advance(WORK_MAX).await;
        }

        assert_eq!(
            seen,
            [2, 4, 6],
            "those that take long give their places back"
        );
    }

    #[tokio::test]
    async fn clients_with_many_requests_at_hand_take_turns() {
        let (places, held) = held_turns().await;
        let begun = std::cell::RefCell::new(Vec::new());
        let one = |last: u8| {
            let begun = &begun;
            let client = match last {
                3 => Client::Tenant(TenantId::new("acme").unwrap()),
                _ => Client::Address(IpAddr::from([192, 0, 2, last])),
            };
            Box::pin(in_turn(&places, client, async move {
                begun.borrow_mut().push(last);
            }))
        };
        let mut all: Vec<_> = [1, 1, 1, 1, 2, 3, 2].into_iter().map(one).collect();
        let mut poll_all = async || {
            poll_fn(|context| {
                all.retain_mut(|work| work.as_mut().poll(context).is_pending());
                Poll::Ready(all.len())
            })
            .await
        };
        assert_eq!(poll_all().await, 7);

        drop(held);
        while poll_all().await > 0 {}

        assert_eq!(*begun.borrow(), [1, 2, 3, 1, 2, 1, 1]);
    }

    #[tokio::test]
    async fn tenants_behind_one_address_take_turns_with_each_other() {
        let tenant = TenantId::new("acme").unwrap();
        let counting = Counting {
            router: Router::new(),
            requests: OpenRequests::new(Arc::default()),
            pace: Pace::new(),
            turns: FairPlaces::new(1, WAITING),
            keys: Keys::new(),
            client: ClientAddress(Ipv4Addr::LOCALHOST.into()),
            room: ConnectionRoom::new(&HttpBounds::default()),
        };
        counting
            .keys
            .put(tenant.clone(), KeyHash::from_key("cb_acme_not_a_real_key"));
        let with = |name, value| {
            let request = Request::get("/anthropic/v1/models").header(name, value);
            let (parts, ()) = request.body(()).unwrap().into_parts();
            counting.client_of(&parts)
        };

        let bearer = with("authorization", "Bearer cb_acme_not_a_real_key");
        assert_eq!(bearer, Client::Tenant(tenant.clone()));
        let header = with("x-api-key", "cb_acme_not_a_real_key");
        assert_eq!(header, Client::Tenant(tenant));
        let unknown = with("authorization", "Bearer cb_unknown");
        assert_eq!(unknown, Client::Address(Ipv4Addr::LOCALHOST.into()));
    }

    #[tokio::test]
    async fn the_requests_of_an_address_are_counted_over_its_connections() {
        let addresses = Addresses::default();
        let client = IpAddr::from([192, 0, 2, 7]);
        let of = |client| addresses.take(client, None).unwrap();
        let places = [of(client), of(client), of([192, 0, 2, 8].into())];
        let [one, other, elsewhere] = places
            .each_ref()
            .map(|place| OpenRequests::new(place.requests()));

        let begun = (one.begin(), one.begin(), other.begin());

        assert_eq!((one.count(), other.count()), (2, 1));
        assert_eq!((one.count_of_address(), other.count_of_address()), (3, 3));
        assert_eq!(elsewhere.count_of_address(), 0);
        drop(begun);
        assert_eq!(one.count_of_address(), 0);
    }

    #[tokio::test]
    async fn a_request_that_was_sent_before_the_last_answer_waits_for_a_place() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let (mut reads, mut writes) = tokio::io::split(theirs);
        let bounds = HttpBounds::default();
        let requests = OpenRequests::new(Arc::default());
        let (turns, held) = held_turns().await;
        let service = TowerToHyperService::new(Counting {
            router: Router::new().fallback(async || "yes"),
            requests: requests.clone(),
            pace: Pace::new(),
            turns,
            keys: Keys::default(),
            client: ClientAddress(Ipv4Addr::LOCALHOST.into()),
            room: ConnectionRoom::new(&bounds),
        });
        let builder = builder(&bounds);
        let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(ours), service));
        let served = poll_fn(|context| {
            requests.polled();
            connection.as_mut().poll(context)
        });
        let client = async move {
            let mut bytes = vec![0; 4096];
            let mut answers = async |wanted: usize| {
                let mut read = String::new();
                while read.matches("yes").count() < wanted {
                    let count = reads.read(&mut bytes).await.unwrap();
                    read.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
                }
                assert_eq!(read.matches("yes").count(), wanted, "{read}");
            };
            writes.write_all(GET.as_bytes()).await.unwrap();
            answers(1).await;
            writes.write_all(GET.repeat(3).as_bytes()).await.unwrap();
            answers(1).await; // The next ones wait.
            drop(held);
            answers(2).await;
        };

        tokio::select! {
            _ = served => panic!("the connection ended"),
            () = client => {}
        }
    }

    #[tokio::test]
    async fn of_many_streams_of_a_connection_few_begin_at_a_time() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let client = crate::tls::client_builder()
            .unwrap()
            .http2_prior_knowledge()
            .no_proxy()
            .build()
            .unwrap();
        let mut sent = JoinSet::new();
        for _ in 0..OPEN_AT_ONCE + 2 {
            sent.spawn(client.get(&url).send());
        }
        let begun = Arc::new(AtomicUsize::new(0));
        let begins = begun.clone();
        let router = Router::new().fallback(move || {
            begins.fetch_add(1, Ordering::Relaxed);
            std::future::pending::<&str>()
        });
        let bounds = HttpBounds::default();
        let requests = OpenRequests::new(Arc::default());
        let (turns, held) = held_turns().await;
        let service = TowerToHyperService::new(Counting {
            router,
            requests: requests.clone(),
            pace: Pace::new(),
            turns,
            keys: Keys::default(),
            client: ClientAddress(Ipv4Addr::LOCALHOST.into()),
            room: ConnectionRoom::new(&bounds),
        });
        let (stream, _) = listener.accept().await.unwrap();
        let connection = tokio::spawn(async move {
            let builder = builder(&bounds);
            let _ = builder
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
        let all_sent = async {
            while requests.count() < OPEN_AT_ONCE + 2 {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(30), all_sent).await.unwrap();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }

        assert_eq!(begun.load(Ordering::Relaxed), OPEN_AT_ONCE);
        drop(held);
        let all_begun = async {
            while begun.load(Ordering::Relaxed) < OPEN_AT_ONCE + 2 {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(30), all_begun).await.unwrap();
        connection.abort();
    }
}
