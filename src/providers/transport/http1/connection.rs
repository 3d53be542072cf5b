//! One connection and the exchange on it: writes a request in as few system calls as possible and
//! reads the answer.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{
    framing::{Framing, Malformed},
    head::{self, BadHead, Head, Interim},
};
use crate::providers::transport::socket::Socket;

/// Bytes of the read buffer.
const READ_BYTES: usize = 8 * 1024;

/// Longest head. A longer one does not come from a model server.
const HEAD_BYTES_MAX: usize = 256 * 1024;

/// Slices of one vectored write: Linux accepts no more.
const SLICES_MAX: usize = 1024;

/// Bytes of an unwanted rest of an answer that are read and discarded.
const REST_BYTES_MAX: usize = 64 * 1024;

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub(in crate::providers::transport) enum Broken {
    #[error("the connection broke")]
    Io(#[from] io::Error),
    #[error("the server closed the connection before it answered")]
    NoAnswer,
    #[error("the head of the answer is longer than {HEAD_BYTES_MAX} bytes")]
    LongHead,
    #[error(transparent)]
    Head(#[from] BadHead),
    #[error(transparent)]
    Body(#[from] Malformed),
}

impl Broken {
    /// Whether the server may have closed the connection before it received the request.
    pub(in crate::providers::transport) fn is_let_go(&self) -> bool {
        match self {
            Self::NoAnswer => true,
            Self::Io(error) => {
                matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionReset
                        | io::ErrorKind::ConnectionAborted
                        | io::ErrorKind::BrokenPipe
                )
            }
            Self::LongHead | Self::Head(_) | Self::Body(_) => false,
        }
    }
}

/// Whether a connection can serve another call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::providers::transport) enum Free {
    Yes,
    /// The previous answer has not ended yet.
    NotYet,
    /// The connection cannot be reused.
    Never,
}

/// A connection and its buffers.
pub(in crate::providers::transport) struct Connection {
    socket: Socket,
    unsent: VecDeque<Bytes>,
    /// Whether TLS may hold bytes that the socket did not take.
    is_unflushed: bool,
    /// The error of a failed write. It is reported only if no answer explains it.
    unwritable: Option<io::Error>,
    buffer: Vec<u8>,
    /// Start of the bytes in the buffer that were read from the socket but not consumed.
    from: usize,
    to: usize,
    interim: Interim,
    body: Framing,
    /// Bytes of framing that were read since they were last asked for.
    framing: usize,
    keeps_open: bool,
    rest: usize,
}

impl Connection {
    pub(in crate::providers::transport) fn new(socket: Socket) -> Self {
        Self {
            socket,
            unsent: VecDeque::new(),
            is_unflushed: false,
            unwritable: None,
            buffer: vec![0; READ_BYTES],
            from: 0,
            to: 0,
            interim: Interim::default(),
            body: Framing::none(),
            framing: 0,
            keeps_open: true,
            rest: 0,
        }
    }

    /// Queues a request; [`Connection::poll_head`] sends it. The connection must be free.
    pub(in crate::providers::transport) fn begin(&mut self, request: VecDeque<Bytes>) {
        self.unsent = request;
        self.interim = Interim::default();
        self.framing = 0;
        self.rest = 0;
    }

    /// Sends the request and reads the head of the answer. A server may answer before it has read
    /// the whole request.
    pub(in crate::providers::transport) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Head, Broken>> {
        loop {
            self.send(cx);
            if self.from < self.to {
                let bytes = self.buffer.get(self.from..self.to).unwrap_or_default();
                if let Some(head) = head::read(bytes, &mut self.interim)? {
                    self.from += head.bytes;
                    (self.body, self.keeps_open) = (head.body, head.keeps_open);
                    return Poll::Ready(Ok(head));
                }
                if self.to - self.from >= HEAD_BYTES_MAX {
                    return Poll::Ready(Err(Broken::LongHead));
                }
            }
            match ready!(self.poll_fill(cx)) {
                Ok(0) => {
                    return Poll::Ready(Err(self
                        .unwritable
                        .take()
                        .map_or(Broken::NoAnswer, Broken::Io)));
                }
                Ok(_) => {}
                Err(error) => {
                    return Poll::Ready(Err(self.unwritable.take().unwrap_or(error).into()));
                }
            }
        }
    }

    /// Whether at least one byte of the answer arrived.
    pub(in crate::providers::transport) fn has_received(&self) -> bool {
        self.from < self.to
    }

    /// Reads once and returns the bytes of the body that arrived; `None` at its end.
    pub(in crate::providers::transport) fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<&[u8]>, Broken>> {
        self.send(cx);
        while !self.body.is_done() {
            if self.from == self.to && ready!(self.poll_fill(cx))? == 0 {
                self.body.close()?;
                break;
            }
            let from = self.from;
            let taken = self
                .body
                .take(self.buffer.get_mut(from..self.to).unwrap_or_default())?;
            self.from += taken.read;
            self.framing += taken.read - taken.body;
            if taken.body > 0 {
                return Poll::Ready(Ok(self.buffer.get(from..from + taken.body)));
            }
        }
        Poll::Ready(Ok(None))
    }

    /// How many bytes of framing were read around those of the body, since the last call.
    pub(in crate::providers::transport) fn take_framing(&mut self) -> usize {
        std::mem::take(&mut self.framing)
    }

    /// Whether the connection can serve a call now. Registers no waker.
    pub(in crate::providers::transport) fn free(&mut self) -> Free {
        let mut no_waker = Context::from_waker(Waker::noop());
        loop {
            let is_sent = self.unsent.is_empty() && !self.is_unflushed;
            if !self.keeps_open || !is_sent || self.unwritable.is_some() {
                return Free::Never;
            }
            if self.body.is_done() {
                // Bytes that a server sends unasked are not the answer to the next call.
                let silent = self.from == self.to && self.poll_fill(&mut no_waker).is_pending();
                return if silent { Free::Yes } else { Free::Never };
            }
            match self.poll_body(&mut no_waker) {
                Poll::Pending => return Free::NotYet,
                Poll::Ready(Ok(Some(bytes))) => self.rest = bytes.len().saturating_add(self.rest),
                Poll::Ready(Ok(None)) => {}
                Poll::Ready(Err(_)) => return Free::Never,
            }
            if self.rest > REST_BYTES_MAX {
                return Free::Never;
            }
        }
    }

    /// Writes as many slices as the socket accepts.
    fn send(&mut self, cx: &mut Context<'_>) {
        while !self.unsent.is_empty() {
            let slices: Vec<IoSlice<'_>> = self
                .unsent
                .iter()
                .take(SLICES_MAX)
                .map(|slice| IoSlice::new(slice))
                .collect();
            match Pin::new(&mut self.socket).poll_write_vectored(cx, &slices) {
                Poll::Pending => return,
                Poll::Ready(Ok(written)) if written > 0 => {
                    self.is_unflushed = true;
                    self.sent(written);
                }
                Poll::Ready(written) => {
                    self.unwritable = Some(
                        written
                            .err()
                            .unwrap_or_else(|| io::ErrorKind::WriteZero.into()),
                    );
                    self.unsent.clear();
                }
            }
        }
        if self.is_unflushed
            && let Poll::Ready(flushed) = Pin::new(&mut self.socket).poll_flush(cx)
        {
            self.is_unflushed = false;
            self.unwritable = self.unwritable.take().or(flushed.err());
        }
    }

    fn sent(&mut self, mut bytes: usize) {
        while let Some(first) = self.unsent.front_mut() {
            if first.len() > bytes {
                first.advance(bytes);
                return;
            }
            bytes -= first.len();
            self.unsent.pop_front();
        }
        // Release the buffer of a long history between calls.
        self.unsent = VecDeque::new();
    }

    /// Reads behind the buffered bytes. The buffer grows only for a head that is longer than it.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
            if self.buffer.len() > READ_BYTES {
                self.buffer = vec![0; READ_BYTES];
            }
        } else if self.to == self.buffer.len() {
            self.buffer.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
            if self.to == self.buffer.len() {
                self.buffer.resize(self.to.saturating_mul(2), 0);
            }
        }
        let mut space = ReadBuf::new(self.buffer.get_mut(self.to..).unwrap_or_default());
        ready!(Pin::new(&mut self.socket).poll_read(cx, &mut space))?;
        let read = space.filled().len();
        self.to += read;
        Poll::Ready(Ok(read))
    }
}
