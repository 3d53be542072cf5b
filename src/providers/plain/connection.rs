//! One connection and what is under way on it: a request goes out in as few writes as the system takes, an answer comes in. It is
//! driven by whoever waits for the answer, so no task stands between the socket and the reader.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};

use bytes::{Buf, Bytes};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use super::{
    framing::{Framing, Malformed},
    head::{self, BadHead, Head},
};

/// Bytes that are read at once.
const READ_BYTES: usize = 8 * 1024;

/// Bytes of a head; beyond it the server is not one we know.
const HEAD_BYTES_MAX: usize = 256 * 1024;

/// Slices of one write: what Linux takes.
const SLICES_MAX: usize = 1024;

/// Bytes that are read away after an answer whose reader had enough.
const REST_BYTES_MAX: usize = 64 * 1024;

/// Why an exchange ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
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
    /// Whether the other side may have closed the connection before it heard of the request.
    pub(super) fn is_let_go(&self) -> bool {
        match self {
            Self::NoAnswer => true,
            Self::Io(error) => {
                matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted | io::ErrorKind::BrokenPipe)
            }
            Self::LongHead | Self::Head(_) | Self::Body(_) => false,
        }
    }
}

/// Whether a connection can take a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Free {
    Yes,
    /// The end of the answer before has not come.
    NotYet,
    /// It never will.
    Never,
}

/// A connection.
pub(super) struct Connection {
    socket: TcpStream,
    unsent: VecDeque<Bytes>,
    /// Writing failed; the answer may say why.
    unwritable: Option<io::Error>,
    buffer: Vec<u8>,
    /// What of the buffer was read and not taken.
    from: usize,
    to: usize,
    body: Framing,
    keeps_open: bool,
    rest: usize,
}

impl Connection {
    pub(super) fn new(socket: TcpStream) -> Self {
        Self {
            socket,
            unsent: VecDeque::new(),
            unwritable: None,
            buffer: vec![0; READ_BYTES],
            from: 0,
            to: 0,
            body: Framing::none(),
            keeps_open: true,
            rest: 0,
        }
    }

    /// Puts a request on its way; [`Connection::poll_head`] drives it. The connection must be free.
    pub(super) fn begin(&mut self, request: VecDeque<Bytes>) {
        self.unsent = request;
        self.rest = 0;
    }

    /// Sends the request and reads the head of the answer. A server may answer before it has read all.
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Head, Broken>> {
        loop {
            self.send(cx);
            if self.from < self.to {
                let head = head::read(self.buffer.get(self.from..self.to).unwrap_or_default())?;
                if let Some(head) = head {
                    self.from += head.bytes;
                    (self.body, self.keeps_open) = (head.body, head.keeps_open);
                    return Poll::Ready(Ok(head));
                }
                if self.to - self.from >= HEAD_BYTES_MAX {
                    return Poll::Ready(Err(Broken::LongHead));
                }
            }
            match ready!(self.poll_fill(cx)) {
                Ok(0) => return Poll::Ready(Err(self.unwritable.take().map_or(Broken::NoAnswer, Broken::Io))),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Err(self.unwritable.take().unwrap_or(error).into())),
            }
        }
    }

    /// Whether a byte of the answer came.
    pub(super) fn has_heard(&self) -> bool {
        self.from < self.to
    }

    /// Reads once and gives the bytes of the body that came; `None` at its end.
    pub(super) fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<&[u8]>, Broken>> {
        self.send(cx);
        while !self.body.is_done() {
            if self.from == self.to && ready!(self.poll_fill(cx))? == 0 {
                self.body.close()?;
                break;
            }
            let from = self.from;
            let taken = self.body.take(self.buffer.get_mut(from..self.to).unwrap_or_default())?;
            self.from += taken.read;
            if taken.body > 0 {
                return Poll::Ready(Ok(self.buffer.get(from..from + taken.body)));
            }
        }
        Poll::Ready(Ok(None))
    }

    /// Whether it can take a call now. Nobody is woken for it later.
    pub(super) fn free(&mut self) -> Free {
        let mut nobody = Context::from_waker(Waker::noop());
        loop {
            if !self.keeps_open || !self.unsent.is_empty() || self.unwritable.is_some() {
                return Free::Never;
            }
            if self.body.is_done() {
                // What a server sends without being asked is not the answer to the next call.
                let silent = self.from == self.to && self.poll_fill(&mut nobody).is_pending();
                return if silent { Free::Yes } else { Free::Never };
            }
            match self.poll_body(&mut nobody) {
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

    /// Writes what the system takes.
    fn send(&mut self, cx: &mut Context<'_>) {
        while !self.unsent.is_empty() {
            let slices: Vec<IoSlice<'_>> = self.unsent.iter().take(SLICES_MAX).map(|slice| IoSlice::new(slice)).collect();
            match Pin::new(&mut self.socket).poll_write_vectored(cx, &slices) {
                Poll::Pending => return,
                Poll::Ready(Ok(written)) if written > 0 => self.sent(written),
                Poll::Ready(written) => {
                    self.unwritable = Some(written.err().unwrap_or_else(|| io::ErrorKind::WriteZero.into()));
                    self.unsent.clear();
                }
            }
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
        // The room for a long history is not needed between calls.
        self.unsent = VecDeque::new();
    }

    /// Reads behind what is there; grows only for a head that is longer than the buffer.
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
