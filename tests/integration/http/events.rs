//! Event streams: resumable without gaps or duplicates, limited in number, and harmless when not
//! read.

use std::collections::BTreeMap;

use super::*;
use crate::support::{SplitMix, seed};

/// A cursor as three numbers.
fn numbers(id: &str) -> Vec<u64> {
    id.split('.')
        .map(|number| number.parse().unwrap())
        .collect()
}

/// Whether the event follows from the journal and must not be lost. Others may be, since a
/// `message` replaces them.
fn is_durable(event: &Sent) -> bool {
    ![
        "text_delta",
        "thinking_delta",
        "tool_progress",
        "retry",
        "context",
        "queued",
    ]
    .contains(&event.event.as_str())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resume_with_last_event_id_has_no_gap_and_no_duplicate() {
    const CUTS: usize = 200;
    let seed = seed("http-resume");
    println!("seed {seed}");
    let mut random = SplitMix(seed);
    let model = ScriptedModel::answering(|_, call| {
        Reply::text(format!("answer {call} {}", "word ".repeat(20))).chunks(10)
    });
    let server = Server::start(model).await;
    server.send("c", "first").await;
    let mut seen: Vec<Sent> = Vec::new();
    let mut cursor = "0.0.0".to_owned();
    let mut cuts = 0;
    let mut prompts = 1;

    while cuts < CUTS {
        if random.below(4) == 0 && prompts < 40 {
            let request = server
                .ask(Method::POST, "/v1/conversations/c/messages", ACME)
                .header("prefer", "respond-async");
            soon(with_json(request, &json!({ "content": format!("prompt {prompts}") })).send())
                .await
                .unwrap();
            prompts += 1;
        }
        let response = server
            .ask(Method::GET, "/v1/conversations/c/events", ACME)
            .header("last-event-id", &cursor);
        let mut stream = Sse::of(soon(response.send()).await.unwrap());
        for _ in 0..random.below(12) {
            // A short look: after the last event nothing arrives until the next prompt.
            let Ok(Some(event)) =
                tokio::time::timeout(Duration::from_millis(30), stream.next()).await
            else {
                break;
            };
            cursor.clone_from(&event.id);
            seen.push(event);
        }
        cuts += 1;
    }
    server.send("c", "last").await;
    let response = server
        .ask(Method::GET, "/v1/conversations/c/events", ACME)
        .header("last-event-id", &cursor);
    let mut stream = Sse::of(soon(response.send()).await.unwrap());
    while seen
        .iter()
        .filter(|event| event.event == "round_finished")
        .count()
        < prompts + 1
    {
        seen.push(stream.next().await.unwrap());
    }

    let ids: Vec<Vec<u64>> = seen.iter().map(|event| numbers(&event.id)).collect();
    assert!(
        ids.windows(2).all(|pair| pair[0] < pair[1]),
        "seed {seed}: out of order or repeated"
    );
    let whole = server.ask(Method::GET, "/v1/conversations/c/events?after=0.0.0", ACME);
    let mut whole = Sse::of(soon(whole.send()).await.unwrap());
    let mut all: BTreeMap<Vec<u64>, Sent> = BTreeMap::new();
    while all
        .values()
        .filter(|event| event.event == "round_finished")
        .count()
        < prompts + 1
    {
        let event = whole.next().await.unwrap();
        all.insert(numbers(&event.id), event);
    }
    for event in all.values().filter(|event| is_durable(event)) {
        assert!(
            ids.contains(&numbers(&event.id)),
            "seed {seed}: {} {} was lost",
            event.id,
            event.event
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_cursor_the_stream_starts_with_the_running_round() {
    let model = Arc::new(ScriptedModel::answering(|_, call| match call {
        0 => Reply::stall(),
        _ => Reply::text("done"),
    }));
    let server = Server::with(model.clone(), Setting::default()).await;
    let request = server
        .ask(Method::POST, "/v1/conversations/c/messages", ACME)
        .header("prefer", "respond-async");
    soon(with_json(request, &json!({ "content": "go" })).send())
        .await
        .unwrap();
    soon(model.until(|counts| counts.started == 1)).await;

    let mut stream = Sse::of(server.get("/v1/conversations/c/events").await);
    assert_eq!(stream.next().await.unwrap().event, "round_started");
    server
        .post("/v1/conversations/c/interrupt", json!({}))
        .await;
    server.send("c", "again").await;

    let mut ends = Vec::new();
    while ends.len() < 2 {
        let event = stream.next().await.unwrap();
        if event.event == "round_finished" {
            ends.push(event.data["stop_reason"].clone());
        }
    }
    assert_eq!(ends, [json!("interrupted"), json!("end_turn")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cursor_at_the_end_of_a_round_is_204_and_an_unknown_round_404() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    let round = server.send("c", "hello").await["round_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let path = format!("/v1/conversations/c/events?round={round}");

    let events = Sse::of(server.get(&path).await).rest().await;
    let last = events.last().unwrap();
    assert_eq!(last.event, "round_finished");
    // A stream may end an instant before its round counts as over; until then the answer is an
    // empty stream.
    let after_last = format!("{path}&after={}", last.id);
    let is_over = async { while server.get(&after_last).await.status() != 204 {} };
    soon(is_over).await;
    let first = Sse::of(server.get(&format!("{path}&after={}", events[0].id)).await)
        .rest()
        .await;
    assert_eq!(
        first
            .iter()
            .filter(|event| is_durable(event))
            .collect::<Vec<_>>(),
        events[1..]
            .iter()
            .filter(|event| is_durable(event))
            .collect::<Vec<_>>()
    );

    let unknown = server
        .get("/v1/conversations/c/events?round=00000000-0000-4000-8000-000000000000")
        .await;
    assert_eq!(problem(unknown).await, (404, "not_found".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_is_filled_with_comments() {
    let mut bounds = HttpBounds::default();
    bounds.comment_every = Duration::from_millis(20);
    let server = Server::with(
        Arc::new(ScriptedModel::always(Reply::text("yes"))),
        Setting {
            bounds,
            ..Setting::default()
        },
    )
    .await;
    server.send("c", "hello").await;
    let mut response = server.get("/v1/conversations/c/events").await;
    let mut text = String::new();

    while text.matches("\n:\n").count() + usize::from(text.starts_with(":\n")) < 2 {
        text.push_str(
            std::str::from_utf8(&soon(response.chunk()).await.unwrap().unwrap()).unwrap(),
        );
    }

    assert!(text.starts_with("retry: 1000\n\n"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_has_a_limit_of_streams_and_closing_one_frees_its_place() {
    let mut bounds = HttpBounds::default();
    bounds.streams_per_tenant_max = 2;
    let server = Server::with(
        Arc::new(ScriptedModel::always(Reply::text("yes"))),
        Setting {
            bounds,
            ..Setting::default()
        },
    )
    .await;
    server.send("c", "hello").await;
    let first = server.get("/v1/conversations/c/events").await;
    let _second = server.get("/v1/conversations/c/events").await;

    let refused = server.get("/v1/conversations/c/events").await;
    assert_eq!(refused.headers()["retry-after"], "1");
    assert_eq!(problem(refused).await, (429, "too_many_streams".into()));
    assert_eq!(
        server.send("c", "a prompt needs no stream").await["text"],
        "yes"
    );

    drop(first);
    soon(async { while server.get("/v1/conversations/c/events").await.status() != 200 {} }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_when_its_key_is_replaced_and_shows_nothing_more() {
    const NEW: &str = "cb_test_acme_new_not_a_real_key";
    let server = Server::start(ScriptedModel::always(Reply::text("private"))).await;
    server.send("c", "hello").await;
    let open = async |key: &str| {
        let request = server.ask(Method::GET, "/v1/conversations/c/events", key);
        Sse::of(soon(request.send()).await.unwrap())
    };
    server.keys.put(tenant("acme"), KeyHash::from_key(NEW));
    let old = open(ACME).await;
    let new = open(NEW).await;
    server.keys.remove(&KeyHash::from_key(ACME));

    let path = "/v1/conversations/c/messages";
    let request = server.ask(Method::POST, path, NEW);
    let request = with_json(request, &json!({ "content": "after the replacement" }));
    assert_eq!(soon(request.send()).await.unwrap().status(), 200);

    assert_eq!(soon(old.rest()).await, []);
    let mut new = new;
    assert!(new.next().await.is_some(), "the other key goes on");
    server.end().await;
}
