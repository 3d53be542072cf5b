//! A client of the host in a kill loop: it sends one prompt after the other to a conversation of
//! its own, each with an idempotency key and as often as it takes, and keeps what was acknowledged.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use reqwest::{Client as Http, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{Broken, checker, model};
use crate::support::SplitMix;

/// The error of a round whose tools ran in three crashes of the host. Lives in a kill loop are short,
/// so it happens to rounds that did nothing wrong.
pub(super) const GIVEN_UP: &str = "crashed_repeatedly";

/// A client knows the addresses of a service, a key and the name of its conversation. It takes the
/// addresses in turn, like a balancer.
pub(super) struct Client {
    pub(super) http: Http,
    pub(super) urls: Vec<String>,
    pub(super) asked: AtomicUsize,
    pub(super) key: String,
    pub(super) conversation: String,
}

/// An acknowledged prompt.
pub(super) struct Acknowledged {
    pub(super) name: String,
    pub(super) kind: &'static str,
    pub(super) round: String,
}

/// The forms in which a prompt is sent.
#[derive(Debug, Clone, Copy)]
enum Form {
    Plain,
    Streamed,
    Async,
}

impl Client {
    /// A path below the conversation.
    pub(super) fn path(&self, rest: &str) -> String {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        let url = &self.urls[asked % self.urls.len()];
        format!("{url}/v1/conversations/{}{rest}", self.conversation)
    }

    pub(super) fn get(&self, rest: &str) -> RequestBuilder {
        self.http.get(self.path(rest)).bearer_auth(&self.key)
    }

    /// Sends a prompt once. Returns its round if it was acknowledged.
    async fn send(&self, name: &str, kind: &str, form: Form, broken: &Broken) -> Option<String> {
        let request = self
            .http
            .post(self.path("/messages"))
            .bearer_auth(&self.key)
            .header("idempotency-key", name)
            .header("content-type", "application/json");
        let request = match form {
            Form::Plain => request,
            Form::Streamed => request.header("accept", "text/event-stream"),
            Form::Async => request.header("prefer", "respond-async"),
        };
        let body = json!({ "content": model::prompt(name, kind) }).to_string();
        let response = request.body(body).send().await.ok()?;
        let status = response.status();
        let text = response.text().await.ok()?;
        match (form, status) {
            (Form::Streamed, StatusCode::OK) => streamed(&text),
            (Form::Plain, StatusCode::OK) => {
                let whole: Value = serde_json::from_str(&text).ok()?;
                let is_answered = whole["text"] == model::answer(name).as_str();
                let is_given_up = whole["error"]["code"] == GIVEN_UP;
                broken.check(is_answered || is_given_up, || {
                    format!("{name} was answered with {whole}")
                });
                Some(whole["round_id"].as_str()?.to_owned())
            }
            (Form::Async, StatusCode::ACCEPTED) => {
                let accepted: Value = serde_json::from_str(&text).ok()?;
                Some(accepted["round_id"].as_str()?.to_owned())
            }
            // Refused while the host starts or ends; a prompt may be sent again.
            (_, StatusCode::SERVICE_UNAVAILABLE | StatusCode::CONFLICT) => None,
            _ => {
                broken.add(format!("{name} ({form:?}) was refused: {status} {text}"));
                None
            }
        }
    }

    /// Sends prompts until `over`. Returns those that were acknowledged, in order.
    pub(super) async fn talk(
        &self,
        mut random: SplitMix,
        over: Arc<AtomicBool>,
        done: Arc<AtomicUsize>,
        broken: Broken,
    ) -> Vec<Acknowledged> {
        let mut acknowledged: Vec<Acknowledged> = Vec::new();
        while !over.load(Ordering::Relaxed) {
            let name = format!("{}-{}", self.conversation, acknowledged.len());
            let kind = model::KINDS[random.below(model::KINDS.len())];
            let round = self
                .until_acknowledged(&name, kind, &mut random, &broken)
                .await;
            acknowledged.push(Acknowledged { name, kind, round });
            done.fetch_add(1, Ordering::Relaxed);
            if random.below(4) == 0 {
                let earlier = &acknowledged[random.below(acknowledged.len())];
                self.send_again(earlier, &broken).await;
            }
        }
        acknowledged
    }

    async fn until_acknowledged(
        &self,
        name: &str,
        kind: &str,
        random: &mut SplitMix,
        broken: &Broken,
    ) -> String {
        let forms = [Form::Plain, Form::Streamed, Form::Async];
        loop {
            let form = forms[random.below(forms.len())];
            if let Some(round) = self.send(name, kind, form, broken).await {
                return round;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// A prompt that is sent again with its key is the round that it was.
    async fn send_again(&self, earlier: &Acknowledged, broken: &Broken) {
        let sent = self.send(&earlier.name, earlier.kind, Form::Async, broken);
        if let Some(round) = sent.await {
            broken.check(round == earlier.round, || {
                format!("{} began {} and then {round}", earlier.name, earlier.round)
            });
        }
    }
}

/// The round of an event stream that came to its end.
fn streamed(text: &str) -> Option<String> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    let end = events
        .iter()
        .find(|event| event["type"] == "round_finished")?;
    Some(end["round_id"].as_str()?.to_owned())
}

/// Clients that talk at the same time.
pub(super) struct Talking {
    over: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    clients: Vec<JoinHandle<(Client, Vec<Acknowledged>)>>,
}

/// What clients have seen.
pub(super) struct Seen {
    pub(super) prompts: usize,
    pub(super) given_up: usize,
    pub(super) histories: Vec<Vec<Value>>,
}

impl Talking {
    pub(super) fn start(clients: impl Iterator<Item = Client>, seed: u64, broken: &Broken) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let done = Arc::new(AtomicUsize::new(0));
        let clients = clients.zip(1..).map(|(client, n)| {
            let random = SplitMix(seed.wrapping_add(n));
            let (over, done, broken) = (over.clone(), done.clone(), broken.clone());
            tokio::spawn(async move {
                let all = client.talk(random, over, done, broken).await;
                (client, all)
            })
        });
        let clients = clients.collect();
        Self {
            over,
            done,
            clients,
        }
    }

    /// Prompts that were acknowledged so far.
    pub(super) fn done(&self) -> usize {
        self.done.load(Ordering::Relaxed)
    }

    /// Ends the clients after their current prompts, and checks what each has received against its
    /// history.
    pub(super) async fn end(self, broken: &Broken) -> Seen {
        self.over.store(true, Ordering::Relaxed);
        let mut seen = Seen {
            prompts: 0,
            given_up: 0,
            histories: Vec::new(),
        };
        for client in self.clients {
            let (client, acknowledged) = client.await.unwrap();
            let history = checker::history(&client).await;
            let without_answer = checker::given_up(&client, &acknowledged, &history).await;
            checker::check(&acknowledged, &without_answer, &history, broken);
            seen.given_up += without_answer.len();
            seen.prompts += acknowledged.len();
            seen.histories.push(history);
        }
        seen
    }
}
