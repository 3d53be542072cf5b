//! Watchers disconnect and reconnect a thousand times while rounds run and the host is killed and
//! restarted. The checker knows only what clients received. `CALLBOARD_SEED=n` repeats the random
//! choices. `CALLBOARD_LONG=1` makes ten times as many disconnects over four times the
//! conversations: two minutes of processor time, and never longer than `STORY_MAX`.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use callboard_actors::testing::TestSize;
use reqwest::{Client, Method, Response, StatusCode};
use serde_json::{Value, json};

use super::{Arc, Home, Key, Mutex, Served, configure};
use crate::support::{
    SplitMix,
    model_server::{ModelServer, Reply, Step, anthropic_text, sse},
    seed,
};

/// Watchers of each conversation. After a kill they return with cursors that only its journal
/// knows.
const WATCHERS: usize = 3;

/// Disconnects per prompt: the test has the same number of rounds on slow and fast machines.
const CUTS_PER_PROMPT: usize = 8;

/// Disconnects between two kills.
const LIFE: Duration = Duration::from_millis(1500);

/// Time limit of any wait.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time limit for all disconnects, however slow the machine is. Beyond it something is stuck.
const STORY_MAX: Duration = Duration::from_secs(600);

/// What the drivers learned: the acknowledged rounds of each conversation.
#[derive(Default)]
struct Acknowledged {
    rounds: Mutex<Vec<Vec<String>>>,
    cuts: AtomicUsize,
}

impl Acknowledged {
    fn conversations(&self) -> usize {
        self.rounds.lock().len()
    }
}

/// A client of one tenant; it knows an address and a key.
#[derive(Clone)]
struct Tenant {
    client: Client,
    url: String,
    key: String,
}

impl Tenant {
    async fn events(&self, conversation: usize, cursor: &str) -> Option<Response> {
        let request = self
            .client
            .get(format!(
                "{}/v1/conversations/c{conversation}/events",
                self.url
            ))
            .bearer_auth(&self.key);
        let response = request.header("last-event-id", cursor).send().await.ok()?;
        (response.status() == StatusCode::OK).then_some(response)
    }

    /// Sends a prompt with an idempotency key until it is acknowledged; returns its round.
    async fn say(&self, conversation: usize, text: &str) -> String {
        loop {
            let request = self
                .client
                .post(format!(
                    "{}/v1/conversations/c{conversation}/messages",
                    self.url
                ))
                .bearer_auth(&self.key);
            let request = request
                .header("prefer", "respond-async")
                .header("idempotency-key", text)
                .header("content-type", "application/json");
            if let Ok(response) = request
                .body(json!({ "content": text }).to_string())
                .send()
                .await
                && response.status() == StatusCode::ACCEPTED
                && let Ok(body) = response.text().await
            {
                let body: Value = serde_json::from_str(&body).unwrap();
                return body["round_id"].as_str().unwrap().to_owned();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// An event id as three numbers.
fn numbers(id: &str) -> [u64; 3] {
    let mut parts = id.split('.').map(|number| number.parse().unwrap());
    std::array::from_fn(|_| parts.next().unwrap())
}

/// The events that one watcher received, and the messages it builds from them.
#[derive(Default)]
struct Watcher {
    conversation: usize,
    cursor: String,
    durable: Vec<[u64; 3]>,
    pending: BTreeMap<String, String>,
    texts: Vec<String>,
    ended: Vec<String>,
    restarts: usize,
    /// Whether no event was missed since the last message.
    unbroken: bool,
    live_texts: usize,
}

impl Watcher {
    fn take(&mut self, block: &str) {
        let Some(data) = block.lines().find_map(|line| line.strip_prefix("data: ")) else {
            return;
        };
        let event: Value = serde_json::from_str(data).unwrap();
        let id = event["id"].as_str().unwrap();
        assert!(
            self.cursor.is_empty() || numbers(id) > numbers(&self.cursor),
            "{id} arrived after {}",
            self.cursor
        );
        id.clone_into(&mut self.cursor);
        let kind = event["type"].as_str().unwrap();
        if ![
            "text_delta",
            "thinking_delta",
            "tool_progress",
            "retry",
            "context",
            "queued",
        ]
        .contains(&kind)
        {
            self.durable.push(numbers(id));
        }
        let round = event["round_id"].as_str().unwrap_or_default().to_owned();
        let pending = self.pending.entry(round.clone()).or_default();
        match kind {
            "text_delta" => pending.push_str(event["text"].as_str().unwrap()),
            "message" => {
                let text = event["message"]["content"][0]["text"]
                    .as_str()
                    .unwrap()
                    .to_owned();
                let shown = std::mem::take(pending);
                if self.unbroken && !shown.is_empty() {
                    assert_eq!(shown, text, "the shown text is the sent text");
                    self.live_texts += 1;
                }
                self.texts.push(text);
                self.unbroken = true;
            }
            "round_started" | "turn_restarted" => {
                self.restarts += usize::from(kind == "turn_restarted");
                pending.clear();
                self.unbroken = true;
            }
            "round_finished" => self.ended.push(round),
            "snapshot" | "error" => panic!("no cursor of this story is of no use: {data}"),
            _ => {}
        }
    }

    /// Connects and reads at most `count` events, each within `patience`; then disconnects.
    async fn look(&mut self, tenant: &Tenant, count: usize, patience: Duration) -> bool {
        let cursor = if self.cursor.is_empty() {
            "0.0.0"
        } else {
            &self.cursor
        };
        let Some(mut response) = tenant.events(self.conversation, cursor).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            return false;
        };
        self.unbroken = false;
        let mut text = String::new();
        let mut read = 0;
        while read < count {
            let Ok(Ok(Some(chunk))) = tokio::time::timeout(patience, response.chunk()).await else {
                break;
            };
            text.push_str(std::str::from_utf8(&chunk).unwrap());
            while let Some((block, rest)) = text.split_once("\n\n") {
                self.take(block);
                text = rest.to_owned();
                read += 1;
                if read == count {
                    break;
                }
            }
        }
        true
    }
}

async fn watch(
    tenant: Tenant,
    acknowledged: Arc<Acknowledged>,
    mut watcher: Watcher,
    mut random: SplitMix,
    enough: usize,
) -> Watcher {
    while acknowledged.cuts.load(Ordering::Relaxed) < enough {
        let patience = Duration::from_millis(5 + random.below(40) as u64);
        if watcher.look(&tenant, 1 + random.below(25), patience).await {
            acknowledged.cuts.fetch_add(1, Ordering::Relaxed);
        }
    }
    watcher
}

/// Sends prompts to one conversation, each after a random number of disconnects.
async fn drive(
    tenant: Tenant,
    acknowledged: Arc<Acknowledged>,
    conversation: usize,
    mut random: SplitMix,
    enough: usize,
) {
    let mut next = 0;
    for n in 0.. {
        next += random.below(2 * CUTS_PER_PROMPT * acknowledged.conversations());
        while acknowledged.cuts.load(Ordering::Relaxed) < next.min(enough) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if next >= enough {
            return;
        }
        let round = tenant.say(conversation, &format!("prompt {n}")).await;
        acknowledged.rounds.lock()[conversation].push(round);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_disconnects_and_kills_of_the_host_lose_and_repeat_nothing() {
    let seed = seed("serve-resumes");
    let (enough, conversations) = TestSize::pick((1000, 4), (1000, 4), (10_000, 16));
    let home = Home::new();
    let model = ModelServer::start((0..20_000).map(|n| {
        let [start, block, _, end @ ..] = <[String; 6]>::try_from(anthropic_text("")).unwrap();
        let word = format!("word {n} ");
        let delta = anthropic_text(&word)[2].clone();
        let reply = Reply::stream().send(sse([&start, &block]));
        let reply = (0..8).fold(reply, |reply, _| {
            reply
                .send(sse([&delta]))
                .then(Step::Pause(Duration::from_millis(4)))
        });
        reply.send(sse(&end))
    }))
    .await;
    let acme = Key::new(&home);
    let other = Key::new(&home);
    std::fs::write(home.work().join("key"), "sk-test-not-a-real-key").unwrap();
    let tenants = format!(
        "[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\n[[tenant]]\nid = \"other\"\nkey_sha256 = \"{}\"\n",
        acme.hash, other.hash
    );
    let provider = "[[provider]]\nname = \"slow\"\nkind = \"anthropic\"\napi_key_file = \"key\"\n";
    configure(
        &home,
        &format!("{provider}base_url = \"{}\"\n{tenants}", model.url()),
    );
    let mut served = Served::start(&home, &[]);
    let address = served
        .url
        .trim_start_matches("http://")
        .trim_end_matches('/')
        .to_owned();
    let tenant = Tenant {
        client: callboard::tls::client_builder()
            .unwrap()
            .no_proxy()
            .build()
            .unwrap(),
        url: format!("http://{address}"),
        key: acme.key.clone(),
    };
    let acknowledged = Arc::new(Acknowledged {
        rounds: Mutex::new(vec![Vec::new(); conversations]),
        ..Acknowledged::default()
    });
    for conversation in 0..conversations {
        let round = tenant.say(conversation, "first").await;
        acknowledged.rounds.lock()[conversation].push(round);
    }

    let began = Instant::now();
    let watchers: Vec<_> = (0..WATCHERS * conversations)
        .map(|n| {
            let watcher = Watcher {
                conversation: n % conversations,
                ..Watcher::default()
            };
            tokio::spawn(watch(
                tenant.clone(),
                acknowledged.clone(),
                watcher,
                SplitMix(seed.wrapping_add(n as u64)),
                enough,
            ))
        })
        .collect();
    let drivers: Vec<_> = (0..conversations)
        .map(|n| {
            tokio::spawn(drive(
                tenant.clone(),
                acknowledged.clone(),
                n,
                SplitMix(seed.wrapping_add(99 + n as u64)),
                enough,
            ))
        })
        .collect();
    let mut kills = 0;
    while acknowledged.cuts.load(Ordering::Relaxed) < enough {
        tokio::time::sleep(LIFE).await;
        served.signal("KILL");
        drop(served);
        served =
            tokio::task::block_in_place(|| Served::with(&home, &["serve", "--listen", &address]));
        kills += 1;
        let cuts = acknowledged.cuts.load(Ordering::Relaxed);
        assert!(
            began.elapsed() < STORY_MAX,
            "{cuts} of {enough} disconnects, {kills} kills: it is stuck"
        );
    }
    for driver in drivers {
        driver.await.unwrap();
    }
    let took = began.elapsed();
    let mut all = Vec::new();
    for watcher in watchers {
        all.push(watcher.await.unwrap());
    }

    let rounds = acknowledged.rounds.lock().clone();
    let whole = (0..conversations).map(|conversation| Watcher {
        conversation,
        ..Watcher::default()
    });
    let mut whole: Vec<_> = whole.collect();
    let mut live_texts: usize = 0;
    let mut restarts: usize = 0;
    for watcher in whole.iter_mut().chain(&mut all) {
        let until = Instant::now() + PATIENCE;
        while watcher.ended.len() < rounds[watcher.conversation].len() {
            assert!(
                Instant::now() < until,
                "c{}: {} of {} rounds ended",
                watcher.conversation,
                watcher.ended.len(),
                rounds[watcher.conversation].len()
            );
            watcher
                .look(&tenant, usize::MAX, Duration::from_millis(200))
                .await;
        }
        assert_eq!(
            watcher.ended, rounds[watcher.conversation],
            "each acknowledged round ends once, in order"
        );
    }
    for watcher in &all {
        assert_eq!(
            watcher.durable, whole[watcher.conversation].durable,
            "each durable event once and in order"
        );
        assert_eq!(
            watcher.texts, whole[watcher.conversation].texts,
            "the replace rule gives the whole text"
        );
        live_texts += watcher.live_texts;
        restarts += watcher.restarts;
    }
    for (conversation, whole) in whole.iter().enumerate() {
        let history = served
            .get(
                &format!("/v1/conversations/c{conversation}/messages"),
                &acme.key,
            )
            .await
            .body;
        let history = history["messages"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|message| message["role"] == "assistant");
        let history: Vec<_> = history
            .map(|message| message["content"][0]["text"].as_str().unwrap_or_default())
            .collect();
        assert!(
            whole
                .texts
                .iter()
                .map(String::as_str)
                .zip(&history)
                .all(|(texts, kept)| texts == *kept),
            "the history says the same"
        );
    }
    let foreign = Tenant {
        key: other.key,
        ..tenant.clone()
    };
    assert!(foreign.events(0, &all[0].cursor).await.is_none());
    let foreign = served
        .ask(
            Method::GET,
            "/v1/conversations/c0/events",
            &foreign.key,
            None,
        )
        .await;
    assert_eq!(
        (foreign.status, foreign.body["code"].as_str()),
        (StatusCode::NOT_FOUND, Some("not_found"))
    );
    let ends: usize = rounds.iter().map(Vec::len).sum();
    println!(
        "{enough} disconnects, {kills} kills, {ends} rounds, {restarts} restarts of a turn seen, {live_texts} texts seen live in {took:?}"
    );
    assert!(kills > 1 && live_texts > 20, "the test covered enough");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_is_waited_for_after_a_kill_before_its_conversation_woke() {
    let home = Home::new();
    let begun: String = sse(anthropic_text("So far").iter().take(3));
    let model = ModelServer::start([Reply::stream().send(begun).then(Step::Stall)]).await;
    let acme = Key::new(&home);
    std::fs::write(home.work().join("key"), "sk-test-not-a-real-key").unwrap();
    configure(
        &home,
        &format!(
            "[[provider]]\nname = \"slow\"\nkind = \"anthropic\"\nbase_url = \"{}\"\napi_key_file = \"key\"\n[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\n",
            model.url(),
            acme.hash
        ),
    );
    let served = Served::start(&home, &[]);
    let address = served.url.trim_start_matches("http://").to_owned();
    let tenant = Tenant {
        client: callboard::tls::client_builder()
            .unwrap()
            .no_proxy()
            .build()
            .unwrap(),
        url: served.url.clone(),
        key: acme.key.clone(),
    };
    let rounds = [tenant.say(0, "one").await, tenant.say(0, "two").await];
    model.requests_came(1).await;
    served.signal("KILL");
    drop(served);
    model.script([Reply::events(anthropic_text("Taken up."))]);

    // Like a browser, it reconnects as soon as the host listens, before the interrupted rounds are
    // resumed.
    let coming: Vec<_> = rounds
        .map(|round| {
            let request = tenant
                .client
                .get(format!(
                    "{}/v1/conversations/c0/events?round={round}",
                    tenant.url
                ))
                .bearer_auth(&tenant.key);
            tokio::spawn(async move {
                loop {
                    match request.try_clone().unwrap().send().await {
                        Ok(response) => break (response.status(), response.text().await.unwrap()),
                        Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
                    }
                }
            })
        })
        .into();
    let again =
        tokio::task::block_in_place(|| Served::with(&home, &["serve", "--listen", &address]));

    for watched in coming {
        let (status, text) = tokio::time::timeout(PATIENCE, watched)
            .await
            .expect("the stream ends")
            .unwrap();
        assert_eq!(status, StatusCode::OK);
        assert!(
            text.contains("event: round_finished") && text.contains("Taken up."),
            "{text}"
        );
    }
    drop(again);
}
