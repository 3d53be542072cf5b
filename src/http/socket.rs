//! A TCP stream with two deadlines: for the client's first bytes, and for reading a response. Idle
//! and stalled connections are cut. The frames of HTTP/2 connections are read
//! at their [`Pace`].

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

use crate::{
    frames::{Pace, Reads},
    read_turns::Turns,
};

/// The HTTP/2 connection preface. hyper detects the protocol by it, and applies its own header
/// timeout only afterwards.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A client's TCP stream with both deadlines.
pub(super) struct Socket {
    stream: TcpStream,
    /// Deadline and number of preface bytes read; `None` once the protocol is known.
    opening: Option<(Pin<Box<Sleep>>, usize)>,
    pace: Pace,
    reads: Reads,
    write_pause_max: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Socket {
    pub(super) fn new(
        stream: TcpStream,
        pace: Pace,
        turns: Turns,
        opening_within: Duration,
        write_pause_max: Duration,
    ) -> Self {
        Self {
            stream,
            opening: Some((Box::pin(sleep(opening_within)), 0)),
            reads: Reads::of_client(pace.clone(), turns),
            pace,
            write_pause_max,
            stalled: None,
        }
    }

    /// Returns the result of a write, or an error when the client has read nothing for
    /// `write_pause_max`.
    fn written(
        &mut self,
        cx: &mut Context<'_>,
        wrote: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(wrote) = wrote {
            self.stalled = None;
            self.pace.wrote(*wrote.as_ref().unwrap_or(&0));
            return Poll::Ready(wrote);
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
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let socket = self.get_mut();
        let before = buffer.filled().len();
        let read = socket.reads.poll_read(&mut socket.stream, cx, buffer);
        let Some((until, seen)) = &mut socket.opening else {
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
                let frames = new.strip_prefix(expected);
                if frames.is_some() || !expected.starts_with(new) {
                    socket.opening = None;
                }
                if let Some(frames) = frames {
                    socket.reads.begin(frames);
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
