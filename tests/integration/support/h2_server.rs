//! A scripted HTTP/2 server on TLS that breaks the rules on request: it refuses single streams,
//! says goodbye with any last stream, changes its limit of streams, and falls silent. It writes its
//! frames itself, so that no library decides what may be sent.
//!
//! A handler decides on each request as it is complete. Orders change a connection later.
//!
//! ```ignore
//! let server = H2Server::start(100, |asked| match asked.nth {
//!     0 => React::Reset(REFUSED_STREAM),
//!     _ => React::Whole("data: [DONE]\n\n".into()),
//! }).await;
//! ```

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use callboard::mock_model::{MockTls, TlsIdentity};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};

// Codes of errors: RFC 9113, section 7.
pub const NO_ERROR: u32 = 0x0;
pub const INTERNAL_ERROR: u32 = 0x2;
pub const REFUSED_STREAM: u32 = 0x7;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes that a client may send before an update: nothing here is sent slowly.
const WINDOW: u32 = 1 << 30;

/// Kinds of frames: RFC 9113, section 6.
mod kind {
    pub(super) const DATA: u8 = 0x0;
    pub(super) const HEADERS: u8 = 0x1;
    pub(super) const RST_STREAM: u8 = 0x3;
    pub(super) const SETTINGS: u8 = 0x4;
    pub(super) const PING: u8 = 0x6;
    pub(super) const GOAWAY: u8 = 0x7;
    pub(super) const WINDOW_UPDATE: u8 = 0x8;
}

const ACK: u8 = 0x1;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

/// A complete request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Number of its connection, from 0.
    pub connection: usize,
    /// Id of its stream: 1, 3, 5, …
    pub stream: u32,
    /// Number of the request among those of all connections, from 0.
    pub nth: usize,
}

/// What becomes of a request, and what may happen to a connection later.
#[derive(Debug, Clone)]
#[allow(dead_code)]
pub enum React {
    /// 200 and this event stream.
    Whole(String),
    /// 200 and this event stream, each byte in a frame of its own.
    Bytes(String),
    /// 200 with further fields, each a byte on the wire, and this event stream.
    Fields(usize, String),
    /// 200 and the start of an event stream, which [`Order::Finish`] ends.
    Open(String),
    /// Nothing.
    Silent,
    /// Nothing, and from now on no answer to a ping on this connection either.
    Deaf,
    /// RST_STREAM with this code.
    Reset(u32),
    /// GOAWAY with this last stream id and code; the connection stays open and the request is not
    /// answered.
    GoAway { last_stream: u32, code: u32 },
    /// The connection is closed at once.
    Kill,
}

/// A change of a connection from outside.
#[derive(Debug, Clone)]
#[allow(dead_code)]
pub enum Order {
    /// More of an open event stream, and its end.
    Finish { stream: u32, text: String },
    /// RST_STREAM with this code.
    Reset { stream: u32, code: u32 },
    /// GOAWAY with this last stream id and code.
    GoAway { last_stream: u32, code: u32 },
    /// SETTINGS with another limit of concurrent streams.
    StreamsMax(u32),
    /// The connection is closed at once.
    Kill,
}

type Handler = Box<dyn Fn(Asked) -> React + Send + Sync>;

struct Shared {
    streams_max: u32,
    /// Whether each connection begins with GOAWAY.
    is_leaving: bool,
    accepted: AtomicUsize,
    handler: Handler,
    seen: watch::Sender<Vec<Asked>>,
    orders: Mutex<Vec<mpsc::Sender<Order>>>,
}

/// A running server. Dropping it closes every connection.
pub struct H2Server {
    address: SocketAddr,
    ca_pem: String,
    shared: Arc<Shared>,
    _stop: DropGuard,
}

impl H2Server {
    /// Starts a server that announces this limit of concurrent streams.
    pub async fn start(
        streams_max: u32,
        handler: impl Fn(Asked) -> React + Send + Sync + 'static,
    ) -> Self {
        Self::start_as(streams_max, false, handler).await
    }

    /// Starts a server that says goodbye at the start of each connection: GOAWAY before any
    /// request, which it then does not answer.
    pub async fn leaving() -> Self {
        Self::start_as(100, true, |_| React::Silent).await
    }

    async fn start_as(
        streams_max: u32,
        is_leaving: bool,
        handler: impl Fn(Asked) -> React + Send + Sync + 'static,
    ) -> Self {
        let made = TlsIdentity::make(&[]).unwrap();
        let tls = MockTls {
            identity: made.identity,
            http2_streams_max: Some(streams_max),
        };
        let tls = TlsAcceptor::from(tls.server_config().unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            streams_max,
            is_leaving,
            accepted: AtomicUsize::new(0),
            handler: Box::new(handler),
            seen: watch::Sender::new(Vec::new()),
            orders: Mutex::default(),
        });
        let stop = CancellationToken::new();
        let serving = accept(listener, tls, shared.clone());
        tokio::spawn(stop.clone().run_until_cancelled_owned(serving));
        Self {
            address,
            ca_pem: made.ca_pem,
            shared,
            _stop: stop.drop_guard(),
        }
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The certificate that clients must trust.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// All complete requests so far.
    pub fn seen(&self) -> Vec<Asked> {
        self.shared.seen.borrow().clone()
    }

    /// Number of TCP connections, whatever came of them.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// Number of connections that sent HTTP/2's preface.
    pub fn connections(&self) -> usize {
        self.shared.orders.lock().len()
    }

    /// Waits until this many requests were complete, and returns them.
    pub async fn saw(&self, count: usize) -> Vec<Asked> {
        let mut seen = self.shared.seen.subscribe();
        let seen = seen.wait_for(|seen| seen.len() >= count).await.unwrap();
        seen.clone()
    }

    /// Waits until a connection has ended.
    pub async fn ended(&self, connection: usize) {
        let orders = self.shared.orders.lock()[connection].clone();
        orders.closed().await;
    }

    /// Sends an order to a connection. An order to a closed one is dropped.
    pub async fn order(&self, connection: usize, order: Order) {
        let orders = self.shared.orders.lock()[connection].clone();
        let _ = orders.send(order).await;
    }
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        shared.accepted.fetch_add(1, Ordering::Relaxed);
        let (tls, shared) = (tls.clone(), shared.clone());
        connections.spawn(async move {
            let _ = stream.set_nodelay(true);
            let Ok(stream) = tls.accept(stream).await else {
                return;
            };
            let (mut read, write) = tokio::io::split(stream);
            let mut preface = [0; PREFACE.len()];
            // A client that opened more connections than it needs closes them without a word.
            if read.read_exact(&mut preface).await.is_err() || preface != *PREFACE {
                return;
            }
            let _ = connection(read, write, &shared).await;
        });
    }
}

/// A frame of the client.
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

async fn read_frame(read: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Frame> {
    let mut head = [0; 9];
    read.read_exact(&mut head).await?;
    let [a, b, c, kind, flags, stream @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    read.read_exact(&mut payload).await?;
    Ok(Frame {
        kind,
        flags,
        stream: u32::from_be_bytes(stream) & (u32::MAX >> 1),
        payload,
    })
}

/// Closes the connection when it returns.
async fn connection(
    mut read: impl AsyncRead + Unpin + Send + 'static,
    write: impl AsyncWrite + Unpin,
    shared: &Shared,
) -> std::io::Result<()> {
    let (orders, mut ordered) = mpsc::channel(64);
    let number = {
        let mut all = shared.orders.lock();
        all.push(orders);
        all.len() - 1
    };
    let mut out = Out(write);
    out.settings(&[(0x3, shared.streams_max), (0x4, WINDOW)])
        .await?;
    out.frame(kind::WINDOW_UPDATE, 0, 0, &WINDOW.to_be_bytes())
        .await?;
    if shared.is_leaving {
        out.go_away(0, NO_ERROR).await?;
    }
    let mut is_deaf = false;
    // A read that is given up in the middle of a frame would lose its start, so a task reads.
    let (frames, mut come) = mpsc::channel(64);
    let mut reading = JoinSet::new();
    reading.spawn(async move {
        while let Ok(frame) = read_frame(&mut read).await {
            if frames.send(frame).await.is_err() {
                return;
            }
        }
    });
    loop {
        let frame = tokio::select! {
            Some(order) = ordered.recv() => {
                match order {
                    Order::Finish { stream, text } => out.data(stream, &text, END_STREAM).await?,
                    Order::Reset { stream, code } => out.reset(stream, code).await?,
                    Order::GoAway { last_stream, code } => out.go_away(last_stream, code).await?,
                    Order::StreamsMax(max) => out.settings(&[(0x3, max)]).await?,
                    Order::Kill => return Ok(()),
                }
                continue;
            }
            frame = come.recv() => match frame {
                Some(frame) => frame,
                None => return Ok(()),
            },
        };
        let ended = match frame.kind {
            kind::SETTINGS if frame.flags & ACK == 0 => {
                out.frame(kind::SETTINGS, ACK, 0, &[]).await?;
                false
            }
            kind::PING if frame.flags & ACK == 0 && !is_deaf => {
                out.frame(kind::PING, ACK, 0, &frame.payload).await?;
                false
            }
            kind::HEADERS | kind::DATA => frame.flags & END_STREAM != 0,
            _ => false,
        };
        if !ended {
            continue;
        }
        let mut asked = Asked {
            connection: number,
            stream: frame.stream,
            nth: 0,
        };
        shared.seen.send_modify(|seen| {
            asked.nth = seen.len();
            seen.push(asked);
        });
        match (shared.handler)(asked) {
            React::Whole(text) => {
                out.head(asked.stream).await?;
                out.data(asked.stream, &text, END_STREAM).await?;
            }
            React::Bytes(text) => {
                out.head(asked.stream).await?;
                out.bytes(asked.stream, &text).await?;
            }
            React::Fields(count, text) => {
                out.head_with(asked.stream, count).await?;
                out.data(asked.stream, &text, END_STREAM).await?;
            }
            React::Open(text) => {
                out.head(asked.stream).await?;
                out.data(asked.stream, &text, 0).await?;
            }
            React::Silent => {}
            React::Deaf => is_deaf = true,
            React::Reset(code) => out.reset(asked.stream, code).await?,
            React::GoAway { last_stream, code } => out.go_away(last_stream, code).await?,
            React::Kill => return Ok(()),
        }
    }
}

/// The writing half of a connection.
struct Out<W>(W);

impl<W: AsyncWrite + Unpin> Out<W> {
    async fn frame(
        &mut self,
        kind: u8,
        flags: u8,
        stream: u32,
        payload: &[u8],
    ) -> std::io::Result<()> {
        let [_, a, b, c] = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = vec![a, b, c, kind, flags];
        frame.extend_from_slice(&stream.to_be_bytes());
        frame.extend_from_slice(payload);
        self.0.write_all(&frame).await?;
        self.0.flush().await
    }

    async fn settings(&mut self, settings: &[(u16, u32)]) -> std::io::Result<()> {
        let payload: Vec<u8> = settings
            .iter()
            .flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat())
            .collect();
        self.frame(kind::SETTINGS, 0, 0, &payload).await
    }

    /// Status 200 of an event stream: the status is entry 8 of HPACK's static table, the name of
    /// the type entry 31, and the value a literal.
    async fn head(&mut self, stream: u32) -> std::io::Result<()> {
        self.head_with(stream, 0).await
    }

    /// As [`Out::head`], with entry 21 that many times of the table: an empty `age`.
    async fn head_with(&mut self, stream: u32, fields: usize) -> std::io::Result<()> {
        const TYPE: &[u8] = b"text/event-stream";
        let mut block = [&[0x88, 0x0f, 0x10, TYPE.len() as u8], TYPE].concat();
        block.resize(block.len() + fields, 0x95);
        self.frame(kind::HEADERS, END_HEADERS, stream, &block).await
    }

    async fn data(&mut self, stream: u32, text: &str, flags: u8) -> std::io::Result<()> {
        self.frame(kind::DATA, flags, stream, text.as_bytes()).await
    }

    async fn bytes(&mut self, stream: u32, text: &str) -> std::io::Result<()> {
        let [a, b, c, d] = stream.to_be_bytes();
        let frame = |byte: &u8| [0, 0, 1, kind::DATA, 0, a, b, c, d, *byte];
        let frames: Vec<u8> = text.as_bytes().iter().flat_map(frame).collect();
        self.0.write_all(&frames).await?;
        self.data(stream, "", END_STREAM).await
    }

    async fn reset(&mut self, stream: u32, code: u32) -> std::io::Result<()> {
        self.frame(kind::RST_STREAM, 0, stream, &code.to_be_bytes())
            .await
    }

    async fn go_away(&mut self, last_stream: u32, code: u32) -> std::io::Result<()> {
        let payload = [last_stream.to_be_bytes(), code.to_be_bytes()].concat();
        self.frame(kind::GOAWAY, 0, 0, &payload).await
    }
}
