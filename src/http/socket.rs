//! A TCP stream with two deadlines: for the client's first bytes, and for reading a response. Idle
//! and stalled connections are cut.

use std::{
    future::Future as _,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep, sleep},
};

/// The HTTP/2 connection preface. hyper detects the protocol by it, and applies its own header
/// timeout only afterwards.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A client's TCP stream with both deadlines.
pub(super) struct Socket {
    stream: TcpStream,
    /// Deadline and number of preface bytes read; `None` once the protocol is known.
    opening: Option<(Pin<Box<Sleep>>, usize)>,
    write_pause_max: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Socket {
    pub(super) fn new(
        stream: TcpStream,
        opening_within: Duration,
        write_pause_max: Duration,
    ) -> Self {
        Self {
            stream,
            opening: Some((Box::pin(sleep(opening_within)), 0)),
            write_pause_max,
            stalled: None,
        }
    }

    /// Returns the result of a write, or an error when the client has read nothing for
    /// `write_pause_max`.
    fn written<T>(
        &mut self,
        cx: &mut Context<'_>,
        wrote: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            self.stalled = None;
            return wrote;
        }
        let stalled = self.stalled.get_or_insert_with(|| {
            Box::pin(tokio::time::sleep_until(
                Instant::now() + self.write_pause_max,
            ))
        });
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client does not read the response",
        )))
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let Some((until, seen)) = &mut self.opening else {
            return read;
        };
        match read {
            Poll::Pending => {
                ready!(until.as_mut().poll(cx));
                Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the client sent no request in time",
                )))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => {
                let new = buffer.filled().get(before..).unwrap_or_default();
                let expected = PREFACE.get(*seen..).unwrap_or_default();
                *seen += new.len();
                if *seen >= PREFACE.len() || !expected.starts_with(new) {
                    self.opening = None;
                }
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(cx, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.written(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
