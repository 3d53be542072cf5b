//! JSON-RPC over lines: one message a line, in both directions, as the Agent Client Protocol sends it.
//!
//! Own code for three reasons: the protocol's SDK reads lines and keeps queues without a bound, its
//! types turn on `serde_json/preserve_order` for the whole program, and what is used here is small.
//! A line has at most [`LINE_BYTES_MAX`] bytes; a client that does not read its output stops what
//! writes to it, and no round.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::{mpsc, oneshot},
};

/// Bytes of a line: the largest prompt and what is around it. Of a longer line nothing is kept.
const LINE_BYTES_MAX: usize = callboard_actors::limits::PROMPT_BYTES_MAX + 1024 * 1024;

/// Messages that wait for the client to read them; beyond this, their writers wait.
const WAITING_MAX: usize = 256;

/// Codes of JSON-RPC.
pub(super) const PARSE_ERROR: i64 = -32700;
pub(super) const INVALID_REQUEST: i64 = -32600;
pub(super) const METHOD_NOT_FOUND: i64 = -32601;
pub(super) const INVALID_PARAMS: i64 = -32602;
pub(super) const INTERNAL_ERROR: i64 = -32603;
/// Of the Agent Client Protocol.
pub(super) const RESOURCE_NOT_FOUND: i64 = -32002;

/// Why a request failed, as the client reads it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RpcError {
    pub(super) code: i64,
    pub(super) message: String,
    pub(super) data: Option<Value>,
}

impl RpcError {
    pub(super) fn new(code: i64, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            data: None,
        }
    }

    pub(super) fn params(message: impl Into<String>) -> Self {
        Self::new(INVALID_PARAMS, message)
    }
}

impl From<super::Failure> for RpcError {
    fn from(failure: super::Failure) -> Self {
        Self::new(INTERNAL_ERROR, failure.plain())
    }
}

impl From<callboard_actors::host::SendError> for RpcError {
    fn from(error: callboard_actors::host::SendError) -> Self {
        super::Failure::from(error).into()
    }
}

/// What a line of the client is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Incoming {
    Request {
        id: Value,
        method: String,
        params: Value,
    },
    Notification {
        method: String,
        params: Value,
    },
    /// The answer to a request of ours; `None` for an error.
    Answer {
        id: u64,
        result: Option<Value>,
    },
    /// No message. `id` is null if it is unknown.
    Wrong {
        id: Value,
        error: RpcError,
    },
}

impl Incoming {
    /// Reads a line. `None` for an empty one.
    fn parse(line: &[u8]) -> Option<Self> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return None;
        }
        let wrong = |id, code, message: &str| {
            Some(Self::Wrong {
                id,
                error: RpcError::new(code, message),
            })
        };
        let Ok(value) = serde_json::from_slice::<Value>(line) else {
            return wrong(Value::Null, PARSE_ERROR, "the line is not valid JSON");
        };
        let Value::Object(mut fields) = value else {
            return wrong(
                Value::Null,
                INVALID_REQUEST,
                "a message is one JSON object; batches are not taken",
            );
        };
        let id = fields.remove("id");
        let is_id = |id: &Value| matches!(id, Value::Number(_) | Value::String(_));
        match (fields.remove("method"), id) {
            (Some(Value::String(method)), id) => {
                let params = fields.remove("params").unwrap_or(Value::Null);
                match id {
                    None | Some(Value::Null) => Some(Self::Notification { method, params }),
                    Some(id) if is_id(&id) => Some(Self::Request { id, method, params }),
                    Some(_) => wrong(
                        Value::Null,
                        INVALID_REQUEST,
                        "`id` must be a number or a string",
                    ),
                }
            }
            (None, Some(id)) if fields.contains_key("result") || fields.contains_key("error") => {
                // An id that is none of ours answers nothing.
                let id = id.as_u64().unwrap_or(u64::MAX);
                let failed = fields.get("error").is_some_and(|error| !error.is_null());
                let result = fields.remove("result").filter(|_| !failed);
                Some(Self::Answer { id, result })
            }
            (_, id) => wrong(
                id.filter(is_id).unwrap_or(Value::Null),
                INVALID_REQUEST,
                "`method` is missing",
            ),
        }
    }
}

/// Reads the client's lines until its end, one message at a time.
pub(super) async fn read<R>(mut reader: R, messages: mpsc::Sender<Incoming>)
where
    R: AsyncBufRead + Unpin,
{
    let mut line = Vec::new();
    let mut too_long = false;
    loop {
        let Ok(chunk) = reader.fill_buf().await else {
            return;
        };
        let is_end = chunk.is_empty();
        let (part, ends) = match memchr::memchr(b'\n', chunk) {
            Some(at) => (chunk.get(..at).unwrap_or_default(), true),
            None => (chunk, is_end),
        };
        let used = part.len() + usize::from(ends && !is_end);
        if line.len() + part.len() > LINE_BYTES_MAX {
            too_long = true;
            line = Vec::new();
        }
        if !too_long {
            line.extend_from_slice(part);
        }
        reader.consume(used);
        if !ends {
            continue;
        }
        let message = if std::mem::take(&mut too_long) {
            Some(Incoming::Wrong {
                id: Value::Null,
                error: RpcError::new(
                    INVALID_REQUEST,
                    format!("a message has at most {LINE_BYTES_MAX} bytes"),
                ),
            })
        } else {
            Incoming::parse(&line)
        };
        line = Vec::new(); // The next line may be short: a large buffer is not kept.
        if let Some(message) = message
            && messages.send(message).await.is_err()
        {
            return;
        }
        if is_end {
            return;
        }
    }
}

/// Writes messages until no sender is left or the client is gone.
pub(super) async fn write<W>(mut writer: W, mut lines: mpsc::Receiver<Vec<u8>>)
where
    W: AsyncWrite + Unpin,
{
    while let Some(line) = lines.recv().await {
        let written = writer.write_all(&line).await;
        // What waits already goes with one flush.
        if written.is_err() || (lines.is_empty() && writer.flush().await.is_err()) {
            return;
        }
    }
}

/// The client is gone: nothing can be sent to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gone;

/// What is sent to the client.
pub(super) struct Outbox {
    lines: mpsc::Sender<Vec<u8>>,
    /// Requests of ours that have no answer yet. Each is removed when its asker is dropped.
    asked: Mutex<HashMap<u64, oneshot::Sender<Option<Value>>>>,
    next_id: AtomicU64,
}

impl Outbox {
    /// The outbox, and the lines for [`write`].
    pub(super) fn new() -> (Self, mpsc::Receiver<Vec<u8>>) {
        let (lines, waiting) = mpsc::channel(WAITING_MAX);
        let outbox = Self {
            lines,
            asked: Mutex::new(HashMap::new()),
            next_id: AtomicU64::new(0),
        };
        (outbox, waiting)
    }

    pub(super) async fn answer(&self, id: Value, result: Result<Value, RpcError>) {
        let message = match result {
            Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
            Err(error) => {
                let mut fault = json!({"code": error.code, "message": error.message});
                if let (Some(fields), Some(data)) = (fault.as_object_mut(), error.data) {
                    fields.insert("data".to_owned(), data);
                }
                json!({"jsonrpc": "2.0", "id": id, "error": fault})
            }
        };
        let _ = self.send(&message).await; // A client that is gone misses nothing.
    }

    pub(super) async fn notify(&self, method: &str, params: Value) -> Result<(), Gone> {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}))
            .await
    }

    /// Sends a request and waits for its result; `None` for an error or a client that is gone.
    pub(super) async fn ask(&self, method: &str, params: Value) -> Option<Value> {
        /// Forgets the request when its asker no longer waits.
        struct Asked<'a>(&'a Outbox, u64);
        impl Drop for Asked<'_> {
            fn drop(&mut self) {
                self.0.asked.lock().remove(&self.1);
            }
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.asked.lock().insert(id, sender);
        let _asked = Asked(self, id);
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.send(&message).await.ok()?;
        answer.await.ok().flatten()
    }

    /// Hands the client's answer to the task that asked.
    pub(super) fn answered(&self, id: u64, result: Option<Value>) {
        if let Some(asker) = self.asked.lock().remove(&id) {
            let _ = asker.send(result); // The asker may have been dropped meanwhile.
        }
    }

    async fn send(&self, message: &Value) -> Result<(), Gone> {
        let mut line = serde_json::to_vec(message).map_err(|_| Gone)?;
        line.push(b'\n');
        self.lines.send(line).await.map_err(|_| Gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(text: Vec<u8>) -> Vec<Incoming> {
        let (sender, mut messages) = mpsc::channel(16);
        read(tokio::io::BufReader::new(text.as_slice()), sender).await;
        let mut all = Vec::new();
        while let Ok(message) = messages.try_recv() {
            all.push(message);
        }
        all
    }

    fn code(message: &Incoming) -> i64 {
        match message {
            Incoming::Wrong { error, .. } => error.code,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn each_line_is_one_message_and_a_wrong_one_harms_no_other() {
        let text = b"{\"id\":1,\"method\":\"a\",\"params\":{\"x\":1}}\n\nno json\n[]\n{\"id\":3}\n{\"method\":\"n\"}\n{\"id\":7,\"result\":{}}\n{\"id\":8,\"error\":{}}\n{\"id\":9,\"result\":{},\"error\":{}}";

        let read = all(text.to_vec()).await;

        assert_eq!(
            read[0],
            Incoming::Request {
                id: json!(1),
                method: "a".into(),
                params: json!({"x": 1})
            }
        );
        assert_eq!(
            [code(&read[1]), code(&read[2]), code(&read[3])],
            [PARSE_ERROR, INVALID_REQUEST, INVALID_REQUEST]
        );
        assert!(matches!(&read[4], Incoming::Notification { method, .. } if method == "n"));
        assert_eq!(
            read[5..],
            [
                Incoming::Answer {
                    id: 7,
                    result: Some(json!({}))
                },
                Incoming::Answer {
                    id: 8,
                    result: None
                },
                Incoming::Answer {
                    id: 9,
                    result: None
                }
            ]
        );
    }

    #[tokio::test]
    async fn a_line_beyond_the_bound_is_refused_and_the_next_is_read() {
        let mut text = vec![b'x'; LINE_BYTES_MAX + 1];
        text.extend_from_slice(b"\n{\"id\":1,\"method\":\"a\"}\n");

        let read = all(text).await;

        assert_eq!((read.len(), code(&read[0])), (2, INVALID_REQUEST));
        assert!(matches!(&read[1], Incoming::Request { .. }));
    }
}
