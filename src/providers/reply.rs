//! Drives a reply: bytes from the connection, events to the caller, under the idle and the total deadline, the byte bound
//! and the cancel token. Dropping the stream closes the connection.

use std::time::Duration;

use bytes::Bytes;
use callboard_actors::{
    limits::STREAM_BYTES_MAX,
    ports::{ModelEvent, ModelStream, ProviderError, RateLimits},
};
use futures_util::{FutureExt, StreamExt, stream};
use reqwest::Response;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    assembler::{Assemble, protocol},
    config::Timeouts,
    errors,
    http::{broken, html_error, idle_error, total_error},
    limits,
    secret::Secret,
};

/// Reads that may be joined in one batch: what is there is taken together, but a fast server must not keep us from
/// telling.
const READS_MAX: usize = 32;

/// How long the rest of a complete answer is read away, so that the connection can serve the next call.
const REST_WAIT: Duration = Duration::from_millis(500);

/// Bytes of that rest.
const REST_BYTES_MAX: usize = 64 * 1024;

/// A reply on its way.
pub(super) struct Reply {
    /// Told first.
    limits: Option<RateLimits>,
    /// `None` once the connection is of no more use.
    response: Option<Response>,
    assembler: Box<dyn Assemble>,
    cancel: CancellationToken,
    timeouts: Timeouts,
    deadline: Instant,
    secret: Secret,
    bytes: usize,
    /// The first byte that is no blank was seen; events do not begin with `<` or `{`.
    sniffed: bool,
    /// Told after the events that came before it.
    failed: Option<ProviderError>,
}

impl Reply {
    pub(super) fn new(
        response: Response,
        assembler: Box<dyn Assemble>,
        cancel: CancellationToken,
        timeouts: Timeouts,
        deadline: Instant,
        secret: Secret,
    ) -> Self {
        let limits = Some(limits::read(response.headers())).filter(|limits| !limits.is_empty());
        let response = Some(response);
        Self { limits, response, assembler, cancel, timeouts, deadline, secret, bytes: 0, sniffed: false, failed: None }
    }

    pub(super) fn into_stream(self) -> ModelStream {
        let batches = stream::unfold(Box::new(self), |mut reply| async move { reply.next().await.map(|batch| (batch, reply)) });
        Box::pin(batches.fuse())
    }

    async fn next(&mut self) -> Option<Result<Vec<ModelEvent>, ProviderError>> {
        if let Some(limits) = self.limits.take() {
            return Some(Ok(vec![ModelEvent::Limits(limits)]));
        }
        if let Some(error) = self.failed.take() {
            return Some(Err(error));
        }
        self.response.as_ref()?;
        let mut out = Vec::new();
        for _ in 0..READS_MAX {
            let read = if out.is_empty() {
                self.read().await
            } else {
                match self.read_what_is_there() {
                    Some(read) => read,
                    None => break,
                }
            };
            let taken = match read {
                Ok(Some(bytes)) => self.take(&bytes, &mut out),
                Ok(None) => self.assembler.finish(&mut out).inspect(|()| self.response = None),
                Err(error) => Err(error),
            };
            if let Err(error) = taken {
                // The connection first: nobody waits for us any more.
                self.response = None;
                let error = self.secret.mask_error(error);
                if out.is_empty() {
                    return Some(Err(error));
                }
                self.failed = Some(error);
                break;
            }
            if self.assembler.is_complete() {
                self.release();
                break;
            }
        }
        Some(Ok(out))
    }

    async fn read(&mut self) -> Result<Option<Bytes>, ProviderError> {
        let Some(response) = &mut self.response else { return Ok(None) };
        if self.cancel.is_cancelled() {
            return Err(ProviderError::Cancelled);
        }
        let now = Instant::now();
        if now >= self.deadline {
            return Err(total_error(self.timeouts));
        }
        let idle = now + self.timeouts.idle;
        // The bytes first: a timer costs more than most reads and is not armed when they are there.
        tokio::select! {
            biased;
            read = response.chunk() => read.map_err(broken),
            () = self.cancel.cancelled() => Err(ProviderError::Cancelled),
            () = sleep_until(idle.min(self.deadline)) => {
                Err(if idle < self.deadline { idle_error(self.timeouts) } else { total_error(self.timeouts) })
            }
        }
    }

    fn read_what_is_there(&mut self) -> Option<Result<Option<Bytes>, ProviderError>> {
        let read = self.response.as_mut()?.chunk().now_or_never()?;
        Some(read.map_err(broken))
    }

    fn take(&mut self, bytes: &[u8], out: &mut Vec<ModelEvent>) -> Result<(), ProviderError> {
        self.bytes = self.bytes.saturating_add(bytes.len());
        if self.bytes > STREAM_BYTES_MAX {
            return Err(protocol(format_args!("the answer is longer than {STREAM_BYTES_MAX} bytes")));
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

    /// Reads the end of a complete answer away, beside the caller; a connection that is dropped before is not used again.
    fn release(&mut self) {
        let Some(mut response) = self.response.take() else { return };
        match response.chunk().now_or_never() {
            Some(Ok(None) | Err(_)) => {}
            Some(Ok(Some(_))) | None => {
                tokio::spawn(timeout(REST_WAIT, async move {
                    let mut bytes = 0;
                    while let Ok(Some(more)) = response.chunk().await {
                        bytes += more.len();
                        if bytes > REST_BYTES_MAX {
                            break;
                        }
                    }
                }));
            }
        }
    }
}

/// A JSON document instead of a stream: an error with status 200, or a server that does not stream.
fn document_error(bytes: &[u8]) -> ProviderError {
    if bytes.windows(7).any(|window| window == b"\"error\"") {
        return errors::of_event(bytes);
    }
    protocol("the server answered with a JSON document instead of an event stream")
}
