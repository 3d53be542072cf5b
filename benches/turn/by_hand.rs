//! The baseline: the same turn written by hand, as well as it can be. reqwest, typed events, a
//! history whose messages are serialized once, text to one subscriber by channel (the text of one
//! read together), and rows in a journal if there is one.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use serde_json::Value;
use tokio::sync::mpsc;

use super::{
    Wire,
    hand_client::{Clients, Place},
    hand_journal::HandJournal,
    hand_json::{EventReader, History, ParsedReply, ToolRequest, before_messages, schema},
    model::Server,
};

/// State that all its conversations share.
pub(crate) struct ByHand {
    clients: Clients,
    url: String,
    pub(crate) wire: Wire,
    before_messages: Vec<u8>,
    check: jsonschema::Validator,
    journal: Option<HandJournal>,
    conversations: AtomicI64,
}

impl ByHand {
    /// A baseline that makes at most `calls_max` calls at once.
    pub(crate) fn new(
        server: &Server,
        wire: Wire,
        calls_max: usize,
        journal: Option<HandJournal>,
    ) -> Arc<Self> {
        let path = match wire {
            Wire::Anthropic => "v1/messages",
            Wire::OpenAi => "chat/completions",
        };
        Arc::new(Self {
            clients: Clients::new(server, calls_max),
            url: format!("{}/{path}", server.url(wire)),
            wire,
            before_messages: before_messages(wire),
            check: jsonschema::validator_for(&schema()).unwrap(),
            journal,
            conversations: AtomicI64::new(0),
        })
    }

    /// Sends a request. The place is taken until it is dropped.
    pub(crate) async fn send(&self, history: &History) -> (reqwest::Response, Place) {
        let (client, place) = self.clients.take();
        let request = client
            .post(&self.url)
            .header("content-type", "application/json");
        let request = match self.wire {
            Wire::Anthropic => request
                .header("x-api-key", "k")
                .header("anthropic-version", "2023-06-01"),
            Wire::OpenAi => request.header("authorization", "Bearer k"),
        };
        let body = history.body(&self.before_messages);
        let response = request.body(body).send().await.unwrap();
        assert_eq!(response.status(), 200);
        (response, place)
    }

    /// Makes one model call and sends its text to the subscriber.
    pub(crate) async fn call(
        &self,
        history: &History,
        events: &mpsc::Sender<String>,
    ) -> ParsedReply {
        let (mut response, _place) = self.send(history).await;
        let mut reader = EventReader::default();
        let mut reply = ParsedReply::default();
        while let Some(bytes) = response.chunk().await.unwrap() {
            if let Some(text) = reader.read(self.wire, &bytes, &mut reply) {
                events.send(text.to_owned()).await.unwrap();
            }
        }
        reply
    }

    /// Creates a conversation that begins with a history.
    pub(crate) fn conversation(
        self: &Arc<Self>,
        messages: &[callboard::chat::Message],
    ) -> Conversation {
        let mut history = History::default();
        for message in messages {
            self.import(message, &mut history);
        }
        Conversation {
            hand: self.clone(),
            id: self.conversations.fetch_add(1, Ordering::Relaxed),
            history,
        }
    }

    /// Writes a message in the JSON of this wire.
    fn import(&self, message: &callboard::chat::Message, history: &mut History) {
        use callboard::chat::Role;
        let anthropic: Value = serde_json::from_str(message.wire_str()).unwrap();
        if self.wire == Wire::Anthropic {
            history.push(&anthropic);
            return;
        }
        let mut asked = None;
        let mut has_results = false;
        for block in anthropic["content"].as_array().into_iter().flatten() {
            let text = |of: &str| block[of].as_str().unwrap().to_owned();
            match block["type"].as_str() {
                Some("tool_use") => {
                    asked = Some(ToolRequest {
                        id: text("id"),
                        name: text("name"),
                        input: block["input"].to_string(),
                    });
                }
                Some("tool_result") => {
                    has_results = true;
                    history.result(self.wire, &text("tool_use_id"), &super::result());
                }
                _ => {}
            }
        }
        match message.role() {
            Role::Assistant => {
                history.assistant(self.wire, &message.text(), asked.as_ref());
            }
            Role::User if has_results => {}
            Role::User | Role::System => {
                history.user(self.wire, &message.text());
            }
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

/// A conversation with its history as JSON.
pub(crate) struct Conversation {
    hand: Arc<ByHand>,
    id: i64,
    history: History,
}

impl Conversation {
    /// Appends a message to the history and to the journal. If `waits`, returns once it is stored.
    async fn append(&mut self, push: impl FnOnce(&mut History, Wire) -> &[u8], waits: bool) {
        let message = push(&mut self.history, self.hand.wire);
        if let Some(journal) = &self.hand.journal {
            let stored = journal.append(self.id, message.to_vec());
            if waits {
                stored.await.unwrap();
            }
        }
    }

    /// Runs the reference turn.
    pub(crate) async fn turn(&mut self) {
        let hand = self.hand.clone();
        let (events, mut subscriber) = mpsc::channel::<String>(64);
        let reader = tokio::spawn(async move {
            let mut bytes = 0;
            while let Some(piece) = subscriber.recv().await {
                bytes += piece.len();
            }
            bytes
        });
        // The prompt is written while the model works. The next journal write waits for both.
        self.append(|history, wire| history.user(wire, &super::prompt()), false)
            .await;
        let reply = hand.call(&self.history, &events).await;
        let asked = reply.tool.unwrap();
        let input: Value = serde_json::from_str(&asked.input).unwrap();
        assert!(hand.check.is_valid(&input));
        self.append(
            |history, wire| history.assistant(wire, &reply.text, Some(&asked)),
            true,
        )
        .await;
        let result = tokio::spawn(async { super::result() }).await.unwrap();
        self.append(
            |history, wire| history.result(wire, &asked.id, &result),
            false,
        )
        .await;
        let reply = hand.call(&self.history, &events).await;
        self.append(
            |history, wire| history.assistant(wire, &reply.text, None),
            true,
        )
        .await;
        drop(events);
        assert_eq!(reader.await.unwrap(), (32 + 64) * 4);
    }
}
