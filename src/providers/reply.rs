//! Drives a reply: bytes from the connection become events for the caller, under the idle and total
//! deadlines, the byte bound and the cancel token. Dropping the stream closes the connection.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use callboard_actors::{
    limits::STREAM_BYTES_MAX,
    ports::{ModelEvent, ProviderError, RateLimits},
};
use futures_util::Stream;

use super::{
    assembler::Assemble,
    errors::{self, html_error, protocol},
    gunzip::Gunzip,
    limits,
    secret::Secret,
    timer::{CallTimer, Phase},
    transport::Answer,
};

/// Reads that may be joined into one batch of events. Available bytes are taken together, but a
/// fast server must not delay delivery.
const READS_MAX: usize = 32;

/// The stream of events of one reply.
pub(super) struct Reply {
    /// Rate limits of the answer's headers; emitted before all other events.
    limits: Option<RateLimits>,
    /// `None` once the connection is no longer needed.
    answer: Option<Answer>,
    timer: CallTimer,
    gunzip: Option<Gunzip>,
    reading: Reading,
    secret: Secret,
    /// Emitted after the events that came before it.
    failed: Option<ProviderError>,
}

/// The state of the bytes read so far.
struct Reading {
    assembler: Box<dyn Assemble>,
    bytes: usize,
    /// Whether the first byte that is not blank was seen. Event streams never begin with `<` or
    /// `{`.
    sniffed: bool,
}

impl Reply {
    pub(super) fn new(
        answer: Answer,
        gunzip: Option<Gunzip>,
        assembler: Box<dyn Assemble>,
        timer: CallTimer,
        secret: Secret,
    ) -> Self {
        let limits = Some(limits::read(answer.headers())).filter(|limits| !limits.is_empty());
        let reading = Reading {
            assembler,
            bytes: 0,
            sniffed: false,
        };
        Self {
            limits,
            answer: Some(answer),
            timer,
            gunzip,
            reading,
            secret,
            failed: None,
        }
    }

    /// Reads once and returns whether more may be available. Waits only while there are no events
    /// to deliver.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut Vec<ModelEvent>,
    ) -> Poll<Result<(), ProviderError>> {
        let Some(answer) = &mut self.answer else {
            return Poll::Ready(Ok(()));
        };
        let read = answer.poll_body(cx);
        if read.is_ready() {
            self.timer.check()?; // While nothing is ready, `poll` checks the same.
        }
        match read? {
            Poll::Ready(Some(bytes)) => {
                let reading = &mut self.reading;
                match &mut self.gunzip {
                    Some(gunzip) => gunzip.take(bytes, |piece| reading.take(piece, out))?,
                    None => reading.take(bytes, out)?,
                }
                self.timer.reset_idle();
            }
            Poll::Ready(None) => {
                let reading = &mut self.reading;
                if let Some(gunzip) = &mut self.gunzip {
                    gunzip.finish(|piece| reading.take(piece, out))?;
                }
                reading.assembler.finish(out)?;
            }
            Poll::Pending if out.is_empty() => return self.timer.poll(cx, Phase::Stream).map(Err),
            Poll::Pending => return Poll::Pending,
        }
        Poll::Ready(Ok(()))
    }
}

impl Stream for Reply {
    type Item = Result<Vec<ModelEvent>, ProviderError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let reply = self.get_mut();
        if let Some(limits) = reply.limits.take() {
            return Poll::Ready(Some(Ok(vec![ModelEvent::Limits(limits)])));
        }
        if let Some(error) = reply.failed.take() {
            return Poll::Ready(Some(Err(error)));
        }
        if reply.answer.is_none() {
            return Poll::Ready(None);
        }
        let mut out = Vec::new();
        // Join the reads that are available now. An error after events is returned by the next call,
        // so events that arrived before it are not lost.
        for _ in 0..READS_MAX {
            match reply.poll_read(cx, &mut out) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    // Drop the connection first: the caller no longer needs it.
                    reply.answer = None;
                    let error = reply.secret.mask_error(error);
                    if out.is_empty() {
                        return Poll::Ready(Some(Err(error)));
                    }
                    reply.failed = Some(error);
                    break;
                }
                Poll::Pending if out.is_empty() => return Poll::Pending,
                Poll::Pending => break,
            }
            if reply.reading.assembler.is_complete() {
                if let Some(answer) = reply.answer.take() {
                    answer.release();
                }
                break;
            }
        }
        Poll::Ready(Some(Ok(out)))
    }
}

impl Reading {
    fn take(&mut self, bytes: &[u8], out: &mut Vec<ModelEvent>) -> Result<(), ProviderError> {
        self.bytes = self.bytes.saturating_add(bytes.len());
        if self.bytes > STREAM_BYTES_MAX {
            return Err(protocol(format_args!(
                "the answer is longer than {STREAM_BYTES_MAX} bytes"
            )));
        }
        if !self.sniffed
            && let Some(first) = bytes.trim_ascii_start().first()
        {
            self.sniffed = true;
            match first {
                b'<' => return Err(html_error()),
                b'{' => return Err(document_error(bytes)),
                _ => {}
            }
        }
        self.assembler.feed(bytes, out)
    }
}

/// The error for a JSON document instead of a stream: an error with status 200, or a server that
/// does not stream.
fn document_error(bytes: &[u8]) -> ProviderError {
    if bytes.windows(7).any(|window| window == b"\"error\"") {
        return errors::of_event(bytes);
    }
    protocol("the server answered with a JSON document instead of an event stream")
}
