//! The baseline: the same turn written by hand. reqwest, a line reader, serde_json, history as JSON
//! values, deltas to one subscriber by channel, and rows in a journal if there is one.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use bytes::BytesMut;
use futures_util::StreamExt;
use serde_json::Value;
use tokio::sync::mpsc;

use super::{
    Wire,
    hand_journal::HandJournal,
    hand_json::{ParsedReply, schema},
};

/// State that all its conversations share.
pub(crate) struct ByHand {
    client: reqwest::Client,
    url: String,
    pub(crate) wire: Wire,
    tools: Value,
    check: jsonschema::Validator,
    journal: Option<HandJournal>,
    conversations: AtomicI64,
}

impl ByHand {
    pub(crate) fn new(url: String, wire: Wire, journal: Option<HandJournal>) -> Arc<Self> {
        let check = jsonschema::validator_for(&schema()).unwrap();
        let conversations = AtomicI64::new(0);
        Arc::new(Self {
            client: callboard::tls::client_builder().unwrap().build().unwrap(),
            url,
            wire,
            tools: wire.tools(),
            check,
            journal,
            conversations,
        })
    }

    /// Makes one model call and sends its deltas to the subscriber.
    pub(crate) async fn call(
        &self,
        messages: &[Value],
        with_tools: bool,
        events: &mpsc::Sender<String>,
    ) -> ParsedReply {
        let request = self
            .client
            .post(format!("{}/{}", self.url, self.wire.path()))
            .header("content-type", "application/json");
        let request = match self.wire {
            Wire::Anthropic => request
                .header("x-api-key", "k")
                .header("anthropic-version", "2023-06-01"),
            Wire::OpenAi => request.header("authorization", "Bearer k"),
        };
        let body = self.wire.body(messages, with_tools.then_some(&self.tools));
        let response = request.body(body).send().await.unwrap();
        let mut stream = response.bytes_stream();
        let mut buffer = BytesMut::new();
        let mut reply = ParsedReply::default();
        while let Some(chunk) = stream.next().await {
            buffer.extend_from_slice(&chunk.unwrap());
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line = buffer.split_to(end + 1);
                let Some(data) = line.strip_prefix(b"data: ") else {
                    continue;
                };
                if let Some(piece) = self.wire.event(data, &mut reply) {
                    events.send(piece).await.unwrap();
                }
            }
        }
        reply
    }

    async fn store(&self, conversation: i64, message: &Value, waits: bool) {
        if let Some(journal) = &self.journal {
            let stored = journal.append(conversation, serde_json::to_vec(message).unwrap());
            if waits {
                stored.await.unwrap();
            }
        }
    }

    /// Creates a conversation that begins with a history.
    pub(crate) fn conversation(
        self: &Arc<Self>,
        history: &[callboard::chat::Message],
    ) -> Conversation {
        let messages = history
            .iter()
            .flat_map(|message| self.values(message))
            .collect();
        Conversation {
            hand: self.clone(),
            id: self.conversations.fetch_add(1, Ordering::Relaxed),
            messages,
        }
    }

    /// Converts a message to the JSON of this wire.
    fn values(&self, message: &callboard::chat::Message) -> Vec<Value> {
        use callboard::chat::Role;
        let anthropic: Value = serde_json::from_str(message.wire_str()).unwrap();
        if self.wire == Wire::Anthropic {
            return vec![anthropic];
        }
        let mut asked = None;
        let mut results = Vec::new();
        for block in anthropic["content"].as_array().into_iter().flatten() {
            let text = |of: &str| block[of].as_str().unwrap().to_owned();
            match block["type"].as_str() {
                Some("tool_use") => {
                    asked = Some(super::hand_json::ToolRequest {
                        id: text("id"),
                        name: text("name"),
                        input: block["input"].to_string(),
                    });
                }
                Some("tool_result") => {
                    results.push(self.wire.result(&text("tool_use_id"), &super::result()))
                }
                _ => {}
            }
        }
        match message.role() {
            Role::Assistant => vec![self.wire.assistant(&message.text(), asked.as_ref())],
            Role::User if !results.is_empty() => results,
            Role::User | Role::System => vec![self.wire.user(&message.text())],
        }
    }

    /// Runs `total` turns in `at_once` concurrent conversations, each of which is replaced after
    /// `each` turns.
    pub(crate) async fn run(self: &Arc<Self>, at_once: usize, each: usize, total: usize) -> usize {
        let lives = (total / at_once / each).max(1);
        let lanes = (0..at_once).map(|_| {
            let hand = self.clone();
            tokio::spawn(async move {
                for _ in 0..lives {
                    let mut conversation = hand.conversation(&super::history());
                    for _ in 0..each {
                        conversation.turn().await;
                    }
                }
            })
        });
        for lane in lanes.collect::<Vec<_>>() {
            lane.await.unwrap();
        }
        lives * each * at_once
    }
}

/// A conversation with its history as JSON values.
pub(crate) struct Conversation {
    hand: Arc<ByHand>,
    id: i64,
    messages: Vec<Value>,
}

impl Conversation {
    async fn append(&mut self, message: Value, waits: bool) {
        self.hand.store(self.id, &message, waits).await;
        self.messages.push(message);
    }

    /// Runs the reference turn.
    pub(crate) async fn turn(&mut self) {
        let hand = self.hand.clone();
        let wire = self.hand.wire;
        let (events, mut subscriber) = mpsc::channel::<String>(64);
        let reader = tokio::spawn(async move {
            let mut bytes = 0;
            while let Some(piece) = subscriber.recv().await {
                bytes += piece.len();
            }
            bytes
        });
        // The prompt is written while the model works. The next journal write waits for both.
        self.append(wire.user(&super::prompt()), false).await;
        let reply = hand.call(&self.messages, true, &events).await;
        let asked = reply.tool.unwrap();
        let input: Value = serde_json::from_str(&asked.input).unwrap();
        assert!(hand.check.is_valid(&input));
        self.append(wire.assistant(&reply.text, Some(&asked)), true)
            .await;
        let result = tokio::spawn(async { super::result() }).await.unwrap();
        self.append(wire.result(&asked.id, &result), false).await;
        let reply = hand.call(&self.messages, true, &events).await;
        self.append(wire.assistant(&reply.text, None), true).await;
        drop(events);
        assert_eq!(reader.await.unwrap(), (32 + 64) * 4);
    }
}
