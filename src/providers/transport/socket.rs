//! A TCP connection, with TLS or without.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Instant,
};

use tokio::{
    io::{AsyncBufRead, AsyncRead, AsyncWrite, BufReader, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

use crate::frames::{Pace, Reads};

/// Bytes that one system call reads below TLS.
const READ_BYTES: usize = 8 * 1024;

/// Bytes that TLS gets at once. After each record rustls moves the bytes behind it to the front of
/// its buffer. A stream of short events has a record of 150 bytes for each, so a full buffer would be
/// moved thirty times.
const PART_BYTES: usize = 1024;

/// The bytes below HTTP.
#[derive(Debug)]
pub(super) enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<BelowTls>>),
}

/// Bytes of TLS records that may bring no text at once, and in each second after that. A text may
/// have four times as many as its own bytes. A server may send messages of TLS without end, such as
/// tickets for sessions, each of which takes as long as hundreds of bytes of text.
const TEXTLESS_BYTES: u64 = 64 * 1024;
const TEXTLESS_BYTES_PER_SECOND: u64 = 4 * 1024;
const OF_TEXT: u64 = 4;

/// Bytes after which other tasks have their turn if they bring no text: more than one record.
const TEXTLESS_STEP: usize = 24 * 1024;

/// The TCP connection below TLS. It reads much at once and hands on little.
#[derive(Debug)]
pub(super) struct BelowTls {
    socket: BufReader<TcpStream>,
    account: Textless,
    /// Bytes that TLS got since it last gave text.
    step: usize,
}

impl BelowTls {
    pub(super) fn new(socket: TcpStream) -> Self {
        Self {
            socket: BufReader::with_capacity(READ_BYTES, socket),
            account: Textless::new(),
            step: 0,
        }
    }

    /// Notes that TLS gave so much text.
    fn gave(&mut self, text: usize) {
        if text > 0 {
            self.step = 0;
            self.account.gave(text);
        }
    }
}

/// What TLS got and what it gave.
#[derive(Debug)]
struct Textless {
    began: Instant,
    got: u64,
    text: u64,
}

/// A server sends too much that is no text.
#[derive(Debug, thiserror::Error)]
#[error("the server sends TLS messages that carry no text, and too many of them")]
struct TooMuchTextless;

impl Textless {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            got: 0,
            text: 0,
        }
    }

    fn gave(&mut self, text: usize) {
        self.text += text as u64;
    }

    fn get(&mut self, bytes: usize) -> io::Result<()> {
        self.got += bytes as u64;
        let beyond = self.got.saturating_sub(self.text.saturating_mul(OF_TEXT));
        // The clock is read only once the first bytes are used up.
        if beyond > TEXTLESS_BYTES
            && beyond - TEXTLESS_BYTES > self.began.elapsed().as_secs() * TEXTLESS_BYTES_PER_SECOND
        {
            return Err(io::Error::new(io::ErrorKind::InvalidData, TooMuchTextless));
        }
        Ok(())
    }
}

impl AsyncRead for BelowTls {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let below = self.get_mut();
        if below.step >= TEXTLESS_STEP {
            below.step = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let mut reader = Pin::new(&mut below.socket);
        let held = ready!(reader.as_mut().poll_fill_buf(cx))?;
        let count = held.len().min(PART_BYTES).min(buffer.remaining());
        buffer.put_slice(held.get(..count).unwrap_or_default());
        reader.consume(count);
        below.step += count;
        Poll::Ready(below.account.get(count))
    }
}

impl AsyncWrite for BelowTls {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.get_mut().socket.get_mut()).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.get_mut().socket.get_mut()).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.get_mut().socket.get_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.get_mut().socket.get_mut()).poll_shutdown(cx)
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, buffer),
            Self::Tls(socket) => {
                let before = buffer.filled().len();
                let read = Pin::new(&mut *socket).poll_read(cx, buffer);
                let text = buffer.filled().len() - before;
                socket.get_mut().0.gave(text);
                read
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(cx, bytes),
            Self::Tls(socket) => Pin::new(socket).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write_vectored(cx, slices),
            Self::Tls(socket) => Pin::new(socket).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Self::Tls(socket) => Pin::new(socket).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tls(socket) => Pin::new(socket).poll_shutdown(cx),
        }
    }
}

/// The bytes below HTTP/2. Its frames are read at their pace.
#[derive(Debug)]
pub(super) struct PacedSocket {
    socket: Socket,
    reads: Reads,
    pace: Pace,
}

impl PacedSocket {
    pub(super) fn new(socket: Socket, pace: Pace) -> Self {
        let mut reads = Reads::of_server(pace.clone());
        reads.begin(&[]);
        Self {
            socket,
            reads,
            pace,
        }
    }

    fn wrote(&self, wrote: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &wrote {
            self.pace.wrote(*bytes);
        }
        wrote
    }
}

impl AsyncRead for PacedSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let paced = self.get_mut();
        paced.reads.poll_read(&mut paced.socket, cx, buffer)
    }
}

impl AsyncWrite for PacedSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.wrote(wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.socket).poll_write_vectored(cx, slices);
        self.wrote(wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    #[test]
    fn records_that_bring_no_text_end_a_connection_and_those_of_short_texts_do_not() {
        // Events of 10 bytes, each in a record with a frame of 22 bytes around it.
        let mut usual = Textless::new();
        for _ in 0..1_000_000 {
            usual.get(32).unwrap();
            usual.gave(10);
        }

        let mut hostile = Textless::new();
        let taken = (0..1_000_000).take_while(|_| hostile.get(700).is_ok());

        assert!(taken.count() as u64 * 700 <= TEXTLESS_BYTES + TEXTLESS_BYTES_PER_SECOND);
    }

    #[tokio::test]
    async fn tls_gets_small_parts_of_what_one_read_brought_and_misses_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let sent: Vec<u8> = (0..=u8::MAX).cycle().take(3 * READ_BYTES + 7).collect();
        server.write_all(&sent).await.unwrap();
        drop(server);
        let mut below = BelowTls::new(socket);

        let mut got = Vec::new();
        let mut room = [0; READ_BYTES];
        loop {
            let read = below.read(&mut room).await.unwrap();
            assert!(read <= PART_BYTES, "{read} bytes at once");
            if read == 0 {
                break;
            }
            got.extend_from_slice(&room[..read]);
        }

        assert!(got == sent);
    }
}
