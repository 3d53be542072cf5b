//! A TCP connection, with TLS or without.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
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

/// The TCP connection below TLS. It reads much at once and hands on little.
#[derive(Debug)]
pub(super) struct BelowTls(BufReader<TcpStream>);

impl BelowTls {
    pub(super) fn new(socket: TcpStream) -> Self {
        Self(BufReader::with_capacity(READ_BYTES, socket))
    }
}

impl AsyncRead for BelowTls {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut reader = Pin::new(&mut self.get_mut().0);
        let held = ready!(reader.as_mut().poll_fill_buf(cx))?;
        let count = held.len().min(PART_BYTES).min(buffer.remaining());
        buffer.put_slice(held.get(..count).unwrap_or_default());
        reader.consume(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for BelowTls {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.get_mut().0.get_mut()).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.get_mut().0.get_mut()).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.get_mut().0.get_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.get_mut().0.get_mut()).poll_shutdown(cx)
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
            Self::Tls(socket) => Pin::new(socket).poll_read(cx, buffer),
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
