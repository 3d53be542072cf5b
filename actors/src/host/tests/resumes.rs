//! Watchers that disconnect and reconnect a thousand times while rounds run, are interrupted and
//! compacted, and hosts are replaced: every watcher gets each durable event exactly once and in
//! order. The checker knows only what its watchers received. `CALLBOARD_SEED=n` replays one story,
//! `CALLBOARD_LONG=1` runs ten times as many.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::timeout;

use super::*;
use crate::testing::TestSize;
use crate::{
    chat::Role,
    compactor::CompactionSettings,
    host::{Events, EventsFrom},
    ids::{EventId, RoundId, Scope, Seq},
    journal::{Durable, Entry, project},
    ports::{Capabilities, ListQuery, ProviderError},
    testing::{Reply, ScriptedModel},
};

/// Disconnects per story.
const DISCONNECTS: usize = 250;
const STORIES: u64 = 4;
const CONVERSATIONS: usize = 3;
const WATCHERS: usize = 4;

/// A splitmix64 generator, so that a seed replays a story.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// What one watcher received, and what follows from it.
#[derive(Default)]
struct Watcher {
    conversation: usize,
    events: Option<Events>,
    last: EventId,
    durable: Vec<EventId>,
    /// The deltas of each round since its last message.
    pending: BTreeMap<RoundId, String>,
    said: Vec<String>,
    /// Whether no event was missed since the last durable one.
    unbroken: bool,
    /// Rounds up to this entry ended longer ago than the ring keeps events. Only their deltas may
    /// be missing.
    aged: Seq,
    live_texts: usize,
}

impl Watcher {
    fn take(&mut self, event: &StreamEvent) {
        assert!(
            event.id > self.last,
            "{} came after {}",
            event.id,
            self.last
        );
        self.last = event.id;
        if event.kind.is_durable() {
            self.durable.push(event.id);
        }
        let Some(round) = event.round_id else { return };
        let pending = self.pending.entry(round).or_default();
        match &event.kind {
            EventKind::TextDelta { text } => pending.push_str(text),
            EventKind::Message { message, partial } => {
                let text = message.text();
                let shown = std::mem::take(pending);
                if self.unbroken && !shown.is_empty() {
                    let is_whole = shown == text || (*partial && text.starts_with(&shown));
                    assert!(
                        is_whole || event.id.seq <= self.aged,
                        "{shown:?} was shown, {text:?} was said in {}",
                        event.id
                    );
                    self.live_texts += usize::from(is_whole);
                }
                self.said.push(text);
                self.unbroken = true;
            }
            EventKind::RoundStarted {} | EventKind::TurnRestarted { .. } => {
                pending.clear();
                self.unbroken = true;
            }
            EventKind::Snapshot { .. } => panic!("no cursor of this story is of no use"),
            _ => {}
        }
    }

    async fn connect(&mut self, host: &Host) {
        let from = EventsFrom::After(self.last);
        self.events = host
            .tenant("acme")
            .conversation(format!("c-{}", self.conversation))
            .events(from)
            .await
            .ok();
        self.unbroken = false;
    }

    /// Reads up to `count` events, waiting at most `patience` for each, and returns how many it
    /// read.
    async fn read(&mut self, count: u64, patience: Duration) -> u64 {
        for read in 0..count {
            let Some(events) = &mut self.events else {
                return read;
            };
            match timeout(patience, events.next()).await {
                Ok(Some(event)) => self.take(&event),
                Ok(None) => {
                    self.events = None; // The host stopped.
                    return read;
                }
                Err(_) => return read,
            }
        }
        count
    }
}

/// A model with a small window: it streams its answers in pieces, sometimes calls one or two tools,
/// and sometimes fails.
fn model() -> Arc<ScriptedModel> {
    let model = ScriptedModel::answering(|request, call| {
        let said = request
            .messages
            .last()
            .map(|message| message.text())
            .unwrap_or_default();
        let words = format!("{said} {call}: ").repeat(8);
        let text = || {
            Reply::text(words.clone())
                .chunks(6)
                .chunk_delay(Duration::from_millis(3))
        };
        match call % 7 {
            0 => text().and_tool("look", &serde_json::json!({})),
            3 => text()
                .and_tool("look", &serde_json::json!({}))
                .and_tool("look", &serde_json::json!({})),
            5 => text().then_fail(ProviderError::Connection {
                message: "reset".into(),
            }),
            _ => text(),
        }
    });
    let capabilities = Capabilities {
        context_window: 4000,
        output_max: 400,
        tools: true,
        output_schema: false,
        counts_tokens: false,
        images: true,
        documents: true,
        request_bytes_max: None,
        thinking: false,
    };
    Arc::new(model.capabilities(capabilities))
}

async fn begin(sessions: &Arc<dyn SessionBackend>) -> Host {
    let (tool, _) = probe("look", EffectClass::Pure, |_| async {
        tokio::time::sleep(Duration::from_millis(5)).await;
        Ok(ToolOutput::Text("seen ".repeat(20)))
    });
    let settings = CompactionSettings {
        enable_llm_summarization: false,
        ..CompactionSettings::default()
    };
    let host = builder(&model())
        .tools([tool])
        .compaction(settings)
        .shared_sessions(sessions.clone())
        .build()
        .await
        .unwrap();
    host.resume_interrupted().await.unwrap();
    host
}

/// The ids of the durable events that follow from a journal, the assistant's texts, and the final
/// state.
async fn journal(
    sessions: &dyn SessionBackend,
    scope: &Scope,
) -> (Vec<EventId>, Vec<String>, Durable) {
    let mut state = Durable::default();
    let mut ids = Vec::new();
    let mut said = Vec::new();
    for stored in sessions.entries(scope, Seq(0), usize::MAX).await.unwrap() {
        let entry = Entry::decode(&stored).unwrap();
        for (n, kind) in (0..).zip(project(&"c-1".parse().unwrap(), &state, &entry).1) {
            if let EventKind::Message { message, .. } = &kind {
                said.push(message.text());
            }
            if kind.is_durable() {
                ids.push(EventId {
                    epoch: entry.epoch,
                    seq: entry.seq,
                    n,
                });
            }
        }
        state.apply(&entry).unwrap();
    }
    (ids, said, state)
}

fn scope(conversation: usize) -> Scope {
    Scope::new(
        "acme".parse().unwrap(),
        format!("c-{conversation}").parse().unwrap(),
    )
}

/// What the stories covered, so that the test can assert that they tested something.
#[derive(Debug, Default)]
struct Figures {
    disconnects: usize,
    restarts: usize,
    rounds: u64,
    compactions: u64,
    events: usize,
    live_texts: usize,
    compared_with_history: usize,
}

async fn story(seed: u64, figures: &mut Figures) {
    eprintln!("seed {seed}");
    let mut rng = Rng(seed);
    let sessions = store();
    let mut host = begin(&sessions).await;
    for conversation in 0..CONVERSATIONS {
        host.tenant("acme")
            .conversation(format!("c-{conversation}"))
            .send("first")
            .await
            .unwrap();
    }
    let mut watchers: Vec<Watcher> = (0..CONVERSATIONS * WATCHERS)
        .map(|n| Watcher {
            conversation: n % CONVERSATIONS,
            last: EventId::default(),
            ..Watcher::default()
        })
        .collect();
    let mut disconnects = 0;

    while disconnects < DISCONNECTS {
        let conversation = host
            .tenant("acme")
            .conversation(format!("c-{}", rng.below(CONVERSATIONS as u64)));
        match rng.below(40) {
            0..5 => drop(conversation.send(format!("prompt {disconnects}")).await),
            5 => drop(conversation.interrupt().await),
            6 => drop(conversation.compact().await),
            7 => tokio::time::sleep(Duration::from_millis(rng.below(200))).await,
            8 if rng.below(4) == 0 => host.hibernate_idle(),
            // Let the rounds end, and then let them age out of the ring.
            9 if rng.below(6) == 0 => {
                tokio::time::sleep(Duration::from_secs(60)).await; // Rounds end, and then they age.
                let mut heads = Vec::new();
                for conversation in 0..CONVERSATIONS {
                    heads.push(sessions.head(&scope(conversation)).await.unwrap().seq);
                }
                tokio::time::sleep(Duration::from_secs(640)).await;
                watchers
                    .iter_mut()
                    .for_each(|watcher| watcher.aged = heads[watcher.conversation]);
            }
            10 if rng.below(4) == 0 => {
                if rng.below(2) == 0 {
                    stop(&host, Duration::from_millis(rng.below(50))).await;
                } else {
                    drop((host, conversation));
                    tokio::time::sleep(Duration::from_millis(20)).await; // Its actors end.
                }
                host = begin(&sessions).await;
                figures.restarts += 1;
            }
            _ => {
                let count = watchers.len() as u64;
                let watcher = &mut watchers[usize::try_from(rng.below(count)).unwrap()];
                if watcher.events.take().is_some() {
                    disconnects += 1;
                }
                if rng.below(5) > 0 {
                    watcher.connect(&host).await;
                    watcher
                        .read(rng.below(40), Duration::from_millis(1 + rng.below(12)))
                        .await;
                }
            }
        }
        let lucky = rng.below(watchers.len() as u64);
        watchers[usize::try_from(lucky).unwrap()]
            .read(rng.below(12), Duration::from_millis(1 + rng.below(4)))
            .await;
    }

    host.resume_interrupted().await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await; // All rounds end.
    let foreign = host
        .tenant("other")
        .conversation("c-0")
        .events(EventsFrom::After(watchers[0].last))
        .await;
    assert_eq!(
        foreign.unwrap_err().code(),
        "not_found",
        "another tenant's ids are unknown"
    );
    assert_eq!(
        host.ports()
            .sessions
            .list(&"other".parse().unwrap(), ListQuery::default())
            .await
            .unwrap()
            .len(),
        0
    );
    for watcher in &mut watchers {
        watcher.connect(&host).await;
        while watcher.read(100, Duration::from_millis(50)).await == 100 {}
        let (durable, said, state) = journal(&*sessions, &scope(watcher.conversation)).await;

        assert_eq!(
            watcher.durable, durable,
            "each durable event once and in order"
        );
        assert_eq!(watcher.said, said, "the replace rule gives what was said");
        if state.metrics.compression_events == 0 {
            let history = state
                .history
                .messages()
                .iter()
                .filter(|message| message.role() == Role::Assistant);
            let history: Vec<String> = history.map(|message| message.text()).collect();
            assert_eq!(watcher.said, history);
            figures.compared_with_history += 1;
        }
        figures.events += watcher.durable.len();
        figures.live_texts += watcher.live_texts;
        (figures.rounds, figures.compactions) = (
            figures.rounds + state.metrics.rounds,
            figures.compactions + state.metrics.compression_events,
        );
    }
    figures.disconnects += disconnects;
    host.shutdown(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn resume_with_last_event_id_has_no_gap_and_no_duplicate() {
    let mut figures = Figures::default();
    if let Some(seed) = std::env::var("CALLBOARD_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
    {
        return story(seed, &mut figures).await;
    }
    let stories = if TestSize::is_long() {
        STORIES * 10
    } else {
        STORIES
    };

    for seed in 0..stories {
        story(seed, &mut figures).await;
    }

    eprintln!("{figures:?}");
    assert!(
        figures.restarts > 4 && figures.compactions > 0 && figures.live_texts > 20,
        "the stories cover enough: {figures:?}"
    );
}
