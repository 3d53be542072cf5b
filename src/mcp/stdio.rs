//! The stdio transport: one JSON message per line, over two pipes. The peer is untrusted, so every
//! resource is bounded.
//!
//! Guarantees: one message takes at most [`FRAME_BYTES_MAX`] bytes and [`FRAME_PARTS_MAX`] values;
//! a line that is longer, has more values or is nested too deeply ends the connection with a
//! reason. Lines that are not JSON are skipped, up to a thousand in a row. What is read has a bound
//! in a second, so a flood of lines that are ignored fills the pipe. A response that is JSON
//! but not valid MCP fails its request at once. A server that does not read its input ends the
//! connection.

use std::{
    io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use callboard_actors::limits::JSON_DEPTH_MAX;
use rmcp::{
    model::{ErrorCode, ErrorData, RequestId},
    service::{RoleClient, RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader},
    sync::{Mutex, Semaphore},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::intake::Intake;

/// Largest message, in bytes: enough for a large image in a result.
pub const FRAME_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Most JSON values in one message. Each costs about a hundred bytes of memory when parsed, however
/// short it is on the wire.
pub const FRAME_PARTS_MAX: usize = 200_000;

/// Consecutive lines that are not JSON before the connection is closed. Some servers print a
/// greeting to standard output.
const JUNK_MAX: u32 = 1000;

/// Messages that may wait to be written. When more wait, the server is not reading, and further
/// sends fail.
const WRITES_MAX: usize = 64;

/// Timeout for writing one message.
const WRITE_TIME_MAX: Duration = Duration::from_secs(10);

/// Why a connection ended; only the first reason is kept. Setting it ends the connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Fault {
    reason: Arc<OnceLock<String>>,
    found: CancellationToken,
}

impl Fault {
    pub(super) fn set(&self, reason: impl Into<String>) {
        let _ = self.reason.set(reason.into());
        self.found.cancel();
    }

    /// Sets what is wrong with a message that [`Scan`] refused, and returns it.
    pub(super) fn refuse(&self, problem: &str) -> String {
        let reason = format!("it sent a message {problem}");
        self.set(reason.clone());
        reason
    }

    pub(super) fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    /// Waits until there is one.
    pub(super) async fn found(&self) {
        self.found.cancelled().await;
    }
}

/// A pair of pipes as a transport.
pub(super) struct Stdio<R, W> {
    read: BufReader<R>,
    /// Bytes of the line that is being read.
    line: Vec<u8>,
    scan: Scan,
    junk: u32,
    intake: Intake,
    /// When reading may go on.
    next: Instant,
    write: Arc<Mutex<Option<W>>>,
    writes: Arc<Semaphore>,
    broken: CancellationToken,
    fault: Fault,
}

impl<R: AsyncRead + Unpin + Send, W: AsyncWrite + Unpin + Send + 'static> Stdio<R, W> {
    pub(super) fn new(read: R, write: W, fault: Fault) -> Self {
        Self {
            read: BufReader::with_capacity(64 * 1024, read),
            line: Vec::new(),
            scan: Scan::default(),
            junk: 0,
            intake: Intake::new(),
            next: Instant::now(),
            write: Arc::new(Mutex::new(Some(write))),
            writes: Arc::new(Semaphore::new(WRITES_MAX)),
            broken: CancellationToken::new(),
            fault,
        }
    }

    /// Reads until a line is complete; `false` at the end of the input. Cancel safe: a partial line
    /// is kept.
    async fn read_line(&mut self) -> bool {
        loop {
            let available = tokio::select! {
                biased;
                () = self.broken.cancelled() => return false,
                available = paced(&mut self.read, self.next) => available,
            };
            let Ok(available) = available else {
                return false;
            };
            if available.is_empty() {
                return false;
            }
            let newline = memchr::memchr(b'\n', available);
            let taken = newline.map_or(available.len(), |at| at + 1);
            let part = available.get(..taken).unwrap_or_default();
            self.next = self.intake.read(part);
            if let Err(problem) = self.scan.take(part) {
                self.fault.refuse(&problem);
                return false;
            }
            self.line.extend_from_slice(part);
            self.read.consume(taken);
            if newline.is_some() {
                self.intake.take_values(self.scan.values());
                self.scan = Scan::default();
                return true;
            }
        }
    }

    /// Parses the line; `None` if it is to be ignored.
    fn parse(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        let parsed = read_frame(&self.line);
        self.line.clear();
        // Frees the memory of a large message.
        self.line.shrink_to(64 * 1024);
        match parsed {
            Frame::Message(message) => {
                self.junk = 0;
                Some(*message)
            }
            Frame::Nothing => None,
            Frame::Junk => {
                self.junk += 1;
                if self.junk > JUNK_MAX {
                    self.fault.set("its output is not MCP");
                    self.broken.cancel();
                }
                None
            }
        }
    }
}

/// The next bytes, once reading may go on. Cancel safe.
async fn paced<R: AsyncRead + Unpin>(read: &mut BufReader<R>, next: Instant) -> io::Result<&[u8]> {
    if next > Instant::now() {
        sleep_until(next).await;
    }
    read.fill_buf().await
}

/// A parsed line.
#[derive(Debug)]
pub(super) enum Frame {
    Message(Box<RxJsonRpcMessage<RoleClient>>),
    /// An empty line, or an unknown notification or request.
    Nothing,
    /// Not JSON, or JSON that is not a message.
    Junk,
}

/// Parses a line that [`Scan`] has accepted.
pub(super) fn read_frame(line: &[u8]) -> Frame {
    let line = line
        .strip_prefix(b"\xef\xbb\xbf")
        .unwrap_or(line)
        .trim_ascii();
    if line.is_empty() {
        return Frame::Nothing;
    }
    if let Ok(message) = serde_json::from_slice(line) {
        return Frame::Message(Box::new(message));
    }
    let Ok(value) = serde_json::from_slice::<Value>(line) else {
        return Frame::Junk;
    };
    let id = match value.get("id") {
        Some(Value::Number(number)) => number.as_i64().map(RequestId::Number),
        Some(Value::String(text)) => Some(RequestId::String(text.as_str().into())),
        _ => None,
    };
    match (value.get("method"), id) {
        (Some(Value::String(_)), _) => Frame::Nothing,
        // A response that cannot be parsed: fail its request now, since no other response will
        // come.
        (None, Some(id)) => {
            let error = ErrorData::new(
                ErrorCode::INTERNAL_ERROR,
                "the response is not valid MCP",
                None,
            );
            Frame::Message(Box::new(RxJsonRpcMessage::<RoleClient>::error(
                error,
                Some(id),
            )))
        }
        _ => Frame::Junk,
    }
}

/// A line is judged alike however it is split, and an accepted one is parsed.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(data: &[u8]) {
    let scan = |pieces: &[&[u8]]| {
        let mut scan = Scan::default();
        pieces.iter().try_for_each(|piece| scan.take(piece)).is_ok()
    };
    let accepted = scan(&[data]);
    assert_eq!(scan(&data.chunks(1).collect::<Vec<_>>()), accepted);
    if accepted {
        read_frame(data);
    }
}

/// Counts bytes, depth and values of a message before it is parsed. The result does not depend on
/// how the message is split into chunks.
#[derive(Debug, Clone, Default)]
pub(super) struct Scan {
    bytes: usize,
    depth: usize,
    parts: usize,
    in_string: bool,
    escaped: bool,
}

impl Scan {
    /// What is wrong with a message of more than [`FRAME_BYTES_MAX`].
    pub(super) fn too_long() -> String {
        format!("of more than {} MiB", FRAME_BYTES_MAX >> 20)
    }

    /// Values of what was taken, as far as it is within the bounds.
    pub(super) fn values(&self) -> usize {
        self.parts
    }

    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.bytes += bytes.len();
        if self.bytes > FRAME_BYTES_MAX {
            return Err(Self::too_long());
        }
        for byte in bytes {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'[' | b'{' => {
                    self.depth += 1;
                    self.parts += 1;
                }
                b']' | b'}' => self.depth = self.depth.saturating_sub(1),
                b',' => self.parts += 1,
                _ => {}
            }
            if self.depth > JSON_DEPTH_MAX {
                return Err(format!("nested deeper than {JSON_DEPTH_MAX} levels"));
            }
            if self.parts > FRAME_PARTS_MAX {
                return Err(format!("of more than {FRAME_PARTS_MAX} values"));
            }
        }
        Ok(())
    }
}

impl<R: AsyncRead + Unpin + Send, W: AsyncWrite + Unpin + Send + 'static> Transport<RoleClient>
    for Stdio<R, W>
{
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        let write = self.write.clone();
        let broken = self.broken.clone();
        let fault = self.fault.clone();
        let permit = self.writes.clone().try_acquire_owned();
        async move {
            let _permit = permit.map_err(|_| {
                io::Error::new(io::ErrorKind::WouldBlock, "the server does not read")
            })?;
            let mut line = serde_json::to_vec(&item)?;
            line.push(b'\n');
            let written = tokio::time::timeout(WRITE_TIME_MAX, async {
                let mut write = write.lock().await;
                let Some(write) = write.as_mut() else {
                    return Err(io::Error::from(io::ErrorKind::NotConnected));
                };
                write.write_all(&line).await?;
                write.flush().await
            });
            let written = written.await.unwrap_or_else(|_| {
                fault.set(format!(
                    "it did not read for {} s",
                    WRITE_TIME_MAX.as_secs()
                ));
                Err(io::Error::from(io::ErrorKind::TimedOut))
            });
            if written.is_err() {
                // Part of a message may have been written; nothing after it could be parsed.
                broken.cancel();
            }
            written
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        while self.read_line().await {
            if let Some(message) = self.parse() {
                return Some(message);
            }
        }
        None
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        self.broken.cancel();
        // A blocked write holds the lock; cancelling `broken` ends it, and the pipe closes then.
        if let Ok(mut write) = self.write.try_lock() {
            write.take();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::JsonRpcMessage;

    use super::*;

    fn transport(input: &'static [u8]) -> (Stdio<&'static [u8], tokio::io::Sink>, Fault) {
        let fault = Fault::default();
        (Stdio::new(input, tokio::io::sink(), fault.clone()), fault)
    }

    fn leaked(text: String) -> &'static [u8] {
        Box::leak(text.into_boxed_str()).as_bytes()
    }

    const PONG: &str = "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n";

    #[tokio::test]
    async fn a_line_that_is_not_a_message_is_skipped() {
        let text = format!(
            "Hello!\n\n\u{feff}  \n[1,2]\n{{\"jsonrpc\":\"2.0\",\"method\":\"window/x\",\"params\":1}}\n\u{feff}{PONG}half"
        );
        let (mut stdio, fault) = transport(leaked(text));

        let message = stdio.receive().await;

        assert!(
            matches!(message, Some(JsonRpcMessage::Response(response)) if response.id == RequestId::Number(1))
        );
        assert!(stdio.receive().await.is_none() && fault.reason().is_none());
    }

    #[tokio::test]
    async fn a_message_that_is_too_long_too_deep_or_has_too_many_values_ends_the_connection() {
        for (text, expected) in [
            (
                "x".repeat(FRAME_BYTES_MAX + 1),
                "it sent a message of more than 8 MiB",
            ),
            (
                format!("{}\n{PONG}", "[".repeat(100)),
                "it sent a message nested deeper than 64 levels",
            ),
            (
                format!("[{}]\n{PONG}", "0,".repeat(FRAME_PARTS_MAX + 1)),
                "it sent a message of more than 200000 values",
            ),
            (
                format!("{}{PONG}", "junk\n".repeat(2000)),
                "its output is not MCP",
            ),
        ] {
            let (mut stdio, fault) = transport(leaked(text));

            assert!(stdio.receive().await.is_none(), "{expected}");
            assert_eq!(fault.reason(), Some(expected));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lines_that_are_ignored_and_messages_of_many_values_come_at_a_bounded_pace() {
        let values = "0,".repeat(100_000);
        let unknown = format!(
            "{{\"jsonrpc\":\"2.0\",\"method\":\"x/y\",\"params\":{{\"a\":[{values}0]}}}}\n"
        );
        for (flood, seconds) in [("\n".repeat(1 << 20), 14..=16), (unknown.repeat(3), 2..=4)] {
            let (mut stdio, _) = transport(leaked(format!("{flood}{PONG}")));
            let begun = Instant::now();

            while !matches!(stdio.receive().await, Some(JsonRpcMessage::Response(_))) {}

            let seconds_taken = begun.elapsed().as_secs();
            assert!(seconds.contains(&seconds_taken), "{seconds_taken} s");
        }
    }

    #[tokio::test]
    async fn a_response_that_cannot_be_parsed_fails_its_request() {
        let (mut stdio, _) = transport(b"{\"jsonrpc\":\"1.0\",\"id\":7,\"result\":3}\n");

        let message = stdio.receive().await;

        assert!(
            matches!(message, Some(JsonRpcMessage::Error(error)) if error.id == Some(RequestId::Number(7)))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_read_ends_the_connection() {
        let (ours, _theirs) = tokio::io::duplex(16);
        let (read, write) = tokio::io::split(ours);
        let fault = Fault::default();
        let mut stdio = Stdio::new(read, write, fault.clone());
        let message = || {
            TxJsonRpcMessage::<RoleClient>::error(
                ErrorData::internal_error("a long text ".repeat(100), None),
                None,
            )
        };

        let waiting: Vec<_> = (0..=WRITES_MAX)
            .map(|_| tokio::spawn(stdio.send(message())))
            .collect();
        let received = stdio.receive().await;

        assert!(received.is_none());
        assert_eq!(fault.reason(), Some("it did not read for 10 s"));
        for sent in waiting {
            assert!(sent.await.unwrap().is_err());
        }
    }

    /// Body of a fuzz target: for any bytes in any chunks, the reader does not panic, and the
    /// result is independent of the chunks.
    #[test]
    fn any_bytes_are_read_without_a_panic_and_cuts_do_not_matter() {
        let seed: u64 = std::env::var("CALLBOARD_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok())
            .unwrap_or(0x5eed_ca11);
        eprintln!("CALLBOARD_SEED={seed}");
        let mut state = seed | 1;
        let mut next = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % below as u64).unwrap()
        };
        let pieces: &[&[u8]] = &[
            b"{",
            b"}",
            b"[",
            b"]",
            b",",
            b":",
            b"\"",
            b"\\",
            b"\"jsonrpc\":\"2.0\"",
            b"\"id\":",
            b"1",
            b"-9e999",
            b"null",
            b"\"method\":\"ping\"",
            b"\"result\":{}",
            b"\"error\":{\"code\":1,\"message\":\"x\"}",
            b"\"params\":{}",
            b"\xff",
            b"\xf0\x9f",
            "\u{202e}".as_bytes(),
            b" ",
            b"99999999999999999999999",
            b"\"notifications/progress\"",
            b"\"content\":[{\"type\":\"text\",\"text\":\"x\"}]",
        ];
        let rounds = if callboard_actors::testing::TestSize::is_long() {
            200_000
        } else {
            4_000
        };
        for _ in 0..rounds {
            let mut line = Vec::new();
            for _ in 0..next(40) {
                line.extend_from_slice(pieces[next(pieces.len())]);
            }
            let mut whole = Scan::default();
            let expected = whole.take(&line);
            let mut parts = Scan::default();
            let cut = next(line.len() + 1);
            let found = parts
                .take(&line[..cut])
                .and_then(|()| parts.take(&line[cut..]));
            assert_eq!(expected.is_ok(), found.is_ok());
            let _ = read_frame(&line);
        }
    }
}
