//! A scripted model server: complete and broken replies, pauses, stalls, cuts. It speaks raw
//! HTTP/1.1 on loopback, so that no library stands between the script and the wire. It records
//! requests and notices clients that leave.
//!
//! ```ignore
//! let server = ModelServer::start([Reply::events(["…"]), Reply::status(529)]).await;
//! let provider = Anthropic::builder("sk-test-not-a-real-key").base_url(server.url()).build()?;
//! ```

use std::{collections::VecDeque, net::SocketAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinSet,
};

/// A step of the server after the head of a reply.
#[derive(Debug, Clone)]
pub enum Step {
    /// Sends the bytes at once.
    Send(Vec<u8>),
    /// Sends the bytes one by one.
    Drip(Vec<u8>),
    /// Waits.
    Pause(Duration),
    /// Sends nothing more until the client leaves.
    Stall,
    /// Closes the connection in the middle of the body.
    Cut,
    /// Sends the bytes repeatedly until the client leaves.
    Endless(Vec<u8>),
}

/// One scripted reply.
#[derive(Debug, Clone)]
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    steps: Vec<Step>,
    /// Delay before the head.
    delay: Duration,
}

impl Reply {
    /// A reply with status 200 and an empty event stream, to which steps are added.
    pub fn stream() -> Self {
        Self::status(200).header("content-type", "text/event-stream")
    }

    /// A reply with a status and an empty body, to which steps are added.
    pub fn status(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            steps: Vec::new(),
            delay: Duration::ZERO,
        }
    }

    /// A complete event stream; each text is the data of an event.
    pub fn events<S: AsRef<str>>(events: impl IntoIterator<Item = S>) -> Self {
        Self::stream().send(sse(events))
    }

    /// A JSON document.
    pub fn json(status: u16, body: &str) -> Self {
        Self::status(status)
            .header("content-type", "application/json")
            .send(body)
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the delay before the head.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Adds a step.
    #[must_use]
    pub fn then(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// Adds a step that sends bytes.
    #[must_use]
    pub fn send(self, bytes: impl Into<Vec<u8>>) -> Self {
        self.then(Step::Send(bytes.into()))
    }
}

/// Encodes events as an event stream.
pub fn sse<S: AsRef<str>>(events: impl IntoIterator<Item = S>) -> String {
    events
        .into_iter()
        .map(|data| format!("data: {}\n\n", data.as_ref()))
        .collect()
}

/// A complete Messages reply with one text.
pub fn anthropic_text(text: &str) -> Vec<String> {
    let text = serde_json::Value::from(text);
    vec![
        r#"{"type":"message_start","message":{"content":[],"usage":{"input_tokens":5,"output_tokens":1}}}"#.into(),
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#.into(),
        format!(r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":{text}}}}}"#),
        r#"{"type":"content_block_stop","index":0}"#.into(),
        r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}"#.into(),
        r#"{"type":"message_stop"}"#.into(),
    ]
}

/// A complete Messages reply that calls one tool. The id of the call is always the same.
pub fn anthropic_tool(name: &str, input: &serde_json::Value) -> Vec<String> {
    anthropic_call("t1", name, input)
}

/// A complete Messages reply that calls one tool.
pub fn anthropic_call(id: &str, name: &str, input: &serde_json::Value) -> Vec<String> {
    let arguments = serde_json::Value::from(input.to_string());
    vec![
        r#"{"type":"message_start","message":{"content":[],"usage":{"input_tokens":5,"output_tokens":1}}}"#.to_owned(),
        format!(
            r#"{{"type":"content_block_start","index":0,"content_block":{{"type":"tool_use","id":"{id}","name":"{name}","input":{{}}}}}}"#
        ),
        format!(r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"input_json_delta","partial_json":{arguments}}}}}"#),
        r#"{"type":"content_block_stop","index":0}"#.to_owned(),
        r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":2}}"#.to_owned(),
        r#"{"type":"message_stop"}"#.to_owned(),
    ]
}

/// A complete Chat Completions reply with one text.
pub fn openai_text(text: &str) -> Vec<String> {
    let text = serde_json::Value::from(text);
    vec![
        format!(
            r#"{{"choices":[{{"index":0,"delta":{{"role":"assistant","content":{text}}},"finish_reason":null}}]}}"#
        ),
        r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#.into(),
        r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}"#.into(),
        "[DONE]".into(),
    ]
}

/// A complete Responses reply with one text.
pub fn responses_text(text: &str) -> Vec<String> {
    let text = serde_json::Value::from(text);
    vec![
        r#"{"type":"response.created","sequence_number":0,"response":{"id":"resp_1","status":"in_progress","output":[]}}"#.into(),
        r#"{"type":"response.output_item.added","output_index":0,"item":{"type":"message","id":"msg_1","role":"assistant","content":[]}}"#.into(),
        format!(r#"{{"type":"response.output_text.delta","output_index":0,"content_index":0,"delta":{text}}}"#),
        format!(r#"{{"type":"response.output_item.done","output_index":0,"item":{{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[{{"type":"output_text","text":{text},"annotations":[]}}]}}}}"#),
        r#"{"type":"response.completed","response":{"id":"resp_1","status":"completed","usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":2},"output_tokens":2}}}"#.into(),
    ]
}

/// A complete Responses reply that reasons and then makes calls: id, name and arguments of each.
pub fn responses_calls(calls: &[(&str, &str, serde_json::Value)]) -> Vec<String> {
    let mut events = vec![
        r#"{"type":"response.output_item.done","output_index":0,"item":{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"c2VhbGVk"}}"#.to_owned(),
    ];
    for (index, (id, name, input)) in calls.iter().enumerate() {
        let arguments = serde_json::Value::from(input.to_string());
        events.push(format!(
            r#"{{"type":"response.output_item.done","output_index":{},"item":{{"type":"function_call","id":"fc_{index}","call_id":"{id}","name":"{name}","arguments":{arguments},"status":"completed"}}}}"#,
            index + 1
        ));
    }
    events.push(r#"{"type":"response.completed","response":{"id":"resp_1","status":"completed","usage":{"input_tokens":9,"output_tokens":4,"output_tokens_details":{"reasoning_tokens":2}}}}"#.to_owned());
    events
}

/// A complete Gemini reply with one text.
pub fn gemini_text(text: &str) -> Vec<String> {
    let text = serde_json::Value::from(text);
    vec![
        format!(r#"{{"candidates":[{{"content":{{"parts":[{{"text":{text}}}],"role":"model"}},"index":0}}],"usageMetadata":{{"promptTokenCount":5}}}}"#),
        r#"{"candidates":[{"content":{"parts":[{"text":"","thoughtSignature":"RmluYWw="}],"role":"model"},"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":5,"cachedContentTokenCount":2,"candidatesTokenCount":2,"totalTokenCount":7}}"#.into(),
    ]
}

/// A complete Gemini reply that makes calls, without ids: name and arguments of each.
pub fn gemini_calls(calls: &[(&str, serde_json::Value)]) -> Vec<String> {
    let part = |(at, (name, args)): (usize, &(&str, serde_json::Value))| {
        let signature = if at == 0 {
            r#","thoughtSignature":"Rmlyc3Q=""#
        } else {
            ""
        };
        format!(r#"{{"functionCall":{{"name":"{name}","args":{args}}}{signature}}}"#)
    };
    let parts: Vec<String> = calls.iter().enumerate().map(part).collect();
    vec![
        r#"{"candidates":[{"content":{"parts":[{"text":"Both files.","thought":true}],"role":"model"}}]}"#.to_owned(),
        format!(
            r#"{{"candidates":[{{"content":{{"parts":[{}],"role":"model"}},"finishReason":"STOP"}}],"usageMetadata":{{"promptTokenCount":9,"candidatesTokenCount":4,"thoughtsTokenCount":3}}}}"#,
            parts.join(",")
        ),
    ]
}

/// A request as received.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// Method and path.
    pub line: String,
    /// Names are in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Recorded {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// Computes the reply from a request's body.
type AnswerOf = Box<dyn Fn(&serde_json::Value) -> Reply + Send>;

#[derive(Default)]
struct State {
    script: VecDeque<Reply>,
    /// Replaces the script if set.
    answer: Option<AnswerOf>,
    requests: Vec<Recorded>,
    connections: usize,
    /// Number of replies sent completely.
    done: usize,
    /// Number of clients that left before the end of their reply.
    left: usize,
}

/// The server. Ends when it is dropped.
pub struct ModelServer {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    changed: watch::Sender<()>,
    _tasks: JoinSet<()>,
}

impl ModelServer {
    /// Starts the server on a free port. Replies are sent in order; the last one repeats forever.
    pub async fn start(script: impl IntoIterator<Item = Reply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        Self::serve(
            listener,
            address,
            State {
                script: script.into_iter().collect(),
                ..State::default()
            },
        )
    }

    /// Starts the server on a free port. Each reply is computed from its request, so the order of
    /// requests does not matter.
    pub async fn answering(answer: impl Fn(&serde_json::Value) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        Self::serve(
            listener,
            address,
            State {
                answer: Some(Box::new(answer)),
                ..State::default()
            },
        )
    }

    fn serve(listener: TcpListener, address: SocketAddr, state: State) -> Self {
        let state = Arc::new(Mutex::new(state));
        let changed = watch::Sender::new(());
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, state.clone(), changed.clone()));
        Self {
            address,
            state,
            changed,
            _tasks: tasks,
        }
    }

    /// `http://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// `http://127.0.0.1:port/v1`.
    pub fn url_v1(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Replaces the script.
    pub fn script(&self, script: impl IntoIterator<Item = Reply>) {
        self.state.lock().script = script.into_iter().collect();
    }

    /// Requests received so far.
    pub fn requests(&self) -> Vec<Recorded> {
        self.state.lock().requests.clone()
    }

    /// Number of connections received.
    pub fn connections(&self) -> usize {
        self.state.lock().connections
    }

    /// Number of clients that left before the end of their reply.
    pub fn left(&self) -> usize {
        self.state.lock().left
    }

    /// Waits, at most 10 s, until `count` clients have left before the end of their reply.
    pub async fn clients_left(&self, count: usize) {
        self.wait(&format!("{count} clients leave"), |state| {
            state.left >= count
        })
        .await;
    }

    /// Waits, at most 10 s, until `count` replies have been sent completely.
    pub async fn replies_done(&self, count: usize) {
        self.wait(&format!("{count} replies are sent"), |state| {
            state.done >= count
        })
        .await;
    }

    /// Waits, at most 10 s, until `count` requests have been received.
    pub async fn requests_came(&self, count: usize) {
        self.wait(&format!("{count} requests come"), |state| {
            state.requests.len() >= count
        })
        .await;
    }

    async fn wait(&self, what: &str, mut ready: impl FnMut(&State) -> bool) {
        let mut changes = self.changed.subscribe();
        let reached = async {
            while !ready(&self.state.lock()) {
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(10), reached)
            .await
            .unwrap_or_else(|_| panic!("waited 10 s that {what}"));
    }
}

async fn accept(listener: TcpListener, state: Arc<Mutex<State>>, changed: watch::Sender<()>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        state.lock().connections += 1;
        connections.spawn(serve(stream, state.clone(), changed.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(stream: TcpStream, state: Arc<Mutex<State>>, changed: watch::Sender<()>) {
    stream.set_nodelay(true).unwrap();
    let (mut read, mut write) = stream.into_split();
    while let Some(request) = read_request(&mut read).await {
        let reply = {
            let mut state = state.lock();
            let body = serde_json::from_slice(&request.body).unwrap_or_default();
            let asked = state.answer.as_ref().map(|answer| answer(&body));
            state.requests.push(request);
            let last = state.script.len() <= 1;
            if asked.is_some() {
                asked
            } else if last {
                state.script.front().cloned()
            } else {
                state.script.pop_front()
            }
        };
        changed.send_replace(());
        let reply = reply
            .unwrap_or_else(|| Reply::json(500, r#"{"error":{"message":"the script is empty"}}"#));
        // A client sends nothing while it reads, so anything but silence means that it left.
        let mut byte = [0];
        let over = tokio::select! {
            over = send(&mut write, reply) => over,
            _ = read.read(&mut byte) => Over::Left,
        };
        match over {
            Over::Well => state.lock().done += 1,
            Over::Left => state.lock().left += 1,
            Over::Cut => {}
        }
        changed.send_replace(());
        if !matches!(over, Over::Well) {
            return;
        }
    }
}

async fn read_request(read: &mut OwnedReadHalf) -> Option<Recorded> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        if read.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let text = String::from_utf8_lossy(&bytes[..head]).into_owned();
    let mut lines = text.split("\r\n");
    let line = lines.next()?.trim_end_matches(" HTTP/1.1").to_owned();
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
    let headers: Vec<_> = headers.collect();
    let length = headers
        .iter()
        .find(|(name, _)| name == "content-length")
        .map_or(0, |(_, value)| value.parse().unwrap());
    let mut body = bytes.split_off(head + 4);
    while body.len() < length {
        if read.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some(Recorded {
        line,
        headers,
        body,
    })
}

enum Over {
    /// The reply is complete, and the connection stays open.
    Well,
    /// The server closed the connection, as scripted.
    Cut,
    Left,
}

async fn send(write: &mut OwnedWriteHalf, reply: Reply) -> Over {
    match try_send(write, reply).await {
        Ok(over) => over,
        Err(_) => Over::Left,
    }
}

async fn try_send(write: &mut OwnedWriteHalf, reply: Reply) -> std::io::Result<Over> {
    tokio::time::sleep(reply.delay).await;
    let mut head = format!(
        "HTTP/1.1 {} Scripted\r\ntransfer-encoding: chunked\r\n",
        reply.status
    );
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    write.write_all(head.as_bytes()).await?;
    for step in reply.steps {
        match step {
            Step::Send(bytes) => chunk(write, &bytes).await?,
            Step::Drip(bytes) => {
                for byte in bytes {
                    chunk(write, &[byte]).await?;
                    tokio::task::yield_now().await;
                }
            }
            Step::Pause(time) => tokio::time::sleep(time).await,
            Step::Stall => std::future::pending().await,
            Step::Cut => return Ok(Over::Cut),
            Step::Endless(bytes) => loop {
                chunk(write, &bytes).await?;
            },
        }
    }
    write.write_all(b"0\r\n\r\n").await?;
    Ok(Over::Well)
}

async fn chunk(write: &mut OwnedWriteHalf, bytes: &[u8]) -> std::io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let mut framed = format!("{:x}\r\n", bytes.len()).into_bytes();
    framed.extend_from_slice(bytes);
    framed.extend_from_slice(b"\r\n");
    write.write_all(&framed).await
}
