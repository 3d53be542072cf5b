//! Drives a reply: bytes from the connection become events for the caller, under the idle and total
//! deadlines, the byte bound and the cancel token. Dropping the stream closes the connection.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Instant,
};

use callboard_actors::{
    limits::STREAM_BYTES_MAX,
    ports::{ModelEvent, ProviderError, RateLimits},
};
use futures_util::Stream;

use super::{
    assembler::Assemble,
    errors::{self, html_error, protocol},
    gunzip::{Gunzip, PIECE},
    limits,
    pace::{Pace, SharedIntake},
    room::AnswerRoom,
    secret::Secret,
    timer::{CallTimer, Phase},
    transport::Answer,
};

/// Reads that may be joined into one batch of events. Available bytes are taken together, but a
/// fast server must not delay delivery.
const READS_MAX: usize = 32;

/// Bytes that are kept of the server's word for why the answer ended.
const STOP_BYTES_MAX: usize = 256;

/// The stream of events of one reply.
pub(super) struct Reply {
    /// Rate limits of the answer's headers; emitted before all other events.
    limits: Option<RateLimits>,
    /// `None` once the connection is no longer needed.
    answer: Option<Answer>,
    timer: CallTimer,
    gunzip: Option<Gunzip>,
    /// Whether the body was read to its end.
    has_ended: bool,
    reading: Reading,
    secret: Secret,
    /// Emitted after the events that came before it.
    failed: Option<ProviderError>,
}

/// The state of the bytes read so far.
struct Reading {
    assembler: Box<dyn Assemble>,
    bytes: usize,
    /// Bytes that brought no text: compressed ones, and the framing of chunks.
    beside: usize,
    /// Whether the first byte that is not blank was seen. Event streams never begin with `<` or
    /// `{`.
    sniffed: bool,
    pace: Pace,
    room: AnswerRoom,
    /// What `bytes` was when room was last taken.
    room_for: usize,
    /// Bytes when the arguments that are not emitted yet were last counted.
    counted_at: usize,
    /// Those arguments, as they were last reported.
    arguments: usize,
}

/// After how many bytes room is taken for what was kept of them.
const ROOM_LOOK: usize = 256 * 1024;

/// Bytes after which the arguments that are not emitted yet are reported.
const ARGUMENTS_LOOK: usize = 1024;

impl Reply {
    pub(super) fn new(
        mut answer: Answer,
        gunzip: Option<Gunzip>,
        assembler: Box<dyn Assemble>,
        timer: CallTimer,
        secret: Secret,
        shared: SharedIntake,
    ) -> Self {
        let limits = Some(limits::read(answer.headers())).filter(|limits| !limits.is_empty());
        answer.forget_headers();
        let reading = Reading {
            assembler,
            bytes: 0,
            beside: 0,
            sniffed: false,
            pace: Pace::new(shared),
            room: AnswerRoom::new(),
            room_for: 0,
            counted_at: 0,
            arguments: 0,
        };
        Self {
            limits,
            answer: Some(answer),
            timer,
            gunzip,
            has_ended: false,
            reading,
            secret,
            failed: None,
        }
    }

    /// Decodes what was read before, or reads once. Waits only while there are no events to
    /// deliver.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut Vec<ModelEvent>,
    ) -> Poll<Result<(), ProviderError>> {
        if self
            .gunzip
            .as_ref()
            .is_some_and(|gunzip| !gunzip.is_drained())
        {
            self.timer.reset_idle();
            self.timer.check()?;
            return Poll::Ready(self.decode(out));
        }
        if self.has_ended {
            return Poll::Ready(self.reading.assembler.finish(out));
        }
        let Some(answer) = &mut self.answer else {
            return Poll::Ready(Ok(()));
        };
        let read = answer.poll_body(cx);
        if read.is_ready() {
            self.timer.check()?; // While nothing is ready, `poll` checks the same.
        }
        match read? {
            Poll::Ready(Some(bytes)) => {
                self.timer.reset_idle();
                match &mut self.gunzip {
                    Some(gunzip) => {
                        gunzip.push(bytes);
                        self.decode(out)?;
                    }
                    None => self.reading.take(bytes, out)?,
                }
                self.count_framing()?;
            }
            Poll::Ready(None) => {
                self.has_ended = true;
                if let Some(gunzip) = &mut self.gunzip {
                    gunzip.end();
                }
            }
            Poll::Pending if out.is_empty() => return self.timer.poll(cx, Phase::Stream).map(Err),
            Poll::Pending => return Poll::Pending,
        }
        Poll::Ready(Ok(()))
    }

    /// Counts what the connection read around the bytes of the body.
    fn count_framing(&mut self) -> Result<(), ProviderError> {
        let framing = self.answer.as_mut().map_or(0, Answer::take_framing);
        self.reading.pace.pass(framing);
        self.reading.receive(framing)
    }

    /// Decodes compressed bytes, as many as a step allows.
    fn decode(&mut self, out: &mut Vec<ModelEvent>) -> Result<(), ProviderError> {
        let Some(gunzip) = &mut self.gunzip else {
            return Ok(());
        };
        let mut piece = [0; PIECE];
        while !self.reading.pace.is_over() {
            let begun = Instant::now();
            let Some(next) = gunzip.next(&mut piece)? else {
                break;
            };
            self.reading.pace.unpack(next.packed, begun.elapsed());
            self.reading.receive(next.packed)?;
            if !next.bytes.is_empty() {
                self.reading.take(next.bytes, out)?;
            }
        }
        Ok(())
    }

    /// Waits for the next step, under the limits of the call.
    fn poll_pace(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ProviderError>> {
        if self.reading.pace.poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        self.timer.reset_idle(); // The server is not silent.
        self.timer.check()?;
        self.timer.poll(cx, Phase::Stream).map(Err)
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
        if let Err(error) = ready!(reply.poll_pace(cx)) {
            reply.answer = None;
            return Poll::Ready(Some(Err(error)));
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
            if reply.reading.pace.is_over() {
                break;
            }
        }
        if let Some(ModelEvent::Completed(completion)) = out.last_mut()
            && let Some(reason) = &mut completion.raw_stop
        {
            shorten(reason);
        }
        if out.is_empty() {
            // Nothing to deliver: other tasks have their turn before it goes on.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Some(Ok(out)))
    }
}

impl Reading {
    /// Counts bytes that bring no text themselves.
    fn receive(&mut self, bytes: usize) -> Result<(), ProviderError> {
        self.beside = self.beside.saturating_add(bytes);
        if self.beside > STREAM_BYTES_MAX {
            return Err(too_long());
        }
        Ok(())
    }

    fn take(&mut self, bytes: &[u8], out: &mut Vec<ModelEvent>) -> Result<(), ProviderError> {
        self.bytes = self.bytes.saturating_add(bytes.len());
        self.pace.take(bytes);
        if self.bytes > STREAM_BYTES_MAX {
            return Err(too_long());
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
        self.assembler.feed(bytes, out)?;
        if self.bytes - self.counted_at >= ARGUMENTS_LOOK {
            self.counted_at = self.bytes;
            let arguments = self.assembler.argument_bytes();
            if arguments > 0 && arguments != self.arguments {
                out.push(ModelEvent::Arguments(arguments));
            }
            self.arguments = arguments;
        }
        if self.bytes - self.room_for >= ROOM_LOOK {
            self.room_for = self.bytes;
            self.room.hold(self.assembler.kept_bytes())?;
        }
        Ok(())
    }
}

/// Shortens the server's word for why the answer ended: it is stored with each answer.
fn shorten(reason: &mut String) {
    let mut ends = (0..=STOP_BYTES_MAX.min(reason.len())).rev();
    let end = ends.find(|end| reason.is_char_boundary(*end));
    reason.truncate(end.unwrap_or_default());
}

fn too_long() -> ProviderError {
    protocol(format_args!(
        "the answer is longer than {STREAM_BYTES_MAX} bytes"
    ))
}

/// The error for a JSON document instead of a stream: an error with status 200, or a server that
/// does not stream.
fn document_error(bytes: &[u8]) -> ProviderError {
    if bytes.windows(7).any(|window| window == b"\"error\"") {
        return errors::of_event(bytes);
    }
    protocol("the server answered with a JSON document instead of an event stream")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_word_for_the_end_of_an_answer_is_cut_between_characters() {
        let mut reason = "ä".repeat(1 << 20) + "x";
        let mut usual = "end_turn".to_owned();
        let mut odd = "x".to_owned() + &reason;

        for reason in [&mut reason, &mut usual, &mut odd] {
            shorten(reason);
        }

        assert_eq!(
            (reason.len(), usual.as_str(), odd.len()),
            (STOP_BYTES_MAX, "end_turn", STOP_BYTES_MAX - 1)
        );
    }
}
